"""Runs on devices that are killed again and again: their logs hold every commit once, and replay to what was reached."""

import jax
import numpy as np
import pytest
from engines.problems import assert_close
from kills import a_whole_run, killed_again_and_again, loaded

import gemjax
from gemjax.telemetry import eventlog
from train.config.config import Config
from train.task.methods import METHODS
from train.task.task import make_task

# At this rate a rounding error at the start grows to 3e-5 of a leaf's largest number by the end, and a commit that the log
# leaves out changes 8e-4 of it; at 0.05 the error would grow past any commit.
ON_DEVICES = "digits --method asgd --learning-rate 0.001 --workers 3 --epochs 5 --batch-size 32 --checkpoint-every 20"


@pytest.mark.slow
def test_a_run_on_devices_goes_on_after_being_killed_at_random_moments(tmp_path):
    """Its order is not to be had again; but the log holds every commit once, and replays to what was reached."""
    whole = a_whole_run(tmp_path, ON_DEVICES)
    config = Config.load(whole.folder.config)
    task, tx = make_task(config), METHODS[config.method](config)

    def check(folder):
        """The reader refuses commits that are missing, repeated or out of order."""
        if folder.events.exists():
            list(eventlog.read(folder.events))

    for folder in killed_again_and_again(whole, 8, seed=6, check=check):
        state, trace = loaded(folder)
        assert len(trace) == task.num_commits
        assert eventlog.trace_of(folder.events, 3) == trace
        kinds = [event["event"] for event in eventlog.read(folder.events)]
        assert kinds.count("commit") == kinds.count("ready") == len(trace)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.device_get(state.params)))
        replay = gemjax.simulate(tx, task.loss_fn, task.params, task.batches, trace, seed=config.seed)
        assert_close(jax.device_get(state.params), jax.device_get(replay.params), rtol=3e-4)
        assert folder.finished(task.num_commits)
