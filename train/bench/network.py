"""`python -m train bench network`: the step of a network, relative to PyTorch's and to the peak of the machine."""

import functools
import itertools
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
    relu = lambda *layers: [part for layer in layers for part in (layer, nn.ReLU())]
    model = {
        "cnn": lambda: nn.Sequential(
            nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5), nn.Dropout2d(0.5), nn.MaxPool2d(2),
            nn.ReLU(), nn.Flatten(), nn.Linear(320, 300), nn.ReLU(), nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 10),
        ),
        "mlp": lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10),
        ),
        "cnn7": lambda: nn.Sequential(
            *relu(nn.Conv2d(3, 64, 5)), nn.MaxPool2d(2), *relu(nn.Conv2d(64, 128, 5)), nn.MaxPool2d(2),
            *relu(nn.Conv2d(128, 64, 3)), nn.Flatten(), *relu(nn.Linear(256, 256)), nn.Dropout(), nn.Linear(256, 10),
        ),
        "resnet8": lambda: _resnet(torch, depth=8, channels=8),
        "resnet20": lambda: _resnet(torch, depth=20, channels=16),
    }[network]()  # fmt: skip
    assert sum(p.numel() for p in model.parameters()) == problem.size, "the two networks differ"
    # The fastest layout of PyTorch; for MNIST's single channel it is the same as channels first.
    model = model.to(memory_format=torch.channels_last)
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


def _resnet(torch: Any, depth: int, channels: int) -> Any:
    """Make the residual network of `depth` layers with shortcuts that have no parameters."""
    nn, pad = torch.nn, torch.nn.functional.pad

    class Block(nn.Module):
        def __init__(self, channels, features, stride):
            super().__init__()
            self.stride, self.missing = stride, (features - channels) // 2
            self.body = nn.Sequential(
                nn.Conv2d(channels, features, 3, stride, 1, bias=False), nn.BatchNorm2d(features), nn.ReLU(),
                nn.Conv2d(features, features, 3, 1, 1, bias=False), nn.BatchNorm2d(features),
            )  # fmt: skip

        def forward(self, images):
            shortcut = images[:, :, :: self.stride, :: self.stride]
            if self.missing:
                shortcut = pad(shortcut, (0, 0, 0, 0, self.missing, self.missing))
            return (self.body(images) + shortcut).relu()

    count = (depth - 2) // 6  # Blocks per stage.
    widths = [channels] * (count + 1) + [2 * channels] * count + [4 * channels] * count
    blocks = [Block(before, after, after // before) for before, after in itertools.pairwise(widths)]
    stem = [nn.Conv2d(3, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * channels, 10))


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
