"""Checkpoints of arrays whose names Orbax, which joins keys with dots, would give to several."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gemjax

X, Y = jnp.arange(4.0), jnp.full(4, 5.0)
PARAMS = {"a": {"b": X, "": X + 1}, "a.b": Y, "a.": Y + 1, "l": [X, X[:0]], "l.0": Y[:3]}


@pytest.mark.parametrize("in_files", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_arrays_with_one_name_stay_two(tmp_path, in_files):
    tx, trace = gemjax.asgd(0.1, num_workers=2), gemjax.arrivals.RoundRobin(2).trace(6)
    loss = lambda params, batch: sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
    model_state = {"key.s": jax.random.key(3), "key": {"s": jax.random.key(4)}}
    begun = gemjax.simulate(
        tx, lambda params, model_state, batch, key: (loss(params, batch), (model_state, {})), PARAMS,
        lambda worker, step: step, trace, model_state=model_state,
    )  # fmt: skip
    checkpoints = gemjax.Checkpoints(tmp_path)
    checkpoints.save(begun.state, begun.trace, {"note": 1})
    like = gemjax.initial_state(tx, PARAMS, model_state=model_state)
    state, loaded, metadata = checkpoints.load(like, in_files=in_files)
    assert (loaded, metadata) == (begun.trace, {"note": 1})
    assert jax.tree.structure(state) == jax.tree.structure(begun.state)
    as_numbers = lambda leaf: np.asarray(
        jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
    )
    for found, expected in zip(jax.tree.leaves(state), jax.tree.leaves(begun.state), strict=True):
        np.testing.assert_array_equal(as_numbers(found), as_numbers(expected))


def test_another_tree_is_refused(tmp_path):
    tx = gemjax.asgd(0.1, num_workers=2)
    first = gemjax.initial_state(tx, PARAMS)
    checkpoints = gemjax.Checkpoints(tmp_path)
    checkpoints.save(first, gemjax.arrivals.RoundRobin(2).trace(0))
    for other in (PARAMS | {"a.b": Y[:3]}, PARAMS | {"a": X}):
        with pytest.raises(
            gemjax.CheckpointError, match="is of another method, schedule, model, number of workers or PRNG"
        ):
            checkpoints.load(gemjax.initial_state(tx, other))
