"""Callbacks: a run ends when its metric stops improving, and its best state is kept."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gemjax
from gemjax import arrivals, callbacks, testing
from gemjax.callbacks import BestCheckpoint, EarlyStopping
from gemjax.engines.result import Evaluated

LOSS, PARAMS, BATCHES = testing.quadratic()
TX = gemjax.asgd(0.1, 2)
TRACE = arrivals.RoundRobin(2).trace(60)
FIRST = gemjax.initial_state(TX, PARAMS, num_workers=2)
LIKE = FIRST._replace(  # May be saved with any trace of up to 60 rows.
    arrivals=jnp.int32(60), rejected=jnp.int32(60), step=jax.tree.map(lambda step: step + 60, FIRST.step)
)
NAN = float("nan")


def at(commits, *, new=True):
    """Progress after so many commits, with parameters equal to that number.

    ``new`` is True if some were applied since the last call, False if all were refused, and ``None`` if there were none.
    """
    params = {"x": jnp.full(4, float(commits))}
    return gemjax.Progress(
        commits=commits,
        total=1000,
        rejected=0,
        dropped=0,
        params=params,
        model_state=(),
        state=lambda: LIKE._replace(params=params),
        trace=lambda: TRACE.first(commits),
        history={} if new is None else {"loss": np.ones(2), "applied": np.array([False, new])},
    )


def metric(*values):
    """Make an evaluation that returns the values in order."""
    remaining = iter(values)
    return lambda progress: next(remaining)


def simulate(callback, **options):
    return gemjax.simulate(TX, LOSS, PARAMS, BATCHES, TRACE, callback=callback, callback_every=10, **options)


# --- Early stopping


def on_devices(callback):
    return gemjax.run_on_devices(TX, LOSS, PARAMS, BATCHES, 60, callback=callback, callback_every=10, num_workers=2)


@pytest.mark.parametrize("run", [simulate, on_devices])
def test_a_name_without_evaluations_ends_a_run_at_its_first_call(run):
    with pytest.raises(ValueError, match=r"'loss'.*evaluate=") as caught:
        run(EarlyStopping("loss"))
    assert len(caught.value.result.trace) < 60


def test_evaluations_of_the_run_that_is_continued_are_none_of_this_one():
    result = simulate(lambda progress: True, evaluate=lambda params, model_state: {"loss": 1.0})
    with pytest.raises(ValueError, match=r"'loss', only \[\].*evaluate="):
        simulate(EarlyStopping("loss"), state=result)


def test_values_behind_the_one_that_ends_the_run_count_for_the_best():
    stopping, values = EarlyStopping("loss", patience=1), (3.0, 4.0, 2.0)
    new = tuple(Evaluated(commit, None, (), {"loss": one}) for commit, one in enumerate(values))
    assert stopping(dataclasses.replace(at(3), evaluations={"loss": np.array(values)}, evaluated=new))
    assert (stopping.best, stopping.waited) == (2.0, 0)


@pytest.mark.parametrize(("best", "stopped_after"), [(lambda call: call, None), (lambda call: 1, 16)])
def test_evaluations_without_the_metric_do_not_count(best, stopped_after):
    """An accuracy in every fifth evaluation: the patience is three values of it."""
    calls = []

    def evaluate(params, model_state):
        calls.append(1)
        return {"loss": 1.0} | ({"accuracy": best(len(calls))} if len(calls) % 5 == 1 else {})

    result = simulate(EarlyStopping("accuracy", patience=3, mode="max"), evaluate=evaluate, evaluate_every=2)
    assert result.stopped == (stopped_after is not None)
    assert len(calls) == (stopped_after or len(TRACE) // 2)


@pytest.mark.parametrize(
    ("values", "options", "calls"),
    [
        ([5, 4, 3, 3, 3, 2], {"patience": 2}, 5),
        ([5, 4, 3, 3, 2, 2, 2], {"patience": 2}, 7),
        ([1, 2, 3, 3, 3], {"patience": 2, "mode": "max"}, 5),
        ([3, 2.5, 2.4, 2.3, 2.2, 1.9], {"patience": 3, "min_delta": 0.45}, 5),
        ([NAN, NAN, NAN], {"patience": 2}, 2),
        ([2, NAN, 1, NAN, NAN], {"patience": 2}, 5),
        ([NAN, 3, NAN, NAN], {"patience": 2, "mode": "max"}, 4),
        ([jnp.float32(1), np.float64(2)], {"patience": 1}, 2),
    ],
)
def test_stops_after_so_many_evaluations_without_an_improvement(values, options, calls):
    stopping = EarlyStopping(metric(*values), **options)
    answers = [stopping(at(10 * call)) for call in range(1, calls + 1)]
    assert answers == [False] * (calls - 1) + [True]


def test_a_call_without_new_commits_is_no_evaluation(tmp_path):
    """Neither the first one of a run or of a continued run, when gradients are slow, nor after refused commits alone."""
    stopping, best = EarlyStopping(metric(1, 2, 3), patience=2), BestCheckpoint(tmp_path, metric(1, 2, 3))
    calls = [(0, None), (5, False), (10, True), (20, True), (20, None), (20, False), (30, True)]
    assert [stopping(at(commits, new=new)) for commits, new in calls] == [False] * 6 + [True]
    for commits, new in calls:
        best(at(commits, new=new))
    assert (best.best, best.checkpoints.latest) == (1.0, 10)


def test_a_continued_run_starts_with_full_patience():
    stopping = EarlyStopping(metric(1, 2, 3, 4, 0.5, 1), patience=2)
    assert [stopping(at(10 * call)) for call in range(1, 7)] == [False, False, True, False, False, False]
    assert stopping.best == 0.5


def test_another_run_begins_anew():
    stopping = EarlyStopping(metric(1, 2, 5, 4, 4.5, 6), patience=2)
    assert [stopping(at(commits)) for commits in (10, 20, 10, 20, 30)] == [False] * 5
    assert stopping.best == 4
    assert not stopping(at(30))  # Of a run that made as many.
    assert (stopping.best, stopping.waited) == (6, 0)


@pytest.mark.slow
def test_ends_runs_of_both_engines():
    evaluate = lambda progress: -progress.commits
    seen = []

    def until_30(progress):
        seen.append(progress.commits)
        return evaluate(progress) if progress.commits < 30 else NAN

    result = simulate(EarlyStopping(until_30, patience=2))
    assert result.stopped
    assert seen == [10, 20, 30, 40]
    assert len(result.trace) == 40
    result = gemjax.run_on_devices(
        TX, LOSS, PARAMS, BATCHES, 200, num_workers=2, callback=EarlyStopping(until_30, patience=2), callback_every=10
    )
    assert result.stopped
    assert 40 <= len(result.trace) < 200


# --- The best checkpoint


def test_keeps_the_best(tmp_path):
    best = BestCheckpoint(tmp_path, metric(3, 2, NAN, 2.5, 1, 4))
    for call in range(1, 7):
        assert best(at(10 * call)) is None
    state, trace, metadata = best.load(LIKE)
    np.testing.assert_array_equal(state.params["x"], np.full(4, 50.0))
    assert trace == TRACE.first(50)
    assert best.best == metadata["metric"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "50"]


def test_the_largest_is_the_best_with_mode_max(tmp_path):
    best = BestCheckpoint(tmp_path, metric(NAN, 3, 5, 4), mode="max")
    for call in range(1, 5):
        best(at(10 * call))
    assert int(best.load(LIKE)[0].params["x"][0]) == 30


def test_a_new_process_continues_from_the_metric_in_the_folder(tmp_path):
    first = BestCheckpoint(tmp_path, metric(3, 1, 2))
    for commits in (10, 40, 50):
        first(at(commits))
    first.checkpoints.close()
    # Continued from a checkpoint of 20 commits: a worse state does not replace the one of 40 commits, a better one does.
    again = BestCheckpoint(tmp_path, metric(2, 0.5, 0.7))
    assert again.best == 1
    again(at(20))
    assert again.checkpoints.latest == 40
    again(at(30))
    assert again.checkpoints.latest == 30
    again(at(60))
    assert int(again.load(LIKE)[0].params["x"][0]) == 30
    assert BestCheckpoint(tmp_path, metric()).best == 0.5


def test_a_folder_of_other_checkpoints_is_refused(tmp_path):
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(LIKE, TRACE.first(0))
    with pytest.raises(ValueError, match="did not save: give it its own folder"):
        BestCheckpoint(tmp_path, metric())
    best = BestCheckpoint(tmp_path / "own", metric(1))
    best(at(10))
    with pytest.raises(ValueError, match=r"BestCheckpoint\(mode='max'\) did not save"):
        BestCheckpoint(tmp_path / "own", metric(), mode="max")


@pytest.mark.slow
def test_a_run_can_be_continued_from_its_best_checkpoint(tmp_path):
    """Equal bit for bit in the simulator; on devices, with the trace up to that commit."""
    metric_of = {10: 3.0, 20: 1.0, 30: 2.0}
    best = BestCheckpoint(tmp_path / "simulated", lambda progress: metric_of.get(progress.commits, 9.0))
    whole = simulate(best)
    state, trace, _ = best.load(whole.state)
    assert len(trace) == 20
    again = gemjax.simulate(TX, LOSS, PARAMS, BATCHES, TRACE, state=state)
    np.testing.assert_array_equal(again.params["x"], whole.params["x"])
    losses = lambda progress: progress.history["loss"].mean()
    best = BestCheckpoint(tmp_path / "devices", losses)
    run = lambda **options: gemjax.run_on_devices(TX, LOSS, PARAMS, BATCHES, num_workers=2, **options)
    result = run(num_commits=40, callback=best, callback_every=10)
    state, trace, _ = best.load(result.state)
    assert trace == result.trace.first(len(trace))
    assert len(run(num_commits=len(trace) + 5, state=state, recorded=trace).trace) == len(trace) + 5


# --- Several


@pytest.mark.slow
def test_one_evaluation_serves_all_callbacks_of_a_call(tmp_path):
    evaluated = []

    class Test:
        def loss(self, progress):
            evaluated.append(progress.commits)
            return float(jnp.sum(jnp.square(progress.params["x"])))

    test = Test()  # A bound method is another object each time.
    stopping = EarlyStopping(test.loss, patience=3)
    result = simulate(callbacks.chain(BestCheckpoint(tmp_path, test.loss), stopping))
    assert evaluated == list(range(10, 10 * len(evaluated) + 1, 10))
    assert int(result.state.commits) == evaluated[-1]


def test_all_callbacks_are_called_and_any_may_end_the_run():
    called = []

    def make(name, answer):
        def callback(progress):
            called.append(name)
            return answer

        return callback

    progress = at(10)
    ends = [make("a", None), make("b", True), make("c", False), make("d", np.False_)]
    assert callbacks.chain(*ends)(progress) is True
    assert called == ["a", "b", "c", "d"]
    assert callbacks.chain(ends[0], ends[2], ends[3], lambda progress: jnp.array(False))(progress) is False
    assert callbacks.chain()(progress) is False
    assert callbacks.chain(None, ends[0], None)(progress) is callbacks.chain(ends[0])(progress)
