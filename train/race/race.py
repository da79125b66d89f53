"""`python -m train race`: synchronous and asynchronous training against wall-clock seconds, with one slow worker."""

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import gemjax
from train.common.console import RunConsole, say, warnings_on
from train.common.errors import UsageError
from train.common.files import check_out, reserve, write_whole
from train.common.machine import cores, describe, precision
from train.config.config import Config
from train.config.parsing import parse_flags
from train.race import picture
from train.race.contestants import CONTESTANTS, Lap, Name, label, run
from train.race.tuning import LOSS, tune
from train.run.folder import RUNS
from train.task.task import Task, make_task

USAGE = "python -m train race"
MARK = {"command": USAGE}  # At the beginning of each file of figures.
SLOW = 0.2  # Seconds.
MARGIN = 1.5  # Ratio of the target to the worst of the best losses; late differences are chance.


@dataclasses.dataclass(frozen=True)
class Race:
    """Train one network on digits with a slow worker: with a barrier, without waiting for the last, with asgd and with GEM.

    The contestants run one after the other on the devices of this machine. Their test loss is drawn against wall-clock
    seconds, above the timelines of the workers.
    """

    methods: tuple[Name, ...] = tuple(CONTESTANTS)
    """Contestants, in the order in which they run; `quorum` is synchronous without waiting for the last worker."""
    workers: int = 4
    """Number of workers; the last one is slow. The learning rates were tuned with 4."""
    slow: float | None = None
    """Artificial delay per gradient of the slow worker, in seconds; 0 is none. Default: 0.2, with several accelerators 0."""
    gradients: int = 400
    """Gradients of each contestant."""
    tune: bool = False
    """Only simulate each contestant at all learning rates of its grid, and print the seconds to a test loss of 0.12."""
    out: str | None = None
    """Folder of race.png and race.json; default: a new one in runs/."""

    def __post_init__(self):
        for name, least in (("workers", 2), ("gradients", 10)):
            if (value := getattr(self, name)) < least:
                raise ValueError(f"--{name} must be at least {least}; got {value}")
        if self.slow is not None and not 0 <= self.slow <= 60:
            raise ValueError(f"--slow must be between 0 and 60 seconds; got {self.slow}")


def main(argv: Sequence[str]) -> int:
    """Run the race that the command line asks for and return the exit status."""
    race = parse_flags(Race, argv, USAGE)
    folder = Path(race.out or RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-digits-race")
    check_out(folder)
    console = RunConsole()
    with precision(False):
        if race.tune:
            console.print(tuned(race, console))
            return 0
        found = compete(race, console)
    if race.out is None:
        folder = reserve(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "race.json", json.dumps(found) + "\n")
    picture.draw(found, folder / "race.png")
    console.print(table(found))
    say(console, f"picture: {folder / 'race.png'}, figures: {folder / 'race.json'}")
    return 0


def compete(race: Race, console: Console) -> dict[str, Any]:
    """Run the contestants one after the other and return the figures of the race, as in `race.json`.

    Raises:
      UsageError: if no commit of a contestant is applied any more.
    """
    gemjax.cpu_devices(race.workers + 1)
    slow, task, laps = slow_of(race), task_of(race), {}
    for name in dict.fromkeys(race.methods):
        say(console, f"{label(name, race.workers)}: compiling, then {race.gradients} gradients …")
        try:
            with warnings_on(console):
                laps[name] = run(CONTESTANTS[name], task, race.workers, slow, race.gradients)
        except gemjax.RunFailedError as error:
            raise UsageError(f"{name} failed: {error}; name the others with --methods") from error
        say(console, f"{label(name, race.workers)}: {laps[name].seconds[-1]:.1f} s")
    return figures(laps, race, slow)


def slow_of(race: Race) -> float:
    """Return the artificial delay of a race in seconds."""
    accelerators = [device for device in jax.local_devices() if device.platform != "cpu"]
    return race.slow if race.slow is not None else 0.0 if len(accelerators) > 1 else SLOW


def task_of(race: Race) -> Task:
    """Return the task of a race; on a CPU device its gradient takes about 14 ms."""
    return make_task(Config(workers=race.workers, batch_size=256))


def tuned(race: Race, console: Console) -> Table:
    """Simulate the grids of the contestants and return the table of their rates."""
    slow, task = slow_of(race), task_of(race)
    shown = Table("", "rate", f"to {LOSS:g}", "best loss", title=f"simulated, delay {slow:g} s")
    for name in dict.fromkeys(race.methods):
        say(console, f"{name}: simulating {len(CONTESTANTS[name].tried)} rates …")
        for rate, lap in tune(name, task, race.workers, slow, race.gradients):
            reached = lap.reached(LOSS)
            seconds = "not reached" if reached is None else f"{lap.seconds[reached]:.2f} s"
            shown.add_row(name, f"{rate:g}", seconds, f"{np.nanmin(lap.losses):.3f}")
    return shown


def figures(laps: Mapping[str, Lap], race: Race, slow: float) -> dict[str, Any]:
    """Return the figures of a race."""
    target = target_of(laps)
    window = window_of(laps, slow)
    about, count = describe(), len(set(gemjax.place(race.workers).workers))
    places = f"{count} CPU devices of {cores()} cores" if about["backend"] == "cpu" else f"{count} × {about['device']}"
    return MARK | {
        "machine": about,
        "devices": f"{race.workers} workers on {places}",
        "workers": race.workers,
        "slow": slow,
        "gradients": race.gradients,
        "target": target,
        "window": window,
        "contestants": {name: _contestant(name, lap, race, target, window) for name, lap in laps.items()},
    }


def target_of(laps: Mapping[str, Lap]) -> float | None:
    """Return the loss that all contestants reach: one and a half times the worst of their best losses, to two digits.

    A contestant that does not halve its loss does not count; `None` if all are like that.
    """
    best = [least for lap in laps.values() if (least := np.nanmin(lap.losses)) < lap.losses[0] / 2]
    return float(f"{MARGIN * max(best):.2g}") if best else None


def window_of(laps: Mapping[str, Lap], slow: float) -> float:
    """Return the seconds of each timeline: some gradients of the slowest worker."""
    gradient = max(float(np.median(lap.history["ready"] - lap.history["began"])) for lap in laps.values())
    return round(min(5 * (slow + gradient), min(lap.seconds[-1] for lap in laps.values())), 3)


def _contestant(name: str, lap: Lap, race: Race, target: float | None, window: float) -> dict[str, Any]:
    contestant = CONTESTANTS[name]
    reached = None if target is None else lap.reached(target)
    history, start = lap.history, max(0.0, (lap.seconds[-1] - window) / 2)
    shown = (history["time"] > start) & (history["dispatched"] < start + window)
    spans = np.stack([history[column][shown] - start for column in ("began", "ready", "time")], axis=1)
    return {
        "method": contestant.method,
        "learning_rate": contestant.learning_rate,
        "momentum": contestant.momentum,
        "quorum": contestant.quorum(race.workers),
        "seconds_to_target": None if reached is None else round(float(lap.seconds[reached]), 3),
        "gradients_to_target": None if reached is None else int(lap.commits[reached]),
        "seconds": np.round(lap.seconds, 3).tolist(),
        "losses": [float(f"{loss:.5g}") if np.isfinite(loss) else None for loss in lap.losses],
        "timeline": [
            [int(worker), *np.round(span, 4).tolist()]
            for worker, span in zip(history["worker"][shown], spans, strict=True)
        ],
    }


def table(found: Mapping[str, Any]) -> Table:
    """Return the table of a race for the terminal."""
    to = "to the target" if found["target"] is None else f"to loss {found['target']}"
    heads = ("", "rate", to, "gradients", f"all {found['gradients']}", "best loss")
    shown = Table(*heads, title=picture.delay(found))
    for name, lap in found["contestants"].items():
        seconds = lap["seconds_to_target"]
        best = min((loss for loss in lap["losses"] if loss is not None), default=float("nan"))
        shown.add_row(
            label(name, found["workers"]), f"{lap['learning_rate']:g}",
            "not reached" if seconds is None else f"{seconds:.2f} s", str(lap["gradients_to_target"] or ""),
            f"{lap['seconds'][-1]:.1f} s", f"{best:.3f}",
        )  # fmt: skip
    return shown
