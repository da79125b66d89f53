"""Prefetched batches: reads that fail, and reads that never end."""

import threading
import warnings

import jax.numpy as jnp
import numpy as np

import gemjax
from gemjax.engines.devices.hardware import prefetch
from gemjax.engines.devices.hardware.prefetch import Prefetcher


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
