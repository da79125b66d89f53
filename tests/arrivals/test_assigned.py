"""A server that assigns views to workers: the orders, the queues of workers, and data of their own."""

import jax.numpy as jnp
import numpy as np
import pytest

import gemjax
from gemjax import arrivals

N = 5


def test_pure_assignment_is_the_model_without_a_server():
    model = arrivals.Gamma(N, machine_variation=0.6)
    trace, served_by = arrivals.Assigned(model, "pure").trace(300, seed=2)
    assert trace == model.trace(300, seed=2)
    assert all((served_by[job][: (trace.worker == job).sum()] == job).all() for job in range(N))


def assignments(order, num_commits=600):
    """Return clock and worker of each assignment after the first ones, of those that have ended, and the trace."""
    model = arrivals.Gamma(N, machine_variation=0.6)
    trace, served_by = arrivals.Assigned(model, order).trace(num_commits, seed=1)
    later = trace.step > 0
    return trace.pulled_at[later], served_by[trace.worker, trace.step][later], trace


def test_shuffled_assignment_takes_each_worker_once_in_a_round():
    clock, worker, _ = assignments("shuffled")
    rounds = [worker[(clock - 1) // N == k] for k in range(clock.max() // N)]
    whole = [one for one in rounds if len(one) == N]
    assert len(whole) > 80
    assert all(sorted(one) == list(range(N)) for one in whole)
    assert len({tuple(one) for one in whole}) > 10


def test_random_assignment_takes_all_workers_alike():
    _, worker, _ = assignments("random", 3000)
    np.testing.assert_allclose(np.bincount(worker) / len(worker), 1 / N, atol=0.03)


@pytest.mark.parametrize("order", ["random", "shuffled"])
def test_a_worker_computes_one_gradient_after_another_in_their_order(order):
    speeds = [1.0, 2.0, 3.0, 5.0]
    trace, served_by = arrivals.Assigned(arrivals.ConstantSpeeds(speeds), order).trace(400)
    workers = served_by[trace.worker, trace.step]
    for worker, speed in enumerate(speeds):
        mine = workers == worker
        began = np.concatenate([[0.0], trace.time])[trace.pulled_at[mine]]  # At its assignment, or when it is free.
        began[1:] = np.maximum(began[1:], trace.time[mine][:-1])
        np.testing.assert_allclose(trace.time[mine], began + 1 / speed, rtol=0, atol=1e-9)
        assert (np.diff(trace.pulled_at[mine]) >= 0).all()
    assert arrivals.Assigned(arrivals.ConstantSpeeds(speeds), order).trace(100)[0] == trace.first(100)


@pytest.mark.parametrize("order", ["pure", "random", "shuffled"])
def test_a_fast_worker_does_not_draw_the_others_to_its_own_minimum(x64, order):
    """Losses (x - c)² with the minima 1, -1 and -1.5 at speeds 6 : 2 : 1; their sum has its minimum at -0.5."""
    minima = np.array([1.0, -1.0, -1.5])
    trace, served_by = arrivals.Assigned(arrivals.ConstantSpeeds([6.0, 2.0, 1.0]), order).trace(6000)
    table, targets = jnp.asarray(served_by), jnp.asarray(minima)
    batches = gemjax.Computed(lambda job, step: targets[table[job, step]])
    tx = gemjax.asgd(0.001, num_workers=3)
    found = gemjax.simulate(tx, lambda x, target: (x - target) ** 2, jnp.zeros([]), batches, trace).params
    expected = minima.mean() if order != "pure" else minima @ [6, 2, 1] / 9
    assert float(found) == pytest.approx(expected, abs=0.1 if order == "random" else 0.02)


def test_the_points_are_those_of_a_loop_with_a_queue_per_worker(x64):
    """Server and workers of AsGrad, with the assignments of the trace: x <- x - gamma g, and x to the next worker."""
    minima, speeds = np.array([1.0, -1.0, 2.0]), np.array([3.0, 2.1, 0.97])
    trace, served_by = arrivals.Assigned(arrivals.ConstantSpeeds(speeds), "shuffled").trace(90, seed=3)
    after = {int(clock): served_by[w, s] for clock, w, s in zip(trace.pulled_at, trace.worker, trace.step, strict=True)}
    x, queues, free = 0.0, {i: [(0.0, 0.0)] for i in range(3)}, np.zeros(3)
    history = []
    for clock in range(1, 60):  # Later assignments have not ended in the trace.
        ends = {i: max(free[i], queue[0][0]) + 1 / speeds[i] for i, queue in queues.items() if queue}
        i = min(ends, key=lambda one: (round(ends[one], 9), one))
        _, view = queues[i].pop(0)
        free[i] = ends[i]
        x = x - 0.1 * (view - minima[i])
        history.append(x)
        queues[after[clock]].append((ends[i], x))
    found, table, targets = [], jnp.asarray(served_by), jnp.asarray(minima)
    gemjax.simulate(
        gemjax.asgd(0.1, 3), lambda x, target: 0.5 * (x - target) ** 2, jnp.zeros([]),
        gemjax.Computed(lambda job, step: targets[table[job, step]]), trace,
        callback=lambda progress: found.append(float(progress.params)), callback_every=1,
    )  # fmt: skip
    np.testing.assert_allclose(found[: len(history)], history, rtol=0, atol=1e-12)
