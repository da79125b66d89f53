"""`python -m train bench simulate`: the cost of a simulated commit, relative to a plain sequential step."""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from rich.console import Console

import gemjax
from gemjax import arrivals
from gemjax.check.speed import Problem, simulated_seconds
from train.common.console import show_table
from train.config.config import Config
from train.task import losses, models
from train.task.methods import local_steps, make_method

PyTree = Any
BATCH_SIZE = 64  # GEM's.
IMAGES = 60_000


class ThreeLayers(nn.Module):
    """Three dense layers, a network of matrix products alone."""

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        del train
        x = images.reshape(len(images), -1)
        for size in (256, 128):
            x = nn.relu(nn.Dense(size)(x))
        return nn.Dense(10)(x)


MODELS: dict[str, Callable[[str | None], nn.Module]] = {
    "cnn": lambda implementation: models.GemCNN(implementation=implementation),
    "mlp": lambda implementation: ThreeLayers(),
}


def make_problem(network: str, batch_size: int = BATCH_SIZE, implementation: str | None = None) -> Problem:
    """Make a problem for a network of `MODELS`; `implementation` is that of its convolutions."""
    rng, shape = np.random.default_rng(0), (28, 28, 1)
    data = {
        "image": rng.integers(0, 256, (IMAGES, *shape), dtype=np.uint8),
        "label": rng.integers(0, 10, IMAGES).astype(np.int32),
    }
    model = MODELS[network](implementation)
    params, model_state = models.init(model, jax.random.key(0), shape)
    loss_fn = losses.make_loss(losses.image_rows(model, 0.1307, 0.3081, 255.0))
    return Problem(loss_fn, params, gemjax.Epochs(data, batch_size), model_state)


def ratios(
    networks: Sequence[str], batch_sizes: Sequence[int], methods: Sequence[str], workers: Sequence[int],
    rounds: int, steps: int, console: Console,
) -> dict[str, Any]:  # fmt: skip
    """Time simulated commits per method and number of workers against as many steps of sequential momentum SGD."""
    return {
        f"{network}, {size}": _ratios(network, size, methods, workers, rounds, steps, console)
        for network in networks
        for size in batch_sizes
    }


def _ratios(
    network: str, batch_size: int, methods, workers, rounds: int, steps: int, console: Console
) -> dict[str, Any]:
    problem = make_problem(network, batch_size)
    sequential = _sequential(problem, steps)
    sequential()  # Compiles.
    figures: dict[str, Any] = {"sequential_ms": [], "ratio": {}}
    rows = []
    for method in methods:
        simulated = {n: _simulated(problem, method, n, steps) for n in workers}
        for run in simulated.values():
            run()
        base, times = [], {n: [] for n in simulated}
        for _ in range(rounds):
            for n, run in simulated.items():
                # Timed right before and after, so that the ratio does not depend on a drift of the machine's speed.
                before, seconds, after = sequential(), run(), sequential()
                base.append((before + after) / 2)
                times[n].append((seconds, seconds / base[-1]))
        figures["sequential_ms"].append(1e3 * float(np.median(base)))
        for n, measured in times.items():
            seconds, ratio = np.array(measured).T
            figures["ratio"].setdefault(method, {})[str(n)] = float(np.median(ratio))
            rows.append((
                method, str(n), f"{1e3 * np.median(seconds):.2f}", f"{np.median(ratio):.3f}",
                f"{ratio.min():.3f} – {ratio.max():.3f}",
            ))  # fmt: skip
            console.print(f"  {network} {batch_size} {method} {n}: {np.median(ratio):.3f}", highlight=False)
    figures["sequential_ms"] = float(np.median(figures["sequential_ms"]))
    title = f"Simulator: {network}, {problem.size:,} parameters, batch {batch_size}; ratio to a sequential momentum SGD step"
    columns = ("method", "workers", "ms per commit (median)", "ratio (median)", "ratio (range)")
    show_table(console, title, columns, rows, caption=f"A sequential step: {figures['sequential_ms']:.2f} ms (median).")
    return figures


def _sequential(problem: Problem, steps: int) -> Callable[[], float]:
    """Make a function that measures the seconds per step of a plain compiled loop of momentum SGD."""
    tx = optax.sgd(0.001, momentum=0.9)
    batches = problem.batches

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def loop(params, opt_state, data, selection):
        def step(i, carry):
            params, opt_state, losses = carry
            key = jax.random.fold_in(jax.random.key(0), i)
            batch = batches.batch(data, selection[i])
            (loss, _), grads = jax.value_and_grad(problem.loss_fn, has_aux=True)(
                params, problem.model_state, batch, key
            )
            updates, opt_state = tx.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state, losses.at[i].set(loss)

        return jax.lax.fori_loop(0, steps, step, (params, opt_state, jnp.zeros(steps)))

    data = jax.device_put(batches.data)
    selection = batches.select(np.zeros(steps, np.int32), np.arange(steps))

    def run() -> float:
        params = jax.tree.map(jnp.copy, problem.params)
        opt_state = jax.block_until_ready(tx.init(params))
        began = time.perf_counter()
        jax.block_until_ready(loop(params, opt_state, data, selection))
        return (time.perf_counter() - began) / steps

    return run


def _simulated(problem: Problem, method: Any, num_workers: int, steps: int) -> Callable[[], float]:
    """Make a function that measures the seconds per commit of `gemjax.simulate`, without set-up and compilation."""
    config = Config(method=method, workers=num_workers, learning_rate=0.001)
    tx, local = make_method(config), local_steps(config)
    trace = arrivals.Gamma(num_workers).trace(2 * steps)

    return lambda: simulated_seconds(tx, problem, trace, local=local)
