"""The learning rate as a number, for rules that need it themselves: look-aheads, and distances counted in steps."""

import jax
import jax.numpy as jnp
import optax


def rate_at(learning_rate: optax.ScalarOrSchedule, count: jax.Array) -> jax.Array:
    """The learning rate of commit ``count`` (the first is 0), a scalar of the default float type."""
    value = learning_rate(count) if callable(learning_rate) else learning_rate
    return jnp.asarray(value, jnp.result_type(float))
