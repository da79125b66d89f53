"""The run with which a method is compared with its NumPy reference."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

import gemjax
from gemjax.protocol.diagnostics import Observer

NUM_WORKERS = 5
# Uneven speeds, so that the staleness ranges from 0 to tens of commits.
ORDER = np.random.default_rng(0).choice(NUM_WORKERS, size=200, p=[0.4, 0.3, 0.15, 0.1, 0.05]).tolist()
_RNG = np.random.default_rng(1)
_CURVATURE = np.diag(np.linspace(0.2, 1.5, 9)) + 0.05 * np.ones((9, 9))
_NOISE = _RNG.normal(size=(NUM_WORKERS, 200, 9))
THETA_0 = _RNG.normal(size=9)


def grad(x, i, j):
    """Return the gradient of a quadratic with cross terms, with noise per worker."""
    return _CURVATURE @ x + 0.3 * _NOISE[i, j % 200]


def schedule(t):
    """Return a learning rate that decays and is not monotone, for NumPy and JAX."""
    return 0.1 / (1.0 + 0.02 * t) * (1.0 + 0.5 * (t % 3))


def tree():
    """Return the initial parameters as a tree of mixed ranks, and the function from a vector to the tree; needs float64."""
    like = {"b": jnp.zeros(3, jnp.float64), "w": jnp.zeros((2, 3), jnp.float64)}
    _, unravel = ravel_pytree(like)
    return unravel(jnp.asarray(THETA_0)), unravel


def run(tx, order=ORDER, observe=(), *, views_instead=False):
    """Return the central variable after each commit, ``[len(order), 9]``, and the requested diagnostics, a dict per commit.

    With ``views_instead`` return the worker's next view in place of the central variable.
    """
    params, unravel = tree()

    @jax.jit
    def commit_and_pull(params, state, grads, worker):
        observer = Observer(observe)
        updates, state = tx.update(grads, state, params, worker=worker, observe=observer)
        params = optax.apply_updates(params, updates)
        view, state = gemjax.pull(state, params, worker=worker)
        return params, state, ravel_pytree(view)[0], ravel_pytree(params)[0], observer.collected()

    state, history, seen = tx.init(params), [], []
    views, steps = dict.fromkeys(order, THETA_0), dict.fromkeys(order, 0)
    for i in order:
        grads = unravel(jnp.asarray(grad(np.asarray(views[i]), i, steps[i])))
        params, state, views[i], vector, quantities = commit_and_pull(params, state, grads, i)
        steps[i] += 1
        history.append(np.asarray(views[i] if views_instead else vector))
        seen.append({name: float(value) for name, value in quantities.items()})
    return np.stack(history), seen


def loss(x, i, j):
    """Return the loss of which :func:`grad` is the gradient."""
    return 0.5 * x @ _CURVATURE @ x + 0.3 * _NOISE[i, j % 200] @ x


def run_locally(tx, local, trace, **options):
    """Simulate local steps on that quadratic; return the central variable after each arrival, and the result."""
    params, _ = tree()
    noise, curvature = jnp.asarray(_NOISE), jnp.asarray(_CURVATURE)

    def loss_fn(params, batch):
        x = ravel_pytree(params)[0]
        return 0.5 * x @ curvature @ x + 0.3 * batch @ x

    history = []

    def note(progress):
        history.append(np.asarray(ravel_pytree(progress.params)[0]))

    batches = gemjax.Computed(lambda worker, step: noise[worker, step % 200])
    result = gemjax.simulate(
        tx, loss_fn, params, batches, trace, local=local, callback=note, callback_every=1, **options
    )
    return np.stack(history), result
