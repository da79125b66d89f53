"""A run's timeline in the Trace Event Format, for Perfetto (ui.perfetto.dev) and chrome://tracing."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from gemjax.telemetry import Timeline, timeline

CENTRE = 0  # Its track; worker w has w + 1.
PROCESS = 1
COUNTERS = ("loss", "staleness")


def chrome_trace(
    source: Timeline | Iterable[Mapping[str, Any]] | Mapping[str, np.ndarray], num_workers: int | None = None
) -> dict[str, Any]:
    """The timeline of a run as a JSON object in the Trace Event Format.

    Every worker has a track. A slice ``gradient`` reaches from dispatch to ready (within it ``waits for its view``, if it had
    to), a slice ``commit wait`` from there to the commit. What was dropped or rejected, faults, and workers that retire, end,
    leave or join are instants; the loss and the staleness of commits are counters; callbacks are slices on a track of the
    centre. Times are in microseconds; one unit of virtual time is shown as a second.

    Args:
      source: as for :func:`gemjax.summarise`.
      num_workers: number of workers N, where ``source`` does not say.

    Returns:
      What ``json.dump`` writes to a file that Perfetto opens.

    >>> import gemjax
    >>> events = [{"event": "dispatch", "time": 0.0, "worker": 0, "step": 0},
    ...           {"event": "ready", "time": 0.8, "worker": 0, "step": 0},
    ...           {"event": "commit", "time": 1.0, "worker": 0, "step": 0, "pulled_at": 0, "staleness": 0, "loss": 2.0}]
    >>> trace = gemjax.chrome_trace(events)
    >>> [(event["name"], event["ts"], event["dur"]) for event in trace["traceEvents"] if event["ph"] == "X"]
    [('gradient', 0, 800000), ('commit wait', 800000, 200000)]
    """
    run = source if isinstance(source, Timeline) else timeline(source, num_workers)
    events = [event for cycle in _cycles(run) for event in _of_cycle(cycle)] + [_of_incident(i) for i in run.incidents]
    # A slice before those within it, as the format wants it.
    events.sort(key=lambda event: (event["ts"], -event.get("dur", 0)))
    return {
        "traceEvents": _names(run) + events,
        "displayTimeUnit": "ms",
        "otherData": {"producer": "gemjax", "time": "measured" if run.measured else "virtual"},
    }


def _cycles(run: Timeline) -> Iterable[dict[str, Any]]:
    for row in zip(*run.cycles.values(), strict=True):
        yield dict(zip(run.cycles, row, strict=True))


def _of_cycle(cycle: dict[str, Any]) -> Iterable[dict[str, Any]]:
    kind, track = str(cycle["event"]), int(cycle["worker"]) + 1
    about = {
        name: _plain(cycle[name]) for name in ("step", "pulled_at", "staleness", "loss", "gap") if name in cycle
    }  # fmt: skip
    about = {name: value for name, value in about.items() if value is not None}
    sent, began, ready, end = (_microseconds(cycle[name]) for name in ("dispatch", "began", "ready", "time"))
    yield _slice("gradient", track, sent, ready, about | {"became": kind})
    if began > sent:
        yield _slice("waits for its view", track, sent, min(began, ready), {})
    if end > ready:
        yield _slice("commit wait", track, ready, end, {})
    if kind in ("drop", "reject"):
        yield _instant(kind, track, end, about)
    if kind == "commit":
        for name in COUNTERS:
            if name in about:
                yield {"name": name, "ph": "C", "ts": end, "pid": PROCESS, "args": {name: about[name]}}


def _of_incident(incident: Mapping[str, Any]) -> dict[str, Any]:
    at = _microseconds(incident["time"])
    if incident["event"] == "pause":
        return _slice("callback", CENTRE, at, at + _microseconds(incident["seconds"]), {})
    about = {name: value for name, value in incident.items() if name not in ("event", "time", "worker")}
    return _instant(incident["event"], incident.get("worker", -1) + 1, at, about)


def _names(run: Timeline) -> list[dict[str, Any]]:
    tracks = ["centre", *(f"worker {worker}" for worker in range(run.num_workers))]
    if run.devices:
        tracks = [f"{track} ({device})" for track, device in zip(tracks, (run.central, *run.devices), strict=False)]
    named = [("process_name", CENTRE, {"name": "gemjax"})]
    for track, name in enumerate(tracks):
        named += [("thread_name", track, {"name": name}), ("thread_sort_index", track, {"sort_index": track})]
    return [{"name": name, "ph": "M", "ts": 0, "pid": PROCESS, "tid": tid, "args": args} for name, tid, args in named]


def _slice(name: str, track: int, begin: int, end: int, about: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name, "cat": "run", "ph": "X", "ts": begin, "dur": end - begin, "pid": PROCESS, "tid": track, "args": about,
    }  # fmt: skip


def _instant(name: str, track: int, at: int, about: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "cat": "run", "ph": "i", "s": "t", "ts": at, "pid": PROCESS, "tid": track, "args": about}


def _microseconds(time: float) -> int:
    return round(float(time) * 1e6)


def _plain(value: Any) -> float | int | None:
    """JSON has no NaN; counts are shown as such."""
    value = float(value)
    if not np.isfinite(value):
        return None
    return int(value) if value.is_integer() else value
