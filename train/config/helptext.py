"""`--help`: the flags of a command in groups; the common ones, or all of them with `--help-all`.

tyro's own help has a group per nested dataclass, but configurations are flat, and cannot leave rare flags out.
"""

import ast
import inspect
import itertools
import shutil
import textwrap
import types
from collections.abc import Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from train.config import presets
from train.config.policy import POLICY
from train.config.validation import flag

START = (
    f"CONFIGURATION is {' or '.join(presets.NAMES)} (default: digits). --config FILE reads flags from a TOML file or the \
config.json of a run, later flags override them, and --print-config prints such a file."
)

# Flags by the names of their fields. Those behind a ? are rare and shown by `--help-all` alone.
GROUPS = {
    "data": "dataset test_share image_size epochs gradients batch_size seed seeds ?x64 ?augment ?pool ?data_dir manual_dir",
    "model": "model ?width ?depth ?dropout weight_decay",
    "method": "method methods learning_rate learning_rates momentum momenta schedule warmup_epochs decay_epochs ?decay_factor "
    "strength strengths ?kappa ?reading ?variant period ?dynamic_periods ?local_optimizer "
    "?local_momentum ?outer_learning_rate",
    "cluster": "engine workers cluster ?variation ?transfer address ?min_workers ?worker_cpus worker_gpus ?worker_tpus "
    "?compression ?central ?central_devices ?central_hosts ?worker_devices",
    "scheduler (--engine devices, cluster)": " ".join(
        name if name in ("max_staleness", "quorum", "deadline") else f"?{name}" for name in POLICY
    ),
    "output": "eval_every ?eval_seconds ?checkpoint_every checkpoint_seconds ?keep_checkpoints ?tensorboard out dry_run resume",
}
WIDTH = 100  # Columns at most.
LEAST = 60  # Columns, also on a narrower terminal.
LEFT = 31  # Column in which explanations begin.
MOST_CHOICES = 3  # Beside the flag; more are in the explanation.


def show(argv: Sequence[str], usage: str, about: str, default: Any) -> None:
    """Print the help that a command line asks for, and end; return if it asks for none.

    Args:
      argv: words of the command line.
      usage: the command.
      about: description of the command; its lines are wrapped, except those that begin with a space.
      default: a dataclass, whose fields are the flags; its values are the defaults.

    Raises:
      SystemExit: with status 0, after the help has been printed.
    """
    if asked := {"-h", "--help", "--help-all"} & set(argv):
        print(text(usage, about, default, everything="--help-all" in asked))
        raise SystemExit(0)


def text(usage: str, about: str, default: Any, *, everything: bool) -> str:
    """Return the help of a command; see :func:`show`."""
    width = max(LEAST, min(shutil.get_terminal_size((WIDTH, 50)).columns, WIDTH)) - 1
    kinds, texts = get_type_hints(type(default), include_extras=True), meanings(type(default))
    lines = [f"usage: {usage} [CONFIGURATION] [flags]", ""]
    for line in about.splitlines():
        lines += [line] if line.startswith(" ") else textwrap.wrap(line, width)
    for group, fields in GROUPS.items():
        if names := [name.lstrip("?") for name in fields.split() if name.lstrip("?") in kinds]:
            lines += ["", f"{group}:"]
            for name in names:
                if everything or f"?{name}" not in fields.split():
                    lines += _entry(name, kinds[name], texts[name], getattr(default, name), width)
    more = "" if everything else f"{usage} --help-all shows all flags."
    return "\n".join([*lines, "", more]).rstrip()


def meanings(options: type) -> dict[str, str]:
    """Return the explanation of each field of a dataclass: the `help` of its type, or the text below it in the source."""
    found = {
        name: extra.help
        for name, kind in get_type_hints(options, include_extras=True).items()
        for extra in getattr(kind, "__metadata__", ())
        if getattr(extra, "help", None)
    }
    for base in options.__mro__[:-1]:
        body: Any = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # pyrefly: ignore
        for field, below in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                found.setdefault(ast.unparse(field.target), ast.literal_eval(below.value))
    return found


def _entry(name: str, kind: Any, meaning: str, value: Any, width: int) -> list[str]:
    """Return the lines of one flag: the flag and its values, its meaning and its default."""
    metavar, choices = _values(kind)
    words = meaning.replace("`", "")
    if choices:
        words += f" One of {', '.join(choices)}."
    if value is not None and value != () and not isinstance(value, bool):
        words += f" (default: {' '.join(map(str, value)) if isinstance(value, tuple) else value})"
    left = f"  {flag(f'no_{name}' if value is True else name)} {metavar}".rstrip()
    right = textwrap.wrap(words, width - LEFT, break_long_words=False, break_on_hyphens=False)
    if len(left) > LEFT - 2:
        return [left, *(" " * LEFT + line for line in right)]
    return [f"{left:{LEFT}}{right[0]}", *(" " * LEFT + line for line in right[1:])]


def _values(kind: Any) -> tuple[str, tuple[str, ...]]:
    """Return the placeholder of a flag's value, and the choices that do not fit beside the flag.

    >>> _values(float | None), _values(bool), _values(tuple[int, ...]), _values(Literal["one", "two"])
    (('FLOAT', ()), ('', ()), ('INT ...', ()), ('one|two', ()))
    """
    metavar = next((extra.metavar for extra in getattr(kind, "__metadata__", ()) if extra.metavar), None)
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
