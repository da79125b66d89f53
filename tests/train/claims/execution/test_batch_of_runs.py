"""Runs that are made as one program have the records that they have alone, unless they fail."""

import dataclasses

import pytest
from flax import linen as nn

from train.claims.execution.batch import record_together
from train.claims.execution.single import _task, record
from train.claims.runs import PlannedRun
from train.config.config import Config
from train.task import models

BASE = Config(engine="simulate", dataset="digits", epochs=0.5, workers=4, batch_size=64)


class Tiny(nn.Module):
    """A replacement for the convolutional network: two layers can diverge, too, and compile quickly."""

    num_classes: int = 10

    @nn.compact
    def __call__(self, images, train=False):
        del train
        return nn.Dense(10)(nn.Dense(8)(images.reshape(len(images), -1)))


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(models, "DigitsCNN", Tiny)
    _task.cache_clear()
    yield
    _task.cache_clear()


def runs(method, rates=(0.01, 0.1), seeds=(0, 1), **changes):
    configs = [
        dataclasses.replace(BASE, method=method, learning_rate=rate, seed=seed, **changes)
        for rate in rates
        for seed in seeds
    ]
    return [PlannedRun(f"{method}, {config.learning_rate:g}", config.workers, config) for config in configs]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("gem", {}),
        pytest.param("lsgd", {"period": 2}, marks=pytest.mark.nightly),
        pytest.param("yellowfin", {"cluster": "heterogeneous"}, marks=pytest.mark.nightly),
        ("asgd", {"cluster": "barrier", "epochs": 0.52, "seeds": (0, 1, 2)}),  # Numbers of late pulls differ.
    ],
)
def test_a_run_beside_others_has_the_record_that_it_has_alone(method, changes):
    several = runs(method, **changes)
    told = {}
    found = record_together(several, {}, told.__setitem__)
    assert told == {run.name: one["commits"] for run, one in zip(several, found, strict=True)}
    for run, beside in list(zip(several, found, strict=True))[1:3]:  # Places that change if rates and seeds do.
        alone = record(run, {})
        assert beside.keys() == alone.keys() | {"final_loss"}
        for name in ("train_loss", "test_loss", "test_accuracy", "initial_train_loss"):
            assert beside[name] == pytest.approx(alone[name], rel=2e-3), name
        same = ("diverged", "commits", "time", "staleness_p50", "staleness_p95", "rejected", "dropped", "failed")
        assert {name: beside[name] for name in same} == {name: alone[name] for name in same}
        assert beside["curve"]["commits"] == alone["curve"]["commits"]
        assert beside["curve"]["train_loss"] == pytest.approx(alone["curve"]["train_loss"], rel=2e-3)
        assert beside["evaluations"]["commits"] == alone["evaluations"]["commits"]


@pytest.mark.slow
def test_runs_that_differ_in_all_numbers_have_the_records_that_they_have_alone():
    points = [{"learning_rate": 0.01, "kappa": 2.0}, {"learning_rate": 0.1, "momentum": 0.5}]
    several = [
        PlannedRun("gem", k, dataclasses.replace(BASE, method="gem", **one), evaluations=2)
        for k, one in enumerate(points)
    ]
    for run, beside in zip(several, record_together(several, {}), strict=True):
        alone = record(run, {})
        assert beside["evaluations"]["commits"] == alone["evaluations"]["commits"]
        assert beside["evaluations"]["test_loss"] == pytest.approx(alone["evaluations"]["test_loss"], rel=2e-3)
        assert beside["test_accuracy"] == pytest.approx(alone["test_accuracy"], rel=2e-3)
        assert beside["final_loss"] < alone["initial_train_loss"]


@pytest.mark.slow
def test_runs_with_pre_training_begin_where_one_worker_ended():
    one, other = (
        dataclasses.replace(run, pretraining=2.0) for run in runs("downpour", rates=(0.1,), local_optimizer="adamw")
    )
    trained, plain = record(one, {}), record(dataclasses.replace(one, pretraining=0.0), {})
    assert trained["initial_train_loss"] < 0.8 * plain["initial_train_loss"]
    assert record(other, {})["initial_train_loss"] == trained["initial_train_loss"]
    assert record(other, {})["train_loss"] != trained["train_loss"]
    longer = dataclasses.replace(one, pretraining=4.0)
    assert record(longer, {})["initial_train_loss"] < trained["initial_train_loss"]
    assert len({run.key("1") for run in (one, longer, dataclasses.replace(one, pretraining=0.0))}) == 3


@pytest.mark.slow
def test_a_run_that_fails_does_so_without_the_others():
    both = runs("momentum_asgd", (0.01, 1e9), (0,), epochs=3.0)
    calm, wild = record_together(both, {})
    alone = record(both[1], {})
    for name in ("train_loss", "test_loss", "test_accuracy", "diverged", "commits", "initial_train_loss"):
        assert wild[name] == alone[name]
    assert wild["failed"].split(";")[-1] == alone["failed"].split(";")[-1]
    assert calm["failed"] == ""
    assert calm["train_loss"] < calm["initial_train_loss"]
    assert "not finite" in wild["failed"]
    assert wild["diverged"]
    assert wild["train_loss"] is wild["test_accuracy"] is None
    assert wild["rejected"] >= 3 * BASE.workers + 7


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "fails"), [(1e18, False), (1e30, True)])
def test_a_short_run_fails_as_it_does_alone(rate, fails):
    wild = runs("momentum_asgd", (0.01, rate), (0,), epochs=0.15)[1]
    beside, alone = record_together([*runs("momentum_asgd", (0.01,), (0,), epochs=0.15), wild], {})[1], record(wild, {})
    assert BASE.workers <= alone["rejected"] < 3 * BASE.workers + 7
    assert bool(beside["failed"]) == bool(alone["failed"]) == fails
