"""The metrics of a run, one line per evaluation."""

import json
from pathlib import Path

import numpy as np

METRICS = ("commits", "time", "test_loss", "test_accuracy")  # Required fields of a line.


def read_metrics(path: Path, size: int | None = None) -> dict[str, np.ndarray]:
    """Read metrics as columns; values that were not finite are NaN, and an incomplete last line is skipped.

    Args:
      path: the file; without it there are no columns.
      size: bytes to read; all if `None`.

    Raises:
      ValueError: if a line is not one of metrics; the message names file and line.
    """
    if not path.exists():
        return {}
    with open(path, "rb") as file:
        lines = file.read(-1 if size is None else size).split(b"\n")[:-1]
    rows: list[dict[str, float | None]] = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(dict.fromkeys(METRICS) | json.loads(line))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{path}, line {number}: not metrics of a run: {error}; the line is {line[:80]!r}"
            ) from error
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([np.nan if row.get(name) is None else row[name] for row in rows]) for name in names}
