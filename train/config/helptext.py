"""`--help`: the flags of a command in groups; the common ones, or all of them with `--help-all`."""

import ast
import inspect
import itertools
import shutil
import textwrap
import types
from collections.abc import Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from train.config import presets
from train.config.validation import flag

START = f"CONFIGURATION is {' or '.join(presets.NAMES)} (default: digits); flags change it."

# Flags by the names of their fields; a field that is in no group belongs to the output.
GROUPS = {
    "data": ("dataset", "epochs", "gradients", "batch_size", "seed", "seeds", "augment", "data_dir", "manual_dir"),
    "model": ("model", "width", "depth", "dropout", "weight_decay"),
    "method": (
        "method", "methods", "learning_rate", "learning_rates", "momentum", "momenta", "schedule", "warmup_epochs",
        "decay_epochs", "decay_factor", "strength", "strengths", "kappa", "reading", "variant", "period",
        "dynamic_periods", "local_momentum", "outer_learning_rate",
    ),
    "cluster": ("engine", "workers", "cluster", "central", "central_devices", "worker_devices"),
    "scheduler": ("max_staleness", "quorum", "grace", "deadline", "retries"),
    "output": (),
}  # fmt: skip
RARE = {
    "data": ("data_dir", "augment"),
    "model": ("width", "depth", "dropout"),
    "method": (
        "decay_factor", "kappa", "reading", "variant", "dynamic_periods", "local_momentum", "outer_learning_rate",
    ),
    "cluster": ("central", "central_devices", "worker_devices"),
    "scheduler": ("grace", "retries"),
    "output": ("eval_seconds", "checkpoint_every", "tensorboard"),
}  # fmt: skip
NOTES = {"scheduler": " (--engine devices)"}
WIDTH = 100  # Columns at most.
LEFT = 31  # Column in which explanations begin.
MOST_CHOICES = 3  # Beside the flag; more stand in the explanation.


def show(argv: Sequence[str], usage: str, about: str, default: Any) -> None:
    """Prints the help that a command line asks for, and ends; returns if it asks for none.

    Args:
      argv: words of the command line.
      usage: how the command is called.
      about: what the command does; its lines are wrapped, except those that begin with a space.
      default: a dataclass, whose fields are the flags; its values are the defaults.

    Raises:
      SystemExit: with status 0, after the help has been printed.
    """
    if asked := {"-h", "--help", "--help-all"} & set(argv):
        print(text(usage, about, default, everything="--help-all" in asked))
        raise SystemExit(0)


def text(usage: str, about: str, default: Any, *, everything: bool, width: int | None = None) -> str:
    """The help of a command; see :func:`show`."""
    width = min(width or shutil.get_terminal_size((WIDTH, 50)).columns, WIDTH) - 1
    kinds, meanings = get_type_hints(type(default), include_extras=True), _meanings(type(default))
    named = {name for names in GROUPS.values() for name in names}
    lines = [f"usage: {usage} [CONFIGURATION] [flags]", ""]
    for line in about.splitlines():
        lines += [line] if line.startswith(" ") else textwrap.wrap(line, width)
    for group, names in GROUPS.items():
        found = [name for name in names if name in kinds] or [name for name in kinds if name not in named]
        if group != "output" and not any(name in kinds for name in names):
            continue
        lines += ["", f"{group}{NOTES.get(group, '')}:"]
        for name in found:
            if everything or name not in RARE[group]:
                lines += _entry(name, kinds[name], meanings[name], getattr(default, name), width)
    more = "" if everything else f"{usage} --help-all shows all flags."
    return "\n".join([*lines, "", more]).rstrip()


def _entry(name: str, kind: Any, meaning: str, value: Any, width: int) -> list[str]:
    """The lines of one flag: the flag and its values, what it means, and its default."""
    metavar, choices = _values(kind)
    says = meaning.replace("`", "")
    if choices:
        says += f" One of {', '.join(choices)}."
    if value is not None and value != () and not isinstance(value, bool):
        says += f" (default: {' '.join(map(str, value)) if isinstance(value, tuple) else value})"
    left = f"  {flag(f'no_{name}' if value is True else name)} {metavar}".rstrip()
    right = textwrap.wrap(says, width - LEFT, break_long_words=False, break_on_hyphens=False)
    if len(left) > LEFT - 2:
        return [left, *(" " * LEFT + line for line in right)]
    return [f"{left:{LEFT}}{right[0]}", *(" " * LEFT + line for line in right[1:])]


def _values(kind: Any) -> tuple[str, tuple[str, ...]]:
    """What stands behind a flag for its value, and the choices that do not fit there.

    >>> _values(float | None), _values(bool), _values(tuple[int, ...]), _values(Literal["one", "two"])
    (('FLOAT', ()), ('', ()), ('INT ...', ()), ('one|two', ()))
    """
    metavar = next(
        (extra.metavar for extra in getattr(kind, "__metadata__", ()) if getattr(extra, "metavar", None)), None
    )
    kind = getattr(kind, "__origin__", kind) if metavar else kind
    if metavar:
        return metavar, ()
    if get_origin(kind) in (Union, types.UnionType):
        return _values(next(one for one in get_args(kind) if one is not type(None)))
    if get_origin(kind) is tuple:
        one, choices = _values(get_args(kind)[0])
        return f"{one} ...", choices
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        return ("|".join(choices), ()) if len(choices) <= MOST_CHOICES else ("NAME", choices)
    return ("" if kind is bool else {str: "PATH"}.get(kind, kind.__name__.upper())), ()


def _meanings(options: type) -> dict[str, str]:
    """What stands below each field in the source of a dataclass."""
    body: Any = ast.parse(textwrap.dedent(inspect.getsource(options))).body[0].body  # pyrefly: ignore
    return {
        ast.unparse(field.target): ast.literal_eval(below.value)
        for field, below in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr)
    }
