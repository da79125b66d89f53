"""The machine of this process."""

from concurrent import futures

import jax
import jax.numpy as jnp
import pytest

from gemjax.protocol.compat import enable_x64
from train.common.machine import precision


@pytest.mark.parametrize("surroundings", [False, True])
@pytest.mark.parametrize("x64", [False, True])
def test_the_precision_is_that_of_the_configuration_in_all_threads(surroundings, x64):
    """Random numbers of a run that is resumed under `JAX_ENABLE_X64` would be other ones."""
    draw = lambda: jax.random.bernoulli(jax.random.key(3), 0.5, (12,)).tolist()
    kind = lambda: str(jnp.zeros(1).dtype)
    with enable_x64(x64):
        expected = draw()
    with enable_x64(surroundings), futures.ThreadPoolExecutor(1) as other:
        with precision(x64):
            assert (draw(), other.submit(draw).result()) == (expected, expected)
            assert (kind(), other.submit(kind).result()) == ("float64" if x64 else "float32",) * 2
        assert (kind(), other.submit(kind).result()) == ("float64" if surroundings else "float32", "float32")
