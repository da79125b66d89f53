"""One state per worker for any single-worker optax transformation."""

from typing import Any

import optax

from gemjax.protocol import Method
from gemjax.protocol.checks import check_method, with_extra_args
from gemjax.protocol.nodes import check_made_for, nodes
from gemjax.protocol.slots import Slots
from gemjax.protocol.staleness import asynchronous, is_asynchronous


def per_worker(inner: "optax.GradientTransformation", num_workers: int | None = None) -> "Method":
    """Give each worker its own state of ``inner``.

    A worker's commit sees and changes only its own moments, counts and traces. Several published methods are no more than that:
    Multi-ASGD is ``per_worker(optax.trace(momentum))`` in front of a learning rate, DANA-Slim is
    ``per_worker(optax.trace(momentum, nesterov=True))``. PRNG keys in the state are folded with the worker, so that no two
    workers draw the same numbers; worker 0 draws those of ``inner`` alone.

    Args:
      inner: any optax transformation, written for one worker.
      num_workers: number of workers N, in an ordinary ``optax.chain``; ``None`` (default) inside :func:`gemjax.asynchronous`,
        which supplies N.

    Returns:
      A transformation with a stacked copy of the state of ``inner`` per worker.

    Raises:
      ValueError: if ``num_workers`` is given and not positive.
      TypeError: at ``init``, if ``inner`` is a whole method, or a part that was made for a number of workers.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = optax.chain(gemjax.per_worker(optax.trace(0.5), num_workers=2), optax.scale(-1.0))
    >>> state = tx.init(jnp.zeros(1))
    >>> for worker in (0, 0, 1):
    ...     updates, state = tx.update(jnp.ones(1), state, worker=worker)
    ...     print(updates)
    [-1.]
    [-1.5]
    [-1.]
    """
    check_method("inner", inner)
    inner = with_extra_args(inner)

    def init_fn(params) -> Any:
        state = inner.init(params)
        if is_asynchronous(state) or any(slot.num_workers is not None for slot in nodes(state, Slots)):
            raise TypeError(
                "per_worker takes a transformation that is written for one worker, such as optax.trace(0.9), not a whole "
                "method or a part of several workers, which keeps what each worker needs already; use that alone"
            )
        check_made_for(state, 1)
        return Slots(state)

    def update_fn(updates, state: Any, params=None, **extra_args: Any) -> Any:
        updates, value = inner.update(updates, state.value, params, **(extra_args | {"num_workers": 1}))
        return updates, Slots(value)

    member = optax.GradientTransformationExtraArgs(init_fn, update_fn)
    return member if num_workers is None else asynchronous(member, num_workers)
