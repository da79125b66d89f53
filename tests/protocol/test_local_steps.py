"""Local steps: batches, keys, commits, and arguments that are refused."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import Problem, assert_close, assert_same_bits, late, quadratic, quadratic_with_dropout

import gemjax
from gemjax import LocalSteps
from gemjax.batches.local import LocalBatches
from gemjax.batches.rows import as_batches
from gemjax.engines.simulator import loops
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol.checks import PASSED
from gemjax.protocol.local_steps import displacements

SGD = optax.sgd(0.1)
QUADRATIC = quadratic()
LATE = late()
TABLE = ((2, 1, 4), (3,), (1, 1, 1, 5))


def run(local, problem=QUADRATIC, trace=LATE, tx=None, **options):
    tx = gemjax.downpour(num_workers=trace.num_workers) if tx is None else tx
    options = {"model_state": problem.model_state} | options
    return gemjax.simulate(tx, problem.loss_fn, problem.params, problem.batches, trace, local=local, **options)


# --- Periods


@pytest.mark.parametrize(
    ("period", "worker", "step", "first", "count"),
    [
        (1, [0, 5, 2], [0, 7, 3], [0, 7, 3], [1, 1, 1]),
        (4, [0, 5, 2, 2], [0, 7, 3, 4], [0, 28, 12, 16], [4, 4, 4, 4]),
        ((2, 5, 1), [0, 1, 2, 1, 0], [0, 0, 6, 3, 2], [0, 0, 6, 15, 4], [2, 5, 1, 5, 2]),
        (TABLE, [0, 0, 0, 1, 2, 2, 2], [0, 1, 2, 0, 3, 0, 2], [0, 2, 3, 0, 3, 0, 2], [2, 1, 4, 3, 5, 1, 1]),
    ],
    ids=["one", "same", "worker", "table"],
)
def test_the_first_step_and_the_number_of_steps_of_a_commit(period, worker, step, first, count):
    worker, step = np.array(worker, np.int32), np.array(step, np.int32)
    found = LocalSteps(SGD, period).span(worker, step)
    np.testing.assert_array_equal(found[0], first)
    np.testing.assert_array_equal(found[1], count)
    assert found[0].shape == found[1].shape == worker.shape
    for i in range(len(worker)):  # One at a time, as in engines on devices.
        one = LocalSteps(SGD, period).span(worker[i : i + 1], step[i : i + 1])
        assert (one[0].tolist(), one[1].tolist()) == ([first[i]], [count[i]])


@pytest.mark.parametrize(("period", "longest"), [(1, 1), (7, 7), ((2, 5, 1), 5), (TABLE, 5)])
def test_the_longest_period(period, longest):
    assert LocalSteps(SGD, period).longest == longest
    assert type(LocalSteps(SGD, period).longest) is int


@pytest.mark.parametrize(
    ("period", "plain"),
    [
        (np.int64(3), 3),
        (np.array(3), 3),
        ([2, np.int32(5)], (2, 5)),
        (np.array([2, 5]), (2, 5)),
        ([[1, 2], (3,)], ((1, 2), (3,))),
        (np.array([[1, 2], [3, 4]]), ((1, 2), (3, 4))),
    ],
)
def test_periods_in_any_form_are_the_same_object(period, plain):
    assert LocalSteps(SGD, period) == LocalSteps(SGD, plain)
    assert hash(LocalSteps(SGD, period)) == hash(LocalSteps(SGD, plain))
    assert LocalSteps(SGD, period).period == plain


@pytest.mark.parametrize(
    ("period", "found"),
    [
        (0, "0"), (-1, "-1"), (1.5, "1.5"), (2.0, "2.0"), (True, "True"), ("3", "'3'"), (b"3", "b'3'"), (None, "None"),
        ([], "[]"), ((), "()"), ((2, 0), "0"), ((3, 1.5), "1.5"), (((1, 2), (3, 0)), "0"), (((1, 2), ()), "()"),
        ((1, True), "True"), ([1, "2"], "'2'"), (np.array([1.0, 2.0]), "1.0"), (np.zeros(0, int), "[]"),
        ({0: 1}, "{0: 1}"), ((((1, 2),),), "(1, 2)"),
    ],
)  # fmt: skip
def test_an_invalid_period_is_refused(period, found):
    message = f"the period of LocalSteps must be an int of at least 1, got {found}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        LocalSteps(SGD, period)


@pytest.mark.parametrize("period", [(1, (2, 3)), ((2, 3), 1)])
def test_periods_of_a_worker_and_of_a_commit_do_not_mix(period):
    with pytest.raises(ValueError, match="periods of LocalSteps must be all ints or all sequences of ints, got"):
        LocalSteps(SGD, period)


def on_devices(local, tx=None, **options):
    tx = gemjax.downpour(num_workers=4) if tx is None else tx
    return gemjax.run_on_devices(tx, *QUADRATIC[:3], 8, num_workers=4, local=local, **options)


def initial_state(local, tx=None):
    tx = gemjax.downpour(num_workers=4) if tx is None else tx
    return gemjax.initial_state(tx, QUADRATIC.params, num_workers=4, local=local)


ENTRANCES = pytest.mark.parametrize("enter", [run, on_devices, initial_state])


@ENTRANCES
@pytest.mark.parametrize("period", [(1, 2, 3), ((1,),) * 5])
def test_periods_for_other_workers_are_refused(enter, period):
    with pytest.raises(ValueError, match=rf"LocalSteps has periods for {len(period)} workers, but the run has 4$"):
        enter(LocalSteps(SGD, period))


@ENTRANCES
@pytest.mark.parametrize(
    "tx",
    [
        gemjax.downpour(num_workers=4),
        optax.chain(optax.clip(1.0), gemjax.lsgd(num_workers=4)),
        optax.chain(displacements(), optax.scale(-1.0)),
    ],
    ids=["method", "chain", "member"],
)
def test_a_method_that_needs_local_steps_says_so(enter, tx):
    with pytest.raises(ValueError, match=r"give local=gemjax.LocalSteps\(optax.sgd\(rate\), period=…\)"):
        enter(None, tx=tx)


@pytest.mark.slow
def test_a_method_for_gradients_may_have_local_steps():
    """It takes the displacement for a gradient."""
    asgd = gemjax.asgd(0.05, num_workers=4)
    with pytest.warns(gemjax.RunWarning, match="learning_rate=0.05"):
        found = run(LocalSteps(optax.sgd(1.0)), tx=asgd)
    assert_close(found.params, run(None, tx=asgd).params, rtol=1e-5)


def test_a_rate_that_is_computed_in_a_branch_is_not_compared():
    tx = gemjax.asynchronous(optax.apply_if_finite(scale_by_learning_rate(0.05), 3), 4)
    assert np.isfinite(run(LocalSteps(optax.sgd(1.0)), tx=tx).history["loss"]).all()


def test_a_table_that_ends_too_early_names_worker_and_commit():
    local = LocalSteps(SGD, ((1, 2, 1), (3, 1)))
    assert len(run(local, trace=gemjax.Trace([0, 1, 1, 0, 0])).history["loss"]) == 5
    with pytest.raises(ValueError, match="LocalSteps has 2 periods for worker 1, but none for its commit 2"):
        run(local, trace=gemjax.Trace([0, 1, 1, 0, 1, 0]))


def test_a_table_that_ends_too_early_ends_a_run_on_devices():
    """Each worker makes the commits for which it has periods; then no worker is left."""
    message = (
        r"6 of \d+ commits are made, but every worker has made its commits: LocalSteps has \d periods for worker \d"
    )
    with pytest.raises(gemjax.RunFailedError, match=message):
        on_devices(LocalSteps(SGD, ((1, 2), (3,), (1, 1), (2,))))


def test_a_table_need_not_be_longer_than_the_run_on_devices():
    loss_fn, params, batches = gemjax.testing.quadratic()
    local = LocalSteps(SGD, ((3, 2), (1,)))
    result = gemjax.run_on_devices(
        gemjax.downpour(num_workers=2), loss_fn, params, batches, 3, num_workers=2, local=local
    )
    assert sorted(result.trace.worker.tolist()) == [0, 0, 1]


# --- Batches and keys


PERIODS = {
    "same": 3,
    "worker": (1, 4, 2),
    "table": ((2, 1, 3, 1, 1, 2, 1), (4, 4, 4, 4, 4, 4, 4), (1, 2, 3, 1, 2, 3, 1)),
}
every_kind = pytest.mark.parametrize("period", PERIODS.values(), ids=PERIODS.keys())
# A table covers the simpler kinds.
periods = pytest.mark.parametrize(
    "period",
    [pytest.param(p, id=name, marks=() if name == "table" else pytest.mark.slow) for name, p in PERIODS.items()],
)
TURNS = gemjax.Trace([0, 1, 2] * 7)


def pairs(period, trace=TURNS):
    """Return the (worker, local step) pairs of all commits, in order, by counting."""
    counted, taken = [0] * trace.num_workers, []
    for worker, commit in zip(trace.worker.tolist(), trace.step.tolist(), strict=True):
        row = period if isinstance(period, int) else period[worker]
        count = row if isinstance(row, int) else row[commit]
        taken.append([(worker, counted[worker] + j) for j in range(count)])
        counted[worker] += count
    return taken


def counts_of_batches(batches, dimension, period):
    """Return how often each batch was used in a run, and at each commit: every use moves its coordinate by 1."""
    moves = []
    problem = Problem(lambda params, batch: -jnp.sum(params * batch), jnp.zeros(dimension), batches)

    def callback(progress):
        moves.append(np.asarray(progress.params))

    run(LocalSteps(optax.sgd(1.0), period), problem, TURNS, chunk_size=1, callback=callback)
    return np.diff(np.stack([np.zeros(dimension), *moves]), axis=0)


@periods
def test_each_local_step_has_the_batch_of_its_worker_and_number(period):
    """No batch beyond a commit's count is used."""
    batches = lambda worker, step: jax.nn.one_hot(32 * worker + step, 96)
    expected = np.zeros((len(TURNS), 96))
    for row, used in zip(expected, pairs(period), strict=True):
        for worker, step in used:
            row[32 * worker + step] += 1
    np.testing.assert_array_equal(counts_of_batches(batches, 96, period), expected)


@periods
def test_epochs_continue_across_commits(period):
    """An epoch has three steps, so that some commits span two epochs."""
    data = np.eye(7, dtype=np.float32)

    class Rows(gemjax.Epochs):
        def batch(self, data, selection):
            return super().batch(data, selection).sum(0)

    order = gemjax.Epochs(data, 2, seed=5)
    expected = np.zeros((len(TURNS), 7))
    for row, used in zip(expected, pairs(period), strict=True):
        for worker, step in used:
            np.add.at(row, order.select(np.array([worker]), np.array([step]))[0], 1)
    np.testing.assert_array_equal(counts_of_batches(Rows(data, 2, seed=5), 7, period), expected)


@every_kind
def test_selections_hold_the_batches_in_order(period):
    """One commit at a time gives the same; rows beyond the count repeat the last."""
    local, fn = LocalSteps(SGD, period), lambda worker, step: 100 * worker + step
    batches = LocalBatches(as_batches(fn, 7), local)
    first, count, chosen = batches.select(TURNS.worker, TURNS.step)
    assert first.dtype == count.dtype == np.int32
    for row, used in enumerate(pairs(period)):
        one = jax.tree.map(lambda column, row=row: column[row], (first, count, chosen))
        again = batches.select(TURNS.worker[row : row + 1], TURNS.step[row : row + 1])
        assert_same_bits(jax.tree.map(lambda column: column[0], again), one)
        minibatches = batches.batch((), one)
        assert (int(minibatches.first), int(minibatches.count)) == (used[0][1], len(used))
        found = [int(minibatches.at(j)) for j in range(local.longest)]
        expected = [100 * worker + step for worker, step in used]
        assert found == expected + expected[-1:] * (local.longest - len(used))


@periods
def test_keys_are_those_of_seed_worker_and_local_step(period):
    def loss_fn(params, model_state, batch, key):
        return jnp.sum(params["x"]), (model_state, {"u": jax.random.uniform(key)})

    result = run(LocalSteps(SGD, period), QUADRATIC._replace(loss_fn=loss_fn), TURNS, seed=9)
    fold = jax.random.fold_in
    drawn = jax.jit(lambda w, s: jax.random.uniform(fold(fold(jax.random.key(9), w), s)))
    expected = [np.mean([drawn(*pair) for pair in used]) for used in pairs(period)]
    np.testing.assert_allclose(result.history["u"], expected, rtol=1e-6)


@pytest.mark.slow
def test_with_a_period_of_one_downpour_is_asgd():
    """There are keys, model state, late pulls and missing steps."""
    given, local, rate = quadratic_with_dropout(), LocalSteps(optax.sgd(0.05)), gemjax.asgd(0.05, num_workers=4)
    found, expected = run(local, given, seed=3), run(None, given, tx=rate, seed=3)
    assert_close(found.params, expected.params, rtol=1e-5)
    assert_close(found.model_state, expected.model_state, rtol=1e-5)
    assert found.history.keys() == expected.history.keys()
    for name, column in expected.history.items():
        np.testing.assert_allclose(found.history[name], column, rtol=1e-4, err_msg=name)


# --- Arguments of members


RECEIVED = ["received_local_losses", "received_local_steps", "received_value"]


def receiving(num_workers):
    """Return DOWNPOUR with reports of the arguments of its members."""

    def update_fn(updates, state, params=None, *, observe, **extra_args):
        for name in RECEIVED:
            observe(name, lambda name=name: extra_args[name.removeprefix("received_")])
        return updates, state

    spy = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)
    return gemjax.asynchronous(optax.chain(displacements(), spy, optax.scale(-1.0)), num_workers)


def counting(dtype=jnp.float32):
    """Return a problem with known losses and metrics per (worker, local step), whose model state counts steps."""

    def loss_fn(params, model_state, batch, key):
        metrics = {"batch": batch, "odd": batch % 2 == 1, "before": model_state, "half": batch.astype(dtype) / 2}
        return 0.0 * jnp.sum(params) + batch.astype(dtype), (model_state + 1, metrics)

    return Problem(loss_fn, jnp.zeros(2, dtype), lambda worker, step: 100 * worker + step, jnp.int32(0))


@periods
def test_loss_and_metrics_are_means_over_the_local_steps(period):
    result = run(LocalSteps(SGD, period), counting(), TURNS, tx=receiving(3), diagnostics=RECEIVED)
    history, longest = result.history, LocalSteps(SGD, period).longest
    central, pulled = 0, [0, 0, 0]
    for row, used in enumerate(pairs(period)):
        values = np.array([100 * worker + step for worker, step in used])
        np.testing.assert_allclose(history["loss"][row], values.mean(), rtol=1e-6)
        np.testing.assert_allclose(history["received_value"][row], values.mean(), rtol=1e-6)
        np.testing.assert_allclose(history["batch"][row], values.mean(), rtol=1e-6)
        np.testing.assert_allclose(history["half"][row], values.mean() / 2, rtol=1e-6)
        np.testing.assert_allclose(history["odd"][row], (values % 2).mean(), rtol=1e-6)
        worker = used[0][0]  # The model state continues through the local steps, from the pulled one.
        np.testing.assert_allclose(history["before"][row], pulled[worker] + (len(used) - 1) / 2, rtol=1e-6)
        central = pulled[worker] = pulled[worker] + len(used)
        padded = np.concatenate([values, np.zeros(longest - len(used))])
        np.testing.assert_array_equal(history["received_local_losses"][row], padded)
        assert history["received_local_steps"][row] == len(used)
    assert int(result.model_state) == central
    assert history["received_local_steps"].dtype == np.int32


def test_one_gradient_is_reported_as_one_local_step():
    plain = optax.GradientTransformationExtraArgs(
        lambda params: optax.EmptyState(), lambda u, s, p=None, *, observe, local_losses, local_steps, **_: (
            [observe("losses", lambda: local_losses), observe("steps", lambda: local_steps)] and u, s
        ),
    )  # fmt: skip
    result = run(None, QUADRATIC, tx=optax.chain(plain, optax.sgd(0.1)), diagnostics=["losses", "steps"])
    np.testing.assert_array_equal(result.history["losses"], result.history["loss"][:, None])
    np.testing.assert_array_equal(result.history["steps"], np.ones(len(LATE)))


def test_half_precision_loses_no_step():
    """In bfloat16 300 does not exist, and a sum of ones stops at 256."""

    def loss_fn(params, model_state, batch, key):
        one = jnp.ones((), jnp.bfloat16)
        return 0 * jnp.sum(params) + one, (model_state, {"one": one})

    problem = Problem(loss_fn, jnp.zeros(2, jnp.bfloat16), lambda worker, step: step)
    result = run(LocalSteps(SGD, (301, 300)), problem, gemjax.Trace([0, 1]), tx=receiving(2), diagnostics=RECEIVED)
    np.testing.assert_array_equal(result.history["received_local_steps"], [301, 300])
    for name in ("loss", "one"):
        assert result.history[name].dtype == jnp.bfloat16
        np.testing.assert_array_equal(result.history[name].astype(float), [1, 1])


def test_the_local_optimizer_receives_each_steps_loss():
    """A local optimizer may depend on it; here every update is the loss."""

    def update_fn(updates, state, params=None, *, value, anchors, **_):
        assert anchors == ()
        return jnp.full_like(params, value), state

    tx = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)
    result = run(LocalSteps(tx, 3), counting(), gemjax.Trace([0, 1, 1]))
    np.testing.assert_array_equal(result.params, np.full(2, (0 + 1 + 2) + (100 + 101 + 102) + (103 + 104 + 105)))


def test_an_optimizer_may_begin_with_infinities():
    """Its best loss is infinite until it has received enough losses; a commit that made nothing infinite is applied."""
    tx = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=1, accumulation_size=5))
    result = run(LocalSteps(tx, 2))
    assert result.history["applied"].all()
    assert np.isinf(optax.tree.get(tx.init(QUADRATIC.params), "best_value"))
    assert np.isfinite(optax.tree.get(result.state.view.value.local, "best_value")).all()


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_a_local_optimizer_that_is_not_finite_is_restored(bad):
    """Its displacement is finite, but the next one would not be."""

    def update_fn(updates, state, params=None, **_):
        return updates, jnp.where(params[0] < -2.5, bad, state)

    tx = optax.chain(optax.GradientTransformation(lambda params: jnp.float32(0), update_fn), optax.sgd(1.0))
    problem = Problem(lambda params, batch: jnp.sum(params), jnp.zeros(1), lambda worker, step: step)
    result = run(LocalSteps(tx, 2), problem, gemjax.Trace([0, 0, 0]))
    np.testing.assert_array_equal(result.history["applied"], [True, False, False])
    np.testing.assert_array_equal(jax.tree.leaves(result.state.view.value.local), [[0.0]])


# --- Anchors


def pulled(*strengths, params, update, anchors):
    tx = gemjax.pull_to_anchors(*strengths)
    updates, _ = tx.update(update, tx.init(params), params, anchors=anchors)
    return optax.apply_updates(params, updates)


def test_anchors_pull_in_turn_after_the_step():
    """From 1 to 0 by the step, halfway to 4, a quarter of the way to -2; the order matters."""
    points = (jnp.array([4.0]), jnp.array([-2.0]))
    one = pulled(0.5, 0.25, params=jnp.array([1.0]), update=jnp.array([-1.0]), anchors=points)
    other = pulled(0.25, 0.5, params=jnp.array([1.0]), update=jnp.array([-1.0]), anchors=points[::-1])
    np.testing.assert_array_equal(one, [1.0])
    np.testing.assert_array_equal(other, [1.75])


@pytest.mark.parametrize(("strength", "expected"), [(0.0, -0.5), (1.0, 4.0), (0.5, 1.75)])
def test_the_strength_is_the_fraction_of_the_distance(strength, expected):
    tree = lambda x: {"a": jnp.full((2, 1), x, jnp.bfloat16), "b": jnp.float32(x)}
    found = pulled(strength, params=tree(0.5), update=tree(-1.0), anchors=(tree(4.0),))
    assert_same_bits(found, tree(expected))


@pytest.mark.parametrize("strength", [-0.1, 1.1, float("nan")])
@pytest.mark.parametrize("before", [(), (0.5,)])
def test_an_impossible_strength_is_refused(strength, before):
    with pytest.raises(ValueError, match="a strength must be between 0 and 1, got"):
        gemjax.pull_to_anchors(*before, strength)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_anchors_is_refused(count):
    one = jnp.ones(2)
    with pytest.raises(ValueError, match=f"has 2 strengths, but the method sends {count} anchors"):
        pulled(0.1, 0.1, params=one, update=one, anchors=(one,) * count)
    tx = gemjax.pull_to_anchors(0.1, 0.1)
    with pytest.raises(ValueError, match="has 2 strengths, but the method sends 0 anchors"):
        tx.update(one, tx.init(one), one)


def test_without_parameters_nothing_can_be_pulled():
    tx, one = gemjax.pull_to_anchors(0.1), jnp.ones(2)
    with pytest.raises(ValueError, match="params must be given"):
        tx.update(one, tx.init(one), anchors=(one,))


@pytest.mark.slow
def test_a_method_without_anchors_is_refused_when_it_runs():
    local = LocalSteps(optax.chain(optax.sgd(0.1), gemjax.pull_to_anchors(0.1)))
    with pytest.raises(ValueError, match="has 1 strengths, but the method sends 0 anchors"):
        run(local, tx=gemjax.lsgd(num_workers=4))
    run(local, tx=gemjax.lsgd(num_workers=4, anchors=True))


@pytest.mark.slow
def test_anchors_are_those_of_the_last_pull():
    """Worker 1 leads at 5 from its first commit on; worker 0 is pulled there only after its next pull."""
    targets = jnp.array([[1.0], [5.0]])
    problem = Problem(lambda params, batch: 0.5 * jnp.sum((params - batch) ** 2), jnp.zeros(1),
                      lambda worker, step: targets[worker])  # fmt: skip
    tx = optax.chain(optax.sgd(1.0), gemjax.pull_to_anchors(0.5))  # To the target, then halfway to the leader.
    trace = gemjax.Trace([1, 1, 0, 0])
    result = run(LocalSteps(tx), problem, trace, tx=gemjax.lsgd(num_workers=2, strength=0.0, window=1, anchors=True))
    positions = optax.tree.get(result.opt_state, "positions")
    # Worker 1: to 5, halfway to 0 is 2.5; then to 5, halfway to itself is 3.75. Its losses: 12.5, 3.125.
    # Worker 0: at the anchor 0 from the start: to 1, halfway is 0.5, its loss 0.5: it leads; then its anchor is itself.
    np.testing.assert_allclose(positions.rows, [[0.75], [3.75]])


# --- Compiled programs


def test_equal_local_steps_find_the_compiled_program():
    traced = []

    def loss_fn(params, batch):
        traced.append(1)
        return QUADRATIC.loss_fn(params, batch)

    problem, tx, sgd = QUADRATIC._replace(loss_fn=loss_fn), gemjax.downpour(num_workers=4), optax.sgd(0.1)
    run(LocalSteps(sgd, [3, 2, 1, 3]), problem, tx=tx)
    misses, before = loops.compiled.cache_info().misses, len(traced)
    run(LocalSteps(sgd, np.array([3, 2, 1, 3])), problem, tx=tx)
    assert loops.compiled.cache_info().misses == misses
    assert len(traced) == before > 0
    for _ in range(2):  # Other ones compile, once.
        run(LocalSteps(sgd, [1, 3, 3, 2]), problem, tx=tx)
    assert loops.compiled.cache_info().misses == misses + 1


def test_the_known_names_of_extra_arguments_are_those_that_a_run_passes():
    """A rule that takes one of them by name, without ``**extra_args``, is not refused."""
    passed = set()

    def update(updates, state, params=None, **extra_args):
        passed.update(extra_args)
        return updates, state

    spy = optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
    tx = optax.chain(gemjax.downpour(num_workers=2), gemjax.asynchronous(spy, 2))
    gemjax.simulate(
        tx,
        lambda params, batch: jnp.sum(params**2),
        jnp.ones(2),
        lambda worker, step: 0.0,
        gemjax.Trace([0, 1, 0]),
        local=gemjax.LocalSteps(optax.chain(optax.sgd(0.1), spy), period=2),
    )
    assert passed == PASSED
