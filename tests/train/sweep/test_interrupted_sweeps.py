"""Interrupted sweeps, and folders that are refused."""

import dataclasses
import errno
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import small_sweeps
from small_sweeps import arguments, pretend, run

from train import cli
from train.sweep import sweep
from train.sweep.folder import SweepFolder
from train.sweep.grid import Grid
from train.task.data import load

data_dir, small = small_sweeps.data_dir, small_sweeps.small
undrawn, pretended = small_sweeps.undrawn, small_sweeps.pretended


@pytest.mark.usefixtures("undrawn", "pretended")
def test_sweeps_that_begin_in_the_same_second_have_folders_of_their_own(small, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda format: "now")
    argv = ["sweep", *arguments(dataclasses.replace(small, out=None))]

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "data")

    assert [cli.main(argv), cli.main([*argv, "--seeds", "4"])] == [0, 0]
    assert "folder runs/now-digits-sweep-2\n" in capsys.readouterr().out
    # Before and after the folder is created.
    for place, said in (("make_task", "Stopped\n"), ("interrupts.raise_again", "Stopped with 0 of 4 cells done\n")):
        with monkeypatch.context() as patched:
            patched.setattr(f"train.sweep.sweep.{place}", full)
            patched.setattr(SweepFolder, "begin", lambda self, grid: None)
            assert cli.main(argv) == 1
        assert capsys.readouterr().err.endswith(f"make room. {said}")
        assert sorted(os.listdir("runs")) == ["now-digits-sweep", "now-digits-sweep-2"]
    os.rename("runs", "earlier")
    os.makedirs("runs/now-digits-sweep")  # Of another sweep, which has written nothing yet.
    with monkeypatch.context() as patched:
        patched.setattr(sweep, "make_task", full)
        assert cli.main(argv) == 1
    assert os.listdir("runs") == ["now-digits-sweep"]
    os.removedirs("runs/now-digits-sweep")
    os.rename("earlier", "runs")
    assert cli.main(["sweep", "--resume", "runs/now-digits-sweep-2"]) == 0
    assert sorted(os.listdir("runs")) == ["now-digits-sweep", "now-digits-sweep-2"]


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_sweep_computes_only_what_is_missing(small, pretended, monkeypatch, capsys):
    folder, _, _ = run(dataclasses.replace(small, out=small.out + "-whole"))
    whole = folder.table.read_text()
    run_cell, argv = sweep.run_cell, ["sweep", *arguments(small)]

    def interrupted(grid, cell, *rest):
        if cell == small.cells[2]:
            raise KeyboardInterrupt
        return run_cell(grid, cell, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(sweep, "run_cell", interrupted)
        assert cli.main(argv) == 130
    said = capsys.readouterr().out
    assert "stopped by Ctrl-C with 2 of 4 cells done" in said
    assert f"--resume {small.out}" in "".join(said.split("\n"))
    folder = SweepFolder(small.out)
    assert folder.table.read_text() == "".join(whole.splitlines(keepends=True)[:9])
    pretended.clear()
    assert cli.main(["sweep", "--resume", small.out]) == 0
    assert pretended == small.cells[2:]
    assert folder.table.read_text() == whole
    assert (
        "3/4 cells done, 75 % of the gradients" in capsys.readouterr().out
    )  # Of the whole sweep, what was done before included.
    assert cli.main(["sweep", "--resume", small.out, "--out", small.out + "-other"]) == 2
    assert "stays in its folder" in capsys.readouterr().err
    pretended.clear()
    (folder.path / "cells" / "asgd-3.json").unlink()
    assert cli.main(argv) == 0  # The same command again goes on as well.
    assert pretended == [small.cells[1]]
    assert folder.table.read_text() == whole


@pytest.mark.usefixtures("undrawn", "pretended")
def test_a_sweep_on_a_full_disk_names_the_command_that_resumes_it(small, monkeypatch, capsys):
    save = SweepFolder.save

    def full(self, job, result):
        if job == small.cells[2]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.file(job)))
        save(self, job, result)

    with monkeypatch.context() as patched:
        patched.setattr(SweepFolder, "save", full)
        assert cli.main(["sweep", *arguments(small)]) == 1
    assert re.fullmatch(
        rf"train: \S+gem-2\.json could not be written: No space left on device \(.* are free\); make room\. Stopped with 2 of "
        rf"4 cells done; resume with: python -m train sweep --resume {small.out}\n",
        capsys.readouterr().err,
    )
    assert cli.main(["sweep", "--resume", small.out]) == 0


BLOCKED = """
import sys
from train import cli
from train.sweep import sweep
run_cell = sweep.run_cell

def run_or_wait(grid, cell, *rest):
    if cell == grid.cells[2]:
        sys.stdin.read()
    return run_cell(grid, cell, *rest)

sweep.run_cell = run_or_wait
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_killed_sweep_goes_on(data_dir, tmp_path):
    """It is killed in its second cell, or before its third one, for which it waits."""
    grid = Grid(
        methods=("asgd",), workers=(2, 3, 4), learning_rates=(0.1,), seeds=(0,), gradients=20, data_dir=data_dir
    )
    folders = [SweepFolder(tmp_path / name) for name in ("killed", "whole")]
    command = [[sys.executable, "-m", "train", "sweep", *arguments(grid), "--out", str(f.path)] for f in folders]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", BLOCKED, *command[0][3:]],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    ) as process:  # fmt: skip
        for line in process.stdout:
            if line.startswith("1/3 cells done"):
                process.send_signal(signal.SIGKILL)
                break
    assert folders[0].load(grid.cells[0]) is not None
    assert folders[0].load(grid.cells[2]) is None
    subprocess.run([*command[0][:4], "--resume", str(folders[0].path)], check=True, capture_output=True)
    subprocess.run(command[1], check=True, capture_output=True)
    assert folders[0].table.read_text() == folders[1].table.read_text()
    assert folders[0].picture.exists()


def test_a_folder_of_another_sweep_is_refused_with_what_differs(small, capsys):
    folder = SweepFolder.of(small)
    folder.begin(small)
    other = dataclasses.replace(small, seeds=(0,), batch_size=16)
    assert cli.main(["sweep", *arguments(other)]) == 2
    said = capsys.readouterr().err
    assert f"{small.out} holds another sweep, of --batch-size 32 (not 16), --seeds 3 5 (not 0)" in said
    assert cli.main(["sweep", "--resume", small.out, "--workers", "7"]) == 2
    assert "--workers 2 3 (not 7)" in capsys.readouterr().err
    assert folder.load(small.cells[0]) is None


@pytest.mark.usefixtures("undrawn", "pretended")
def test_a_sweep_goes_on_with_its_own_data_only(small, capsys, monkeypatch):
    """Its table would compare methods on two data sets."""
    assert cli.main(["sweep", *arguments(small)]) == 0
    folder = SweepFolder(small.out)
    folder.file(small.cells[1]).unlink()
    with monkeypatch.context() as patched:
        patched.setattr(load, "checksum", lambda dataset: "other")
        assert cli.main(["sweep", "--resume", small.out]) == 2
    assert "asgd-2.json cannot be used: it was computed on other data" in capsys.readouterr().err
    assert not folder.file(small.cells[1]).exists()
    assert cli.main(["sweep", "--resume", small.out]) == 0


@pytest.mark.usefixtures("undrawn")
def test_one_process_at_a_time_computes_a_sweep(small, monkeypatch, capsys):
    """Two computed each cell twice, and each could remove the file that the other was about to name."""

    def and_again(grid, cell, *rest):
        assert cli.main(["sweep", "--resume", grid.out]) == 2
        return pretend(grid, cell, *rest)

    monkeypatch.setattr(sweep, "run_cell", and_again)
    run(small)
    assert capsys.readouterr().err.count(f"train: {small.out} is in use by another process, such as a run") == 4
