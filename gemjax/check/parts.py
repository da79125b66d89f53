"""The parts of the check, run in order; a part that fails does not stop the others."""

import contextlib
import functools
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax

import gemjax
from gemjax.check import report
from gemjax.check.law import METHODS, Law, check_law
from gemjax.check.machine import cores, default_workers, describe, describe_devices, peak_memory, warnings_of_jax
from gemjax.check.report import Failure, Report, Rows, text_of
from gemjax.check.speed import MODELS, SIMULATED, measure_overlap, measure_speed, measure_windows

DOUBLE = ("cpu", "gpu", "cuda", "rocm")  # Platforms that compute in float64.
REPORT = "send this output, with the traceback, with a report of the problem"
QUICK = ("gem", "easgd, local steps")


def run(
    workers: int | None = None,
    *,
    cpu_devices: int | None = None,
    quick: bool = False,
    seconds: float | None = None,
    commits: int = 60,
    models: Sequence[tuple[int, ...]] | None = None,
    tell: Callable[[str], Any] = print,
) -> Report:
    """Check gemjax on the devices of this process.

    Args:
      workers: number of workers; default: one per CPU device or two per accelerator that has workers, and at least 4.
      cpu_devices: number of CPU devices to create, harmless beside accelerators; default: keep the existing ones. It has no
        effect if JAX has started its devices already.
      quick: True for fewer methods, only the small model, and shorter measurements.
      seconds: duration of each measurement of speed; default 3, or 0.5 if ``quick``.
      commits: commits of each run that checks the law; the simulator is timed over eight times as many.
      models: units per layer of each network to time, the smallest first; default about 100,000 and 4 million parameters.
      tell: called with each part of the text as soon as it is known.

    Returns:
      A :class:`Report`; its ``passed`` is true if the law holds and every part ran.

    Example, before anything else has started JAX's devices::

        from gemjax import check

        report = check.run(cpu_devices=3, quick=True)
        assert report.passed, report.verdict
        speed = report.speed[0].ratio  # Throughput relative to a bare loop.
    """
    began, parts = time.perf_counter(), _Parts(tell)
    seconds = seconds or (0.5 if quick else 3.0)
    models = list(MODELS.values())[: 1 if quick else None] if models is None else models
    methods = QUICK if quick else tuple(METHODS)

    tell("machine")
    machine = parts.attempt("machine", describe, report.machine_rows)
    with warnings_of_jax() as messages:
        placement = parts.attempt("devices", lambda: _place(workers, cpu_devices), lambda _: [])
    parts.show([("message of JAX", message) for message in messages])
    if placement is None:
        return Report(machine, failures=tuple(parts.failures), seconds=time.perf_counter() - began)
    devices = parts.attempt(
        "devices",
        lambda: describe_devices(placement, messages),
        functools.partial(report.devices_rows, cores=cores()),
    )

    tell("\nlaw: a run on these devices and its replay by the simulator; matrix products at precision 'highest'")
    parts.show(report.LAW_HEAD)
    platform = jax.local_devices()[0].platform
    checks = [(name, "float32", "highest") for name in methods]
    checks += [(methods[0], "float64", "highest")] * (platform in DOUBLE)
    checks += [(methods[0], "float32", "default")] * (platform != "cpu")
    law = [parts.law(name, dtype, placement, commits, precision) for name, dtype, precision in checks]
    parts.show(report.LAW_NOTES)

    tell("\nspeed: momentum SGD, 64 rows per gradient")
    parts.show(report.SPEED_HEAD)
    speed = [
        parts.attempt("speed", functools.partial(measure_speed, units, placement, seconds), report.speed_rows)
        for units in models
    ]
    parts.show(report.SPEED_NOTES)
    tell("\noverlap of gradients on different devices, one worker per device")
    overlap = parts.attempt(
        "overlap",
        lambda: measure_overlap(placement, seconds, models[0]),
        functools.partial(report.overlap_rows, platform=platform),
    )
    tell(f"\nsimulator: {SIMULATED} workers, momentum SGD, the smallest of these models, on one device")
    windows = parts.attempt("simulator", lambda: measure_windows(8 * commits, models[0]), report.windows_rows)
    tell("\nmemory")
    memory = parts.attempt("memory", peak_memory, report.memory_rows)

    measured = lambda values: tuple(value for value in values if value is not None)
    spent = time.perf_counter() - began
    return Report(
        machine, devices, measured(law), measured(speed), overlap, windows, memory, tuple(parts.failures), spent
    )


class _Parts:
    """Runner of the parts, which prints their rows and collects failures."""

    def __init__(self, tell: Callable[[str], Any]):
        self.tell = tell
        self.failures: list[Failure] = []

    def attempt(self, part: str, measure: Callable[[], Any], rows: Callable[[Any], Rows]) -> Any:
        """Return the result of ``measure``, or ``None`` if it raises."""
        try:
            value = measure()
            self.show(rows(value))
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:400] or 'no message'}"
            self._fail(Failure(part, reason, REPORT, traceback.format_exc()))
            return None
        return value

    def law(self, name: str, dtype: str, placement: gemjax.Placement, commits: int, precision: str) -> Law | None:
        """Check the law for one method; a violation is a failure, too."""
        part = f"law ({name}, {dtype})"
        found = self.attempt(
            part, lambda: check_law(name, dtype, placement, commits, precision=precision), report.law_rows
        )
        if found is not None and found.violation:
            advice = "do not rely on replays on these devices, and send this output with a report of the problem"
            self._fail(Failure(part, found.violation, advice))
        return found

    def show(self, rows: Rows) -> None:
        """Print the rows, if there are any."""
        if rows:
            self.tell(text_of(rows))

    def _fail(self, failure: Failure) -> None:
        self.failures.append(failure)
        self.show([("FAILED", f"{failure.part}: {failure.reason}"), ("to do", failure.advice)])


def _place(workers: int | None, cpu_devices: int | None) -> gemjax.Placement:
    if cpu_devices is not None:
        with contextlib.suppress(Exception):  # If JAX cannot start, the next call raises, too.
            gemjax.cpu_devices(cpu_devices)
    devices = jax.local_devices()
    jax.local_devices(backend="cpu")  # The engines create a run's initial state there.
    return gemjax.place(default_workers(devices) if workers is None else workers, devices=devices)
