"""Checks of arguments and loss functions, made before anything is computed."""

import dataclasses
import types
from decimal import Decimal
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from flax.training.train_state import TrainState

import gemjax
from gemjax.engines.checks import described, ends_run

PARAMS = jnp.ones(4)

TRACE = gemjax.arrivals.RoundRobin(2).trace(4)
PER_SEED = gemjax.PerSeed(lambda seed: PARAMS)


def squares(params, batch):
    return jnp.sum((params - batch) ** 2)


def ones(worker, step):
    return jnp.ones(4) * step


def asgd(rate=0.1):
    return gemjax.asgd(rate, num_workers=2)


def run(engine, loss_fn=squares, params=PARAMS, tx=None, **options):
    method = asgd() if tx is None else tx
    if engine == "simulate":
        return gemjax.simulate(method, loss_fn, params, ones, TRACE, **options)
    if engine == "devices":
        return gemjax.run_on_devices(method, loss_fn, params, ones, 4, **options)
    if engine == "initial_state":
        return gemjax.initial_state(method, params, **options)
    if engine == "memory_of":
        return gemjax.memory_of(method, params, **options)
    make = asgd if tx is None else lambda rate: tx
    return gemjax.sweep(make, loss_fn, params, ones, TRACE, {"rate": [0.1]}, **options)


def with_metrics(metrics):
    """Return a loss in the long form that returns ``metrics``."""
    return lambda params, model_state, batch, key: (squares(params, batch), (model_state, metrics))


every_engine = pytest.mark.parametrize("engine", ["simulate", "devices", "sweep"])


@every_engine
def test_a_loss_and_parameters_that_are_swapped(engine):
    with pytest.raises(TypeError, match=r"loss_fn is of type dict and params is a function: swap the two"):
        run(engine, {"w": jnp.zeros(2)}, squares)


@every_engine
def test_per_seed_for_a_model_state(engine):
    with pytest.raises(
        TypeError, match=r"model_state is a gemjax\.PerSeed, which is accepted for params, batches and trace"
    ):
        run(engine, model_state=PER_SEED)


@pytest.mark.parametrize("engine", ["simulate", "devices"])
def test_per_seed_is_for_sweeps(engine):
    with pytest.raises(TypeError, match=r"params is a gemjax\.PerSeed, .* of gemjax\.sweep only"):
        run(engine, params=PER_SEED)


@every_engine
@pytest.mark.parametrize(
    ("loss_fn", "found"),
    [
        (
            lambda params, batch: (jnp.sum(params**2), {"error": 0.0}),
            r"one number, got \(array, dict\); for metrics use",
        ),
        (lambda params, batch: {"loss": jnp.sum(params**2)}, "one number, got dict; for metrics use"),
        (lambda params, batch: None, "one number, got NoneType; for metrics use"),
        (lambda params, model_state, batch, key: jnp.sum(params**2), r"\(model_state, metrics\)\), got an array"),
        (lambda params, model_state, batch, key: (jnp.sum(params**2), {}), r"got \(array, dict\)"),
    ],
)
def test_a_loss_that_returns_something_else(engine, loss_fn, found):
    with pytest.raises(TypeError, match=found):
        run(engine, loss_fn)


@every_engine
@pytest.mark.parametrize(
    ("loss_fn", "found"),
    [
        (jax.grad(squares), r"loss_fn returned a gradient, as jax\.grad\(loss\) does; give the loss itself"),
        (jax.value_and_grad(squares), r"returned \(loss, gradient\), as jax\.value_and_grad\(loss\) does"),
        (jax.grad(with_metrics(0.0), has_aux=True), r"loss_fn returned a gradient, as jax\.grad\(loss\) does"),
        (
            jax.value_and_grad(with_metrics(0.0), has_aux=True),
            r"\(loss, gradient\), as jax\.value_and_grad\(loss\) does",
        ),
    ],
    ids=["grad", "value_and_grad", "grad of a long one", "value_and_grad of a long one"],
)
def test_a_differentiated_loss(engine, loss_fn, found):
    with pytest.raises(TypeError, match=found):
        run(engine, loss_fn)


@every_engine
@pytest.mark.parametrize(
    ("metric", "found"),
    [
        (
            jnp.zeros((4, 3)),
            r"the metric 'logits' of loss_fn has the shape \[4, 3\], but every metric must be one number",
        ),
        ({"mean": 0.0}, "the metric 'logits' of loss_fn is of type dict; every metric must be one number"),
        ("high", "the metric 'logits' of loss_fn is the str 'high'; every"),
        (jax.random.key(0), "the metric 'logits' of loss_fn is a random key; every"),
    ],
)
def test_a_metric_that_is_no_number(engine, metric, found):
    with pytest.raises((TypeError, ValueError), match=found):
        run(engine, with_metrics({"logits": metric}))


@every_engine
def test_metrics_that_are_no_dict(engine):
    with pytest.raises(TypeError, match=r"the metrics of loss_fn are an array of shape \[\]; return a dict of numbers"):
        run(engine, with_metrics(jnp.float32(0.5)))


EVERY_ENTRANCE = pytest.mark.parametrize("engine", ["simulate", "devices", "sweep", "initial_state", "memory_of"])


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


class Net(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(1)(x)


TRAIN_STATE = TrainState.create(apply_fn=Net().apply, params={"w": PARAMS}, tx=optax.sgd(0.1))


@EVERY_ENTRANCE
@pytest.mark.parametrize(
    ("params", "found"),
    [
        (Net(), r"params is the module Net, which has no parameters; give those that its init returns"),
        (
            nnx.Linear(2, 1, rngs=nnx.Rngs(0)),
            r"params is the Flax NNX module Linear; give its parameters, .* nnx\.split\(",
        ),
        (TRAIN_STATE, r"params is a TrainState; give its \.params"),
        (
            {"a": [PARAMS, "resnet"]},
            r"params at \['a'\]\[1\] is the str 'resnet', but params may have arrays only; keep it",
        ),
        ({"w": PARAMS, "act": jnp.tanh}, r"params at \['act'\] is a function, but params may have arrays only"),
        ({"w": np.array(["a"])}, r"params at \['w'\] is an array of shape \[1\], but params may have arrays only"),
        (
            nnx.split(nnx.Dropout(0.1, rngs=nnx.Rngs(0)))[1],
            r"is .*, but only floats can be trained; keep integers and keys",
        ),
    ],
    ids=["linen", "nnx", "train-state", "string", "function", "strings", "keys"],
)
def test_parameters_that_are_no_arrays(engine, params, found):
    with pytest.raises((TypeError, ValueError), match=found):
        run(engine, params=params)


@pytest.mark.parametrize("engine", ["simulate", "devices", "sweep", "initial_state"])
@pytest.mark.parametrize("tx", [asgd(), gemjax.gem(0.1, num_workers=2)], ids=["asgd", "gem"])
def test_complex_parameters_are_refused_before_anything_is_computed(engine, tx):
    params = {"w": jnp.ones(2), "z": jnp.ones(4, jnp.complex64)}
    wrong = (
        r"^params at \['z'\] is complex64, but methods are defined for real numbers; give .* as two arrays, and join"
    )
    with pytest.raises(ValueError, match=wrong):
        run(engine, lambda params, batch: jnp.sum(jnp.abs(params["z"] - batch) ** 2), params, tx)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["simulate", "devices"])
def test_complex_parameters_can_be_given_as_two_real_arrays(engine):
    loss_fn = lambda params, batch: jnp.sum(jnp.abs(jax.lax.complex(*params) - (batch + 1j * batch)) ** 2)
    params = jnp.zeros(4), jnp.zeros(4)
    assert run(engine, loss_fn, params, gemjax.gem(0.1, num_workers=2)).params[1].any()


@every_engine
def test_a_leaf_of_the_model_state_that_is_no_array(engine):
    with pytest.raises(
        TypeError, match=r"model_state at \['mode'\] is the str 'train', but model_state may have arrays"
    ):
        run(engine, model_state={"mode": "train"})


@every_engine
@pytest.mark.parametrize(
    ("returned", "found"),
    [
        (
            {"batch_stats": {"mean": jnp.zeros(4)}},
            r"the tree PyTreeDef.*, expected PyTreeDef.*; return a tree like the one given",
        ),
        (
            {"mean": jnp.zeros(3)},
            r"\['mean'\] is float32\[3\], expected float32\[4\]; return the same shapes and dtypes",
        ),
        ({"mean": jnp.zeros(4, int)}, r"\['mean'\] is int32\[4\], expected float32\[4\]"),
    ],
    ids=["tree", "shape", "dtype"],
)
def test_another_model_state_than_was_given(engine, returned, found):
    loss_fn = lambda params, model_state, batch, key: (squares(params, batch), (returned, {}))
    with pytest.raises(ValueError, match=f"loss_fn returned another model state than it was given: {found}"):
        run(engine, loss_fn, model_state={"mean": jnp.zeros(4)})


@every_engine
@pytest.mark.parametrize("answer", [jnp.zeros(3), np.zeros(1), "stop"], ids=["array", "one number", "str"])
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
        ("log", "run.jsonl", r"log is the str 'run\.jsonl', but must be a gemjax\.EventLog; give gemjax\.EventLog\("),
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
def test_parameters_too_narrow_to_compute_with_are_refused(engine):
    with pytest.raises(
        ValueError, match="params at the root is float8_e4m3fn, which JAX does not mix with other floats"
    ):
        run(engine, params=jnp.ones(4, jnp.float8_e4m3fn))


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


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Linear:
    """Parameters that are a class with methods."""

    w: jax.Array

    def init(self):
        return self

    def apply(self, x):
        return self.w * x


def test_registered_parameters_may_have_methods():
    assert gemjax.initial_state(asgd(), Linear(PARAMS)).params.w.shape == (4,)
    with pytest.raises(TypeError, match="params is the module Linear, which has no parameters"):
        gemjax.initial_state(asgd(), Linear(None))


def with_statistics(params, model_state, batch, key):
    return squares(params, batch["x"]) + model_state["mean"], (model_state, {})


def test_a_forgotten_model_state_is_named():
    batches = lambda worker, step: {"x": jnp.ones(4) * step}
    given = asgd(), with_statistics, PARAMS, batches, TRACE
    first = gemjax.simulate(*given, model_state={"mean": jnp.zeros([])})
    message = (
        r"another method, model or number of workers; 2 arrays differ, the first is \"model_state\['mean'\]\": found "
        r"float32\[\], expected none; give model_state= as the run had it$"
    )
    with pytest.raises(ValueError, match=message):
        gemjax.simulate(*given, state=first)
    with pytest.raises(
        ValueError, match=r"'params': found float32\[4\], expected float32\[3\]; give the method, params="
    ):
        gemjax.simulate(
            asgd(), with_statistics, jnp.ones(3), batches, TRACE, state=first.state, model_state={"mean": jnp.zeros([])}
        )
    with pytest.raises(TypeError) as raised:  # () has no entry "mean".
        gemjax.simulate(*given)
    assert raised.value.__notes__[:2] == [
        "loss_fn was called with a batch of ['x'] float32[4]",
        "no model_state= was given to the engine",
    ]


def test_an_error_of_the_loss_names_the_batch():
    with pytest.raises(TypeError) as raised:
        run("simulate", lambda params, batch: squares(params, batch["x"]))
    assert raised.value.__notes__[:1] == ["loss_fn was called with a batch of float32[4]"]


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


@pytest.mark.parametrize("engine", ["simulate", "devices"])
def test_a_loss_may_be_a_float(engine):
    result = run(engine, loss_fn=lambda params, batch: 1.5)
    np.testing.assert_array_equal(result.params, PARAMS)
    np.testing.assert_array_equal(result.history["loss"], 1.5)


# Each was refused by Python or NumPy, without the name of the argument, or not at all; random arguments found them.
GAMMA = gemjax.arrivals.Gamma(2)
SAM = optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gemjax.gem(b"x"), "learning_rate must be a number, got b'x'"),
        (lambda: gemjax.gem(Fraction(1, 10)), "learning_rate must be a number, got Fraction(1, 10)"),
        (lambda: gemjax.gem(Decimal("0.1")), "learning_rate must be a number, got Decimal('0.1')"),
        (lambda: gemjax.gem(np.True_), "learning_rate must be a number, got "),
        (lambda: gemjax.gem(jnp.array(True)), "learning_rate must be a number, got Array(True, dtype=bool)"),
        (lambda: gemjax.fedasync(mean_staleness=Fraction(1, 10)), "mean_staleness must be a number, got Fraction(1, 10)"),
        (lambda: gemjax.streaming_diloco(delay=jnp.array(0.1)), "delay must be an int in 0"),
        (lambda: gemjax.Epochs(np.ones((4, 2), ">f4"), 2), "devices take numbers in this machine's order of bytes, but"),
        (lambda: gemjax.memory_of(asgd(), {"w": np.ones(2, ">f4")}), "params at ['w'] is an array of >f4, not"),
        (lambda: gemjax.arrivals.Gamma(2, 1e-300), "batch_variation must be between 1e-100 and 1e100"),
        (lambda: gemjax.arrivals.Gamma(2, machine_variation=1e300), "machine_variation must be between 1e-100 and 1e100"),
        (lambda: gemjax.arrivals.LogNormal(2, 1e300), "variation must be between 1e-100 and 1e100"),
        (
            lambda: gemjax.arrivals.Incidents(GAMMA, [gemjax.arrivals.Leaves(0.5, 1.0)]),
            "Leaves(worker=0.5, at=1.0) names a worker that is not in range(2)",
        ),
        (lambda: gemjax.per_worker(SAM), "sam.<locals>.transparent_update_fn refuses extra arguments, though its type is"),
        (lambda: gemjax.summarise(TRACE), "the run is of type Trace; give result.history"),
        (lambda: gemjax.timeline("run.jsonl"), "the run is of type str; give result.history or the events of a log"),
        (lambda: gemjax.gem(2**40), "learning_rate must fit into int32, got 1099511627776; give a float"),
        (lambda: gemjax.gem(0.1, [[1], [2, 3]]), "momentum must be a number, got [[1], [2, 3]]"),
        (lambda: gemjax.gem(0.1, 0.9, np.ones((2, 2))), "num_workers must be a positive int, got array([[1., 1.], [1., 1.]])"),
        (lambda: gemjax.gem(0.1, 0.9, 2**40), "num_workers must be a positive int, got 1099511627776"),
        (lambda: gemjax.gem(0.1, reading=np.ones(2)), "reading must be one of"),
        (lambda: gemjax.ringmaster(0.1, 2, threshold="x"), "threshold must be a number, got 'x'"),
        (lambda: gemjax.fedbuff(weight=np.ones((2, 2))), "weight must be a function or one of"),
        (lambda: gemjax.dynamic_periods(4, None), "speeds must be a sequence of numbers, got None"),
        (lambda: gemjax.asynchronous(None, 2), "inner must be an optax transformation, such as optax.sgd(0.1), got None"),
        (lambda: gemjax.per_worker(optax.sgd), "inner must be an optax transformation"),
        (lambda: gemjax.Policy(grace="x"), "grace must be a number, got 'x'"),
        (lambda: gemjax.Policy(deadline=1j), "deadline must be a number, got 1j"),
        (lambda: gemjax.Members(2, absent=1), "absent must be a sequence of workers, got 1"),
        (lambda: gemjax.place(2, devices=3), "devices must be a sequence of JAX devices, got 3"),
        (lambda: gemjax.place(2, devices=["cpu"]), "devices must be JAX devices, such as jax.local_devices(), got 'cpu'"),
        (lambda: gemjax.Trace([[1], [2, 3]]), "worker must be a vector of integers, got [[1], [2, 3]]"),
        (lambda: gemjax.Trace([0], time=True), "time must be a vector of numbers, got True"),
        (lambda: gemjax.Trace([0], time=["x"]), "time must be a vector of numbers, got ['x']"),
        (lambda: gemjax.Trace([0], num_workers="x"), "num_workers must be a number, got 'x'"),
        (lambda: gemjax.arrivals.Gamma(2, "x"), "batch_variation must be a number, got 'x'"),
        (lambda: gemjax.arrivals.Exponential(2, None), "mean must be a number, got None"),
        (lambda: gemjax.arrivals.ConstantSpeeds(3), "speeds must be a sequence of numbers, got 3"),
        (lambda: gemjax.arrivals.Scaled(GAMMA, ["x", 1]), "each of speeds must be a number, got 'x'"),
        (lambda: gemjax.arrivals.Queue(GAMMA, None), "service must be a number, got None"),
        (lambda: gemjax.arrivals.Incidents(GAMMA, [3]), "incidents must be Slows, Leaves and Joins, got 3"),
        (lambda: gemjax.arrivals.Incidents(GAMMA, 3), "incidents must be a sequence of Slows, Leaves and Joins, got 3"),
        (
            lambda: gemjax.arrivals.Incidents(GAMMA, [gemjax.arrivals.Leaves(None, 1.0)]),
            "the worker of an incident must be a number, got None",
        ),
        (lambda: GAMMA.trace(2.5), "num_commits must be an int in 0 … 2147483647, got 2.5"),
        (lambda: GAMMA.trace(4, seed=-1), "seed must be an int in 0 … 18446744073709551615, got -1"),
        (lambda: gemjax.Shards(np.ones(4), 1, 2, seed=-1), "seed must not be negative, got -1"),
        (lambda: gemjax.Epochs(np.ones(4), 1, seed=-1), "seed must not be negative, got -1"),
        (lambda: gemjax.Shards(np.ones(2), 1, 2, labels=[[0], [1, 2]]), "labels must be one per row, 2, got [[0], [1, 2]]"),
        (lambda: gemjax.Shards(np.ones(4), 1, 2, rows=3), "rows must be one array per worker, 2, got 3"),
        (lambda: gemjax.Shards(np.ones(2), 1, 2, labels=[0, 1], concentration="x"), "concentration must be a number"),
        (lambda: gemjax.FromSource(np.array(2), batch_size=1), "a source needs a length and rows by number"),
        (lambda: gemjax.memory_of(asgd(), "x"), "params at the root is the str 'x'"),
        (lambda: gemjax.memory_of(asgd(), PARAMS, model_state={"n": 2**40}), "model_state at ['n'] is the int 1099511627776,"),
        (lambda: gemjax.initial_state(asgd(), PARAMS, num_workers=np.ones(2)), "num_workers must be a positive int"),
        (lambda: gemjax.diloco(nesterov=np.ones(2)), "nesterov must be True or False, got array([1., 1.])"),
        (lambda: gemjax.streaming_diloco(nesterov=1), "nesterov must be True or False, got 1"),
        (lambda: gemjax.yellowfin(closed_loop=jnp.ones(2)), "closed_loop must be True or False, got Array([1., 1.]"),
        (lambda: gemjax.lsgd(anchors=np.zeros(2)), "anchors must be True or False, got array([0., 0.])"),
        (lambda: gemjax.Checkpoints(".", read_only="no"), "read_only must be True or False, got 'no'"),
        (lambda: gemjax.fedasync(weight=lambda s: s / 4), "weight must be finite and positive at mean_staleness=0, where it"),
        (lambda: gemjax.fedbuff(weight=lambda s: np.ones(2)), "weight at mean_staleness must be a number, got array([1., 1.])"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named(make, message):
    with pytest.raises((TypeError, ValueError)) as refused:
        make()
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 2**70])
@pytest.mark.parametrize("engine", ["simulate", "devices"])
def test_a_seed_that_no_key_takes_is_refused(engine, seed):
    loss_fn = lambda params, batch: jnp.sum(params**2)
    arguments = gemjax.asgd(0.1, 2), loss_fn, jnp.ones(2), lambda worker, step: 0.0
    engines = {"simulate": (gemjax.simulate, gemjax.arrivals.Gamma(2).trace(3)), "devices": (gemjax.run_on_devices, 3)}
    run, length = engines[engine]
    with pytest.raises(ValueError, match="seed must fit into 64 bits"):
        run(*arguments, length, seed=seed)


def test_an_array_of_another_library_is_described():
    foreign = types.SimpleNamespace(shape=(3,), dtype=types.SimpleNamespace(name="float32"))
    assert described(foreign) == "an array of shape [3]"
    assert described(jax.random.split(jax.random.key(0))) == "an array of random keys of shape [2]"
