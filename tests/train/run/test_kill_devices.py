"""Runs on devices that are killed repeatedly: their logs hold every commit once, and replay to the final parameters."""

import jax
import numpy as np
import pytest
from engines.problems import assert_close
from kills import killed_repeatedly, load, uninterrupted_run

import gemjax
from gemjax.telemetry import eventlog
from train.config.config import Config
from train.task.methods import make_method
from train.task.task import make_task

# At this rate an initial rounding error grows to 2e-5 of a leaf's largest number, and a commit that is missing in the log
# changes 1e-3 of it. At a rate of 0.05 the error would exceed the effect of a commit.
ON_DEVICES = (
    "digits --model mlp --method asgd --learning-rate 0.001 --workers 3 --epochs 5 --batch-size 32 "
    "--checkpoint-every 20"
)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.nightly)])
def test_a_run_on_devices_continues_after_being_killed_at_random_moments(kills, tmp_path):
    """The order of commits is new, but the log holds every commit once, and replays to the final parameters."""
    whole = uninterrupted_run(tmp_path, ON_DEVICES)
    config = Config.load(whole.folder.config)
    task, tx = make_task(config), make_method(config)

    def check(folder):
        """Read the log, which fails if commits are missing, repeated or out of order."""
        if folder.events.exists():
            list(eventlog.read(folder.events))

    for folder in killed_repeatedly(whole, kills, seed=6, check=check):
        state, trace = load(folder)
        assert len(trace) == task.num_commits
        assert eventlog.trace_of(folder.events, 3) == trace
        kinds = [event["event"] for event in eventlog.read(folder.events)]
        assert kinds.count("commit") == kinds.count("ready") == len(trace)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.device_get(state.params)))
        replay = gemjax.simulate(tx, task.loss_fn, task.params, task.batches, trace, seed=config.seed)
        assert_close(jax.device_get(state.params), jax.device_get(replay.params), rtol=3e-4)
        assert folder.finished(task.num_commits)
