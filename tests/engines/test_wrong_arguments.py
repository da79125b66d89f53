"""Wrong arguments of the public API: each is named in one line."""

from decimal import Decimal
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.entrances import PARAMS, TRACE, asgd

import gemjax

# Each was refused by Python or NumPy, without the name of the argument, or not at all; random arguments found them.
GAMMA, KEY = gemjax.arrivals.Gamma(2), jax.random.key(0)
LONG = np.ones(4, np.longdouble)
SAM = optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.1))


def on_devices(**options):
    return gemjax.run_on_devices(asgd(), *gemjax.testing.quadratic(), 3, num_workers=2, **options)


def sweep(over=None, **options):
    make = lambda learning_rate: gemjax.asgd(learning_rate, 2)
    return gemjax.sweep(
        make, *gemjax.testing.quadratic(), GAMMA.trace(3), over=over or {"learning_rate": [0.1]}, seeds=[0], **options
    )


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
        (lambda: gemjax.summarise(TRACE), "the run is of type Trace; give the result, its history"),
        (lambda: gemjax.timeline("run.jsonl"), "the run is of type str; give the result, its history or the events of a log"),
        (lambda: gemjax.LocalSteps(optax.sgd, 2), "the optimizer of LocalSteps must be an optax transformation"),
        (lambda: gemjax.LocalSteps(3, 2), "the optimizer of LocalSteps must be an optax transformation, such as"),
        (
            lambda: gemjax.initial_state(asgd(), PARAMS, num_workers=2, local=gemjax.LocalSteps(gemjax.gem(0.1, 0.9, 2))),
            "the optimizer of LocalSteps is that of one worker, such as optax.sgd(0.1), and not a whole method",
        ),
        (lambda: gemjax.OnHost(gemjax.Epochs(jax.random.split(KEY, 4), 1)), "data has typed PRNG keys, which are on devices"),
        (lambda: gemjax.Epochs(LONG, 1), f"the data is of {LONG.dtype}, and JAX has floats of 64 bits at most"),
        (lambda: gemjax.memory_of(asgd(), {"w": LONG}), f"params at ['w'] is of {LONG.dtype}, and JAX has floats of 64 bits"),
        (lambda: gemjax.Placement([[1]], 7), "worker 0 must have a JAX device, or a tuple of them, got [1]"),
        (lambda: gemjax.Placement((jax.devices()[0],), 7), "central must have a JAX device, or a tuple of them, got 7"),
        (lambda: gemjax.Placement(jax.devices()[0], 7), "workers must be a tuple with the device of each worker, got"),
        (lambda: gemjax.Epochs(np.ones(4), True), "batch_size must be an int, got True"),
        (lambda: gemjax.gem(2**40), "learning_rate must fit into int32, got 1099511627776; give a float"),
        (lambda: gemjax.gem(0.1, [[1], [2, 3]]), "momentum must be a number, got [[1], [2, 3]]"),
        (lambda: gemjax.gem(0.1, 0.9, np.ones((2, 2))), "num_workers must be a positive int, got array([[1., 1.], [1., 1.]])"),
        (lambda: gemjax.gem(0.1, 0.9, 2**40), "num_workers must be at most 1048576, got 1099511627776"),
        (lambda: gemjax.gem(0.1, reading=np.ones(2)), "reading must be one of"),
        (lambda: gemjax.ringmaster(0.1, 2, threshold="x"), "threshold must be a number, got 'x'"),
        (lambda: gemjax.fedbuff(weight=np.ones((2, 2))), "weight must be a function or one of"),
        (lambda: gemjax.dynamic_periods(4, None), "speeds must be a sequence of numbers, got None"),
        (lambda: gemjax.asynchronous(None, 2), "inner must be an optax transformation, such as optax.sgd(0.1), got None"),
        (lambda: gemjax.per_worker(optax.sgd), "inner must be an optax transformation"),
        (lambda: gemjax.Policy(grace="x"), "grace must be a number, got 'x'"),
        (lambda: gemjax.Policy(deadline=1j), "deadline must be a number, got 1j"),
        (lambda: gemjax.Members(2, absent=1), "absent must be a sequence of workers, got 1"),
        (lambda: gemjax.Members(2).join(5), "worker=5 is out of range: these members are of 2 workers, 0 … 1"),
        (lambda: gemjax.place(2, devices=3), "devices must be a sequence of JAX devices, got 3"),
        (lambda: gemjax.place(2, devices=["cpu"]), "devices must be JAX devices, such as jax.local_devices(), got 'cpu'"),
        (lambda: gemjax.Trace([[1], [2, 3]]), "worker must be a vector of integers, got [[1], [2, 3]]"),
        (lambda: gemjax.Trace([0], time=True), "time must be a vector of numbers, got True"),
        (lambda: gemjax.Trace([0], time=["x"]), "time must be a vector of numbers, got ['x']"),
        (lambda: gemjax.Trace([0], num_workers="x"), "num_workers must be an int in 1 … 1048576, got 'x'"),
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
        (
            lambda: gemjax.memory_of(asgd(), PARAMS, model_state={"n": np.int64(2**40)}),
            "model_state at ['n'] has the integer 1099511627776, which does not fit into JAX's int32;",
        ),
        (lambda: gemjax.memory_of(asgd(), PARAMS, model_state={"n": 2**40}), "model_state at ['n'] is the int 1099511627776,"),
        (lambda: gemjax.initial_state(asgd(), PARAMS, num_workers=np.ones(2)), "num_workers must be a positive int"),
        (lambda: gemjax.diloco(nesterov=np.ones(2)), "nesterov must be True or False, got array([1., 1.])"),
        (lambda: gemjax.streaming_diloco(nesterov=1), "nesterov must be True or False, got 1"),
        (lambda: gemjax.yellowfin(closed_loop=jnp.ones(2)), "closed_loop must be True or False, got Array([1., 1.]"),
        (lambda: gemjax.lsgd(anchors=np.zeros(2)), "anchors must be True or False, got array([0., 0.])"),
        (lambda: gemjax.Checkpoints(".", read_only="no"), "read_only must be True or False, got 'no'"),
        (lambda: gemjax.fedasync(weight=lambda s: s / 4), "weight must be finite and positive at mean_staleness=0, where it"),
        (lambda: gemjax.fedbuff(weight=lambda s: np.ones(2)), "weight at mean_staleness must be a number, got array([1., 1.])"),
        (lambda: on_devices(callback_seconds="1"), "callback_seconds must be a number, got '1'"),
        (lambda: on_devices(gate=3), "gate is the int 3, but must be a function; give gate(worker, step)"),
        (lambda: sweep(over=[0.1, 0.2]), "over must be a dict of lists, such as {'learning_rate': [0.1, 0.2]}, or a list"),
        (lambda: sweep(over="learning_rate"), "over must be a dict of lists"),
        (lambda: sweep(over=jnp.float32(0.1)), "over must be a dict of lists"),
        (lambda: sweep(over=0.1), "over must be a dict of lists"),
        (lambda: sweep(at_stop=3), "at_stop is the int 3, but must be a function; give at_stop(commits, run, state)"),
        (lambda: gemjax.callbacks.chain(len, 3), "callback 1 of the chain is the int 3, but must be a function"),
        (lambda: gemjax.callbacks.EarlyStopping(len, min_delta="a"), "min_delta must be a number, got 'a'"),
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
