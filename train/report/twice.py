"""`python -m train twice`: a run that was killed and resumed over one that was not, and a recorded run over its replay."""

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import gemjax
from gemjax.telemetry import eventlog, style
from train.common.console import RunConsole, say
from train.common.errors import UsageError
from train.common.files import check_out, write_picture, write_whole
from train.common.machine import describe
from train.config.config import Config
from train.config.parsing import parse_flags
from train.run.folder import RunFolder
from train.task.methods import arguments
from train.task.task import make_task

USAGE = "python -m train twice"
WAIT = 600  # Seconds until a run must have made half of its commits.
WINDOW = 20  # Commits of a running mean.


@dataclasses.dataclass(frozen=True)
class Twice:
    """Train twice, and draw both runs: one that is killed and resumed over one that is not, and one on devices over its replay.

    The runs are those of `python -m train`: GEM on digits. The first two are simulations; the second of them is ended by
    SIGKILL half-way, and goes on with `--resume`.
    """

    epochs: float = 40.0
    """Length of each run."""
    out: str = "."
    """Folder of twice.png and twice.json."""


def main(argv: Sequence[str]) -> int:
    """Train, replay, draw, and return the exit status: 1 if the resumed run is not the uninterrupted one bit for bit."""
    asked, console = parse_flags(Twice, argv, USAGE), RunConsole()
    check_out(asked.out)
    with tempfile.TemporaryDirectory() as scratch:
        found = twice(asked, Path(scratch), console)
    write_whole(Path(asked.out) / "twice.json", json.dumps(found) + "\n")
    draw(found, Path(asked.out) / "twice.png")
    say(
        console, f"resumed: {found['differing']} of {len(found['whole'])} losses differ; picture: {asked.out}/twice.png"
    )
    return int(found["differing"] > 0)


def twice(asked: Twice, scratch: Path, console: Any) -> dict[str, Any]:
    """Run all four and return their losses per commit, as in `twice.json`."""
    simulated = ["--engine", "simulate", "--epochs", f"{asked.epochs:g}", "--checkpoint-every", "100"]
    say(console, "simulating a run, uninterrupted …")
    train(*simulated, "--out", scratch / "whole")
    whole = losses(scratch / "whole")
    say(console, "simulating it again, with SIGKILL half-way …")
    killed_at = kill(simulated, scratch / "killed", len(whole) // 2)
    train("--resume", scratch / "killed")
    resumed = losses(scratch / "killed")
    say(console, "training on devices …")
    train("--epochs", f"{asked.epochs:g}", "--out", scratch / "devices")
    recorded = losses(scratch / "devices")
    say(console, "replaying it …")
    same = [one == other for one, other in zip(whole, resumed, strict=False)]
    return {
        "command": USAGE, "machine": describe(), "whole": whole, "resumed": resumed, "killed_at": killed_at,
        "differing": max(len(whole), len(resumed)) - sum(same), "recorded": recorded, "replayed": replay(scratch / "devices"),
    }  # fmt: skip


def train(*words: str | Path) -> None:
    """Run `python -m train` with these words until it ends.

    Raises:
      UsageError: if it fails.
    """
    done = subprocess.run(
        [sys.executable, "-m", "train", *map(str, words)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UsageError(f"a run failed: {done.stderr.strip()[-500:]}")


def kill(flags: Sequence[str], folder: Path, commits: int) -> int:
    """Begin a run, end it by SIGKILL once it has logged so many commits, and return how many it had made.

    Raises:
      UsageError: if it ends or stalls before that.
    """
    begun = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "train", *flags, "--out", str(folder)], stdout=subprocess.DEVNULL
    ) as process:
        made = 0
        while process.poll() is None and made < commits and time.monotonic() < begun + WAIT:
            time.sleep(0.01)
            made = len(losses(folder)) if (folder / "events.jsonl").exists() else 0
        process.kill()
    if made < commits or process.returncode != -9:
        raise UsageError(
            f"the run was to be killed after {commits} commits, and has ended or stalled; take more --epochs"
        )
    return len(losses(folder))


def losses(folder: Path) -> list[float]:
    """Return the losses of all commits that a run has logged."""
    return [event["loss"] for event in eventlog.read(folder / "events.jsonl") if event["event"] == "commit"]


def replay(path: Path) -> list[float]:
    """Return the losses of a run when the simulator follows its recorded trace."""
    folder = RunFolder(path)
    config = Config.load(folder.config)
    given, shared = arguments(config, make_task(config))
    trace = eventlog.trace_of(folder.events, config.workers)
    return [float(f"{loss:.9g}") for loss in gemjax.simulate(*given, trace, **shared).history["loss"]]


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw both pairs: a broad pale line below a thin one."""
    smooth = lambda values: np.convolve(values, np.ones(WINDOW) / WINDOW, "valid")
    pairs = (
        ("whole", "uninterrupted", "resumed", "killed and resumed"),
        ("recorded", "on devices", "replayed", "its replay"),
    )
    titles = "A simulation, killed and resumed", "A run on devices, and its replay"
    with style.style():
        figure = style.picture(columns=2, height=2.9)
        panels: Any = figure.subplots(1, 2, sharey=True)
        for axes, title, (below, first, above, second) in zip(panels, titles, pairs, strict=True):
            color = style.colour("gem")
            axes.plot(smooth(found[below]), color=color, lw=6, alpha=0.3, label=first)
            axes.plot(smooth(found[above]), color="black", lw=1.2, label=second)
            axes.set(xlabel="commits", yscale="log", title=title)
            axes.legend(loc="upper right")
        panels[0].axvline(found["killed_at"], color=style.QUIET, ls=":")
        at = panels[0].get_xaxis_transform()
        panels[0].text(found["killed_at"], 0.04, " SIGKILL", transform=at, color=style.QUIET)
        panels[0].set_ylabel("training loss")
        about = f"GEM on digits; running means of {WINDOW} commits"
        style.heading(figure, "A run can be continued, and computed again", about)
        write_picture(path, figure)
