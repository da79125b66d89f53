"""The simulator: deterministic to the bit, with rejections reported, and equal to a plain loop."""

import ast
import functools
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import (
    Problem,
    assert_close,
    assert_same_bits,
    distinct,
    every_method,
    late,
    mlp,
    poisoned,
    quadratic,
    without,
)

import gemjax
from gemjax import testing
from gemjax.batches.local import LocalBatches
from gemjax.engines.simulator import loops
from gemjax.engines.transition import Transition
from gemjax.testing import run_in_python

MLP = mlp()
QUADRATIC = quadratic()
LATE = late()


@functools.cache
def made(make, num_workers):
    """Return one object per method, so that a second run of a test compiles nothing."""
    return make(num_workers)


def run(problem, make, trace, **options):
    options = {"model_state": problem.model_state, "local": getattr(make, "local", None)} | options
    return gemjax.simulate(
        made(make, trace.num_workers), problem.loss_fn, problem.params, problem.batches, trace, **options
    )


def gem(num_workers):
    return gemjax.gem(0.05, num_workers=num_workers)


def multi_asgd(num_workers):
    return gemjax.multi_asgd(0.02, num_workers=num_workers)


def asgd(num_workers):
    return gemjax.asgd(0.05, num_workers=num_workers)


# --- Equality with the plain loop


@every_method("gem", "lsgd", only=lambda row: not row.refuses)
def test_equals_the_plain_loop(make, x64):
    """Float64, with late pulls, model state and keys."""
    problem = mlp(jnp.float64)
    result = run(problem, make, LATE, seed=3)
    plain = run_in_python(make(4), *problem[:3], LATE, model_state=problem.model_state, local=make.local, seed=3)
    assert_close(result.params, plain, rtol=1e-10)
    assert result.trace == LATE
    for name in ("worker", "step", "time", "staleness", "pulled_at"):
        np.testing.assert_array_equal(result.history[name], getattr(LATE, name), err_msg=name)
    assert result.history["applied"].all()


def test_one_worker_is_sequential_training():
    """Without staleness it is the usual loop with optax."""
    loss_fn, params, batches = QUADRATIC[:3]
    result = run(QUADRATIC, lambda n: optax.sgd(0.1, momentum=0.9), gemjax.arrivals.RoundRobin(1).trace(20))
    tx = optax.sgd(0.1, momentum=0.9)
    state = tx.init(params)
    losses = []
    for step in range(20):
        loss, grads = jax.value_and_grad(loss_fn)(params, batches(0, step))
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(float(loss))
    assert_close(result.params, params, rtol=1e-5)
    np.testing.assert_allclose(result.history["loss"], losses, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("tx", [optax.adam(0.05), optax.chain(optax.clip(1.0), optax.sgd(0.05))], ids=["adam", "chain"])
def test_plain_optax_optimizers_are_wrapped(tx):
    result = run(QUADRATIC, lambda n: tx, LATE)
    wrapped = run(QUADRATIC, lambda n: gemjax.asynchronous(tx, n), LATE)
    assert_same_bits(result.params, wrapped.params)
    np.testing.assert_array_equal(result.history["staleness"], LATE.staleness)


# --- Determinism


@pytest.mark.slow
@every_method("gem", only=distinct)
def test_the_same_run_twice_is_the_same_to_the_bit(make):
    first, second = (run(MLP, make, LATE, diagnostics=["gap"]) for _ in range(2))
    assert_same_bits(first.state, second.state)
    assert_same_bits(first.history, second.history)


@pytest.mark.slow
@pytest.mark.parametrize(
    "chunk_size", [1, 7, 1000, 10**12]
)  # The last: all in one call, and no room for more than that.
def test_the_chunk_size_changes_no_bit(chunk_size):
    whole, chunked = run(MLP, gem, LATE), run(MLP, gem, LATE, chunk_size=chunk_size)
    assert_same_bits(chunked.state, whole.state)
    assert_same_bits(chunked.history, whole.history)


SCRIPT = """
import gemjax, jax, numpy as np
gemjax.cpu_devices(9)
from gemjax.testing import quadratic
trace = gemjax.arrivals.Gamma(5).trace(50, seed=1)
result = gemjax.simulate(gemjax.gem(0.05, num_workers=5), *quadratic(dimension=7), trace)
print(np.asarray(result.params["x"]).tobytes().hex(), result.history["loss"].tobytes().hex())
"""


@pytest.mark.slow
def test_another_process_computes_the_same_bits():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        env={"JAX_PLATFORMS": "cpu", "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")},
    )
    result = run(Problem(*testing.quadratic(dimension=7)), gem, gemjax.arrivals.Gamma(5).trace(50, seed=1))
    here = [np.asarray(result.params["x"]).tobytes().hex(), result.history["loss"].tobytes().hex()]
    assert done.stdout.split() == here


def digests():
    """Return digests of state and history for an MLP with dropout, model state and local steps."""
    trace = gemjax.arrivals.Gamma(5, machine_variation=0.3).trace(60, seed=1)
    local = gemjax.LocalSteps(optax.sgd(0.05, momentum=0.5), 3)
    runs = {
        "gem": (gemjax.gem(0.05, num_workers=5), None, ["gap", "energy_ratio", "pi_95", "compensation"]),
        "easgd": (gemjax.easgd(num_workers=5), local, ["update_norm", "normalised_gap", "gap"]),
    }
    found = {}
    for name, (tx, local, diagnostics) in runs.items():
        result = gemjax.simulate(
            tx, *MLP[:3], trace, model_state=MLP.model_state, local=local, seed=7, diagnostics=diagnostics
        )
        leaves = jax.tree.leaves((result.state, dict(sorted(result.history.items()))))
        found[name] = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()
        found[f"{name}'s columns"] = ",".join(result.history)
    return found


DIGESTS = """
import sys
sys.path[:0] = {paths}
import gemjax
gemjax.cpu_devices(9)
from engines.simulator.test_simulate import digests
print(digests())
"""


@pytest.mark.slow
def test_other_processes_compute_the_same_bits():
    """The order of their sets and hash tables does not matter."""
    tests = Path(__file__).parents[2]
    script = DIGESTS.format(paths=[str(tests), str(tests.parent)])
    others = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE, text=True,
            env={"JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": seed, "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")},
        )
        for seed in ("1", "2")
    ]  # fmt: skip
    here = digests()
    assert len(set(here.values())) == 4
    for other in others:
        assert ast.literal_eval(other.communicate()[0]) == here


def stop_after(arrivals):
    left = [arrivals]

    def callback(progress):
        left[0] -= 1
        return left[0] == 0

    return callback


@pytest.mark.parametrize("make", [gem, multi_asgd])
def test_a_run_continued_at_any_arrival_is_the_run_that_did_not_stop(make):
    """At every cut, between a late pull and its commit too, and after a rejection."""
    at = [(int(LATE.worker[5]), int(LATE.step[5]))]
    problem = poisoned(MLP, at)
    whole = run(problem, make, LATE, chunk_size=1)
    assert int(whole.state.rejected) == 1
    arrivals = len(LATE.events().worker)
    assert arrivals > len(LATE)
    for cut in range(1, arrivals):
        first = run(problem, make, LATE, chunk_size=1, callback=stop_after(cut))
        assert first.stopped
        assert int(first.state.arrivals) == cut
        second = run(problem, make, LATE, chunk_size=1, state=first.state)
        assert_same_bits(second.state, whole.state)
        joined = {name: np.concatenate([first.history[name], second.history[name]]) for name in whole.history}
        assert_same_bits(joined, whole.history)
        resumed = run(problem, make, LATE, chunk_size=1, state=first)
        assert_same_bits(resumed.state, whole.state)
        assert_same_bits(resumed.history, whole.history)


def test_a_column_that_only_one_part_of_a_run_reports_is_nan_in_the_other():
    first = run(QUADRATIC, gem, LATE, diagnostics=["gap"], chunk_size=4, callback=stop_after(1))
    second = run(QUADRATIC, gem, LATE, diagnostics=["update_norm"], state=first)
    begin = len(first.history["loss"])
    assert np.isfinite(second.history["gap"][:begin]).all()
    assert np.isnan(second.history["gap"][begin:]).all()
    assert np.isnan(second.history["update_norm"][:begin]).all()
    assert np.isfinite(second.history["update_norm"][begin:]).all()
    assert second.history["gap"].dtype == np.float32
    assert second.history["staleness"].dtype == np.int32


def test_a_result_of_another_trace_is_not_continued():
    first = run(QUADRATIC, gem, LATE, chunk_size=4, callback=stop_after(1))
    other = gemjax.arrivals.RoundRobin(LATE.num_workers).trace(len(LATE))
    with pytest.raises(ValueError, match=r"Result of another trace: its \d+ commits are not the first rows of trace="):
        run(QUADRATIC, gem, other, state=first)


def test_a_pull_alone_uses_up_no_step():
    """Between a late pull and its commit the state has the step that the worker computes."""
    events = LATE.events()
    pulls = np.flatnonzero(~events.commits)
    assert len(pulls)
    for arrival in pulls.tolist():
        state = run(QUADRATIC, gem, LATE, chunk_size=1, callback=stop_after(arrival + 1)).state
        assert int(state.step[int(events.worker[arrival])]) == events.step[arrival]


def test_the_given_state_is_not_donated():
    first = run(QUADRATIC, gem, LATE, chunk_size=1, callback=stop_after(3))
    again = [run(QUADRATIC, gem, LATE, state=first.state) for _ in range(2)]
    assert_same_bits(again[0].state, again[1].state)


def test_a_finished_run_continues_with_nothing():
    whole = run(QUADRATIC, gem, LATE)
    again = run(QUADRATIC, gem, LATE, state=whole.state)
    assert_same_bits(again.state, whole.state)
    assert again.history == {}
    assert_same_bits(run(QUADRATIC, gem, LATE, state=whole).history, whole.history)


def test_a_callback_that_changes_its_history_does_not_change_that_of_the_result():
    def callback(progress):
        progress.history["loss"][:] = 0
        progress.history.clear()

    trace = gemjax.arrivals.RoundRobin(2).trace(8)
    result = gemjax.simulate(gemjax.asgd(0.1, 2), *testing.quadratic(), trace, callback=callback)
    assert (result.history["loss"] > 0).all()


def test_params_are_not_donated():
    params = {"x": jnp.ones(4)}
    run(QUADRATIC._replace(params=params), gem, LATE)
    np.testing.assert_array_equal(params["x"], np.ones(4))


# --- Rejections


@pytest.mark.slow
@every_method("gem", only=lambda row: distinct(row) and not row.refuses)
@pytest.mark.parametrize("kind", ["loss", pytest.param("gradient", marks=pytest.mark.slow)])
def test_a_commit_that_is_not_finite_does_not_happen(make, kind, x64):
    problem, rows = mlp(jnp.float64), [3, 9, 10]
    trace = gemjax.arrivals.Gamma(4).trace(24, seed=2)
    period = make.local.period if make.local else 1
    at = [(int(trace.worker[t]), period * int(trace.step[t])) for t in rows]
    result = run(poisoned(problem, at, kind), make, trace)
    assert int(result.state.rejected) == 3
    np.testing.assert_array_equal(np.flatnonzero(~result.history["applied"]), rows)
    if kind == "loss":
        assert np.isnan(result.history["loss"][rows]).all()
    else:
        assert np.isfinite(result.history["loss"]).all()
    missing = run(problem, make, without(trace, rows))
    assert_close(result.params, missing.params, rtol=1e-10)
    assert_close(result.model_state, missing.model_state, rtol=1e-10)
    applied = result.history["applied"]
    for name in ("staleness", "pulled_at"):
        np.testing.assert_array_equal(result.history[name][applied], missing.history[name], err_msg=name)


def test_a_model_state_that_is_not_finite_is_rejected():
    def loss_fn(params, model_state, batch, key):
        bad = jnp.where(batch, jnp.inf, 1.0)
        return jnp.sum(params**2), (model_state + bad, {})

    trace = gemjax.arrivals.RoundRobin(2).trace(6)
    problem = Problem(loss_fn, jnp.ones(2), lambda worker, step: (worker == 1) & (step == 0), jnp.float32(0))
    result = run(problem, asgd, trace)
    assert int(result.state.rejected) == 1
    assert np.isfinite(result.model_state)


def test_when_all_commits_are_rejected_the_run_fails_with_the_last_ones():
    problem = QUADRATIC._replace(batches=lambda worker, step: jnp.full(4, jnp.nan))
    with pytest.raises(
        gemjax.RunFailedError, match=r"last \d+ commits were all rejected .*worker \d step \d+: loss nan.*learning rate"
    ):
        run(problem, gem, gemjax.arrivals.Gamma(3).trace(40))
    with pytest.raises(gemjax.RunFailedError, match="the last 4 commits were all rejected") as failure:
        run(problem, gem, gemjax.arrivals.Gamma(3).trace(4))
    assert int(failure.value.result.state.rejected) == 4


def test_rejections_that_end_do_not_fail_the_run():
    """One worker is rejected at every step, and the others continue."""
    trace = gemjax.arrivals.RoundRobin(3).trace(90)
    problem = poisoned(QUADRATIC, [(1, step) for step in range(30)])
    result = run(problem, asgd, trace, chunk_size=10)
    assert int(result.state.rejected) == 30
    assert np.isfinite(result.params["x"]).all()
    assert float(jnp.abs(result.params["x"][0])) < 0.5


# --- Model state and keys


def counting(policy_average):
    def loss_fn(params, model_state, batch, key):
        return jnp.sum(params["x"] ** 2), (model_state + batch, {"seen": model_state})

    batches = lambda worker, step: 10.0**worker
    trace = gemjax.Trace([0, 1, 1, 0])
    problem = Problem(loss_fn, {"x": jnp.ones(2)}, batches, jnp.float32(0))
    return run(problem, asgd, trace, average_model_state=policy_average)


def test_the_latest_model_state_replaces_the_central_one():
    result = counting(False)
    # Worker 0: 0 -> 1; worker 1: 0 -> 10; worker 1 at 10 -> 20; worker 0, which holds 1 -> 2.
    np.testing.assert_array_equal(result.history["seen"], [0, 0, 10, 1])
    assert float(result.model_state) == 2


def test_the_averaged_model_state_moves_by_one_nth():
    result = counting(True)
    # 0 -> 0.5; worker 1 sends 10: 0.5 -> 5.25; sends 15.25: -> 10.25; worker 0, which holds 0.5, sends 1.5: -> 5.875.
    np.testing.assert_array_equal(result.history["seen"], [0, 0, 5.25, 0.5])
    assert float(result.model_state) == 5.875


def test_keys_depend_on_seed_worker_and_step_alone():
    def loss_fn(params, model_state, batch, key):
        return jnp.sum(params["x"]), (model_state, {"u": jax.random.uniform(key)})

    trace = gemjax.Trace([1, 0, 1, 0], step=[0, 2, 5, 6])
    result = run(QUADRATIC._replace(loss_fn=loss_fn), asgd, trace, seed=9)
    keys = [
        jax.random.fold_in(jax.random.fold_in(jax.random.key(9), w), s) for w, s in [(1, 0), (0, 2), (1, 5), (0, 6)]
    ]
    np.testing.assert_array_equal(result.history["u"], [jax.random.uniform(key) for key in keys])


# --- Diagnostics


def test_diagnostics_agree_with_their_formulas():
    """The formulas are applied to one commit at a time."""
    trace = gemjax.arrivals.Gamma(3).trace(12, seed=4)
    loss_fn, params, batches = QUADRATIC[:3]
    names = [*gemjax.methods.gem.QUANTILES, "gap", "normalised_gap", "update_norm", "energy_ratio", "compensation"]
    result = run(QUADRATIC, gem, trace, diagnostics=names)
    tx, rate = gem(3), 0.05
    opt_state, m = tx.init(params), [np.zeros(4) for _ in range(3)]
    views = [params] * 3
    expected = {name: [] for name in names}
    for worker, step in zip(trace.worker.tolist(), trace.step.tolist(), strict=True):
        grads = jax.grad(loss_fn)(views[worker], batches(worker, step))
        delta, travelled = (
            -rate * np.asarray(grads["x"], float),
            np.abs(np.asarray(params["x"] - views[worker]["x"], float)),
        )
        m[worker] = 0.9 * m[worker] + delta
        pi = np.clip((np.abs(m[worker]) - travelled) / (np.abs(delta) + 1e-12), 0, 5)
        expected["gap"].append(np.sqrt(np.mean(travelled**2)))
        expected["update_norm"].append(np.sqrt(np.mean((pi * delta) ** 2)))
        expected["normalised_gap"].append(np.linalg.norm(travelled) / np.linalg.norm(delta / rate))
        expected["compensation"].append(np.linalg.norm((pi - 1) * delta) / np.linalg.norm(delta))
        for name, q in gemjax.methods.gem.QUANTILES.items():
            expected[name].append(np.quantile(pi, q))
        expected["energy_ratio"].append(np.sum((travelled + np.abs(pi * delta)) ** 2) / np.sum(m[worker] ** 2))
        updates, opt_state = tx.update(grads, opt_state, params, worker=worker)
        params = optax.apply_updates(params, updates)
        views[worker], opt_state = gemjax.pull(opt_state, params, worker=worker)
    for name, values in expected.items():
        np.testing.assert_allclose(result.history[name], values, rtol=2e-3, atol=1e-6, err_msg=name)


def test_only_requested_diagnostics_are_reported():
    history = run(QUADRATIC, gem, LATE).history
    assert set(history) == {"worker", "step", "time", "loss", "staleness", "pulled_at", "draw", "applied", "dropped"}


@pytest.mark.parametrize("name", ["pi_median", "temperature"])
def test_an_unknown_diagnostic_is_refused(name):
    with pytest.raises(
        ValueError, match=f"reports {name}; it offers gap, normalised_gap, update_norm, learning_rate\n"
    ):
        run(QUADRATIC, asgd, LATE, diagnostics=["gap", name])


# --- Callback


def test_the_callback_receives_everything():
    calls = []

    def callback(progress):
        assert int(progress.state().arrivals) <= len(LATE.events().worker)
        assert_same_bits(progress.state().params, progress.params)
        calls.append((progress.commits, progress.total, progress.rejected, len(progress.history.get("loss", ()))))
        assert progress.trace() == LATE.first(progress.commits)

    result = run(QUADRATIC, gem, LATE, chunk_size=5, callback=callback)
    assert not result.stopped
    assert [c[0] for c in calls] == np.cumsum([c[3] for c in calls]).tolist()
    assert calls[-1][:3] == (len(LATE), len(LATE), 0)
    assert len(calls) == -(-len(LATE.events().worker) // 5)


def test_the_callback_may_end_the_run():
    trace = gemjax.arrivals.RoundRobin(2).trace(20)
    result = run(QUADRATIC, gem, trace, chunk_size=4, callback=lambda progress: progress.commits >= 8)
    assert result.stopped
    assert len(result.history["loss"]) == 8
    assert_close(result.params, run(QUADRATIC, gem, trace.first(8)).params, rtol=1e-6)


# --- Arguments


def test_an_empty_trace_changes_nothing():
    result = run(MLP, gem, gemjax.Trace([], num_workers=3))
    assert_same_bits(result.params, MLP.params)
    assert_same_bits(result.model_state, MLP.model_state)
    assert result.history == {}
    assert not result.stopped


def test_a_method_for_another_number_of_workers_is_refused():
    with pytest.raises(ValueError, match="made with num_workers=2, but the run has 4 workers"):
        run(QUADRATIC, lambda n: gem(2), LATE)


@pytest.mark.parametrize("make", [asgd, multi_asgd])
def test_a_state_of_another_run_is_refused(make):
    """With too few slots compiled code would not raise: it clamps an index out of range."""
    state = run(QUADRATIC, make, gemjax.arrivals.RoundRobin(2).trace(2)).state
    with pytest.raises(ValueError, match="state"):
        run(QUADRATIC, make, gemjax.arrivals.RoundRobin(4).trace(8), state=state)
    with pytest.raises(ValueError, match="state"):
        run(QUADRATIC, gem, gemjax.arrivals.RoundRobin(2).trace(8), state=state)


@pytest.mark.parametrize("chunk_size", [0, -3])
def test_a_chunk_has_at_least_one_commit(chunk_size):
    with pytest.raises(ValueError, match=f"chunk_size must be positive, got {chunk_size}"):
        run(QUADRATIC, asgd, LATE, chunk_size=chunk_size)


def test_a_loss_of_another_form_is_refused():
    with pytest.raises(TypeError, match=r"loss_fn must be .* got one with the arguments \(a, b, c\)"):
        run(QUADRATIC._replace(loss_fn=lambda a, b, c: 0.0), asgd, LATE)


def test_bfloat16_stays_bfloat16():
    loss_fn, _, batches = QUADRATIC[:3]
    problem = Problem(loss_fn, {"x": jnp.ones(4, jnp.bfloat16)}, lambda w, s: batches(w, s).astype(jnp.bfloat16))
    result = run(problem, gem, LATE)
    assert result.params["x"].dtype == jnp.bfloat16
    assert result.opt_state.stale_params.value["x"].dtype == jnp.bfloat16
    assert float(jnp.abs(result.params["x"][0])) < 1


# --- Cost


@pytest.mark.parametrize("make", [gem, lambda n: optax.sgd(0.1)], ids=["gem", "plain optax"])
def test_a_second_call_compiles_nothing(make):
    traced = []

    def loss_fn(params, batch):
        traced.append(1)
        return QUADRATIC.loss_fn(params, batch)

    tx = make(4)
    problem = QUADRATIC._replace(loss_fn=loss_fn)
    run(problem, lambda n: tx, LATE)
    before = len(traced)
    assert before > 0
    run(problem, lambda n: tx, LATE)
    run(problem._replace(params={"x": jnp.zeros(4)}), lambda n: tx, LATE)
    assert len(traced) == before


STACK = 64


def stacked_copies(hlo: str) -> list[str]:
    """List the instructions in the loop (outside the entry) that copy an array with a leading axis of N."""
    found, entry = [], False
    for line in hlo.splitlines():
        if re.match(r"^(ENTRY )?%?[\w.\-]+ .*\{$", line):
            entry = line.startswith("ENTRY")
        if not entry and re.search(rf"= \(?\w+\[{STACK},.* copy(-start)?\(", line):
            found.append(line.strip())
    return found


@pytest.mark.slow
@every_method("gem", "adam-per-worker", "lsgd-groups", only=distinct)
@pytest.mark.parametrize(("window", "with_pulls"), [(1, False), (1, True), (5, True)])
def test_the_compiled_loop_copies_no_stack(make, window, with_pulls):
    """A commit costs the same at 4 workers and at 1,024."""
    params = {"w": jnp.ones((33, 17)), "b": jnp.ones(17)}

    def loss_fn(params, batch):
        return jnp.mean(jnp.tanh(batch @ params["w"] + params["b"][None]) ** 2)

    batches = gemjax.Computed(lambda worker, step: jnp.full((5, 33), 0.01) * (worker + step))
    if make.local:
        batches = LocalBatches(batches, make.local)
    transition = Transition(tx=make(STACK), loss_fn=loss_fn, num_workers=STACK, local=make.local).bind(params)
    state = transition.init(params)
    trace = gemjax.arrivals.RoundRobin(STACK).trace(16)
    inputs = loops.inputs(trace.events(), batches, 16, window)
    compiled = loops.compiled(transition, batches, 16, window, with_pulls).lower(state, (), *inputs).compile().as_text()
    assert "while(" in compiled
    assert re.search(rf"\[{STACK}[,\]]", compiled)
    assert stacked_copies(compiled) == []


@pytest.mark.slow
@every_method("gem", "yellowfin", only=distinct)
def test_the_traffic_of_a_commit_does_not_grow_with_the_workers(make):
    """XLA counts the bytes, which include a choice between two stacks, or a sum over one."""
    params = {"w": jnp.ones((33, 17)), "b": jnp.ones(17)}

    def loss_fn(params, batch):
        return jnp.mean(jnp.tanh(batch @ params["w"] + params["b"][None]) ** 2)

    def traffic(num_workers):
        batches = gemjax.Computed(lambda worker, step: jnp.full((5, 33), 0.01) * (worker + step))
        batches = LocalBatches(batches, make.local) if make.local else batches
        transition = Transition(tx=make(num_workers), loss_fn=loss_fn, num_workers=num_workers, local=make.local)
        transition = transition.bind(params)
        state = transition.init(params)
        inputs = loops.inputs(gemjax.arrivals.RoundRobin(num_workers).trace(16).events(), batches, 16, 1)
        run_chunk = loops.compiled(transition, batches, 16, 1, with_pulls=False)
        return run_chunk.lower(state, (), *inputs).compile().cost_analysis()["bytes accessed"]

    growth = (traffic(2 * STACK) - traffic(STACK)) / STACK
    assert growth <= 0.05 * sum(leaf.nbytes for leaf in jax.tree.leaves(params))  # Clocks and losses of all, at most.


def test_a_loop_that_copies_its_stack_is_found():
    """The test above can fail: a loop that reads a slot and then writes it copies the stack."""

    def body(i, stack):
        mine = jax.lax.dynamic_index_in_dim(stack, i % STACK, keepdims=False)
        other = jax.lax.dynamic_index_in_dim(stack, (i + 1) % STACK, keepdims=False)
        written = jax.lax.dynamic_update_index_in_dim(stack, jnp.tanh(mine @ mine) + 1, i % STACK, 0)
        return written.at[0].add(other)

    stack = jax.ShapeDtypeStruct((STACK, 32, 32), jnp.float32)
    compiled = (
        jax.jit(lambda stack: jax.lax.fori_loop(0, 9, body, stack), donate_argnums=0).lower(stack).compile().as_text()
    )
    assert stacked_copies(compiled)


@pytest.mark.parametrize("name", ["loss", "staleness", "worker", "event"])
def test_metrics_with_names_of_columns_are_refused(name):
    def loss_fn(params, model_state, batch, key):
        loss = jnp.sum(params["x"] ** 2)
        return loss, (model_state, {name: loss})

    with pytest.raises(ValueError, match=rf"metrics called \['{name}'\]"):
        gemjax.simulate(gemjax.asgd(0.1), loss_fn, {"x": jnp.ones(2)}, lambda w, s: s, gemjax.Trace([0, 0]))


@pytest.mark.parametrize(
    ("params", "message"), [({}, "params has no arrays"), ({"x": jnp.arange(3)}, r"params at \['x'\] is int32")]
)
def test_parameters_that_cannot_be_trained_are_refused(params, message):
    with pytest.raises(ValueError, match=message):
        gemjax.simulate(gemjax.asgd(0.1), lambda p, b: 0.0, params, lambda w, s: s, gemjax.Trace([0, 0]))


def test_a_loss_that_changes_the_type_of_its_model_state_is_refused():
    def loss_fn(params, model_state, batch, key):
        return jnp.sum(params["x"] ** 2), (model_state.astype(jnp.bfloat16), {})

    with pytest.raises(ValueError, match="another model state than it was given"):
        gemjax.simulate(
            gemjax.asgd(0.1), loss_fn, {"x": jnp.ones(2)}, lambda w, s: s, gemjax.Trace([0]), model_state=jnp.ones(1)
        )


# --- Mistakes


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        (gemjax.arrivals.Gamma(4), r"trace must be a gemjax.Trace, got Gamma; call its .trace\(num_commits\)"),
        ([0, 1, 2], r"trace must be a gemjax.Trace, got list; make one with gemjax.Trace\(worker=…\)"),
        (np.arange(3), r"trace must be a gemjax.Trace, got ndarray; make one with gemjax.Trace\(worker=…\)"),
    ],
)
def test_an_argument_that_is_no_trace_is_refused(trace, message):
    with pytest.raises(TypeError, match=message):
        gemjax.simulate(gemjax.asgd(0.1, 4), *QUADRATIC[:3], trace)


def test_an_optimizer_is_no_local_steps():
    with pytest.raises(TypeError, match=r"local is .*, but must be a gemjax.LocalSteps; give gemjax.LocalSteps\(opt"):
        gemjax.simulate(gemjax.downpour(num_workers=4), *QUADRATIC[:3], LATE, local=optax.sgd(0.1))


def test_a_loss_of_several_numbers_is_refused():
    with pytest.raises(ValueError, match=r"loss_fn must return one number, got an array of shape \[4\]; take its mean"):
        gemjax.simulate(gemjax.asgd(0.1, 4), lambda p, b: p["x"] ** 2, *QUADRATIC[1:3], LATE)


def test_one_diagnostic_may_be_a_string():
    assert "gap" in run(QUADRATIC, asgd, LATE, diagnostics="gap").history
