"""Fragments: Streaming and Decoupled DiLoCo against loops in NumPy, their reductions, and what travels."""

from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import assert_same_bits
from methods import runs
from methods.rows import of_steps

import gemjax
from gemjax.methods.leaf_groups import number_leaves
from gemjax.protocol.diagnostics import Observer

N = runs.NUM_WORKERS
PARTS = {"b": slice(0, 3), "w": slice(3, 9)}  # Of the vector, in the order of the tree's leaves.


def streaming(theta_0, grad, order, eta, gamma, N, alpha=0.0, D=0, E=1, K=None, merge=None, c=None, tau=1):
    """Streaming and Decoupled DiLoCo: x_m its replica, a_m the outer parameters that it has received.

    At its commit k replica m sends fragment p = (k / E) mod P and receives the one it sent D commits before. With ``merge`` a
    quorum of K displacements is merged by weights c^2 t, for t the local steps since the replica received the fragment.
    """
    theta, P, parts = theta_0.copy(), len(PARTS), list(PARTS.values())
    x, a = defaultdict(theta_0.copy), defaultdict(theta_0.copy)
    k, t = defaultdict(int), defaultdict(lambda: [0] * P)
    inbox, v, steps, history = [[] for _ in parts], np.zeros_like(theta), defaultdict(int), []
    for m in order:
        x[m] = x[m] - grad(x[m], m, steps[m])
        t[m] = [count + tau for count in t[m]]
        if k[m] % E == 0:
            p = k[m] // E % P
            s = parts[p]
            inbox[p].append((a[m][s] - x[m][s], 1.0 if merge is None else c[m] ** 2 * t[m][p]))
            if len(inbox[p]) == (K or N):
                rho = np.array([w for _, w in inbox[p]])
                rho /= rho.sum()
                if merge == "radial":
                    r = sum(w * np.linalg.norm(d) for w, (d, _) in zip(rho, inbox[p], strict=True))
                    d = sum(w * d / np.linalg.norm(d) for w, (d, _) in zip(rho, inbox[p], strict=True))
                    Delta = r * d / np.linalg.norm(d)
                else:
                    Delta = sum(w * d for w, (d, _) in zip(rho, inbox[p], strict=True))
                v[s] = gamma * v[s] + Delta
                theta[s] = theta[s] - eta * (Delta + gamma * v[s])
                inbox[p] = []
        if k[m] >= D and (k[m] - D) % E == 0:
            p = (k[m] - D) // E % P
            s = parts[p]
            a[m][s] = theta[s]
            x[m][s] = (1 - alpha) * theta[s] + alpha * x[m][s]
            t[m][p] = 0
        k[m] += 1
        steps[m] += 1
        history.append(theta.copy())
    return np.stack(history)


def _small(x, i, j):
    return 0.1 * runs.grad(x, i, j)


def found(tx, order=runs.ORDER):
    return runs.run(of_steps(1, optax.chain(optax.scale(0.1), tx)), order)[0]


@pytest.mark.parametrize(
    "options",
    [
        {"keep": 0.25, "delay": 1, "every": 2},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"keep": 0.5, "delay": 1}, marks=pytest.mark.slow),
        pytest.param({"every": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_streaming_diloco_agrees_with_the_paper(x64, options):
    expected = streaming(
        runs.THETA_0, _small, runs.ORDER, 0.4, 0.6, N, options.get("keep", 0.0), options.get("delay", 0),
        options.get("every", 1),
    )  # fmt: skip
    np.testing.assert_allclose(
        found(gemjax.streaming_diloco(0.4, 0.6, N, fragments=["b", "w"], **options)), expected, rtol=0, atol=1e-12
    )
    assert np.ptp(expected, axis=0).min() > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("merge", ["radial", pytest.param("mean", marks=pytest.mark.slow)])
def test_decoupled_diloco_agrees_with_the_paper(x64, merge):
    tokens = [8.0, 16.0, 8.0, 4.0, 1.0]
    tx = gemjax.decoupled_diloco(
        0.4, 0.6, N, buffer_size=3, merge=merge, tokens=tokens, fragments=["b", "w"], keep=0.25, delay=1
    )
    expected = streaming(runs.THETA_0, _small, runs.ORDER, 0.4, 0.6, N, 0.25, 1, 1, 3, merge, tokens)
    np.testing.assert_allclose(found(tx), expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_with_one_fragment_it_is_diloco(x64):
    expected = found(gemjax.diloco(0.4, 0.6, N))
    for tx in (
        gemjax.streaming_diloco(0.4, 0.6, N, fragments=1),
        gemjax.decoupled_diloco(0.4, 0.6, N, merge="mean", fragments=1),
    ):
        np.testing.assert_allclose(found(tx), expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_decoupled_quorum_of_all_with_equal_work_is_streaming_diloco(x64):
    order = list(range(N)) * 12
    expected = found(gemjax.streaming_diloco(0.4, 0.6, N, keep=0.5), order)
    np.testing.assert_allclose(
        found(gemjax.decoupled_diloco(0.4, 0.6, N, merge="mean", keep=0.5), order), expected, rtol=0, atol=1e-12
    )


@pytest.mark.slow
def test_a_member_sees_the_clock_of_its_fragment():
    """Worker 1 commits fragment a after two commits of a by worker 0, and b after one."""
    seen = []

    def update(updates, state, params=None, *, staleness=None, local_steps=None, stale_params=None, **extra_args):
        seen.append((int(staleness), int(local_steps), float(stale_params["a"]), float(stale_params["b"])))
        return updates, state

    inner = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
    tx = gemjax.asynchronous(gemjax.rules.by_fragment(inner, ["a", "b"]), 2)
    params = {"a": jnp.zeros([]), "b": jnp.zeros([])}
    state = tx.init(params)
    for worker in (0, 0, 0, 1, 1):
        updates, state = tx.update(jax.tree.map(jnp.ones_like, params), state, params, worker=worker, local_steps=5)
        params = optax.apply_updates(params, updates)
        _, state = gemjax.pull(state, params, worker)
    assert [one[:2] for one in seen] == [(0, 5), (0, 10), (0, 10), (2, 5), (1, 10)]
    assert seen[2][2:] == (1.0, 2.0)
    assert seen[4][2:] == (4.0, 0.0)


@pytest.mark.slow
def test_the_largest_exchange_falls_with_the_number_of_fragments():
    """The total is the same; a delay moves the pull to a later commit."""
    params = {f"layer_{k}": jnp.zeros(6) for k in range(6)}
    whole, peaks, totals = 2 * 36 * 4, [], []
    for fragments, options in ((1, {}), (6, {}), (3, {"delay": 1, "every": 2})):
        tx = gemjax.asynchronous(gemjax.rules.by_fragment(optax.identity(), fragments, **options))
        state, found = tx.init(params), []

        @jax.jit
        def exchanged(state, tx=tx):
            observer = Observer(["exchanged"])
            _, state = tx.update(params, state, params, worker=0, observe=observer)
            return state, observer.collected()["exchanged"]

        for _ in range(6 * options.get("every", 1)):
            state, size = exchanged(state)
            found.append(float(size) / whole)
        peaks.append(max(found))
        totals.append(sum(found))
    np.testing.assert_allclose(peaks, [1, 1 / 6, 1 / 6], rtol=1e-6)
    np.testing.assert_allclose(totals, [6, 1, 2], rtol=1e-6)


@pytest.mark.slow
def test_look_ahead_inside_a_fragment_is_that_of_the_method(x64):
    """HeLoCo in one fragment is HeLoCo; in two, the view of a fragment is ahead by its own momentum."""
    atom = gemjax.rules.align_with_momentum(0.4, 0.6)
    expected = found(gemjax.heloco(0.4, 0.6, N, weight=1.0))
    chained = optax.chain(gemjax.rules.by_fragment(atom, 1), optax.scale(-0.4))
    np.testing.assert_allclose(found(gemjax.asynchronous(chained, N)), expected, rtol=0, atol=1e-12)
    tx = gemjax.asynchronous(gemjax.rules.by_fragment(atom, ["a", "b"]), 1)
    params = {"a": jnp.zeros([]), "b": jnp.zeros([])}
    _, state = tx.update({"a": jnp.ones([]), "b": jnp.ones([])}, tx.init(params), params, worker=0)
    view, _ = gemjax.pull(state, params, 0)
    np.testing.assert_allclose([view["a"], view["b"]], [-0.4 * 0.6 * (1 - 0.6), -1.0])


def test_a_second_pull_replaces_the_fragment_again():
    """A worker that is retried mixes the newest central variable with what it had, not with the first mixture."""
    tx = gemjax.streaming_diloco(1.0, 0.0, 2, fragments=1, keep=0.5)
    state = tx.init(jnp.zeros([]))
    _, state = tx.update(jnp.float32(4.0), state, jnp.zeros([]), worker=0)
    _, state = tx.update(jnp.float32(4.0), state, jnp.zeros([]), worker=1)
    for _ in range(2):
        view, state = gemjax.pull(state, jnp.float32(2.0), 0)
        assert float(view) == 0.5 * 2.0 + 0.5 * -4.0


def test_groups_of_leaves():
    params = {"embed": jnp.zeros(100), "layers": [{"w": jnp.zeros(30)} for _ in range(4)], "norm": jnp.zeros(1)}

    def numbers(groups):
        return jax.tree.leaves(number_leaves(groups, params)[0])

    assert numbers(2) == [0, 1, 1, 1, 1, 1]
    assert numbers(3) == [0, 1, 1, 1, 2, 2]
    assert numbers(9) == [0, 1, 2, 3, 4, 5]
    assert numbers((("layers/1", "layers/3"), ("",))) == [1, 1, 0, 1, 0, 1]
    assert numbers(lambda path, leaf: int(leaf.size > 30)) == [1, 0, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="no prefix fits the leaf 'embed'"):
        numbers((("layers",),))
    with pytest.raises(ValueError, match="group 0 of 2 has no leaf"):
        numbers(lambda path, leaf: 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the method is defined in rounds")
def test_a_continued_run_with_windows_is_the_same():
    problem = lambda params, batch: jnp.sum((params["b"] - batch) ** 2) + jnp.sum((params["w"] + 1.0) ** 2)
    params, trace = {"b": jnp.zeros(3), "w": jnp.ones((2, 2))}, gemjax.arrivals.Gamma(3).trace(30)
    tx = gemjax.streaming_diloco(0.5, 0.5, 3, fragments=2, keep=0.25, delay=1)
    options = {"local": gemjax.LocalSteps(optax.sgd(0.05), 2), "callback_every": 8}
    run = lambda **more: gemjax.simulate(tx, problem, params, lambda w, s: 0.1 * w, trace, **options, **more)
    whole = run()
    half = run(callback=lambda progress: progress.commits >= 12)
    assert_same_bits(run(state=half).state, whole.state)
    for one, other in zip(jax.tree.leaves(run(window=3).params), jax.tree.leaves(whole.params), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1.0, 1e20, 1e30])
def test_a_radial_merge_is_in_proportion_to_displacements_of_any_size(scale):
    """Squares of these numbers are 0 or infinite in float32."""
    displacements, weights = np.array([[1.0, 2.0, 2.0], [2.0, 1.0, 2.0]]), np.array([0.25, 0.75])
    direction = weights @ displacements / 3
    expected = 3 * direction / np.linalg.norm(direction)
    tx = gemjax.rules.merge_quorum(optax.identity(), 2)
    state = tx.init(jnp.zeros(3))
    for displacement, steps in zip(displacements, (1, 3), strict=True):
        merged, state = tx.update(jnp.array(displacement * scale, jnp.float32), state, local_steps=steps)
    np.testing.assert_allclose(np.asarray(merged, np.float64) / scale, expected, rtol=1e-6)


@pytest.mark.parametrize("merge", ["radial", "mean"])
def test_a_quorum_of_no_work_moves_nothing(merge):
    """And it leaves a quorum of work after it as it is."""
    tx = gemjax.rules.merge_quorum(optax.identity(), 2, merge=merge)
    state = tx.init(jnp.zeros(2))
    for steps, expected in ((0, 0.0), (0, 0.0), (0, 0.0), (2, 1.0)):
        merged, state = tx.update(jnp.ones(2), state, local_steps=steps)
        np.testing.assert_allclose(merged, expected, rtol=1e-6)
