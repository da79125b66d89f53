"""Arguments that an asynchronous method refuses."""

import jax
import jax.numpy as jnp
import optax
import pytest
from protocol.commits_and_pulls import PARAMS, equal

import gemjax


def test_params_may_be_missing_where_no_member_reads_them():
    tx = gemjax.dynsgd(0.1, num_workers=2)
    updates, _ = tx.update(PARAMS, tx.init(PARAMS), worker=0)
    equal(updates, jax.tree.map(lambda p: -0.1 * p, PARAMS), rtol=1e-6)


def test_a_wrapper_that_changes_the_tree_is_told_to_go_inside():
    tx = optax.flatten(gemjax.gem(0.1, num_workers=2))
    said = r"the tree of the pulled view differs .* such as optax\.flatten, belongs inside of gemjax\.asynchronous"
    with pytest.raises(ValueError, match=said):
        gemjax.simulate(tx, lambda params, batch: params["a"] ** 2, {"a": jnp.zeros([])}, lambda worker, step: 0.0,
                        gemjax.arrivals.RoundRobin(2).trace(2))  # fmt: skip
    inside = gemjax.asynchronous(optax.chain(optax.flatten(optax.adam(0.1)), gemjax.match_energy()), num_workers=2)
    assert inside.init({"a": jnp.zeros(3)})
