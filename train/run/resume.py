"""The newest checkpoint of a run: its state and trace, and the check that data and settings are those it was written with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gemjax
from train.common.console import say
from train.common.errors import RecordError, UsageError
from train.common.machine import generator, other_generator
from train.config.config import Config


class Provenance:
    """Data and settings of a run, as its checkpoints hold them.

    Args:
      folder: the run folder.

    Attributes:
      settings: the learning rate and epochs, each with the number of commits before them.
      unevaluated: True if an evaluation is due that has failed, or is being made.
    """

    unevaluated: bool = False

    def __init__(self, folder: Path):
        self.folder = folder
        self.settings: list[tuple[int, dict[str, Any]]] = []
        self._data: str | None = None

    def note(self, config: Config, commits: int, data: str | None, saved: Mapping[str, Any] | None = None) -> None:
        """Note from which commit on a run has its learning rate and epochs, and check the rest.

        Args:
          config: configuration of the run.
          commits: commits that were applied before.
          data: checksum of its data.
          saved: metadata of the checkpoint that the run continues from.

        Raises:
          RecordError: if the data are not those that the checkpoint was written with.
        """
        saved = saved or {}
        self._data, self.unevaluated = data, bool(saved.get("unevaluated"))
        self.check_same(
            config, saved, data, "give the folder of those data as --data-dir, or start a new run in another folder"
        )
        now = {"epochs": config.epochs, "learning_rate": config.rate}
        self.settings = settings_of(saved)
        if not self.settings or self.settings[-1][1] != now:
            self.settings = [*(past for past in self.settings if past[0] < commits), (commits, now)]

    def check_same(self, config: Config, saved: Mapping[str, Any], data: str | None, remedy: str) -> None:
        """Check that data and random numbers are those of a checkpoint; `remedy` ends the message on data.

        Raises:
          RecordError: if not.
        """
        before = saved.get("data")
        if None not in (before, data) and before != data:
            raise RecordError(
                f"the data of {config.dataset} are not those that {self.folder} was begun with (their checksum is {data}, but "
                f"was {before}); {remedy}"
            )
        if other := other_generator(saved.get("generator")):
            raise RecordError(f"the random numbers of {self.folder} were drawn with {other}; set it as it was")

    def metadata(self) -> dict[str, Any]:
        """Return what a checkpoint holds of it."""
        found = {"settings": self.settings, "data": self._data, "generator": generator()}
        return found | ({"unevaluated": True} if self.unevaluated else {})


def settings_of(saved: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Return the settings in the metadata of a checkpoint, each with the commits before it."""
    return [(commits, fields) for commits, fields in saved.get("settings", [])]


def restore(
    config: Config, task, logged, shapes, folder, checkpoints, console
) -> tuple[gemjax.RunState | None, gemjax.Trace]:
    """Return state and trace of the newest checkpoint, if any, and truncate records that go beyond it.

    `logged` are the commits of the event log up to it, `None` without one; `shapes` returns the shapes of the state.
    """
    if logged is None:
        if folder.events.exists():
            say(console, "there is no checkpoint yet: starting again")
        folder.provenance.note(config, 0, task.data_checksum())
        return None, gemjax.Trace(worker=[], num_workers=config.workers)
    state, recorded, sizes = checkpoints.load(shapes(), in_files=config.central_hosts > 0)
    if (made := len(recorded)) > task.num_commits:  # In a simulation, commits that were not applied count, too.
        raise UsageError(
            f"the run in {folder.path} has made {made} commits, and {task.num_commits} are asked for; raise --epochs to "
            "continue it"
        )
    folder.provenance.note(config, int(state.commits), task.data_checksum(), sizes)
    if len(logged) != int(state.commits):
        raise RecordError(
            f"{folder.events} has {len(logged)} commits up to the checkpoint, but the checkpoint has {int(state.commits)}; "
            "restore the file, or start a new run in another folder"
        )
    folder.rewind(sizes, made, int(state.commits))
    say(console, f"continuing from the checkpoint at {made} commits")
    return state, recorded
