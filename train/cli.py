"""The command line: `python -m train [CONFIGURATION | sweep | reproduce | results | report | bench] [flags]`."""

import contextlib
import dataclasses
import io
import logging
import sys
from collections.abc import Sequence

import tyro
from rich.console import Console

from train.common import compilation, interrupts
from train.common.errors import DataError, RecordError, UsageError
from train.common.files import FULL, in_words
from train.config import helptext
from train.config.config import Config
from train.config.parsing import in_flags, one_line, start_from, take_resume
from train.run import tensorboard as scalars
from train.task.data.names import check_dataset

USAGE = "python -m train"
ABOUT = f"""Train a network with asynchronous workers, on the devices of this machine or in a simulator.
{helptext.START} Ctrl-C, SIGTERM and SIGHUP write a checkpoint and end the run; --resume goes on from it. Other commands:
  python -m train report [RUN]     was a run truly asynchronous, and what slowed it down
  python -m train sweep            compare methods, numbers of workers and learning rates
  python -m train reproduce CLAIM  check published claims
  python -m train results          table of the claims that were checked
  python -m train bench            measure what the engines cost
Compiled programs are kept in your cache folder for the next start. With every command \
--compilation-cache PATH moves that folder, and --compilation-cache off does without."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line; returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        argv, cache = compilation.take_flag(argv)
    except ValueError as error:
        print(f"train: {error}", file=sys.stderr)
        return 2
    compilation.use(cache)
    try:
        if argv[:1] == ["bench"]:
            from train.bench import bench  # Compiles nothing and imports no plotting unless asked for.

            return bench.main(argv[1:])
        if argv[:1] == ["sweep"]:
            from train.sweep import sweep

            return sweep.main(argv[1:])
        if argv[:1] == ["reproduce"]:
            from train.claims import reproduce

            return reproduce.main(argv[1:])
        if argv[:1] == ["results"]:
            from train.claims import summary_table as results_table

            return results_table.main(argv[1:])
        if argv[:1] == ["report"]:
            from train.report import report

            return report.main(argv[1:])
        return _train(argv)
    except KeyboardInterrupt as stop:
        number = interrupts.number_of(stop)
        print(f"train: interrupted by {interrupts.name_of(number)}", file=sys.stderr)
        return interrupts.status_of(number)
    except (UsageError, DataError, RecordError, OSError, MemoryError) as error:
        message = in_words(error) if isinstance(error, OSError) else str(error)
        message = in_flags(message) or "there is not enough memory"
        print(f"train: {message}", file=sys.stderr)
        return 2


def _train(argv: list[str]) -> int:
    config, resume = parse(argv)
    if config.tensorboard and not scalars.available():
        raise UsageError(scalars.INSTALL)
    console = Console()
    if not config.dry_run:
        console.print(f"{config.method} on {config.dataset}: preparing data and parameters …", highlight=False)
    import gemjax  # After the flags are known to be right: this imports JAX.
    from gemjax.checkpoints import CheckpointWriteError
    from train.run.folder import RunFolder
    from train.run.train import train
    from train.task.memory import dry_run

    if config.dry_run:
        dry_run(config, console)
        return 0
    folder = RunFolder.find(resume) if resume else RunFolder.fresh(config)
    # Orbax logs the traceback of each write that fails; the run says it in a line.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    interrupt = interrupts.Interrupt()
    try:
        summary = train(config, folder, console, interrupt)
    except gemjax.CheckpointError as error:
        raise UsageError(str(error)) from error
    except gemjax.RunFailedError as error:
        raise UsageError(f"the run failed: {error}") from error
    except OSError as error:
        if folder.config.exists() and (error.errno in FULL or isinstance(error, CheckpointWriteError)):
            mend = "make room" if error.errno in FULL else "mend that"
            go_on = f"{mend} and go on with: python -m train --resume {folder.path}"
            print(f"train: {in_words(error)}; {go_on}", file=sys.stderr)
            return 1
        raise
    return 0 if summary["finished"] else interrupts.status_of(interrupt.number)


def parse(argv: list[str]) -> tuple[Config, str | None]:
    """The configuration that `argv` asks for, and the run to resume if any.

    Raises:
      UsageError: if it is wrong.
    """
    argv, default = start_from(list(argv))
    argv, resume = take_resume(argv)
    if resume:
        from train.run.folder import RunFolder

        try:
            default = Config.load(RunFolder.find(resume).config)
        except ValueError as error:
            raise UsageError(str(error)) from None
    helptext.show(argv, USAGE, ABOUT, default)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            config = tyro.cli(Config, args=argv, default=default, prog=USAGE)
    except SystemExit as stop:
        if stop.code == 0:  # tyro's own flags, as for completion in a shell.
            raise
        raise UsageError(f"{one_line(said.getvalue())} (python -m train --help)") from None
    if resume and (changed := config.changed(default)):
        raise UsageError(f"a resumed run keeps its {', '.join(changed)}; start a new one to change that")
    if resume and config.out != default.out:
        raise UsageError("a resumed run stays in its folder; give --resume or --out, not both")
    check_dataset(config.dataset, config.data_dir)
    return dataclasses.replace(config, resume=None), resume
