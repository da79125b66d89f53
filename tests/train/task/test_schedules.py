"""Schedules and weight decay reach every method, those with local steps included."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax
from gemjax import arrivals
from train.config.config import Config
from train.config.methods import METHODS
from train.task import cluster as pace
from train.task.methods import local_steps, make_method, maker, scheduled_rate

WORKERS, COMMITS = 2, 12


def train(config, gradient=1.0, steps_per_epoch=6.0):
    """Return the parameters after each commit, from 1 and under a constant gradient."""

    def loss_fn(params, gradient, batch, key):  # The gradient is an argument, so that the program is compiled once.
        return jnp.sum(params * gradient), (gradient, {})

    seen = []
    gemjax.simulate(
        make_method(config, steps_per_epoch),
        loss_fn,
        jnp.full(3, 1.0),
        lambda worker, step: step,
        arrivals.RoundRobin(WORKERS).trace(COMMITS),
        local=local_steps(config, steps_per_epoch),
        model_state=jnp.float32(gradient),
        callback_every=1,
        callback=lambda progress: seen.append(np.asarray(progress.params)[0]) and False,
    )
    return np.array(seen)


def configured(method, **fields):
    rate = {"learning_rate": 0.01} if method != "yellowfin" else {"learning_rate": 1.0}
    return Config(method=method, engine="simulate", workers=WORKERS, **rate | fields)


IN_CI = ("asgd", "gem", "dana_slim", "easgd", "lsgd", "diloco", "rennala")  # One of each kind.


def some(method):
    marks = [pytest.mark.slow if method in IN_CI else pytest.mark.nightly]
    if METHODS[method].rounds:
        marks.append(pytest.mark.filterwarnings("ignore:the method is defined in rounds"))
    return pytest.param(method, marks=marks)


@pytest.mark.parametrize("method", list(map(some, METHODS)))
def test_a_schedule_acts_from_its_epoch_on(method):
    plain, decayed = train(configured(method)), train(configured(method, decay_epochs=(1.0,), decay_factor=0.01))
    # Local steps follow the commits until their pull, a turn before.
    np.testing.assert_allclose(decayed[:6], plain[:6], rtol=1e-5)
    assert np.abs(decayed - plain)[-4:].max() > 1e-5


def test_a_cosine_falls_to_zero_at_the_end_of_the_run():
    """Twelve commits of two workers are an epoch for each; the gradient is constant, so steps are rates."""
    moved = -np.diff(train(configured("asgd", schedule="cosine", epochs=1.0)), prepend=1.0)
    np.testing.assert_allclose(moved, 0.01 * (1 + np.cos(np.pi * np.arange(12) / 12)) / 2, rtol=1e-3)


def test_a_cosine_begins_where_the_warm_up_ends():
    config = configured("asgd", schedule="cosine", epochs=1.0, warmup_epochs=1.0)
    rates = [float(scheduled_rate(config, 6.0)(step)) for step in range(13)]
    np.testing.assert_allclose(rates[:7], 0.01 * (0.5 + np.arange(7) / 12), rtol=1e-5)
    np.testing.assert_allclose(rates[6:], 0.01 * (1 + np.cos(np.pi * np.arange(7) / 6)) / 2, atol=1e-8)


def rates(config, at, steps_per_epoch=6.0):
    """Return the rates of local steps; ``at`` has the commits until the pull, and the number of the step."""
    tx = local_steps(config, steps_per_epoch).tx
    progress = [{"commits": jnp.int32(commits), "local_step": jnp.int32(step)} for commits, step in at]
    return [-float(tx.update(jnp.ones(1), tx.init(jnp.ones(1)), jnp.ones(1), **now)[0][0]) for now in progress]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"warmup_epochs": 1e9}, [0.25, 0.25, 0.25 + 0.75 * 2**31 / 5e9]),
        ({"warmup_epochs": 1e308}, [0.25] * 3),
        ({"decay_epochs": (1e9, 1e308)}, [1.0] * 3),
        ({"schedule": "cosine", "epochs": 1e12}, [1.0] * 3),
        ({"schedule": "cosine", "epochs": 1e12, "warmup_epochs": 1e308}, [0.25] * 3),
        ({"schedule": "cosine", "epochs": 1e-6}, [1.0, 0.0, 0.0]),
    ],
    ids=lambda value: "" if isinstance(value, list) else str(value),
)
def test_a_schedule_may_be_longer_than_any_run(fields, expected):
    schedule = scheduled_rate(Config(workers=4, learning_rate=1.0, **fields), steps_per_epoch=5)
    found = [float(schedule(jnp.int32(step))) for step in (0, 1000, 2**31 - 1)]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_local_steps_in_rounds_have_the_rates_of_their_own_count(optimizer):
    """Three workers pull after each round; an epoch of all is 12 steps of each."""
    config = configured("diloco", epochs=1.0, period=4, schedule="cosine", local_optimizer=optimizer)
    config = dataclasses.replace(config, workers=3)
    moved = rates(config, [(3 * pull, step) for pull in range(3) for step in range(4)], steps_per_epoch=12.0)
    np.testing.assert_allclose(moved, 0.01 * (1 + np.cos(np.pi * np.arange(12) / 12)) / 2, atol=1e-7)


@pytest.mark.slow
def test_rates_of_workers_of_unequal_speed_fall_together():
    """Within one pull of each other, all workers are at the rate of the run's progress, and at its end at nearly 0."""
    config = configured("downpour", schedule="cosine", epochs=40.0, period=2, cluster="tiered", learning_rate=1.0)
    config = dataclasses.replace(config, workers=4)
    seen, total = [], pace.commits(config, 12)

    trace, _ = pace.traces(config, total)
    result = gemjax.simulate(
        gemjax.downpour(num_workers=4),
        lambda x, batch: jnp.sum(x) * batch,
        jnp.zeros(1),
        lambda worker, step: jnp.float32(1.0),
        trace,
        local=local_steps(config, steps_per_epoch=12.0),
        callback_every=1,
        callback=lambda progress: seen.append(-float(progress.params[0])) and False,
    )
    moved = np.diff(seen, prepend=0.0) / config.period
    expected = (1 + np.cos(np.pi * np.asarray(result.trace.pulled_at) / total)) / 2
    np.testing.assert_allclose(moved, expected, atol=0.01)
    last = {worker: moved[trace.worker == worker][-1] for worker in range(4)}
    assert max(last.values()) < 0.01


def test_dynamic_periods_share_one_progress():
    """Commits of 4, 3, 2 and 1 steps are 2.5 steps of each of four workers."""
    config = configured("delayed_nesterov", schedule="cosine", period=4, cluster="tiered", dynamic_periods=True)
    config = dataclasses.replace(config, workers=4, epochs=1.0)
    moved = rates(config, [(4 * pull, 0) for pull in range(5)], steps_per_epoch=10.0)
    np.testing.assert_allclose(moved, 0.01 * (1 + np.cos(np.pi * np.arange(5) / 4)) / 2, atol=1e-7)


@pytest.mark.parametrize("method", list(map(some, METHODS)))
def test_weight_decay_acts(method):
    """Without a gradient only the decay moves the weights, towards zero."""
    if method == "yellowfin":
        pytest.skip("its rate is tuned by gradients alone, and is not defined where these are all zero")
    without = train(configured(method), gradient=0.0)
    np.testing.assert_array_equal(without, 1.0)
    decayed = train(configured(method, weight_decay=0.1), gradient=0.0)
    assert decayed[-1] < 1 - 1e-6
    assert (np.diff(decayed) <= 1e-7).all()


def test_weight_decay_is_that_of_the_central_weights_and_undamped():
    decayed = train(configured("asgd", weight_decay=0.1), gradient=0.0)
    np.testing.assert_allclose(decayed, (1 - 0.01 * 0.1) ** np.arange(1, COMMITS + 1), rtol=1e-5)


def test_weight_decay_of_local_steps_is_that_of_the_workers_own_weights():
    config = configured("downpour", weight_decay=0.1, period=2)
    updates, _ = local_steps(config).tx.update(jnp.zeros(1), local_steps(config).tx.init(jnp.ones(1)), jnp.full(1, 3.0))
    np.testing.assert_allclose(updates, -0.01 * 0.1 * 3.0, rtol=1e-5)


def test_without_flags_the_method_is_not_wrapped():
    for method in ("gem", "easgd"):
        config = configured(method)
        plain, made = (
            tx.init(jnp.ones(2)) for tx in (maker(method)(0.01, num_workers=WORKERS), make_method(config, 5.0))
        )
        assert jax.tree.structure(plain) == jax.tree.structure(made)
    assert scheduled_rate(config, 5.0) == 0.01


def test_local_steps_decay_with_the_epochs_of_all_workers():
    config = dataclasses.replace(configured("downpour", decay_epochs=(1.0,)), workers=3)
    np.testing.assert_allclose(rates(config, [(0, 0), (5, 0), (6, 0), (9, 0)]), [0.01, 0.01, 0.001, 0.001], rtol=1e-5)


def test_decays_within_one_step_are_all_made():
    config = configured("asgd", decay_epochs=(1.0, 1.01), decay_factor=0.5)
    schedule = scheduled_rate(config, steps_per_epoch=4)
    np.testing.assert_allclose([schedule(3), schedule(4)], [0.01, 0.0025], rtol=1e-5)


@pytest.mark.parametrize("method", [name for name, facts in METHODS.items() if facts.local])
def test_methods_with_local_steps_decay_only_in_these(method):
    config = configured(method, weight_decay=0.1)
    assert len(jax.tree.leaves(make_method(config).init(jnp.ones(2)))) == len(
        jax.tree.leaves(make_method(configured(method)).init(jnp.ones(2)))
    )
    assert isinstance(local_steps(config).tx, optax.GradientTransformation)
