"""Statistics of a run: utilisation, waiting times, staleness and the order of commits."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from gemjax.telemetry.eventlog import OUTCOMES
from gemjax.telemetry.timeline import TIMES, Columns, Recorded, Timeline, timeline

SHORTEST = 1e-300  # Units of time of a simulated run may be of any size.


@dataclasses.dataclass(frozen=True)
class Summary:
    """Statistics of a run, from :func:`summarise`. Times are in seconds or units of a simulated run; [N] is per worker.

    Attributes:
      num_workers: number of workers N.
      num_devices: places that they compute on (a device, or the devices that share one worker's batches); N if not known.
      colocated: True if the central variable shares a device with a worker.
      measured: True if dispatch and gradient were timed; in simulated runs they are not, and no worker waits.
      commits: commits applied.
      dropped: commits that the method refused.
      rejected: commits that were not finite.
      faults: computations that raised.
      interrupted: computations that were called back, or finished too old (``Policy(interrupt=)``); their gradients are lost.
        ``utilisation`` and ``at_once`` count their time from the dispatch on, given the events of a log; a history has no times
        of them.
      retired: workers that were retired, after faults or beyond their deadline, and did not take part again. A history has
        neither these nor ``faults`` nor ``paused``, and counts as ``interrupted`` only what a worker lost before a commit: give
        the events of a log.
      span: time from the first dispatch to the last arrival.
      paused: time between the first dispatch and the last arrival that was spent in callbacks and checkpoints, during
        which nothing was committed.
      share: float64 [N]; share of the applied commits.
      utilisation: float64 [N]; time computing / time from the worker's first dispatch to the end. Waiting for a device that
        computes for another worker counts as computing.
      view_wait: float64 [N]; the same for waiting for a view in flight.
      commit_wait: float64 [N]; the same for waiting with a finished gradient.
      at_once: mean number of workers computing, over the time in which at least one did; at most ``num_devices``.
      gradient_time: median time of a gradient.
      wait_median: median wait of a cycle, for the view and for the commit, without the time in callbacks and checkpoints.
      wait_p95: 95th percentile of these waits.
      staleness_median: of applied commits; asynchronous workers of equal speed have about N - 1. It and the next two, and
        ``versions``, are NaN if ``source`` does not have their column.
      staleness_p95: 95th percentile of it.
      staleness_mode: share of the most common staleness; 1 if it never varies.
      repeats: share of commits by the worker that also committed one round earlier; 1 if the order is a fixed round.
      versions: versions of the central variable that were read, per commit; 1 if workers pull separately, 1 / N in lock step.
    """

    num_workers: int
    num_devices: int
    colocated: bool
    measured: bool
    commits: int
    dropped: int
    rejected: int
    faults: int
    interrupted: int
    retired: int
    span: float
    paused: float
    share: np.ndarray
    utilisation: np.ndarray
    view_wait: np.ndarray
    commit_wait: np.ndarray
    at_once: float
    gradient_time: float
    wait_median: float
    wait_p95: float
    staleness_median: float
    staleness_p95: float
    staleness_mode: float
    repeats: float
    versions: float

    @property
    def rate(self) -> float:
        """Applied commits per second (per unit of time of a simulated run): ``commits`` / ``span``."""
        return self.commits / max(self.span, SHORTEST)


def summarise(
    source: "Timeline | Recorded | Iterable[Mapping[str, Any]] | Mapping[str, np.ndarray]",
    num_workers: int | None = None,
) -> "Summary":
    """Compute the statistics of a run from its records.

    Args:
      source: a :class:`gemjax.telemetry.Timeline`, the events of a log, a :class:`gemjax.Result`, or its ``history``,
        which does not know the workers that committed nothing. If part of the run was simulated, only its last part on
        devices is summarised.
      num_workers: number of workers N, if ``source`` does not have it.

    Raises:
      ValueError: if no commit was applied, or the records contradict themselves.

    >>> import gemjax
    >>> history = {"worker": [0, 1, 0, 1], "step": [0, 0, 1, 1], "time": [1.0, 1.5, 2.0, 2.5], "pulled_at": [0, 0, 1, 2],
    ...            "staleness": [0, 1, 1, 1], "loss": [4.0, 3.0, 2.0, 1.0], "applied": [True] * 4, "dropped": [False] * 4}
    >>> summary = gemjax.summarise({name: np.array(column) for name, column in history.items()})
    >>> summary.share, summary.staleness_median, summary.repeats
    (array([0.5, 0.5]), 1.0, 1.0)
    """
    run = source if isinstance(source, Timeline) else timeline(source, num_workers)
    commits, cycles = run.only("commit"), run.only(*OUTCOMES)
    computed = run.only(*OUTCOMES, "interrupt")  # Until it was called back, a worker computed, too.
    if not len(commits["worker"]):
        of_parts = " (of a run that was simulated in part, the last part on devices counts)"
        raise ValueError(f"there is no applied commit to summarise{'' if isinstance(source, Timeline) else of_parts}")
    first, last = _spans(run)
    kinds = run.cycles["event"]
    paused = {name: _paused_before(run, cycles[name]) for name in (*TIMES, "time")}
    waits = sum(
        (cycles[end] - cycles[begin]) - (paused[end] - paused[begin])
        for begin, end in (("dispatch", "began"), ("ready", "time"))
    )
    staleness, pulled_at = commits["staleness"], commits["pulled_at"]
    known = staleness[np.isfinite(staleness)]
    p50, p95 = np.percentile(known if len(known) else staleness, [50, 95])
    num_devices = len(set(run.devices)) or run.num_workers

    def part(begin: str, end: str) -> np.ndarray:
        spent = np.bincount(computed["worker"], computed[end] - computed[begin], run.num_workers)
        return spent / np.maximum(last - first, SHORTEST)

    return Summary(
        num_workers=run.num_workers,
        num_devices=num_devices,
        colocated=bool({*run.central.split("+")} & {one for names in run.devices for one in names.split("+")} - {""}),
        measured=run.measured,
        commits=len(commits["worker"]),
        dropped=int((kinds == "drop").sum()),
        rejected=int((kinds == "reject").sum()),
        faults=int((kinds == "fault").sum()),
        interrupted=int((kinds == "interrupt").sum() or np.nansum(run.cycles.get("interrupted", 0))),
        retired=_retired(run),
        span=float(last - first.min()),
        paused=float(np.diff(_paused_before(run, np.array([first.min(), last])))[0]),
        share=np.bincount(commits["worker"], minlength=run.num_workers) / len(commits["worker"]),
        utilisation=part("began", "ready"),
        view_wait=part("dispatch", "began"),
        commit_wait=part("ready", "time"),
        at_once=min(_at_once(computed), num_devices),
        gradient_time=float(np.median(cycles["ready"] - cycles["began"])),
        wait_median=float(np.median(waits)),
        wait_p95=float(np.percentile(waits, 95)),
        staleness_median=float(p50),
        staleness_p95=float(p95),
        staleness_mode=float(np.unique(known, return_counts=True)[1].max() / len(known)) if len(known) else np.nan,
        repeats=_repeats(commits["worker"]),
        versions=np.nan if np.isnan(pulled_at).all() else len(np.unique(pulled_at)) / len(pulled_at),
    )


def _spans(run: Timeline) -> tuple[np.ndarray, float]:
    """Return the first dispatch of each worker (the earliest of all for one without cycles) and the last arrival."""
    last = float(run.cycles["time"].max())
    first = np.full(run.num_workers, np.inf)
    np.minimum.at(first, run.cycles["worker"], run.cycles["dispatch"])
    return np.where(np.isinf(first), min(first.min(), last), first), last


def _paused_before(run: Timeline, times: np.ndarray) -> np.ndarray:
    """Return the time that was spent in callbacks and checkpoints before each of some times."""
    pauses = [(one["time"], one["seconds"]) for one in run.incidents if one["event"] == "pause"]
    begin, seconds = np.array(sorted(pauses), float).reshape(-1, 2).T
    knots = np.maximum.accumulate(np.stack([begin, begin + seconds], 1).ravel())
    spent = np.cumsum(np.diff(knots, prepend=0.0) * (np.arange(len(knots)) % 2))
    return np.interp(times, knots, spent) if len(knots) else np.zeros(len(times))


def _retired(run: Timeline) -> int:
    last = {one["worker"]: one for one in run.incidents if one["event"] in ("retire", "hang", "join")}
    arrived = lambda worker: run.cycles["time"][run.cycles["worker"] == worker].max(initial=-np.inf)
    # In a run that goes on each worker takes part again.
    return sum(one["event"] != "join" and not arrived(worker) > one["time"] for worker, one in last.items())


def _at_once(cycles: Columns) -> float:
    """Return the computing time of all workers / the time in which at least one computed."""
    order = np.argsort(cycles["began"], kind="stable")
    began, ready = cycles["began"][order], cycles["ready"][order]
    reached = np.concatenate([[-np.inf], np.maximum.accumulate(ready)[:-1]])  # By gradients that began before.
    union = np.maximum(ready - np.maximum(began, reached), 0).sum()
    return float((ready - began).sum() / union) if union > 0 else 1.0


def _repeats(workers: np.ndarray) -> float:
    """Return the share of commits, after the first round, by the worker that also committed one round earlier."""
    number = len(np.unique(workers))
    if len(workers) <= number:
        return float("nan")
    return float((workers[number:] == workers[:-number]).mean())
