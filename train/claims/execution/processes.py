"""Independent runs side by side, each in a process with one thread of XLA's: on a CPU faster than one after the other."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from queue import Empty
from typing import Any, Self

from train.claims.runs import Record, Run
from train.common import interrupts
from train.common.machine import cores, describe

# A process computes with one thread; what XLA_FLAGS holds besides stays.
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
_news: Any = None  # In a process of the pool: where its progress goes.

Found = tuple[Run, Record | None, BaseException | None]


class Processes:
    """Processes that make runs.

    Args:
      count: how many at a time; `None`: one for each core, or a single one where there is an accelerator.

    Attributes:
      count: how many there are.
      hardware: what they compute on, as :func:`describe` says it.
    """

    def __init__(self, count: int | None = None):
        cores = count or self.usual()
        context = multiprocessing.get_context("spawn")  # JAX has threads, which a fork would not copy.
        self._queue = context.Queue()
        with _one_thread():
            # Processes begin when a run is there for them.
            self._pool = futures.ProcessPoolExecutor(cores, context, initializer=_begin, initargs=(self._queue,))
            self.hardware: dict[str, Any] = self._pool.submit(describe).result()
        self.count = count or (cores if self.hardware["backend"] == "cpu" else 1)

    @staticmethod
    def usual() -> int:
        """How many there are on a CPU: as many as cores that this process may use."""
        return cores()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # What they are at is lost, and made again next time.
            for process in list((self._pool._processes or {}).values()):
                process.kill()  # It ignores SIGTERM.
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._queue.close()

    def make(
        self, groups: Sequence[Sequence[Run]], machine: dict[str, Any], progress: Callable[[str, int], None]
    ) -> Iterator[Found]:
        """Makes runs, each group as one program, and yields each run with its record, or with what its group raised.

        `progress` is called with a run's name and its commits so far.
        """
        waiting, going = list(groups), {}
        while waiting or going:
            with _one_thread():  # For processes that begin now.
                while waiting and len(going) < self.count:
                    group = waiting.pop(0)
                    going[self._pool.submit(_make, group, machine)] = group
            done, _ = futures.wait(going, timeout=0.5, return_when=futures.FIRST_COMPLETED)
            with contextlib.suppress(Empty):
                while True:
                    progress(*self._queue.get_nowait())
            # What is there is kept before an error ends all.
            for future in sorted(done, key=lambda future: future.exception() is not None):
                group, error = going.pop(future), future.exception()
                records = [None] * len(group) if error is not None else future.result()
                yield from ((run, record, error) for run, record in zip(group, records, strict=True))


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Processes that begin in here compute with one thread on a CPU."""
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
    """In a new process of the pool."""
    global _news
    _news = queue
    for number in interrupts.SIGNALS:  # They go to all processes; the first one ends the others.
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends this process when the first one has been killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _make(group: Sequence[Run], machine: dict[str, Any]) -> list[Record]:
    from train.claims.execution.batch import record_together  # Not before the process has been set up: it imports JAX.

    return record_together(group, machine, lambda name, done: _news.put((name, done)))
