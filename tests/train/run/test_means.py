"""Means of training loss and gap in the metrics: over the commits since the last evaluation, as the event log has them."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
import small_runs
from small_runs import run

import gemjax
from gemjax.telemetry import eventlog
from train.run.records import Means

data_dir, small, tiny = small_runs.data_dir, small_runs.small, small_runs.tiny

ROWS = 40
NAN = float("nan")


@pytest.fixture
def history():
    """Columns of commits, one of which is refused and has no finite loss."""
    rng = np.random.default_rng(0)
    applied = np.arange(ROWS) != 17
    loss = np.where(applied, rng.lognormal(size=ROWS), NAN)
    dropped = np.zeros(ROWS, bool)
    return {"loss": loss.astype(np.float32), "gap": rng.lognormal(size=ROWS), "applied": applied, "dropped": dropped}


def part(history, begin, end):
    return {name: column[begin:end] for name, column in history.items()}


@pytest.mark.parametrize("cuts", [[], [3], [3, 3, 20], list(range(1, ROWS))])
def test_the_pieces_in_which_commits_come_do_not_matter(history, cuts):
    means = Means()
    for begin, end in itertools.pairwise([0, *cuts, ROWS]):
        means.add(part(history, begin, end))
    found = loss, gap, rejected, dropped = means.take(ROWS - 1)
    whole = Means()
    whole.add(history)
    assert found == whole.take(ROWS - 1)
    assert (rejected, dropped) == (1, 0)
    assert loss == pytest.approx(np.mean(history["loss"][history["applied"]], dtype=float), rel=1e-8)
    assert gap == pytest.approx(np.mean(history["gap"]), rel=1e-8)


def test_means_begin_again_after_an_evaluation(history):
    means = Means()
    means.add(part(history, 0, 10))
    means.take(10)
    assert np.isnan(means.take(10)[:2]).all()
    means.add(part(history, 10, ROWS))
    rest = Means(10)
    rest.add(part(history, 10, ROWS))
    assert means.take(ROWS - 1) == rest.take(ROWS - 1)


def test_commits_behind_an_evaluation_count_for_the_next_one(history):
    """On devices an evaluation is known some commits later."""
    means, first, second = Means(), Means(), Means(12)
    means.add(history)
    first.add(part(history, 0, 12))
    second.add(part(history, 12, ROWS))
    assert means.take(12) == first.take(12)
    assert means.take(ROWS - 1) == second.take(ROWS - 1)


@pytest.mark.parametrize("evaluated", [None, 0, 16, 17, 18, 30])
@pytest.mark.parametrize("measured", [True, False])
def test_a_run_that_goes_on_has_the_means_of_one_that_was_not_interrupted(tmp_path, history, evaluated, measured):
    events, metrics = tmp_path / "events.jsonl", tmp_path / "metrics.jsonl"
    fields = {"worker": 0, "pulled_at": 0, "staleness": 0}
    with gemjax.EventLog(events) as log:
        log.write("start", 0.0, num_workers=1, commits=0)
        done = 0
        for row in range(ROWS):
            kind = "commit" if history["applied"][row] else "reject"
            numbers = {name: history[name][row] for name in ("loss", "gap")}
            log.write(kind, row, **fields | {"pulled_at": done}, step=row, draw=row, **numbers)
            done += kind == "commit"
    if evaluated is not None:
        rejected = int(evaluated > 17)
        row = {"commits": evaluated - rejected * measured, "time": 0.0, "test_loss": 1.0, "test_accuracy": 0.5}
        metrics.write_text(json.dumps(row | {"rejected": rejected, "dropped": 0}) + "\n")
    last = ROWS - measured  # On devices the refused one does not count.
    expected = Means((evaluated or 0) - measured * int((evaluated or 0) > 17), measured=measured)
    expected.add(part(history, evaluated or 0, ROWS))
    assert Means.of_records(events, metrics, measured=measured).take(last) == expected.take(last)


@pytest.mark.slow
def test_metrics_do_not_depend_on_when_checkpoints_are_written(tiny, small):
    config = dataclasses.replace(small, engine="simulate", eval_every=11)
    whole, _, _ = run(config)
    often, _, _ = run(dataclasses.replace(config, checkpoint_every=4, out=f"{config.out}-often"))
    assert often.metrics.read_bytes() == whole.metrics.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["simulate", "devices"])
def test_the_means_are_those_of_the_event_log_also_after_the_run_was_resumed(tiny, small, engine):
    config = dataclasses.replace(small, engine=engine, eval_every=7, epochs=0.5)
    folder, _, _ = run(config)
    run(dataclasses.replace(config, epochs=1.0, eval_every=10), folder)
    rows = [event for event in eventlog.read(folder.events) if event["event"] in ("commit", "reject", "drop")]
    metrics = folder.read_metrics()
    counted = metrics["commits"] + (engine == "devices") * (metrics["rejected"] + metrics["dropped"])
    assert len(counted) > 4
    assert counted[-1] == len(rows)
    for index, (begin, end) in enumerate(itertools.pairwise([0, *counted.tolist()])):
        new = rows[begin:end]
        assert metrics["train_loss"][index] == np.mean([row["loss"] for row in new if row["event"] == "commit"])
        assert metrics["gap"][index] == np.mean([row["gap"] for row in new])
