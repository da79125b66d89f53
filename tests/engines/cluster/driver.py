"""A driver that trains on a cluster, to be run as a process of its own that may be killed and started again.

Its argument is an :class:`Options` as JSON. It prints "processes PID …" once, and in each callback "commits N" with those of
each worker. It writes the trace and the final parameters to its folder.
"""

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np

WORKERS, SEED = 4, 5
LIMIT = 300.0  # Seconds after which a run that does not end has failed; many times what it needs.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # Otherwise Ray replaces the address 127.0.0.1 of the nodes.


@dataclasses.dataclass
class Options:
    """Task of a driver.

    Attributes:
      folder: its checkpoints, its log and its results; the run ends early when it has a file "enough".
      commits: commits to reach.
      address: the cluster to join; ``None`` starts one.
      central_hosts: as for :class:`gemjax.Cluster`.
      further: parameters besides those of the problem.
      kills: numbers of commits at which a worker's process is killed.
      signal_at: number of commits at which the driver sends itself ``signal``; ``None`` for never.
      every: commits between two callbacks.
      checkpoint_every: commits between two checkpoints, or some more.
    """

    folder: str
    commits: int
    address: str | None = None
    central_hosts: int | None = None
    further: int = 0
    kills: tuple[int, ...] = ()
    signal_at: int | None = None
    signal: int = signal.SIGKILL
    every: int = 10
    checkpoint_every: int = 50


def setting(further=0):
    """Return the method and the problem, in double precision, with so many ``further`` parameters."""
    from engines.problems import quadratic_with_dropout

    import gemjax

    tx, problem = gemjax.gem(0.02, 0.9, num_workers=WORKERS), quadratic_with_dropout("float64")
    if not further:
        return tx, problem

    def loss_fn(params, model_state, batch, key):
        loss, rest = problem.loss_fn(params, model_state, batch, key)
        return loss + 0.5 * jax.numpy.sum((params["further"] - batch[0]) ** 2), rest

    return tx, problem._replace(loss_fn=loss_fn, params=problem.params | {"further": jax.numpy.ones(further)})


class Killer:
    """Kills the process of a random worker that lives when a number of commits is reached.

    Each kill is a line in a file, so that a driver that is started again goes on with the next.
    """

    def __init__(self, folder, faults, kills):
        self.file, self.faults, self.kills = Path(folder, "killed"), faults, sorted(kills)
        self.file.touch()

    def __call__(self, commits):
        from engines.cluster import processes

        done = len(self.file.read_text().splitlines())
        if done == len(self.kills) or commits < self.kills[done]:
            return
        pids = {worker: self.faults.pid(worker) for worker in range(WORKERS)}
        living = [worker for worker, pid in pids.items() if pid is not None and processes.lives(pid)]
        if living:
            worker = random.Random(done).choice(living)
            os.kill(pids[worker], signal.SIGKILL)
            with self.file.open("a") as file:
                file.write(f"{commits} {worker} {pids[worker]}\n")


def main(options):
    from engines.cluster.faults import WorkerFaults
    from engines.cluster.processes import tree

    import gemjax

    jax.config.update("jax_enable_x64", True)
    folder = Path(options.folder)
    tx, problem = setting(options.further)
    faults = WorkerFaults(folder)
    killer = Killer(folder, faults, options.kills)
    checkpoints = gemjax.Checkpoints(folder / "checkpoints")
    state = recorded = None
    if checkpoints.latest is not None:
        like = gemjax.initial_state(tx, problem.params, model_state=problem.model_state)
        state, recorded, _ = checkpoints.load(like)
        print("resumed", len(recorded), flush=True)

    def callback(progress):
        if progress.commits >= (checkpoints.latest or 0) + options.checkpoint_every:
            checkpoints.save(progress.state(), progress.trace())
        killer(progress.commits)
        if options.signal_at is not None and progress.commits >= options.signal_at:
            os.kill(os.getpid(), options.signal)
        counts = np.bincount(progress.trace().worker, minlength=WORKERS)
        print("commits", progress.commits, *counts, flush=True)
        return (folder / "enough").exists()

    with (
        gemjax.EventLog(folder / "log") as log,
        gemjax.Cluster(WORKERS, address=options.address, central_hosts=options.central_hosts) as cluster,
    ):
        print("processes", *tree(os.getpid()), flush=True)
        try:
            result = gemjax.run_on_cluster(
                tx, problem.loss_fn, problem.params, faults.around(problem.batches), options.commits, cluster=cluster,
                model_state=problem.model_state, seed=SEED, state=state, recorded=recorded, log=log, callback=callback,
                callback_every=options.every,
            )  # fmt: skip
        except KeyboardInterrupt as stop:
            write(folder, stop.result)
            print("interrupted", len(stop.result.trace), flush=True)
            raise
    write(folder, result)
    print("done", len(result.trace), flush=True)


@contextlib.contextmanager
def running(options, command=(), **environment):
    """Start a driver; kill it if it has not ended in time.

    Args:
      options: the keywords of an :class:`Options`.
      command: words before its command.
      environment: further variables of its environment.
    """
    environment = os.environ | environment
    tests = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [*command, sys.executable, __file__, json.dumps(options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        timer = threading.Timer(LIMIT, process.kill)
        timer.start()
        try:
            yield process
        finally:
            timer.cancel()
            process.kill()


def until(process, word, number=0):
    """Read the driver's output up to a line of ``word`` and at least ``number``; return the numbers of that line."""
    return first(process, word, lambda numbers: numbers[0] >= number)


def first(process, word, condition):
    """Read the driver's output up to a line of ``word`` with numbers that meet the condition; return them."""
    for line in process.stdout:  # Ray prints to it, too.
        found, *words = line.split() or [""]
        if found == word and condition(numbers := [int(each) for each in words]):
            return numbers
    raise AssertionError(f"the driver has ended without such a line of {word}")


def all_commit(process, before=None):
    """Wait until each worker has committed since ``before``; return how many commits there are, and of each worker."""
    before = before or [0] * (WORKERS + 1)
    began = time.monotonic()
    now = first(process, "commits", lambda now: all(now[k] > before[k] for k in range(1, WORKERS + 1)))
    print(f"all workers commit after {time.monotonic() - began:.1f} s")
    return now


def assert_replays(tx, problem, trace, params):
    """Check that the trace has each step of each worker once, and that its replay gives the same parameters.

    A gradient that was applied twice, or not at all, would change them. Large staleness lets rounding grow as any other
    difference does, so the tolerance grows with the effect of another beginning.
    """
    import gemjax

    for worker in range(trace.num_workers):
        steps = trace.step[trace.worker == worker]
        np.testing.assert_array_equal(steps, np.arange(len(steps)), err_msg=f"steps of worker {worker}")

    def replayed(moved):
        start = jax.tree.map(lambda leaf: leaf * (1 + moved), problem.params)
        result = gemjax.simulate(
            tx, problem.loss_fn, start, problem.batches, trace, model_state=problem.model_state, seed=SEED
        )
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(result.params)])

    replay, moved = replayed(0.0), replayed(1e-12)
    growth, scale = np.abs(moved - replay).max() / 1e-12, np.abs(replay).max()
    found = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
    print(f"replays to {np.abs(found - replay).max():.1e}; another beginning grows by {growth:.1e}")
    np.testing.assert_allclose(found, replay, rtol=0, atol=1e-10 * max(scale, growth))


def write(folder, result):
    """Write the trace and the parameters for :func:`read`."""
    result.trace.save(folder / "trace.npz")
    np.savez(folder / "params.npz", **result.params)


def read(folder):
    """Return the trace and the parameters of the driver's result."""
    import gemjax

    with np.load(Path(folder, "params.npz")) as file:
        return gemjax.Trace.load(Path(folder, "trace.npz")), dict(file)


if __name__ == "__main__":
    main(Options(**json.loads(sys.argv[1])))
