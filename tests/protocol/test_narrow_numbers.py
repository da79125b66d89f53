"""Numbers of NumPy and JAX in few bits, which wrap around or round: refused, or replaced by numbers of Python."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax
from gemjax import arrivals


@pytest.mark.parametrize("kind", [np.float16, np.float32, jnp.float32, jnp.bfloat16])
def test_virtual_time_is_added_up_in_64_bits(kind):
    """In 16 bits it stopped at 256."""
    queue = arrivals.Queue(arrivals.Gamma(8, mean=0.05), service=kind(0.125))
    assert queue.trace(5_000) == arrivals.Queue(arrivals.Gamma(8, mean=0.05), service=0.125).trace(5_000)
    slow = arrivals.Slows(0, at=kind(0.5), factor=kind(2.0))
    arrivals.Incidents(arrivals.Gamma(2), [slow])
    assert type(slow.at) is type(slow.factor) is float


def test_an_observed_number_of_python_is_a_column():
    def update(updates, state, params=None, *, observe=None, **extra_args):
        if observe is not None:
            observe("momentum", lambda: 0.5)
        return updates, state

    rule = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
    tx = gemjax.asynchronous(optax.chain(rule, optax.sgd(0.1)), 2)
    result = gemjax.run_on_devices(tx, lambda p, b: p**2, jnp.ones([]), lambda w, s: 0.0, 4, diagnostics=("momentum",))
    np.testing.assert_array_equal(result.history["momentum"], 0.5)
