"""Configuration, data and settings that the checkpoints of a run hold, and their check when it is resumed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train.common.errors import RecordError
from train.common.machine import generator, other_generator
from train.config.config import Config

SETTINGS = ("epochs", "learning_rate")  # Fields that change commits and may change when a run is resumed.


class Kept:
    """Configuration, data and settings of a run, as its checkpoints hold them.

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
        self._config: dict[str, Any] = {}
        self._data: str | None = None

    def note(self, config: Config, commits: int, saved: dict[str, Any] | None = None, data: str | None = None) -> None:
        """Note from which commit on a run has its learning rate and epochs, and check the rest.

        Args:
          config: configuration of the run.
          commits: commits that were applied before.
          saved: metadata of the checkpoint that the run continues from, with earlier settings; checkpoints of earlier
            versions have none.
          data: checksum of its data.

        Raises:
          RecordError: if the configuration or the data are not those that the checkpoint was written with.
        """
        self.check_config(config, saved)
        self._config, self._data = _as_json(config), data
        self.unevaluated = bool((saved or {}).get("unevaluated"))
        remedy = "give the folder of those data as --data-dir, or start a new run in another folder"
        self.check_data(config, saved, data, remedy)
        self.check_generator(saved)
        now = {name: getattr(config, name) for name in SETTINGS}
        self.settings = settings_of(saved or {})
        if not self.settings or self.settings[-1][1] != now:
            self.settings = [*(past for past in self.settings if past[0] < commits), (commits, now)]

    def check_config(self, config: Config, saved: dict[str, Any] | None, remedy: str = "write it back") -> None:
        """Check that a configuration is that with which a checkpoint was written; `remedy` ends the message.

        Raises:
          RecordError: if not; checkpoints of earlier versions have none.
        """
        before = (saved or {}).get("kept")
        for name, value in _as_json(config).items():
            if isinstance(before, dict) and before.get(name, value) != value:
                raise RecordError(
                    f"{self.folder / 'config.json'} was changed: {name} is {value!r}, but was {ascii(before[name])[:60]} at "
                    f"the checkpoint; {remedy}"
                )

    def check_data(self, config: Config, saved: dict[str, Any] | None, data: str | None, remedy: str) -> None:
        """Check that the data are those of a checkpoint; `remedy` ends the message.

        Raises:
          RecordError: if not; checkpoints of earlier versions have no checksum of their data.
        """
        before = (saved or {}).get("data")
        if None not in (before, data) and before != data:
            raise RecordError(
                f"the data of {config.dataset} are not those that {self.folder} was begun with (their checksum is {data}, but "
                f"was {ascii(before)[1:-1][:60]}); {remedy}"
            )

    def check_generator(self, saved: dict[str, Any] | None) -> None:
        """Check that seeds draw the numbers that they drew when a checkpoint was written.

        Raises:
          RecordError: if not; checkpoints of earlier versions do not say.
        """
        if other := other_generator((saved or {}).get("generator")):
            raise RecordError(f"the random numbers of {self.folder} were drawn with {other}; set it as it was")

    def metadata(self) -> dict[str, Any]:
        """Return what a checkpoint holds of it."""
        found = {"settings": self.settings, "kept": self._config, "data": self._data, "generator": generator()}
        return found | ({"unevaluated": True} if self.unevaluated else {})


def settings_of(found: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Return the settings in the metadata of a checkpoint, each with the commits before it; those of older versions have none.

    Raises:
      RecordError: if they are damaged.
    """
    settings = found.get("settings", [])
    try:
        return [
            (int(commits), {str(name): float(value) for name, value in fields.items()}) for commits, fields in settings
        ]
    except (TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"the settings in the checkpoint are damaged: {ascii(settings)[:60]}") from error


def _as_json(config: Config) -> dict[str, Any]:
    """Return what a resumed run keeps of a configuration, as JSON has it."""
    return json.loads(json.dumps(config.kept()))
