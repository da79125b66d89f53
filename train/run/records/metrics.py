"""The metrics of a run, one line per evaluation."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

METRICS = ("commits", "time", "test_loss", "test_accuracy")  # Required fields of a line.
FURTHER = ("train_loss", "gap", "rejected", "dropped")  # Its other fields.
INCREASING = ("commits", "time")  # Fields that never decrease.


def read_metrics(path: Path, size: int | None = None) -> dict[str, np.ndarray]:
    """Read metrics as columns; values that were not finite are NaN, and an incomplete last line is skipped.

    Args:
      path: the file; without it there are no columns.
      size: bytes to read; all if `None`.

    Raises:
      ValueError: if a line was not written by a run, or is not later than the one before; the message names file and line.
    """
    if not path.exists():
        return {}
    with open(path, "rb") as file:
        lines = file.read(-1 if size is None else size).split(b"\n")[:-1]
    rows: list[dict[str, float]] = []
    for number, line in enumerate(lines, start=1):
        rows.append(_metrics(line, f"{path}, line {number}", rows[-1] if rows else {}))
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([row.get(name, np.nan) for row in rows]) for name in names}


def _metrics(line: bytes, where: str, before: Mapping[str, float]) -> dict[str, float]:
    """Parse one line of metrics; `where` names file and line in errors, `before` is the line before."""
    try:
        row = json.loads(line)
        if not isinstance(row, dict) or any(isinstance(value, (str, list, dict)) for value in row.values()):
            raise ValueError("expected an object of numbers")
        if missing := [name for name in METRICS if name not in row]:
            raise ValueError(f"it has no {', '.join(missing)}")
        if unknown := row.keys() - {*METRICS, *FURTHER}:
            raise ValueError(f"it has an unknown field {ascii(min(unknown))[:60]}")
        values = {name: math.nan if value is None else value for name, value in row.items()}
        values = {name: value if abs(value) < 2**53 else float(value) for name, value in values.items()}  # Keeps ints.
        for name in INCREASING:
            value, earlier = values[name], before.get(name, 0)
            if not earlier <= value < math.inf or (name == "commits" and before and value == earlier):
                raise ValueError(f"{name} is {value} after {earlier}: lines are missing, repeated or out of order")
        return values
    except (ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{where}: not metrics of a run: {error}; the line is {line[:80]!r}") from error
