"""Arguments that an asynchronous method refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from protocol.commits_and_pulls import PARAMS, equal

import gemjax


def test_integers_of_other_kinds_are_numbers_of_workers():
    for num_workers in (np.int64(3), jnp.int32(3)):
        assert gemjax.asgd(0.1, num_workers).init(PARAMS).pulled_at.num_workers == 3


def test_params_may_be_missing_where_no_member_reads_them():
    tx = gemjax.dynsgd(0.1, num_workers=2)
    updates, _ = tx.update(PARAMS, tx.init(PARAMS), worker=0)
    equal(updates, jax.tree.map(lambda p: -0.1 * p, PARAMS), rtol=1e-6)


@pytest.mark.parametrize("wrong", [{"params": PARAMS}, (), jnp.ones(3), None], ids=["inside", "empty", "array", "none"])
def test_parameters_of_another_tree_are_refused_in_one_line(wrong):
    tx = gemjax.gem(0.1, num_workers=2)
    state = tx.init(PARAMS)
    for use in (lambda: gemjax.pull(state, wrong, worker=1), lambda: tx.update(wrong, state, wrong, worker=1)):
        with pytest.raises((ValueError, TypeError)) as refused:
            use()
        assert "\n" not in str(refused.value)
        assert "param" in str(refused.value)


def test_a_wrapper_that_changes_the_tree_is_told_to_go_inside():
    tx = optax.flatten(gemjax.gem(0.1, num_workers=2))
    said = r"the tree of the pulled view differs .* such as optax\.flatten, belongs inside of gemjax\.asynchronous"
    with pytest.raises(ValueError, match=said):
        gemjax.simulate(tx, lambda params, batch: params["a"] ** 2, {"a": jnp.zeros([])}, lambda worker, step: 0.0,
                        gemjax.arrivals.RoundRobin(2).trace(2))  # fmt: skip
    inside = gemjax.asynchronous(optax.chain(optax.flatten(optax.adam(0.1)), gemjax.match_energy()), num_workers=2)
    assert inside.init({"a": jnp.zeros(3)})


@pytest.mark.parametrize("atom", [gemjax.match_energy, gemjax.compensate_delay])
def test_a_wrapper_that_changes_the_tree_around_an_atom_is_refused(atom):
    tx = gemjax.asynchronous(optax.chain(optax.sgd(0.1), optax.flatten(atom())), num_workers=2)
    params = {"a": jnp.zeros(3), "b": jnp.ones((2, 2))}
    with pytest.raises(ValueError, match=r"such as optax\.flatten, belongs .* around transformations of optax"):
        tx.update(params, tx.init(params), params, worker=0)
