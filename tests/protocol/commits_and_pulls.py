"""Commits and pulls of three workers in a fixed order, without an engine."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import gemjax
from gemjax.protocol.hooks import ReadsStaleParams, where_present
from gemjax.protocol.slots import Slots

PARAMS = {"a": jnp.array([1.0, -2.0]), "b": jnp.array([[3.0, 0.5, -1.0]])}
ORDER = (0, 2, 2, 1, 0, 1)


class Fixed(NamedTuple):
    """Node that makes the worker compute at one point forever."""

    params: Any

    def on_pull(self, params, view, moved):
        return self, where_present(lambda own, _: own, self.params, view), ()


def gradients(view, t):
    return jax.tree.map(lambda v: 0.5 * v + 0.1 * t, view)


def run(tx, order=ORDER, params=PARAMS, state=None, compiled=False):
    """Commit and pull in order; return the parameters, the state and the update of every commit."""
    state = tx.init(params) if state is None else state
    update = jax.jit(tx.update) if compiled else tx.update
    views, made = dict.fromkeys(order, params), []
    for t, worker in enumerate(order):
        updates, state = update(gradients(views[worker], t), state, params, worker=worker)
        params = optax.apply_updates(params, updates)
        views[worker], state = gemjax.pull(state, params, worker=worker)
        made.append(updates)
    return params, state, made


def equal(found, expected, rtol=0.0):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(lambda f, e: np.testing.assert_allclose(f, e, rtol=rtol), found, expected)


def spy(seen, reads=False, view=None):
    """Return a member that records its arguments."""

    def init_fn(params):
        return (ReadsStaleParams() if reads else (), () if view is None else Slots(Fixed(view)))

    def update_fn(updates, state, params=None, **extra_args):
        seen.append(extra_args)
        return updates, state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


READINGS = ("equations", "code", "algorithm")
