"""Runs in processes of their own: each with its own record, whatever becomes of others."""

import dataclasses
import multiprocessing
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool

import pytest

from train.claims.execution.processes import Processes
from train.claims.execution.single import record
from train.claims.runs import PlannedRun
from train.common.errors import UsageError
from train.config.config import Config

BASE = Config(engine="simulate", method="asgd", dataset="digits", model="mlp", epochs=0.25, workers=2, batch_size=64)


@pytest.mark.slow
def test_each_run_gets_its_own_record_and_one_that_raises_is_named(tmp_path):
    slow, fast = (PlannedRun("asgd", 2, dataclasses.replace(BASE, learning_rate=rate)) for rate in (0.01, 0.1))
    absent = PlannedRun("absent", 2, dataclasses.replace(BASE, dataset="mnist", epochs=0.001))
    machine = {"data_dir": str(tmp_path), "manual_dir": None}
    ignored = lambda name, gradients: None
    with Processes(2) as processes:
        found = dict(processes.make([[slow], [fast]], machine, ignored))
        with pytest.raises(UsageError, match=r"^absent at 2, seed 0: MNIST is not prepared yet"):
            list(processes.make([[absent]], machine, ignored))
    for run in (slow, fast):
        assert found[run]["train_loss"] == pytest.approx(record(run, machine)["train_loss"], rel=2e-3)
        assert found[run]["processes"] == 2


def test_an_exception_while_the_first_process_starts_leaves_none(monkeypatch, capfd):
    """It would find its semaphores gone, and print a traceback below the parent's last line."""

    def interrupted(self, timeout=None):
        raise KeyboardInterrupt

    monkeypatch.setattr(futures.Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Processes(1)
    assert multiprocessing.active_children() == []
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("when", ["at the beginning", "during a run"])
def test_a_process_that_is_killed_is_told_of_in_one_line(monkeypatch, when):
    """Python's own words blame the pool, and would stand behind the name of a run that may be innocent."""
    broken, hardware = futures.Future(), futures.Future()
    broken.set_exception(BrokenProcessPool("A process in the process pool was terminated abruptly"))
    hardware.set_result({"backend": "cpu"})
    answers = iter([broken] if when == "at the beginning" else [hardware, broken])
    monkeypatch.setattr(futures.ProcessPoolExecutor, "submit", lambda self, *task: next(answers))
    run = PlannedRun("asgd", 2, BASE)
    killed = pytest.raises(
        UsageError, match=r"^a process that made runs was killed, .*; finished runs are kept: repeat"
    )
    with killed, Processes(1) as processes:
        list(processes.make([[run]], {}, lambda name, commits: None))
