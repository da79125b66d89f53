"""Background writes, and folders that are read while a checkpoint is written."""

import concurrent.futures
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoints.states import like
from orbax.checkpoint import v1 as ocp

import gemjax
from gemjax import arrivals, testing
from gemjax.checkpoints import files


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
            gemjax.simulate(tx, loss_fn, params, batches, trace, callback_every=4, callback=callback)
        else:
            gemjax.run_on_devices(tx, loss_fn, params, batches, 24, num_workers=3, callback=callback, callback_every=4)
        state, recorded, metadata = checkpoints.load(gemjax.initial_state(tx, params, num_workers=3))
    assert len(then) > 1
    expected, trace = then[max(then)]
    assert recorded == trace
    assert metadata == {"commits": max(then)}
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


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


def test_a_write_that_ends_just_after_a_poll_has_not_failed(tmp_path, monkeypatch):
    class Ready(concurrent.futures.Future):
        """A write that ends when the poll has given up."""

        def result(self, timeout=None):
            try:
                return super().result(timeout)
            except TimeoutError:
                self.set_result(None)
                raise

    checkpoints = gemjax.Checkpoints(tmp_path)
    monkeypatch.setattr(checkpoints, "_writing", Ready())
    assert not checkpoints.wait(timeout=0)
    checkpoints._writing.set_result(None)
    assert checkpoints.wait(timeout=0)


def test_metadata_are_those_of_the_call(tmp_path, monkeypatch):
    """Orbax may write them at any time."""
    held, done = [], concurrent.futures.Future()
    done.set_result(True)
    metadata = {"epoch": 1, "rates": [0.1]}
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        write = lambda path, tree, *, custom_metadata, **_: held.append(custom_metadata) or os.mkdir(path) or done
        monkeypatch.setattr(ocp, "save_checkpointables_async", write)
        checkpoints.save(like(), arrivals.Gamma(3).trace(5), metadata, wait=False)
        metadata["epoch"] = 2
        metadata["rates"].append(0.2)
    assert held[0]["user"] == {"epoch": 1, "rates": [0.1]}


@pytest.mark.slow
def test_a_write_in_the_background_is_finished_before_the_process_ends(tmp_path):
    code = f"""
import sys
sys.path[:0] = {sys.path!r}
import gemjax, jax.numpy as jnp
checkpoints = gemjax.Checkpoints({str(tmp_path)!r})
state = gemjax.initial_state(gemjax.asgd(0.1, num_workers=2), jnp.ones(300_000))
checkpoints.save(state, gemjax.Trace([], num_workers=2), wait=False)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.listdir(tmp_path) == ["0"]
    state = gemjax.initial_state(gemjax.asgd(0.1, num_workers=2), jnp.ones(300_000))
    assert gemjax.Checkpoints(tmp_path).load(state)[1] == gemjax.Trace([], num_workers=2)
