"""Contract of every method. A new method is a new row in ``rows.py``."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from methods.rows import KINDS, METHODS, each_kind, every_method

import gemjax
from gemjax import arrivals
from gemjax.protocol import slots
from gemjax.protocol.compat import enable_x64
from gemjax.protocol.hooks import NeedsLocalSteps, NeedsRounds

# --- Convergence -----------------------------------------------------------------------------------------------------


def _distance(params, target):
    return sum(
        jnp.sum(jnp.square(p - t)) for p, t in zip(jax.tree.leaves(params), jax.tree.leaves(target), strict=True)
    )


def _rosenbrock(params, target):
    """Return Rosenbrock's function with b = 10, scaled to a largest curvature of about 2 at the minimum."""
    del target
    return (jnp.square(1.0 - params[0]) + 10.0 * jnp.square(params[1] - jnp.square(params[0]))) / 50.0


# Initial parameters, minimum, objective, commits.
PROBLEMS = {
    "parabola": ([-1.0, 10.0, 1.0], [1.0, -1.0, 1.0], _distance, 40_000),
    "mixed": (
        {"v": [0.0, 0.0, 0.0], "w": [[0.0, 0.0], [0.0, 0.0]]},
        {"v": [1.0, -1.0, 2.0], "w": [[1.0, 0.0], [-1.0, 1.0]]},
        _distance,
        8_000,
    ),
    "rosenbrock": ([0.0, 0.0], [1.0, 1.0], _rosenbrock, 100_000),
}
DELAYS = {"no-delay": arrivals.RoundRobin, "fixed-delay": arrivals.RoundRobin, "gamma": arrivals.Gamma}
# Each line is one compilation per method. A published rule that may diverge on stale gradients runs without delay.
RUNS = (
    ("mixed", 4, ("no-delay", "fixed-delay", "gamma")),
    ("parabola", 16, ("fixed-delay", "gamma")),
    ("rosenbrock", 4, ("gamma",)),
)


def _arrays(tree, dtype):
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), tree, is_leaf=lambda node: isinstance(node, list))


@functools.lru_cache(maxsize=1)
def _compiled(row, problem, num_workers):
    """Return ``run(worker) -> params``; with ``fresh`` each worker pulls again right before it computes."""
    initial, target, objective, num_commits = PROBLEMS[problem]
    params, target = _arrays(initial, jnp.float64), _arrays(target, jnp.float64)
    rate = optax.linear_schedule(row.learning_rate, 0.1 * row.learning_rate, num_commits)
    tx = row(num_workers, rate)

    def arrive(fresh, carry, worker):
        params, state, views = carry
        pulled = gemjax.pull(state, params, worker)
        stale = jax.tree.map(lambda all_: all_[worker], views), state
        view, state = jax.tree.map(lambda new, old: jnp.where(fresh, new, old), pulled, stale)
        grads = jax.grad(objective)(view, target)
        updates, state = tx.update(grads, state, params, worker=worker)
        params = optax.apply_updates(params, updates)
        view, state = gemjax.pull(state, params, worker)
        views = jax.tree.map(lambda all_, one: all_.at[worker].set(one), views, view)
        return (params, state, views), None

    @jax.jit
    def run(worker, fresh):
        views = jax.tree.map(lambda x: jnp.stack([x] * num_workers), params)
        (found, _, _), _ = jax.lax.scan(functools.partial(arrive, fresh), (params, tx.init(params), views), worker)
        return found

    return run, target


def _cases():
    for row in METHODS:
        for problem, num_workers, delays in RUNS:
            for delay in delays if row.converges_stale else ("no-delay",):
                name = f"{row.name}-{problem}-{num_workers}-{delay}"
                in_ci = row.name in KINDS and problem == "mixed" and delay == "gamma"
                marks = row.marks if in_ci else [pytest.mark.nightly]
                yield pytest.param(row, problem, num_workers, delay, id=name, marks=marks)


@pytest.mark.parametrize(("row", "problem", "num_workers", "delay"), list(_cases()))
def test_converges(x64, row, problem, num_workers, delay):
    run, target = _compiled(row, problem, num_workers)
    worker = DELAYS[delay](num_workers).trace(PROBLEMS[problem][-1]).worker
    found = run(worker, delay == "no-delay")
    for one, expected in zip(jax.tree.leaves(found), jax.tree.leaves(target), strict=True):
        np.testing.assert_allclose(one, expected, rtol=3e-2, atol=3e-2)


# --- Being an optax transformation -----------------------------------------------------------------------------------

DTYPES = [
    "bfloat16",
    "float64",
    *(pytest.param(dtype, marks=pytest.mark.nightly) for dtype in ("float16", "float32")),
]


@pytest.mark.parametrize("row", METHODS, ids=lambda row: row.name)
def test_memory_of_float64_parameters_is_float64(x64, row):
    """A hard float32 would round them: write ``jnp.promote_types(p.dtype, jnp.float32)``."""
    state = jax.eval_shape(row(3).init, jax.ShapeDtypeStruct((5, 7), jnp.float64))
    copies = [leaf for leaf in jax.tree.leaves(state) if leaf.shape[-2:] == (5, 7)]
    assert {leaf.dtype.name for leaf in copies} <= {"float64"}


@every_method
def test_it_can_be_sent_to_the_actors_of_a_cluster(row):
    """Functions inside of functions are pickled with the objects that they refer to."""
    cloudpickle = pytest.importorskip("ray", reason="the cluster engine needs Ray").cloudpickle
    chain = gemjax.asynchronous(optax.chain(optax.clip(1.0), row(2)), 2)
    assert cloudpickle.loads(cloudpickle.dumps(chain)).init(jnp.ones(3)) is not None


def _toy(dtype="float32"):
    params = {"b": jnp.array([1.0, -2.0], dtype), "w": jnp.array([[3.0, 0.5, -1.0]], dtype)}
    return params, jax.tree.map(lambda p: 0.25 * p + 0.125, params)


def _compiled_commit(tx, **extra_args):
    """Return a commit and its pull as one compiled program, and a list that grows by one per trace."""
    traces = []

    @jax.jit
    def commit(params, state, grads, worker):
        traces.append(None)
        updates, state = tx.update(grads, state, params, worker=worker, **extra_args)
        params = optax.apply_updates(params, updates)
        view, state = gemjax.pull(state, params, worker)
        return params, state, updates, view

    return commit, traces


@functools.cache
def _three_workers(row):
    """Return the method with three workers and its compiled commit, compiled once for the tests of a row."""
    tx = row(3)
    return tx, *_compiled_commit(tx)


@functools.cache
def _scheduled(row):
    """Return the method with a rate that falls to 0 after ``limit`` commits, and its commit, compiled once for all limits."""

    def tx(limit):
        return row(3, lambda count: jnp.where(count < limit, row.learning_rate, 0.0))

    @jax.jit
    def commit(limit, params, state, grads, worker):
        updates, state = tx(limit).update(grads, state, params, worker=worker)
        params = optax.apply_updates(params, updates)
        _, state = gemjax.pull(state, params, worker)
        return params, state, updates

    return tx(0).init, commit


def _equal(found, expected, rtol=0.0):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=rtol, atol=0)


def _types(tree):
    """Return the structure, and the shape, dtype, weak type and sharding of every leaf."""
    return jax.tree.structure(tree), [jax.typeof(leaf) for leaf in jax.tree.leaves(tree)]


@every_method
@pytest.mark.parametrize("dtype", DTYPES)
def test_types_of_everything_are_kept(row, dtype):
    """Parameters, updates, view and state keep them, also through cond and scan."""
    tx = row(3)

    def body(carry, worker):
        params, state = carry
        grads = jax.tree.map(lambda p: 0.25 * p + 0.125, params)
        value = jnp.zeros(
            [], "bfloat16" if dtype == "float16" else "float16"
        )  # Another dtype than that of the parameters.
        updates, new_state = jax.lax.cond(
            worker != 2,
            lambda: tx.update(grads, state, params, worker=worker, value=value),
            lambda: (params, state),
        )
        params = optax.apply_updates(params, updates)
        view, new_state = gemjax.pull(new_state, params, worker)
        assert _types(updates) == _types(view) == _types(carry[0])
        assert _types((params, new_state)) == _types(carry)
        return (params, new_state), None

    def run(params):
        workers = jnp.array([0, 1, 2, 1], jnp.int32)
        carry = (params, tx.init(params))
        found, _ = jax.lax.scan(body, carry, workers)
        assert _types(found) == _types(carry)
        return found

    with enable_x64(dtype == "float64"):
        params, _ = _toy(dtype)
        found, _ = jax.eval_shape(run, params)  # Tracing suffices for all of this.
        assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype(dtype)}


@every_method
def test_one_compilation_for_all_workers_and_calls(row):
    tx, commit, traces = _three_workers(row)
    params, grads = _toy()
    state = tx.init(params)
    for worker in (0, 2, 1, 1, 2):
        params, state, _, _ = commit(params, state, grads, worker)
    assert len(traces) == 1
    assert commit._cache_size() == 1


@every_method
def test_a_loop_may_donate_parameters_and_state(row):
    """No array is in the state twice, or that of the parameters."""
    params, _ = _toy()
    params = jax.tree.map(jnp.copy, params)
    state = row(3).init(params)
    jax.jit(lambda *given: jax.tree.map(jnp.negative, given), donate_argnums=(0, 1))(
        params, jax.tree.map(lambda leaf: leaf if jnp.issubdtype(leaf.dtype, jnp.number) else None, state)
    )


@every_method
def test_unexpected_extra_args_are_accepted(row):
    tx, commit, _ = _three_workers(row)
    params, grads = _toy()
    state = tx.init(params)
    *_, plain, _ = commit(params, state, grads, 1)
    commit_with_more, _ = _compiled_commit(tx, value=1.0, unknown_argument=object())
    *_, found, _ = commit_with_more(params, state, grads, 1)
    _equal(found, plain)


@every_method
def test_engines_can_see_whether_it_needs_local_steps_or_rounds(row):
    params, _ = _toy()
    state = jax.eval_shape(row(3).init, params)
    for mark, expected in ((NeedsLocalSteps, row.takes_displacements), (NeedsRounds, row.in_rounds)):
        is_mark = lambda node: isinstance(node, mark)  # noqa: B023
        assert any(map(is_mark, jax.tree.leaves(state, is_leaf=is_mark))) == expected


@every_method
def test_without_a_worker_it_is_an_ordinary_optimizer(row):
    """With one worker, the worker and the pulls may be left out."""
    if row.measures_ahead:
        pytest.skip("what it pulls is not what a commit without a pull is taken to be computed at")
    tx = row(1)
    params, _ = _toy()
    found = expected = params
    state = expected_state = tx.init(params)

    @jax.jit
    def commit_twice(found, state, expected, expected_state):
        updates, state = tx.update(found, state, found)
        _, expected_state = gemjax.pull(expected_state, expected, worker=0)
        expected_updates, expected_state = tx.update(expected, expected_state, expected, worker=0)
        found, expected = optax.apply_updates(found, updates), optax.apply_updates(expected, expected_updates)
        return found, state, expected, expected_state

    for _ in range(4):
        found, state, expected, expected_state = commit_twice(found, state, expected, expected_state)
    _equal(found, expected, rtol=1e-6)
    assert all(bool(jnp.any(f != p)) for f, p in zip(jax.tree.leaves(found), jax.tree.leaves(params), strict=True))


@every_method
def test_a_constant_schedule_is_a_constant(row):
    params, grads = _toy()
    tx, commit, _ = _three_workers(row)
    init, scheduled_commit = _scheduled(row)
    found, state = params, init(params)
    expected, expected_state = params, tx.init(params)
    for worker in (0, 1, 0, 2):
        found, state, _ = scheduled_commit(99, found, state, grads, worker)
        expected, expected_state, _, _ = commit(expected, expected_state, grads, worker)
    _equal(found, expected, rtol=1e-6)


@every_method
def test_schedules_count_commits_of_the_central_variable(row):
    """From the third commit on, by any worker, the rate is 0 and nothing moves."""
    if row.gathers or row.moves_at_rest:
        pytest.skip("whether a commit moves anything depends on more than its rate")
    init, commit = _scheduled(row)
    params, grads = _toy()
    state, moved = init(params), []
    for _ in range(3):
        params, state, updates = commit(2, params, state, grads, 0)
        moved.append(bool(jnp.any(updates["b"] != 0)))
    assert moved == [True, True, False]


@every_method
def test_inject_hyperparams(row):
    params, grads = _toy()
    tx, commit, _ = _three_workers(row)
    injected = optax.inject_hyperparams(row.alias, static_args=("num_workers",))(
        row.learning_rate, num_workers=3, **row.keywords
    )
    state, injected_state = tx.init(params), injected.init(params)
    injected_commit, _ = _compiled_commit(injected)
    found = expected = params
    for worker in (2, 0, 2):
        expected, state, _, _ = commit(expected, state, grads, worker)
        found, injected_state, _, _ = injected_commit(found, injected_state, grads, worker)
    _equal(found, expected, rtol=1e-5)
    injected_state.hyperparams["learning_rate"] = jnp.zeros([])
    _, _, updates, _ = injected_commit(found, injected_state, grads, 2)
    if not row.moves_at_rest:
        _equal(updates, jax.tree.map(jnp.zeros_like, params))


@each_kind
def test_multi_steps(row):
    """Gradients accumulate over arrivals; the method sees one commit per two. The dtype is bfloat16, as in optax's tests."""
    if row.gathers:
        pytest.skip("what a commit moves depends on how many were gathered before")
    params, grads = _toy("bfloat16")
    tx = optax.MultiSteps(row(3), every_k_schedule=2)
    commit, _ = _compiled_commit(tx)
    state, found, clocks, moved = tx.init(params), params, [], []
    for worker in (0, 1, 1):
        found, state, updates, _ = commit(found, state, grads, worker)
        clocks.append(int(optax.tree.get(state, "clock")))
        moved.append(bool(jnp.any(updates["b"] != 0)))
    assert clocks == [0, 1, 1]
    assert moved == [False, True, False]
    assert _types(found) == _types(params)


def _begun_at(state, fresh, worker):
    """Return ``state`` with all that is of ``worker`` from the state ``fresh``."""
    (own, _, _), (_, join, shared) = slots.split(slots.take(fresh, worker)), slots.split(state)
    state = slots.put(state, join(own, shared), worker)
    with_row = lambda now, new: now.write(worker, new.read(worker)) if slots.is_rows(now) else now
    return jax.tree.map(with_row, state, fresh, is_leaf=slots.is_rows)


@every_method
def test_a_late_worker_is_no_older_than_its_pull(row):
    """A worker that has never committed has a slot as made from the central variable of its pull, also at a second one."""
    tx, commit, _ = _three_workers(row)
    pull = jax.jit(gemjax.pull)
    params, grads = _toy()
    state = tx.init(params)
    for worker in (0, 1, 0, 1):
        params, state, *_ = commit(params, state, grads, worker)
    _, state = pull(state, params, 2)
    for worker in (0, 0, 1, 0, 1):
        params, state, *_ = commit(params, state, grads, worker)
    expected, begun = params, _begun_at(state, tx.init(params), 2)
    (view, state), (other, begun) = (pull(one, params, 2) for one in (state, begun))
    _equal(view, other)
    for worker in (2, 0, 2, 1, 2):
        params, state, _, view = commit(params, state, grads, worker)
        expected, begun, _, other = commit(expected, begun, grads, worker)
        _equal((params, view), (expected, other))


@every_method
def test_map_params_finds_every_copy_of_the_parameters(row):
    """Stacked copies are mapped with their leading axis of workers."""
    params, _ = _toy()
    tx = row(3)
    state = tx.init(params)
    _equal(optax.tree.map_params(tx, lambda leaf: leaf, state), state)
    if row.partitioned:
        return  # optax maps such states only without further trees.
    specs = {"b": "b", "w": "w"}
    marked = optax.tree.map_params(tx, lambda _, spec: spec, state, specs, transform_non_params=lambda _: "other")
    shapes = {"b": (2,), "w": (1, 3)}
    copies = {shape for name, one in shapes.items() for shape in (one, (3, *one))}
    for leaf, mark in zip(jax.tree.leaves(state), jax.tree.leaves(marked), strict=True):
        if mark == "other":
            assert leaf.shape not in copies
        else:
            assert leaf.shape in (shapes[mark], (3, *shapes[mark]))


@each_kind
def test_sharded_parameters_stay_sharded(row):
    """On a mesh the numbers are those of one device, and no sharding changes between commits."""
    mesh = jax.make_mesh((8,), ("shard",), axis_types=(AxisType.Auto,), devices=jax.devices()[:8])
    replicated, sharding, stacked = (
        NamedSharding(mesh, PartitionSpec(*spec)) for spec in ((), ("shard",), (None, "shard"))
    )
    params = {"b": jnp.linspace(-1.0, 1.0, 16), "w": jnp.linspace(0.5, 2.0, 24).reshape(8, 3)}
    tx = row(2)
    expected, state = params, tx.init(params)
    found = jax.device_put(params, sharding)
    # Copies of the parameters have their sharding; counters, like those of any optax optimizer, are not on the mesh yet.
    copies = {(16,), (8, 3), (2, 16), (2, 8, 3)}
    sharded_state = jax.tree.map(
        lambda leaf: leaf if leaf.shape in copies else jax.device_put(leaf, replicated), tx.init(found)
    )
    commit, traces = _compiled_commit(tx)
    expected_commit, _ = _compiled_commit(tx)
    types = _types((found, sharded_state))
    for worker in (0, 1, 0):
        expected, state, _, _ = expected_commit(expected, state, expected, worker)
        found, sharded_state, updates, view = commit(found, sharded_state, found, worker)
        assert _types((found, sharded_state)) == types
        for leaf in jax.tree.leaves((found, updates, view)):
            assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
        for leaf in jax.tree.leaves(sharded_state):
            if leaf.shape in ((2, 16), (2, 8, 3)):  # One copy of the parameters per worker, of two.
                assert leaf.sharding.is_equivalent_to(stacked, leaf.ndim)
    assert len(traces) == commit._cache_size() == 1
    _equal(found, expected, rtol=1e-6)
