from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax
from gemjax.engines.devices.hardware.compat import enable_x64
from gemjax.protocol import slots
from gemjax.protocol.hooks import ReadsStaleParams, where_present
from gemjax.protocol.slots import Slots
from gemjax.protocol.staleness import is_asynchronous, num_workers_of, recorded_view

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


# --- State and arguments of members -------------------------------------------------------------------------


def test_the_clock_counts_commits_and_pulls_are_dated():
    tx = gemjax.asgd(0.1, num_workers=3)
    state = tx.init(PARAMS)
    assert int(state.clock) == 0
    np.testing.assert_array_equal(state.pulled_at.value, [0, 0, 0])
    for worker in (0, 2):
        _, state = tx.update(PARAMS, state, PARAMS, worker=worker)
    np.testing.assert_array_equal(state.pulled_at.value, [0, 0, 0])  # A commit is no pull,
    _, state = gemjax.pull(state, PARAMS, worker=2)
    assert int(state.clock) == 2  # and a pull no commit.
    np.testing.assert_array_equal(state.pulled_at.value, [0, 0, 2])
    assert int(state.pulled_at[2]) == 2
    assert state.clock.dtype == state.pulled_at.value.dtype == jnp.int32


def test_members_receive_worker_staleness_and_stale_params():
    seen = []
    tx = gemjax.asynchronous(optax.chain(optax.clip(1.0), spy(seen, reads=True)), num_workers=3)
    params, state = {"x": jnp.zeros(2)}, None
    state, views, pulled_at = tx.init(params), [params] * 3, [0] * 3
    for t, worker in enumerate(ORDER):
        _, state = tx.update(params, state, params, worker=worker, value=t)
        received = seen[-1]
        assert (int(received["worker"]), int(received["staleness"]), received["value"]) == (
            worker,
            t - pulled_at[worker],
            t,
        )
        assert received["staleness"].dtype == jnp.int32
        equal(received["stale_params"], views[worker])
        params = {"x": params["x"] + 1.0}
        views[worker], state = gemjax.pull(state, params, worker=worker)
        pulled_at[worker] = t + 1
    assert {int(received["staleness"]) for received in seen} >= {0, 1, 3}


def test_of_two_pulls_the_last_one_counts():
    tx = gemjax.gem(0.1, num_workers=2)
    state = tx.init(PARAMS)
    later = jax.tree.map(lambda p: p + 1.0, PARAMS)
    for worker, params in ((0, PARAMS), (1, PARAMS)):
        _, state = tx.update(PARAMS, state, PARAMS, worker=worker)
        _, state = gemjax.pull(state, params, worker=0)
    _, state = gemjax.pull(state, later, worker=0)
    assert int(state.pulled_at[0]) == 2
    equal(state.stale_params[0], later)
    equal(state.stale_params[1], PARAMS)


@pytest.mark.parametrize(
    ("inner", "kept"),
    [
        (optax.sgd(0.1), False),
        (gemjax.scale_by_staleness(), False),
        (gemjax.per_worker(optax.trace(0.9)), False),
        (gemjax.match_energy(reading="code"), False),  # It keeps a position of its own.
        (gemjax.match_energy(), True),
        (optax.chain(optax.clip(1.0), optax.chain(gemjax.match_energy())), True),
        (optax.masked(gemjax.match_energy(), {"a": True, "b": False}), True),
    ],
)
def test_stale_params_are_kept_only_if_a_member_reads_them(inner, kept):
    state = gemjax.asynchronous(inner, num_workers=4).init(PARAMS)
    assert (state.stale_params is not None) == kept
    if kept:
        assert state.stale_params.value["a"].shape == (4, 2)


def test_the_view_is_the_parameters_themselves():
    for tx in (gemjax.asgd(0.1, 2), gemjax.gem(0.1, num_workers=2), optax.sgd(0.1)):
        view, _ = gemjax.pull(tx.init(PARAMS), PARAMS, worker=1)
        assert view is PARAMS


def test_a_member_may_shift_the_view_and_the_shifted_one_is_recorded():
    elsewhere = jax.tree.map(lambda p: p + 10.0, PARAMS)
    tx = gemjax.asynchronous(spy([], reads=True, view=elsewhere), num_workers=2)
    view, state = gemjax.pull(tx.init(PARAMS), PARAMS, worker=1)
    equal(view, elsewhere)
    equal(state.stale_params[1], elsewhere)
    equal(state.stale_params[0], PARAMS)


def test_pull_of_a_state_without_the_protocol_changes_nothing():
    tx = optax.adam(0.1)
    state = tx.init(PARAMS)
    view, after = gemjax.pull(state, PARAMS, worker=5)
    assert view is PARAMS
    equal(after, state)
    assert not is_asynchronous(state)
    assert is_asynchronous(optax.chain(gemjax.asgd(0.1)).init(PARAMS))


# --- In optax's wrappers ---------------------------------------------------------------------------------------------

WRAPPERS = {
    "chain": lambda tx: optax.chain(optax.identity(), tx),
    "named_chain": lambda tx: optax.named_chain(("nothing", optax.identity()), ("method", tx)),
    "inject_hyperparams": lambda tx: optax.inject_hyperparams(lambda unused: tx)(unused=1.0),
    "multi_steps": lambda tx: optax.MultiSteps(tx, every_k_schedule=1),
    "masked": lambda tx: optax.masked(tx, {"a": True, "b": True}),
    "partition": lambda tx: optax.partition({"all": tx}, {"a": "all", "b": "all"}),
    "apply_if_finite": lambda tx: optax.apply_if_finite(tx, 3),
}
READINGS = ("equations", "code", "algorithm")


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("reading", ["equations", "algorithm"])
def test_pull_finds_the_state_in_every_wrapper(wrapper, reading):
    tx = gemjax.gem(0.1, num_workers=3, reading=reading)
    expected, state, _ = run(tx)
    found, wrapped, _ = run(WRAPPERS[wrapper](tx), compiled=True)
    equal(found, expected, rtol=1e-6)
    np.testing.assert_array_equal(optax.tree.get(wrapped, "pulled_at").value, state.pulled_at.value)
    assert num_workers_of(wrapped) == 3


@pytest.mark.parametrize("reading", READINGS)
def test_parts_of_the_parameters_may_have_methods_of_their_own(reading):
    """Both methods are elementwise, so each part moves as it would alone."""
    methods = {
        "gem": gemjax.gem(0.1, num_workers=3, reading=reading),
        "sgd": gemjax.multi_asgd(0.1, 0.5, num_workers=3),
    }
    labels = {"a": "gem", "b": "sgd"}
    found, state, _ = run(optax.partition(methods, labels))
    for name, method in labels.items():
        alone, _, _ = run(methods[method], params={name: PARAMS[name]})
        equal(found[name], alone[name], rtol=1e-6)
    assert num_workers_of(state) == 3


@pytest.mark.parametrize("reading", READINGS)
def test_masked_outside_and_inside(reading):
    """A masked part receives its gradient unchanged, as in optax, and the rest moves as it would alone."""
    mask = {"a": True, "b": False}
    outside = optax.masked(gemjax.gem(0.1, num_workers=3, reading=reading), mask)
    energy = gemjax.match_energy(reading=reading)
    inside = gemjax.asynchronous(
        optax.masked(optax.chain(optax.scale_by_learning_rate(0.1), energy), mask), num_workers=3
    )
    alone, _, _ = run(gemjax.gem(0.1, num_workers=3, reading=reading), params={"a": PARAMS["a"]})
    found, _, made = run(outside)
    equal(found["a"], alone["a"], rtol=1e-6)
    equal(made[0]["b"], gradients(PARAMS, 0)["b"])
    equal(run(inside)[0], found, rtol=1e-6)


def test_a_chain_of_two_wrappers():
    """Per-worker momentum by itself in front of GEM is one wrapper around both."""
    two = optax.chain(gemjax.per_worker(optax.trace(0.5), num_workers=3), gemjax.gem(0.05, num_workers=3))
    members = gemjax.per_worker(optax.trace(0.5)), optax.scale_by_learning_rate(0.05), gemjax.match_energy()
    one = gemjax.asynchronous(optax.chain(*members), num_workers=3)
    found, state, _ = run(two)
    equal(found, run(one)[0])
    for node in state:
        np.testing.assert_array_equal(node.pulled_at.value, [5, 6, 3])


@pytest.mark.parametrize("reading", READINGS)
def test_a_wrapper_inside_a_wrapper_changes_nothing(reading):
    tx = gemjax.gem(0.05, num_workers=3, reading=reading)
    found, state, _ = run(gemjax.asynchronous(optax.chain(optax.identity(), tx), num_workers=3))
    expected, alone, _ = run(tx)
    equal(found, expected)
    equal(state.inner_state[1], alone)


def test_wrappers_for_different_numbers_of_workers():
    with pytest.raises(ValueError, match="a state for 4 workers is inside one for 3; give both the same num_workers"):
        gemjax.asynchronous(gemjax.gem(0.1, num_workers=4), num_workers=3).init(PARAMS)
    side_by_side = optax.chain(gemjax.asgd(1.0, 4), gemjax.asgd(1.0, 3))
    with pytest.raises(ValueError, match=r"different numbers of workers: \[3, 4\]"):
        num_workers_of(side_by_side.init(PARAMS))
    with pytest.raises(ValueError, match="worker=3 is out of range: this state is kept for 3 workers"):
        side_by_side.update(PARAMS, side_by_side.init(PARAMS), PARAMS, worker=3)


def test_multi_steps_commits_once_every_k_arrivals():
    tx = optax.MultiSteps(gemjax.gem(0.1, momentum=0.0, num_workers=2), every_k_schedule=2)
    state, update = tx.init(PARAMS), jax.jit(tx.update)
    first, state = update(PARAMS, state, PARAMS, worker=0)
    assert int(state.inner_opt_state.clock) == 0
    second, state = update(jax.tree.map(lambda p: 3 * p, PARAMS), state, PARAMS, worker=1)
    assert int(state.inner_opt_state.clock) == 1
    equal(first, jax.tree.map(jnp.zeros_like, PARAMS))
    equal(second, jax.tree.map(lambda p: -0.2 * p, PARAMS), rtol=1e-6)  # The mean of 1 and 3, at a rate of 0.1.
    _, state = gemjax.pull(state, PARAMS, worker=1)
    np.testing.assert_array_equal(state.inner_opt_state.pulled_at.value, [0, 1])


# --- inject_hyperparams ----------------------------------------------------------------------------------------------


def test_num_workers_as_a_static_argument_of_inject_hyperparams():
    injected = optax.inject_hyperparams(gemjax.gem, static_args=("num_workers",))(0.1, num_workers=3)
    state = jax.jit(injected.init)(PARAMS)
    assert set(state.hyperparams) == {"learning_rate", "momentum", "kappa", "eps"}
    found, _, _ = run(injected, state=state)
    equal(found, run(gemjax.gem(0.1, num_workers=3))[0], rtol=1e-5)


def test_num_workers_as_an_injected_number_works_until_it_is_traced():
    injected = optax.inject_hyperparams(gemjax.gem)(0.1, num_workers=3)
    found, _, _ = run(injected)  # `init` receives the number; later it is in the shape of the state.
    equal(found, run(gemjax.gem(0.1, num_workers=3))[0], rtol=1e-5)
    with pytest.raises(
        TypeError, match=r"it cannot be traced; under optax.inject_hyperparams pass static_args=\('num_workers',\)"
    ):
        jax.jit(injected.init)(PARAMS)


def test_hyper_parameters_injected_inside_the_wrapper():
    energy = optax.inject_hyperparams(gemjax.match_energy)(momentum=0.9, kappa=1.0)
    tx = gemjax.asynchronous(optax.chain(optax.scale_by_learning_rate(0.1), energy), num_workers=3)
    equal(run(tx)[0], run(gemjax.gem(0.1, num_workers=3))[0], rtol=1e-5)


# --- Compiled --------------------------------------------------------------------------------------------------------


def commit_and_pull(tx, params, state, t, worker, view):
    updates, state = tx.update(gradients(view, t), state, params, worker=worker)
    params = optax.apply_updates(params, updates)
    view, state = gemjax.pull(state, params, worker)
    return params, state, view


@pytest.mark.parametrize("reading", ["equations", "algorithm"])
def test_scan_equals_the_loop(reading):
    tx = gemjax.gem(0.1, num_workers=3, reading=reading)

    def body(carry, inputs):
        params, state, views = carry
        t, worker = inputs
        view = jax.tree.map(lambda v: v[worker], views)
        params, state, view = commit_and_pull(tx, params, state, t, worker, view)
        return (params, state, jax.tree.map(lambda v, one: v.at[worker].set(one), views, view)), None

    views = jax.tree.map(lambda p: jnp.stack([p] * 3), PARAMS)
    inputs = jnp.arange(len(ORDER)), jnp.array(ORDER)
    (found, state, _), _ = jax.jit(lambda *xs: jax.lax.scan(body, (PARAMS, tx.init(PARAMS), views), xs))(*inputs)
    expected, loop_state, _ = run(tx)
    equal(found, expected, rtol=1e-5)
    np.testing.assert_array_equal(state.pulled_at.value, loop_state.pulled_at.value)


@pytest.mark.slow
def test_vmap_over_seeds_rates_and_workers():
    def final(seed, rate, order):
        tx = gemjax.gem(rate, num_workers=3)
        params = {"x": jax.random.normal(jax.random.key(seed), (4,))}
        state = tx.init(params)
        for t in range(3):
            params, state, _ = commit_and_pull(tx, params, state, t, order[t], params)
        return params["x"], state.pulled_at.value

    seeds, rates = jnp.array([0, 1, 2]), jnp.array([0.1, 0.2, 0.05])
    orders = jnp.array([[0, 1, 2], [2, 2, 0], [1, 0, 1]])
    found, pulled_at = jax.jit(jax.vmap(final))(seeds, rates, orders)
    for i in range(3):
        expected, expected_at = jax.jit(final)(seeds[i], rates[i], orders[i])
        np.testing.assert_allclose(found[i], expected, rtol=1e-5)
        np.testing.assert_array_equal(pulled_at[i], expected_at)


def test_one_trace_and_one_compilation_for_all_workers():
    tx, traces = gemjax.gem(0.1, num_workers=5), []

    @jax.jit
    def step(params, state, worker):
        traces.append(worker)
        return commit_and_pull(tx, params, state, 0, worker, params)

    params, state = PARAMS, tx.init(PARAMS)
    for worker in (0, 4, 2, 2, 1):
        params, state, _ = step(params, state, worker)
    assert len(traces) == 1
    assert step._cache_size() == 1
    np.testing.assert_array_equal(state.pulled_at.value, [1, 5, 4, 0, 2])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes_are_kept(dtype):
    with enable_x64(dtype == "float64"):
        params = {"a": jax.ShapeDtypeStruct((2,), dtype), "c": jax.ShapeDtypeStruct((1,), "float32")}  # Mixed, too.
        tx = gemjax.gem(0.1, num_workers=2)

        def once(params):
            state = tx.init(params)
            updates, after = tx.update(params, state, params, worker=1)
            view, after = gemjax.pull(after, optax.apply_updates(params, updates), worker=1)
            return state, after, updates, view

        state, after, updates, view = jax.eval_shape(once, params)  # Tracing suffices.
        assert updates == view == params
        assert jax.tree.leaves(after) == jax.tree.leaves(state)


# --- Checked out -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tx",
    [
        gemjax.gem(0.1, num_workers=3),
        gemjax.gem(0.1, num_workers=3, reading="code"),
        gemjax.gem(0.1, num_workers=3, reading="algorithm"),
        gemjax.dynsgd(0.1, num_workers=3),
        gemjax.multi_asgd(0.1, num_workers=3),
        optax.chain(optax.clip(0.5), gemjax.per_worker(optax.adam(0.1), num_workers=3)),
    ],
    ids=["gem", "gem-code", "gem-algorithm", "dynsgd", "multi-asgd", "adam"],
)
def test_a_slot_that_an_engine_checked_out_gives_the_same_bits(tx):
    expected, expected_state, _ = run(tx)
    params, state, views = PARAMS, tx.init(PARAMS), dict.fromkeys(ORDER, PARAMS)
    for t, worker in enumerate(ORDER):
        mine = slots.take(state, worker)
        updates, mine = tx.update(gradients(views[worker], t), mine, params, worker=worker)
        params = optax.apply_updates(params, updates)
        views[worker], mine = gemjax.pull(mine, params, worker=worker)
        state = slots.put(state, mine, worker)
    equal(params, expected)
    equal(state, expected_state)


def test_an_engine_reads_staleness_and_view_from_a_slot():
    tx = optax.chain(gemjax.gem(0.1, num_workers=3))
    params, state, _ = run(tx)
    mine = slots.take(state, 2)  # Pulled at 3 of 6 commits.
    assert int(mine[0].clock - mine[0].pulled_at.value) == 3
    equal(recorded_view(mine, params), state[0].stale_params[2])
    assert recorded_view(slots.take(gemjax.asgd(0.1, 3).init(PARAMS), 2), PARAMS) is None
    masked = optax.masked(gemjax.gem(0.1, num_workers=3), {"a": True, "b": False}).init(PARAMS)
    assert recorded_view(slots.take(masked, 2), PARAMS) is None  # Only a part of the view is kept.


# --- One worker ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pulls", [False, True], ids=["without-pulls", "with-pulls"])
def test_without_worker_it_is_an_ordinary_optimizer(pulls):
    tx, ordinary = gemjax.gem(0.1, momentum=0.0), optax.sgd(0.1)
    params = expected = PARAMS
    state, ordinary_state = tx.init(params), ordinary.init(params)
    for _ in range(3):
        if pulls:
            view, state = gemjax.pull(state, params)
            assert view is params
        updates, state = tx.update(params, state, params)
        params = optax.apply_updates(params, updates)
        updates, ordinary_state = ordinary.update(expected, ordinary_state, expected)
        expected = optax.apply_updates(expected, updates)
    equal(params, expected, rtol=1e-6)


def test_without_worker_nothing_is_stale():
    seen = []
    tx = gemjax.asynchronous(spy(seen, reads=True))
    state = tx.init(PARAMS)
    later = jax.tree.map(lambda p: p + 1.0, PARAMS)
    for params in (PARAMS, later):
        _, state = tx.update(PARAMS, state, params)
        assert int(seen[-1]["staleness"]) == 0
        equal(seen[-1]["stale_params"], params)
    # After a pull since the last commit, the gradient counts as computed at the view, wherever the parameters are now.
    _, state = gemjax.pull(state, PARAMS)
    _, state = tx.update(PARAMS, state, later)
    equal(seen[-1]["stale_params"], PARAMS)


def test_a_worker_that_is_named_is_stale_until_it_pulls():
    seen = []
    tx = gemjax.asynchronous(spy(seen, reads=True))
    state = tx.init(PARAMS)
    for t in range(3):
        _, state = tx.update(PARAMS, state, jax.tree.map(lambda p: p + 1.0, PARAMS), worker=0)
        assert int(seen[-1]["staleness"]) == t
        equal(seen[-1]["stale_params"], PARAMS)


# --- Arguments that are refused ---------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("reading", ["code", "algorithm"])
def test_a_pull_without_a_commit_forgets_the_point_set_aside(reading):
    """After a rejected gradient the worker computes at, and measures from, the central variable, once that has moved."""
    tx = gemjax.gem(0.1, num_workers=2, reading=reading)
    state, later = tx.init(PARAMS), jax.tree.map(lambda p: p + 1.0, PARAMS)
    _, state = tx.update(PARAMS, state, later, worker=0)  # Sets `later` aside.
    for _ in range(2):  # Without a commit in between, a trace records one of the two.
        view, state = gemjax.pull(state, PARAMS, worker=0)
        equal(view, later if reading == "algorithm" else PARAMS)
        equal(state.inner_state[1].stale_point[0].params, later)
    _, state = tx.update(PARAMS, state, PARAMS, worker=1)
    view, state = gemjax.pull(state, PARAMS, worker=0)
    equal(view, PARAMS)
    equal(state.inner_state[1].stale_point[0].params, PARAMS)


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
