"""Command line of the self-test, ``python -m gemjax.check``."""

import argparse
import functools
import io
import json
import os
import pathlib
import sys
from collections.abc import Sequence

from gemjax import check
from gemjax.check.machine import cores
from gemjax.protocol.trace import write_or_leave


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check and print it.

    Returns:
      The exit status: 0 if the law holds and every part ran, else 1.
    """
    parser = argparse.ArgumentParser(
        prog="python -m gemjax.check",
        description="Tests gemjax on the devices of this machine, in about a minute: the law, overlap, speed and memory.",
        epilog="The exit status is 0 if the law holds and every part ran, 1 if something failed.",
    )
    parser.add_argument("--workers", type=int, metavar="N", help="number of workers (default: by the devices)")
    parser.add_argument("--cpu-devices", type=int, metavar="N",
                        help="CPU devices to create where there is no accelerator (default: one per core, at most 4, and one "
                        "for the central variable)")  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true", help="fewer methods, the small model alone, shorter measurements"
    )
    parser.add_argument("--json", metavar="FILE", help="save all figures as JSON")
    chosen = parser.parse_args(arguments)
    if chosen.json is not None and not os.access(pathlib.Path(chosen.json).absolute().parent, os.W_OK):
        parser.error(f"--json {chosen.json} cannot be written; name another file")  # Before any work.
    if isinstance(sys.stdout, io.TextIOWrapper):  # An encoding may lack × and µ.
        sys.stdout.reconfigure(errors="backslashreplace")
    # JAX would reserve most of a GPU's memory even if other programs use that GPU.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    report = check.run(
        chosen.workers,
        cpu_devices=chosen.cpu_devices or _cpu_devices(),
        quick=chosen.quick,
        tell=functools.partial(print, flush=True),
    )
    print(f"\nverdict (after {report.seconds:.0f} s)\n  {report.verdict}")
    for failure in report.failures:
        if failure.traceback:
            print(f"\n{failure.part}\n{failure.traceback}", file=sys.stderr)
    saved = chosen.json is None or _save(report, chosen.json)
    return 0 if report.passed and saved else 1


def _save(report: check.Report, path: str) -> bool:
    try:
        write_or_leave(path, json.dumps(report.figures(), indent=1, allow_nan=False).encode())
    except OSError as error:
        print(f"the figures could not be saved in {path} ({error.strerror}); they are printed above", file=sys.stderr)
        return False
    return True


def _cpu_devices() -> int | None:
    """Return one device per core, at most 4, and one for the central variable; ``None`` if the environment sets a number."""
    forced = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    return None if forced or os.environ.get("JAX_NUM_CPU_DEVICES") else min(cores(), 4) + 1


if __name__ == "__main__":
    sys.exit(main())
