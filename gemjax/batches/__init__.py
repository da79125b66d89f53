"""Data of a run: which batch each worker computes on, and where the data are."""

from gemjax.batches.base import Batches, select
from gemjax.batches.from_source import FromSource
from gemjax.batches.local import Minibatches
from gemjax.batches.on_host import OnHost
from gemjax.batches.rows import Epochs, Rows, Stream, as_batches
from gemjax.batches.shards import Shards

__all__ = [
    "Batches",
    "Epochs",
    "FromSource",
    "Minibatches",
    "OnHost",
    "Rows",
    "Shards",
    "Stream",
    "as_batches",
    "select",
]
