"""Training and test rows of data without a test part."""

from __future__ import annotations

import numpy as np

from train.task.data.dataset import Columns


def split(columns: Columns, share: float) -> tuple[Columns, Columns, str]:
    """Return training rows, test rows and a note on them; which rows are for testing depends on their number alone.

    Args:
      columns: all rows, with one leading axis.
      share: share of them, in (0, 1), that are for testing; at least one row.

    >>> train, test, note = split({"label": np.arange(10)}, 0.2)
    >>> len(train["label"]), len({*train["label"], *test["label"]}), note
    (8, 10, '; test rows drawn at random (--test-share 0.2)')
    """
    count = len(next(iter(columns.values())))
    is_test = np.zeros(count, bool)
    is_test[np.random.default_rng(0).permutation(count)[: max(1, round(share * count))]] = True
    parts = [{name: column[rows] for name, column in columns.items()} for rows in (~is_test, is_test)]
    return parts[0], parts[1], f"; test rows drawn at random (--test-share {share:g})"
