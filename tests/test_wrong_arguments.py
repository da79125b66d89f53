"""Wrong arguments of the public API: one row each, of the call, the type of the exception and the name that it contains.

The words of the messages that users meet most are in ``test_messages.py``.
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.entrances import PARAMS, PER_SEED, TRACE, asgd, every_engine, ones, run, squares, with_metrics
from flax import linen
from flax.training.train_state import TrainState

import gemjax
from gemjax import arrivals

NAN = float("nan")
GAMMA, X = arrivals.Gamma(2), np.zeros((6, 3), np.float32)
DEVICES = jax.devices()


class Flat(gemjax.batches.Rows):
    """Rows without an axis of batches, of which the first ones would be used for all."""

    data = X

    def select(self, worker, step):
        return ((step[:1] * 4 + np.arange(4)) % 6).astype(np.int32)


class Backwards(arrivals.Arrivals):
    """A model of one's own that goes back in time."""

    def durations(self, worker, rng, count):
        return -rng.random(count)


def commit(tx, worker=0, updates=PARAMS, **extra_args):
    return tx.update(updates, tx.init(PARAMS), PARAMS, worker=worker, **extra_args)


# A mistake that would be spread over all parameters.
SPREADING = optax.GradientTransformation(
    lambda params: (), lambda updates, state, params=None: (jnp.mean(updates), state)
)


def changing(update):
    """Return a rule of one's own with an int for each parameter as its state."""
    init = lambda params: jnp.zeros(params.shape, jnp.int32)
    rule = optax.GradientTransformation(init, lambda updates, state, params=None: update(updates, state))
    return gemjax.asynchronous(rule, 2)


def trace(**columns):
    return gemjax.Trace(**{"worker": [0, 1, 0]} | columns)


def is_method(function):
    """Return True for a function that makes a whole method."""
    return inspect.isfunction(function) and {"learning_rate", "num_workers"} <= {
        *inspect.signature(function).parameters
    }


METHODS = [getattr(gemjax, name) for name in gemjax.__all__ if is_method(getattr(gemjax, name))]
HYPER_PARAMETERS = [
    (lambda: gemjax.gem("fast"), "learning_rate"),
    (lambda: gemjax.gem(NAN), "learning_rate"),
    (lambda: gemjax.gem(0.1, -0.5), "momentum"),
    (lambda: gemjax.gem(0.1, [[1], [2, 3]]), "momentum"),
    (lambda: gemjax.gem(0.1, num_workers=0), "num_workers"),
    (lambda: gemjax.gem(0.1, num_workers=2.0), "num_workers"),
    (lambda: gemjax.gem(0.1, kappa=-1.0), "kappa"),
    (lambda: gemjax.gem(0.1, eps=-1e-9), "eps"),
    (lambda: gemjax.gem(0.1, clamp=(2.0, 1.0)), "clamp"),
    (lambda: gemjax.gem(0.1, reading="paper"), "reading"),
    (lambda: gemjax.rules.match_energy(kappa=float("inf")), "kappa"),
    (lambda: gemjax.asynchronous(optax.sgd(0.1), 0), "num_workers"),
    (lambda: gemjax.per_worker(optax.trace(0.9), "3"), "num_workers"),
    (lambda: gemjax.dc_asgd(0.1, strength=-1.0), "strength"),
    (lambda: gemjax.dc_asgd(0.1, variant="a"), "variant"),
    (lambda: gemjax.dc_asgd(0.1, decay=1.0), "decay"),
    (lambda: gemjax.dana_dc(0.1, strength=-1.0), "strength"),
    (lambda: gemjax.delay_adaptive(0.1, threshold=0.5), "threshold"),
    (lambda: gemjax.gap_aware(0.1, decay=1.0), "decay"),
    (lambda: gemjax.gap_aware_adam(0.1, b1=1.0), "b1"),
    (lambda: gemjax.gap_aware_adam(0.1, b2=-0.1), "b2"),
    (lambda: gemjax.lwp(0.1, horizon=-1.0), "horizon"),
    (lambda: gemjax.rules.look_ahead_momentum(0.1, horizon=-1), "horizon"),
    (lambda: gemjax.rules.discount_momentum(-0.1), "momentum"),
    (lambda: gemjax.one_step_delay(0.1, strength=-1.0), "strength"),
    (lambda: gemjax.easgd(num_workers=2, strength=1.5), "strength"),
    (lambda: gemjax.eamsgd(0.1, num_workers=2, strength=NAN), "strength"),
    (lambda: gemjax.lsgd(num_workers=4, strength=-0.1), "strength"),
    (lambda: gemjax.lsgd(num_workers=4, groups=3), "groups"),
    (lambda: gemjax.lsgd(num_workers=4, groups=2, global_strength=2.0), "global_strength"),
    (lambda: gemjax.lsgd(num_workers=4, groups=2, global_period=0), "global_period"),
    (lambda: gemjax.lsgd(num_workers=4, window=2.5), "window"),
    (lambda: gemjax.rules.pull_to_anchors(0.5, 1.1), "strength"),
    (lambda: gemjax.ringmaster(0.1, threshold=0.5), "threshold"),
    (lambda: gemjax.ringmaster(0.1, 2, threshold="x"), "threshold"),
    (lambda: gemjax.rennala(0.1, batch_size=0), "batch_size"),
    (lambda: gemjax.malenia(0.1, 4, batch_size=3), "batch_size"),
    (lambda: gemjax.incremental(0.1, 1.5), "num_workers"),
    (lambda: gemjax.rules.gather(0), "count"),
    (lambda: gemjax.fedbuff(buffer_size=2.5), "buffer_size"),
    (lambda: gemjax.fedbuff(weight="exponential"), "weight"),
    (lambda: gemjax.fedbuff(weight=lambda staleness: np.ones(2)), "weight"),
    (lambda: gemjax.fedasync(mean_staleness=-1.0), "mean_staleness"),
    (lambda: gemjax.fedasync(weight=lambda staleness: staleness / 4), "weight"),
    (lambda: gemjax.rules.polynomial_weight(-0.5), "exponent"),
    (lambda: gemjax.rules.hinge_weight(start=-1.0), "start"),
    (lambda: gemjax.rules.weigh_samples([1], 2, "linear"), "weight"),
    (lambda: gemjax.rules.weigh_samples([1], 2, max_staleness=-1), "max_staleness"),
    (lambda: gemjax.delayed_nesterov(buffer_size=4, spread=0.26), "spread"),
    (lambda: gemjax.delayed_nesterov(buffer_size=0), "buffer_size"),
    (lambda: gemjax.diloco(nesterov=1), "nesterov"),
    (lambda: gemjax.heloco(keep_above=1.5), "keep_above"),
    (lambda: gemjax.heloco(max_shrink=-0.5), "max_shrink"),
    (lambda: gemjax.heloco(shrink=-1.0), "shrink"),
    (lambda: gemjax.heloco(turn=-1.0), "turn"),
    (lambda: gemjax.heloco(caution=-1.0), "caution"),
    (lambda: gemjax.heloco(weight=-1.0), "weight"),
    (lambda: gemjax.streaming_diloco(keep=1.5), "keep"),
    (lambda: gemjax.streaming_diloco(fragments="w"), "fragments"),
    (lambda: gemjax.streaming_diloco(delay=-1), "delay"),
    (lambda: gemjax.streaming_diloco(every=0), "every"),
    (lambda: gemjax.decoupled_diloco(merge="max"), "merge"),
    (lambda: gemjax.yellowfin(decay=1.0), "decay"),
    (lambda: gemjax.yellowfin(gain=-0.1), "gain"),
    (lambda: gemjax.yellowfin(closed_loop=2), "closed_loop"),
    (lambda: gemjax.rules.tune_momentum(1), "history"),
    (lambda: gemjax.rules.tune_momentum(2, window=0), "window"),
    (lambda: gemjax.rules.dynamic_periods(0, (1.0,)), "period"),
    (lambda: gemjax.rules.dynamic_periods(4, (1.0,), 5), "minimum"),
    (lambda: gemjax.rules.dynamic_periods(4, (1.0, -1.0)), "speed"),
    (lambda: gemjax.LocalSteps(optax.sgd(0.1), 0), "period"),
    (lambda: gemjax.LocalSteps(optax.sgd(0.1), (3, 1.5)), "period"),
    (lambda: gemjax.rules.scale_by_progress(optax.constant_schedule(0.1), 0, 2), "period"),
]  # fmt: skip

MODELS_AND_DATA = [
    (lambda: arrivals.RoundRobin(0), "num_workers"),
    (lambda: arrivals.Gamma(2, batch_variation=0.0), "batch_variation"),
    (lambda: arrivals.Gamma(2, batch_variation=[0.1]), "batch_variation"),
    (lambda: arrivals.Gamma(2, machine_variation=-0.1), "machine_variation"),
    (lambda: arrivals.Gamma(2, mean=NAN), "mean"),
    (lambda: arrivals.ConstantSpeeds([1.0, 0.0]), "speeds"),
    (lambda: arrivals.ConstantSpeeds([]), "the number of speeds"),
    (lambda: arrivals.Exponential(2, mean=0.0), "mean"),
    (lambda: arrivals.LogNormal(2, variation=-1.0), "variation"),
    (lambda: arrivals.Pareto(2, shape=1.0), "shape"),
    (lambda: arrivals.Scaled(GAMMA, [1.0]), "speeds"),
    (lambda: arrivals.Delayed(GAMMA, up=-1.0), "up must"),
    (lambda: arrivals.Delayed(GAMMA, down=[1.0, 2.0, 3.0]), "down"),
    (lambda: arrivals.Queue(GAMMA, service=float("inf")), "service"),
    (lambda: arrivals.Incidents(GAMMA, [arrivals.Leaves(2, 1.0)]), "worker"),
    (lambda: arrivals.Incidents(GAMMA, [arrivals.Slows(0, 1.0, 0.0)]), "factor"),
    (lambda: arrivals.SemiSynchronous(GAMMA, 0), "period"),
    (lambda: arrivals.SemiSynchronous(GAMMA, 2).trace(0), "num_meetings"),
    (lambda: arrivals.Interrupted(GAMMA, 0), "threshold"),
    (lambda: arrivals.speed_up(GAMMA, 0), "num_commits"),
    (lambda: Backwards(2).trace(9), "durations"),
    (lambda: GAMMA.trace(-1), "num_commits"),
    (lambda: GAMMA.trace(2.5), "num_commits"),
    (lambda: GAMMA.trace(4, seed=-1), "seed"),
    (lambda: trace(pulled_at=[0, 2, 1]), "pulled_at"),
    (lambda: trace(pulled_at=[0, 0, 0]), "pulled_at"),
    (lambda: trace(num_workers=1), "worker 1"),
    (lambda: trace(worker=[0.0, 1.0]), "worker"),
    (lambda: trace(step=[1, 0, 1]), "step"),
    (lambda: trace(step=[0]), "step"),
    (lambda: trace(draw=[0, 3, 3]), "draw"),
    (lambda: trace(time=[0.0, NAN, 1.0]), "time"),
    (lambda: trace(time=[2.0, 1.0, 3.0]), "time"),
    (lambda: gemjax.Epochs(X, 0), "batch_size"),
    (lambda: gemjax.Epochs(X, 7), "batch_size"),
    (lambda: gemjax.Epochs(X[:0], 1), "rows"),
    (lambda: gemjax.Epochs(X, 2.0), "batch_size"),
    (lambda: gemjax.Stream(X, 7), "batch_size"),
    (lambda: gemjax.Epochs({"x": np.zeros(3), "y": np.zeros(4)}, 1), "rows"),
    (lambda: gemjax.Shards(X, 7, 1), "batch_size"),
    (lambda: gemjax.Shards(X, 1, 0), "num_workers"),
    (lambda: gemjax.Shards(X, 1, 2, labels=[0, 1]), "labels"),
    (lambda: gemjax.Shards(X, 1, 2, labels=[0, 1] * 3, concentration=0.0), "concentration"),
    (lambda: gemjax.Shards(X, 1, 2, concentration=0.5), "concentration"),
    (lambda: gemjax.Shards(X, 1, 2, rows=[[0], []]), "worker 1"),
    (lambda: gemjax.Shards(X, 1, 3, rows=[[0], [1]]), "rows"),
    (lambda: gemjax.Shards(X, 1, 2, rows=[[0], [5, 6]]), "rows"),
    (lambda: gemjax.Shards(X, 1, 2, rows=[[0], X[:, 0] > 3]), "rows"),
    (lambda: gemjax.FromSource(X, gemjax.Epochs(np.arange(5), 1)), "rows"),
    (lambda: gemjax.FromSource(X, gemjax.Epochs(np.array([1, 0, 2, 3, 4, 5]), 1)), "batches"),
    (lambda: gemjax.FromSource(X, gemjax.Epochs(np.arange(6), 1), 0), "threads"),
    (lambda: gemjax.FromSource(X, gemjax.Epochs(np.arange(6), 1), batch_size=2), "batches"),
    (lambda: gemjax.place(0), "num_workers"),
    (lambda: gemjax.place(2, "somewhere"), "central"),
    (lambda: gemjax.place(2, central_devices=0), "central_devices"),
    (lambda: gemjax.place(2, "dedicated", DEVICES, central_devices=5, worker_devices=5), "devices"),
    (lambda: gemjax.Placement((tuple(DEVICES[:2]), tuple(DEVICES[1:3])), DEVICES[3]), "worker 0"),
    (lambda: gemjax.cpu_devices(0), "count"),
    (lambda: gemjax.Policy(bound=-1), "bound"),
    (lambda: gemjax.Policy(quorum=0), "quorum"),
    (lambda: gemjax.Policy(grace=-1.0), "grace"),
    (lambda: gemjax.Policy(deadline=0.0), "deadline"),
    (lambda: gemjax.Members(2).join(5), "worker"),
    (lambda: gemjax.callbacks.EarlyStopping("loss", patience=0), "patience"),
    (lambda: gemjax.callbacks.EarlyStopping("loss", min_delta=-1.0), "min_delta"),
    (lambda: gemjax.callbacks.EarlyStopping("loss", mode="least"), "mode"),
    (lambda: gemjax.EventLog("gs://bucket/run"), "path"),
    (lambda: gemjax.Checkpoints("s3://bucket/run"), "folder"),
]

OTHER_KINDS = [
    (lambda: gemjax.asynchronous(optax.sgd, 2), "inner"),
    (lambda: gemjax.per_worker(optax.sgd), "inner"),
    (lambda: gemjax.rules.scale_by_gap(0.1, optax.trace), "inner"),
    (lambda: gemjax.LocalSteps(optax.sgd, 2), "LocalSteps"),
    (lambda: gemjax.Epochs([[1.0, 2.0]], 1), "data"),
    (lambda: gemjax.Epochs(2, X), "data"),
    (lambda: gemjax.FromSource(iter([])), "list_iterator"),
    (lambda: gemjax.FromSource({"x": X}), "Epochs"),
    (lambda: gemjax.FromSource(X), "Epochs"),
    (lambda: gemjax.OnHost(ones), "OnHost"),
    (lambda: arrivals.Barrier(GAMMA, quorum=GAMMA.num_workers + 1), "quorum"),
    (lambda: arrivals.Delayed(arrivals.Barrier(GAMMA)), "Barrier"),
    (lambda: arrivals.Queue(service=0.5), "Queue"),
    (lambda: gemjax.summarise(TRACE), "run"),
    (lambda: gemjax.timeline("run.jsonl"), "run"),
    (lambda: gemjax.verdict({"worker": [0, 1]}), "summarise"),
    (lambda: gemjax.citation("gem"), "gem"),
    (lambda: gemjax.callbacks.EarlyStopping(0.1), "evaluate"),
    (lambda: gemjax.callbacks.chain(len, 3), "callback"),
    (lambda: commit(gemjax.rules.match_energy()), "asynchronous"),
    (lambda: commit(gemjax.rules.gather(2, gemjax.rules.polynomial_weight())), "asynchronous"),
    (lambda: commit(gemjax.rules.drop_stale(2)), "asynchronous"),
    (lambda: commit(gemjax.agn(0.1, num_workers=2)), "local_steps"),
    (lambda: commit(gemjax.lsgd(num_workers=2)), "value="),
    (lambda: commit(gemjax.asynchronous(gemjax.per_worker(gemjax.gem(0.1, num_workers=2)), 2)), "method"),
    (lambda: commit(gemjax.asynchronous(gemjax.rules.delay_stages(gemjax.asgd(0.1), 2))), "delay_stages"),
]

COMMITS = [
    (lambda: commit(asgd(), worker=None), "worker"),
    (lambda: commit(asgd(), worker=2), "worker"),
    (lambda: gemjax.pull(asgd().init(PARAMS), PARAMS, -1), "worker"),
    (lambda: commit(asgd(), updates=jnp.ones(3)), "gradient"),
    (lambda: commit(asgd(), updates={"w": PARAMS}), "gradient"),
    (lambda: gemjax.asynchronous(gemjax.gem(0.1, num_workers=4), 3).init(PARAMS), "num_workers"),
    (lambda: gemjax.asynchronous(gemjax.rules.gather_per_worker(2), 4).init(PARAMS), "workers"),
    (lambda: gemjax.asynchronous(gemjax.per_worker(gemjax.rules.take_turns(2)), 2).init(PARAMS), "num_workers"),
    (lambda: gemjax.asynchronous(gemjax.rules.delay_stages(gemjax.per_worker(optax.trace(0)), 2), 2).init([X, X]), "inner"),
    (lambda: gemjax.streaming_diloco(fragments=(("layers",),)).init({"embed": PARAMS}), "embed"),
    (lambda: gemjax.timeline({"loss": np.ones(2)}), "history"),
]  # fmt: skip

# Each is given to `simulate`, `run_on_devices` and `sweep`.
OF_ENGINES = [
    ({"tx": "gem"}, TypeError, "(tx|make)"),
    ({"tx": gemjax.gem}, TypeError, "gem"),
    ({"loss_fn": PARAMS, "params": squares}, TypeError, "swap the two"),
    ({"loss_fn": lambda params: 0.0}, TypeError, "loss_fn"),
    ({"loss_fn": with_metrics({"logits": jnp.zeros((4, 3))})}, ValueError, "logits"),
    ({"loss_fn": with_metrics({"loss": 0.5})}, ValueError, "loss"),
    ({"loss_fn": lambda params, state, batch, key: (squares(params, batch), ({"n": 1.0}, {}))}, ValueError, "model state"),
    ({"params": linen.Dense(1)}, TypeError, "params"),
    ({"params": TrainState.create(apply_fn=len, params=PARAMS, tx=optax.sgd(0.1))}, (TypeError, ValueError), "params"),
    ({"params": {"w": PARAMS, "name": "resnet"}}, TypeError, "'name'"),
    ({"params": {"w": jnp.arange(3)}}, (TypeError, ValueError), "'w'"),
    ({"params": {"z": jnp.ones(4, jnp.complex64)}}, (TypeError, ValueError), "'z'"),
    ({"model_state": {"mode": "train"}}, TypeError, "'mode'"),
    ({"model_state": PER_SEED}, TypeError, "model_state"),
    ({"batches": iter([X])}, TypeError, "iterator"),
    ({"batches": X}, TypeError, "Epochs"),
    ({"batches": gemjax.Shards(X, 1, 3)}, ValueError, "num_workers"),
    ({"batches": Flat()}, ValueError, "select"),
    ({"average_model_state": "no"}, ValueError, "average_model_state"),
    ({"callback": "stop"}, TypeError, "callback"),
    ({"tx": gemjax.downpour(num_workers=2)}, ValueError, "local="),
    ({"tx": gemjax.downpour(num_workers=2), "local": gemjax.LocalSteps(optax.sgd(0.1), (1, 2, 3))}, ValueError, "LocalSteps"),
    ({"tx": optax.chain(gemjax.rules.average_elastically(0.1), asgd())}, TypeError, "asynchronous"),
    ({"tx": changing(lambda updates, state: (jnp.mean(updates), state))}, ValueError, "updates"),
    ({"tx": changing(lambda updates, state: (updates, state[:1]))}, ValueError, "state"),
    ({"tx": changing(lambda updates, state: (updates, 0.5 + jnp.int32(state)))}, ValueError, "state"),
]  # fmt: skip

OF_TWO_ENGINES = [
    ({"params": PER_SEED}, TypeError, "PerSeed"),
    ({"tx": gemjax.downpour(num_workers=2), "local": gemjax.LocalSteps(SPREADING, 1)}, ValueError, "local optimizer"),
    ({"seed": 0.5}, ValueError, "seed"),
    ({"seed": 2**63}, ValueError, "seed"),
    ({"callback_every": 0}, ValueError, "callback_every"),
    ({"diagnostics": ["temperature"]}, ValueError, "temperature"),
    ({"diagnostics": ["pi_median"]}, ValueError, "pi_median"),
]

OF_DEVICES = [
    ({"num_workers": 0}, ValueError, "num_workers"),
    ({"num_workers": 3}, ValueError, "num_workers"),
    ({"num_workers": 2, "placement": gemjax.place(4)}, ValueError, "placement"),
    ({"members": gemjax.Members(3)}, ValueError, "members"),
    ({"log": "run.jsonl"}, TypeError, "log"),
    ({"recorded": gemjax.Trace([0], num_workers=2)}, ValueError, "state="),
    ({"state": gemjax.initial_state(asgd(), PARAMS, num_workers=2)}, ValueError, "recorded="),
    ({"callback_seconds": 0}, ValueError, "callback_seconds"),
    ({"gate": 3}, TypeError, "gate"),
]


OF_SWEEPS = [
    ({"over": [{"rate": 0.1}, {"momentum": 0.1}]}, ValueError, "momentum"),
    ({"batched": "no"}, ValueError, "batched"),
    ({"callback_every": 0}, ValueError, "callback_every"),
    ({"at_stop": 3}, TypeError, "at_stop"),
]


def assert_named(call, error, name):
    with pytest.raises(error, match=rf"(^|\W){name}"):
        call()


def ids(rows):
    return [f"{number}-{row[-1]}" for number, row in enumerate(rows)]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
def test_every_method_names_it(method):
    for argument, wrong in (("learning_rate", -0.1), ("momentum", 1.0), ("num_workers", 0)):
        if argument in inspect.signature(method).parameters:
            with pytest.raises(ValueError, match=argument):
                method(**{"learning_rate": 0.1, argument: wrong})


@pytest.mark.parametrize(("call", "name"), HYPER_PARAMETERS, ids=ids(HYPER_PARAMETERS))
def test_a_hyper_parameter_is_named(call, name):
    assert_named(call, ValueError, name)


@pytest.mark.parametrize(("call", "name"), MODELS_AND_DATA, ids=ids(MODELS_AND_DATA))
def test_an_option_out_of_range_is_named(call, name):
    assert_named(call, (ValueError, TypeError), name)


@pytest.mark.parametrize(("call", "name"), OTHER_KINDS, ids=ids(OTHER_KINDS))
def test_an_argument_of_another_kind_is_named(call, name):
    assert_named(call, (TypeError, ValueError), name)


@pytest.mark.parametrize(("call", "name"), COMMITS, ids=ids(COMMITS))
def test_what_does_not_fit_a_commit_is_named(call, name):
    assert_named(call, ValueError, name)


@every_engine
@pytest.mark.filterwarnings("ignore:tx is for one worker:gemjax.RunWarning")
@pytest.mark.parametrize(("options", "error", "name"), OF_ENGINES, ids=ids(OF_ENGINES))
def test_every_engine_names_it(engine, options, error, name):
    assert_named(lambda: run(engine, **options), error, name)


@pytest.mark.parametrize("engine", ["simulate", "devices"])
@pytest.mark.parametrize(("options", "error", "name"), OF_TWO_ENGINES, ids=ids(OF_TWO_ENGINES))
def test_two_engines_name_it(engine, options, error, name):
    assert_named(lambda: run(engine, **options), error, name)


@pytest.mark.parametrize(("options", "error", "name"), OF_DEVICES, ids=ids(OF_DEVICES))
def test_a_run_on_devices_names_it(options, error, name):
    assert_named(lambda: run("devices", **options), error, name)


@pytest.mark.parametrize(("options", "error", "name"), OF_SWEEPS, ids=ids(OF_SWEEPS))
def test_a_sweep_names_it(options, error, name):
    options = {"over": {"rate": [0.1]}} | options
    assert_named(lambda: gemjax.sweep(asgd, squares, PARAMS, ones, TRACE, **options), error, name)
