"""Arguments that an asynchronous method refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from protocol.commits_and_pulls import PARAMS, READINGS, equal

import gemjax


@pytest.mark.parametrize("num_workers", [0, -1, 2.0, "3", None])
def test_bad_numbers_of_workers_are_refused(num_workers):
    with pytest.raises(ValueError, match=f"num_workers must be a positive int, got {num_workers!r}"):
        gemjax.asynchronous(optax.sgd(0.1), num_workers)
    with pytest.raises(ValueError, match=f"num_workers must be a positive int, got {num_workers!r}"):
        gemjax.gem(0.1, num_workers=num_workers)


def test_integers_of_other_kinds_are_numbers_of_workers():
    for num_workers in (np.int64(3), jnp.int32(3)):
        assert gemjax.asgd(0.1, num_workers).init(PARAMS).pulled_at.num_workers == 3


@pytest.mark.parametrize(
    ("grads", "message"),
    [
        ({"a": PARAMS["a"]}, "the tree of the gradient differs from that of params: got .*'a'.* expected .*'a'.*'b'"),
        (
            PARAMS | {"a": jnp.ones(3)},
            r"the gradient at \['a'\] is float32\[3\], but the parameter there is float32\[2\]",
        ),
        (PARAMS | {"b": jnp.ones((1, 3), jnp.bfloat16)}, r"at \['b'\] is bfloat16\[1, 3\], but .* float32\[1, 3\]"),
        (PARAMS | {"b": jnp.ones((3, 1))}, "give it the same shape and dtype"),
    ],
    ids=["tree", "shape", "dtype", "transposed"],
)
def test_gradients_unlike_the_parameters_are_refused(grads, message):
    for tx in (gemjax.asgd(0.1), gemjax.gem(0.1)):
        with pytest.raises(ValueError, match=message):
            tx.update(grads, tx.init(PARAMS), PARAMS)


def test_a_bad_gradient_of_a_single_array_is_at_the_root():
    tx = gemjax.asgd(0.1)
    with pytest.raises(ValueError, match=r"the gradient at the root is float32\[2\]"):
        tx.update(jnp.ones(2), tx.init(jnp.ones(3)), jnp.ones(3))


@pytest.mark.parametrize("reading", READINGS)
def test_missing_params_are_an_error(reading):
    tx = gemjax.gem(0.1, num_workers=2, reading=reading)
    with pytest.raises(
        (ValueError, TypeError), match=r"call update\(grads, state, params\)|without params=.* be given params"
    ):
        tx.update(PARAMS, tx.init(PARAMS), worker=0)


def test_params_may_be_missing_where_no_member_reads_them():
    tx = gemjax.dynsgd(0.1, num_workers=2)
    updates, _ = tx.update(PARAMS, tx.init(PARAMS), worker=0)
    equal(updates, jax.tree.map(lambda p: -0.1 * p, PARAMS), rtol=1e-6)


@pytest.mark.parametrize("atom", [gemjax.match_energy, gemjax.scale_by_staleness], ids=lambda atom: atom.__name__)
def test_an_atom_outside_the_wrapper_is_an_error_with_advice(atom):
    message = rf"{atom.__name__} was called without staleness=.*gemjax.asynchronous\(optax.chain\(…, {atom.__name__}"
    for tx in (atom(), optax.chain(optax.sgd(0.1), atom())):
        with pytest.raises(TypeError, match=message):
            tx.update(PARAMS, tx.init(PARAMS), PARAMS, worker=0)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (jax.tree.map(lambda p: p[..., :1], PARAMS), r"the pulled view at \['a'\] is float32\[1\]"),
        (jax.tree.map(lambda p: p.astype(jnp.bfloat16), PARAMS), r"the pulled view at \['a'\] is bfloat16\[2\]"),
    ],
    ids=["shape", "dtype"],
)
def test_pulling_other_parameters_is_refused(params, message):
    state = gemjax.gem(0.1, num_workers=2).init(PARAMS)
    with pytest.raises(ValueError, match=message):
        gemjax.pull(state, params, worker=1)


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
