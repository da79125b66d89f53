"""Data and settings of a run, and the check that they are those of its newest checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train.common.errors import RecordError
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
        """Note the learning rate and epochs of a run, which begins or goes on, and check its data and random numbers.

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
