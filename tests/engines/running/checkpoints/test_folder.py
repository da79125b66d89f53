"""Folders of checkpoints: names, numbers kept, other writers, and readers beside them."""

import errno
import gc
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import types

import jax.numpy as jnp
import numpy as np
import pytest
from engines.running.checkpoints.states import arrived, like, saved_in
from orbax.checkpoint import v1 as ocp

import gemjax
from gemjax import arrivals
from gemjax.engines.running.checkpoints import CheckpointError, CheckpointWriteError, folder
from gemjax.telemetry import locks


def test_only_the_newest_are_kept(tmp_path):
    with gemjax.Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.latest is None
        for commits in (0, 3, 9):
            checkpoints.save(like(), arrivals.Gamma(3).trace(commits))
        assert checkpoints.latest == 9
    assert saved_in(tmp_path) == ["3", "9"]


def test_all_are_kept_and_an_earlier_one_is_loaded(tmp_path):
    with gemjax.Checkpoints(tmp_path, keep=None) as checkpoints:
        for commits in (0, 3, 9):
            checkpoints.save(like(), arrivals.Gamma(3).trace(commits), {"at": commits})
        assert checkpoints.commits == [0, 3, 9]
    with gemjax.Checkpoints(tmp_path, read_only=True) as checkpoints:
        _, trace, metadata = checkpoints.load(like(), 3)
        assert (trace, metadata) == (arrivals.Gamma(3).trace(3), {"at": 3})
        with pytest.raises(FileNotFoundError, match="holds no checkpoint 4"):
            checkpoints.load(like(), 4)
        with pytest.raises(ValueError, match=r"commits must be an int in 0 … 2147483647, got 3\.0"):
            checkpoints.load(like(), 3.0)
        with pytest.raises(ValueError, match="opened with read_only=True"):
            checkpoints.save(like(), arrivals.Gamma(3).trace(10))


@pytest.mark.slow
@pytest.mark.parametrize("keep", [1, 2, None])
def test_checkpoints_of_another_continuation_are_renamed(tmp_path, keep):
    """The run goes on from what was saved last, and nothing is lost."""
    with gemjax.Checkpoints(tmp_path, keep=None) as checkpoints:
        for commits in (3, 6, 9):
            checkpoints.save(like(), arrivals.Gamma(3).trace(commits), {"branch": 1})
    with gemjax.Checkpoints(tmp_path, keep) as checkpoints:
        with pytest.warns(gemjax.RunWarning, match=r"\(6, 9\), of another .* than the state after 5 commits"):
            checkpoints.save(like(), arrivals.Gamma(3).trace(5), {"branch": 2})
        assert checkpoints.commits[-1] == 5
        assert checkpoints.load(like())[2] == {"branch": 2}
        checkpoints.save(like(), arrivals.Gamma(3).trace(9), {"branch": 2})
        with pytest.warns(gemjax.RunWarning, match=r"\(9\)"):
            checkpoints.save(like(), arrivals.Gamma(3).trace(7), {"branch": 3})
    kept = {1: {"7"}, 2: {"5", "7"}, None: {"3", "5", "7"}}[keep]
    assert set(saved_in(tmp_path)) == kept | {"superseded-6", "superseded-9", "superseded-9-2"}
    shutil.move(tmp_path / "superseded-6", tmp_path / "6")
    with gemjax.Checkpoints(tmp_path, read_only=True) as checkpoints:
        assert checkpoints.load(like(), 6)[2] == {"branch": 1}


@pytest.mark.parametrize("keep", [0, -1, 2.5, "2"])
def test_a_number_of_checkpoints_is_positive(tmp_path, keep):
    with pytest.raises(ValueError, match="keep must be a positive int, got"):
        gemjax.Checkpoints(tmp_path, keep)


def test_a_file_is_no_folder_of_checkpoints(tmp_path):
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(NotADirectoryError, match=r"file is not a folder; give another name"):
        gemjax.Checkpoints(path)
    assert path.read_text() == "mine"


def test_folders_and_copies_of_other_names_are_no_checkpoints(tmp_path):
    (tmp_path / "2026").mkdir()
    (tmp_path / "2026" / "notes.txt").write_text("mine")
    with gemjax.Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(9))
        shutil.copytree(tmp_path / "9", tmp_path / "0020")
        assert checkpoints.commits == [9]
        checkpoints.save(like(), arrivals.Gamma(3).trace(12))
    assert saved_in(tmp_path) == ["0020", "12", "2026"]
    assert (tmp_path / "2026" / "notes.txt").exists()


def test_a_folder_that_was_removed_is_made_again(tmp_path):
    with gemjax.Checkpoints(tmp_path / "run" / "checkpoints") as checkpoints:
        shutil.rmtree(tmp_path / "run")
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        assert checkpoints.commits == [5]


@pytest.mark.slow
def test_the_files_of_a_killed_process_are_removed_but_not_those_of_a_running_one(tmp_path, monkeypatch):
    code = f"""
import sys
sys.path[:0] = {sys.path!r}
import pathlib
from gemjax.engines.running.checkpoints import folder
path = pathlib.Path({str(tmp_path)!r})
with folder.locked(path):
    (folder.unfinished(path, 7) / "part").mkdir(parents=True)
    print("writing", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"writing\n"
        (unfinished,) = saved_in(tmp_path)
        with gemjax.Checkpoints(tmp_path) as checkpoints, monkeypatch.context() as patched:
            patched.setattr(folder, "PATIENCE", 0)
            assert checkpoints.commits == []
            with pytest.raises(CheckpointWriteError, match="another process"):
                checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        assert (tmp_path / unfinished / "part").is_dir()
        writer.kill()
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
    assert saved_in(tmp_path) == ["5"]


@pytest.mark.parametrize("error", [OSError(errno.ENOLCK, "No locks available"), None])
def test_a_file_system_without_locks_has_checkpoints(tmp_path, monkeypatch, error):
    def no_locks(*_):
        raise error

    fake = None if error is None else types.SimpleNamespace(flock=no_locks, LOCK_EX=2, LOCK_NB=4, LOCK_UN=8)
    monkeypatch.setattr(locks, "fcntl", fake)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
    assert saved_in(tmp_path) == ["5"]


@pytest.mark.slow
def test_one_thread_loads_while_another_saves(tmp_path):
    saved, loaded, state = threading.Event(), [], like()

    def load():
        while not saved.is_set():
            loaded.append(gemjax.Checkpoints(tmp_path, read_only=True).load(state)[2]["note"])

    with gemjax.Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(state, arrivals.Gamma(3).trace(1), {"note": 1})
        thread = threading.Thread(target=load)
        thread.start()
        try:
            for commits in range(2, 12):
                checkpoints.save(state, arrivals.Gamma(3).trace(commits), {"note": commits}, wait=commits % 2 == 0)
        finally:
            checkpoints.wait()
            saved.set()
            thread.join()
    assert loaded == sorted(loaded)
    assert loaded


def test_a_checkpoint_that_another_process_removes_while_it_is_read_is_not_damaged(tmp_path, monkeypatch):
    damage_of = folder.damage_of

    def removed(checkpoint):
        monkeypatch.setattr(folder, "damage_of", damage_of)
        with gemjax.Checkpoints(tmp_path, keep=1) as another:
            another.save(like(), arrivals.Gamma(3).trace(6))
        return damage_of(checkpoint)

    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        monkeypatch.setattr(folder, "damage_of", removed)
        assert len(checkpoints.load(like())[1]) == 6
    assert saved_in(tmp_path) == ["6"]


@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_arrays_that_stay_in_files_are_not_those_of_another_checkpoint(tmp_path, change):
    tx = gemjax.gem(0.1, num_workers=3)
    state = arrived(gemjax.initial_state(tx, jnp.zeros(40_000)))
    checkpoints = gemjax.Checkpoints(tmp_path, keep=1)
    checkpoints.save(state, arrivals.Gamma(3).trace(4))
    loaded, _, _ = checkpoints.load(state, in_files=True)
    np.testing.assert_array_equal(loaded.params, 0.0)
    checkpoints.save(state._replace(params=state.params + 1), arrivals.Gamma(3).trace(4 if change == "replaced" else 5))
    with pytest.raises(CheckpointError, match="was replaced, moved or removed since the state was loaded from it"):
        np.asarray(loaded.params)


@pytest.mark.parametrize("how", ["cut", "missing"])
def test_a_checkpoint_with_any_file_cut_or_missing_is_refused(tmp_path, how):
    """No number is silently another one: TensorStore reads zeros in place of some missing files."""
    state = gemjax.initial_state(
        gemjax.gem(0.1, num_workers=3), jnp.arange(640.0), model_state={"n": jnp.zeros((0, 4))}
    )
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(arrived(state), arrivals.Gamma(3).trace(5), {"note": 1})
    files = [path for path in (tmp_path / "5").rglob("*") if path.is_file()]
    assert len(files) > 5
    for path in files:
        content = path.read_bytes()
        if how == "missing":
            path.unlink()
        elif content:
            path.write_bytes(content[:-1])
        else:
            continue
        with gemjax.Checkpoints(tmp_path) as checkpoints:
            for read in (lambda one=checkpoints: one.load(state), lambda one=checkpoints: one.metadata):
                with pytest.raises(CheckpointError, match=r"checkpoint 5 is damaged: its file .*; restore it"):
                    read()
        path.write_bytes(content)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.load(state)[2] == checkpoints.metadata == {"note": 1}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine:RuntimeWarning")
def test_a_checkpoint_that_orbax_cannot_read_is_named(tmp_path):
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        manifest = tmp_path / "5" / "state" / "manifest.ocdbt"
        manifest.write_bytes(bytes(len(manifest.read_bytes())))
        with pytest.raises(CheckpointError, match="checkpoint 5 cannot be read into this run's state; it is damaged"):
            checkpoints.load(like())
    gc.collect()  # Tasks that Orbax has abandoned report it here, and not in a later test.


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "too many open files"), MemoryError(), ValueError("EACCES [os_error_code='13']")]
)
def test_an_error_of_the_machine_is_not_taken_for_damage(tmp_path, monkeypatch, error):
    """The advice for damage is to remove the checkpoint, which is good."""

    def fail(*_):
        raise KeyError("no handler") from error  # As Orbax does.

    checkpoints, state = (
        gemjax.Checkpoints(tmp_path),
        arrived(gemjax.initial_state(gemjax.asgd(0.1, 3), jnp.zeros(2**16))),
    )
    checkpoints.save(state, arrivals.Gamma(3).trace(4))
    loaded, _, _ = checkpoints.load(state, in_files=True)
    monkeypatch.setattr(ocp, "load_checkpointables", fail)
    for read in (lambda: checkpoints.load(state), lambda: np.asarray(loaded.params)):
        with pytest.raises(type(error)) as raised:
            read()
        assert raised.value is error


def test_metadata_that_cannot_be_opened_are_not_taken_for_damage(tmp_path, monkeypatch):
    def refused(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        monkeypatch.setattr(pathlib.Path, "read_bytes", refused)
        with pytest.raises(PermissionError):
            checkpoints.load(like())


def test_metadata_are_read_as_json_has_them(tmp_path):
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.metadata is None
        checkpoints.save(like(), arrivals.Gamma(3).trace(5), {"rates": (0.1, 0.2), 3: None})
        assert checkpoints.metadata == json.loads('{"rates": [0.1, 0.2], "3": null}')
    assert os.path.isdir(tmp_path / "5" / "state")
