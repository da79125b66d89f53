"""SVRG and SAGA against plain loops, at their limits, and on quadratics where plain ASGD stalls."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods.row import Row
from methods.runs import NUM_WORKERS, ORDER, THETA_0, grad, run, schedule

import gemjax
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol.staleness import pull_with_anchors

N = NUM_WORKERS


def chain(part, learning_rate, num_workers):
    return gemjax.asynchronous(optax.chain(part, scale_by_learning_rate(learning_rate)), num_workers)


def svrg(learning_rate, num_workers=1, *, period=6, num_batches=3):
    """Return the central part of AsySVRG."""
    return chain(gemjax.rules.reduce_variance(period, num_batches), learning_rate, num_workers)


def saga(learning_rate, num_workers=1):
    """Return ASAGA."""
    return chain(gemjax.rules.correct_by_last(num_workers), learning_rate, num_workers)


ROWS = (
    Row("svrg", svrg, 0.03, gathers=True, refuses=True, variant=True),
    Row("saga", saga, 0.01, gathers=True, variant=True),
)

# Eight batches of a least-squares problem without a common minimum.
BATCHES, D = 8, 3
_RNG = np.random.default_rng(2)
A, B = _RNG.normal(size=(BATCHES, 4, D)), _RNG.normal(size=(BATCHES, 4))
MINIMUM = np.linalg.lstsq(A.reshape(-1, D), B.ravel(), rcond=None)[0]
LOSS = lambda x, batch: 0.5 * jnp.mean((batch[0] @ x - batch[1]) ** 2)


def batch_gradient(x, i):
    return A[i].T @ (A[i] @ x - B[i]) / 4


def saga_loop(theta_0, grad, order, eta, n):
    """X <- x - eta (g - h_w + mean of h), with the whole table summed at each commit."""
    theta, received, steps, table, history = theta_0, {}, dict.fromkeys(order, 0), {}, []
    for t, i in enumerate(order):
        g = grad(received.get(i, theta_0), i, steps[i])
        was_full = len(table) == n
        direction = g - table.get(i, 0) + np.mean(list(table.values()), axis=0) if was_full else None
        table[i] = g
        if len(table) == n:
            theta = theta - eta(t) * (direction if was_full else np.mean(list(table.values()), axis=0))
        received[i] = theta
        steps[i] += 1
        history.append(theta)
    return np.stack(history)


def test_saga_equals_the_reference(x64):
    found, _ = run(saga(schedule, N))
    np.testing.assert_allclose(found, saga_loop(THETA_0, grad, ORDER, schedule, N), rtol=0, atol=1e-11)


def test_saga_with_one_worker_is_sgd(x64):
    found, _ = run(saga(0.05), [0] * 40)
    expected, _ = run(gemjax.asgd(0.05), [0] * 40)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


def samples(period, commits, num_batches=BATCHES):
    """Return which batch each commit of one worker takes: all of them in a gathering phase, and then random ones."""
    step = np.arange(commits) % (num_batches + period)
    return np.where(step < num_batches, step % BATCHES, np.random.default_rng(3).integers(0, BATCHES, commits))


def simulate(tx, trace, chosen, loss=LOSS, **options):
    chosen, a, b = jnp.asarray(chosen), jnp.asarray(A), jnp.asarray(B)
    batches = gemjax.Computed(lambda worker, step: (a[chosen[worker, step]], b[chosen[worker, step]]))
    return gemjax.simulate(tx, loss, jnp.zeros(D), batches, trace, **options)


@pytest.mark.parametrize("form", ["short", "long"])
def test_with_one_worker_it_is_the_loop_of_svrg(x64, form):
    period, commits, eta = 10, 70, 0.1
    chosen, x, k, expected = samples(period, commits), np.zeros(D), 0, []
    while k < commits:
        snapshot, mu = x, np.mean([batch_gradient(x, i) for i in range(BATCHES)], axis=0)
        expected += [x] * min(BATCHES, commits - k)
        k += BATCHES
        for i in chosen[k : k + period]:
            x = x - eta * (batch_gradient(x, i) - batch_gradient(snapshot, i) + mu)
            expected.append(x)
        k += period
    long = lambda x, model_state, batch, key: (LOSS(x, batch), (model_state + 1, {"norm": jnp.sum(x**2)}))
    options = {} if form == "short" else {"model_state": jnp.zeros([], jnp.int32)}
    seen = []
    loss = gemjax.rules.reduced_loss(LOSS if form == "short" else long)
    result = simulate(
        svrg(eta, period=period, num_batches=BATCHES), gemjax.Trace([0] * commits), chosen[None], loss,
        callback=lambda progress: seen.append(np.asarray(progress.params)), callback_every=1, **options,
    )  # fmt: skip
    np.testing.assert_allclose(seen, expected, rtol=0, atol=1e-12)
    # The loss in the history is that of the batch, without the correction.
    plain = [float(LOSS(x, (A[i], B[i]))) for x, i in zip([np.zeros(D), *seen[:-1]], chosen, strict=True)]
    np.testing.assert_allclose(result.history["loss"], plain, rtol=1e-10)


def test_at_the_snapshot_every_batch_gives_the_mean(x64):
    tx, loss = svrg(0.1, period=5, num_batches=2), gemjax.rules.reduced_loss(LOSS)
    params = jnp.ones(D)
    state = tx.init(params)
    for grads in (jnp.arange(3.0), jnp.ones(3)):
        _, state = tx.update(grads, state, params)
    view, _, anchors = pull_with_anchors(state, params)
    for i in range(BATCHES):
        found = jax.grad(loss.with_anchors(anchors))(view, (jnp.asarray(A[i]), jnp.asarray(B[i])))
        np.testing.assert_allclose(found, [0.5, 1.0, 1.5], rtol=1e-12)


def test_gradients_of_an_earlier_phase_are_refused():
    tx, params = svrg(0.1, 2, period=2, num_batches=2), jnp.zeros(1)
    state, clocks = tx.init(params), []
    for worker in (0, 0, 1, 1, 0, 0, 0):  # The first one of worker 1 was begun in the first phase.
        _, state = tx.update(jnp.ones(1), state, params, worker=worker)
        _, state = gemjax.pull(state, params, worker)
        clocks.append(int(state.clock))
    assert clocks == [1, 2, 2, 3, 4, 5, 6]


def test_saga_converges_where_asgd_stalls(x64):
    commits, own = 3000, np.broadcast_to(np.arange(BATCHES)[:, None], (BATCHES, 3000))  # A batch per worker.
    trace = gemjax.Trace(np.random.default_rng(5).integers(0, BATCHES, commits), num_workers=BATCHES)
    error = lambda tx: np.linalg.norm(np.asarray(simulate(tx, trace, own).params) - MINIMUM)
    assert error(saga(0.05, BATCHES)) < 1e-10
    assert error(gemjax.asgd(0.05, BATCHES)) > 1e-2


def test_the_loss_needs_the_part():
    with pytest.raises(ValueError, match="reduce_variance"):
        simulate(gemjax.asgd(0.1), gemjax.Trace([0, 0]), np.zeros((1, 2), int), gemjax.rules.reduced_loss(LOSS))


@pytest.mark.slow
def test_devices_send_the_snapshot_with_the_view(x64):
    chosen, a, b = jnp.asarray(np.random.default_rng(6).integers(0, BATCHES, (2, 400))), jnp.asarray(A), jnp.asarray(B)
    batches = gemjax.Computed(lambda worker, step: (a[chosen[worker, step]], b[chosen[worker, step]]))
    tx, loss = svrg(0.1, 2, period=6, num_batches=4), gemjax.rules.reduced_loss(LOSS)
    result = gemjax.run_on_devices(tx, loss, jnp.zeros(D), batches, 60, placement=gemjax.place(2))
    again = gemjax.simulate(tx, loss, jnp.zeros(D), batches, result.trace)
    np.testing.assert_allclose(result.params, again.params, rtol=1e-10)
    plain = gemjax.testing.run_in_python(tx, loss, jnp.zeros(D), batches, result.trace)
    np.testing.assert_allclose(result.params, plain, rtol=1e-10)
