"""Folders of checkpoints: names, numbers kept, and files of others."""

import errno
import os
import shutil

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from checkpoints.states import arrived, like

import gemjax
from gemjax import arrivals
from gemjax.checkpoints import CheckpointError, CheckpointWriteError, files


@pytest.mark.slow
@pytest.mark.parametrize("keep", [2, None])
def test_checkpoints_of_another_continuation_are_renamed(tmp_path, keep):
    """The run goes on from what was saved last, and nothing is lost."""
    with gemjax.Checkpoints(tmp_path, keep=None) as checkpoints:
        for commits in (3, 6, 9):
            checkpoints.save(like(), arrivals.Gamma(3).trace(commits), {"branch": 1})
    with gemjax.Checkpoints(tmp_path, keep) as checkpoints:
        with pytest.warns(gemjax.RunWarning, match=r"of 6 and 9 commits, of another .* than the state after 5 commits"):
            checkpoints.save(like(), arrivals.Gamma(3).trace(5), {"branch": 2})
        assert checkpoints.commits == [3, 5]
        assert checkpoints.load(like())[2] == {"branch": 2}
        checkpoints.save(like(), arrivals.Gamma(3).trace(9), {"branch": 2})
        with pytest.warns(gemjax.RunWarning, match="of 9 commits"):
            checkpoints.save(like(), arrivals.Gamma(3).trace(7), {"branch": 3})
    kept = {"5", "7"} if keep else {"3", "5", "7"}
    assert set(os.listdir(tmp_path)) == kept | {"superseded-6", "superseded-9", "superseded-9-2"}
    shutil.move(tmp_path / "superseded-6", tmp_path / "6")
    with gemjax.Checkpoints(tmp_path, read_only=True) as checkpoints:
        assert checkpoints.load(like(), 6)[2] == {"branch": 1}


def test_checkpoints_of_another_continuation_are_kept_whatever_keep_is(tmp_path):
    """With keep=1 they were removed, although another object had kept two."""
    with gemjax.Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(9))
        with pytest.warns(gemjax.RunWarning, match=r"of 9 commits, .* they are renamed to superseded-"):
            checkpoints.save(like(), arrivals.Gamma(3).trace(5))
    assert set(os.listdir(tmp_path)) == {"5", "superseded-9"}


@pytest.mark.parametrize("keep", [1, 2])
def test_folders_of_other_files_with_numbers_for_names_stay(tmp_path, keep):
    with gemjax.Checkpoints(tmp_path, keep) as checkpoints:
        for folder in ("2026", "0"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "notes.txt").write_text("mine")
        for commits in (3, 5, 7):
            checkpoints.save(like(), arrivals.Gamma(3).trace(commits))
    assert {"2026", "0"} < set(os.listdir(tmp_path))
    assert (tmp_path / "2026" / "notes.txt").read_text() == (tmp_path / "0" / "notes.txt").read_text() == "mine"


def test_a_save_that_fails_keeps_the_name_of_a_later_checkpoint(tmp_path, monkeypatch):
    def fail(folder, commits):
        raise OSError(errno.EDQUOT, "quota")

    with gemjax.Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(9))
        monkeypatch.setattr(files, "set_aside", fail)
        with pytest.warns(gemjax.RunWarning, match="of 9 commits"), pytest.raises(CheckpointWriteError):
            checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        assert checkpoints.commits == [9]


@pytest.mark.parametrize("keep", [0, -1, True, 2.5, "2"])
def test_a_number_of_checkpoints_is_positive(tmp_path, keep):
    with pytest.raises(ValueError, match="keep must be a positive int, got"):
        gemjax.Checkpoints(tmp_path, keep)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_file_is_no_folder_of_checkpoints(tmp_path, read_only):
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(NotADirectoryError, match=r"file is not a folder; give another name"):
        gemjax.Checkpoints(path, read_only=read_only)
    assert path.read_text() == "mine"


def test_a_link_to_a_disk_that_is_not_mounted_is_not_to_be_removed(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "checkpoints")
    with pytest.raises(NotADirectoryError, match="link is a link that leads nowhere; mount or restore what it names"):
        gemjax.Checkpoints(tmp_path / "link")


@pytest.mark.skipif(os.name != "posix", reason="names of files are bytes on POSIX")
@pytest.mark.parametrize("read_only", [False, True])
def test_a_name_that_is_not_utf_8_is_refused(tmp_path, read_only):
    """Orbax raised a RuntimeError as it saved, and found nothing as it loaded."""
    folder = tmp_path / os.fsdecode(b"run-\xff") / "checkpoints"
    with pytest.raises(gemjax.CheckpointError, match=r"run-\\udcff.* is not UTF-8"):
        gemjax.Checkpoints(folder, read_only=read_only)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="a backslash separates names elsewhere")
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    ("name", "misread"),
    [("lr[0.1]", r"\[0\.1\]"), ("back\\slash", r"\\"), ("gs:", "gs:/")],
    ids=["brackets", "backslash", "address"],
)
def test_a_name_that_orbax_takes_for_a_pattern_is_refused(tmp_path, name, misread, read_only):
    """A checkpoint was written without its numbers, and then said to be damaged."""
    with pytest.raises(gemjax.CheckpointError, match=f"has {misread} in its name, .* rename that folder"):
        gemjax.Checkpoints(tmp_path / name / "checkpoints", read_only=read_only)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a[b", "a]b[c", "*", "?", "a%2Fb", "a b", "a:b|c", "ü"])
def test_other_names_are_those_of_folders_as_well(tmp_path, name):
    tx, trace = gemjax.gem(0.1, num_workers=2), gemjax.arrivals.Gamma(2).trace(3)
    loss_fn = lambda params, batch: jnp.sum((params - batch) ** 2)
    result = gemjax.simulate(tx, loss_fn, jnp.zeros(3), lambda worker, step: 1.0 * step, trace)
    with gemjax.Checkpoints(tmp_path / name) as checkpoints:
        checkpoints.save(result.state, result.trace)
    with gemjax.Checkpoints(tmp_path / name) as checkpoints:
        state, _, _ = checkpoints.load(gemjax.initial_state(tx, jnp.zeros(3)))
    np.testing.assert_array_equal(state.params, result.params)


def test_only_the_newest_are_kept(tmp_path):
    with gemjax.Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.latest is None
        for commits in (0, 3, 9):
            checkpoints.save(like(), arrivals.Gamma(3).trace(commits))
        assert checkpoints.latest == 9
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "9"]


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


def test_a_copy_of_another_name_is_no_checkpoint(tmp_path):
    with gemjax.Checkpoints(tmp_path, keep=None) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(9))
        shutil.copytree(tmp_path / "9", tmp_path / "0020")
        assert (checkpoints.commits, checkpoints.latest) == ([9], 9)
        checkpoints.save(like(), arrivals.Gamma(3).trace(12))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0020", "12", "9"]


def test_checkpoints_of_another_program_stay(tmp_path):
    """Checkpoints beyond the newest ones were removed, and later ones renamed."""
    with ocp.CheckpointManager(tmp_path, options=ocp.CheckpointManagerOptions(max_to_keep=5)) as manager:
        for step in (3, 20, 300):
            manager.save(step, args=ocp.args.StandardSave({"mine": np.full(4, step)}))
    with pytest.raises(gemjax.CheckpointError, match=f"{tmp_path} holds 3, 20 and 300, checkpoints of another program"):
        gemjax.Checkpoints(tmp_path)
    shutil.move(tmp_path / "3", tmp_path.parent / "3")
    for number in (20, 300):
        shutil.rmtree(tmp_path / str(number))
    with gemjax.Checkpoints(tmp_path, keep=1) as checkpoints:
        shutil.move(tmp_path.parent / "3", tmp_path / "3")  # Meanwhile.
        with pytest.warns(
            gemjax.RunWarning, match="3 has the name of the checkpoint after 3 commits, and does not look"
        ):
            checkpoints.save(like(), arrivals.Gamma(3).trace(3))
        checkpoints.save(like(), arrivals.Gamma(3).trace(7))
    assert set(os.listdir(tmp_path)) == {"superseded-3", "7"}
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (tmp_path / "superseded-3").rename(theirs / "3")
    with ocp.CheckpointManager(theirs) as manager:
        assert manager.restore(3, args=ocp.args.StandardRestore())["mine"].tolist() == [3] * 4


def test_a_folder_of_the_name_of_a_checkpoint_is_renamed(tmp_path):
    """The run goes on, and nothing is lost."""
    (tmp_path / "3").mkdir()
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(3))  # In place of an empty folder.
        shutil.rmtree(tmp_path / "3")
        (tmp_path / "3").mkdir()
        (tmp_path / "3" / "notes.txt").write_text("mine")
        with pytest.warns(gemjax.RunWarning, match="3 has the name .*; it is renamed to superseded-"):
            checkpoints.save(like(), arrivals.Gamma(3).trace(3))
        assert checkpoints.load(like())[1] == arrivals.Gamma(3).trace(3)
    assert (tmp_path / "superseded-3" / "notes.txt").read_text() == "mine"


def test_a_file_of_the_name_of_a_checkpoint_stays(tmp_path):
    (tmp_path / "3").write_text("mine")
    checkpoints = gemjax.Checkpoints(tmp_path)
    with pytest.raises(gemjax.CheckpointError, match="checkpoint 3 is damaged: it is not a folder"):
        checkpoints.save(like(), arrivals.Gamma(3).trace(3))
    assert (tmp_path / "3").read_text() == "mine"


def test_a_folder_is_opened_while_another_process_replaces_a_checkpoint(tmp_path, monkeypatch):
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(3))
    away, read = (tmp_path / "3").rename(tmp_path / "away"), files.custom_metadata

    def read_and_replace(checkpoint):
        found = read(checkpoint)
        if away.exists():
            away.rename(tmp_path / "3")
        return found

    monkeypatch.setattr(files, "numbers", lambda folder: [3])
    monkeypatch.setattr(files, "custom_metadata", read_and_replace)
    gemjax.Checkpoints(tmp_path)


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
