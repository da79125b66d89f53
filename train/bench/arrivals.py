"""`python -m train bench arrivals`: the speed of making traces."""

import time

import numpy as np
from rich.console import Console

from gemjax import arrivals
from train.common.console import show_table

NUM_WORKERS = 1000


def rates(rounds: int, num_commits: int, console: Console) -> dict[str, float]:
    """Measure the commits per second of each arrival model with 1,000 workers, the best of several rounds."""
    gamma = arrivals.Gamma(NUM_WORKERS)
    models = {
        "round-robin": arrivals.RoundRobin(NUM_WORKERS),
        "constant speeds": arrivals.ConstantSpeeds(np.linspace(1, 2, NUM_WORKERS).tolist()),
        "gamma, homogeneous": gamma,
        "gamma, heterogeneous": arrivals.Gamma(NUM_WORKERS, machine_variation=0.6),
        "exponential": arrivals.Exponential(NUM_WORKERS),
        "log-normal": arrivals.LogNormal(NUM_WORKERS),
        "Pareto": arrivals.Pareto(NUM_WORKERS),
        "gamma, delayed": arrivals.Delayed(gamma, up=0.1, down=0.1),
        "gamma, with incidents": arrivals.Incidents(gamma, [arrivals.Slows(1, 5.0, 3.0), arrivals.Leaves(2, 9.0)]),
        "gamma, barrier": arrivals.Barrier(gamma),
        "gamma, queue": arrivals.Queue(gamma, service=0.5 / NUM_WORKERS),
    }
    figures = {
        name: num_commits / min(_seconds(model, num_commits) for _ in range(rounds)) for name, model in models.items()
    }
    rows = ((name, f"{rate / 1e6:.2f}") for name, rate in figures.items())
    title = f"Traces of {num_commits:,} commits, {NUM_WORKERS:,} workers"
    show_table(console, title, ("arrivals", "million commits/s"), rows)
    return figures


def _seconds(model: arrivals.Arrivals, num_commits: int) -> float:
    began = time.perf_counter()
    model.trace(num_commits)
    return time.perf_counter() - began
