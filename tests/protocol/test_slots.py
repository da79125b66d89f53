import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax
from gemjax.protocol import slots
from gemjax.protocol.slots import Slots


def a_store():
    """A state with shared leaves around two per-worker nodes, for three workers."""
    state = {"count": jnp.int32(7), "m": Slots({"x": jnp.zeros((2, 2))}), "n": (Slots(jnp.int32(1)), jnp.ones(2))}
    return slots.stack(state, 3)


def equal(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_stack_gives_every_worker_a_copy_and_leaves_the_rest():
    store = a_store()
    assert store["m"].num_workers == 3
    assert store["m"].value["x"].shape == (3, 2, 2)
    assert store["n"][0].value.shape == (3,)
    assert store["count"].shape == ()
    assert store["n"][1].shape == (2,)


def test_stack_leaves_what_is_stacked_already():
    store = a_store()
    equal(slots.stack(store, 3), store)
    with pytest.raises(
        ValueError, match="a state for 3 workers stands inside one for 4; give both the same num_workers"
    ):
        slots.stack(store, 4)


def test_put_writes_one_worker_and_the_shared_part():
    store = a_store()
    mine = slots.take(store, 1)
    assert mine["m"].num_workers is None
    mine = {**mine, "count": jnp.int32(8), "m": Slots({"x": jnp.ones((2, 2))})}
    after = slots.put(store, mine, 1)
    np.testing.assert_array_equal(after["m"].value["x"].sum((1, 2)), [0, 4, 0])
    assert int(after["count"]) == 8
    equal(slots.take(after, 1), mine)
    equal(slots.take(after, 0)["m"], slots.take(store, 0)["m"])


@pytest.mark.parametrize("worker", [0, 2])
def test_take_and_put_round_trip(worker):
    store = a_store()
    store["m"].value["x"] = jnp.arange(12.0).reshape(3, 2, 2)
    equal(slots.put(store, slots.take(store, worker), worker), store)
    np.testing.assert_array_equal(slots.take(store, worker)["m"].value["x"], store["m"].value["x"][worker])


def test_put_into_what_is_checked_out_is_the_new_one():
    mine = slots.take(a_store(), 1)
    other = jax.tree.map(lambda x: x + 1, mine)
    equal(slots.put(mine, other, 1), other)


def test_split_and_join_round_trip():
    store = a_store()
    mine, join, shared = slots.split(store)
    assert [node.num_workers for node in mine] == [3, 3]
    assert [leaf.shape for leaf in shared] == [(), (2,)]
    equal(join(mine, shared), store)


def test_a_join_builds_the_same_structure_of_other_nodes():
    """As a compiled loop does it: slots of one worker beside the stacks."""
    store = a_store()
    stacks, join, shared = slots.split(store)
    mine = slots.take(stacks, 2)
    checked_out = join(mine, shared)
    equal(checked_out, slots.take(store, 2))
    equal(join(slots.put(stacks, mine, 2), shared), store)


def test_a_store_reads_by_worker():
    store = slots.stack(Slots(jnp.arange(2.0)), 3)
    store = slots.put(store, Slots(jnp.ones(2)), 2)
    np.testing.assert_array_equal(store[2], [1, 1])
    np.testing.assert_array_equal(store[0], [0, 1])
    with pytest.raises(ValueError, match="worker=3 is out of range: this state is kept for 3 workers, 0 … 2"):
        store[3]
    with pytest.raises(TypeError, match=r"hold the slot of one worker already; read `\.value`"):
        slots.take(store, 0)[0]


def test_dtypes_are_kept():
    store = slots.stack(Slots({"a": jnp.zeros(2, jnp.bfloat16), "b": jnp.int8(3)}), 2)
    taken = slots.take(store, 1)
    assert {name: leaf.dtype.name for name, leaf in taken.value.items()} == {"a": "bfloat16", "b": "int8"}
    after = slots.put(store, taken, 1)
    assert {name: leaf.dtype.name for name, leaf in after.value.items()} == {"a": "bfloat16", "b": "int8"}


def test_nodes_are_pytrees_with_names_and_a_repr():
    store = slots.stack(Slots({"x": jnp.zeros(1)}), 2)
    ((path, leaf),) = jax.tree_util.tree_leaves_with_path(store)
    assert jax.tree_util.keystr(path) == ".value['x']"
    assert leaf.shape == (2, 1)
    assert repr(store).startswith("Slots({'x': Array(")
    assert repr(store).endswith("num_workers=2)")
    assert jax.tree.structure(store) != jax.tree.structure(slots.stack(Slots({"x": jnp.zeros(1)}), 3))


@pytest.mark.parametrize(
    ("worker", "error", "message"),
    [
        (None, ValueError, "worker= is missing: this state is kept for 3 workers, so say which one pulls or commits"),
        (3, ValueError, "worker=3 is out of range: this state is kept for 3 workers, 0 … 2"),
        (-1, ValueError, "worker=-1 is out of range"),
        (1.0, TypeError, "worker must be one integer, got 1.0"),
        (True, TypeError, "worker must be one integer, got True"),
        ("1", TypeError, "worker must be one integer, got '1'"),
        ([0, 1], TypeError, r"worker must be one integer, got \[0, 1\]"),
        (jnp.array([1]), TypeError, "worker must be one integer, got Array"),
    ],
    ids=str,
)
def test_bad_workers_are_refused(worker, error, message):
    with pytest.raises(error, match=message):
        slots.check_worker(worker, 3)
    tx = gemjax.asgd(0.1, num_workers=3)
    params = jnp.ones(2)
    with pytest.raises(error, match=message):
        tx.update(params, tx.init(params), params, worker=worker)
    with pytest.raises(error, match=message):
        gemjax.pull(tx.init(params), params, worker=worker)


@pytest.mark.parametrize("worker", [jnp.float32(1), jnp.array([1])], ids=["float", "vector"])
def test_bad_workers_are_refused_when_traced(worker):
    tx = gemjax.asgd(0.1, num_workers=3)
    params = jnp.ones(2)
    state = tx.init(params)
    message = r"worker must be one integer, got (float32\[\]|int32\[1\])"
    with pytest.raises(TypeError, match=message):
        jax.jit(lambda worker: tx.update(params, state, params, worker=worker))(worker)
    with pytest.raises(TypeError, match=message):
        jax.jit(lambda worker: gemjax.pull(state, params, worker))(worker)


@pytest.mark.parametrize(
    "worker", [1, np.int64(1), np.int8(1), jnp.int32(1), jnp.uint8(1)], ids=lambda w: type(w).__name__
)
def test_any_integer_is_a_worker(worker):
    tx = gemjax.asgd(0.1, num_workers=3)
    params = jnp.ones(2)
    _, state = tx.update(params, tx.init(params), params, worker=0)
    _, state = gemjax.pull(state, params, worker=worker)
    np.testing.assert_array_equal(state.pulled_at.value, [0, 1, 0])


def test_like_puts_the_holes_of_masked():
    whole = {"a": jnp.ones(1), "b": {"c": jnp.ones(2)}}
    masked = {"a": optax.MaskedNode(), "b": {"c": jnp.zeros(2)}}
    found = slots.like(whole, masked)
    assert isinstance(found["a"], optax.MaskedNode)
    np.testing.assert_array_equal(found["b"]["c"], whole["b"]["c"])
