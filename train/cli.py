"""The command line: `python -m train [CONFIGURATION | sweep | reproduce | results | report | bench] [flags]`."""

import contextlib
import dataclasses
import difflib
import io
import logging
import re
import sys
from collections.abc import Sequence

import tyro
from rich.console import Console

from train import compilation, configs, helptext, interrupts, scalars
from train.builders.originals import DataError
from train.config import DATASETS, Config
from train.files import FULL, RecordError, in_words

USAGE = "python -m train"
ABOUT = f"""Train a network with asynchronous workers, on the devices of this machine or in a simulator.
{helptext.START} Ctrl-C, SIGTERM and SIGHUP write a checkpoint and end the run; --resume goes on from it. Other commands:
  python -m train report [RUN]     was a run truly asynchronous, and what slowed it down
  python -m train sweep            compare methods, numbers of workers and learning rates
  python -m train reproduce CLAIM  check published claims
  python -m train results          table of the claims that were checked
  python -m train bench            measure what the engines cost
Compiled programs are kept in your cache folder for the next start. With every command --compilation-cache PATH
moves that folder, and --compilation-cache off does without."""

TITLES = ("Value error", "Parsing error", "Unrecognized options", "Invalid choice", "Missing argument")


def in_flags(text: str) -> str:
    """`text` with arguments that functions name called as the command line calls them.

    >>> in_flags("name that folder as manual_dir")
    'name that folder as --manual-dir'
    """
    return re.sub(r"(?<![\w-])manual_dir", "--manual-dir", text).replace("as data_dir", "as --data-dir")


class UsageError(Exception):
    """A wrong command line; its message is the one line to show."""


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
            from train import bench  # Compiles nothing and imports no plotting unless asked for.

            return bench.main(argv[1:])
        if argv[:1] == ["sweep"]:
            from train import sweep

            return sweep.main(argv[1:])
        if argv[:1] == ["reproduce"]:
            from train import reproduce

            return reproduce.main(argv[1:])
        if argv[:1] == ["results"]:
            from train import results_table

            return results_table.main(argv[1:])
        if argv[:1] == ["report"]:
            from train import report

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
    from train.footprint import dry_run
    from train.runfolder import RunFolder
    from train.story import train

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
            go_on = f"make room and go on with: python -m train --resume {folder.path}"
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
        from train.runfolder import RunFolder

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


def check_dataset(name: str, data_dir: str | None) -> None:
    """Raises, with what is possible, unless there is a data set `name`; imports TFDS only for a name that is not built in.

    Raises:
      UsageError: if there is none.
    """
    if name not in DATASETS:
        from train import data

        try:
            data.check_name(name, data_dir=data_dir)
        except DataError as error:
            raise UsageError(str(error)) from None


def start_from(argv: list[str], *, swept: bool = False) -> tuple[list[str], Config]:
    """Takes the configuration out of the command line, which may name one first; the default is `digits`.

    `swept` asks for what a sweep starts from.

    Raises:
      UsageError: if there is none of that name.
    """
    name = argv.pop(0) if argv and not argv[0].startswith("-") else "digits"
    try:
        return argv, configs.load(name, swept=swept)
    except ValueError:
        meant = f"did you mean --dataset {name}? Else choose" if name in DATASETS else "choose"
        raise UsageError(
            f"there is no configuration {name!r}; {meant} one of {', '.join(configs.NAMES)}, "
            "sweep, reproduce, results, report or bench"
        ) from None


def take_resume(argv: list[str]) -> tuple[list[str], str | None]:
    """Takes `--resume [RUN]` out of the command line; alone it means the newest run."""
    for index, word in enumerate(argv):
        if word.startswith("--resume="):
            return argv[:index] + argv[index + 1 :], word.removeprefix("--resume=")
        if word == "--resume":
            named = argv[index + 1 : index + 2]
            if named and not named[0].startswith("-"):
                return argv[:index] + argv[index + 2 :], named[0]
            return argv[:index] + argv[index + 1 :], "latest"
    return argv, None


def one_line(box: str) -> str:
    """What a box of tyro's says, in one line: the message, and the flag it takes for meant."""
    lines = [line.strip("│╭╮╰╯ ") for line in box.splitlines()]
    parts = [""]  # What stands between horizontal rules; the title comes first, sometimes with a rule of its own.
    for line in filter(None, lines):
        if set(line) <= {"─", "-"} or line.startswith("─ "):
            parts.append("")
        else:
            parts[-1] += f" {line}"
    message = next(part for part in parts if part and part.strip() not in TITLES)
    message = message.strip().removeprefix("Error parsing Config: ").removeprefix("Error parsing Grid: ")
    message = message.removeprefix("Error parsing Bench: ")
    meant = (
        [line.split()[0] for line in lines if line.startswith("--") and set(line) != {"-"}]
        if "Perhaps you meant:" in lines
        else []
    )
    if wrong := re.search(r"invalid choice '(.*?)' .*Expected one of (\(.*?\))", message):
        meant = difflib.get_close_matches(wrong[1], re.findall(r"'(.*?)'", wrong[2]), n=1)
    if message.startswith("Unrecognized options:") and (late := set(configs.NAMES) & set(message.split())):
        message += f"; a configuration comes first: {min(late)} and then flags"
    return f"{message.removesuffix('.')}; did you mean {meant[0]}?" if meant else message
