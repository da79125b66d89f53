"""Rounded and sparse gradients with error feedback against their formulas, and their limits."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods.row import Row
from methods.runs import NUM_WORKERS, ORDER, THETA_0, grad, run, schedule

import gemjax
from gemjax.rules import round_to, sparsify

N = NUM_WORKERS


def rounded_gem(learning_rate, num_workers=1, dtype="int8"):
    """Return GEM behind rounded gradients."""
    return in_front_of(gemjax.gem(learning_rate, num_workers=num_workers), round_to(dtype), num_workers)


def sparse_loco(learning_rate, num_workers=1):
    """Return SparseLoCo without a barrier: a plain rate behind the largest numbers of displacements."""
    return in_front_of(gemjax.downpour(learning_rate, num_workers), sparsify(0.5, 3), num_workers)


def in_front_of(tx, part, num_workers=N):
    return gemjax.asynchronous(optax.chain(part, tx), num_workers)


ROWS = (
    Row("gem-int8", rounded_gem, 0.02, variant=True),
    Row("sparseloco", sparse_loco, 0.01, variant=True, takes_displacements=True),
)


def quantized(a, bits):
    """Round the numbers of each array, ``b[3]`` and ``w[2, 3]``, to multiples of its unit, less than half of all on a side."""
    most, parts = 2 ** (bits - 1), []
    for x in np.split(a, [3]):
        unit = 2.0 ** (np.floor(np.log2(np.abs(x).max())) + 1) / most
        parts.append(np.clip(np.round(x / unit), 1 - most, most - 1) * unit)
    return np.concatenate(parts)


def largest(a, k, chunk):
    """Keep the ``k`` largest of each chunk of each array."""
    kept = np.zeros_like(a)
    for begin, end in ((0, 3), (3, 9)):
        for first in range(begin, end, chunk):
            part = slice(first, min(first + chunk, end))
            places = first + np.argsort(-np.abs(a[part]))[:k]
            kept[places] = a[places]
    return kept


def with_feedback(Q, beta, eta):
    theta, e, received, steps, history = THETA_0, {}, {}, dict.fromkeys(ORDER, 0), []
    for t, i in enumerate(ORDER):
        a = grad(received.get(i, THETA_0), i, steps[i]) + beta * e.get(i, 0.0)
        q = Q(a)
        e[i] = a - q
        theta = theta - eta(t) * q
        received[i] = theta
        steps[i] += 1
        history.append(theta)
    return np.stack(history)


CODES = {
    "int8": (round_to("int8"), lambda a: quantized(a, 8), 1.0),
    "int16": (round_to("int16"), lambda a: quantized(a, 16), 1.0),
    "bfloat16": (round_to("bfloat16"), lambda a: a.astype(jnp.bfloat16).astype(float), 1.0),
    "float16": (round_to("float16"), lambda a: a.astype(np.float16).astype(float), 1.0),
    "top-k": (sparsify(0.5, 4, decay=0.9), lambda a: largest(a, 2, 4), 0.9),
}


@pytest.mark.parametrize("code", CODES)
def test_it_equals_the_formulas(x64, code):
    part, Q, beta = CODES[code]
    found, _ = run(in_front_of(gemjax.asgd(schedule, N), part))
    expected = with_feedback(Q, beta, schedule)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert np.abs(found - run(gemjax.asgd(schedule, N))[0]).max() > 1e-7


def test_with_all_numbers_it_is_the_method_alone(x64):
    expected, _ = run(gemjax.gem(0.02, num_workers=N))
    found, _ = run(in_front_of(gemjax.gem(0.02, num_workers=N), sparsify(keep=1, chunk=4)))
    np.testing.assert_array_equal(found, expected)


def test_what_needs_no_rounding_passes_unchanged(x64):
    tx = in_front_of(optax.identity(), round_to("bfloat16"), 2)
    state, given = tx.init(jnp.zeros(3)), jnp.array([1.0, -0.375, 1e30]).astype(jnp.bfloat16).astype(jnp.float64)
    for worker in (0, 1, 1):
        found, state = tx.update(given, state, jnp.zeros(3), worker=worker)
        np.testing.assert_array_equal(found, given)


@pytest.mark.slow
@pytest.mark.parametrize("part", [round_to("int8"), sparsify(keep=0.25, decay=1.0)], ids=["int8", "top-k"])
def test_nothing_is_lost_but_late(x64, part):
    """With decay 1 what was sent and what is kept of a worker add up to its gradients."""
    tx, rng = in_front_of(optax.identity(), part, 3), np.random.default_rng(0)
    state, given, sent = tx.init(jnp.zeros(9)), np.zeros((3, 9)), np.zeros((3, 9))
    for worker in rng.integers(0, 3, 60).tolist():
        gradient = rng.normal(size=9)
        updates, state = tx.update(jnp.asarray(gradient), state, jnp.zeros(9), worker=worker)
        given[worker] += gradient
        sent[worker] += updates
    errors = np.stack([state.inner_state[0].error[worker] for worker in range(3)])
    np.testing.assert_allclose(sent + errors, given, rtol=0, atol=1e-12)
    assert np.abs(errors).max() > 1e-3


@pytest.mark.parametrize("shape", [(), (0,), (1,), (5, 3, 2), (2, 4)])
@pytest.mark.parametrize("part", [round_to("int8"), sparsify(keep=0.5, chunk=4)], ids=["int8", "top-k"])
def test_arrays_of_any_shape(part, shape):
    tx = gemjax.asynchronous(part)
    params = jnp.zeros(shape)
    updates, _ = jax.jit(tx.update)(params + 2, tx.init(params), params)
    assert updates.shape == shape
    assert updates.dtype == params.dtype
    assert jnp.max(updates, initial=2) == 2


def test_an_array_of_zeros_stays_zero():
    tx = gemjax.asynchronous(round_to("int8"))
    updates, _ = tx.update(jnp.zeros(3), tx.init(jnp.zeros(3)), jnp.zeros(3))
    np.testing.assert_array_equal(updates, 0)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_no_product_is_rounded(dtype):
    """A rounded product, fused with the subtraction in some programs only, would leave them with other errors."""
    code, array = round_to(dtype).init(jnp.zeros(1)).code, jax.random.normal(jax.random.key(0), (1000,)) / 3
    whole, unit = code.encode(array)
    exact = np.asarray(whole, np.float64) * np.float64(unit)
    np.testing.assert_array_equal(np.asarray(code.decode((whole, unit), array), np.float64), exact)
    assert np.abs(exact - np.asarray(array)).max() <= unit / 2 + 1e-7 * np.abs(array).max()
