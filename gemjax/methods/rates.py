"""The learning rate: applied and reported, or as a number for rules that need it."""

import jax
import jax.numpy as jnp
import optax

from gemjax.protocol import Method


def rate_at(learning_rate: "optax.ScalarOrSchedule", count: jax.Array) -> jax.Array:
    """Return the learning rate of commit ``count`` (the first is 0), a scalar of the default float type."""
    value = learning_rate(count) if callable(learning_rate) else learning_rate
    return jnp.asarray(value, jnp.result_type(float))


def scale_by_learning_rate(learning_rate: "optax.ScalarOrSchedule", *, flip_sign: bool = True) -> "Method":
    """Return ``optax.scale_by_learning_rate`` with the same state and the diagnostic ``learning_rate``.

    >>> from gemjax.protocol.diagnostics import Observer
    >>> tx, observer = scale_by_learning_rate(lambda count: 0.5 / (1 + count)), Observer(["learning_rate"])
    >>> state = tx.init(jnp.zeros(1))
    >>> _, state = tx.update(jnp.ones(1), state)
    >>> updates, state = tx.update(jnp.ones(1), state, observe=observer)
    >>> updates, observer.collected()["learning_rate"]
    (Array([-0.25], dtype=float32), Array(0.25, dtype=float32))
    """
    inner = optax.scale_by_learning_rate(learning_rate, flip_sign=flip_sign)

    def update_fn(updates, state, params=None, *, observe=None, **extra_args):
        del extra_args
        if observe is not None:
            observe("learning_rate", lambda: rate_at(learning_rate, getattr(state, "count", jnp.int32(0))))
        return inner.update(updates, state, params)

    return optax.GradientTransformationExtraArgs(inner.init, update_fn)
