"""The check of the law: it holds, violations are found, and a run that cannot reveal a violation fails."""

import dataclasses
import math
import threading
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import gemjax
from gemjax.check import law

HOLDS = law.Law("gem", "float32", 4, 60, (3.0, 8), 2e-7, 1e-4, 6e-8, 3e-2, same_bits=True)


class Slow(gemjax.testing.Faults):
    """Faults whose slow worker, of three, makes one step for three of each other, on a host of any speed."""

    def slow(self, worker, seconds, **_):
        self.worker, self.steps, self.changed = worker, [0] * 3, threading.Condition()
        return self

    def __call__(self, worker, step):
        with self.changed:
            self.steps[worker] = step
            self.changed.notify_all()
            self.changed.wait_for(lambda: self._ended.is_set() or self._may_commit(worker, step), timeout=60)

    def _may_commit(self, worker, step):
        if worker != self.worker:
            return self.steps[self.worker] >= step // 3 - 1
        return all(self.steps[other] >= 3 * (step + 1) for other in range(3) if other != worker)

    def __exit__(self, *error):
        super().__exit__(*error)
        with self.changed:
            self.changed.notify_all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        ("dc_asgd", "float32"),
        *(pytest.param(name, "float32", marks=pytest.mark.nightly) for name in law.METHODS if name != "dc_asgd"),
        pytest.param("dc_asgd", "float64", marks=pytest.mark.nightly),
    ],
)
def test_the_law_holds_here(method, dtype, monkeypatch):
    monkeypatch.setattr(gemjax.testing, "Faults", Slow)
    found = law.check_law(method, dtype, gemjax.place(3), num_commits=24)
    assert found.violation == ""
    assert found.commits == 24
    assert found.staleness[1] >= 6  # Of worker 0.
    assert found.last_place < found.allowed < found.reordered
    assert found.same_bits
    assert not jax.config.read("jax_enable_x64")


@pytest.mark.slow
def test_a_replay_that_does_nothing_is_a_violation(monkeypatch):
    """A simulator that returns its initial parameters shows only the perturbation of one of them."""
    monkeypatch.setattr(
        gemjax, "simulate", lambda tx, loss_fn, params, *args, **options: SimpleNamespace(params=params)
    )
    found = law.check_law("dc_asgd", "float32", gemjax.place(3), num_commits=24)
    initial = law.least_squares("float32")[1]["w"]
    assert found.last_place == np.spacing(abs(initial[0, 0])) / np.abs(initial).max() > 0
    assert (found.reordered, found.same_bits) == (0.0, True)
    assert found.difference > 0.1
    assert "differs from the run by" in found.violation
    assert "the allowed 1e-04" in found.violation


def test_nan_is_a_violation():
    assert "nan" in dataclasses.replace(HOLDS, difference=math.nan).violation
    assert HOLDS.violation == ""


def test_a_run_whose_order_does_not_matter_cannot_reveal_a_violation():
    assert "cannot reveal a violation" in dataclasses.replace(HOLDS, reordered=1e-6).violation
    assert dataclasses.replace(HOLDS, reordered=None).violation == ""  # One worker has only one order.


def test_the_default_precision_is_not_judged():
    assert dataclasses.replace(HOLDS, difference=1e-3, allowed=None).violation == ""


def test_a_difference_is_relative_to_the_largest_parameter_of_all():
    one, other = {"a": np.array([1.0]), "b": np.array([10.0, 0.0])}, {"a": np.array([1.5]), "b": np.array([10.0, 0.0])}
    assert law.difference(one, other) == pytest.approx(0.05)
    assert math.isnan(law.difference({"a": np.array([np.nan])}, {"a": np.array([1.0])}))
