"""What all command lines share: the configuration in front, `--resume`, and errors of tyro in one line."""

import difflib
import re

from train.common.errors import UsageError
from train.config import presets
from train.config.config import DATASETS, Config

TITLES = ("Value error", "Parsing error", "Unrecognized options", "Invalid choice", "Missing argument")


def in_flags(text: str) -> str:
    """`text` with arguments that functions name called as the command line calls them.

    >>> in_flags("name that folder as manual_dir")
    'name that folder as --manual-dir'
    """
    return re.sub(r"(?<![\w-])manual_dir", "--manual-dir", text).replace("as data_dir", "as --data-dir")


def start_from(argv: list[str], *, swept: bool = False) -> tuple[list[str], Config]:
    """Takes the configuration out of the command line, which may name one first; the default is `digits`.

    `swept` asks for what a sweep starts from.

    Raises:
      UsageError: if there is none of that name.
    """
    name = argv.pop(0) if argv and not argv[0].startswith("-") else "digits"
    try:
        return argv, presets.load(name, swept=swept)
    except ValueError:
        meant = f"did you mean --dataset {name}? Else choose" if name in DATASETS else "choose"
        raise UsageError(
            f"there is no configuration {name!r}; {meant} one of {', '.join(presets.NAMES)}, "
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
    if meant and (typed := re.search(r"--[\w-]+", message)):
        meant = difflib.get_close_matches(typed[0], meant, n=1, cutoff=0.0)
    if wrong := re.search(r"invalid choice '(.*?)' .*Expected one of (\(.*?\))", message):
        meant = difflib.get_close_matches(wrong[1], re.findall(r"'(.*?)'", wrong[2]), n=1)
    if message.startswith("Unrecognized options:") and (late := set(presets.NAMES) & set(message.split())):
        message += f"; a configuration comes first: {min(late)} and then flags"
    return f"{message.removesuffix('.')}; did you mean {meant[0]}?" if meant else message
