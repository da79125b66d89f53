"""States of a small problem that are saved and loaded."""

import jax
import jax.numpy as jnp
import optax

import gemjax
from gemjax import testing
from gemjax.engines.running.checkpoints.folder import LOCK

LOSS, PARAMS, BATCHES = testing.quadratic()


def method(num_workers=3):
    return optax.chain(optax.clip_by_global_norm(1.0), gemjax.gem(0.1, num_workers=num_workers))


def arrived(state, count=20):
    """Return `state` as if gradients had been rejected, so that it can be saved with any trace of up to `count` rows."""
    steps = jax.tree.map(lambda step: step + count, state.step)
    return state._replace(arrivals=jnp.int32(count), rejected=jnp.int32(count), step=steps)


def like(num_workers=3, tx=None):
    return arrived(gemjax.initial_state(tx or method(num_workers), PARAMS, num_workers=num_workers))


def saved_in(folder):
    """Return the names in a folder of checkpoints, without that of its lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != LOCK)
