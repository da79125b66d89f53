"""Checkpoints: what was saved comes back, and nothing else is taken for it."""

import concurrent.futures
import contextlib
import errno
import gc
import json
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from etils import epath
from orbax.checkpoint import v1 as ocp

import gemjax
from gemjax import arrivals, testing
from gemjax.checkpoints import CheckpointWriteError

LOSS, PARAMS, BATCHES = testing.quadratic()


def method(num_workers=3):
    return optax.chain(optax.clip_by_global_norm(1.0), gemjax.gem(0.1, num_workers=num_workers))


def like(num_workers=3, tx=None):
    return gemjax.initial_state(tx or method(num_workers), PARAMS, num_workers=num_workers)


def test_state_and_trace_come_back_and_the_run_goes_on_bit_for_bit(tmp_path):
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


def test_arrays_come_back_where_their_shapes_are_to_lie(tmp_path):
    there = jax.sharding.SingleDeviceSharding(jax.devices()[2])
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=there), jax.eval_shape(like)
    )
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(0))
        state, _, _ = checkpoints.load(shapes)
    for found, saved in zip(jax.tree.leaves(state), jax.tree.leaves(like()), strict=True):
        assert found.sharding == there
        np.testing.assert_array_equal(found, saved)


def test_only_the_newest_are_kept(tmp_path):
    with gemjax.Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.latest is None
        for commits in (0, 3, 9):
            checkpoints.save(like(), arrivals.Gamma(3).trace(commits))
        assert checkpoints.latest == 9
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "9"]


def test_bfloat16_and_empty_traces_come_back(tmp_path):
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
def test_a_checkpoint_of_something_else_is_refused(tmp_path, other):
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        with pytest.raises(ValueError, match=r"another method, model or number of workers.*saved .*expected "):
            checkpoints.load(other())


def test_a_checkpoint_of_an_older_format_is_refused(tmp_path, monkeypatch):
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        with monkeypatch.context() as patched:
            patched.setattr("gemjax.checkpoints.FORMAT", "gemjax.run.1")
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
def test_metadata_that_were_changed_are_refused_by_folder(tmp_path, name, value, wrong):
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(5), {"note": 1})
    path = tmp_path / "5" / "_CHECKPOINT_METADATA"
    metadata = json.loads(path.read_text())
    metadata["custom_metadata"][name] = value
    path.write_text(json.dumps(metadata))
    with gemjax.Checkpoints(tmp_path) as checkpoints, pytest.raises(gemjax.CheckpointError, match=wrong) as refused:
        checkpoints.load(like())
    assert str(tmp_path) in str(refused.value)
    assert str(refused.value).isprintable()


def test_a_checkpoint_under_another_number_is_refused(tmp_path):
    """Its trace is not as long as the number says."""
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
    (tmp_path / "5").rename(tmp_path / "4")
    path = tmp_path / "4" / "_CHECKPOINT_METADATA"
    path.write_text(path.read_text().replace('"commits":5', '"commits":4').replace('"commits": 5', '"commits": 4'))
    with (
        gemjax.Checkpoints(tmp_path) as checkpoints,
        pytest.raises(gemjax.CheckpointError, match="its trace has columns"),
    ):
        checkpoints.load(like())


@pytest.mark.parametrize("engine", ["simulate", "devices"])
def test_a_run_goes_on_while_its_checkpoint_is_written(tmp_path, engine):
    """Whose checkpoint is loaded as it was, though later commits were given its state."""
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
    assert len(then) > 2
    expected, trace = then[max(then)]
    assert recorded == trace
    assert metadata == {"commits": max(then)}
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("after", ["save", "latest", "load", "close", "wait"])
def test_what_goes_wrong_in_the_background_is_raised_by_the_next_call(tmp_path, monkeypatch, after):
    failed = concurrent.futures.Future()
    failed.set_exception(OSError("no space left"))
    checkpoints, trace = gemjax.Checkpoints(tmp_path), arrivals.Gamma(3).trace(5)
    checkpoints.save(like(), trace)
    with monkeypatch.context() as patched:
        patched.setattr(type(checkpoints._checkpointer), "save_async", lambda *_, **__: failed)
        checkpoints.save(like(), arrivals.Gamma(3).trace(7), wait=False)
    calls = {"save": lambda: checkpoints.save(like(), trace), "load": lambda: checkpoints.load(like())}
    with pytest.raises(OSError, match="no space left"):
        calls.get(after, lambda: getattr(checkpoints, after) if after == "latest" else getattr(checkpoints, after)())()
    if after != "close":
        assert checkpoints.latest == 5  # Told once; the one before is whole.
        checkpoints.close()


def test_what_is_written_in_the_background_is_a_copy(tmp_path, monkeypatch):
    """So that it does not matter when Orbax reads it."""
    held, done = [], concurrent.futures.Future()
    done.set_result(True)
    state = jax.tree.map(jnp.copy, like())  # Not the arrays of other tests, which are deleted below.
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        write = lambda _, step, tree, **options: held.append(tree["state"]) or done
        monkeypatch.setattr(type(checkpoints._checkpointer), "save_async", write)
        checkpoints.save(state, arrivals.Gamma(3).trace(5), wait=False)
    expected = jax.tree.map(np.array, state)
    for leaf in jax.tree.leaves(state):
        leaf.delete()  # As a commit does that is given the state.
    for one, other in zip(jax.tree.leaves(held[0]), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


@contextlib.contextmanager
def files_that_may_not_grow():
    """As on a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# Threads of Orbax that failed may find their event loop closed when they are collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("wait", [True, False])
def test_a_checkpoint_that_cannot_be_written_leaves_those_before_it(tmp_path, wait):
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
    assert sorted(os.listdir(tmp_path)) == ["3", "4"]
    gc.collect()


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
        assert os.listdir(tmp_path) == ["5"]
    gc.collect()


def test_a_checkpoint_whose_replacement_was_not_written_in_full_is_put_back(tmp_path, monkeypatch):
    """As after a crash in the midst of the write."""
    interrupted, trace = gemjax.Checkpoints(tmp_path), arrivals.Gamma(3).trace(5)
    interrupted.save(like(), trace, {"note": "first"})
    with monkeypatch.context() as patched:
        patched.setattr(ocp.training.Checkpointer, "save_async", lambda *_, **__: concurrent.futures.Future())
        interrupted.save(like(), trace, {"note": "second"}, wait=False)
    (replaced,) = tmp_path.iterdir()
    assert replaced.name != "5"
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.load(like())[2] == {"note": "first"}
    assert os.listdir(tmp_path) == ["5"]
    shutil.copytree(tmp_path / "5", replaced)  # As after a crash when the write had ended.
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest == 5
    assert os.listdir(tmp_path) == ["5"]


@pytest.mark.parametrize("error", [OSError(), MemoryError()])
def test_an_error_without_a_message_is_named(tmp_path, monkeypatch, error):
    failed = concurrent.futures.Future()
    failed.set_exception(error)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        monkeypatch.setattr(ocp.training.Checkpointer, "save_async", lambda *_, **__: failed)
        with pytest.raises(CheckpointWriteError, match=rf"could not be written: {type(error).__name__} \(its arrays"):
            checkpoints.save(like(), arrivals.Gamma(3).trace(5))


def test_an_error_that_is_none_of_writing_is_raised_as_it_is(tmp_path, monkeypatch):
    failed = concurrent.futures.Future()
    failed.set_exception(KeyError("no such leaf"))
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        with monkeypatch.context() as patched:
            patched.setattr(ocp.training.Checkpointer, "save_async", lambda *_, **__: failed)
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
def test_metadata_that_are_no_json_are_refused_before_anything_is_written(tmp_path, metadata, wrong):
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(TypeError, match=wrong):
            checkpoints.save(like(), arrivals.Gamma(3).trace(5), metadata)
        assert checkpoints.latest is None


def test_what_a_write_left_may_vanish_while_the_folder_is_opened(tmp_path, monkeypatch):
    """As when a thread of that write removes it; a folder that lacks what its list named does not hinder the next write."""

    def vanished(path, **_):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "ocdbt.process_0")

    (tmp_path / "7.orbax-checkpoint-tmp" / "ocdbt.process_0").mkdir(parents=True)
    monkeypatch.setattr(type(epath.Path(tmp_path)), "rmtree", vanished)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        assert os.listdir(tmp_path) == []
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
    assert os.listdir(tmp_path) == ["5"]


def test_a_write_in_the_background_can_be_asked_after(tmp_path, monkeypatch):
    ready = concurrent.futures.Future()
    monkeypatch.setattr(ocp.training.Checkpointer, "save_async", lambda *_, **__: ready)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        state = gemjax.initial_state(gemjax.asgd(0.1, num_workers=3), jnp.zeros(2), num_workers=3)
        checkpoints.save(state, arrivals.Gamma(3).trace(0), wait=False)
        assert not checkpoints.wait(timeout=0)
        ready.set_result(True)
        assert checkpoints.wait(timeout=0)
