"""The common part of all command lines: the configuration in front, `--resume`, and one line per error."""

import contextlib
import dataclasses
import difflib
import io
import itertools
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

import tyro

from train.common.errors import UsageError
from train.config import presets
from train.config.config import Config
from train.config.methods import METHODS
from train.config.validation import flag, one_of

# Modules with a `main`, each imported only for its own command: some import JAX, others Matplotlib.
COMMANDS = {
    "race": "train.race.race",
    "report": "train.report.report",
    "replay": "train.report.replay.replay",
    "compare": "train.report.compare",
    "twice": "train.report.twice",
    "sweep": "train.sweep.sweep",
    "benchmark": "train.sweep.benchmark.benchmark",
    "reproduce": "train.claims.reproduce",
    "results": "train.claims.summary_table",
    "bench": "train.bench.bench",
}
# Names that other programs give to flags, with ours.
ABBREVIATIONS = {
    "lr": "learning_rate", "bs": "batch_size", "wd": "weight_decay", "mom": "momentum", "opt": "method", "arch": "model",
    "data": "dataset", "n": "workers", "steps": "epochs", "output": "out",
}  # fmt: skip


def in_flags(text: str) -> str:
    """Return `text` with the arguments of functions under their names on the command line.

    >>> in_flags("name that folder as manual_dir")
    'name that folder as --manual-dir'
    """
    return re.sub(r"\b(as|no) (manual|data)_dir\b(?!/)", r"\1 --\2-dir", text)  # And not in paths.


def check_resumed(argv: list[str], named: Any, begun: Any) -> None:
    """Check that a command line resumes a run or sweep in its folder, and that a configuration at its front is on its data.

    Raises:
      UsageError: if not.
    """
    flags = {word.split("=")[0] for word in argv}
    if "--out" in flags:
        raise UsageError("what is resumed stays in its folder; give --resume or --out, not both")
    if not argv[0].startswith("-") and "--dataset" not in flags and named.dataset != begun.dataset:
        raise UsageError(
            f"{argv[0]} is on the data set {named.dataset}, but what is resumed is on {begun.dataset}; leave out {argv[0]}"
        )


def parse_flags(options: type, argv: Sequence[str], usage: str, default: Any = None, description: str = "") -> Any:
    """Return the options that a command line asks for.

    Args:
      options: a dataclass, whose fields are the flags.
      argv: words of the command line.
      usage: the command.
      default: an instance of `options`, whose values are the defaults; by default those of the class.
      description: description of the command in tyro's help.

    Raises:
      UsageError: if the command line is wrong, in one line with the nearest name.
    """
    box, more = io.StringIO(), {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(box):
            asked, unknown = tyro.cli(
                options, args=argv, prog=usage, description=description or None, return_unknown_args=True, **more
            )
    except SystemExit as stop:
        if stop.code == 0:  # Help, and tyro's own flags, such as that for completion in a shell.
            raise
        # tyro exits while it handles an error of the dataclass; others are in its box alone.
        message = str(stop.__context__) if isinstance(stop.__context__, ValueError) else _in_one_line(box.getvalue())
        raise UsageError(f"{message} ({usage} --help)") from None
    if unknown:
        message = f"Unrecognized options: {', '.join(unknown)}"
        name = unknown[0].split("=")[0].lstrip("-").replace("-", "_")
        near = nearest(name, [field.name for field in dataclasses.fields(options)])
        message += f"; did you mean {flag(near)}?" if near else ""
        if late := set(presets.NAMES) & set(unknown):
            message += f"; a configuration comes first: {min(late)} and then flags"
        raise UsageError(f"{message} ({usage} --help)")
    return asked


def nearest(name: str, fields: Iterable[str]) -> str | None:
    """Return the field that is probably meant by a name, if any.

    >>> nearest("lr", ["cluster", "learning_rate"]), nearest("lr", ["learning_rates"]), nearest("metod", ["method"])
    ('learning_rate', 'learning_rates', 'method')
    """
    return next(iter(difflib.get_close_matches(ABBREVIATIONS.get(name, name), list(fields), n=1)), None)


def words_of(name: str, value: Any) -> list[str]:
    """Return a field and its value as words of a command line.

    >>> words_of("decay_epochs", (1.0, 1.5)), words_of("augment", False), words_of("out", "-a")
    (['--decay-epochs', '1.0', '1.5'], ['--no-augment'], ['--out=-a'])
    """
    if isinstance(value, bool):
        return [flag(name) if value else flag(f"no_{name}")]
    values = list(map(str, value if isinstance(value, (tuple, list)) else [value]))
    is_flag = values[:1] != [] and values[0].startswith("-")
    return [f"{flag(name)}={values[0]}"] if is_flag else [flag(name), *values]


def in_rounds(options: Any, methods: Iterable[str], argv: Iterable[str]) -> Any:
    """Return the options of simulated runs, with the cluster of their methods if none is given."""
    given = any(word.split("=")[0] == "--cluster" for word in argv)
    return options if given else dataclasses.replace(options, cluster=usual_cluster(methods))


def usual_cluster(methods: Iterable[str]) -> str:
    """Return the cluster of simulated runs that name none: one with a barrier if all methods are defined in rounds.

    >>> usual_cluster(["gem", "diloco"]), usual_cluster(["diloco"])
    ('homogeneous', 'barrier')
    """
    return "barrier" if all(METHODS[method].rounds for method in methods) else "homogeneous"


def command_of(config: Config) -> str:
    """Return the command line that asks for a configuration.

    >>> command_of(Config(workers=3, batch_size=256, epochs=2.0, decay_epochs=(1.0, 1.5), augment=True, out="my run"))
    "python -m train --augment --decay-epochs 1.0 1.5 --epochs 2.0 --out 'my run'"
    """
    words, usual = ["python", "-m", "train"], presets.load("digits")
    for field in dataclasses.fields(config):
        if (value := getattr(config, field.name)) != getattr(usual, field.name):
            words += words_of(field.name, value)
    return shlex.join(words)


def _in_one_line(box: str) -> str:
    """Return the message in a box of tyro's, the first part behind its title, with the choices in few words."""
    lines = [line.strip("│| ") for line in box.splitlines()[1:]]
    parts = itertools.groupby(lines, key=lambda line: bool(line.strip("─-╰╯")))
    message = " ".join(next(part for is_text, part in parts if is_text))
    if wrong := re.search(r"invalid choice '(.*?)' for argument '(.*?)'. Expected one of (\(.*?\))", message):
        value, name, choices = wrong.groups()
        known = re.findall("'(.*?)'", choices)
        return f"{name} must be {one_of(value, known)}; got {value!r}"
    return message
