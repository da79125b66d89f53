"""A driver that trains on a cluster, to be run as a process of its own that may be killed and started again.

Its argument is an :class:`Options` as JSON. It prints "processes PID …" once and "commits N" in each callback, and writes the
trace and the final parameters to its folder.
"""

import dataclasses
import json
import os
import random
import signal
import sys
from pathlib import Path

import jax
import numpy as np

WORKERS, SEED = 4, 5


@dataclasses.dataclass
class Options:
    """Task of a driver.

    Attributes:
      folder: its checkpoints, its log and its results.
      commits: commits to reach.
      address: the cluster to join; ``None`` starts one.
      kills: numbers of commits at which a worker's process is killed.
      signal_at: number of commits at which the driver sends itself ``signal``; ``None`` for never.
      every: commits between two callbacks.
      checkpoint_every: commits between two checkpoints, or some more.
    """

    folder: str
    commits: int
    address: str | None = None
    kills: tuple[int, ...] = ()
    signal_at: int | None = None
    signal: int = signal.SIGKILL
    every: int = 10
    checkpoint_every: int = 50


def setting():
    """Return the method and the problem, in double precision."""
    from engines.problems import quadratic_with_dropout

    import gemjax

    return gemjax.gem(0.02, 0.9, num_workers=WORKERS), quadratic_with_dropout("float64")


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
    tx, problem = setting()
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
        print("commits", progress.commits, flush=True)

    with gemjax.EventLog(folder / "log") as log, gemjax.Cluster(WORKERS, address=options.address) as cluster:
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
