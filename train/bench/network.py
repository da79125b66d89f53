"""`python -m train bench network`: the step of a network, relative to PyTorch's and to the peak of the machine."""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from gemjax.check.speed import Problem
from train.bench.simulate import make_problem
from train.common.console import show_table

PyTree = Any
PEAK_SIZE = 2048  # Rows of the square matrices whose product measures the peak of the machine.


def compare(
    networks: Sequence[str], batch_sizes: Sequence[int], rounds: int, steps: int, console: Console
) -> dict[str, Any]:
    """Time forward and backward of each network here and in PyTorch, if that is installed, without an optimizer."""
    torch = _torch()
    peak = _peak(rounds)
    title = f"Forward + backward, float32; matrix products reach {peak / 1e9:.0f} GFLOP/s on this machine"
    rows = []
    figures: dict[str, Any] = {"peak_gflops": peak / 1e9, "torch": getattr(torch, "__version__", None)}
    for network in networks:
        for batch_size in batch_sizes:
            name, problem = f"{network}, {batch_size}", make_problem(network, batch_size)
            runs = [_ours(problem, steps)]
            if torch is not None:
                runs.append(_theirs(torch, network, problem, steps))
            for run in runs:
                run()
            times = np.array([[run() for run in runs] for _ in range(rounds)])
            rate = _flops(make_problem(network, batch_size, "lax")) / np.median(times[:, 0])
            row = {"ms": 1e3 * float(np.median(times[:, 0])), "gflops": rate / 1e9, "of_peak": rate / peak}
            cells = [name, f"{row['ms']:.2f}", f"{row['gflops']:.0f}", f"{100 * row['of_peak']:.0f} %"]
            if torch is not None:
                ratio = times[:, 0] / times[:, 1]
                row |= {"torch_ms": 1e3 * float(np.median(times[:, 1])), "ratio": float(np.median(ratio))}
                cells += [f"{row['torch_ms']:.2f}", f"{row['ratio']:.2f} ({ratio.min():.2f} – {ratio.max():.2f})"]
            rows.append(cells)
            figures[name] = row
    columns = ("network, batch", "ms", "GFLOP/s", "of peak", "PyTorch ms", "ratio (range)")
    lacking = "PyTorch is not installed, so nothing is compared (pip install torch)." if torch is None else ""
    show_table(console, title, columns, rows, caption=lacking)
    return figures


def _ours(problem: Problem, steps: int) -> Callable[[], float]:
    """Make a function that measures the seconds per step of a compiled loop over batches."""
    batches = problem.batches

    @jax.jit
    def loop(params, data, selection):
        def step(i, carry):
            del carry
            key = jax.random.fold_in(jax.random.key(0), i)
            (loss, _), grads = _value_and_grad(problem, params, batches.batch(data, selection[i]), key)
            return loss, grads

        return jax.lax.fori_loop(0, steps, step, (jnp.zeros([]), params))

    data = jax.device_put(batches.data)
    selection = jax.device_put(batches.select(np.zeros(steps, np.int32), np.arange(steps)))

    def run() -> float:
        began = time.perf_counter()
        jax.block_until_ready(loop(problem.params, data, selection))
        return (time.perf_counter() - began) / steps

    return run


def _value_and_grad(problem: Problem, params: PyTree, batch: PyTree, key: jax.Array) -> Any:
    return jax.value_and_grad(problem.loss_fn, has_aux=True)(params, problem.model_state, batch, key)


def _theirs(torch: Any, network: str, problem: Problem, steps: int) -> Callable[[], float]:
    """Make a function that measures the seconds per step of PyTorch, with as many threads as cores."""
    nn = torch.nn
    model = {
        "cnn": lambda: nn.Sequential(
            nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5), nn.Dropout2d(0.5), nn.MaxPool2d(2),
            nn.ReLU(), nn.Flatten(), nn.Linear(320, 300), nn.ReLU(), nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 10),
        ),
        "mlp": lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10),
        ),
    }[network]()  # fmt: skip
    assert sum(p.numel() for p in model.parameters()) == problem.size, "the two networks differ"
    images = torch.from_numpy(problem.batches.data["image"]).permute(0, 3, 1, 2)
    labels = torch.from_numpy(problem.batches.data["label"].astype(np.int64))
    rows = torch.from_numpy(problem.batches.select(np.zeros(steps, np.int32), np.arange(steps)).astype(np.int64))

    def run() -> float:
        began = time.perf_counter()
        for row in rows:
            batch = (images[row].float() - 0.1307 * 255) * (1 / (255 * 0.3081))
            for parameter in model.parameters():
                parameter.grad = None
            nn.functional.cross_entropy(model(batch), labels[row]).backward()
        return (time.perf_counter() - began) / steps

    return run


def _flops(problem: Problem) -> float:
    """FLOPs of one step, as counted by XLA."""
    batch = jax.tree.map(lambda leaf: leaf[: problem.batches.batch_size], problem.batches.data)
    step = jax.jit(functools.partial(_value_and_grad, problem)).lower(problem.params, batch, jax.random.key(0))
    cost = step.compile().cost_analysis()
    assert cost is not None
    return float(cost["flops"])


def _peak(rounds: int) -> float:
    """FLOP/s of a large matrix product, the best of several measurements."""
    matrix = jnp.ones((PEAK_SIZE, PEAK_SIZE))
    product = jax.jit(jnp.matmul)
    jax.block_until_ready(product(matrix, matrix))
    times = []
    for _ in range(max(3, rounds)):
        began = time.perf_counter()
        jax.block_until_ready(product(matrix, matrix))
        times.append(time.perf_counter() - began)
    return 2 * PEAK_SIZE**3 / min(times)


def _torch() -> Any:
    """PyTorch, if it is installed."""
    try:
        import torch  # type: ignore
    except ImportError:
        return None
    return torch
