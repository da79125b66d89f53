"""Batches for the workers of a cluster: small data are sent to them once, and large data are read on each host."""

import os
import socket
from pathlib import Path
from typing import Any

import jax

import gemjax
from train.common.errors import DataError
from train.task.data import load as data

LARGEST_SENT = 64 << 20  # Bytes.


def epochs(
    dataset: data.Dataset,
    batch_size: int,
    seed: int,
    data_dir: str | None = None,
    manual_dir: str | None = None,
    **files: Any,
) -> gemjax.Epochs:
    """Return all training rows in epochs, for workers in other processes and on other hosts.

    Args:
      dataset: the data; up to 64 MiB are sent with the batches, larger ones are read from the files of each host.
      batch_size: rows per batch.
      seed: decides the orders.
      data_dir: folder of the prepared data, as for `load`; the same one on every host.
      manual_dir: folder of the original files, as for `load`, from which a host without prepared data prepares them.
      files: how the data were loaded besides, as for `load`.
    """
    if sum(leaf.nbytes for leaf in jax.tree.leaves(dataset.train)) <= LARGEST_SENT:
        return gemjax.Epochs(dataset.train, batch_size, seed)
    made = _Read(dataset.train, batch_size, seed)
    made.name = dataset.name
    made.files = {"data_dir": _absolute(data_dir), "manual_dir": _absolute(manual_dir)} | files
    return made


class _Read(gemjax.Epochs):
    """Epochs that are sent to another process without their data."""

    name: str
    files: dict[str, Any]

    def __reduce__(self):
        return _read, (self.name, _kinds(self.data), self.batch_size, self.seed, self.files)


def _kinds(rows: Any) -> dict[str, str]:
    """Return type and shape of each array of the rows, as `uint8[60000, 28, 28, 1]`."""
    return {name: f"{column.dtype}{list(column.shape)}" for name, column in rows.items()}


def _read(name: str, kinds: dict[str, str], batch_size: int, seed: int, files: dict[str, Any]) -> gemjax.Epochs:
    """Return the epochs of the data that this host has.

    Raises:
      DataError: if it has none, or other ones; with the host and the remedy.
    """
    remedy = (
        f"prepare {name} in the same --data-dir ({files['data_dir'] or 'by default that of TFDS'}) on every host of the "
        "cluster, or share that folder"
    )
    try:
        rows = data.load(name, **files).train
    except (OSError, ValueError) as error:
        raise DataError(f"{socket.gethostname()} cannot read {name}: {str(error).rstrip('.')}; {remedy}") from error
    if (found := _kinds(rows)) != kinds:
        raise DataError(f"{socket.gethostname()} has {name} as {found}, but the driver has {kinds}; {remedy}")
    return gemjax.Epochs(rows, batch_size, seed)


def _absolute(folder: str | None) -> str | None:
    """Return an absolute path: a worker has another working folder."""
    return None if folder is None else os.fspath(Path(folder).expanduser().absolute())
