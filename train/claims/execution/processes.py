"""Independent runs in processes with one XLA thread each, which on a CPU is faster than one run at a time."""

import contextlib
import functools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from queue import Empty
from typing import Any, Self

from train.claims.runs import PlannedRun, RunRecord
from train.common import interrupts
from train.common.errors import UsageError
from train.common.machine import cores, describe, precision
from train.task import cluster as pace

# A process computes with one thread. Other flags in XLA_FLAGS are kept.
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
_news: Any = None  # The queue for progress, in a process of the pool.


class Processes:
    """A pool of processes that make runs.

    Args:
      count: number of processes. Default: one per core, or a single one on an accelerator.

    Attributes:
      count: number of processes.
      hardware: their hardware, as returned by :func:`describe`.
    """

    def __init__(self, count: int | None = None):
        most = count or cores()
        context = multiprocessing.get_context("spawn")  # JAX has threads, which a fork would not copy.
        self._queue = context.Queue()
        with _one_thread():
            # Processes start when there is a run for them.
            self._pool = futures.ProcessPoolExecutor(most, context, initializer=_begin, initargs=(self._queue,))
            try:
                with _naming_lost_processes():
                    self.hardware: dict[str, Any] = self._pool.submit(describe).result()
            except BaseException as error:  # Such as a signal, while the first process starts.
                self.__exit__(type(error))
                raise
        self.count = count or (most if self.hardware["backend"] == "cpu" else 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # Runs in flight are lost and repeated next time.
            for process in list((self._pool._processes or {}).values()):
                process.kill()  # It ignores SIGTERM.
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._queue.close()

    def make(
        self, groups: Sequence[Sequence[PlannedRun]], machine: dict[str, Any], update: Callable[[str, int], None],
        *, together: bool = False,
    ) -> Iterator[tuple[PlannedRun, RunRecord]]:  # fmt: skip
        """Make groups of runs, and yield each run with its record, to which hardware, processes and date are added.

        The runs of a group are made one by one, or `together` by `record_together`. `update` is called with the name of a run
        and its gradients so far.

        Raises:
          UsageError: if a run cannot be made or a process was killed. Runs in flight are abandoned.
        """
        waiting, going = list(groups), {}
        periods = {run.name: pace.mean_period(run.config) for group in groups for run in group}
        while waiting or going:
            with _one_thread(), _naming_lost_processes():  # For processes that start now.
                while waiting and len(going) < self.count:
                    group = waiting.pop(0)
                    going[self._pool.submit(_make, group, machine, together)] = group
            done, _ = futures.wait(going, timeout=0.5, return_when=futures.FIRST_COMPLETED)
            with contextlib.suppress(Empty):
                while True:
                    name, commits = self._queue.get_nowait()
                    update(name, round(commits * periods[name]))
            # Records that have arrived are yielded before an error ends the iteration.
            for future in sorted(done, key=lambda future: future.exception() is not None):
                group, error = going.pop(future), future.exception()
                if error is not None and not isinstance(error, BrokenProcessPool):
                    raise UsageError(f"{group[0].name}: {error}") from error
                with _naming_lost_processes():
                    records = future.result()
                own = {"hardware": self.hardware, "processes": self.count, "date": time.strftime("%Y-%m-%d")}
                yield from ((run, record | own) for run, record in zip(group, records, strict=True))


@contextlib.contextmanager
def _naming_lost_processes() -> Iterator[None]:
    """Raise ``UsageError`` with the likely reason if a process was killed."""
    try:
        yield
    except BrokenProcessPool:
        raise UsageError(
            "a process that made runs was killed, perhaps because the memory of this machine was full; finished runs are kept: "
            "repeat the command to go on, with fewer --processes if memory is short"
        ) from None


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Limit processes that start in this context to one thread on a CPU."""
    before = {name: os.environ.get(name) for name in ("XLA_FLAGS", "NPROC")}
    os.environ["XLA_FLAGS"] = f"{before['XLA_FLAGS'] or ''} {ONE_THREAD}".strip()
    os.environ["NPROC"] = "1"  # The size of XLA's pool of threads.
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _begin(queue: Any) -> None:
    """Set up a new process of the pool."""
    global _news
    _news = queue
    for number in interrupts.SIGNALS:  # All processes receive them; the parent ends the others.
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent has been killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _make(group: Sequence[PlannedRun], machine: dict[str, Any], together: bool) -> list[RunRecord]:
    from train.claims.execution.batch import record_together  # Imported after the process is set up: they import JAX.
    from train.claims.execution.single import record

    tell = lambda name, done: _news.put((name, done))
    with precision(group[0].config.x64):
        if together:
            return record_together(group, machine, tell)
        return [record(run, machine, functools.partial(tell, run.name)) for run in group]
