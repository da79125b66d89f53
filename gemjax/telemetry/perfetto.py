"""The timeline of a run in the Trace Event Format, for Perfetto (ui.perfetto.dev) and chrome://tracing."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from gemjax.telemetry.timeline import Recorded, Timeline, timeline

CENTRAL = 0  # The track of the central variable; worker w has w + 1.
PROCESS = 1
GRADIENT, VIEW, WAIT, REFUSAL = range(4)  # Parts of a cycle; those behind them are counters.
COUNTERS = ("loss", "staleness")
SHOWN = ("step", "pulled_at", "staleness", "loss", "gap", "network", "to_host", "wire", "to_device")  # Of a gradient.


def chrome_trace(
    source: "Timeline | Recorded | Iterable[Mapping[str, Any]] | Mapping[str, np.ndarray]",
    num_workers: int | None = None,
) -> "dict[str, Any]":
    """Return the timeline of a run as a JSON object in the Trace Event Format.

    Every worker has a track. A slice ``gradient`` extends from dispatch to ready (with ``waits for its view`` inside it, if the
    worker waits), a slice ``commit wait`` from there to the commit. Instants are dropped and rejected gradients, and the events
    fault, interrupt, hang, late, retire, end, leave, join and idle. The loss and the staleness of commits are counters.
    Pauses for callbacks and checkpoints are slices on the track of the central variable; evaluations have a track of their own,
    the last. Times are in microseconds; one unit of virtual time is shown as a second.

    Args:
      source: as for :func:`gemjax.summarise`.
      num_workers: number of workers N, if ``source`` does not have it.

    Returns:
      An object for ``json.dump``, in a file that Perfetto opens.

    >>> import gemjax
    >>> events = [{"event": "dispatch", "time": 0.0, "worker": 0, "step": 0},
    ...           {"event": "ready", "time": 0.8, "worker": 0, "step": 0},
    ...           {"event": "commit", "time": 1.0, "worker": 0, "step": 0, "pulled_at": 0, "staleness": 0, "loss": 2.0}]
    >>> trace = gemjax.chrome_trace(events)
    >>> [(event["name"], event["ts"], event["dur"]) for event in trace["traceEvents"] if event["ph"] == "X"]
    [('gradient', 0, 800000), ('commit wait', 800000, 200000)]
    """
    run = source if isinstance(source, Timeline) else timeline(source, num_workers)
    return {"traceEvents": list(_events(run))} | _about(run)


def chrome_trace_text(run: Timeline) -> Iterator[str]:
    """Yield the result of :func:`chrome_trace` as JSON text, one event at a time, because it is large for long runs.

    >>> import gemjax, json
    >>> events = [{"event": "commit", "time": 1.0, "worker": 0, "step": 0, "pulled_at": 0, "staleness": 0, "loss": 2.0}]
    >>> run = gemjax.timeline(events)
    >>> json.loads("".join(chrome_trace_text(run))) == gemjax.chrome_trace(run)
    True
    """
    encode = json.JSONEncoder(allow_nan=False).encode
    yield '{"traceEvents": ['
    for number, event in enumerate(_events(run)):
        yield (",\n" if number else "") + encode(event)
    yield "], " + encode(_about(run))[1:]


def _about(run: Timeline) -> dict[str, Any]:
    return {
        "displayTimeUnit": "ms",
        "otherData": {"producer": "gemjax", "time": "measured" if run.measured else "virtual"},
    }


def _events(run: Timeline) -> Iterator[dict[str, Any]]:
    """Yield all events in order; each is made from its cycle only when it is due, to save memory."""
    yield from _names(run)
    cycles, kinds = run.cycles, run.cycles["event"]
    # Rounded before they are compared: a slice must end where the next begins.
    sent, began, ready, end = (
        np.rint(cycles[name] * 1e6).astype(np.int64) for name in ("dispatch", "began", "ready", "time")
    )
    commits, nothing = kinds == "commit", np.zeros(len(sent), np.int64)
    parts = [
        (np.ones(len(sent), bool), sent, ready - sent),
        (began > sent, sent, began - sent),
        (end > ready, ready, end - ready),
        (np.isin(kinds, ("drop", "reject")), end, nothing),
        *((commits & np.isfinite(cycles[name]), end, nothing) for name in COUNTERS),
    ]
    rows = [np.flatnonzero(there) for there, *_ in parts] + [np.arange(len(run.incidents))]
    incidents = [_of_incident(incident, run.num_workers + 1) for incident in run.incidents]
    at = [begin[row] for (_, begin, _), row in zip(parts, rows, strict=False)]
    lasts = [length[row] for (*_, length), row in zip(parts, rows, strict=False)]
    at.append(np.array([incident["ts"] for incident in incidents], np.int64))
    lasts.append(np.array([incident.get("dur", 0) for incident in incidents], np.int64))
    part_of = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    row, at, lasts = (np.concatenate(column) for column in (rows, at, lasts))
    shown = {name: cycles[name].tolist() for name in ("event", "worker", *SHOWN) if name in cycles}
    # The format requires a slice before those within it.
    for index in np.lexsort((part_of, -lasts, at)):
        part, number = int(part_of[index]), int(row[index])
        if part == len(parts):
            yield incidents[number]
        else:
            cycle = {name: column[number] for name, column in shown.items()}
            yield _of_cycle(cycle, part, int(at[index]), int(lasts[index]))


def _of_cycle(cycle: dict[str, Any], part: int, at: int, length: int) -> dict[str, Any]:
    """Return one of the events of a cycle; it begins at ``at`` and lasts for ``length`` microseconds."""
    kind, track = cycle["event"], cycle["worker"] + 1
    if part in (VIEW, WAIT):
        return _slice("waits for its view" if part == VIEW else "commit wait", track, at, at + length, {})
    about = {name: _plain(cycle[name]) for name in SHOWN if name in cycle and math.isfinite(cycle[name])}
    if part == GRADIENT:
        return _slice("gradient", track, at, at + length, about | {"became": kind})
    if part == REFUSAL:
        return _instant(kind, track, at, about)
    name = COUNTERS[part - REFUSAL - 1]
    return {"name": name, "ph": "C", "ts": at, "pid": PROCESS, "args": {name: about[name]}}


def _of_incident(incident: Mapping[str, Any], evaluator: int) -> dict[str, Any]:
    at = _microseconds(incident["time"])
    if incident["event"] == "pause":
        return _slice("pause", CENTRAL, at, at + _microseconds(incident["seconds"]), {})
    if incident["event"] == "evaluation":
        about = {"commits": incident["commits"]}
        return _slice("evaluation", evaluator, at, at + _microseconds(incident["seconds"]), about)
    about = {name: value for name, value in incident.items() if name not in ("event", "time", "worker")}
    return _instant(incident["event"], incident.get("worker", -1) + 1, at, about)


def _names(run: Timeline) -> list[dict[str, Any]]:
    tracks = ["central variable", *(f"worker {worker}" for worker in range(run.num_workers))]
    if run.devices:
        tracks = [f"{track} ({device})" for track, device in zip(tracks, (run.central, *run.devices), strict=False)]
    if any(incident["event"] == "evaluation" for incident in run.incidents):
        tracks.append("evaluation")
    named = [("process_name", CENTRAL, {"name": "gemjax"})]
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


def _plain(value: float) -> float | int:
    return int(value) if float(value).is_integer() else value
