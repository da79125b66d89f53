"""The persistent compilation cache: its folder, its flag, and failures that do not stop a run."""

import os
import subprocess
import sys

import pytest

from train import cli
from train.common import compilation

PROGRAM = """
import sys
from train.common import compilation
folder = compilation.use(sys.argv[1])
import jax, jax.monitoring
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("/cache_hits") else None)
jax.jit(lambda x: jax.lax.fori_loop(0, 9, lambda i, y: y @ y + i, x))(jax.numpy.ones((8, 8))).block_until_ready()
print(folder, len(hits))
"""


@pytest.fixture
def environment(monkeypatch):
    """Return an environment without settings, and restore it afterwards."""
    for name in [*(name.upper() for name in compilation.SETTINGS), "JAX_ENABLE_COMPILATION_CACHE", "XDG_CACHE_HOME"]:
        monkeypatch.setenv(name, "")  # So that it is restored.
        monkeypatch.delenv(name)
    monkeypatch.setattr(compilation, "_configure", lambda settings: None)
    return monkeypatch


def _starts(folder) -> list[str]:
    environment = os.environ | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    program = PROGRAM.replace(
        "folder =", "compilation.SETTINGS['jax_persistent_cache_min_compile_time_secs'] = '0'; folder ="
    )
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(folder)],
        env=environment, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip


@pytest.mark.slow
def test_the_second_start_compiles_nothing_that_the_first_one_has(tmp_path):
    first, second = _starts(tmp_path / "cache"), _starts(tmp_path / "cache")
    assert first[0] == second[0] == str(tmp_path / "cache")
    assert (int(first[1]), int(second[1]) > 0) == (0, True)


def test_it_lives_in_the_users_cache_folder(environment, tmp_path):
    environment.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compilation.use() == tmp_path / "gemjax" / "compilation"
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "gemjax" / "compilation")


def test_the_folder_that_jax_was_given_is_left_alone(environment, tmp_path):
    environment.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "own"))
    assert compilation.use() == tmp_path / "own"
    assert compilation.use(tmp_path / "other") == tmp_path / "other"


def test_an_empty_setting_of_jax_is_a_choice_too(environment):
    environment.setenv("JAX_COMPILATION_CACHE_DIR", "")
    assert compilation.use() is None


def test_it_can_be_switched_off(environment):
    assert compilation.use("off") is None
    assert os.environ["JAX_ENABLE_COMPILATION_CACHE"] == "false"


def test_a_folder_that_cannot_be_made_is_done_without(environment, tmp_path):
    (tmp_path / "file").write_text("")
    assert compilation.use(tmp_path / "file" / "cache") is None
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_the_oldest_entries_go_when_it_is_full(environment, tmp_path):
    first, second, third = (f"jit_step-{number:064x}-cache" for number in range(3))
    for index, name in enumerate(("thesis.tex", "my-data-cache", first, second, third)):
        (tmp_path / name).write_bytes(bytes(40))
        os.utime(tmp_path / name, (index, index))
    environment.setattr(compilation, "MAX_BYTES", 90)
    compilation.use(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [second, third, "my-data-cache", "thesis.tex"]


def test_empty_entries_go(environment, tmp_path):
    empty, whole = (f"jit_step-{number:064x}-cache" for number in range(2))
    (tmp_path / empty).touch()
    (tmp_path / whole).write_bytes(bytes(40))
    (tmp_path / "my-data-cache").touch()
    compilation.use(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [whole, "my-data-cache"]


@pytest.mark.slow
def test_entries_of_jax_are_known_by_name(environment, tmp_path):
    _starts(tmp_path)
    assert list(tmp_path.glob("*-cache"))
    environment.setattr(compilation, "MAX_BYTES", 0)
    compilation.use(tmp_path)
    assert not list(tmp_path.glob("*-cache"))


@pytest.mark.parametrize("argv", [["--compilation-cache"], ["--compilation-cache", "--seed", "1"]])
def test_a_flag_without_a_folder_is_answered_in_one_line(argv, capsys):
    assert cli.main(argv) == 2
    assert capsys.readouterr().err == "train: --compilation-cache needs a folder, or off\n"
