"""Commits are accepted by the state that they lead to."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import Problem, assert_close, assert_same_bits, every_method, without
from methods.rows import KINDS, METHODS

import gemjax
from gemjax.batches.base import Batches
from gemjax.engines.worker import sound_or_unchanged
from gemjax.protocol.hooks import LookAhead, Refusals
from gemjax.protocol.nodes import nodes
from gemjax.protocol.slots import SharedRows

TARGET = {"x": jnp.array([1.0, -2.0, 0.5]), "b": jnp.float32(0.3)}
BY_NAME = {row.name: row for row in METHODS}
BAD_ROW = 9


@dataclasses.dataclass(frozen=True)
class Spike(Batches):
    """Batches of one number, ``size`` at the pair (worker, step) ``at``; one program serves all of them."""

    at: tuple[int, int] = dataclasses.field(compare=False)
    size: float = dataclasses.field(compare=False)
    data = ()

    def select(self, worker, step, draw=None):
        here = (np.asarray(worker) == self.at[0]) & (np.asarray(step) == self.at[1])
        return np.where(here, self.size, 0.0).astype(np.float32)

    def batch(self, data, selection):
        return selection


def loss_of_spike(params, batch):
    away = jax.tree.map(jnp.subtract, params, TARGET)
    spike = sum(jnp.sum(leaf - jax.lax.stop_gradient(leaf)) for leaf in jax.tree.leaves(params))
    return 0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(away)) + batch * spike


def spiked(at, size):
    """Return a quadratic with a gradient of ``size`` at the pair (worker, step) ``at``; its loss stays small."""
    return Problem(loss_of_spike, jax.tree.map(jnp.zeros_like, TARGET), Spike(at, size))


def once(make):
    """Return ``make`` with one transformation for all runs, whose program is therefore compiled once."""
    tx, local = make(4), getattr(make, "local", None)
    made = lambda num_workers: tx
    made.local = local
    return made


def run(make, problem, trace, **options):
    return gemjax.simulate(make(4), *problem[:3], trace, local=getattr(make, "local", None), **options)


def spiked_run(make, size, commits=24, **options):
    trace = gemjax.arrivals.Gamma(4).trace(commits, seed=2)
    period = make.local.period if getattr(make, "local", None) else 1
    at = (int(trace.worker[BAD_ROW]), period * int(trace.step[BAD_ROW]))
    return trace, run(make, spiked(at, size), trace, **options)


# --- One gradient


def assert_as_without(make, trace, result):
    assert int(result.state.rejected) == 1
    np.testing.assert_array_equal(np.flatnonzero(~result.history["applied"]), [BAD_ROW])
    missing = run(make, spiked((-1, 0), 0.0), without(trace, [BAD_ROW]))
    assert_close(result.params, missing.params, rtol=1e-4)
    for found, expected in zip(nodes(result.opt_state, SharedRows), nodes(missing.opt_state, SharedRows), strict=True):
        assert_close(found.rows, expected.rows, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, pytest.param(3, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", ["dc-asgd", "dana-dc", pytest.param("yellowfin", marks=pytest.mark.nightly)])
def test_one_large_gradient_does_not_ruin_the_central_variable(name, window):
    trace, result = spiked_run(BY_NAME[name], 3e19, window=window)
    assert_as_without(BY_NAME[name], trace, result)


@pytest.mark.slow
@every_method("gem", "lsgd", only=lambda row: not row.refuses, each_kind=True, kinds=KINDS)
def test_a_gradient_near_the_largest_number_is_rejected(make):
    """Shared rows are as before, too."""
    trace, result = spiked_run(make, 3e37)
    assert_as_without(make, trace, result)


@pytest.mark.filterwarnings("ignore:the run has diverged")
@every_method("asgd", only=lambda row: not row.refuses, each_kind=True, kinds=KINDS)
def test_any_gradient_leaves_a_sound_state(make):
    """An accepted gradient may lead far away, but all norms are finite."""
    make = once(make)
    for exponent in (10, 14, 18, 19, 22, 26, 34):
        try:
            _, result = spiked_run(make, 10.0**exponent, commits=40)
        except gemjax.RunFailedError as error:
            result = error.result
        assert int(result.state.commits) >= BAD_ROW
        for leaf in jax.tree.leaves((result.params, result.state.view.value.params)):
            assert np.isfinite(np.square(leaf).sum())
        assert not any(np.isnan(leaf).any() for leaf in jax.tree.leaves(result.opt_state))


def test_double_precision_has_a_limit_of_its_own(x64):
    params = jnp.ones(3, jnp.float64)
    sound = [bool(sound_or_unchanged((params,), (size * params,), params)) for size in (1e30, 1e150, 1e160)]
    assert sound == [True, True, False]


def ahead(distance):
    """Return SGD whose views are ``distance`` gradients ahead."""

    def update(updates, state, params=None, **extra_args):
        return updates, LookAhead(updates, state.distance)

    member = optax.GradientTransformationExtraArgs(
        lambda params: LookAhead(jax.tree.map(jnp.zeros_like, params), jnp.float32(distance)), update
    )
    return lambda n: gemjax.asynchronous(optax.chain(member, optax.scale(-0.1)), n)


@pytest.mark.filterwarnings("ignore:the run has diverged")
def test_a_gradient_at_a_view_that_overflows_is_rejected():
    """The commit before it is applied, because the parameters and the velocity after it have finite norms."""
    trace, result = spiked_run(ahead(4.0), 3e18)
    (row,) = np.flatnonzero(~result.history["applied"])
    assert trace.worker[row] == trace.worker[BAD_ROW]
    assert trace.pulled_at[row] == BAD_ROW + 1


def test_a_run_whose_views_all_overflow_fails_with_finite_parameters():
    with pytest.raises(gemjax.RunFailedError, match=r"the last 56 commits were all rejected .*loss inf") as failure:
        run(ahead(1e38), spiked((-1, 0), 0.0), gemjax.arrivals.RoundRobin(4).trace(60))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(failure.value.result.params))


@pytest.mark.slow
@pytest.mark.parametrize("applied", [True, False])
def test_a_rejected_commit_leaves_every_bit_of_the_shared_rows(applied):
    make = BY_NAME["yellowfin"]
    trace = gemjax.arrivals.RoundRobin(4).trace(9)
    problem = spiked((0, 2), 0.1 if applied else 3e37)
    before, after = (run(make, problem, trace.first(commits)) for commits in (8, 9))
    assert int(after.state.rejected) == (not applied)
    (old,), (new,) = (nodes(result.opt_state, SharedRows) for result in (before, after))
    assert np.array_equal(old.rows, new.rows) != applied
    if not applied:
        assert_same_bits(before.params, after.params)


# --- The check


PARAMS = {"w": jnp.ones((2, 3)), "b": jnp.ones(2)}


def is_sound(before, after):
    return bool(jax.jit(sound_or_unchanged)(before, after, PARAMS))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 1e25])
def test_a_tree_like_the_parameters_has_a_finite_norm(bad):
    for name in PARAMS:
        after = PARAMS | {name: jnp.full(PARAMS[name].shape, 2.0).at[..., -1].set(bad)}
        assert not is_sound(PARAMS, after)
    assert is_sound(PARAMS, jax.tree.map(lambda leaf: 1e18 * leaf, PARAMS))


@pytest.mark.parametrize(("bad", "sound"), [(np.inf, False), (np.nan, False), (1e30, True)])
def test_other_arrays_are_finite(bad, sound):
    assert is_sound(jnp.ones(7), jnp.ones(7).at[3].set(bad)) == sound


@pytest.mark.parametrize("own", [np.inf, np.nan])
def test_numbers_that_were_not_finite_may_stay(own):
    before = jnp.array([own, 1.0])
    assert is_sound(before, jnp.array([own, 2.0]))
    assert is_sound(before, jnp.array([0.0, 2.0]))
    assert not is_sound(before, jnp.array([own, np.inf]))
    assert not is_sound(jnp.array([np.inf, 1.0]), jnp.array([-np.inf, 1.0]))


# --- Results of failed runs


def test_a_failed_simulation_leaves_a_result_to_continue():
    trace = gemjax.arrivals.RoundRobin(2).trace(60)

    def loss_fn(params, batch):
        return jnp.sum((params - 1.0) ** 2) + jnp.where(batch > 5, jnp.nan, 0.0)

    make = gemjax.asgd(0.1, 2)
    with pytest.raises(gemjax.RunFailedError) as failure:
        gemjax.simulate(make, loss_fn, jnp.zeros(3), lambda worker, step: step, trace, callback_every=20)
    result = failure.value.result
    assert int(result.state.commits) == 12
    assert len(result.trace) == len(result.history["loss"]) == int(result.state.arrivals)
    good = lambda worker, step: 0 * step
    again = gemjax.simulate(make, loss_fn, jnp.zeros(3), good, trace, state=result)
    assert int(again.state.commits) == 60 - int(result.state.rejected)


def test_a_bare_state_with_rejections_is_refused_for_a_trace_without_them():
    """Such is the trace of a run on devices: arrivals of the state and of the trace differ."""
    trace, first = spiked_run(BY_NAME["asgd"], 1e30)
    assert int(first.state.rejected) == 1
    longer = without(gemjax.arrivals.Gamma(4).trace(40, seed=2), [BAD_ROW])
    assert trace == gemjax.arrivals.Gamma(4).trace(40, seed=2).first(len(trace))
    with pytest.raises(ValueError, match=r"give state=result"):
        run(BY_NAME["asgd"], spiked((-1, 0), 0.0), longer, state=first.state)


# --- Runs that diverge


def diverging(commits):
    """Return arguments of a run whose commits overflow one by one while others are applied."""
    target = jnp.array([1.0, 2.0, 3.0])
    loss_fn = lambda params, batch: 0.5 * jnp.sum((params - target) ** 2)
    return gemjax.asgd(1.5, 4), loss_fn, jnp.zeros(3), lambda worker, step: 0.0, gemjax.arrivals.Gamma(4).trace(commits)


def test_a_run_that_has_diverged_warns_at_its_end():
    with pytest.warns(
        gemjax.RunWarning, match=r"the median loss of the last 100 commits is .*e\+3\d, and the first was 7;"
    ):
        result = gemjax.simulate(*diverging(600))
    assert np.isfinite(result.params).all()
    assert 0 < int(result.state.rejected) < 300


def test_a_run_most_of_whose_last_commits_were_rejected_warns():
    tx, loss_fn, params, _, trace = diverging(200)
    noisy = lambda params, batch: 1e-9 * loss_fn(params, 0) + jnp.where(batch % 3 > 0, jnp.nan, 0.0)
    with pytest.warns(gemjax.RunWarning, match=r"the run has diverged: 6\d of the last 100 commits were rejected"):
        gemjax.simulate(tx, noisy, params, lambda worker, step: step, trace)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e20])
def test_a_run_that_converges_does_not_warn(scale):
    """Warnings are errors in tests."""
    _, loss_fn, params, batches, trace = diverging(300)
    gemjax.simulate(gemjax.asgd(0.05 / scale, 4), lambda p, b: scale * loss_fn(p, b), params, batches, trace)


def test_a_method_that_refuses_every_commit_warns():
    """The run on devices went on without a sign, and a simulation ended without one."""

    def update(updates, state, params=None, *, value=None, **extra_args):
        return updates, Refusals(state.count + (value > 10.0))

    rule = optax.GradientTransformationExtraArgs(lambda params: Refusals(jnp.zeros([], jnp.int32)), update)
    tx = gemjax.asynchronous(optax.chain(rule, optax.sgd(0.1)), 2)
    problem = lambda params, batch: jnp.sum((params - batch) ** 2), jnp.full(2, 50.0), lambda worker, step: jnp.ones([])
    with pytest.warns(gemjax.RunWarning, match="the method has refused the last 200 commits"):
        result = gemjax.simulate(tx, *problem, gemjax.arrivals.RoundRobin(2).trace(200))
    assert result.history["dropped"].all()
    with pytest.raises(gemjax.RunWarning, match="the method has refused the last 200 commits") as raised:
        gemjax.run_on_devices(tx, *problem, 1)
    assert len(raised.value.result.history["dropped"]) >= 200
