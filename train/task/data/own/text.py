"""A text of one's own, as characters; any other file, as bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from train.common.errors import DataError
from train.task.data.dataset import Dataset, rows_of

LENGTH = 128  # Tokens per row.


def read(path: Path, test_share: float) -> Dataset:
    """Return the rows of a file; the test rows are the last ones, so that they are no neighbours of training rows.

    Tokens are the file's different characters in sorted order if it is UTF-8, otherwise its bytes.

    Raises:
      DataError: if the file is too short for a row of each part (a ValueError).
    """
    content = path.read_bytes()
    try:
        codes = np.frombuffer(content.decode("utf-8").encode("utf-32-le"), np.uint32)
        kind, (values, tokens) = "characters", np.unique(codes, return_inverse=True)
        count = len(values)
    except UnicodeDecodeError:
        kind, tokens, count = "bytes", np.frombuffer(content, np.uint8), 256
    if len(tokens) <= 2 * LENGTH:
        raise DataError(f"{path} has {len(tokens)} {kind}; training needs at least {2 * LENGTH + 1}")
    rows = rows_of(tokens.astype(np.uint8 if count <= 256 else np.uint16), LENGTH)
    first = len(rows) - min(max(1, round(test_share * len(rows))), len(rows) - 1)
    note = f" {kind}; the last rows are for testing (--test-share {test_share:g})"
    return Dataset(str(path), {"tokens": rows[:first]}, {"tokens": rows[first:]}, count, scale=1.0, note=note)
