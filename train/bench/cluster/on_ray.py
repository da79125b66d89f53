"""Plain programs on Ray: the references of `python -m train bench cluster`."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optax

PyTree = Any


class Echo:
    """Actor that returns what it receives."""

    def ready(self) -> None:
        """Return when the actor has started."""

    def answer(self, view: np.ndarray) -> np.ndarray:
        """Return the view, which Ray copies into the object store."""
        return view


def round_trips(ray: Any, actors: Sequence[Any], view: np.ndarray, count: int) -> np.ndarray:
    """Return the seconds between consecutive answers of actors that are called again at once.

    Each call gets a view of its own that is put into the object store once and passed by reference, as after a commit. The
    answer is copied out of the store.
    """
    into, times = np.empty_like(view), []
    pending = {actor.answer.remote(ray.put(view)): actor for actor in actors}
    for _ in range(count + 1):
        [first], _ = ray.wait(list(pending), num_returns=1, fetch_local=False)
        actor = pending.pop(first)
        np.copyto(into, ray.get(first))
        del first  # Frees the object.
        times.append(time.perf_counter())
        pending[actor.answer.remote(ray.put(view))] = actor
    ray.get(list(pending))
    return np.diff(times)


class ParameterServer:
    """Actor that owns the parameters and applies gradients with plain SGD."""

    def __init__(self, params: PyTree, learning_rate: float):
        self.params, tx = jax.device_put(params), optax.sgd(learning_rate)
        state = tx.init(self.params)

        def step(params: PyTree, gradients: PyTree) -> PyTree:
            updates, _ = tx.update(gradients, state, params)
            return optax.apply_updates(params, updates)

        self.step = jax.jit(step)

    def apply_gradients(self, gradients: PyTree) -> PyTree:
        """Apply one worker's gradients; return the new parameters."""
        self.params = self.step(self.params, gradients)
        return jax.device_get(self.params)

    def get_params(self) -> PyTree:
        """Return the parameters."""
        return jax.device_get(self.params)


class Worker:
    """Actor that computes gradients of a loss on a fixed batch."""

    def __init__(self, loss_fn: Callable, batch: PyTree):
        self.grad = jax.jit(lambda params: jax.grad(loss_fn)(params, batch))

    def compute_gradients(self, params: PyTree) -> PyTree:
        """Return the gradients at the parameters."""
        return jax.device_get(self.grad(params))


def parameter_server(
    ray: Any, loss_fn: Callable, params: PyTree, batch: PyTree, num_workers: int
) -> tuple[Callable[[int], float], Callable[[], PyTree]]:
    """Start an asynchronous parameter server as Ray's documentation describes it, with JAX.

    The driver waits for the first gradients, sends their reference to the server and the reference of the server's answer to
    the worker. It holds no arrays itself. The program follows "Asynchronous Parameter Server Training" on
    https://docs.ray.io/en/latest/ray-core/examples/plot_parameter_server.html.

    Returns:
      ``run(commits)``, which returns the commits per second, and a function that returns the parameters.
    """
    server = ray.remote(ParameterServer).remote(params, 1e-3)
    workers = [ray.remote(Worker).remote(loss_fn, batch) for _ in range(num_workers)]

    def run(commits: int) -> float:
        latest = server.get_params.remote()
        pending = {worker.compute_gradients.remote(latest): worker for worker in workers}
        began = 0.0
        for commit in range(commits + num_workers):
            if commit == num_workers:  # The first round fills the pipeline.
                ray.wait([latest], fetch_local=False)
                began = time.perf_counter()
            [first], _ = ray.wait(list(pending), fetch_local=False)
            worker = pending.pop(first)
            latest = server.apply_gradients.remote(first)
            pending[worker.compute_gradients.remote(latest)] = worker
        ray.wait([latest], fetch_local=False)
        seconds = time.perf_counter() - began
        ray.get(list(pending))
        return commits / seconds

    return run, lambda: ray.get(server.get_params.remote())
