import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gemjax.protocol import slots
from gemjax.protocol.slots import SharedRows, Slots


def a_store():
    """Return a state with shared leaves around two per-worker nodes, for three workers."""
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


def test_stack_gives_every_worker_keys_of_its_own():
    """Also raw keys, under any name; other vectors of uint32, and pairs of int32, are copied."""
    old, new = jax.random.PRNGKey(1), jax.random.key(1)
    counts = {"counts": jnp.array([3, 4], jnp.int32), "versions": jnp.array([3, 4, 5], jnp.uint32)}
    own = {"dropout": old, "typed": new, "several": jax.random.split(new, 2)} | counts
    found = slots.stack(Slots(own), 3)
    np.testing.assert_array_equal(found[0]["dropout"], old)
    equal({name: found[1][name] for name in counts}, counts)
    bits = [jax.random.bits(key) for worker in range(3) for key in (*found[worker]["several"], found[worker]["typed"])]
    assert len({int(one) for one in bits}) == 9
    for worker in range(3):
        np.testing.assert_array_equal(found[worker]["dropout"], jax.random.key_data(found[worker]["typed"]))


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


def test_split_and_join_round_trip():
    store = a_store()
    mine, join, shared = slots.split(store)
    assert [node.num_workers for node in mine] == [3, 3]
    assert [leaf.shape for leaf in shared] == [(), (2,)]
    equal(join(mine, shared), store)


def test_a_join_builds_the_same_structure_of_other_nodes():
    """A compiled loop joins slots of one worker beside the stacks."""
    store = a_store()
    stacks, join, shared = slots.split(store)
    mine = slots.take(stacks, 2)
    checked_out = join(mine, shared)
    equal(checked_out, slots.take(store, 2))
    equal(join(slots.put(stacks, mine, 2), shared), store)


def test_like_puts_the_holes_of_masked():
    whole = {"a": jnp.ones(1), "b": {"c": jnp.ones(2)}}
    masked = {"a": optax.MaskedNode(), "b": {"c": jnp.zeros(2)}}
    found = slots.match_mask(whole, masked)
    assert isinstance(found["a"], optax.MaskedNode)
    np.testing.assert_array_equal(found["b"]["c"], whole["b"]["c"])


# --- Shared rows -----------------------------------------------------------------------------------------------------

PARAMS = {"w": jnp.array([[1.0, 2.0]]), "b": jnp.array(3.0)}


def filled(num_workers=3):
    """Return rows of which row i is i times the parameters."""
    shared = SharedRows.of(PARAMS, num_workers)
    for worker in range(num_workers):
        shared = shared.write(worker, jax.tree.map(lambda p, i=worker: i * p, PARAMS))
    return shared


def assert_rows(shared, factors):
    for name, p in PARAMS.items():
        np.testing.assert_array_equal(shared.rows[name], np.stack([factor * p for factor in factors]))


def test_at_first_every_row_is_the_parameters():
    shared = SharedRows.of(PARAMS, 4)
    assert shared.rows["w"].shape == (4, 1, 2)
    assert shared.rows["b"].shape == (4,)
    assert_rows(shared, [1, 1, 1, 1])


def test_a_worker_writes_its_own_row_alone():
    shared = filled().write(1, jax.tree.map(lambda p: 9 * p, PARAMS))
    assert_rows(shared, [0, 9, 2])
    for worker, factor in enumerate([0, 9, 2]):
        row = shared.read(worker)
        jax.tree.map(lambda r, p, f=factor: np.testing.assert_array_equal(r, f * p), row, PARAMS)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_a_write_is_undone_unless_all_around_it_apply_the_commit(first, second):
    """Also if the new row is not finite."""
    row = jax.tree.map(lambda p: p * jnp.nan, PARAMS)
    during = slots.begin_commit(before := filled())
    inside = slots.select(jnp.array(first), slots.begin_commit(during).write(1, row), during)
    old, new = inside.change()
    assert [bool(jnp.isnan(one["b"])) for one in (old, new)] == [False, first]
    found = slots.select(jnp.array(second), inside, before)
    assert_rows(found, [0, jnp.nan if first and second else 1, 2])
    assert jax.tree.structure(found) == jax.tree.structure(before)


@pytest.mark.parametrize("applied", [True, False])
def test_select_keeps_the_rows_and_undoes_the_write(applied):
    """Shared rows need no choice, which would copy them."""
    old = {"rows": filled(), "count": jnp.int32(1)}
    new = slots.begin_commit(old)
    new = {"rows": new["rows"].write(1, jax.tree.map(lambda p: 9 * p, PARAMS)), "count": jnp.int32(2)}
    found = slots.select(jnp.array(applied), new, old)
    assert jax.tree.structure(found) == jax.tree.structure(old)
    assert_rows(found["rows"], [0, 9 if applied else 1, 2])
    assert int(found["count"]) == 1 + applied


@pytest.mark.parametrize("worker", [3, 100])
def test_beyond_the_last_row_nothing_is_written(worker):
    assert_rows(filled().write(worker, PARAMS), [0, 1, 2])


@pytest.mark.parametrize("applied", [True, False])
def test_the_worker_and_the_outcome_may_be_traced(applied):
    @jax.jit
    def write_and_read(shared, worker, applied):
        written = slots.begin_commit(shared).write(worker, jax.tree.map(lambda p: 7 * p, PARAMS))
        shared = slots.select(applied, written, shared)
        return shared, shared.read(worker)

    for worker in range(3):
        factors = [0, 1, 2]
        factors[worker] = 7 if applied else worker
        shared, row = write_and_read(filled(), jnp.int32(worker), jnp.array(applied))
        assert_rows(shared, factors)
        np.testing.assert_array_equal(row["w"], factors[worker] * PARAMS["w"])
    assert write_and_read._cache_size() == 1
