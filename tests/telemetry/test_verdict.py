"""The verdict, on synthetic logs of each kind of run."""

import numpy as np
import pytest
from cycles import cycle, free, lock_step, start, turns

import gemjax


def judge(events):
    return gemjax.verdict(gemjax.summarise(events))


def failed(verdict):
    return [finding.text for finding in verdict.findings if not finding.passed]


def test_free_workers_are_truly_asynchronous():
    verdict = judge(free())
    assert verdict.asynchronous == "yes"
    assert verdict.headline == "Truly asynchronous."
    assert not failed(verdict)
    assert verdict.advice == ()
    assert "Of 4 workers, 3.9 computed at the same time" in str(verdict)


@pytest.mark.parametrize(
    ("events", "reason", "advice"),
    [
        (lock_step(), "workers moved in lock step", "remove the barrier"),
        (free(variation=0.0), "the commits came in a fixed round", "a fixed round has a fixed delay"),
        (turns(), "workers took turns", "give each commit more work"),
        (free(devices=["gpu:0"] * 4), "workers took turns", "devices of their own"),
        (free(speeds=[40, 1, 1, 1]), "one worker did nearly everything", "look at the others"),
    ],
    ids=["barrier", "round", "turns", "one device", "one worker"],
)
def test_decisive_findings_come_first(events, reason, advice):
    verdict = judge(events)
    assert verdict.asynchronous == "no"
    assert verdict.headline == f"Not asynchronous: {reason}."
    assert any(advice in line for line in verdict.advice)


def test_one_device_explains_all_else():
    """On a host with one GPU the fixed round, the constant staleness and the waits all come from that."""
    verdict = judge(free(variation=0.0, wait=1.0, view=1.0, devices=["gpu:0"] * 4, central="gpu:0"))
    assert verdict.headline == "Not asynchronous: workers took turns."
    assert len(failed(verdict)) > 1
    assert len(verdict.advice) == 1
    assert verdict.advice[0].startswith("give the workers devices of their own")


def test_refused_and_rejected_commits_have_advice_of_their_own():
    """A method such as Rennala refuses stale commits by itself; no learning rate changes that."""
    for kind, advice in (("drop", "raise the bound of the method"), ("reject", "lower the learning rate")):
        changed = [
            event | {"event": kind} if event["event"] == "commit" and number % 2 else event
            for number, event in enumerate(free())
        ]
        assert [line for line in judge(changed).advice if line.startswith(advice)]


@pytest.mark.parametrize(
    ("events", "reason", "advice"),
    [
        (free(wait=1.0), "workers waited for the central variable", "the central variable is the bottleneck"),
        (
            free(view=1.0, central="gpu:0"),
            "workers waited for the central variable",
            "a hidden barrier: give it a device of its own",
        ),
        (free(8, speeds=[1] * 7 + [0.01]), "some workers hardly took part", "look at the faults"),
    ],
    ids=["queue", "colocated", "straggler"],
)
def test_other_findings_are_reservations(events, reason, advice):
    verdict = judge(events)
    assert verdict.asynchronous == "partly"
    assert verdict.headline == f"Asynchronous with reservations: {reason}."
    assert len(failed(verdict)) == 1
    assert any(advice in line for line in verdict.advice)


def after_callbacks(seconds, gradient=1.0, num_workers=4, rounds=30):
    """Make the log of a run whose callback takes some time after each commit."""
    random = np.random.default_rng(0)
    events, now = [start(num_workers)], 0.0
    began, ready = np.zeros(num_workers), gradient * random.gamma(10, 0.1, num_workers)
    steps, pulled = np.zeros(num_workers, int), np.zeros(num_workers, int)
    for commit in range(num_workers * rounds):
        worker = int(np.argmin(ready))
        time = max(now, float(ready[worker])) + 0.001
        begin, end = float(began[worker]), float(ready[worker])
        events += cycle(
            worker, int(steps[worker]), begin, begin, end, time, int(pulled[worker]), int(commit - pulled[worker])
        )
        events.append({"event": "pause", "time": time, "seconds": seconds})
        now, began[worker], ready[worker] = time + seconds, time, time + gradient * random.gamma(10, 0.1)
        steps[worker], pulled[worker] = steps[worker] + 1, commit + 1
    return events


def test_time_in_callbacks_is_not_waiting_for_the_central_variable():
    summary = gemjax.summarise(after_callbacks(0.5))
    assert summary.commit_wait.mean() > 0.3
    assert 0.001 - 1e-9 < summary.wait_median < 0.005  # The commits before its own.
    verdict = gemjax.verdict(summary)
    assert not any("central variable" in advice for advice in verdict.advice)
    assert "for its commit and its next view (medians, without callbacks and checkpoints; a ratio of 0.00" in str(
        verdict
    )


def test_a_slow_callback_is_the_reservation_and_nothing_else_is_blamed():
    """Gradients of 10 ms, and callbacks of half a second after each commit: all workers wait for one after the other."""
    verdict = judge(after_callbacks(0.5, gradient=0.01))
    reason = "callbacks and checkpoints stopped the run for 100 % of its time"
    assert verdict.headline == f"Asynchronous with reservations: {reason}."
    assert len(verdict.advice) == 1
    assert verdict.advice[0].startswith("let the engine evaluate beside the run (evaluate=)")
    verdict = judge(after_callbacks(0.02))
    assert verdict.headline == "Truly asynchronous."
    assert "+ Callbacks and checkpoints stopped the run for 2.3" in str(verdict)


def test_slow_callbacks_do_not_explain_that_workers_share_one_device():
    events = after_callbacks(0.5, gradient=0.01)
    events[0]["devices"] = ["gpu:0"] * 4
    assert judge(events).headline == "Not asynchronous: workers took turns."


def test_discarded_work_is_a_reservation():
    events = free()
    for number, event in enumerate(events):
        if event["event"] == "commit" and number % 2:
            event["event"] = "drop"
    verdict = judge(events)
    assert "much of the work was discarded" in verdict.headline
    assert any("60 of 120 commits were dropped" in text for text in failed(verdict))


@pytest.mark.parametrize(
    ("events", "headline"),
    [
        ([start(1), *cycle(0, 0, 0, 0, 1, 1, 0, 0)], "One worker alone"),
        (free(rounds=2), "Too short to judge: 8 commits of 4 workers; 12 are needed."),
    ],
)
def test_short_and_sequential_runs_are_not_judged(events, headline):
    verdict = judge(events)
    assert verdict.asynchronous == "unknown"
    assert verdict.headline.startswith(headline)


def test_simulated_runs_are_judged_by_their_trace():
    def history(arrivals):
        trace = arrivals.trace(400, seed=0)
        return {
            "worker": trace.worker, "step": trace.step, "time": trace.time, "pulled_at": trace.pulled_at,
            "staleness": trace.staleness, "applied": trace.worker >= 0, "dropped": trace.worker < 0,
        }  # fmt: skip

    verdict = judge(history(gemjax.arrivals.Gamma(8, machine_variation=0.6)))
    assert verdict.asynchronous == "yes"
    assert "a simulated run" in verdict.headline
    barrier = gemjax.arrivals.Barrier(gemjax.arrivals.Gamma(8))
    assert judge(history(barrier)).headline == "Not asynchronous: workers moved in lock step."
    verdict = judge(history(gemjax.arrivals.RoundRobin(8)))
    assert "fixed round" in verdict.headline
    assert len(failed(verdict)) > 1
    assert len(verdict.advice) == 1  # Not of devices, dispatches or waiting.
    assert "another arrival model" in verdict.advice[0]
