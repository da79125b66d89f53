"""The number of workers is given once, to the method; engines read it there."""

import inspect
import warnings

import jax.numpy as jnp
import optax
import pytest

import gemjax

PARAMS = jnp.ones(4)


def squares(params, batch):
    return jnp.sum((params["x"] - batch) ** 2)


def ones(worker, step):
    return jnp.ones(4) * step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tx", "expected"),
    [
        (gemjax.gem(0.1, num_workers=3), 3),
        (optax.chain(optax.clip(1.0), gemjax.per_worker(optax.trace(0.9), 2), optax.scale(-0.1)), 2),
        (optax.masked(gemjax.asgd(0.1, 5), True), 5),
        (optax.sgd(0.1), 1),
    ],
    ids=["method", "chain", "masked", "plain"],
)
def test_the_number_of_workers_is_that_of_the_method(tx, expected):
    params = {"x": PARAMS}
    assert gemjax.initial_state(tx, params).step.num_workers == expected
    assert gemjax.memory_of(tx, params) == gemjax.memory_of(tx, params, num_workers=expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gemjax.RunWarning)
        result = gemjax.run_on_devices(tx, squares, params, ones, 0)
    assert result.trace.num_workers == expected


def test_a_plain_transformation_suits_any_number():
    assert gemjax.initial_state(optax.sgd(0.1), PARAMS, num_workers=3).step.num_workers == 3


FUNCTIONS = {name: getattr(gemjax, name) for name in gemjax.__all__ if inspect.isfunction(getattr(gemjax, name))}
ALIASES = [
    name for name, fn in FUNCTIONS.items() if [*inspect.signature(fn).parameters][1:3] == ["momentum", "num_workers"]
]


def test_all_methods_with_a_momentum_are_tested():
    assert len(ALIASES) >= 20
    assert {"gem", "dana_zero", "multi_asgd", "diloco", "eamsgd"} <= set(ALIASES)
