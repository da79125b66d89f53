"""Results of the check, as figures and as text."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

from gemjax.check.law import Law
from gemjax.check.machine import Devices, Machine, Memory
from gemjax.check.speed import Overlap, Speed, Windows
from gemjax.engines.memory import readable
from gemjax.telemetry.verdict import duration

Rows = list[tuple[str, ...]]
LABEL, COLUMN = 22, 10  # Widths of the first cell of a line and of the others.


@dataclasses.dataclass(frozen=True)
class Failure:
    """A part of the check that failed.

    Attributes:
      part: name of the part.
      reason: description of the failure.
      advice: what to do about it.
      traceback: traceback of the exception; empty without one.
    """

    part: str
    reason: str
    advice: str
    traceback: str = ""


@dataclasses.dataclass(frozen=True)
class Report:
    """All figures of a check; those of a failed part are ``None`` or missing.

    Attributes:
      machine: software and processor.
      devices: devices and placement.
      law: one entry per method and dtype.
      speed: one entry per size of the model.
      overlap: overlap in time of gradients on different devices.
      windows: throughput of the simulator.
      memory: peak use of memory.
      failures: parts that failed; empty if the check passed.
      seconds: duration of the check.
    """

    machine: Machine | None = None
    devices: Devices | None = None
    law: tuple[Law, ...] = ()
    speed: tuple[Speed, ...] = ()
    overlap: Overlap | None = None
    windows: Windows | None = None
    memory: Memory | None = None
    failures: tuple[Failure, ...] = ()
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """True if the law holds and every part ran."""
        return not self.failures

    @property
    def verdict(self) -> str:
        """Result of the check in one line."""
        machine, devices = self.machine, self.devices
        where = f"gemjax {machine.versions['gemjax']} {{}}" if machine else "gemjax {}"
        if devices:
            where += f" on {', '.join(devices.kinds)}"
        if machine and devices and devices.platform == "cpu":
            where += f" ({machine.processor}, {machine.cores} cores)"
        if self.failures:
            reasons = "; ".join(f"{failure.part}: {failure.reason}" for failure in self.failures)
            return f"{where.format('FAILED the check')}: {reasons}"
        parts = [f"the law holds to {_law_summary(self.law)}"]
        if devices:
            count = len(devices.workers)
            parts.append(f"{count} worker{'s' if count > 1 else ''}")
        if self.overlap:
            parts.append(f"{self.overlap.at_once:.1f} gradients at once")
        if self.speed:
            first = self.speed[0]
            parts.append(f"{first.rate:,.0f} commits/s ({first.ratio:.2f} of a bare loop)")
        warned = "; JAX warned when it started, see its messages" if devices and devices.messages else ""
        return f"{where.format('works')}: {', '.join(parts)}{warned}"

    def figures(self) -> dict[str, Any]:
        """Return all figures as JSON values; NaN and infinity become ``None``, and keys become strings."""
        return _as_json(dataclasses.asdict(self) | {"passed": self.passed, "verdict": self.verdict})


def text_of(rows: Rows) -> str:
    """Format rows as lines with aligned cells; the last cell is not padded.

    >>> print(text_of([("process", "1 GiB"), ("", "resident")]))
      process                1 GiB
                             resident
    """
    lines = []
    for *cells, last in rows:
        widths = (LABEL, *[COLUMN] * len(cells))
        lines.append("  " + "".join(f"{cell:<{width}} " for cell, width in zip(cells, widths, strict=False)) + last)
    return "\n".join(lines)


def machine_rows(machine: Machine) -> Rows:
    """Return versions, system and processor."""
    host = "" if machine.memory is None else f", {readable(machine.memory)}"
    return [
        *machine.versions.items(),
        ("system", machine.system),
        ("processor", f"{machine.processor}, {machine.cores} cores{host}"),
        *([("driver", machine.driver)] if machine.driver else []),
        *(("environment", f"{name}={value}") for name, value in machine.settings.items()),
        ("matrix products", f"precision {machine.matmul_precision!r} where a program does not choose"),
    ]


def devices_rows(devices: Devices, cores: int) -> Rows:
    """Return devices and placement."""
    workers = collections.defaultdict(list)
    for worker, device in enumerate(devices.workers):
        workers[device].append(str(worker))
    shared = ", shared with a worker" if devices.central in devices.workers else ""
    lines = [f"{', '.join(numbers)} on {device}" for device, numbers in workers.items()]
    note = [("", f"CPU devices share {cores} cores: expect asynchrony but no speed-up")]
    return [
        *(("" if i else "devices", kind) for i, kind in enumerate(devices.kinds)),
        ("central variable", f"on {devices.central}{shared}"),
        *(("" if i else "workers", line) for i, line in enumerate(lines)),
        *(note if devices.platform == "cpu" else []),
    ]


LAW_NOTES: Rows = [
    ("differences", "largest difference of a parameter, relative to the largest parameter"),
    ("last place", "effect of increasing one initial parameter by one unit in the last place: the size of rounding"),
    ("reordered", "effect of reversing the order of the commits: the size of a violation"),
    ("staleness", "median to largest; worker 0 is slowed by 5 ms per gradient, so that staleness varies"),
    ("replays", "comparison of two replays of the run"),
]
LAW_HEAD: Rows = [
    ("method", "dtype", "difference", "allowed", "last place", "reordered", "workers", "staleness", "replays")
]


def law_rows(law: Law) -> Rows:
    """Return the row of a method."""
    median, most = law.staleness
    return [
        (
            law.method,
            law.dtype,
            _small(law.difference),
            "not judged" if law.allowed is None else f"{law.allowed:.0e}",
            _small(law.last_place),
            "" if law.reordered is None else _small(law.reordered),
            str(law.workers),
            f"{median:.0f} to {most}",
            "same bits" if law.same_bits else "other bits: reductions are not deterministic here",
        )
    ]


SPEED_HEAD: Rows = [("parameters", "commits/s", "bare loop", "ratio", "one worker", "added per commit")]
SPEED_NOTES: Rows = [
    ("bare loop", "steps/s of sequential SGD on one device: gradient and update, jitted"),
    ("one worker", "commits/s of a run with one worker, where nothing overlaps"),
    ("added per commit", "time per commit of that worker, less that of the bare loop: scheduler and transfers"),
]


def speed_rows(speed: Speed) -> Rows:
    """Return the row of a model size."""
    return [
        (
            f"{speed.parameters:,}",
            f"{speed.rate:,.1f}",
            f"{speed.bare:,.1f}",
            f"{speed.ratio:.2f}",
            f"{speed.alone:,.1f}",
            f"{1e6 * speed.overhead:,.0f} µs",
        )
    ]


def overlap_rows(overlap: Overlap, platform: str) -> Rows:
    """Overlap of gradients on different devices, and the advice that follows from it."""
    if overlap.devices == 1:
        return [("gradients at once", "1.0: all workers share one device, on which their gradients take turns")]
    cores = ", of which the cores are shared" if platform == "cpu" else ""
    return [
        ("gradients at once", f"{overlap.at_once:.1f} on {overlap.devices} devices, of {_time(overlap.gradient)} each"),
        ("gain", f"{overlap.gain or 0:.2f} × the gradients per second of one device alone{cores}"),
        ("gemjax.verdict", overlap.headline),
        *(("to do", advice) for advice in overlap.advice),
    ]


def windows_rows(windows: Windows) -> Rows:
    """Throughput of the simulator for each width of the window."""
    return [
        (f"window={width}", f"{rate:,.1f} commits/s{', the default here' if width == windows.default else ''}")
        for width, rate in windows.rates.items()
    ]


def memory_rows(memory: Memory) -> Rows:
    """Return the peaks of each device and of the process."""
    rows = [
        (name, f"peak {readable(peak)}" + (f" of {readable(limit)}" if limit else ""))
        for name, (peak, limit) in memory.devices.items()
    ]
    process = "not known" if memory.process is None else f"peak {readable(memory.process)}, resident"
    return [*rows, ("process", process)]


def _law_summary(law: Sequence[Law]) -> str:
    worst: dict[str, Law] = {}
    for one in law:
        if one.allowed is not None and (one.dtype not in worst or one.difference > worst[one.dtype].difference):
            worst[one.dtype] = one
    return " and ".join(f"{_small(w.difference)} in {dtype} (allowed {w.allowed:.0e})" for dtype, w in worst.items())


def _small(number: float) -> str:
    return "0" if number == 0 else f"{number:.1e}"


def _time(seconds: float | None) -> str:
    return "?" if seconds is None else duration(seconds)


def _as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(one) for one in value]
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    return value
