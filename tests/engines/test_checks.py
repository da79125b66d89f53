"""Checks of methods, callbacks and options, made before anything is computed."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.entrances import EVERY_ENTRANCE, PARAMS, TRACE, asgd, every_engine, ones, run, squares

import gemjax
from gemjax.engines.checks import described, ends_run


@EVERY_ENTRANCE
@pytest.mark.parametrize(
    ("tx", "found"),
    [
        ("gem", r"tx is the str 'gem', but engines take an optax transformation; give one, such as gemjax\.gem\("),
        (gemjax.gem, r"tx is the function gem itself; call it and give its result, gem\(learning_rate, …\)"),
        (optax.GradientTransformation, "tx is the function GradientTransformation itself; call it"),
        (0.1, "tx is the float 0.1, but engines take"),
    ],
)
def test_a_method_of_another_kind(engine, tx, found):
    with pytest.raises(TypeError, match=found):
        run(engine, tx=tx)


def test_a_sweep_without_a_function():
    with pytest.raises(
        TypeError, match=r"make is of type GradientTransformationExtraArgs, but a sweep takes a function"
    ):
        gemjax.sweep(asgd(), squares, PARAMS, ones, TRACE, {"rate": [0.1]})


@every_engine
@pytest.mark.parametrize(
    "answer",
    [jnp.zeros(3), *(pytest.param(answer, marks=pytest.mark.slow) for answer in (np.zeros(1), "stop"))],
    ids=["array", "one number", "str"],
)
def test_a_callback_that_returns_something_else(engine, answer):
    with pytest.raises(TypeError, match=r"callback returned .*; return True to end the run, False or None to continue"):
        run(engine, callback=lambda *progress: answer)


@pytest.mark.parametrize(
    ("answer", "ends"),
    [
        (None, False),
        (False, False),
        (True, True),
        (np.True_, True),
        (jnp.array(False), False),
        (jnp.array(True), True),
        (0, False),
        (1, True),
        (np.float32(0.5), True),
        (np.array(0), False),
        (jnp.float32(0.5), True),
        (jnp.bfloat16(0.0), False),
    ],
)
def test_answers_that_end_a_run(answer, ends):
    assert ends_run(answer) is ends


@pytest.mark.parametrize("answer", [jax.random.key(0), {}, [True]], ids=["key", "dict", "list"])
def test_answers_of_another_kind(answer):
    with pytest.raises(TypeError, match=r"callback returned .*; return True to end the run"):
        ends_run(answer)


def test_a_run_that_a_callback_failed_is_not_lost():
    with pytest.raises(TypeError, match="callback returned the str 'stop'") as raised:
        run("devices", callback=lambda progress: "stop", callback_every=2)
    assert len(raised.value.result.trace) >= 2


class Stop:
    """A callback that is written as a class."""

    def __init__(self, *progress):
        pass


@pytest.mark.parametrize(
    ("option", "value", "found"),
    [
        ("state", {}, r"state is of type dict, but must be a gemjax\.Result or a gemjax\.RunState"),
        ("seed", 0.5, r"seed must be an int, got 0\.5"),
        ("callback", "stop", "callback is the str 'stop', but must be a function"),
        ("callback", Stop, r"callback is the class Stop; give an instance of it, Stop\(…\)"),
        (
            "recorded",
            [0, 1],
            r"recorded is of type list, but must be a gemjax\.Trace; give the trace of the earlier run",
        ),
        ("placement", 2, r"placement is the int 2, but must be a gemjax\.Placement; give gemjax\.place\("),
        ("policy", gemjax.Policy, r"policy is the class Policy, but must be a gemjax\.Policy; give gemjax\.Policy\("),
        ("members", 2, r"members is the int 2, but must be a gemjax\.Members; give gemjax\.Members\("),
        ("log", "run.jsonl", r"log is the str 'run\.jsonl', but must be a gemjax\.EventLog, or have its write"),
        ("log", gemjax.EventLog, "log is the class EventLog, but must be"),
        ("num_commits", 4.0, r"num_commits must be an int, got 4\.0"),
    ],
)
def test_an_option_of_another_kind_is_refused_before_tracing(option, value, found):
    def never(params, batch):
        pytest.fail("the loss function was traced")

    options = {"num_commits": 4} | {option: value}
    with pytest.raises(TypeError, match=found):
        gemjax.run_on_devices(asgd(), never, PARAMS, ones, **options)
    if option in ("state", "seed", "callback"):
        with pytest.raises(TypeError, match=found):
            run("simulate", never, **{option: value})


@pytest.mark.parametrize("around", [jax.jit, jax.vmap, jax.grad])
@pytest.mark.parametrize("engine", ["simulate", "devices", "sweep"])
def test_an_engine_inside_of_a_transformation_of_jax_is_refused(engine, around):
    """JAX raised an error about one of the library's lines."""
    started = around(lambda params: run(engine, params=params))
    with pytest.raises(TypeError, match=r"an engine cannot be called inside of jax\.jit, vmap or grad"):
        started(jnp.ones(2))
    if engine == "simulate":
        with pytest.raises(TypeError, match=r"an engine cannot be called inside of jax\.jit"):
            jax.jit(lambda: run(engine))()


@pytest.mark.parametrize("engine", ["simulate", "devices", "sweep"])
def test_a_switch_that_is_no_bool_is_refused(engine):
    """Any text was taken for ``True``."""
    with pytest.raises(ValueError, match="average_model_state must be True or False, got 'no'"):
        run(engine, average_model_state="no")
    with pytest.raises(ValueError, match="batched must be True or False, got 'no'"):
        run("sweep", batched="no")


def test_the_callback_of_a_sweep_is_no_class():
    with pytest.raises(TypeError, match="callback is the class Stop"):
        run("sweep", callback=Stop)


def test_commits_that_are_made_already_are_warned_of():
    first = run("devices")
    message = r"has made 4 commits already, so num_commits=3, .* asks for no more; give num_commits=7 for 3 more"
    with pytest.warns(gemjax.RunWarning, match=message) as seen:
        again = gemjax.run_on_devices(asgd(), squares, PARAMS, ones, 3, state=first)
    assert (len(again.trace), seen[0].filename) == (4, __file__)


@pytest.mark.parametrize("tx", [gemjax.asgd(0.1), optax.sgd(0.1)], ids=["method", "plain"])
def test_one_worker_for_many_devices_is_warned_of(tx):
    with pytest.warns(
        gemjax.RunWarning, match="for one worker, so nothing is asynchronous although there are 9"
    ) as seen:
        gemjax.run_on_devices(tx, squares, PARAMS, ones, 0)
    assert seen[0].filename == __file__
    gemjax.run_on_devices(tx, squares, PARAMS, ones, 0, num_workers=1)  # As intended.


def test_an_array_of_another_library_is_described():
    foreign = types.SimpleNamespace(shape=(3,), dtype=types.SimpleNamespace(name="float32"))
    assert described(foreign) == "an array of shape [3]"
    assert described(jax.random.split(jax.random.key(0))) == "an array of random keys of shape [2]"


@every_engine
def test_an_optimizer_with_a_line_search_is_refused(engine):
    make = lambda *members: gemjax.asynchronous(optax.chain(*members), num_workers=2)
    with pytest.raises(
        TypeError, match=r"the optimizer has a line search, .* give one without, such as optax.scale_by_lbf"
    ):
        run(engine, tx=make(optax.lbfgs()))
    run(engine, tx=make(optax.scale_by_lbfgs(), optax.scale_by_learning_rate(0.01)))


SAM = optax.contrib.sam(optax.sgd(0.1), optax.chain(optax.contrib.normalize(), optax.sgd(0.05)))
SAM_ALONE = optax.GradientTransformation(SAM.init, SAM.update)


@pytest.mark.parametrize(
    ("tx", "message"),
    [
        (optax.lookahead(optax.sgd(0.1), 5, 0.5), r"is optax.lookahead, which .*; give gemjax.downpour\("),
        (SAM, r"is optax.contrib.sam, which .*; give it to local steps"),
        (gemjax.per_worker(SAM_ALONE, 2), r"is optax.contrib.sam, which .*; give it to local steps"),
        (optax.contrib.sophia(0.1), "hutchinson_estimator_diag_hessian, as sophia does, .* give one without"),
    ],
    ids=["lookahead", "sam", "sam per worker", "sophia"],
)
def test_an_optimizer_that_needs_more_than_gradients_is_refused(tx, message):
    with pytest.raises(TypeError, match=f"the optimizer .*{message}"):
        run("simulate", tx=tx)


def test_sam_takes_local_steps():
    """The advice of the message; one worker's commit of two steps is both steps of SAM."""
    params, state, update = PARAMS, SAM.init(PARAMS), jax.jit(SAM.update)
    for step in range(8):
        updates, state = update(jax.grad(squares)(params, ones(0, step)), state, params)
        params = optax.apply_updates(params, updates)
    trace, local = gemjax.Trace(worker=np.zeros(4, int)), gemjax.LocalSteps(SAM_ALONE, 2)
    found = gemjax.simulate(gemjax.downpour(), squares, PARAMS, ones, trace, local=local)
    np.testing.assert_allclose(found.params, params, rtol=1e-5)


def test_lookahead_is_downpour_with_local_steps():
    """The advice of the message: slow parameters follow the last of five fast ones by half."""
    trace = gemjax.Trace(worker=np.zeros(4, int))
    batches = lambda worker, step: jnp.cos(step + jnp.arange(4.0))
    found = gemjax.simulate(
        gemjax.downpour(0.5), squares, PARAMS, batches, trace, local=gemjax.LocalSteps(optax.adam(0.1), 5)
    )
    tx = optax.lookahead(optax.adam(0.1), 5, 0.5)
    params = optax.LookaheadParams.init_synced(PARAMS)
    state, update = tx.init(params), jax.jit(tx.update)
    for step in range(20):
        updates, state = update(jax.grad(squares)(params.fast, batches(0, step)), state, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(found.params, params.slow, rtol=1e-5)


def test_a_local_optimizer_with_a_line_search_is_refused():
    local = gemjax.LocalSteps(optax.lbfgs(), 2)
    with pytest.raises(TypeError, match="the optimizer has a line search"):
        gemjax.simulate(
            gemjax.downpour(num_workers=2), lambda params, batch: jnp.sum(params**2), jnp.ones(2), lambda worker, step: 0.0,
            gemjax.arrivals.RoundRobin(2).trace(4), local=local,
        )  # fmt: skip


@dataclasses.dataclass
class Descent:
    """An optimizer of a class that has ==, but no hash."""

    rate: float

    def init(self, params):
        return optax.EmptyState()

    def update(self, updates, state, params=None):
        return optax.tree.scale(-self.rate, updates), state


@pytest.mark.parametrize("local", [None, gemjax.LocalSteps(Descent(0.1), 2)], ids=["gradients", "local steps"])
def test_an_optimizer_without_a_hash_runs(local):
    trace = gemjax.arrivals.RoundRobin(2).trace(6)
    loss, batches = lambda params, batch: jnp.sum((params - batch) ** 2), lambda worker, step: jnp.ones(2)
    run = lambda tx, state=None: (
        gemjax.simulate(tx, loss, jnp.zeros(2), batches, trace, local=local, state=state).params
    )
    np.testing.assert_array_equal(run(Descent(0.1)), run(optax.sgd(0.1)))
    result = gemjax.run_on_devices(Descent(0.1), loss, jnp.zeros(2), batches, 6, local=local, num_workers=2)
    assert len(result.trace) == 6
    assert int(gemjax.initial_state(Descent(0.1), jnp.zeros(2)).commits) == 0


@pytest.mark.parametrize("wrap", [lambda tx: tx, lambda tx: gemjax.asynchronous(gemjax.per_worker(tx), 2)])
def test_an_optimizer_may_count_from_a_number_of_python(wrap):
    def update(updates, count, params=None):
        return optax.tree.scale(-0.1 / (1 + count), updates), count + 1

    tx = wrap(optax.GradientTransformation(lambda params: 0, update))
    loss, batches = lambda params, batch: jnp.sum((params - batch) ** 2), lambda worker, step: jnp.ones(2)
    for local in (None, gemjax.LocalSteps(optax.GradientTransformation(lambda params: 0, update), 2)):
        result = gemjax.run_on_devices(tx, loss, jnp.zeros(2), batches, 6, num_workers=2, local=local)
        replay = gemjax.simulate(tx, loss, jnp.zeros(2), batches, result.trace, local=local)
        np.testing.assert_allclose(result.params, replay.params, rtol=1e-6)
