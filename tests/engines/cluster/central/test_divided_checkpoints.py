"""Checkpoints of a central variable over two actors of Ray, which write and read it together."""

import errno
import os
import select
import signal
import subprocess
import sys
import threading

import jax
import pytest
from engines.cluster.central.divided import GEM, LOST, MATRICES, N, assert_replays, run
from engines.problems import assert_close

import gemjax
from gemjax.engines.cluster.central.driver import SharedCentral
from gemjax.engines.memory import Elsewhere, here

pytestmark = pytest.mark.slow


def like():
    return gemjax.initial_state(GEM, MATRICES.params)


class InActor(dict):
    """Metadata that the first actor writes as its last file, when all arrays are written."""

    def items(self):
        if jax.process_count() > 1:
            self.written()
        return super().items()


class Held(InActor):
    """Metadata whose write waits for a byte in a pipe."""

    def written(self):
        pipe = os.open(self["pipe"], os.O_RDWR)
        assert select.select([pipe], [], [], 60)[0]


class Full(InActor):
    """Metadata that find the disk full, while the other actor waits for the first one."""

    def written(self):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_run_saves_and_resumes_its_own_checkpoints(two, x64, tmp_path):
    """At the end the actors write while they exist; a resumed run reads in them, and any other engine resumes it as well."""
    run(GEM, MATRICES, cluster=two, checkpoints=tmp_path, checkpoint_seconds=1e-9)
    resumed = run(GEM, MATRICES, 40, cluster=two, checkpoints=tmp_path, resume=True)
    assert len(resumed.trace) == len(resumed.history["loss"]) == 40
    assert_replays(resumed, GEM, MATRICES)
    on_one = gemjax.run_on_devices(
        GEM, MATRICES.loss_fn, MATRICES.params, MATRICES.batches, 60, num_workers=N, checkpoints=tmp_path, resume=True
    )
    assert on_one.trace.first(40) == resumed.trace


@pytest.mark.parametrize("wait", [True, False])
def test_all_actors_write_and_read_one_checkpoint(wait, two, x64, tmp_path, monkeypatch):
    """Any engine loads it, and any number of actors continues from it.

    In the background it begins to be written after later commits, and others happen before it ends.
    """
    seen, checkpoints, writer, later = [], gemjax.Checkpoints(tmp_path / "run"), SharedCentral.writer, threading.Event()
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)

    def late(central, leaves):
        write = writer(central, leaves)
        return lambda path, arrays, metadata: (
            later.wait(60) and write(path, arrays, Held(metadata, pipe=str(tmp_path / "pipe")))
        )

    monkeypatch.setattr(SharedCentral, "writer", writer if wait else late)

    def callback(progress):
        if not seen:
            checkpoints.save(progress.state(), progress.trace(), {"note": "of the user"}, wait=wait)
            seen.append(here(progress.state()))
        elif not later.is_set():
            later.set()
        else:
            os.write(pipe, b".")

    run(GEM, MATRICES, 12, cluster=two, callback=callback, callback_every=4)
    state, trace, metadata = checkpoints.load(like())
    assert metadata == {"note": "of the user"}
    assert_close(jax.device_get(state), jax.device_get(seen[0]), rtol=0)
    left, _, _ = checkpoints.load(like(), in_files=True)
    assert sum(isinstance(leaf, Elsewhere) for leaf in jax.tree.leaves(left)) == 9  # Parameters, views and momenta.
    assert_replays(run(GEM, MATRICES, 12, state=left, recorded=trace, cluster=two), GEM, MATRICES)
    replay = gemjax.simulate(GEM, *MATRICES[:3], trace)
    assert_close(jax.device_get(state.params), jax.device_get(replay.params), rtol=1e-10)


def test_what_a_run_keeps_to_be_written_is_not_replaced_by_the_next_run(two, x64, tmp_path, monkeypatch):
    """The actors are the same, and the write of the first run begins when the second one has kept its state."""
    writer, kept, seen = SharedCentral.writer, threading.Event(), []

    def late(central, leaves):
        write = writer(central, leaves)
        if seen:
            kept.set()
        return lambda *arguments: kept.wait(60) and write(*arguments)

    monkeypatch.setattr(SharedCentral, "writer", late)
    both = [gemjax.Checkpoints(tmp_path / name) for name in "ab"]
    for checkpoints in both:

        def callback(progress, checkpoints=checkpoints):
            checkpoints.save(progress.state(), progress.trace(), wait=False)
            seen.append(here(progress.state()))
            return True

        run(GEM, MATRICES, 12, cluster=two, callback=callback, callback_every=4 + 2 * len(seen))
    for checkpoints, state in zip(both, seen, strict=True):
        assert_close(jax.device_get(checkpoints.load(like())[0]), jax.device_get(state), rtol=0)


def test_actors_read_a_checkpoint_of_an_engine_on_one_host(two, x64, tmp_path):
    first = gemjax.simulate(GEM, *MATRICES[:3], gemjax.arrivals.Gamma(N).trace(6, seed=0))
    checkpoints = gemjax.Checkpoints(tmp_path)
    checkpoints.save(first.state, first.trace)
    left, trace, _ = checkpoints.load(first.state, in_files=True)
    assert_close(jax.device_get(here(left)), jax.device_get(first.state), rtol=0)
    assert_replays(run(GEM, MATRICES, 12, state=left, recorded=trace, cluster=two), GEM, MATRICES)
    again = gemjax.Checkpoints(tmp_path / "again")
    again.save(left, trace)
    assert_close(jax.device_get(again.load(first.state)[0]), jax.device_get(first.state), rtol=0)


class OfAnotherHost:
    """An actor of a host with a file system of its own."""

    def __init__(self, actor):
        self._actor = actor

    def __getattr__(self, name):
        if name != "sees":
            return getattr(self._actor, name)
        return type("Method", (), {"remote": lambda folder: self._actor.sees.remote(f"{folder}-there")})


def test_a_run_goes_on_if_checkpoints_cannot_be_written(two, x64, tmp_path, monkeypatch):
    """One that not all hosts would see is refused before it is written."""
    checkpoints, writer, errors = gemjax.Checkpoints(tmp_path), SharedCentral.writer, []
    commits = []

    def full(central, leaves):
        write = writer(central, leaves)
        return lambda path, arrays, metadata: write(path, arrays, Full(metadata))

    def callback(progress):
        commits.append(progress.commits)
        actor = two._central_actors[1]
        two._world.actors[1] = OfAnotherHost(actor) if len(commits) == 1 else actor
        monkeypatch.setattr(SharedCentral, "writer", full if len(commits) == 2 else writer)
        try:
            checkpoints.save(progress.state(), progress.trace(), wait=True)
        except gemjax.engines.running.checkpoints.CheckpointWriteError as error:
            errors.append(str(error))

    assert_replays(run(GEM, MATRICES, 12, cluster=two, callback=callback, callback_every=3), GEM, MATRICES)
    assert "a file system that all hosts share" in errors[0]
    assert "No space left on device" in errors[1]
    assert checkpoints.commits == commits[2:]
    assert len(list(tmp_path.iterdir())) == len(commits[2:]) + 1  # And the lock.


def test_the_loss_of_an_actor_while_it_writes_leaves_the_last_checkpoint(two, x64, tmp_path, monkeypatch):
    """Another number of actors reads it."""
    import ray

    checkpoints, commits, writer = gemjax.Checkpoints(tmp_path), [], SharedCentral.writer

    def killed(central, leaves):
        write = writer(central, leaves)

        def wait(*arguments):
            ray.kill(two._central_actors[1])
            write(*arguments)

        return wait if len(commits) == 2 else write

    def callback(progress):
        commits.append(progress.commits)
        checkpoints.save(progress.state(), progress.trace())

    monkeypatch.setattr(SharedCentral, "writer", killed)
    with pytest.raises(gemjax.RunFailedError, match=LOST):
        run(GEM, MATRICES, 12, cluster=two, callback=callback, callback_every=3)
    assert len(commits) == 2
    assert checkpoints.commits == commits[:1]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", str(commits[0])]
    state, trace, _ = checkpoints.load(like(), in_files=True)
    two.central_hosts = 3
    assert_replays(run(GEM, MATRICES, 12, state=state, recorded=trace, cluster=two), GEM, MATRICES)
    assert len(two._central_actors) == 3


DRIVER = """
import os, signal, sys
import gemjax
from gemjax.engines.running.checkpoints import folder
from engines.cluster.central.divided import MATRICES

checkpoints = gemjax.Checkpoints(sys.argv[1])

def callback(progress):
    if checkpoints.commits:
        folder.publish = lambda *arguments, **options: os.kill(os.getpid(), signal.SIGKILL)
    checkpoints.save(progress.state(), progress.trace(), wait=True)

with gemjax.Cluster(1, central_hosts=2) as cluster:
    tx = gemjax.gem(0.05, num_workers=1)
    gemjax.run_on_cluster(tx, *MATRICES[:3], 30, cluster=cluster, callback=callback, callback_every=6)
"""


def test_a_driver_is_killed_while_it_writes(x64, tmp_path):
    """The run is continued on another engine from the checkpoint before, and the next one is complete."""
    pytest.importorskip("ray")
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "JAX_ENABLE_X64": "1"}
    assert subprocess.run([sys.executable, "-c", DRIVER, str(tmp_path)], env=paths).returncode == -signal.SIGKILL
    checkpoints = gemjax.Checkpoints(tmp_path)
    (first,), (unfinished,) = checkpoints.commits, tmp_path.glob("*.unfinished-*")
    tx = gemjax.gem(0.05, num_workers=1)
    state, trace, _ = checkpoints.load(gemjax.initial_state(tx, MATRICES.params))
    result = gemjax.run_on_devices(tx, *MATRICES[:3], first + 6, num_workers=1, state=state, recorded=trace)
    assert_replays(result, tx, MATRICES)
    checkpoints.save(result.state, result.trace)
    assert checkpoints.commits == [first, first + 6]
    assert not unfinished.exists()
