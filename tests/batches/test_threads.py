"""Work in threads that may never return."""

import subprocess
import sys
import threading

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax
from gemjax.batches.threads import each
from gemjax.protocol.compat import enable_x64


def test_values_are_in_the_order_of_the_items():
    first = threading.Event()

    def value(number):
        if number == 0:
            assert first.wait(60)
        first.set()
        return 10 * number

    assert each(value, range(4), threads=2) == [0, 10, 20, 30]
    assert each(value, [], threads=2) == []


def test_the_first_item_that_raises_decides_the_exception_and_no_other_begins():
    begun = []

    def value(number):
        begun.append(number)
        raise KeyError(number)

    with pytest.raises(KeyError, match="0"):
        each(value, range(1000), threads=1)
    assert begun == [0]


def test_threads_have_the_settings_of_jax_of_the_caller():
    with enable_x64(True):
        assert each(lambda number: jnp.arange(1.0).dtype, range(3), threads=2) == [np.dtype("float64")] * 3


class Source:
    """Rows of which those from 20 on are read for ever after some reads; `released` ends that."""

    def __init__(self, reads):
        self.left, self.released, self.at_once, self.most = reads, threading.Event(), 0, 0
        self.lock, self.read = threading.Lock(), []

    def __len__(self):
        return 40

    def __getitem__(self, number):
        with self.lock:
            self.read.append(number)
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            if number >= 20:
                self.left -= 1
        if self.left < 0 and number >= 20:
            self.released.wait()
        with self.lock:
            self.at_once -= 1
        return np.float32(number)


def run(source, period, num_commits=40):
    batches = gemjax.FromSource(source, gemjax.Shards(np.arange(40), 4, 2, rows=[range(20), range(20, 40)]))
    loss_fn = lambda params, batch: jnp.mean((params - batch) ** 2)
    local = gemjax.LocalSteps(optax.sgd(0.01), period)
    policy = gemjax.Policy(deadline=1.0)
    tx = gemjax.downpour(num_workers=2)
    return gemjax.run_on_devices(tx, loss_fn, jnp.zeros(()), batches, num_commits, local=local, policy=policy)


def test_reads_of_one_worker_that_never_return_leave_room_for_those_of_the_other():
    """Its commits have more batches than there are threads."""
    source = Source(reads=165)
    try:
        result = run(source, period=20)
    finally:
        source.released.set()
    assert len(result.trace) == 40
    assert (result.trace.worker[-20:] == 0).all()


def test_batches_that_repeat_are_read_once():
    """The commits of the worker with period 1 are as long as those of the other."""
    source = Source(reads=10_000)
    batches = gemjax.FromSource(source, gemjax.Shards(np.arange(40), 4, 2, rows=[range(20), range(20, 40)]))
    loss_fn = lambda params, batch: jnp.mean((params - batch) ** 2)
    local = gemjax.LocalSteps(optax.sgd(0.01), (10, 1))
    gemjax.simulate(
        gemjax.downpour(num_workers=2), loss_fn, jnp.zeros(()), batches, gemjax.Trace([0] + [1] * 5), local=local
    )
    assert sum(number >= 20 for number in source.read) <= 5 * 4 + 4 * 4  # Some are read to learn their shapes.


HANGS = """
import _thread, threading
import jax.numpy as jnp, numpy as np
import gemjax

class Source:
    reads = 0
    def __len__(self):
        return 40
    def __getitem__(self, number):
        Source.reads += 1
        if Source.reads > 200:
            if Source.reads == 201:
                _thread.interrupt_main()
            threading.Event().wait()
        return np.float32(number)

try:
    batches, trace = gemjax.FromSource(Source(), batch_size=4), gemjax.arrivals.RoundRobin(2).trace(200)
    loss_fn = lambda params, batch: jnp.mean((params - batch) ** 2)
    gemjax.simulate(gemjax.asgd(0.01, 2), loss_fn, jnp.zeros(()), batches, trace, callback_every=20)
except KeyboardInterrupt as stop:
    print(len(stop.result.trace), "commits")
"""


@pytest.mark.slow
def test_a_read_that_never_returns_holds_up_neither_ctrl_c_nor_the_end_of_the_process():
    ended = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout) == (0, "40 commits\n")
    assert "threads are still busy 5 s after the end; not waiting any longer" in ended.stderr
