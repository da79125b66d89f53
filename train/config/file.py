"""Origins of a command's flags: a configuration by its name, a file, or an earlier run."""

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

from train.common.errors import UsageError
from train.config import presets
from train.config.config import Common, Config
from train.config.datasets import DATASETS
from train.config.methods import METHODS
from train.config.parsing import COMMANDS, nearest, usual_cluster, words_of
from train.config.validation import one_of

UNSAVED = ("out", "dry_run", "resume")  # Fields of one call, which `--print-config` and a run's file leave out.


def start_from(argv: list[str], *, swept: bool = False) -> tuple[list[str], Config]:
    """Take the configuration, `digits` by default, off the front of a command line.

    Args:
      argv: words of the command line.
      swept: True for the configuration that a sweep starts from.

    Raises:
      UsageError: if there is none of that name.
    """
    name = argv.pop(0) if argv and not argv[0].startswith("-") else "digits"
    if name not in presets.NAMES:
        meant = f"did you mean --dataset {name}? Else choose" if name in DATASETS else "choose"
        raise UsageError(
            f"there is no configuration or command {name!r}; {meant} {one_of(name, (*presets.NAMES, *COMMANDS))}"
        )
    return argv, presets.load(name, swept=swept)


def take_config(argv: list[str], options: type, command: str = "") -> tuple[list[str], bool]:
    """Replace `--config FILE` in a command line by the flags of that file, which all others override.

    The keys of a file are those of a training run. Other commands take those on data, network and training, and the keys of
    the table with their own name, such as `[sweep]`.

    Args:
      argv: words of the command line, without a configuration at the front.
      options: dataclass of the command's flags.
      command: name of the command; empty for a training run.

    Returns:
      The words of the command line, and True if `--print-config` was one of them.

    Raises:
      UsageError: if the file is no configuration.
    """
    is_printed = "--print-config" in argv
    needed = "the name of a file: FILE.toml, or the config.json of a run"
    rest, path = _take([word for word in argv if word != "--print-config"], "--config", needed)
    return rest if path is None else [*_flags(Path(path), options, command), *rest], is_printed


def take_resume(argv: list[str]) -> tuple[list[str], str | None]:
    """Take `--resume [RUN]` out of a command line; alone it means the newest run."""
    return _take(argv, "--resume", "the name of a run, or nothing behind it for the newest", alone="latest")


def _take(argv: list[str], flag: str, needed: str, alone: str = "") -> tuple[list[str], str | None]:
    """Take `flag VALUE` or `flag=VALUE` out of a command line.

    Returns:
      The other words, and the value: `alone` if no value follows the flag, `None` without the flag.

    Raises:
      UsageError: if the value is empty.
    """
    for index, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name == flag:
            rest = argv[index + 1 :]
            if not equals:
                value = rest.pop(0) if rest and not rest[0].startswith("-") else alone
            if not value:
                raise UsageError(f"{flag} needs {needed}")
            return argv[:index] + rest, value
    return argv, None


def show_config(options: Any, command: str = "") -> None:
    """Print the options of a command as a configuration file, and end.

    Raises:
      SystemExit: with status 0.
    """
    print(text(options, command), end="")
    raise SystemExit(0)


def text(options: Any, command: str = "") -> str:
    """Return the options of a command as a configuration file; those without a value are left out.

    >>> print(text(Config(batch_size=64))[:45])
    dataset = "digits"
    batch_size = 64
    period = 1
    """
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    lines = [
        f"{name} = {json.dumps(value, ensure_ascii=False)}\n"  # Numbers, lists and strings are the same in TOML.
        for name, value in values.items()
        if value is not None and name not in UNSAVED
    ]
    return "".join([f"[{command}]\n"] * bool(command) + lines)


def _flags(path: Path, options: type, command: str) -> list[str]:
    """Return the flags of a file."""
    if path.is_dir():  # That of a run.
        path = path / "config.json"
    try:
        content = path.read_text(encoding="utf-8")
        found = json.loads(content) if path.suffix == ".json" else tomllib.loads(content)
    except ValueError as error:
        raise UsageError(f"{path} is not a configuration file: {error}") from error
    if path.suffix == ".json":
        found = {name: value for name, value in found.items() if name not in UNSAVED}
    tables = {name: found.pop(name) for name in list(found) if name in COMMANDS and isinstance(found[name], dict)}
    own = {field.name for field in dataclasses.fields(options)}
    keys = _checked(path, found, {field.name for field in dataclasses.fields(Config)})
    if command:
        shared = own & {field.name for field in dataclasses.fields(Common)}
        keys = {name: value for name, value in keys.items() if name in shared}
        keys |= _checked(path, tables.get(command, {}), own)
    methods = keys.get("methods") or [keys.get("method", Config.method)]
    if set(methods) <= set(METHODS) and keys.get("cluster") == usual_cluster(methods):
        del keys["cluster"]  # Left out, so that another method on the command line gets its own usual cluster.
    return [word for name, value in keys.items() if value is not None for word in words_of(name, value)]


def _checked(path: Path, found: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Return the keys of a file with underscores, as fields have them.

    Raises:
      UsageError: if there is no such field; with the nearest one.
    """
    found = {name.replace("-", "_"): value for name, value in found.items()}
    for name in found:
        if name not in names:
            near = nearest(name, names)
            raise UsageError(
                f"{path} has the key {name}, which is no flag" + (f"; did you mean {near}?" if near else "")
            )
    return found
