"""Sweeps: every run of the batch is the run that the simulator makes alone."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import assert_close, late, mlp, poisoned, quadratic

import gemjax
from gemjax.engines.simulator import lanes
from gemjax.engines.simulator.grid import grid

LATE = late()
RATES, KAPPAS, SEEDS = (0.02, 0.05), (1.0, 2.0), (3, 4)


def gem(rate, kappa=1.0):
    return gemjax.gem(rate, 0.9, 4, kappa=kappa)


def sweep(problem, make, over, trace=LATE, **options):
    return gemjax.sweep(make, *problem[:3], trace, over, model_state=problem.model_state, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "batched", [pytest.param(True, marks=pytest.mark.nightly), False], ids=["batched", "one-by-one"]
)
def test_a_threshold_is_swept(x64, batched):
    problem = quadratic()
    result = sweep(
        problem, lambda limit: gemjax.ringmaster(0.05, 4, threshold=limit), {"limit": [2, 4]}, batched=batched
    )
    for run, limit in enumerate((2, 4)):
        alone = gemjax.simulate(
            gemjax.ringmaster(0.05, 4, threshold=limit), *problem[:3], LATE, model_state=problem.model_state
        )
        assert_close(jax.tree.map(lambda x, run=run: x[run], result.params), alone.params, rtol=1e-9)
        assert result.table()[run]["dropped"] == int(alone.state.dropped)
    assert result.table()[0]["dropped"] > result.table()[1]["dropped"]


@pytest.mark.parametrize(
    "batched", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["batched", "one-by-one"]
)
@pytest.mark.filterwarnings("ignore::gemjax.RunWarning")  # Of two learning rates.
@pytest.mark.parametrize("rates", [[float("nan"), 0.05], [0.05, float("nan")]], ids=["first", "last"])
def test_a_value_out_of_range_is_a_run_like_others_wherever_it_stands(rates, batched):
    trace = gemjax.arrivals.Gamma(4).trace(20)
    local = lambda rate: gemjax.LocalSteps(optax.sgd(0.1), 2)
    result = sweep(quadratic(), gem, {"rate": rates}, trace, batched=batched, local=local)
    assert result.state.rejected.tolist() == [20 * np.isnan(rate) for rate in rates]


@pytest.mark.slow
def test_bounds_of_the_clamp_are_swept():
    make = lambda high: gemjax.gem(0.05, num_workers=4, clamp=(0.0, high))
    highs, trace, problem = [0.5, 5.0], gemjax.arrivals.Gamma(4).trace(20), quadratic()
    result = sweep(problem, make, {"high": highs}, trace)
    for run, high in enumerate(highs):
        alone = gemjax.simulate(make(np.float32(high)), *problem[:3], trace)
        assert_close(jax.tree.map(lambda x, run=run: x[run], result.params), alone.params, rtol=1e-5)
    low, high = (jax.tree.leaves(jax.tree.map(lambda x, run=run: x[run], result.params)) for run in (0, 1))
    assert any(np.abs(one - other).max() > 1e-3 for one, other in zip(low, high, strict=True))


@pytest.mark.nightly
def test_strengths_of_anchors_and_counts_of_tokens_are_swept(x64):
    problem, plain = quadratic(), gemjax.LocalSteps(optax.sgd(0.05), 2)
    anchored = lambda strength: gemjax.LocalSteps(
        optax.chain(optax.sgd(0.05), gemjax.rules.pull_to_anchors(strength)), 2
    )
    lsgd = lambda strength: gemjax.lsgd(1.0, 4, anchors=True)
    merged = lambda strength: gemjax.decoupled_diloco(0.5, 0.5, 4, tokens=[strength, 1, 2, 1], fragments=1)
    for make, local in ((lsgd, anchored), (merged, lambda strength: plain)):
        result = sweep(problem, make, {"strength": [0.2, 0.9]}, local=local)
        for run, value in enumerate((0.2, 0.9)):
            alone = gemjax.simulate(
                make(value), *problem[:3], LATE, model_state=problem.model_state, local=local(value)
            )
            assert_close(jax.tree.map(lambda x, run=run: x[run], result.params), alone.params, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "batched", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["batched", "one-by-one"]
)
def test_every_run_is_that_of_the_simulator(x64, batched):
    """A grid of two hyper-parameters and two seeds; late pulls, model state, keys, a rejected gradient, diagnostics."""
    problem = poisoned(mlp(jnp.float64), [(1, 2)])
    over = {"rate": RATES, "kappa": KAPPAS}
    result = sweep(problem, gem, over, seeds=SEEDS, diagnostics=iter(["gap"]), batched=batched)
    assert list(zip(*result.points.values(), strict=True)) == list(itertools.product(RATES, KAPPAS, SEEDS))
    for run, (rate, kappa, seed) in enumerate(itertools.product(RATES, KAPPAS, SEEDS)):
        alone = gemjax.simulate(
            gem(rate, kappa), *problem[:3], LATE, model_state=problem.model_state, seed=seed, diagnostics=["gap"]
        )
        assert_close(jax.tree.map(lambda x, run=run: x[run], result.state), alone.state, rtol=1e-9)
        assert result.history.keys() == alone.history.keys()
        for name, column in alone.history.items():
            found = result.history[name]
            found = found if found.ndim == 1 else found[run]
            np.testing.assert_allclose(found, column, rtol=1e-8, atol=1e-12, err_msg=name)


@pytest.mark.nightly
@pytest.mark.parametrize("make", [gem, lambda rate: gemjax.one_step_delay(rate, 0.9, 4)], ids=["gem", "one_step_delay"])
def test_parameters_in_half_precision_are_swept(make):
    """A rate multiplies them as a number does, and makes no single precision of them."""
    loss_fn = lambda params, batch: jnp.mean((params - batch) ** 2)
    params, batches = jnp.ones(3, jnp.bfloat16), lambda worker, step: jnp.arange(3, dtype=jnp.bfloat16)
    result = gemjax.sweep(make, loss_fn, params, batches, LATE, {"rate": RATES})
    alone = gemjax.simulate(make(RATES[1]), loss_fn, params, batches, LATE)
    assert result.params.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        np.asarray(result.params[1], np.float32), np.asarray(alone.params, np.float32), rtol=0.02, atol=0.01
    )


@pytest.mark.slow
def test_local_steps_of_a_point_are_swept(x64):
    """The learning rate of the workers' own optimizer is one of the hyper-parameters."""
    problem = quadratic()
    local = lambda rate: gemjax.LocalSteps(optax.sgd(rate), 2)
    make = lambda rate: gemjax.easgd(num_workers=4)
    result = sweep(problem, make, {"rate": RATES}, local=local)
    alone = gemjax.simulate(make(0.0), *problem[:3], LATE, model_state=problem.model_state, local=local(RATES[1]))
    assert_close(jax.tree.map(lambda x: x[1], result.state), alone.state, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "batched", [pytest.param(True, marks=pytest.mark.nightly), False], ids=["batched", "one-by-one"]
)
def test_seeds_may_have_parameters_data_and_traces_of_their_own(x64, batched):
    """Each run is that of the simulator with what its seed makes."""
    loss_fn = lambda params, batch: jnp.mean((params[None] - batch) ** 2)
    rows = np.random.default_rng(0).normal(size=(12, 3))
    params, epochs = lambda seed: jnp.full(3, float(seed)), lambda seed: gemjax.Epochs(rows, 4, seed)
    trace = lambda seed: gemjax.arrivals.Gamma(4).trace(30, seed)
    own = [gemjax.PerSeed(make) for make in (params, epochs, trace)]
    over, options = {"rate": RATES}, {"diagnostics": ["gap"], "callback_every": 7, "batched": batched}
    result = gemjax.sweep(gem, loss_fn, *own, over, seeds=SEEDS, **options)
    for run, rate, seed in ((0, RATES[0], SEEDS[0]), (3, RATES[1], SEEDS[1])):
        alone = gemjax.simulate(
            gem(rate), loss_fn, params(seed), epochs(seed), trace(seed), seed=seed, diagnostics=["gap"]
        )
        assert_close(jax.tree.map(lambda x, run=run: x[run], result.state), alone.state, rtol=1e-9)
        for name, column in alone.history.items():
            np.testing.assert_allclose(result.history[name][run], column, rtol=1e-9, err_msg=name)
    one = gemjax.sweep(gem, loss_fn, *own, {"rate": RATES}, seeds=SEEDS[:1])
    assert one.history["time"].shape == one.history["loss"].shape == (2, 30)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "expected"), [(lanes.BATCHED_ON_CPU, "in_one_batch"), (lanes.BATCHED_ON_CPU + 1, "one_by_one")]
)
def test_the_number_of_parameters_decides_on_a_cpu_whether_runs_are_a_batch(size, expected, monkeypatch):
    used = []
    for name in ("in_one_batch", "one_by_one"):
        call = lambda *args, name=name: used.append(name) or getattr(lanes, name)(*args)
        monkeypatch.setattr(gemjax.engines.simulator.sweep, name, call)
    params, trace = {"w": jnp.ones(size - 1), "b": jnp.ones(1)}, gemjax.Trace([0, 1, 0])
    loss_fn = lambda params, batch: jnp.mean(params["w"] ** 2) + jnp.sum(params["b"] - batch)
    make = lambda rate: gemjax.asgd(rate, 2)
    gemjax.sweep(make, loss_fn, params, lambda worker, step: 1.0 * step, trace, {"rate": RATES})
    assert used == [expected]


@pytest.mark.slow
def test_runs_one_by_one_share_one_program_and_leave_the_parameters_that_they_start_from():
    made, problem = [], quadratic()
    for count in (2, 5):
        made.append(0)

        def make(rate):
            made[-1] += 1
            return gemjax.asgd(rate, 4)

        sweep(problem, make, {"rate": np.linspace(0.01, 0.05, count)}, batched=False, callback_every=9)
    assert made[0] == made[1]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(problem[1]))


@pytest.mark.slow
def test_the_state_of_all_runs_is_not_taken_for_that_of_one(tmp_path):
    """Its first axis is that of runs; with as many workers the wrong results would look right."""
    problem, trace = (
        (lambda params, batch: jnp.sum((params - batch) ** 2), jnp.zeros(2)),
        gemjax.arrivals.Gamma(2).trace(8),
    )
    result = gemjax.sweep(
        lambda strength: gemjax.lsgd(num_workers=2, strength=strength), *problem, lambda worker, step: 1.0 + worker, trace,
        {"strength": [0.1, 0.9]}, local=gemjax.LocalSteps(optax.sgd(0.1), 1),
    )  # fmt: skip
    opt_state = result.state.opt_state
    for call, name in (
        (lambda: gemjax.rules.average_position(opt_state), "average_position was"),
        (lambda: gemjax.pull(opt_state, result.params, 0), "pull was"),
        (lambda: gemjax.Checkpoints(tmp_path).save(result.state, trace), "state is that"),
    ):
        with pytest.raises(
            ValueError, match=rf"{name} .*of all 2 runs of a sweep.*jax\.tree\.map\(lambda leaf: leaf\[run\]"
        ):
            call()
    averages = jax.vmap(gemjax.rules.average_position)(opt_state)
    one = gemjax.rules.average_position(jax.tree.map(lambda leaf: leaf[1], opt_state))
    np.testing.assert_allclose(averages[1], one, rtol=1e-6)


def test_a_run_that_diverges_is_a_result():
    """Beside one that does not; its gradients are rejected from some commit on, for being infinite."""
    trace = gemjax.arrivals.Gamma(4).trace(100)
    result = sweep(quadratic(), lambda rate: gemjax.asgd(rate, 4), {"rate": [0.02, 1e6]}, trace=trace)
    good, bad = result.table()
    assert good["rejected"] == 0
    assert bad["rejected"] > 20
    assert not bad["loss"] < 1e6 * good["loss"]


@pytest.mark.slow
def test_the_chunk_size_does_not_matter(x64):
    problem = quadratic()
    one, other = (sweep(problem, gem, {"rate": RATES}, callback_every=size) for size in (None, 5))
    assert_close(one.state, other.state, rtol=1e-12)
    for name in one.history:
        np.testing.assert_allclose(one.history[name], other.history[name], rtol=1e-12, err_msg=name)


def test_the_callback_may_end_it():
    calls = []
    result = sweep(
        quadratic(),
        gem,
        {"rate": RATES},
        callback_every=10,
        callback=lambda done, total: calls.append((done, total)) or done >= 20,
    )
    arrivals = len(LATE.events().worker)
    assert calls == [(10, arrivals), (20, arrivals)]
    assert result.history["loss"].shape == (2, LATE.events().commits[:20].sum())
    assert result.history["worker"].shape == (LATE.events().commits[:20].sum(),)


@pytest.mark.slow
def test_the_table_has_a_row_a_run():
    rows = sweep(poisoned(quadratic(), [(0, 1)]), gem, {"rate": [0.02, 10.0]}).table(last=5)
    assert [row["rate"] for row in rows] == [0.02, 10.0]
    assert rows[0]["rejected"] == 1
    assert rows[0]["loss"] < rows[1]["loss"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "batched", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["batched", "one-by-one"]
)
def test_a_list_of_points_is_swept_and_each_run_is_evaluated_at_the_stops(batched):
    """The trace has late pulls, so commits are not arrivals."""
    points, seen = [{"rate": 0.02, "kappa": 2.0}, {"rate": 0.05, "kappa": 1.0}], {}
    stops = [7, 20]

    def at_stop(commits, run, state):
        assert (commits, run) not in seen, "a stop is passed once, although pulls alone follow it"
        seen[commits, run] = jax.tree.map(np.array, state.params)

    result = sweep(
        quadratic(), gem, points, seeds=SEEDS, stops=stops, at_stop=at_stop, batched=batched, callback_every=1
    )
    assert result.points["kappa"].tolist() == [2.0, 2.0, 1.0, 1.0]
    assert result.points["seed"].tolist() == [*SEEDS, *SEEDS]
    assert seen.keys() == set(itertools.product(stops, range(4)))
    problem = quadratic()
    for (commits, run), params in seen.items():
        alone = gemjax.simulate(gem(**points[run // 2]), *problem[:3], LATE.first(commits), seed=SEEDS[run % 2])
        assert_close(params, alone.params, rtol=1e-5)


def test_points_without_names_are_runs():
    assert [grid(over, [3, 5])["seed"].tolist() for over in ({}, [{}], [{}, {}])] == [[3, 5], [3, 5], [3, 5, 3, 5]]


@pytest.mark.slow
def test_a_stop_is_passed_once_although_pulls_alone_follow_it():
    trace, passed = gemjax.Trace([0, 1, 0, 1, 0, 1], [0, 0, 2, 2, 4, 4], num_workers=2), []
    at_stop = lambda commits, run, state: passed.append(commits)
    problem = quadratic()
    gemjax.sweep(
        lambda rate: gemjax.asgd(rate, 2), *problem[:3], trace, over={"rate": [0.1]}, stops=[2, 4, 6], at_stop=at_stop,
        callback_every=1,
    )  # fmt: skip
    assert passed == [2, 4, 6]


@pytest.mark.slow
def test_batches_of_unequal_size_are_computed_one_by_one_alone():
    rows = np.arange(12.0, dtype=np.float32)
    sizes = gemjax.PerSeed(lambda seed: gemjax.Epochs(rows, 2 + seed))
    run = lambda batched: gemjax.sweep(
        lambda rate: gemjax.asgd(rate, num_workers=2), lambda params, batch: jnp.mean((params - batch) ** 2), jnp.zeros(()),
        sizes, gemjax.Trace([0, 1, 0]), {"rate": [0.1]}, seeds=[0, 1], batched=batched,
    )  # fmt: skip
    with pytest.raises(ValueError, match="same shape"):  # Of JAX.
        run(True)
    assert run(False).params.shape == (2,)
