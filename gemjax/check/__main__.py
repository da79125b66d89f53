"""Command line of the self-test, ``python -m gemjax.check``."""

import argparse
import contextlib
import io
import json
import os
import pathlib
import signal
import sys
from collections.abc import Sequence

from gemjax import check
from gemjax.check.machine import cores
from gemjax.protocol.trace import write_or_leave

BROKEN_PIPE = 141  # Exit status that shells report for a process that SIGPIPE ended.
MOST_ON_A_HOST = 1024  # Workers or devices.


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
    parser.add_argument("--workers", type=_positive, metavar="N", help="number of workers (default: by the devices)")
    parser.add_argument("--cpu-devices", type=_positive, metavar="N",
                        help="CPU devices to create where there is no accelerator (default: one per core, at most 4, and one "
                        "for the central variable)")  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true", help="fewer methods, the small model alone, shorter measurements"
    )
    parser.add_argument("--json", metavar="FILE", help="save all figures as JSON")
    chosen = parser.parse_args(arguments)
    if chosen.json is not None:
        try:  # Before any work; the file keeps its content until there are figures to save.
            new = not os.path.lexists(chosen.json)
            if not pathlib.Path(chosen.json).is_fifo():  # The reader of a pipe would find its end.
                open(chosen.json, "a").close()
            if new:
                os.remove(chosen.json)
            if os.path.isfile(chosen.json) and not _may_replace(pathlib.Path(chosen.json).read_bytes()):
                parser.error(f"--json {chosen.json} is another file, which the check would replace; name another file")
        except OSError as error:
            parser.error(f"--json {chosen.json} cannot be written ({error.strerror}); name another file")
    if isinstance(sys.stdout, io.TextIOWrapper):  # An encoding may lack × and µ.
        sys.stdout.reconfigure(errors="backslashreplace")
    # JAX would reserve most of a GPU's memory even if other programs use that GPU.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    report = check.run(
        chosen.workers,
        cpu_devices=chosen.cpu_devices or _cpu_devices(),
        quick=chosen.quick,
        tell=_say,
    )
    _say(f"\nverdict (after {report.seconds:.0f} s)\n  {report.verdict}")
    for failure in report.failures:
        if failure.traceback:
            print(f"\n{failure.part}\n{failure.traceback}", file=sys.stderr)
    saved = chosen.json is None or _save(report, chosen.json)
    return 0 if report.passed and saved else 1


def _say(text: str) -> None:
    """Print a text, or end the process if that is impossible; nothing is unsaved."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # The reader has ended, as `head` does.
        os._exit(BROKEN_PIPE)
    except OSError as error:
        os.write(2, f"gemjax.check: the output cannot be written: {error.strerror}\n".encode())
        os._exit(1)


def _may_replace(content: bytes) -> bool:
    """Return True for an empty file, and for one with the figures of a check."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(content)
        return isinstance(found, dict) and {"passed", "verdict"} <= found.keys()
    return not content.strip()


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


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
    if not 1 <= number <= MOST_ON_A_HOST:
        raise argparse.ArgumentTypeError(f"must be from 1 to {MOST_ON_A_HOST}, got {number}")
    return number


def _interrupted(number: int, _: object) -> None:
    """End the process at once; nothing is unsaved."""
    os.write(2, b"gemjax.check: interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    sys.exit(main())
