"""Batches that are read ahead: what cannot be read, and what never ends."""

import threading

import pytest

from gemjax.engines.devices.hardware.prefetch import ReadAhead


def test_what_could_not_be_read_is_read_anew():
    calls = []

    def read(key):
        calls.append(key)
        if len(calls) == 1:
            raise OSError("stale file handle")
        return key * 2

    ahead = ReadAhead(read, threads=1)
    with pytest.raises(OSError, match="stale"):
        ahead.take(4)
    assert ahead.take(4) == 8
    assert ahead.take(4) == 8
    assert calls == [4, 4]
    ahead.close()


def test_closing_does_not_wait_for_a_read_that_never_ends():
    """Nor does the interpreter's end, for it is in a daemon thread."""
    begun, lost = threading.Event(), threading.Event()

    def read(key):
        begun.set()
        lost.wait(60)

    ahead = ReadAhead(read, threads=1)
    ahead.begin([1, 2])
    assert begun.wait(60)
    readers = [thread for thread in threading.enumerate() if thread.name == "gemjax-reader-0"]
    assert readers
    assert all(thread.daemon for thread in readers)
    assert ahead.are_inside()
    ahead.close()
    lost.set()
    for thread in readers:
        thread.join(60)
        assert not thread.is_alive()
    assert not ahead.are_inside()
    assert not ahead.is_there(2)  # It was still to be read.


def test_who_reads_nothing_has_no_threads():
    before = threading.active_count()
    ReadAhead(lambda key: key, threads=4)
    assert threading.active_count() == before
