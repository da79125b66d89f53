"""Batches and keys of local steps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import Problem, assert_close, assert_same_bits, quadratic_with_dropout
from protocol.local_simulations import PERIODS, QUADRATIC, SGD, TURNS, pairs, periods, run

import gemjax
from gemjax import LocalSteps
from gemjax.batches.local import LocalBatches
from gemjax.batches.rows import as_batches

every_kind = pytest.mark.parametrize("period", PERIODS.values(), ids=PERIODS.keys())


def counts_of_batches(batches, dimension, period):
    """Return how often each batch was used in a run, and at each commit: every use moves its coordinate by 1."""
    moves = []
    problem = Problem(lambda params, batch: -jnp.sum(params * batch), jnp.zeros(dimension), batches)

    def callback(progress):
        moves.append(np.asarray(progress.params))

    run(LocalSteps(optax.sgd(1.0), period), problem, TURNS, callback_every=1, callback=callback)
    return np.diff(np.stack([np.zeros(dimension), *moves]), axis=0)


@periods
def test_each_local_step_has_the_batch_of_its_worker_and_number(period):
    """No batch beyond a commit's count is used."""
    batches = lambda worker, step: jax.nn.one_hot(32 * worker + step, 96)
    expected = np.zeros((len(TURNS), 96))
    for row, used in zip(expected, pairs(period), strict=True):
        for worker, step in used:
            row[32 * worker + step] += 1
    np.testing.assert_array_equal(counts_of_batches(batches, 96, period), expected)


@periods
def test_epochs_continue_across_commits(period):
    """An epoch has three steps, so that some commits span two epochs."""
    data = np.eye(7, dtype=np.float32)

    class Rows(gemjax.Epochs):
        def batch(self, data, selection):
            return super().batch(data, selection).sum(0)

    order = gemjax.Epochs(data, 2, seed=5)
    expected = np.zeros((len(TURNS), 7))
    for row, used in zip(expected, pairs(period), strict=True):
        for worker, step in used:
            np.add.at(row, order.select(np.array([worker]), np.array([step]))[0], 1)
    np.testing.assert_array_equal(counts_of_batches(Rows(data, 2, seed=5), 7, period), expected)


@every_kind
def test_selections_hold_the_batches_in_order(period):
    """One commit at a time gives the same; rows beyond the count repeat the last."""
    local, fn = LocalSteps(SGD, period), lambda worker, step: 100 * worker + step
    batches = LocalBatches(as_batches(fn, 7), local)
    first, count, chosen = batches.select(TURNS.worker, TURNS.step)
    assert first.dtype == count.dtype == np.int32
    for row, used in enumerate(pairs(period)):
        one = jax.tree.map(lambda column, row=row: column[row], (first, count, chosen))
        again = batches.select(TURNS.worker[row : row + 1], TURNS.step[row : row + 1])
        assert_same_bits(jax.tree.map(lambda column: column[0], again), one)
        minibatches = batches.batch((), one)
        assert (int(minibatches.first), int(minibatches.count)) == (used[0][1], len(used))
        found = [int(minibatches.at(j)) for j in range(local.longest)]
        expected = [100 * worker + step for worker, step in used]
        assert found == expected + expected[-1:] * (local.longest - len(used))


@periods
def test_keys_are_those_of_seed_worker_and_local_step(period):
    def loss_fn(params, model_state, batch, key):
        return jnp.sum(params["x"]), (model_state, {"u": jax.random.uniform(key)})

    result = run(LocalSteps(SGD, period), QUADRATIC._replace(loss_fn=loss_fn), TURNS, seed=9)
    fold = jax.random.fold_in
    drawn = jax.jit(lambda w, s: jax.random.uniform(fold(fold(jax.random.key(9), w), s)))
    expected = [np.mean([drawn(*pair) for pair in used]) for used in pairs(period)]
    np.testing.assert_allclose(result.history["u"], expected, rtol=1e-6)


@pytest.mark.slow
def test_with_a_period_of_one_downpour_is_asgd():
    """There are keys, model state, late pulls and missing steps."""
    given, local, rate = quadratic_with_dropout(), LocalSteps(optax.sgd(0.05)), gemjax.asgd(0.05, num_workers=4)
    found, expected = run(local, given, seed=3), run(None, given, tx=rate, seed=3)
    assert_close(found.params, expected.params, rtol=1e-5)
    assert_close(found.model_state, expected.model_state, rtol=1e-5)
    assert found.history.keys() == expected.history.keys()
    for name, column in expected.history.items():
        np.testing.assert_allclose(found.history[name], column, rtol=1e-4, err_msg=name)
