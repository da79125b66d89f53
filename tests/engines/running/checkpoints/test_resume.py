"""Runs that are killed and resumed by `checkpoints=` and `resume=` of an engine."""

import shutil

import jax
import numpy as np
import pytest
from engines.problems import Abreast, assert_close, assert_same_bits

import gemjax
from gemjax import arrivals, testing
from gemjax.engines.running.checkpoints import CheckpointWriteError

LOSS, PARAMS, BATCHES = testing.quadratic()
TRACE = arrivals.Gamma(3).trace(60)
GEM = gemjax.gem(0.05, num_workers=3)
TIMES = ("time", "dispatched", "began", "ready", "network", "to_host", "wire", "to_device")


def evaluate(params, model_state):
    return {"norm": sum(abs(leaf).sum() for leaf in jax.tree.leaves(params))}


def simulate(trace=TRACE, tx=GEM, params=PARAMS, **options):
    options = {"callback_every": 10, "evaluate": evaluate, "evaluate_every": 7} | options
    return gemjax.simulate(tx, LOSS, params, BATCHES, trace, **options)


def on_devices(num_commits=60, tx=GEM, params=PARAMS, **options):
    options = {"callback_every": 10, "evaluate": evaluate, "evaluate_every": 7} | options
    return gemjax.run_on_devices(tx, LOSS, params, BATCHES, num_commits, **options)


def killed(folder, run):
    """Return a run that ended early, and a folder with its last checkpoint but one, as if it had been killed after that."""
    with gemjax.Checkpoints(folder / "all", keep=None) as checkpoints:
        stops = lambda progress: checkpoints.wait() and progress.commits >= 30
        ended = run(checkpoints=checkpoints, checkpoint_seconds=1e-9, callback=stops)
        commits = checkpoints.commits[-2]
    shutil.copytree(folder / "all" / str(commits), folder / "killed" / str(commits))
    return ended, folder / "killed"


def assert_same_columns(found, expected, besides=()):
    assert list(found) == list(expected)
    for name in set(expected) - set(besides):
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
        assert found[name].dtype == expected[name].dtype


def test_a_simulation_that_was_killed_and_resumed_equals_one_that_was_not(tmp_path):
    uninterrupted = simulate()
    _, folder = killed(tmp_path, simulate)
    resumed = simulate(checkpoints=folder, resume=True)
    assert_same_bits(resumed.state, uninterrupted.state)
    assert_same_columns(resumed.history, uninterrupted.history)
    assert_same_columns(resumed.evaluations, uninterrupted.evaluations)
    assert resumed.trace == TRACE
    assert gemjax.Checkpoints(folder).latest == 60


@pytest.mark.slow
def test_a_run_of_one_worker_on_devices_that_was_killed_and_resumed_equals_one_that_was_not(tmp_path):
    run = lambda **options: on_devices(tx=gemjax.gem(0.05, num_workers=1), num_workers=1, **options)
    uninterrupted = run()
    _, folder = killed(tmp_path, run)
    resumed = run(checkpoints=folder, resume=True)
    assert_same_bits(resumed.params, uninterrupted.params)
    assert_same_columns(resumed.history, uninterrupted.history, TIMES)
    assert_same_columns(resumed.evaluations, uninterrupted.evaluations, TIMES)


def assert_whole(resumed, ended, commits):
    """Check that a run of several workers goes on after `commits` of the one that `ended` early, as its replay does."""
    assert resumed.trace.first(commits) == ended.trace.first(commits)
    assert len(resumed.history["loss"]) == len(resumed.trace) == 60
    assert_same_columns({name: column[:commits] for name, column in resumed.history.items()},
                        {name: column[:commits] for name, column in ended.history.items()})  # fmt: skip
    replay = simulate(resumed.trace)
    assert_close(resumed.params, replay.params, rtol=1e-5)
    np.testing.assert_allclose(resumed.history["loss"], replay.history["loss"], rtol=1e-4)
    for name in ("worker", "step", "staleness", "pulled_at"):
        np.testing.assert_array_equal(resumed.history[name], replay.history[name])
    np.testing.assert_array_equal(resumed.evaluations["commit"], replay.evaluations["commit"])
    np.testing.assert_allclose(resumed.evaluations["norm"], replay.evaluations["norm"], rtol=1e-5)


@pytest.mark.slow
def test_a_run_on_devices_that_was_killed_and_resumed_is_one_run(tmp_path):
    ended, folder = killed(tmp_path, lambda **options: on_devices(gate=Abreast(3), **options))
    commits = gemjax.Checkpoints(folder).latest
    assert_whole(on_devices(checkpoints=folder, resume=True), ended, commits)


@pytest.mark.slow
def test_a_run_on_a_cluster_that_was_killed_and_resumed_is_one_run(tmp_path, three_workers):
    def on_cluster(**options):
        options |= {"callback_every": 10, "evaluate": evaluate, "evaluate_every": 7, "cluster": three_workers}
        return gemjax.run_on_cluster(GEM, LOSS, PARAMS, BATCHES, 60, **options)

    ended, folder = killed(tmp_path, on_cluster)
    commits = gemjax.Checkpoints(folder).latest
    assert_whole(on_cluster(checkpoints=folder, resume=True), ended, commits)


@pytest.fixture
def three_workers():
    with gemjax.Cluster(3) as made:
        yield made


@pytest.mark.parametrize(
    "other",
    [
        {"tx": gemjax.nag_asgd(0.05, num_workers=3)},
        {"params": jax.tree.map(lambda leaf: leaf[:2], PARAMS)},
        {"trace": arrivals.Gamma(4).trace(60), "tx": gemjax.gem(0.05, num_workers=4)},
        {"trace": arrivals.Gamma(3).trace(60, seed=1)},
    ],
    ids=["method", "model", "workers", "trace"],
)
def test_a_simulation_is_not_resumed_with_another(other, tmp_path):
    simulate(TRACE.first(20), checkpoints=tmp_path)
    with pytest.raises(ValueError, match=r"another|workers"):
        simulate(**other, checkpoints=tmp_path, resume=True)
    assert gemjax.Checkpoints(tmp_path).commits == [20]


def test_a_run_on_devices_is_not_resumed_with_another_method(tmp_path):
    simulate(TRACE.first(20), checkpoints=tmp_path)
    with pytest.raises(gemjax.CheckpointError, match="another method"):
        on_devices(tx=gemjax.nag_asgd(0.05, num_workers=3), checkpoints=tmp_path, resume=True)


def test_a_resume_with_more_commits_goes_on_and_a_finished_run_makes_none(tmp_path):
    for commits in (20, 40, 40):  # The first begins, because there is no checkpoint.
        result = on_devices(commits, checkpoints=tmp_path, resume=True)
        assert len(result.trace) == len(result.history["loss"]) == commits
    assert result.evaluations["commit"].tolist() == [7, 14, 20, 21, 28, 35, 40]


def test_a_new_run_in_a_folder_with_a_checkpoint_is_refused(tmp_path):
    simulate(TRACE.first(20), checkpoints=tmp_path)
    with pytest.raises(ValueError, match="give resume=True"):
        simulate(checkpoints=tmp_path)
    with pytest.raises(ValueError, match="needs checkpoints="):
        simulate(resume=True)
    with gemjax.Checkpoints(tmp_path, read_only=True) as opened, pytest.raises(ValueError, match="read_only=True"):
        simulate(checkpoints=opened, resume=True, callback=lambda progress: pytest.fail("the run has begun"))


def test_checkpoints_wait_for_their_time(tmp_path):
    seen = []
    callback = lambda progress: seen.extend(gemjax.Checkpoints(tmp_path, read_only=True).commits)
    simulate(checkpoints=tmp_path, callback=callback)
    on_devices(num_commits=80, checkpoints=tmp_path, resume=True, callback=lambda progress: callback(progress))
    assert set(seen) == {60}
    assert gemjax.Checkpoints(tmp_path).latest == 80


def interrupting(progress):
    if progress.commits >= 30:
        raise KeyboardInterrupt


@pytest.mark.parametrize("run", [simulate, on_devices])
def test_an_exception_that_ends_a_run_leaves_a_checkpoint(run, tmp_path):
    with pytest.raises(KeyboardInterrupt) as caught:
        run(checkpoints=tmp_path, callback=interrupting)
    assert gemjax.Checkpoints(tmp_path).latest == len(caught.value.result.trace) >= 30
    result = run(checkpoints=tmp_path, resume=True)
    assert len(result.history["loss"]) == 60


@pytest.mark.parametrize("run", [simulate, on_devices])
def test_a_full_disk_is_a_warning_during_a_run_and_an_error_at_its_end(run, tmp_path, monkeypatch):
    save, full = gemjax.Checkpoints.save, [True]

    def fails(self, *args, wait=True, **options):
        if full[0]:
            raise CheckpointWriteError(28, "the disk is full")
        save(self, *args, wait=wait, **options)

    monkeypatch.setattr(gemjax.Checkpoints, "save", fails)
    with (
        pytest.warns(gemjax.RunWarning, match=r"full; the run goes on"),
        pytest.raises(CheckpointWriteError) as caught,
    ):
        run(checkpoints=tmp_path, checkpoint_seconds=1e-9)
    assert len(caught.value.result.trace) == 60
    full[0] = False
    run(checkpoints=tmp_path, resume=True)
    assert gemjax.Checkpoints(tmp_path).commits == [60]
