"""Conclusions on a run: its summary, and the verdict of a replay."""

import json
from pathlib import Path
from typing import Any

from train.common.errors import RecordError
from train.common.seals import CHANGED, SIGNATURE, check_signature


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
        check_signature(found)  # An earlier version wrote none.
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        kind = "" if str(error) == CHANGED else f"{type(error).__name__}: "
        wrong = f"{kind}{ascii(str(error))[1:-1][:80]}"
        raise RecordError(f"{path} is not the summary of a run ({wrong}); delete it to go on") from error
    return {name: value for name, value in found.items() if name != SIGNATURE}


def read_replay(path: Path) -> tuple[str, int] | None:
    """Return the verdict of the last replay and the commits that it replayed; `None` if there was no replay.

    Raises:
      RecordError: if the file is not the result of a replay, or was changed.
    """
    try:
        found = json.loads(path.read_bytes())
        check_signature(found)  # An earlier version wrote none.
        return str(found["verdict"])[:40], int(found["pieces"][-1]["end"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise RecordError(f"{path} is not the result of a replay ({error!r}); move it away") from error
