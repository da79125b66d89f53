"""Asynchronous SVRG of the authors.

Source: https://github.com/ahefnycmu/asvrg/tree/bc226c0, ``src/SVRGSolver.cpp``, in the mode with a lock around each write.
A thread reads the parameters, computes two gradients of one sample, and writes; at the end of an epoch all threads meet. Here
what they had begun is refused instead (deviation 2), and there is no epoch of plain SGD before the first one (deviation 1).
"""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax

BATCHES, D = 8, 3
_RNG = np.random.default_rng(2)
A, B = _RNG.normal(size=(BATCHES, 4, D)), _RNG.normal(size=(BATCHES, 4))
MINIMUM = np.linalg.lstsq(A.reshape(-1, D), B.ravel(), rcond=None)[0]


def compute_gradient(x, j):
    return A[j].T @ (A[j] @ x - B[j]) / 4


def solve(order, num_updates_per_epoch, step, rng):
    """Return x after each arrival, the sample of each one, and the number of those that were refused."""
    n, x = BATCHES, np.zeros(D)
    x_last_epoch, avg_gradient = x, np.zeros(D)
    in_epoch, done, clock, refused, history, samples = False, 0, 0, 0, [], []
    read = dict.fromkeys(order, (x, False, 0, x, avg_gradient))
    for thread in order:
        at, reduces, pulled, snapshot, average = read[thread]
        if clock - pulled > done:  # Begun before this phase.
            refused += 1
            samples.append(0)
        else:
            j = int(rng.integers(n)) if in_epoch else done  # A full gradient takes each sample once.
            samples.append(j)
            g = compute_gradient(at, j)
            clock, done = clock + 1, done + 1
            if in_epoch:
                assert reduces
                x = x - step * (g - compute_gradient(snapshot, j) + average)
                in_epoch, done = (True, done) if done < num_updates_per_epoch else (False, 0)
            else:
                avg_gradient = (avg_gradient if done > 1 else 0) + g / n
                if done == n:
                    x_last_epoch, in_epoch, done = x, True, 0
        read[thread] = x, in_epoch, clock, x_last_epoch, avg_gradient
        history.append(x)
    return np.stack(history), samples, refused


def run(tx, loss, order, samples, seen=None):
    """Simulate; the sample of a commit depends on its worker and step."""
    threads = max(order) + 1
    chosen, count = np.zeros((threads, len(order)), int), [0] * threads
    for thread, j in zip(order, samples, strict=True):
        chosen[thread, count[thread]] = j
        count[thread] += 1
    chosen, a, b = jnp.asarray(chosen), jnp.asarray(A), jnp.asarray(B)
    batches = gemjax.Computed(lambda worker, step: (a[chosen[worker, step]], b[chosen[worker, step]]))
    note = None if seen is None else lambda progress: seen.append(np.asarray(progress.params))
    every = {} if seen is None else {"callback": note, "callback_every": 1}
    return gemjax.simulate(tx, loss, jnp.zeros(D), batches, gemjax.Trace(order), **every)


def loss_fn(x, batch):
    return 0.5 * jnp.mean((batch[0] @ x - batch[1]) ** 2)


def svrg(step, threads, num_updates_per_epoch):
    part = gemjax.rules.reduce_variance(num_updates_per_epoch, num_batches=BATCHES)
    return gemjax.asynchronous(optax.chain(part, optax.sgd(step)), threads)


@pytest.mark.parametrize("threads", [1, 4])
def test_reads_two_gradients_and_writes_in_its_order(threads, x64):
    rng = np.random.default_rng(7)
    order = rng.integers(0, threads, 120).tolist()
    expected, samples, refused = solve(order, 2 * BATCHES, 0.1, rng)
    assert (refused > 0) == (threads > 1)
    seen = []
    result = run(svrg(0.1, threads, 2 * BATCHES), gemjax.rules.reduced_loss(loss_fn), order, samples, seen)
    np.testing.assert_allclose(seen, expected, rtol=0, atol=1e-12)
    assert int(result.state.dropped) == refused


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 4])
def test_it_converges_at_a_constant_rate_where_asgd_stalls(threads, x64):
    rng = np.random.default_rng(8)
    order = rng.integers(0, threads, 2400).tolist()
    path, samples, _ = solve(order, 2 * BATCHES, 0.15, rng)
    errors = np.linalg.norm(path - MINIMUM, axis=1)
    found = run(svrg(0.15, threads, 2 * BATCHES), gemjax.rules.reduced_loss(loss_fn), order, samples)
    np.testing.assert_allclose(found.params, path[-1], rtol=0, atol=1e-12)
    first, second = (np.log(errors[end] / errors[begin]) for begin, end in ((0, 400), (400, 800)))
    assert first < -2
    assert second < -2
    assert errors[-1] < 1e-10
    plain = run(gemjax.asgd(0.15, threads), loss_fn, order, rng.integers(0, BATCHES, 2400))
    assert np.linalg.norm(np.asarray(plain.params) - MINIMUM) > 1e-2
