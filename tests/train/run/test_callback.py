"""Evaluations of a run: their commits agree with the documentation of the flags."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gemjax
from train.common.interrupts import StopRequest
from train.config.config import Config
from train.run import callback
from train.run.callback import RunCallback, evaluations
from train.run.engine import Prepared
from train.run.records import Means


@pytest.mark.parametrize(
    ("every", "num_commits", "expected"),
    [(4, 10, [4, 8, 10]), (5, 10, [5, 10]), (20, 10, [10]), (0, 10, [*range(1, 11)]), (0, 60, [*range(3, 61, 3)])],
)
def test_evaluations_at_multiples_of_commits(every, num_commits, expected):
    assert evaluations(Config(eval_every=every), num_commits).tolist() == expected


@pytest.mark.parametrize("seconds", [0.1, 0.3, 1.0, 2.5, 100.0])
@pytest.mark.parametrize("times", ["gamma", "multiples"])
def test_evaluations_at_multiples_of_virtual_seconds(seconds, times):
    """A commit exactly at a multiple counts as not later than it, despite rounding."""
    trace = gemjax.arrivals.Gamma(3).trace(60, seed=1)
    if times == "multiples":
        trace = gemjax.Trace(trace.worker, time=np.arange(1, 61) * 0.1)
    multiples = np.arange(1, 1 + trace.time[-1] / seconds) * seconds
    expected = {int((trace.time <= multiple).sum()) for multiple in multiples} - {0} | {60}
    config = Config(engine="simulate", eval_seconds=seconds)
    assert evaluations(config, 60, trace).tolist() == sorted(expected)


def test_nothing_is_evaluated_twice_without_commits():
    trace = gemjax.Trace([0, 0, 0], time=[2.5, 2.6, 9.0])
    assert evaluations(Config(engine="simulate", eval_seconds=1.0), 3, trace).tolist() == [2, 3]


@pytest.mark.parametrize(("every", "made"), [(0, 50), (7, 200)])
def test_evaluations_on_devices_take_a_fifth_of_the_time_unless_they_are_asked_for(monkeypatch, every, made):
    """One is due every second and takes one."""
    now = 0.0

    def evaluate(params, model_state, device):
        nonlocal now
        now += 1.0
        return 0.5, 0.9

    monkeypatch.setattr(callback, "time", SimpleNamespace(perf_counter=lambda: now))
    one = object.__new__(RunCallback)
    one.config, one.task = Config(eval_every=every), SimpleNamespace(evaluate=evaluate)
    one._first_began, one._spent, one._declined = None, 0.0, 0
    found = []
    for _ in range(200):
        now += 1.0
        found.append(one.evaluate_beside(jnp.zeros(1), ()))
    assert found[0] == {"test_loss": 0.5, "test_accuracy": 0.9}
    assert 200 - found.count(None) == pytest.approx(made, abs=2)
    assert one._declined == found.count(None)


def test_an_evaluation_that_is_made_up_does_not_count_for_one_in_flight():
    """The checkpoint at 200 commits was one of an evaluated state: a resumed run had no row of them."""
    one, saved = object.__new__(RunCallback), []
    one.folder = SimpleNamespace(
        provenance=SimpleNamespace(unevaluated=True),
        save_checkpoint=lambda *_: saved.append(one.folder.provenance.unevaluated),
        add_metrics=lambda **_: None,
    )
    one.task = SimpleNamespace(evaluate=lambda *_: (0.5, 0.9))
    one.config, one.beside, one.log = Config(), True, None
    one.checkpoints = SimpleNamespace(latest=100, wait=lambda: True)
    one.line, one.scalars, one.means = SimpleNamespace(), SimpleNamespace(write=lambda *_: None), Means()
    one.evaluations, one.last = np.array([100, 200, 300]), (-1, np.nan, np.nan)
    one._newest_time, one._refused, one._due_before, one._recorded, one._declined = 0.0, [0, 0], 1, 0, 0
    traces = [gemjax.Trace(worker=[0] * commits, num_workers=1) for commits in (100, 200)]
    one.make_up(SimpleNamespace(params=None, model_state=()), traces[0])
    one.save(None, traces[1])
    assert saved == [True]


def test_a_run_on_several_hosts_names_its_command_once_its_first_checkpoint_is_written():
    """Without a first checkpoint it went on, and could not be resumed when it was killed."""
    one, moments = object.__new__(RunCallback), [OSError("full"), None]

    def save(*_, wait):
        assert wait
        if error := moments.pop(0):
            raise error

    one.folder = SimpleNamespace(save_checkpoint=save, go_on="run again")
    one.line, one.checkpoints = SimpleNamespace(update=lambda *_: None), SimpleNamespace(wait=lambda timeout: True)
    one.beside, one.first_is_due, one.means, one.log, one.interrupt = True, True, Means(), None, StopRequest()
    progress = SimpleNamespace(
        commits=0, rejected=0, history={}, evaluations={}, state=lambda: None, trace=lambda: None
    )
    with pytest.raises(OSError, match="full"):
        one.poll(progress)
    assert (one.first_is_due, one.interrupt.go_on) == (True, "")
    one.poll(progress)
    assert (one.first_is_due, one.interrupt.go_on) == (False, "run again")


def test_the_evaluation_before_the_clock_starts_is_on_the_device_of_the_engine_s():
    """On a cluster it was on the first device, and the first one of the run compiled beside the workers."""
    prepared, (central, other, *_) = Prepared(*[None] * 6), jax.devices()
    assert prepared.evaluator(SimpleNamespace(central=central)) == other
