"""Prefetched batches: reads that fail, and reads that never end."""

import threading

import pytest

from gemjax.engines.devices.hardware.prefetch import Prefetcher


def test_a_failed_read_is_repeated():
    calls = []

    def read(key):
        calls.append(key)
        if len(calls) == 1:
            raise OSError("stale file handle")
        return key * 2

    prefetcher = Prefetcher(read, threads=1)
    with pytest.raises(OSError, match="stale"):
        prefetcher.take(4)
    assert prefetcher.take(4) == 8
    assert prefetcher.take(4) == 8
    assert calls == [4, 4]
    prefetcher.close()


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
    assert prefetcher.are_inside()
    prefetcher.close()
    lost.set()
    for thread in readers:
        thread.join(60)
        assert not thread.is_alive()
    assert not prefetcher.are_inside()
    assert not prefetcher.is_read(2)  # Its read had not begun.


def test_without_reads_there_are_no_threads():
    before = set(threading.enumerate())  # Threads of earlier tests may end meanwhile.
    Prefetcher(lambda key: key, threads=4)
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("gemjax-reader")]
