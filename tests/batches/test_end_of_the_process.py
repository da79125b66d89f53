"""The end of the interpreter while gradients are computed."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import gemjax
from gemjax.batches import threads as ending

ENDS_EARLY = """
import jax, jax.numpy as jnp, gemjax
gemjax.cpu_devices(3)
matrix = jnp.ones((256, 256)) * 1e-3

def loss_fn(params, trips):
    x = jax.lax.fori_loop(0, trips, lambda i, x: jnp.tanh(x @ matrix), jnp.ones((256, 256)))
    return 0.5 * jnp.sum((params - 1.0) ** 2) + 0 * jax.lax.stop_gradient(x).sum()

batches = lambda worker, step: jnp.where((worker > 0) & (step > 0), 600, 2)
result = gemjax.run_on_devices(gemjax.asgd(0.01, num_workers=2), loss_fn, jnp.zeros(2), batches, 40, num_workers=2)
print(len(result.trace))
"""


ENDS_IN_A_GATE = """
import atexit, threading
atexit.register(lambda: print(*(thread.is_alive() for thread in inside)))  # The first one is called last.

import jax.numpy as jnp, gemjax
gemjax.cpu_devices(3)
inside, entered, left = [], threading.Event(), threading.Event()

def gate(worker, step):
    if worker == 0:
        inside.append(threading.current_thread())
        entered.set()
        left.wait(60)
    entered.wait(60)

loss_fn = lambda params, batch: 0.5 * jnp.sum((params - batch) ** 2)
gemjax.run_on_devices(gemjax.asgd(0.1, 2), loss_fn, jnp.zeros(2), lambda worker, step: 1.0, 10, num_workers=2, gate=gate)

@atexit.register
def leave_when_waited_for():
    join = threading.Thread.join
    threading.Thread.join = lambda *args: (left.set(), join(*args))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("program", "printed"), [(ENDS_EARLY, "40\n"), (ENDS_IN_A_GATE, "False\n")])
def test_a_program_ends_normally_though_a_worker_has_not_finished(program, printed):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


@pytest.fixture
def only(monkeypatch):
    """Let the end of the interpreter wait for threads of the test only."""
    monkeypatch.setattr(ending, "_all", type(ending._all)())
    return ending.start_thread


def test_the_end_waits_until_all_threads_have_ended(only, capsys, monkeypatch):
    waited_for, join = threading.Event(), threading.Thread.join
    monkeypatch.setattr(threading.Thread, "join", lambda *args: (waited_for.set(), join(*args)))
    threads = [only(waited_for.wait, 60, name=str(number)) for number in range(3)]
    ending._wait()
    assert not any(thread.is_alive() for thread in threads)
    assert capsys.readouterr().err == ""


def test_the_end_does_not_wait_forever(only, capsys):
    left = threading.Event()
    only(left.wait, 60, name="hanging", seconds=0.02)
    ending._wait()
    left.set()
    assert "still busy 0.02 s after the end" in capsys.readouterr().err


def test_the_end_waits_for_every_thread_of_the_library():
    root = Path(gemjax.__file__).parent
    own = {path.relative_to(root).as_posix() for path in root.rglob("*.py") if "threading.Thread(" in path.read_text()}
    assert own == {"batches/threads.py"}
