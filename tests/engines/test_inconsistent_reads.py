"""Views that workers read block by block between the commits of others."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import assert_close, distinct, every_method, mlp, problem_of, quadratic

import gemjax
from gemjax import arrivals
from gemjax.testing import run_in_python

N = 4
MODELS = {
    "sweep": arrivals.Sweep(arrivals.Gamma(N), num_blocks=5),
    "scattered": arrivals.Scattered(arrivals.Gamma(N), num_blocks=3, span=0.7),
}
LATE = [0, 1, 0, 2, 1, 3, 0, 2, 1, 3]


def simulate(make, problem, trace, **options):
    options = {"model_state": problem.model_state, "local": getattr(make, "local", None)} | options
    return gemjax.simulate(make(N), *problem[:3], trace, **options)


def shared_memory(x, alpha, trace, blocks):
    """Alistarh's loop on ``x²/2`` in NumPy, with the whole history: v[j] = x at the clock at which its block was read."""
    history, views = [x], []
    for reads in trace.read_at:
        v = np.array([history[reads[b]][j] for j, b in enumerate(blocks)])
        views.append(v)
        history.append(history[-1] - alpha * v)
    return np.stack(history), np.stack(views)


@pytest.mark.parametrize("name", MODELS)
def test_each_block_is_that_of_its_own_clock_and_the_gap_has_the_bound_of_the_theorem(name, x64):
    d, alpha, trace = 7, 0.2, MODELS[name].trace(60, seed=3)
    assert (trace.read_at.max(1) > trace.read_at.min(1)).sum() > 30
    blocks = np.arange(d) * trace.num_blocks // d
    start = np.linspace(1.0, 2.0, d)
    seen = [start]
    result = gemjax.simulate(
        gemjax.asgd(alpha, N), lambda x, _: 0.5 * jnp.sum(x**2), jnp.asarray(start), lambda w, s: 0.0, trace,
        callback=lambda progress: seen.append(np.asarray(progress.params)), callback_every=1,
    )  # fmt: skip
    x, views = shared_memory(start, alpha, trace, blocks)
    np.testing.assert_allclose(seen, x, rtol=1e-12)
    np.testing.assert_array_equal(result.history["staleness"], trace.staleness)
    for t, reads in enumerate(trace.read_at):
        for j, b in enumerate(blocks):
            missing = alpha * np.abs(views[reads[b] : t, j]).sum()
            assert abs(x[t, j] - views[t, j]) <= missing + 1e-12


@every_method("gem", only=lambda row: distinct(row) and not row.refuses, each_kind=True)
def test_the_compiled_loop_and_the_plain_one_agree(make, x64):
    problem, trace = problem_of(make), MODELS["sweep"].trace(16, seed=1)
    options = {"local": getattr(make, "local", None), "model_state": problem.model_state}
    found, plain = simulate(make, problem, trace), run_in_python(make(N), *problem[:3], trace, **options)
    assert_close(found.params, plain, rtol=1e-10)


@pytest.mark.slow
@every_method("gem", only=distinct, each_kind=True)
def test_one_block_or_no_span_changes_no_bit(make, x64):
    problem, model = problem_of(make), arrivals.Gamma(N)
    plain = simulate(make, problem, model.trace(12))
    for reads in (arrivals.Sweep(model, num_blocks=1), arrivals.Scattered(model, num_blocks=3, span=0.0)):
        found = simulate(make, problem, reads.trace(12))
        jax.tree.map(np.testing.assert_array_equal, found.params, plain.params)
        jax.tree.map(np.testing.assert_array_equal, found.opt_state, plain.opt_state)


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 3])
def test_stopping_and_windows_change_nothing(window, x64):
    make, problem, trace = lambda n: gemjax.gem(0.05, num_workers=n), mlp(jnp.float64), MODELS["sweep"].trace(30)
    whole = simulate(make, problem, trace)
    first = simulate(make, problem, trace, window=window, callback=lambda progress: progress.commits >= 13,
                     callback_every=13)  # fmt: skip
    assert len(first.trace) == 13
    both = simulate(make, problem, trace, state=first, window=window)
    assert_close(both.params, whole.params, rtol=1e-12)
    assert both.trace == trace
    bare = simulate(make, problem, trace, state=first.state, window=window)
    assert_close(bare.params, whole.params, rtol=1e-12)


@pytest.mark.slow
def test_a_sweep_over_rates_is_its_simulations(x64):
    problem, trace = quadratic(), MODELS["scattered"].trace(20)
    make = lambda rate: gemjax.asgd(rate, num_workers=N)
    swept = gemjax.sweep(make, *problem[:3], trace, {"rate": [0.01, 0.05]}, model_state=problem.model_state)
    one = simulate(lambda n: make(0.05), problem, trace)
    assert_close(jax.tree.map(lambda leaf: leaf[1], swept.state.params), one.params, rtol=1e-10)


def test_a_rule_sees_the_age_of_each_block():
    seen = []

    def note_ages():
        def update(updates, state, params=None, *, staleness, block_staleness, **extra_args):
            jax.debug.callback(lambda *ages: seen.append(np.hstack(ages)), staleness, block_staleness, ordered=True)
            return updates, state

        return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)

    tx, trace = gemjax.asynchronous(optax.chain(note_ages(), optax.sgd(0.1)), N), MODELS["sweep"].trace(20)
    gemjax.simulate(tx, lambda x, _: 0.5 * jnp.sum(x**2), jnp.ones(5), lambda w, s: 0.0, trace)
    jax.effects_barrier()
    ages = np.arange(20)[:, None] - trace.read_at
    np.testing.assert_array_equal(seen, np.hstack([ages.max(1, keepdims=True), ages]))


def test_blocks_are_equal_ranges_of_all_parameters():
    tree = {"a": jnp.zeros((2, 2)), "b": jnp.zeros([]), "c": jnp.zeros(3)}
    found = gemjax.rules.spread_blocks(jnp.arange(3), tree)
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found)])
    np.testing.assert_array_equal(flat, np.arange(8) * 3 // 8)
    more = gemjax.rules.spread_blocks(jnp.arange(20), jnp.zeros(8))  # Most of them are empty.
    np.testing.assert_array_equal(more, np.arange(8) * 20 // 8)


def held(alpha, tau, commits):
    trace = arrivals.Adversary(arrivals.RoundRobin(2), hold=tau).trace(commits)
    return gemjax.simulate(
        gemjax.asgd(alpha, 2), lambda x, _: 0.5 * x**2, jnp.array(1.0), lambda w, s: 0.0, trace
    )  # fmt: skip


def test_an_adversary_that_holds_one_gradient_undoes_what_the_others_have_done(x64):
    """The lower bound of Alistarh et al. on ``x²/2``: (1 - α)^τ - α, and a time in proportion to τ."""
    alpha, tau = 0.3, 40
    result = held(alpha, tau, tau + 1)
    assert result.history["staleness"].max() == tau
    np.testing.assert_allclose(float(result.params), (1 - alpha) ** tau - alpha, rtol=1e-12)
    until = [np.flatnonzero(held(alpha, tau, 800).history["loss"] > 1e-8)[-1] for tau in (20, 40, 80)]
    assert 1.8 < until[1] / until[0] < 2.2
    assert 1.8 < until[2] / until[1] < 2.2
