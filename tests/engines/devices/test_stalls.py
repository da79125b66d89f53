"""Stalled runs on devices: warnings, callbacks by time, and looks."""

import warnings

import pytest
from engines.devices.replayed_runs import ASGD, LIMIT, QUADRATIC, all_hang, run

import gemjax
from gemjax.engines.devices.roster import Roster
from gemjax.testing import Faults


def test_a_run_without_workers_warns(monkeypatch, tmp_path):
    """All workers have left: one warning is given and logged; the run continues when one joins."""
    monkeypatch.setattr(Roster, "PATIENCE", 0.05)
    members = gemjax.Members(4, absent=range(4))
    warned = []

    def warn(message, category, *where):
        warned.append(str(message))
        members.join(2)

    with warnings.catch_warnings(), gemjax.EventLog(tmp_path / "log") as log:
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", warn)
        result = run(members=members, log=log)
    assert set(result.trace.worker) == {2}
    assert "have left: 0, 1, 2, 3; the run continues when a worker joins (Members.join)" in warned[0]
    idle = [event for event in gemjax.eventlog.read(tmp_path / "log") if event["event"] == "idle"]
    assert len(idle) == len(warned)
    assert idle[0]["seconds"] == 0.05


def test_a_run_that_waits_for_a_silent_worker_warns(monkeypatch):
    """Pacing holds all other gradients for the worker that hangs, and there is no deadline."""
    monkeypatch.setattr(Roster, "PATIENCE", 0.2)
    warned, waits_for_one = [], "computing: 1; held by the policy: 0, 2, 3; a deadline in the policy"
    with Faults().hang(1, 2) as faults, warnings.catch_warnings():

        def warn(message, category, *where):
            warned.append(str(message))
            if waits_for_one in warned[-1]:  # On a busy machine the others may be slow, too, before.
                faults.let_go(1, 2)

        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", warn)
        run(policy=gemjax.Policy(max_staleness=3), gate=faults)
    assert ("hang", 1, 2) in faults.injected


def test_a_callback_is_called_though_no_worker_arrives():
    """Three calls in a run that is stalled; the fourth releases the workers."""
    called = []

    def callback(progress):
        assert len(progress.history.get("loss", ())) == progress.commits - sum(called)
        called.append(progress.commits - sum(called))
        if called[-4:] == [0, 0, 0, 0]:
            for worker in range(4):
                faults.let_go(worker, 5)

    with all_hang(5) as faults:
        run(callback=callback, callback_every=1000, callback_seconds=0.05, gate=faults, policy=LIMIT)
    assert sum(called) == 60


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"callback": lambda progress: None, "callback_seconds": 0.01}, {}], ids=["callback by time", "deadline"]
)
def test_nothing_postpones_the_warning_of_a_stall(monkeypatch, options):
    """Neither frequent callbacks nor a deadline of a minute delay it."""
    monkeypatch.setattr(Roster, "PATIENCE", 0.3)
    warned = []
    with all_hang(5) as faults, warnings.catch_warnings():

        def warn(message, category, *where):
            warned.append(str(message))
            if len(faults.injected) == 4:  # On a busy machine there may be stalls before.
                for worker in range(4):
                    faults.let_go(worker, 5)

        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", warn)
        run(**options, gate=faults, policy=LIMIT)
    assert any("computing: 0, 1, 2, 3" in message for message in warned)


@pytest.mark.parametrize("callback_seconds", [None, 60.0])
def test_a_look_ends_a_stalled_run(callback_seconds):
    """The gate of the last worker that hangs requests a look, as a signal handler does."""
    members, silent = gemjax.Members(4), []

    def gate(worker, step):
        if step == 5:
            silent.append(worker)
            if len(silent) == 4:
                members.look()
        faults(worker, step)

    with all_hang(5) as faults:
        result = gemjax.run_on_devices(
            ASGD, *QUADRATIC[:3], 60, num_workers=4, members=members, gate=gate, policy=LIMIT,
            callback=lambda progress: len(silent) == 4, callback_seconds=callback_seconds,
        )  # fmt: skip
    assert result.stopped
    assert len(result.trace) == 20
