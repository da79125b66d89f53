"""Faults that happen inside the worker processes, at given steps, once each."""

import os
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np


class WorkerFaults:
    """Faults keyed by (worker, step), which a worker meets while it computes that gradient.

    Files in ``folder`` record which faults have happened, so that a worker that is restarted meets each of them once, and the
    process id of each worker.

    Args:
      folder: shared by all processes of a test.
    """

    def __init__(self, folder):
        self.folder, self._plan, self._late = Path(folder), {}, []

    def kill(self, worker, step):
        """End the process of the worker as by ``kill -9``."""
        self._plan[worker, step] = ("kill", 1)
        return self

    def fail(self, worker, step, times=1):
        """Let the worker raise in its first ``times`` attempts."""
        self._plan[worker, step] = ("fail", times)
        return self

    def hang(self, worker, step):
        """Let the worker wait for a pipe to be opened, forever unless :meth:`let_go` does."""
        self._plan[worker, step] = ("hang", 1)
        os.mkfifo(self.folder / f"pipe-{worker}-{step}")
        return self

    def starts_late(self, worker, step):
        """Let the next process of a worker that is killed in that step not begin before :meth:`let_go`."""
        self._late.append((worker, step))
        os.mkfifo(self.folder / f"pipe-{worker}-{step}")
        return self

    def __setstate__(self, state):
        vars(self).update(state)
        for worker, step in self._late:
            if ("kill", worker, step) in self.happened():
                self._hang(worker, step)

    def let_go(self, worker, step):
        """Release a worker that hangs; return False if it does not."""
        try:
            os.close(os.open(self.folder / f"pipe-{worker}-{step}", os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # No process has opened it.
            return False
        return True

    def pid(self, worker):
        """Return the process id of the worker; ``None`` before its first gradient."""
        try:
            return int((self.folder / f"pid-{worker}").read_text())
        except (OSError, ValueError):
            return None

    def around(self, batches):
        """Return ``batches`` during which a worker meets its faults."""

        def happen(worker, step):
            self.meet(int(worker), int(step))
            return np.zeros([])

        def with_faults(worker, step):
            nothing = jax.pure_callback(happen, jax.ShapeDtypeStruct((), jnp.result_type(float)), worker, step)
            return jax.tree.map(lambda leaf: leaf + nothing.astype(leaf.dtype), batches(worker, step))

        return with_faults

    def meet(self, worker, step):
        """Register the process of the worker; let happen what is planned."""
        if self.pid(worker) != os.getpid():
            temporary = self.folder / f"pid-{worker}-{os.getpid()}"
            temporary.write_text(str(os.getpid()))
            temporary.rename(self.folder / f"pid-{worker}")
        kind, times = self._plan.get((worker, step), (None, 0))
        for time in range(times):
            try:
                (self.folder / f"{kind}-{worker}-{step}-{time}").touch(exist_ok=False)
            except FileExistsError:
                continue
            return getattr(self, f"_{kind}")(worker, step)
        return None

    def _kill(self, worker, step):
        os.kill(os.getpid(), signal.SIGKILL)

    def _fail(self, worker, step):
        raise RuntimeError(f"planned for worker {worker} at its step {step}")

    def _hang(self, worker, step):
        os.close(os.open(self.folder / f"pipe-{worker}-{step}", os.O_RDONLY))

    def happened(self):
        """Return the faults that have happened, as (kind, worker, step), sorted."""
        names = (path.name.split("-") for kind in ("kill", "fail", "hang") for path in self.folder.glob(f"{kind}-*"))
        return sorted((kind, int(worker), int(step)) for kind, worker, step, _ in names)
