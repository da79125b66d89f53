"""Checkpoints: a saved state is restored exactly, and anything else is refused."""

import concurrent.futures
import contextlib
import errno
import gc
import json
import os
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from etils import epath
from orbax.checkpoint import v1 as ocp

import gemjax
from gemjax import arrivals, testing
from gemjax.checkpoints import CheckpointWriteError, files, turns

LOSS, PARAMS, BATCHES = testing.quadratic()


def method(num_workers=3):
    return optax.chain(optax.clip_by_global_norm(1.0), gemjax.gem(0.1, num_workers=num_workers))


def like(num_workers=3, tx=None):
    return gemjax.initial_state(tx or method(num_workers), PARAMS, num_workers=num_workers)


def test_state_and_trace_are_restored_and_the_run_continues_bit_for_bit(tmp_path):
    trace = arrivals.Gamma(3).trace(40)
    tx = method()
    whole = gemjax.simulate(tx, LOSS, PARAMS, BATCHES, trace)
    half = gemjax.simulate(tx, LOSS, PARAMS, BATCHES, trace, chunk_size=20, callback=lambda progress: True)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(half.state, trace.first(20), {"note": "half"})
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        state, recorded, metadata = checkpoints.load(like())
    assert recorded == trace.first(20)
    assert metadata == {"note": "half"}
    rest = gemjax.simulate(tx, LOSS, PARAMS, BATCHES, trace, state=state)
    for one, other in zip(jax.tree.leaves(rest.state), jax.tree.leaves(whole.state), strict=True):
        np.testing.assert_array_equal(one, other)
    assert int(rest.opt_state[1].clock) == 40


@pytest.mark.slow
def test_a_simulation_with_parameters_on_another_device_than_the_first_continues_from_a_checkpoint(tmp_path):
    params, trace = jax.device_put(PARAMS, jax.devices()[1]), arrivals.Gamma(3).trace(12)
    half, whole = (gemjax.simulate(method(), LOSS, params, BATCHES, part) for part in (trace.first(6), trace))
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(half.state, half.trace)
        state, _, _ = checkpoints.load(gemjax.initial_state(method(), params, num_workers=3))
    rest = gemjax.simulate(method(), LOSS, params, BATCHES, trace, state=state)
    for one, other in zip(jax.tree.leaves(rest.params), jax.tree.leaves(whole.params), strict=True):
        assert one.devices() == {jax.devices()[1]}
        np.testing.assert_array_equal(one, other)


def test_a_state_is_saved_with_its_own_trace_only(tmp_path):
    """A checkpoint of fewer commits would replace those of more, and no run could continue from it."""
    result = gemjax.simulate(method(), LOSS, PARAMS, BATCHES, arrivals.Gamma(3).trace(6))
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(result.state, result.trace)
        with pytest.raises(ValueError, match="the state has 6 commits of 3 workers, but trace has 4 of 3; give"):
            checkpoints.save(result.state, result.trace.first(4))
        with pytest.raises(ValueError, match="the state has 6 commits of 3 workers, but trace has 6 of 2; give"):
            checkpoints.save(result.state, arrivals.Gamma(2).trace(6))
        with pytest.raises(
            TypeError, match=r"state is of type Result, but must be a gemjax.RunState; give result.state"
        ):
            checkpoints.save(result, result.trace)
        with pytest.raises(TypeError, match=r"trace is of type dict, but must be a gemjax.Trace; give result.trace"):
            checkpoints.save(result.state, result.history)
        assert checkpoints.commits == [6]


@pytest.mark.parametrize("wrong", [None, PARAMS, method()], ids=lambda wrong: type(wrong).__name__)
def test_a_checkpoint_is_loaded_into_the_state_of_a_run_only(tmp_path, wrong):
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(0))
        with pytest.raises(
            TypeError, match=r"like is of type .* but must be a gemjax.RunState; give that of a result, or"
        ):
            checkpoints.load(wrong)


def test_arrays_are_restored_with_the_shardings_of_their_shapes(tmp_path):
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[2])
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), jax.eval_shape(like)
    )
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(0))
        state, _, _ = checkpoints.load(shapes)
    for found, saved in zip(jax.tree.leaves(state), jax.tree.leaves(like()), strict=True):
        assert found.sharding == sharding
        np.testing.assert_array_equal(found, saved)


def test_double_precision_is_restored_where_only_the_calling_thread_has_it(tmp_path, x64):
    state = gemjax.initial_state(method(), {"x": jnp.full(4, 1 / 3)}, num_workers=3)
    assert state.params["x"].dtype == "float64"
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state, arrivals.Gamma(3).trace(0))
        found, _, _ = checkpoints.load(state)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(state), strict=True):
        assert one.dtype == other.dtype
        assert one.sharding == other.sharding
        np.testing.assert_array_equal(one, other)


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


def test_one_checkpoint_is_replaced_by_one_of_fewer_commits(tmp_path):
    with gemjax.Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(9))
        with pytest.warns(gemjax.RunWarning, match=r"of 9 commits, .* they are removed, because keep=1"):
            checkpoints.save(like(), arrivals.Gamma(3).trace(5))
    assert os.listdir(tmp_path) == ["5"]


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


@pytest.mark.skipif(os.name != "posix", reason="names of files are bytes on POSIX")
@pytest.mark.parametrize("read_only", [False, True])
def test_a_name_that_is_not_utf_8_is_refused(tmp_path, read_only):
    """Orbax raised a RuntimeError as it saved, and found nothing as it loaded."""
    folder = tmp_path / os.fsdecode(b"run-\xff") / "checkpoints"
    with pytest.raises(gemjax.CheckpointError, match=r"run-\\udcff.* is not UTF-8"):
        gemjax.Checkpoints(folder, read_only=read_only)
    assert list(tmp_path.iterdir()) == []


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
        with pytest.raises(ValueError, match="opened with read_only=True"):
            checkpoints.save(like(), arrivals.Gamma(3).trace(10))


def test_bfloat16_and_empty_traces_are_restored(tmp_path):
    params = {"w": jnp.array([1.5, -2.0], jnp.bfloat16)}
    state = gemjax.initial_state(gemjax.gem(0.1, num_workers=2), params, num_workers=2)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state, gemjax.Trace(worker=[], num_workers=2))
        loaded, trace, _ = checkpoints.load(state)
    assert len(trace) == 0
    assert loaded.params["w"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(loaded.params["w"], params["w"])


def test_no_checkpoint_is_an_error(tmp_path):
    with gemjax.Checkpoints(tmp_path) as checkpoints, pytest.raises(FileNotFoundError, match="no checkpoint"):
        checkpoints.load(like())


@pytest.mark.parametrize(
    "other", [lambda: like(tx=gemjax.asgd(0.1, num_workers=3)), lambda: like(num_workers=4)], ids=["method", "workers"]
)
def test_a_checkpoint_of_another_method_or_number_of_workers_is_refused(tmp_path, other):
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        with pytest.raises(ValueError, match=r"another method, model or number of workers.*saved .*expected "):
            checkpoints.load(other())


def test_a_checkpoint_of_an_older_format_is_refused(tmp_path, monkeypatch):
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        with monkeypatch.context() as patched:
            patched.setattr("gemjax.checkpoints.contents.FORMAT", "gemjax.run.1")
            checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        with pytest.raises(
            ValueError, match=r"checkpoint 5 is of the format 'gemjax\.run\.1', .* reads 'gemjax\.run\.2'"
        ):
            checkpoints.load(like())


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        ("commits", None, "its commits is None, expected 5"),
        ("commits", "x", "its commits is 'x', expected 5"),
        ("commits", 0, "its commits is 0, expected 5"),
        ("commits", 5.0, "its commits is 5.0, expected 5"),
        ("num_workers", None, "its num_workers is None, expected 3"),
        ("num_workers", 7, "its num_workers is 7, expected 3"),
        ("user", None, "its user is None, expected an object"),
        ("user", [1], r"its user is \[1\], expected an object"),
        ("format", ["\x1b[2J"], r"of the format .*x1b\[2J"),
    ],
)
def test_changed_metadata_are_refused_and_the_folder_is_named(tmp_path, name, value, wrong):
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(5), {"note": 1})
    (tmp_path / "5" / files.DIGESTS).unlink()
    path = tmp_path / "5" / "_CHECKPOINT_METADATA"
    metadata = json.loads(path.read_text())
    del metadata["custom_metadata"][files.HAS_DIGESTS]  # As in checkpoints of older versions.
    metadata["custom_metadata"][name] = value
    path.write_text(json.dumps(metadata))
    with gemjax.Checkpoints(tmp_path) as checkpoints, pytest.raises(gemjax.CheckpointError, match=wrong) as refused:
        checkpoints.load(like())
    assert str(tmp_path) in str(refused.value)
    assert str(refused.value).isprintable()


def test_a_checkpoint_under_another_number_is_refused(tmp_path):
    """The trace is longer than the number claims."""
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
    (tmp_path / "5").rename(tmp_path / "4")
    path = tmp_path / "4" / "_CHECKPOINT_METADATA"
    path.write_text(path.read_text().replace('"commits":5', '"commits":4').replace('"commits": 5', '"commits": 4'))
    files.write_digests(tmp_path / "4")
    with (
        gemjax.Checkpoints(tmp_path) as checkpoints,
        pytest.raises(gemjax.CheckpointError, match="its trace has columns"),
    ):
        checkpoints.load(like())


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["simulate", "devices"])
def test_a_run_goes_on_while_its_checkpoint_is_written(tmp_path, engine):
    """The checkpoint holds the state at the save, although later commits reuse its buffers."""
    loss_fn, params, batches = testing.quadratic(dimension=20_000)
    tx, then = gemjax.gem(0.1, num_workers=3), {}
    with gemjax.Checkpoints(tmp_path) as checkpoints:

        def callback(progress):
            if progress.commits > 20:
                return
            state, trace = progress.state(), progress.trace()
            then[progress.commits] = jax.tree.map(np.array, state), trace
            checkpoints.save(state, trace, {"commits": progress.commits}, wait=False)

        if engine == "simulate":
            trace = arrivals.Gamma(3).trace(24)
            gemjax.simulate(tx, loss_fn, params, batches, trace, chunk_size=4, callback=callback)
        else:
            gemjax.run_on_devices(tx, loss_fn, params, batches, 24, num_workers=3, callback=callback, callback_every=4)
        state, recorded, metadata = checkpoints.load(gemjax.initial_state(tx, params, num_workers=3))
    assert len(then) > 1
    expected, trace = then[max(then)]
    assert recorded == trace
    assert metadata == {"commits": max(then)}
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("after", ["save", "latest", "load", "close", "wait"])
def test_an_error_in_the_background_is_raised_by_the_next_call(tmp_path, monkeypatch, after):
    failed = concurrent.futures.Future()
    failed.set_exception(OSError("no space left"))
    checkpoints, trace = gemjax.Checkpoints(tmp_path), arrivals.Gamma(3).trace(5)
    checkpoints.save(like(), trace)
    with monkeypatch.context() as patched:
        patched.setattr(ocp, "save_checkpointables_async", lambda *_, **__: failed)
        checkpoints.save(like(), arrivals.Gamma(3).trace(7), wait=False)
    calls = {"save": lambda: checkpoints.save(like(), trace), "load": lambda: checkpoints.load(like())}
    with pytest.raises(OSError, match="no space left"):
        calls.get(after, lambda: getattr(checkpoints, after) if after == "latest" else getattr(checkpoints, after)())()
    if after != "close":
        assert checkpoints.latest == 5  # The error is raised once; the previous checkpoint is complete.
        checkpoints.close()


def test_a_write_in_the_background_gets_a_copy(tmp_path, monkeypatch):
    """Orbax may read the copy at any time."""
    held, done = [], concurrent.futures.Future()
    done.set_result(True)
    state = jax.tree.map(jnp.copy, like())  # Not the arrays of other tests, which are deleted below.
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        write = lambda path, tree, **options: held.append(tree["state"]["state"]) or os.mkdir(path) or done
        monkeypatch.setattr(ocp, "save_checkpointables_async", write)
        checkpoints.save(state, arrivals.Gamma(3).trace(5), wait=False)
    expected = jax.tree.map(np.array, state)
    for leaf in jax.tree.leaves(state):
        leaf.delete()  # As a commit does, which donates the state.
    for one, other in zip(jax.tree.leaves(held[0]), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


@contextlib.contextmanager
def files_that_may_not_grow():
    """Limit the size of files, as a full disk does."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# When failed threads of Orbax are collected, their event loop may be closed already.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("wait", [True, False])
def test_a_checkpoint_that_cannot_be_written_leaves_the_earlier_ones(tmp_path, wait):
    params = jax.random.normal(jax.random.key(0), (50_000,))
    state = gemjax.initial_state(gemjax.asgd(0.1, num_workers=3), params, num_workers=3)
    trace = arrivals.Gamma(3).trace(9)
    wrong = r"of 2 commits could not be written: File too large \(.* free\); the newest good one is of 1 commits"
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state, trace.first(1))
        with files_that_may_not_grow(), pytest.raises(CheckpointWriteError, match=wrong) as refused:
            checkpoints.save(state, trace.first(2), wait=wait) or checkpoints.wait()
        assert refused.value.errno == errno.EFBIG
        assert checkpoints.latest == 1
        checkpoints.save(state, trace.first(3), wait=wait)
        checkpoints.save(state, trace.first(4), wait=wait)
        assert checkpoints.load(state)[1] == trace.first(4)
    assert sorted(name for name in os.listdir(tmp_path) if files.UNFINISHED not in name) == ["3", "4"]
    gc.collect()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("wait", [True, False])
def test_a_checkpoint_that_cannot_be_replaced_stays(tmp_path, wait):
    params = jax.random.normal(jax.random.key(0), (50_000,))
    state = gemjax.initial_state(gemjax.asgd(0.1, num_workers=3), params, num_workers=3)
    trace = arrivals.Gamma(3).trace(5)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state, trace, {"note": "first"})
        with (
            files_that_may_not_grow(),
            pytest.raises(CheckpointWriteError, match="the newest good one is of 5 commits"),
        ):
            checkpoints.save(state, trace, {"note": "second"}, wait=wait) or checkpoints.wait()
        loaded, _, metadata = checkpoints.load(state)
        assert metadata == {"note": "first"}
        np.testing.assert_array_equal(loaded.params, params)
        checkpoints.save(state, trace, {"note": "third"}, wait=wait)
        assert checkpoints.metadata == {"note": "third"}
        # Threads of Orbax whose write has failed may still make its folder, which the next save removes.
        assert [name for name in os.listdir(tmp_path) if files.UNFINISHED not in name] == ["5"]
    gc.collect()


def test_a_checkpoint_whose_replacement_is_incomplete_is_restored(tmp_path, monkeypatch):
    """The state of the folder after a crash during the write."""
    interrupted, trace, write = gemjax.Checkpoints(tmp_path), arrivals.Gamma(3).trace(5), concurrent.futures.Future()
    interrupted.save(like(), trace, {"note": "first"})
    with monkeypatch.context() as patched:
        patched.setattr(ocp, "save_checkpointables_async", lambda *_, **__: write)
        interrupted.save(like(), trace, {"note": "second"}, wait=False)
    with gemjax.Checkpoints(tmp_path) as checkpoints, monkeypatch.context() as patched:
        patched.setattr(turns, "PATIENCE", 0)
        assert checkpoints.load(like())[2] == {"note": "first"}
    write.set_exception(OSError("killed"))
    with pytest.raises(CheckpointWriteError, match="killed"):
        interrupted.wait()
    files.set_aside(tmp_path, 5)  # As after a crash just before the new checkpoint gets its name.
    (replaced,) = tmp_path.iterdir()
    assert replaced.name != "5"
    for read_only in (False, True):
        with gemjax.Checkpoints(tmp_path, read_only=read_only) as checkpoints:
            assert checkpoints.load(like())[2] == checkpoints.metadata == {"note": "first"}
            assert checkpoints.commits == [5]
    assert os.listdir(tmp_path) == [replaced.name]  # It may be that of a writer at work.
    shutil.copytree(replaced, tmp_path / "5")  # As after a crash just after the write.
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.commits == [5]
        checkpoints.save(like(), arrivals.Gamma(3).trace(7))
    assert sorted(os.listdir(tmp_path)) == ["5", "7"]


@pytest.mark.parametrize("error", [OSError(), MemoryError()])
def test_an_error_without_a_message_is_named(tmp_path, monkeypatch, error):
    failed = concurrent.futures.Future()
    failed.set_exception(error)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        monkeypatch.setattr(ocp, "save_checkpointables_async", lambda *_, **__: failed)
        with pytest.raises(CheckpointWriteError, match=rf"could not be written: {type(error).__name__} \(its arrays"):
            checkpoints.save(like(), arrivals.Gamma(3).trace(5))


def test_an_error_that_is_not_of_writing_is_raised_unchanged(tmp_path, monkeypatch):
    failed = concurrent.futures.Future()
    failed.set_exception(KeyError("no such leaf"))
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        with monkeypatch.context() as patched:
            patched.setattr(ocp, "save_checkpointables_async", lambda *_, **__: failed)
            with pytest.raises(KeyError, match="no such leaf"):
                checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        assert checkpoints.latest == 5


@pytest.mark.parametrize(
    ("metadata", "wrong"),
    [
        ({"note": 1, "metric": np.ones(2)}, r"metadata\['metric'\] is of type ndarray and cannot be written as JSON"),
        (
            {"metric": jnp.float32(1)},
            r"metadata\['metric'\] is of type \w+ and cannot be written as JSON .* float\(x\)",
        ),
        ([1], "metadata is of type list, expected a dict"),
    ],
)
def test_metadata_that_are_not_json_are_refused_before_anything_is_written(tmp_path, metadata, wrong):
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(TypeError, match=wrong):
            checkpoints.save(like(), arrivals.Gamma(3).trace(5), metadata)
        assert checkpoints.latest is None


def test_files_of_a_failed_write_may_vanish_while_the_folder_is_opened(tmp_path, monkeypatch):
    """A thread of that write may remove them; the next write succeeds all the same."""

    def vanished(path, **_):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "ocdbt.process_0")

    (tmp_path / "7.orbax-checkpoint-tmp" / "ocdbt.process_0").mkdir(parents=True)
    monkeypatch.setattr(type(epath.Path(tmp_path)), "rmtree", vanished)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
    assert os.listdir(tmp_path) == ["5"]


def test_a_reader_leaves_the_unfinished_write_of_another_process(tmp_path):
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
    part = tmp_path / "7.orbax-checkpoint-tmp" / "ocdbt.process_0"
    part.mkdir(parents=True)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        assert len(checkpoints.load(like())[1]) == checkpoints.latest == 5
    assert part.exists()


def test_a_checkpoint_that_another_process_replaces_while_it_is_read_is_not_damaged(tmp_path, monkeypatch):
    damage_of = files.damage_of

    def replaced(checkpoint, only=None):
        monkeypatch.setattr(files, "damage_of", damage_of)
        with gemjax.Checkpoints(tmp_path, keep=1) as another:
            another.save(like(), arrivals.Gamma(3).trace(6))
        return damage_of(checkpoint, only)

    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        monkeypatch.setattr(files, "damage_of", replaced)
        assert len(checkpoints.load(like())[1]) == 6
    assert os.listdir(tmp_path) == ["6"]


@pytest.mark.parametrize("commits", [None, 5])
def test_a_checkpoint_that_is_replaced_while_it_is_read_is_not_mixed_with_its_replacement(
    tmp_path, monkeypatch, commits
):
    load = ocp.load_checkpointables

    def replaced(path, abstract):
        monkeypatch.setattr(ocp, "load_checkpointables", load)
        checkpoints.save(like()._replace(params=second), arrivals.Gamma(3).trace(5), {"note": "second"})
        return load(path, abstract)

    second = jax.tree.map(lambda leaf: leaf + 1, like().params)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(5), {"note": "first"})
        monkeypatch.setattr(ocp, "load_checkpointables", replaced)
        state, _, metadata = gemjax.Checkpoints(tmp_path, read_only=True).load(like(), commits)
    assert metadata == {"note": "second"}
    for one, other in zip(jax.tree.leaves(state.params), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_write_in_the_background_can_be_polled(tmp_path, monkeypatch):
    ready = concurrent.futures.Future()
    monkeypatch.setattr(ocp, "save_checkpointables_async", lambda path, *_, **__: os.mkdir(path) or ready)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        state = gemjax.initial_state(gemjax.asgd(0.1, num_workers=3), jnp.zeros(2), num_workers=3)
        checkpoints.save(state, arrivals.Gamma(3).trace(0), wait=False)
        assert not checkpoints.wait(timeout=0)
        ready.set_result(True)
        assert checkpoints.wait(timeout=60)  # A thread writes the digests first.


def test_names_of_the_format_are_those_of_earlier_versions():
    assert gemjax.checkpoints.FORMAT == "gemjax.run.2"
    assert gemjax.checkpoints.KINDS["worker"] is np.int32


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_ruined_state_is_not_saved(bad, tmp_path):
    """The checkpoint before it remains the newest; what a method keeps for itself may be infinite."""
    tx, params = gemjax.lsgd(num_workers=2), {"w": jnp.ones(3)}  # Its losses are infinite before the first commit.
    state = gemjax.initial_state(tx, params, local=gemjax.LocalSteps(optax.sgd(0.1), 1))
    checkpoints = gemjax.Checkpoints(tmp_path)
    checkpoints.save(state, gemjax.Trace([0, 1, 0]))
    ruined = state._replace(params={"w": jnp.array([1.0, bad, bad])})
    message = r"after 4 commits is not saved, because params\['w'\] has 2 of 3 numbers .* 3 commits is kept; .* clip"
    with pytest.raises(gemjax.CheckpointError, match=message) as error:
        checkpoints.save(ruined, gemjax.Trace([0, 1, 0, 1]), wait=False)
    assert "\n" not in str(error.value)
    assert checkpoints.latest == 3
    np.testing.assert_array_equal(checkpoints.load(state)[0].params["w"], np.ones(3))


@pytest.mark.slow
def test_a_write_in_the_background_is_finished_before_the_process_ends(tmp_path):
    code = f"""
import sys
sys.path[:0] = {sys.path!r}
import gemjax, jax.numpy as jnp
checkpoints = gemjax.Checkpoints({str(tmp_path)!r})
state = gemjax.initial_state(gemjax.asgd(0.1, num_workers=2), jnp.ones(300_000))
checkpoints.save(state, gemjax.arrivals.Gamma(2).trace(5), wait=False)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.listdir(tmp_path) == ["5"]
    state = gemjax.initial_state(gemjax.asgd(0.1, num_workers=2), jnp.ones(300_000))
    assert len(gemjax.Checkpoints(tmp_path).load(state)[1]) == 5
