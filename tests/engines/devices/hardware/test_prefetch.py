"""Prefetched batches: reads that fail, and reads that never end."""

import contextlib
import threading
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import gemjax
from gemjax.batches.base import RowsError
from gemjax.engines.devices.hardware import prefetch
from gemjax.engines.devices.hardware.prefetch import Prefetcher, Selections


def test_closing_does_not_wait_for_a_read_that_never_ends():
    """Neither does the interpreter's end, because the thread is a daemon."""
    begun, lost = threading.Event(), threading.Event()

    def read(key):
        begun.set()
        lost.wait(60)

    others = set(threading.enumerate())
    prefetcher = Prefetcher(read, threads=1)
    prefetcher.begin([1, 2])
    assert begun.wait(60)
    readers = [thread for thread in threading.enumerate() if thread.name == "gemjax-reader-0" and thread not in others]
    assert len(readers) == 1
    assert readers[0].daemon
    prefetcher.close()
    lost.set()
    for thread in readers:
        thread.join(60)
        assert not thread.is_alive()
    assert not prefetcher.is_read(2)  # Its read had not begun.


def test_a_batch_wanted_by_two_threads_is_read_once():
    both, reads = threading.Barrier(2), []

    class Known(dict):
        def __contains__(self, key):
            known = super().__contains__(key)
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.2)  # For the other thread, which must not look yet.
            return known

    prefetcher = Prefetcher(reads.append, threads=1)
    prefetcher._known = Known()
    threads = [threading.Thread(target=prefetcher.take, args=(1,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    prefetcher.take(2)  # The thread reads in order.
    prefetcher.close()
    assert reads == [1, 2]


def test_rows_that_a_retry_would_meet_again_are_read_once():
    reads = []

    def read():
        reads.append(0)
        raise RowsError("rows differ")

    with pytest.raises(RowsError, match="rows differ"):
        Selections(gemjax.Computed(lambda worker, step: step), 1, retries=3).example(read=read)
    assert len(reads) == 1


def test_first_rows_that_take_long_are_warned_of(monkeypatch):
    """They are read before the run begins, where no deadline counts."""
    warned = threading.Event()

    class Slow:
        def __len__(self):
            return 8

        def __getitem__(self, row):
            assert warned.wait(60)
            return np.float32(row)

    def show(message, category, *where):
        assert issubclass(category, gemjax.RunWarning)
        assert "the first rows have not been read for 0.05 s; the run waits for its source of data" in str(message)
        warned.set()

    monkeypatch.setattr(prefetch, "PATIENCE", 0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        batches = gemjax.FromSource(Slow(), gemjax.Epochs(np.arange(8), batch_size=4))
        loss_fn = lambda params, batch: jnp.mean((params - batch) ** 2)
        result = gemjax.run_on_devices(gemjax.asgd(0.1, 2), loss_fn, jnp.float32(0.0), batches, 4, num_workers=2)
    assert len(result.trace) == 4
