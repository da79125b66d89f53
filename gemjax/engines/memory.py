"""The memory of a run, computed before its allocation, and arrays that are in the memory of other processes."""

import abc
import contextlib
import math
import operator
import os
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gemjax.batches.on_host import OnHost
from gemjax.batches.rows import are_plain
from gemjax.engines.transition import RunState, initial_state, workers_of
from gemjax.protocol import PyTree
from gemjax.protocol.checks import check_positive_int
from gemjax.protocol.local_steps import LocalSteps

STATE = "state"  # Name of the arrays of a state in the files of a checkpoint, which actors write, too.
CONTAINER = pathlib.Path("/sys/fs/cgroup/memory.max")  # Of cgroup v2.


class Owner(Protocol):
    """Processes that have arrays of a state."""

    def writer(self, leaves: "Mapping[str, Any]") -> Callable[[str, Mapping[str, Any], Any], None]:
        """Return ``write(path, arrays, metadata)``, by which they write a checkpoint of ``arrays`` and of their ``leaves``."""
        ...


class Elsewhere(abc.ABC):
    """An array of a :class:`gemjax.RunState` that is in another process or in a file; ``np.asarray`` copies it here.

    Args:
      shape, dtype: those of the array.

    Attributes:
      owner: the processes that have the array; ``None`` if it is in a file.
      at: the checkpoint that has it, and the names of all arrays there, which are read together; ``None`` if it is in no file.
      name: its name there.
    """

    owner: Owner | None = None
    at: tuple[str, tuple[str, ...]] | None = None
    name = ""

    def __init__(self, shape: tuple[int, ...], dtype: Any):
        self.shape, self.dtype, self.ndim = shape, np.dtype(dtype), len(shape)
        self.size = math.prod(shape)
        self.nbytes = self.size * self.dtype.itemsize

    def check(self) -> None:  # noqa: B027
        """Check that the array is still there; by default it is."""

    @abc.abstractmethod
    def read(self) -> np.ndarray:
        """Return the array."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy  # It is a copy.
        return np.asarray(self.read(), dtype)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype})"


def here(tree: PyTree) -> PyTree:
    """Return ``tree`` with all its arrays in this process."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf.read()) if isinstance(leaf, Elsewhere) else leaf, tree)


def memory_of(
    tx: "optax.GradientTransformation",
    params: "PyTree",
    *,
    num_workers: int | None = None,
    model_state: "PyTree" = (),
    local: "LocalSteps | None" = None,
) -> dict[str, int]:
    """Return the bytes that a run keeps, by purpose; nothing is allocated.

    Computing gradients and commits needs more: some copies of the parameters, and the network's activations. In a run on
    devices each worker's device also holds its view and its gradient, two copies of the parameters.

    Args:
      tx: the run's transformation.
      params: its initial central variable; arrays or ``jax.ShapeDtypeStruct``.
      num_workers: number of workers N. Default: that of ``tx``, or 1 for a plain optax transformation.
      model_state: its initial model state.
      local: its local steps, if any.

    Returns:
      Bytes of the ``central variable``, the ``views`` that workers hold, the ``method``'s state and ``local optimizers``.

    >>> import gemjax, jax.numpy as jnp
    >>> gemjax.memory_of(gemjax.multi_asgd(0.1, num_workers=100), jnp.zeros(1000))
    {'central variable': 4000, 'views': 400000, 'method': 400804, 'local optimizers': 0}
    """
    num_workers = workers_of(tx, params) if num_workers is None else num_workers
    check_positive_int("num_workers", num_workers)
    num_workers = operator.index(num_workers)

    def begin(params, model_state):
        return initial_state(tx, params, num_workers=num_workers, model_state=model_state, local=local)

    return bytes_of(jax.eval_shape(begin, params, model_state))


def bytes_of(state: RunState) -> dict[str, int]:
    """Return the bytes of a run's state, arrays or shapes, by purpose."""
    view = state.view.value
    # A view that the method keeps is in its state only.
    return {
        "central variable": _bytes((state.params, state.model_state)),
        "views": _bytes((view.params, view.model_state, view.anchors)),
        "method": _bytes(state.opt_state),
        "local optimizers": _bytes(view.local),
    }


# Data of batches that are plain rows stay in host memory without this advice.
KEEP_ROWS_ON_HOST = (
    "; or let the batches be rows of their data (gemjax.batches.Rows without a `batch` of its own), and change them in the "
    "loss function: then the data stay in host memory"
)
SMALLER_STATE = "fewer workers, a method that keeps fewer copies of the parameters per worker, or narrower parameters"


def check_fits(needed: dict[str, int], device: jax.Device, advice: str = SMALLER_STATE) -> None:
    """Raise ``MemoryError``, with advice, if ``device`` cannot hold that many bytes; pass if its capacity is unknown."""
    available, total = _capacity(device), sum(needed.values())
    if available is not None and total > available:
        parts = ", ".join(f"{name} {readable(size)}" for name, size in needed.items() if size)
        raise MemoryError(
            f"the run keeps {readable(total)} ({parts}), but {device} has {readable(available)}; take {advice}"
            + (KEEP_ROWS_ON_HOST if total - needed.get("data", 0) <= available else "")
        )


def offload_if_needed(
    batches: Any, needed: dict[str, int], device: jax.Device, copies: int = 1, advice: str = SMALLER_STATE
) -> Any:
    """Return ``batches``, kept in host memory if ``device`` can hold the state but not also ``copies`` of their data.

    Raises:
      MemoryError: if the state alone is too large, or the batches are not rows of their data.
      TypeError: for integers in a file that JAX would take for others on the device.
    """
    kept, data = sum(needed.values()), copies * _bytes(batches.data)
    available = _capacity(device)
    if available is not None and kept <= available < kept + data and are_plain(batches):
        return OnHost(batches)
    check_fits(needed | {"data": data}, device, advice)
    batches._check_range(in_files=True)  # The device gets them all.
    return batches


def default_device() -> jax.Device:
    """Return the device on which JAX puts arrays by default."""
    return next(iter(jnp.zeros(0).devices()))


def _capacity(device: jax.Device) -> int | None:
    if device.platform != "cpu":
        return memory_stats(device).get("bytes_limit")
    memory = host_memory()
    return None if memory is None else min(memory, _limit_of_container())


def memory_stats(device: jax.Device) -> dict[str, int]:
    """Return what a device tells of its memory; nothing if it tells nothing."""
    with contextlib.suppress(Exception):  # Some platforms raise where others return None.
        return device.memory_stats() or {}
    return {}


def host_memory() -> int | None:
    """Return the bytes of this host's memory; ``None`` if the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _limit_of_container() -> int:
    """Return the bytes that this container may use; a number beyond any memory if it has no limit."""
    try:
        return int(CONTAINER.read_text())
    except (OSError, ValueError):  # It has the text "max".
        return sys.maxsize


def _bytes(tree: PyTree) -> int:
    return sum(np.size(leaf) * jnp.result_type(leaf).itemsize for leaf in jax.tree.leaves(tree))


def readable(size: float) -> str:
    """Format a size in bytes with a suitable unit."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"
