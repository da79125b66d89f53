"""Runs whose central variable is over two actors."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from engines.problems import Problem, assert_close

import gemjax
from gemjax.engines.memory import here

N = 4
GEM = gemjax.gem(0.05, num_workers=N)
LOST = "divided over 2 actors, has lost one of them with its part; continue from the last checkpoint"
MATRICES = Problem(
    lambda params, batch: sum(jnp.sum((leaf - batch) ** 2) for leaf in jax.tree.leaves(params)),
    {name: np.ones((96, 96)) for name in "abc"},
    lambda worker, step: jnp.sin(1.0 * worker + step),
)


def run(tx, problem, num_commits=20, *, cluster, **options):
    """Return the result with all arrays of its state, which are in the actors before."""
    result = gemjax.run_on_cluster(
        tx, *problem[:3], num_commits, model_state=problem.model_state, cluster=cluster, **options
    )
    return dataclasses.replace(result, state=here(result.state))


def assert_replays(result, tx, problem, *, pulled_twice=False, **options):
    """Check all states; with ``pulled_twice`` only those that a pull leaves alone, because the trace lacks such a pull."""
    replay = gemjax.simulate(tx, *problem[:3], result.trace, model_state=problem.model_state, **options)
    for name in ("params", "model_state") if pulled_twice else ("params", "opt_state", "model_state"):
        assert_close(jax.device_get(getattr(result, name)), jax.device_get(getattr(replay, name)), rtol=1e-10)
    rows = len(result.history["loss"])  # Those since the run was continued.
    np.testing.assert_allclose(result.history["loss"], replay.history["loss"][-rows:], rtol=1e-8)
