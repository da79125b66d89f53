"""The verdict on a run: asynchronous or not, in words, with the reasons."""

import dataclasses
from typing import Literal

import numpy as np

from gemjax.telemetry.summary import Summary

ROUNDS = 3  # Commits per worker; a shorter run is not judged.
OVERLAP = 1.5  # Workers computing at once; with fewer they seldom overlap.
TURNS = 1.1  # The same; with fewer they take turns.
SMALL_WAIT = 0.25  # Of a gradient's time.
FIXED = 0.95  # Share of repeats that makes a round fixed, or a staleness constant.
PAUSED = 0.1  # Share of a run's time in callbacks and checkpoints that is small.
TRIFLING = 0.1  # Of an equal share; a worker that commits less hardly takes part.
# Reasons of the headline.
LOCK_STEP, ROUND = "workers moved in lock step", "the commits came in a fixed round"
TURNS_TAKEN, SELDOM = "workers took turns", "workers seldom computed at once"
WAITED, CONSTANT = "workers waited for the central variable", "the staleness never varied"
SIMULATED = "the order of the commits is that of the simulated trace; to change it, choose another arrival model."


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of one criterion.

    Attributes:
      passed: True if the criterion holds, as in an asynchronous run.
      text: the result in words, with the numbers.
      advice: what to change if it does not hold; empty if there is nothing to do.
      decisive: True if failing this criterion alone makes the run not asynchronous.
    """

    passed: bool
    text: str
    advice: str = ""
    decisive: bool = False


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The judgement of a run: truly asynchronous or not, and why.

    Attributes:
      asynchronous: ``"yes"``, ``"partly"``, ``"no"``, or ``"unknown"`` if the run is too short or has one worker.
      headline: the answer in a sentence.
      findings: the results that it is based on.
    """

    asynchronous: Literal["yes", "partly", "no", "unknown"]
    headline: str
    findings: tuple[Finding, ...] = ()

    @property
    def advice(self) -> tuple[str, ...]:
        """Changes that would make the run more asynchronous."""
        return tuple(dict.fromkeys(f.advice for f in self.findings if not f.passed and f.advice))

    def __str__(self) -> str:
        lines = [self.headline, *(f"{'+' if f.passed else '-'} {f.text}" for f in self.findings)]
        return "\n".join([*lines, *(f"To do: {advice}" for advice in self.advice)])


def verdict(summary: "Summary") -> "Verdict":
    """Judge a run: truly asynchronous or not.

    It is if workers compute at the same time, none waits long for the central variable, the order of commits is not a fixed
    round, workers do not move in lock step, staleness varies, and all workers take part. What is not recorded is not judged.

    Args:
      summary: the statistics of the run, from :func:`gemjax.summarise`.

    Raises:
      TypeError: if ``summary`` is anything else, such as the history itself.

    >>> import gemjax
    >>> from gemjax import arrivals
    >>> trace = arrivals.RoundRobin(4).trace(100)
    >>> history = {"worker": trace.worker, "step": trace.step, "time": trace.time, "pulled_at": trace.pulled_at,
    ...            "staleness": trace.staleness, "applied": trace.worker >= 0, "dropped": trace.worker < 0}
    >>> print(gemjax.verdict(gemjax.summarise(history)).headline)
    Not asynchronous: the commits came in a fixed round.
    """
    if not isinstance(summary, Summary):
        raise TypeError(
            f"summary must be a gemjax.Summary, got {type(summary).__name__}; give gemjax.summarise(result)"
        )
    if summary.num_workers == 1:
        return Verdict("unknown", "One worker alone is a sequential run.")
    if summary.commits < ROUNDS * summary.num_workers:
        return Verdict(
            "unknown",
            f"Too short to judge: {summary.commits} commits of {summary.num_workers} workers; "
            f"{ROUNDS * summary.num_workers} are needed.",
        )
    judged = {
        LOCK_STEP: _lock_step(summary),
        ROUND: _order(summary),
        TURNS_TAKEN if _take_turns(summary) else SELDOM: _overlap(summary),
        "one worker did nearly everything": _dominance(summary),
        WAITED: _wait(summary),
        CONSTANT: _staleness(summary),
        "some workers hardly took part": _participation(summary),
    }
    if not summary.measured:
        judged = {reason: dataclasses.replace(finding, advice=SIMULATED) for reason, finding in judged.items()}
    elif _is_one_device(summary):  # What follows from the turns needs no advice of its own.
        follows = {ROUND, CONSTANT} | ({WAITED} if summary.colocated else set())
        judged |= {reason: dataclasses.replace(judged[reason], advice="") for reason in follows}
    unknown = {LOCK_STEP: summary.versions, CONSTANT: summary.staleness_mode}
    judged = {reason: finding for reason, finding in judged.items() if not np.isnan(unknown.get(reason, 0.0))}
    judged["much of the work was discarded"] = _waste(summary)
    explained: set[str] = set()
    if summary.paused:
        pauses = _pauses(summary)
        judged[f"callbacks and checkpoints stopped the run for {_percent(_paused(summary))} of its time"] = pauses
        if not pauses.passed:  # After each of them all workers are ready, and commit one after the other.
            explained = {ROUND, SELDOM, WAITED, CONSTANT} | (set() if _is_one_device(summary) else {TURNS_TAKEN})
            judged |= {r: dataclasses.replace(judged[r], advice="", decisive=False) for r in explained & judged.keys()}
    failed = {reason: finding for reason, finding in judged.items() if not finding.passed and reason not in explained}
    decisive = [reason for reason, finding in failed.items() if finding.decisive]
    findings = tuple(judged.values())
    if decisive:
        return Verdict("no", f"Not asynchronous: {decisive[0]}.", findings)
    if failed:
        return Verdict("partly", f"Asynchronous with reservations: {' and '.join(failed)}.", findings)
    how = "" if summary.measured else ", by its trace (a simulated run: no worker waits in virtual time)"
    return Verdict("yes", f"Truly asynchronous{how}.", findings)


def _lock_step(s: Summary) -> Finding:
    passed = s.versions > 1.5 / s.num_workers
    return Finding(
        passed,
        f"Workers pulled {'each on its own' if passed else 'together'}: {s.versions:.2f} versions of the central variable were "
        f"read per commit (in lock step, where all wait for the slowest, it is {1 / s.num_workers:.2f}).",
        "remove the barrier, unless the method is defined in rounds, as `diloco` is: dispatch a worker as soon as its own "
        "commit is made. A quorum is a barrier, too, if its grace is much longer than a gradient (`--quorum`, `--grace`).",
        decisive=True,
    )


def _order(s: Summary) -> Finding:
    return Finding(
        s.repeats < FIXED,
        f"{_percent(s.repeats)} of the commits repeat the order of the round before (fixed round: 100 %, random order: "
        f"{_percent(1 / s.num_workers)}).",
        "a fixed round has a fixed delay: if it is not intended, look for code that waits for workers in turn, and let their "
        "speeds differ.",
        decisive=not _is_one_device(s),
    )


def _overlap(s: Summary) -> Finding:
    text = (
        f"Of {s.num_workers} workers, {s.at_once:.1f} computed at the same time (mean over the time in which any did)."
    )
    if _is_one_device(s):
        return Finding(
            False,
            "All workers share one device, on which their gradients take turns.",
            "give the workers devices of their own (on a CPU call gemjax.cpu_devices(n) first), or simulate them "
            "(gemjax.simulate, --engine simulate).",
            decisive=True,
        )
    # If workers wait for the central variable, that finding has the advice.
    advice = (
        "give each commit more work (a larger batch, or local steps), or use fewer workers." if _wait(s).passed else ""
    )
    return Finding(s.at_once >= OVERLAP, text, advice, decisive=_take_turns(s))


def _take_turns(s: Summary) -> bool:
    return s.at_once < TURNS or _is_one_device(s)


def _is_one_device(s: Summary) -> bool:
    """Return True if all workers share one device, whose turns explain a fixed round, a constant staleness and waits."""
    return s.num_devices == 1 and s.measured


def _dominance(s: Summary) -> Finding:
    worker = int(np.argmax(s.share))
    return Finding(
        s.share[worker] < 0.8,
        f"The busiest worker, {worker}, made {_percent(s.share[worker])} of the commits (equal shares: "
        f"{_percent(1 / s.num_workers)}).",
        "look at the others: faults, much slower devices, late data.",
        decisive=True,
    )


def _wait(s: Summary) -> Finding:
    ratio = s.wait_median / max(s.gradient_time, 1e-12)
    if not s.measured:
        return Finding(
            True, "Waiting for the central variable is part of the simulated durations and is not separated."
        )
    advice = (
        "the central variable shares a device with a worker, so commits queue behind that worker's gradients, a hidden "
        "barrier: give it a device of its own (--central dedicated, or gemjax.place(n, 'dedicated'))."
        if s.colocated
        else "the central variable is the bottleneck: give each commit more work (a larger batch, or local steps), or use "
        "fewer workers; CPU devices share the host's cores."
    )
    return Finding(
        ratio <= SMALL_WAIT,
        f"A worker computes a gradient in {duration(s.gradient_time)} and waits {duration(s.wait_median)} for its commit and "
        f"its next view (medians{', without callbacks and checkpoints' if s.paused else ''}; a ratio of {ratio:.2f}, where "
        f"{SMALL_WAIT} or less is small).",
        advice,
    )


def _paused(s: Summary) -> float:
    return s.paused / max(s.span, 1e-12)


def _pauses(s: Summary) -> Finding:
    return Finding(
        _paused(s) <= PAUSED,
        f"Callbacks and checkpoints stopped the run for {duration(s.paused)}, {_percent(_paused(s))} of its time "
        f"({_percent(PAUSED)} or less is small).",
        "let the engine evaluate beside the run (evaluate=), write checkpoints in the background (wait=False), call back less "
        "often (callback_every), or save less often (checkpoint_seconds).",
    )


def _staleness(s: Summary) -> Finding:
    return Finding(
        s.staleness_mode < FIXED,
        f"Staleness: median {s.staleness_median:.0f}, 95 % at most {s.staleness_p95:.0f} (equal speeds: about "
        f"{s.num_workers - 1}); the most common value has {_percent(s.staleness_mode)} of the commits.",
        "a constant delay is a pipeline, not an asynchronous run.",
    )


def _participation(s: Summary) -> Finding:
    idle = np.flatnonzero(s.share < TRIFLING / s.num_workers)
    lost = f"; retired: {s.retired}" + (f", after {s.faults} faults" if s.faults else "") if s.retired else ""
    named = ", ".join(map(str, idle[:5])) + (", …" if len(idle) > 5 else "")
    return Finding(
        len(idle) == 0,
        f"Workers with less than a tenth of an equal share of the commits: {len(idle)} ({named}){lost}." if len(idle) else
        "Every worker made at least a tenth of an equal share of the commits.",
        "look at the faults and at the speed of these workers' devices.",
    )  # fmt: skip


def _waste(s: Summary) -> Finding:
    arrived = s.commits + s.dropped + s.rejected
    wasted = (s.dropped + s.rejected + s.interrupted) / (arrived + s.interrupted)
    causes = (
        (s.dropped, "raise the bound of the method, or take one that refuses less"),
        (s.interrupted, "call workers back later (--interrupt)"),
        (s.dropped + s.interrupted, "remove workers that are much slower"),
        (s.rejected, "lower the learning rate, or clip gradients"),
    )
    advice = [text for count, text in causes if count > 0.05 * (arrived + s.interrupted)]
    called_back = f"; {s.interrupted} computations were called back" if s.interrupted else ""
    return Finding(
        wasted <= 0.2,
        f"{s.dropped} of {arrived} commits were dropped as too stale, {s.rejected} rejected as not finite{called_back}.",
        "; ".join(advice) + "." * bool(advice),
    )


def duration(seconds: float) -> str:
    """Return a duration in a suitable unit.

    >>> duration(0.0123), duration(75.0), duration(2e-5), duration(7384.0), duration(0.9996)
    ('12.3 ms', '75 s', '20 µs', '7384 s', '1 s')
    """
    if 999.5 <= seconds < 1e9:
        return f"{seconds:.0f} s"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9995 * size:  # Rounded to three digits, it is 1.
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
