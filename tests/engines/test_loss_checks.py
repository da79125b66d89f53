"""Forms of loss functions that are accepted, and what their errors name."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.entrances import PARAMS, asgd, every_engine, run, squares

import gemjax


@pytest.mark.slow
@every_engine
@pytest.mark.parametrize("local", [None, gemjax.LocalSteps(optax.sgd(0.1), 2)], ids=["gradients", "local steps"])
def test_metrics_may_be_numbers_of_python(engine, local):
    def loss_fn(params, model_state, batch, key):
        return jnp.sum(params**2), (model_state, {"tokens": 8, "share": 0.5, "is_whole": True})

    history = run(engine, loss_fn, PARAMS, tx=asgd(1.0), local=local).history
    last = [np.ravel(history[name])[-1] for name in ("tokens", "share", "is_whole")]
    np.testing.assert_array_equal(last, [8, 0.5, 1])


def test_an_error_of_the_loss_names_the_batch():
    with pytest.raises(TypeError) as raised:
        run("simulate", lambda params, batch: squares(params, batch["x"]))
    assert raised.value.__notes__[:1] == ["loss_fn was called with a batch of float32[4]"]


def test_an_error_of_the_loss_keeps_its_words():
    def loss_fn(params, batch):
        raise ValueError("the tree has 3 leaves, none of them green")

    with pytest.raises(ValueError, match=r"^the tree has 3 leaves, none of them green\n"):
        run("simulate", loss_fn)


@pytest.mark.parametrize("engine", ["simulate", "devices"])
def test_a_loss_may_be_a_float(engine):
    result = run(engine, loss_fn=lambda params, batch: 1.5)
    np.testing.assert_array_equal(result.params, PARAMS)
    np.testing.assert_array_equal(result.history["loss"], 1.5)
