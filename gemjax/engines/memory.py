"""What a run keeps in memory, told before it is spent."""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gemjax.batches.on_host import OnHost
from gemjax.batches.rows import Rows
from gemjax.engines.transition import RunState, Transition, workers_of
from gemjax.protocol.local_steps import LocalSteps

PyTree = Any


def memory_of(
    tx: optax.GradientTransformation,
    params: PyTree,
    *,
    num_workers: int | None = None,
    model_state: PyTree = (),
    local: LocalSteps | None = None,
) -> dict[str, int]:
    """Bytes that a run keeps, by what they are for; nothing is allocated.

    What a gradient and a commit need while they are computed comes on top: some copies of the parameters, and the
    network's activations. In a run on devices every worker's device holds, besides, the view that it computes on and the
    gradient under way: two copies of the parameters a worker, if its method keeps what it pulled at the centre, else one.

    Args:
      tx: the run's transformation.
      params: its initial central variable; arrays or ``jax.ShapeDtypeStruct``.
      num_workers: number of workers N. Default: that of ``tx``, or 1 for a plain optax transformation.
      model_state: its initial model state.
      local: its local steps, if it has any.

    Returns:
      Bytes of the ``central variable``, of the ``views`` that workers hold, of the ``method``'s state, and of ``local
      optimizers``.

    >>> import gemjax, jax.numpy as jnp
    >>> gemjax.memory_of(gemjax.multi_asgd(0.1, num_workers=100), jnp.zeros(1000))
    {'central variable': 4000, 'views': 400000, 'method': 400404, 'local optimizers': 0}
    """

    workers = workers_of(tx, params) if num_workers is None else num_workers

    def begin(params, model_state):
        return Transition(tx, lambda params, batch: 0.0, workers, local=local).init(params, model_state)[1]

    return bytes_of(jax.eval_shape(begin, params, model_state))


def bytes_of(state: RunState) -> dict[str, int]:
    """Bytes of a run's state, arrays or shapes, by what they are for."""
    view = state.view.value
    # A view that the method compares with is kept there and nowhere else.
    return {
        "central variable": _bytes((state.params, state.model_state)),
        "views": _bytes((view.params, view.model_state, view.anchors)),
        "method": _bytes(state.opt_state),
        "local optimizers": _bytes(view.local),
    }


def check_fits(
    needed: dict[str, int],
    device: jax.Device,
    mend: str = "fewer workers, a method that keeps fewer copies of the parameters a worker, or narrower parameters",
) -> None:
    """Raises ``MemoryError`` with the mend if ``device`` cannot hold that many bytes; says nothing if that is not known."""
    available, total = _capacity(device), sum(needed.values())
    if available is not None and total > available:
        parts = ", ".join(f"{name} {readable(size)}" for name, size in needed.items() if size)
        raise MemoryError(
            f"the run keeps {readable(total)} ({parts}), but {device} has {readable(available)}; take {mend}"
            + ("; leave data in host memory with gemjax.OnHost" if total - needed.get("data", 0) <= available else "")
        )


def that_fit(batches: Any, needed: dict[str, int], device: jax.Device, copies: int = 1, **mend: str) -> Any:
    """``batches``, left in host memory if ``device`` can hold what the run keeps but not ``copies`` of their data beside it.

    Raises:
      MemoryError: if that does not help, or the batches are not :class:`gemjax.batches.Rows`.
    """
    kept, data = sum(needed.values()), copies * _bytes(batches.data)
    available = _capacity(device)
    if available is not None and kept <= available < kept + data and isinstance(batches, Rows):
        return OnHost(batches)
    check_fits(needed | {"data": data}, device, **mend)
    return batches


def default_device() -> jax.Device:
    """Where JAX puts what nobody has placed."""
    return next(iter(jnp.zeros(0).devices()))


def _capacity(device: jax.Device) -> int | None:
    if device.platform == "cpu":
        try:
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (AttributeError, ValueError, OSError):
            return None
    return (device.memory_stats() or {}).get("bytes_limit")


def _bytes(tree: PyTree) -> int:
    return sum(np.size(leaf) * jnp.result_type(leaf).itemsize for leaf in jax.tree.leaves(tree))


def readable(size: float) -> str:
    """Bytes in the unit that suits them."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"
