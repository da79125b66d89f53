"""Conclusions on a run: its summary, and the verdict of a replay."""

import json
from pathlib import Path
from typing import Any

from train.common.errors import RecordError


def read_summary(path: Path) -> dict[str, Any]:
    """Return the final figures of a run.

    Raises:
      RecordError: if the file has no number of commits, or was changed.
    """
    try:
        found = json.loads(path.read_bytes())
        commits = found["commits"]
        if type(commits) is not int:
            raise TypeError(f"commits is {ascii(commits)[:60]}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        wrong = f"{type(error).__name__}: {ascii(str(error))[1:-1][:80]}"
        raise RecordError(f"{path} is not the summary of a run ({wrong}); delete it to go on") from error
    return found


def read_replay(path: Path) -> tuple[str, int] | None:
    """Return the verdict of the last replay and the commits that it replayed; `None` if there was no replay.

    Raises:
      RecordError: if the file is not the result of a replay, or was changed.
    """
    try:
        found = json.loads(path.read_bytes())
        return str(found["verdict"])[:40], int(found["pieces"][-1]["end"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise RecordError(f"{path} is not the result of a replay ({error!r}); move it away") from error
