"""Random command lines and damaged run folders."""

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from gemjax.engines.running.checkpoints.folder import LOCK
from train.bench.bench import Bench
from train.claims.papers import CLAIMS
from train.claims.reproduce import Reproduce
from train.claims.summary_table import Results
from train.config.config import Config
from train.race.race import Race
from train.report.report import ReportFlags
from train.sweep.grid import Grid

# Words that are wrong for most flags, and extreme for some.
WORDS = (
    "", "0", "1", "2", "3", "-1", "7", "0.5", "1.5", "1e-3", "nan", "inf", "-inf", "1e400", "1e12", "99999999999999999999",
    "x", "None", "True", "gem", "auto", "--", "-", "ü", "a\nb", "a b", "../x", "/dev/null", "/proc/x", "file", "file/x",
    "[1]", "1,2", "0x10", "1_0", " 3", "simulate", "cosine", "tiered", "\x1b[31m", "\u202e",
    "*", "~", "run", "%s", "{}", "digits", "mnist",
)  # fmt: skip
# Values that configurations accept, for flags that most words are wrong for.
USUAL = {"workers": "123", "epochs": "123", "batch_size": "168", "period": "12", "momentum": "05", "seed": "017"}
COMMANDS: dict[str, tuple[type, tuple[str, ...]]] = {
    "": (Config, ("digits", "mnist")),
    "sweep": (Grid, ("digits", "mnist")),
    "reproduce": (Reproduce, (*CLAIMS, "all")),
    "results": (Results, ()),
    "race": (Race, ()),
    "report": (ReportFlags, ("run", "latest")),
    "bench": (Bench, ("simulate", "devices", "methods", "network", "arrivals")),
}


def _choices(hint: Any) -> tuple[str, ...]:
    """Return the words that the type of a flag names."""
    if get_origin(hint) is Literal:
        return tuple(map(str, get_args(hint)))
    return sum((_choices(one) for one in get_args(hint) if not isinstance(one, str)), ())


@st.composite
def command_lines(draw) -> list[str]:
    """Draw a command, mostly with real flags, and words of all kinds for their values."""
    command = draw(st.sampled_from(["", "", "", "sweep", *COMMANDS]))
    options, first = COMMANDS[command]
    argv = [command] if command else []
    argv += draw(st.lists(st.sampled_from([*first, "nonsense"]), max_size=1 if command in ("", "sweep") else 2))
    hints = get_type_hints(options)
    words = st.sampled_from(WORDS)
    for name in draw(
        st.lists(st.sampled_from([*hints, "resume", "help", "help_all", "compilation_cache", "wrong"]), max_size=5)
    ):
        choices = [*_choices(hints.get(name)), *USUAL.get(name, "")]
        value = draw(st.sampled_from(choices) | words if choices else words)
        many = draw(st.sampled_from([1, 1, 1, 0, 2]))
        flag = "--" + name.replace("_", "-")
        joined = draw(st.sampled_from([False, False, True]))
        argv += [f"{flag}={value}"] if joined else [flag, *[value, draw(words)][:many]]
    return argv


@dataclasses.dataclass(frozen=True)
class Damage:
    """A loss of one file of a folder, or of its end: ``which`` selects the file, ``where`` the place in it."""

    change: str
    which: int
    where: float

    def apply(self, folder: Path) -> str:
        """Change the file and return its name."""
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != LOCK)
        # Half of all damages concern the records, which are few among the files of checkpoints.
        records = [path for path in files if path.parent == folder]
        files = (records if self.which % 2 and records else files) or [folder / "config.json"]
        path = files[self.which // 2 % len(files)]
        place = int(self.where * path.stat().st_size) if path.exists() else 0
        if self.change == "delete":
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(path.read_bytes()[:place] if path.exists() else b"")
        return f"{self.change} {path.relative_to(folder)} at {place}"


DAMAGES = st.builds(
    Damage, change=st.sampled_from(["delete", "truncate"]), which=st.integers(0, 200), where=st.floats(0, 1)
)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return every path below a folder with its bytes; a link has its target."""
    found = {}
    for path in folder.rglob("*"):
        held = os.readlink(path).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = held
    return found


def empty(folder: Path) -> None:
    """Delete everything in a folder."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
