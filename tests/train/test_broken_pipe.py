"""Output to a reader that has ended, as in `python -m train --help | head -1`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from train.run.folder import RunFolder

ROOT = Path(__file__).parents[2]
ENDED = b"train: the reader of the output has ended; the command goes on without output\n"


@pytest.fixture
def closed():
    """Return the end of a pipe that nothing reads."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.slow
@pytest.mark.parametrize("argv", [["--help"], pytest.param(["sweep", "--help"], marks=pytest.mark.nightly)])
def test_a_broken_pipe_ends_the_help_silently(argv, closed):
    command = [sys.executable, "-m", "train", *argv]
    ended = subprocess.run(command, cwd=ROOT, stdout=closed, stderr=subprocess.PIPE, timeout=120)
    assert ended.stderr == b""
    assert ended.returncode == 141


SAYS = """
import sys
from train.common.console import RunConsole, say
console = RunConsole()
for _ in range(3):
    say(console, "text")
sys.exit(7)
"""


@pytest.mark.parametrize("both", [False, True])
def test_a_command_goes_on_without_a_reader(both, closed):
    """Also if stderr leads to the same reader, as in `2>&1 | head`."""
    command = [sys.executable, "-c", SAYS]
    ended = subprocess.run(command, cwd=ROOT, stdout=closed, stderr=closed if both else subprocess.PIPE, timeout=120)
    assert ended.stderr == (None if both else ENDED)
    assert ended.returncode == 7


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a device that is always full")
def test_a_command_goes_on_if_the_disk_of_its_output_is_full():
    with open("/dev/full", "wb") as full:
        ended = subprocess.run([sys.executable, "-c", SAYS], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, timeout=120)
    error = b"train: the output cannot be written (No space left on device); the command goes on without output\n"
    assert ended.stderr == error
    assert ended.returncode == 7


WAITS = """
import sys
from train import cli
from train.run.callback import RunCallback
poll = RunCallback.poll

def wait_after(self, progress):
    poll(self, progress)
    sys.stdin.read()

RunCallback.poll = wait_after
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_run_goes_on_to_its_end_without_a_reader(tmp_path):
    """After its first line of progress it waits until the reader has ended."""
    flags = ["--engine", "simulate", "--model", "mlp", "--workers", "3", "--epochs", "20"]
    with subprocess.Popen(
        [sys.executable, "-c", WAITS, *flags, "--out", str(tmp_path / "run")],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert any(b"/300 commits" in line for line in iter(process.stdout.readline, b""))
        process.stdout.close()
        process.stdin.close()
        # Matplotlib may say that it makes its list of fonts.
        lines = [line for line in process.stderr if b"atplotlib" not in line]
        assert lines == [ENDED]
        assert process.wait(120) == 0
    folder = RunFolder(tmp_path / "run")
    assert folder.finished(300)
    with folder.checkpoints() as checkpoints:
        assert checkpoints.latest == 300
