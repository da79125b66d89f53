"""Signal handlers that raise, read or write while a checkpoint is written or read."""

import errno
import os
import signal
import sys

import pytest
from checkpoints.states import like
from orbax.checkpoint import v1 as ocp

import gemjax
from gemjax import arrivals
from gemjax.checkpoints import CheckpointWriteError, files, lock, turns

FOUR = arrivals.Gamma(3).trace(4)


class Interrupted(BaseException):
    pass


@pytest.fixture
def interrupt(monkeypatch):
    """Return a function that lets a handler of SIGALRM act inside of the next call of one of Orbax's functions.

    It returns a list, which has the name of the function when that call has ended.
    """

    def inside(name, act):
        call, ended = getattr(ocp, name), []

        def interrupted(*args, **options):
            monkeypatch.setattr(ocp, name, call)
            signal.raise_signal(signal.SIGALRM)
            made = call(*args, **options)
            ended.append(name)
            return made

        signal.signal(signal.SIGALRM, lambda *_: act())
        monkeypatch.setattr(ocp, name, interrupted)
        return ended

    before = signal.getsignal(signal.SIGALRM)
    yield inside
    signal.signal(signal.SIGALRM, before)


def fail():
    raise Interrupted


def test_an_interrupt_while_the_folder_is_locked_leaves_no_lock(tmp_path, monkeypatch):
    same = os.path.samestat

    def interrupted(*stats):
        monkeypatch.setattr(os.path, "samestat", same)
        raise KeyboardInterrupt

    checkpoints = gemjax.Checkpoints(tmp_path)
    monkeypatch.setattr(lock, "PATIENCE", 0.0)
    monkeypatch.setattr(os.path, "samestat", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(like(), FOUR)
    checkpoints.save(like(), FOUR)
    assert checkpoints.latest == 4


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_an_interrupt_at_any_line_of_a_save_leaves_no_lock(tmp_path, monkeypatch, fails):
    monkeypatch.setattr(lock, "PATIENCE", 0.0)
    release = next(code for code in lock.hold.__code__.co_consts if getattr(code, "co_name", "") == "release")
    functions = {
        gemjax.Checkpoints.save.__code__,
        lock.hold.__code__,
        release,
        lock._try.__code__,
        lock.alone_in.__wrapped__.__code__,
    }
    checkpoints, state, begin = gemjax.Checkpoints(tmp_path, keep=2), like(), ocp.save_checkpointables_async

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def save(number):
        """Return True if a line of this number was executed, where Ctrl-C was pressed."""
        left = number

        def on_line(frame, event, _):
            nonlocal left
            if event == "line":
                left -= 1
                if left == 0:
                    signal.raise_signal(signal.SIGINT)
            return on_line

        monkeypatch.setattr(ocp, "save_checkpointables_async", full if fails else begin)
        sys.settrace(lambda frame, *_: on_line if frame.f_code in functions else None)
        try:
            checkpoints.save(state, FOUR)
        except (KeyboardInterrupt, CheckpointWriteError):
            pass
        finally:
            sys.settrace(None)
            monkeypatch.setattr(ocp, "save_checkpointables_async", begin)
        return left <= 0

    number = 1
    while save(number):
        checkpoints.save(state, FOUR)
        number += 1
    assert number > 30


def test_writes_add_no_hook_after_the_first(tmp_path):
    """Each holds back signals with a hook for ignored exceptions, below which another one stays from the first write on."""
    checkpoints = gemjax.Checkpoints(tmp_path)
    checkpoints.save(like(), FOUR)
    hook = sys.unraisablehook
    checkpoints.save(like(), FOUR)
    gemjax.simulate(
        gemjax.asgd(0.1, num_workers=3), lambda params, batch: params**2, 1.0, lambda worker, step: step, FOUR,
        callback=lambda progress: gemjax.Checkpoints(tmp_path / "other").save(progress.state(), progress.trace()),
    )  # fmt: skip
    assert sys.unraisablehook is hook


@pytest.mark.parametrize("wait", [True, False])
def test_a_write_that_a_handler_interrupts_is_finished(tmp_path, interrupt, wait):
    """Orbax would leave threads for which the end of the process waits without end."""
    checkpoints = gemjax.Checkpoints(tmp_path)
    ended = interrupt("save_checkpointables_async", fail)
    with pytest.raises(Interrupted):
        checkpoints.save(like(), FOUR, {"note": 1}, wait=wait)
    assert ended
    assert checkpoints.commits == [4]
    assert checkpoints.load(like())[2] == {"note": 1}


@pytest.mark.parametrize("name", ["metadata", "load_checkpointables"])
def test_a_read_that_a_handler_interrupts_is_finished(tmp_path, interrupt, name):
    """Otherwise the next one could find nothing in the checkpoint."""
    checkpoints = gemjax.Checkpoints(tmp_path)
    checkpoints.save(like(), FOUR, {"note": 1})
    ended = interrupt(name, fail)
    with pytest.raises(Interrupted):
        checkpoints.load(like())
    assert ended
    assert checkpoints.load(like())[2] == {"note": 1}


def test_a_second_exception_is_raised_at_once_and_releases_the_folder(tmp_path, interrupt):
    def fail_twice():
        signal.raise_signal(signal.SIGUSR1)
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, lambda *_: fail())
    try:
        ended = interrupt("save_checkpointables_async", fail_twice)
        checkpoints = gemjax.Checkpoints(tmp_path)
        with pytest.raises(Interrupted):
            checkpoints.save(like(), FOUR)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not ended
    checkpoints.save(like(), FOUR)
    assert checkpoints.commits == [4]


def test_a_handler_may_read_and_write_during_a_read_or_write(tmp_path, interrupt):
    checkpoints, copies = gemjax.Checkpoints(tmp_path / "a"), gemjax.Checkpoints(tmp_path / "b")
    checkpoints.save(like(), arrivals.Gamma(3).trace(3))
    copy = lambda: copies.save(like(), checkpoints.load(like())[1])
    interrupt("save_checkpointables_async", copy)
    checkpoints.save(like(), FOUR)
    interrupt("load_checkpointables", copy)
    assert checkpoints.load(like())[1] == FOUR
    assert copies.commits == [3, 4]


def test_a_handler_has_the_turn_of_its_thread_and_a_write_waits_for_one_in_the_background(monkeypatch):
    with turns.reading(), turns.reading():
        turns.Write().begin().end()
    write = turns.Write().begin()
    other = turns.Write().begin()
    with turns.reading():
        pass
    other.end()
    other.end()  # Without an effect.
    write.in_background()
    waited = []
    monkeypatch.setattr(turns._changed, "wait_for", lambda free, _: waited.append(free()) or write.end() or free())
    turns.Write().begin().end()
    with turns.reading():
        pass
    assert waited == [False, True]
    turns.Write().begin().in_background()
    monkeypatch.setattr(turns._changed, "wait_for", lambda free, _: free())
    with pytest.raises(BlockingIOError, match="another thread of this process has read or written for 300 s"):
        turns.Write().begin()
    turns._writing.clear()


def test_a_signal_handler_that_saves_during_a_save_is_refused_at_once(tmp_path, monkeypatch):
    """It would wait for itself."""
    clean, told = files.clean, []

    def interrupted(folder):
        with pytest.raises(
            CheckpointWriteError, match="this thread is saving there already; let the signal handler set"
        ):
            gemjax.Checkpoints(folder).save(like(), arrivals.Gamma(3).trace(6))
        told.append(True)
        clean(folder)

    monkeypatch.setattr(files, "clean", interrupted)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
    assert told == [True]
    assert os.listdir(tmp_path) == ["5"]
