"""Checkpoints whose parts are written and read by the actors of the central variable, on a fake Ray of threads, and on Ray."""

import os
import signal
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines.cluster.central.divided import GEM, LOST, MATRICES, N, assert_replays, run, size
from engines.problems import assert_close

import gemjax
from gemjax.checkpoints import parts
from gemjax.engines.cluster.central.stand_ins import Holder
from gemjax.engines.memory import Elsewhere, here


@pytest.fixture(autouse=True)
def all_may_stay_in_files(monkeypatch):
    """Actors of the fake Ray are threads, of which one at a time may call Orbax."""
    call, alone = parts.Writer.__call__, threading.Lock()

    def write(writer, arrays):
        with alone:
            call(writer, arrays)

    monkeypatch.setattr(parts, "LARGE", 64)
    monkeypatch.setattr(parts.Writer, "__call__", write)


def like():
    return gemjax.initial_state(GEM, MATRICES.params)


def saving(checkpoints, at, *, wait=True, seen=None):
    """Return a callback that saves after ``at`` commits."""

    def callback(progress):
        if progress.commits == at:
            checkpoints.save(progress.state(), progress.trace(), {"note": "of the user"}, wait=wait)
            if seen is not None:
                seen.append(here(progress.state()))
        if progress.commits == progress.total:
            checkpoints.wait()  # Before the actors end.

    return callback


@pytest.mark.slow
def test_each_actor_writes_and_reads_its_own_arrays(fake, x64, tmp_path):
    """Any engine loads the checkpoint, and any number of actors continues from it, without large arrays in the driver."""
    seen, checkpoints = [], gemjax.Checkpoints(tmp_path)
    run(GEM, MATRICES, 8, callback=saving(checkpoints, 4, wait=False, seen=seen), callback_every=1)
    state, trace, metadata = checkpoints.load(like())
    assert metadata == {"note": "of the user"}
    assert jax.tree.structure(state) == jax.tree.structure(seen[0])
    assert_close(jax.device_get(state), jax.device_get(seen[0]), rtol=0)
    for folder in ("0", "1"):
        assert sum(path.stat().st_size for path in (tmp_path / "4" / "parts" / folder).rglob("*")) > 8 * 32 * 32
    replay = gemjax.simulate(GEM, *MATRICES[:3], trace)
    assert_close(jax.device_get(state.params), jax.device_get(replay.params), rtol=1e-10)
    left, _, _ = checkpoints.load(like(), in_files=True)
    assert sum(isinstance(leaf, Elsewhere) for leaf in jax.tree.leaves(left)) == 9  # Parameters, views and momenta.
    begun = len(fake.calls)
    result = run(GEM, MATRICES, 12, state=left, recorded=trace, cluster=gemjax.Cluster(N, central_hosts=3))
    assert sum(size(arguments) for method, arguments in fake.calls[begun:] if method == "load") == 0
    assert_replays(result, GEM, MATRICES)
    with gemjax.Cluster(N) as cluster:
        whole = gemjax.run_on_cluster(GEM, *MATRICES[:3], 12, state=left, recorded=trace, cluster=cluster)
    assert_replays(whole, GEM, MATRICES)


@pytest.mark.slow
def test_actors_read_a_checkpoint_of_an_engine_on_one_host(fake, x64, tmp_path):
    first = gemjax.simulate(GEM, *MATRICES[:3], gemjax.arrivals.Gamma(N).trace(6, seed=0))
    checkpoints = gemjax.Checkpoints(tmp_path)
    checkpoints.save(first.state, first.trace)
    left, trace, _ = checkpoints.load(first.state, in_files=True)
    assert_close(jax.device_get(here(left)), jax.device_get(first.state), rtol=0)
    assert_replays(run(GEM, MATRICES, 12, state=left, recorded=trace), GEM, MATRICES)
    again = gemjax.Checkpoints(tmp_path / "again")
    again.save(left, trace)
    assert_close(jax.device_get(again.load(first.state)[0]), jax.device_get(first.state), rtol=0)


@pytest.mark.slow
def test_parameters_that_are_not_finite_are_found_where_they_are(fake, x64, tmp_path):
    checkpoints = gemjax.Checkpoints(tmp_path)

    def callback(progress):
        state = progress.state()
        actor = state.params["b"].owner
        (part,) = [one.actor._part for one in fake.handles if getattr(one.actor, "_place", None) == actor.place]
        part.shared[state.params["b"].leaf.number] = jnp.full((32, 32), jnp.nan)
        with pytest.raises(gemjax.CheckpointError, match=r"params\['b'\] has 1024 of 1024 numbers that are not finite"):
            checkpoints.save(state, progress.trace())
        return True

    run(GEM, MATRICES, 4, callback=callback, callback_every=1)
    assert checkpoints.commits == []


@pytest.mark.slow
def test_the_loss_of_an_actor_while_it_writes_leaves_the_last_checkpoint(fake, x64, tmp_path):
    checkpoints, commits = gemjax.Checkpoints(tmp_path), []

    def callback(progress):
        commits.append(progress.commits)
        if progress.commits == 6:
            fake.lose = lambda actor, method, arguments: (
                method == "apply" and isinstance(arguments[1], parts.Writer) and arguments[1].path.endswith("part-1")
            )
        checkpoints.save(progress.state(), progress.trace())

    with pytest.raises(gemjax.RunFailedError, match=LOST):
        run(GEM, MATRICES, 12, callback=callback, callback_every=3)
    fake.lose = lambda actor, method, arguments: False
    assert commits == [3, 6]
    assert checkpoints.commits == [3]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "3"]
    state, trace, _ = checkpoints.load(like(), in_files=True)
    assert_replays(run(GEM, MATRICES, 12, state=state, recorded=trace), GEM, MATRICES)


@pytest.mark.slow
@pytest.mark.parametrize("names", [("path", "unfinished"), ("path",)], ids=["before", "after"])
def test_a_part_on_a_host_of_its_own_file_system_is_refused(names, fake, x64, tmp_path, monkeypatch):
    """It is refused before it is written, so that retries do not fill the disk, if that host has no such folder."""
    call, other = parts.Writer.__call__, f"{tmp_path}-of-another-host"

    def write(writer, arrays):
        call(writer._replace(**{name: getattr(writer, name).replace(str(tmp_path), other) for name in names}), arrays)

    monkeypatch.setattr(parts.Writer, "__call__", write)
    checkpoints = gemjax.Checkpoints(tmp_path)
    with pytest.raises(gemjax.checkpoints.CheckpointWriteError, match="file system that all hosts share"):
        run(GEM, MATRICES, 4, callback=saving(checkpoints, 2), callback_every=1)
    assert checkpoints.commits == []
    assert os.path.exists(other) == (names == ("path",))


@pytest.mark.slow
def test_a_part_that_was_cut_is_found(fake, x64, tmp_path):
    checkpoints = gemjax.Checkpoints(tmp_path)
    run(GEM, MATRICES, 4, callback=saving(checkpoints, 2), callback_every=1)
    data = max((tmp_path / "2" / "parts" / "1").rglob("d/*"), key=lambda path: path.stat().st_size)
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(gemjax.CheckpointError, match=r"parts/1/.* has \d+ bytes instead of \d+"):
        checkpoints.load(like())


DRIVER = """
import os, signal, sys
import gemjax
from gemjax.checkpoints import parts
from gemjax.engines.cluster.central import division
from engines.cluster.central.divided import GEM, MATRICES, N

division.SMALL = 4
checkpoints = gemjax.Checkpoints(sys.argv[1])

def killed(kept, unfinished):
    writers = [parts.Writer(str(part.path), str(unfinished)) for part in kept]
    for wait in [part.call(writer) for part, writer in zip(kept, writers)]:
        wait()
    os.kill(os.getpid(), signal.SIGKILL)

def callback(progress):
    if progress.commits == 12:
        parts.collect = killed
    checkpoints.save(progress.state(), progress.trace())

with gemjax.Cluster(N, central_hosts=2) as cluster:
    gemjax.run_on_cluster(GEM, *MATRICES[:3], 30, cluster=cluster, callback=callback, callback_every=6)
"""


@pytest.mark.slow
def test_on_ray_a_driver_is_killed_when_all_parts_are_written_and_an_actor_while_it_writes(
    small, tmp_path, monkeypatch
):
    pytest.importorskip("ray")
    killed = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path)], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert killed.returncode == -signal.SIGKILL
    checkpoints = gemjax.Checkpoints(tmp_path)
    assert checkpoints.commits == [6]
    assert len(list(tmp_path.glob("12*-part-*"))) == 2
    state, trace, _ = checkpoints.load(like(), in_files=True)
    keep = Holder.keep

    def dying(holder, arrays):
        def call(fn):
            def write(arrays):
                fn(arrays)
                os.kill(os.getpid(), signal.SIGKILL)

            return kept(write if isinstance(fn, parts.Writer) and holder.place == 1 else fn)

        kept = keep(holder, arrays)
        return call

    def callback(progress):
        if progress.commits == 18:
            monkeypatch.setattr(Holder, "keep", dying)
        checkpoints.save(progress.state(), progress.trace())

    with gemjax.Cluster(N, central_hosts=3) as cluster:
        arguments = (GEM, *MATRICES[:3])
        with pytest.raises(gemjax.RunFailedError, match="divided over 3 actors, has lost one of them"):
            gemjax.run_on_cluster(
                *arguments, 30, state=state, recorded=trace, cluster=cluster, callback=callback, callback_every=6
            )
        assert checkpoints.commits == [6, 12]
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "12", "6"]
        state, trace, _ = checkpoints.load(like(), in_files=True)
        result = gemjax.run_on_cluster(*arguments, 20, state=state, recorded=trace, cluster=cluster)
        replay = gemjax.simulate(*arguments, result.trace)
    assert_close(jax.device_get(result.params), jax.device_get(replay.params), rtol=1e-4)
    assert len(np.unique(result.trace.worker)) == N
