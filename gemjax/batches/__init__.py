"""Data of a run: which batch each worker computes on, and where the data are."""

from gemjax.batches.base import Batches, is_shared, part, select, threads_that_read
from gemjax.batches.checks import check_kind, count_rows
from gemjax.batches.from_source import FromSource
from gemjax.batches.functions import BatchesWarning, Computed, warn_if_frozen
from gemjax.batches.local import LocalBatches, Minibatches
from gemjax.batches.on_host import OnHost
from gemjax.batches.rows import Epochs, Rows, Stream, as_batches, described, shuffled
from gemjax.batches.shards import Shards

__all__ = [
    "Batches",
    "BatchesWarning",
    "Computed",
    "Epochs",
    "FromSource",
    "LocalBatches",
    "Minibatches",
    "OnHost",
    "Rows",
    "Shards",
    "Stream",
    "as_batches",
    "check_kind",
    "count_rows",
    "described",
    "is_shared",
    "part",
    "select",
    "shuffled",
    "threads_that_read",
    "warn_if_frozen",
]
