"""Synthetic logs of runs of each kind, as lists of events."""

import numpy as np


def cycle(worker, step, dispatch, began, ready, time, pulled_at, staleness, kind="commit", loss=1.0):
    """Return the events of one cycle of a worker."""
    common = {"worker": worker, "step": step}
    return [
        {"event": "dispatch", "time": dispatch, **common},
        {"event": "ready", "time": ready, **common, "began": began},
        {
            "event": kind,
            "time": time,
            **common,
            "pulled_at": pulled_at,
            "staleness": staleness,
            "loss": loss,
            "gap": 0.5,
        },
    ]


def start(num_workers, commits=0, time=0.0, central=None):
    devices = [f"gpu:{worker}" for worker in range(num_workers)]
    return {
        "event": "start", "time": time, "num_workers": num_workers, "commits": commits, "devices": devices,
        "central": central or f"gpu:{num_workers}",
    }  # fmt: skip


def free(num_workers=4, rounds=30, wait=0.02, view=0.0, speeds=None, variation=0.3, devices=None, central=None, seed=0):
    """Make the log of workers that continue after their own commit; each commit waits for `wait`, each view for `view`."""
    random = np.random.default_rng(seed)
    speeds = np.ones(num_workers) if speeds is None else np.asarray(speeds, float)

    def gradient(worker):
        return random.gamma(1 / variation**2, variation**2) / speeds[worker] if variation else 1 / speeds[worker]

    head = start(num_workers, central=central)
    events = [head if devices is None else head | {"devices": devices}]
    ready = np.array([view + gradient(worker) for worker in range(num_workers)]) + 1e-3 * np.arange(num_workers)
    begun, pulled, steps = np.zeros(num_workers), np.zeros(num_workers, int), np.zeros(num_workers, int)
    for commit in range(num_workers * rounds):
        worker = int(np.argmin(ready))
        time = float(ready[worker]) + wait
        events += cycle(
            worker, int(steps[worker]), float(begun[worker]), float(begun[worker] + view), float(ready[worker]), time,
            int(pulled[worker]), int(commit - pulled[worker]), loss=5.0 / (commit + 1),
        )  # fmt: skip
        steps[worker] += 1
        begun[worker], pulled[worker] = time, commit + 1
        ready[worker] = time + view + gradient(worker)
    return events


def lock_step(num_workers=4, rounds=30, seed=0):
    """Make the log of workers that pull together and wait for the slowest."""
    random = np.random.default_rng(seed)
    events, now, commits = [start(num_workers)], 0.0, 0
    for step in range(rounds):
        ready = now + random.gamma(10, 0.1, num_workers)
        order = np.argsort(ready)
        end = float(ready.max()) + 0.01
        for staleness, worker in enumerate(order):
            events += cycle(
                int(worker), step, now, now, float(ready[worker]), float(ready[worker]) + 0.01, commits, staleness
            )
        now, commits = end, commits + num_workers
    return events


def turns(num_workers=4, rounds=30, seed=0):
    """Make the log of workers in random order, with one gradient at a time."""
    random = np.random.default_rng(seed)
    events, pulled, steps = [start(num_workers)], [0] * num_workers, [0] * num_workers
    for commit in range(num_workers * rounds):
        worker = int(random.integers(num_workers))
        events += cycle(
            worker, steps[worker], commit, commit, commit + 0.95, commit + 0.96, pulled[worker], commit - pulled[worker]
        )
        pulled[worker], steps[worker] = commit + 1, steps[worker] + 1
    return events
