"""The end of the interpreter while gradients are computed."""

import subprocess
import sys

import pytest

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


@pytest.mark.slow
def test_a_program_ends_normally_though_a_worker_still_computes():
    done = subprocess.run([sys.executable, "-c", ENDS_EARLY], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "40\n"), done.stderr


class Inside:
    """Threads that are in compiled code for the first ``looks`` queries."""

    def __init__(self, looks):
        self.looks = looks

    def are_inside(self):
        self.looks -= 1
        return self.looks >= 0


@pytest.fixture
def only(monkeypatch):
    """Let the end of the interpreter wait for threads of the test only."""
    monkeypatch.setattr(ending, "_all", type(ending._all)())
    return ending.wait_for


def test_the_end_waits_until_no_thread_is_in_compiled_code(only, capsys):
    threads = Inside(looks=3)
    only(threads)
    ending._wait()
    assert threads.looks == -1
    assert capsys.readouterr().err == ""


def test_the_end_does_not_wait_forever(only, capsys):
    threads = Inside(looks=10**9)
    only(threads, seconds=0.02)
    ending._wait()
    assert "still busy 0.02 s after the end" in capsys.readouterr().err
