"""Damaged checkpoints: each is refused in one line, or loads exactly what was saved."""

import collections
import errno
import gc
import json
import os
import random
import re
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoints.states import arrived

import gemjax
from gemjax import arrivals
from gemjax.checkpoints import files

TRACE = arrivals.Gamma(3).trace(5)
USER = {"events": 1620, "note": "a run"}


def initial(seed=0):
    """Return a state with large and small arrays, arrays without elements, and typed keys."""
    params = {"w": jax.random.normal(jax.random.key(seed), (40, 16)), "none": jnp.zeros((0, 16))}
    model_state = {"key": jax.random.key(seed), "seen": jnp.int32(seed)}
    return arrived(gemjax.initial_state(gemjax.gem(0.1, num_workers=3), params, model_state=model_state))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    with gemjax.Checkpoints(folder) as checkpoints:
        checkpoints.save(initial(7), TRACE, USER)
    return folder


# When Orbax has failed, threads of TensorStore may still call its event loop, which is closed.
LATE = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(params=[pytest.param(True, id="digests"), pytest.param(False, id="older", marks=LATE)])
def damaged(request, saved, tmp_path):
    """Copy the checkpoint, to be damaged; checkpoints of older versions have no digests."""
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    if not request.param:
        make_older(tmp_path / "5")
    yield tmp_path
    if not request.param:
        gc.collect()  # Tasks that Orbax has abandoned report it here, and not in a later test.


@pytest.mark.parametrize("name", [files.DIGESTS, files.METADATA])
def test_a_pipe_in_place_of_a_file_is_damage(saved, tmp_path, name):
    """A reader would wait for its writer."""
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    (tmp_path / "5" / name).unlink()
    os.mkfifo(tmp_path / "5" / name)
    with (
        gemjax.Checkpoints(tmp_path, read_only=True) as checkpoints,
        pytest.raises(gemjax.CheckpointError, match="cannot be read"),
    ):
        checkpoints.load(initial())


def make_older(checkpoint):
    """Remove the digests, and their mention in the metadata."""
    (checkpoint / files.DIGESTS).unlink()
    path = checkpoint / files.METADATA
    metadata = json.loads(path.read_text())
    del metadata["custom_metadata"][files.HAS_DIGESTS]
    path.write_text(json.dumps(metadata))


def is_equal(state, other):
    def is_same(one, two):
        return (one.dtype, one.shape) == (two.dtype, two.shape) and np.array_equal(data(one), data(two))

    return jax.tree.structure(state) == jax.tree.structure(other) and all(
        map(is_same, jax.tree.leaves(state), jax.tree.leaves(other))
    )


def data(leaf):
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def refusal(folder):
    """Load the checkpoint; return the message of its refusal, or an empty one if it loads what was saved."""
    refused = None
    try:
        with gemjax.Checkpoints(folder) as checkpoints:
            state, trace, user = checkpoints.load(initial())
    except gemjax.CheckpointError as error:
        refused = error
    if refused is not None:
        assert str(refused).isprintable()
        assert str(refused).startswith(f"{folder}: checkpoint 5 ")
        assert (refused.__cause__, refused.__context__) == (None, None)
        return str(refused)
    assert is_equal(state, initial(7))
    assert trace == TRACE
    assert user == USER
    return ""


def assert_silent(folder, capfd, caplog):
    """Check that nothing was printed or logged; late tasks of Orbax may, also those that an earlier test abandoned."""
    if (folder / "5" / files.DIGESTS).is_file():
        assert capfd.readouterr().err == ""
        assert [record for record in caplog.records if record.name != "asyncio"] == []


def damages(path, content):
    """Yield a function for each kind of damage to a whole file."""

    def replace_by_folder():
        path.unlink()
        path.mkdir()

    yield lambda: path.write_bytes(content[: len(content) // 2])
    yield lambda: path.write_bytes(content + b"x")
    yield lambda: path.write_bytes(b"")
    yield lambda: path.write_bytes(random.Random(0).randbytes(len(content)))
    yield path.unlink
    yield replace_by_folder


@pytest.mark.slow
def test_a_checkpoint_with_any_file_damaged_is_refused_in_one_line_or_loads_what_was_saved(damaged, capfd, caplog):
    has_digests = (damaged / "5" / files.DIGESTS).exists()
    refused = 0
    for path in sorted(path for path in damaged.rglob("*") if path.is_file()):
        content = path.read_bytes()
        for act in damages(path, content):
            act()
            same = path.is_file() and path.read_bytes() == content
            message = refusal(damaged)
            assert not has_digests or same or path.name in message
            refused += bool(message)
            if path.is_dir():
                path.rmdir()
            path.write_bytes(content)
    assert refused > 20
    assert refusal(damaged) == ""
    assert_silent(damaged, capfd, caplog)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["5", "5/state", "5/state/d", "5/state/ocdbt.process_0", "5/state/array_metadatas"])
def test_a_file_in_place_of_a_folder_or_an_empty_one_is_refused_in_one_line(damaged, name, capfd, caplog):
    shutil.rmtree(damaged / name)
    (damaged / name).mkdir()
    messages = [refusal(damaged)]
    (damaged / name).rmdir()
    (damaged / name).write_text("x")
    messages.append(refusal(damaged))
    assert all(messages) or not (damaged / "5" / files.DIGESTS).is_file()
    assert_silent(damaged, capfd, caplog)


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_a_renamed_key_in_metadata_is_refused_in_one_line_or_does_not_matter(damaged, most, capfd, caplog):
    """One key at a time: the first of each name in a file, or four of them; the others are of other arrays."""
    renamed = 0
    for path in sorted(path for path in (damaged / "5").rglob("*") if path.is_file()):
        try:
            json.loads(text := path.read_text())
        except ValueError:
            continue
        seen = collections.Counter()
        for key in re.finditer(r'"((?:[^"\\]|\\.)+)"(?=\s*:)', text):
            is_unprotected = key[1] in USER and not (damaged / "5" / files.DIGESTS).exists()
            if is_unprotected or seen[key[1]] == most:
                continue
            seen[key[1]] += 1
            path.write_text(f"{text[: key.start(1)]}x{text[key.start(1) + 1 :]}")
            refusal(damaged)
            renamed += 1
        path.write_text(text)
    assert renamed > 30
    assert_silent(damaged, capfd, caplog)


@pytest.mark.parametrize("flips", [100, pytest.param(600, marks=pytest.mark.slow)])
def test_a_flipped_byte_is_refused_in_one_line(saved, tmp_path, flips, capfd, caplog):
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    rng = random.Random(0)
    paths = sorted(path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size)
    for _ in range(flips):
        path = rng.choice(paths)
        content = path.read_bytes()
        changed = bytearray(content)
        changed[rng.randrange(len(content))] ^= rng.randrange(1, 256)
        path.write_bytes(changed)
        assert refusal(tmp_path), path
        path.write_bytes(content)
    assert_silent(tmp_path, capfd, caplog)


def test_a_flipped_byte_of_an_array_is_found(saved, tmp_path):
    """Orbax keeps no checksum of large arrays, so that these bytes would load as other numbers."""
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    largest = max((tmp_path / "5" / "state").rglob("d/*"), key=lambda path: path.stat().st_size)
    content = largest.read_bytes()
    for place in np.linspace(0, len(content) - 1, 40, dtype=int):
        changed = bytearray(content)
        changed[place] ^= 1
        largest.write_bytes(changed)
        assert f"{largest.name}' has other bytes than were written; restore it from a copy" in refusal(tmp_path)


def test_metadata_are_read_without_the_files_of_arrays(saved, tmp_path, monkeypatch):
    """Orbax read those before their digests were compared; TensorStore's answers may come, and be shown, after the refusal."""
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    for path in (tmp_path / "5" / "state").rglob("*"):
        if path.is_file():
            path.write_bytes(bytes(path.stat().st_size))
    monkeypatch.setattr("orbax.checkpoint.v1.metadata", lambda *_: pytest.fail("Orbax was asked"))
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.metadata == USER


def test_metadata_beside_an_incomplete_state_are_refused(saved, tmp_path):
    """A reader of metadata, such as `BestCheckpoint`, relies on the state beside them."""
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    largest = max((tmp_path / "5" / "state").rglob("d/*"), key=lambda path: path.stat().st_size)
    size = largest.stat().st_size
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        largest.write_bytes(largest.read_bytes()[:-1])
        with pytest.raises(gemjax.CheckpointError, match=f"has {size - 1} bytes instead of {size}; restore it"):
            _ = checkpoints.metadata
        largest.unlink()
        with pytest.raises(gemjax.CheckpointError, match=f"{largest.name}' is missing; restore it"):
            _ = checkpoints.metadata


def test_the_metadata_of_a_damaged_checkpoint_are_refused(damaged):
    path = damaged / "5" / files.METADATA
    path.write_text(path.read_text().replace('"user"', '"used"'))
    with gemjax.Checkpoints(damaged) as checkpoints, pytest.raises(gemjax.CheckpointError, match="damaged: its "):
        _ = checkpoints.metadata


@pytest.mark.slow
def test_damaged_metadata_of_an_earlier_checkpoint_do_not_matter(damaged):
    with gemjax.Checkpoints(damaged) as checkpoints:
        checkpoints.save(initial(8), arrivals.Gamma(3).trace(6))
    path = damaged / "5" / files.METADATA
    path.write_text(path.read_text().replace('"init_timestamp_nsecs"', '"xnit_timestamp_nsecs"'))
    with gemjax.Checkpoints(damaged) as checkpoints:
        state, trace, _ = checkpoints.load(initial())
        checkpoints.save(initial(9), arrivals.Gamma(3).trace(7))
    assert is_equal(state, initial(8))
    assert trace == arrivals.Gamma(3).trace(6)
    assert sorted(os.listdir(damaged)) == ["6", "7"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [files.METADATA, "state/manifest.ocdbt"])
def test_a_refusal_ends_a_process_with_one_line(saved, tmp_path, name):
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    (tmp_path / "5" / name).write_bytes(b"x")
    code = f"""
import sys
sys.path[:0] = {sys.path!r}
import gemjax, test_damaged_checkpoints as tests
try:
    gemjax.Checkpoints({str(tmp_path)!r}).load(tests.initial())
except gemjax.CheckpointError as error:
    sys.exit(str(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert "checkpoint 5 is damaged: " in done.stderr


def test_a_checkpoint_whose_digests_cannot_be_written_is_not_written(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "no space left")

    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(initial(6), arrivals.Gamma(3).trace(4))
        monkeypatch.setattr(files, "write_digests", full)
        with pytest.raises(OSError, match="the newest good one is of 4 commits"):
            checkpoints.save(initial(7), TRACE, USER)
    assert os.listdir(tmp_path) == ["4"]


def test_missing_digests_are_damage(saved, tmp_path):
    """Without them no other damage would be found."""
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    (tmp_path / "5" / files.DIGESTS).unlink()
    assert refusal(tmp_path).startswith(
        f"{tmp_path}: checkpoint 5 is damaged: its file {files.DIGESTS} is missing; restore"
    )
    with gemjax.Checkpoints(tmp_path) as checkpoints, pytest.raises(gemjax.CheckpointError, match="is missing"):
        _ = checkpoints.metadata


def test_digests_of_another_kind_are_damage(saved, tmp_path):
    """Deeply nested JSON ended in a RecursionError."""
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    for text, what in (("[" * 100_000, "RecursionError"), ("[]", "AttributeError"), ('{"a": 1}', "TypeError")):
        (tmp_path / "5" / files.DIGESTS).write_text(text)
        assert refusal(tmp_path).startswith(
            f"{tmp_path}: checkpoint 5 is damaged: its file {files.DIGESTS} cannot be read ({what})"
        )


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["simulate", "devices"])
def test_arrays_without_elements_train_and_are_restored(tmp_path, engine):
    params = {"x": jnp.ones(3), "none": jnp.zeros((2, 0, 4), jnp.bfloat16), "keys": jnp.zeros(0)}
    model_state = {"seen": jnp.zeros((0,), jnp.int32), "keys": jax.random.split(jax.random.key(0), 3)[:0]}
    tx = gemjax.gem(0.05, num_workers=2)

    def loss_fn(params, model_state, batch, key):
        return jnp.sum((params["x"] - batch) ** 2) + params["keys"].sum(), (model_state, {})

    batches = lambda worker, step: jnp.arange(3.0) + 0.1 * step
    start = gemjax.initial_state(tx, params, model_state=model_state)
    whole, trace = tmp_path / "whole", arrivals.Gamma(2).trace(12)
    if engine == "simulate":
        half = gemjax.simulate(tx, loss_fn, params, batches, trace.first(6), model_state=model_state)
    else:
        half = gemjax.run_on_devices(tx, loss_fn, params, batches, 6, model_state=model_state)
    with gemjax.Checkpoints(whole) as checkpoints:
        checkpoints.save(half.state, half.trace)
        state, recorded, _ = checkpoints.load(start)
    assert recorded == half.trace
    assert is_equal(state, half.state)
    if engine == "simulate":
        rest = gemjax.simulate(tx, loss_fn, params, batches, trace, model_state=model_state, state=state)
    else:
        rest = gemjax.run_on_devices(
            tx, loss_fn, params, batches, 12, model_state=model_state, state=state, recorded=recorded
        )
    assert int(rest.state.commits) == 12


def test_arrays_without_elements_are_compared_by_shape_and_dtype(tmp_path):
    state = lambda *none: gemjax.initial_state(
        gemjax.asgd(0.1, num_workers=3), {"x": jnp.ones(2), "none": jnp.zeros(*none)}
    )
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state((0, 4)), TRACE.first(0))
        for other, wrong in (
            (state((0, 5)), r"saved float32\[0, 4\], expected float32\[0, 5\]"),
            (state((0, 4), jnp.bfloat16), r"saved float32\[0, 4\], expected bfloat16\[0, 4\]"),
            (state((1, 4)), r"saved float32\[0, 4\], expected float32\[1, 4\]"),
        ):
            with pytest.raises(gemjax.CheckpointError, match=wrong):
                checkpoints.load(other)


@pytest.mark.parametrize("impl", ["unsafe_rbg", "rbg", "threefry2x32"])
def test_keys_of_another_implementation_are_refused(tmp_path, impl):
    def state(impl):
        model_state = {"key": jax.random.key(3, impl=impl)}
        return gemjax.initial_state(gemjax.asgd(0.1, num_workers=3), jnp.ones(2), model_state=model_state)

    other = "rbg" if impl == "unsafe_rbg" else "unsafe_rbg"
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state(impl), TRACE.first(0))
        assert is_equal(checkpoints.load(state(impl))[0], state(impl))
        wrong = rf"implementation '{impl}' at 'model_state.key', but those of this run are '{other}'"
        with pytest.raises(gemjax.CheckpointError, match=wrong):
            checkpoints.load(jax.eval_shape(lambda: state(other)))
