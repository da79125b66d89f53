"""The messages that a user meets most, word for word; ``test_wrong_arguments.py`` has all other wrong arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.entrances import PARAMS, TRACE, asgd, ones, run, squares, with_metrics

import gemjax
from gemjax import arrivals

X = np.zeros((6, 3), np.float32)


class Dataset:
    """A data set with rows by number."""

    def __len__(self):
        return len(X)

    def __getitem__(self, number):
        return X[number]


def commit(tx, worker=0, updates=PARAMS):
    return tx.update(updates, tx.init(PARAMS), PARAMS, worker=worker)


MESSAGES = [
    (
        lambda: gemjax.gem(-0.1),
        "learning_rate must be finite and at least 0, got -0.1",
    ),
    (
        lambda: gemjax.gem(0.1, 8),
        "momentum must be in [0, 1), got 8; did you mean num_workers=8?",
    ),
    (
        lambda: run("simulate", tx=gemjax.gem),
        "tx is the function gem itself; call it and give its result, gem(learning_rate, …)",
    ),
    (
        lambda: run("simulate", tx=gemjax.downpour(num_workers=2)),
        "this method takes the displacement of local steps, but the run has none; give "
        "local=gemjax.LocalSteps(optax.sgd(rate), period=…), with period=1 for one step per commit",
    ),
    (
        lambda: run("simulate", tx=gemjax.asgd(0.1, num_workers=3)),
        "the method was made with num_workers=3, but the run has 2 workers; give both the same number",
    ),
    (
        lambda: run("simulate", tx=gemjax.asynchronous(optax.lbfgs(), 2)),
        "the optimizer has a line search, which evaluates the loss at further points, but a commit has a "
        "gradient alone; give one without, such as optax.scale_by_lbfgs() with "
        "optax.scale_by_learning_rate(…)",
    ),
    (
        lambda: run("simulate", tx=optax.chain(gemjax.average_elastically(0.1), asgd())),
        "Position takes part in pulls, but is outside of gemjax.asynchronous, which would call it; put the "
        "whole chain inside of one, gemjax.asynchronous(optax.chain(…), num_workers=N)",
    ),
    (
        lambda: commit(gemjax.match_energy()),
        "match_energy was called without staleness=. It acts on one worker's commit, so it must be inside "
        "gemjax.asynchronous(optax.chain(…, match_energy(…), …), num_workers=N) and be given params; if it is"
        " inside of an optax.MultiSteps in a chain, give optax.GradientTransformationExtraArgs(steps.init, "
        "steps.update)",
    ),
    (
        lambda: gemjax.pull(asgd(), PARAMS, 0),
        "pull was given an optax transformation in place of its state; give tx.init(params)",
    ),
    (
        lambda: commit(asgd(), worker=None),
        "worker= is missing: this state is kept for 2 workers, so give the worker that pulls or commits "
        "(worker=0 … worker=1)",
    ),
    (
        lambda: commit(asgd(), updates=jnp.ones(3)),
        "the gradient at the root is float32[3], but the parameter there is float32[4]; give it the same "
        "shape and dtype",
    ),
    (
        lambda: run("simulate", PARAMS, squares),
        "loss_fn is of type ArrayImpl and params is a function: swap the two; engines are called as (tx, "
        "loss_fn, params, batches, …) with loss_fn(params, batch) -> loss",
    ),
    (
        lambda: run("simulate", lambda params, batch: (params - batch) ** 2),
        "the loss has shape (4,), a scalar was expected; take its mean, unless loss_fn returned a gradient, "
        "as jax.grad(loss) does; give the loss itself, which engines differentiate",
    ),
    (
        lambda: run("simulate", lambda params, batch: (jnp.sum(params), {"error": 0.0})),
        "a loss_fn(params, batch) must return one number, got (array, dict); for metrics use loss_fn(params, "
        "model_state, batch, key) -> (loss, (model_state, metrics))",
    ),
    (
        lambda: run("simulate", jax.value_and_grad(squares)),
        "loss_fn returned (loss, gradient), as jax.value_and_grad(loss) does; give the loss itself, which "
        "engines differentiate",
    ),
    (
        lambda: run("simulate", with_metrics({"logits": jnp.zeros((4, 3))})),
        "the metric 'logits' of loss_fn has the shape [4, 3], but every metric must be one number; return its"
        " mean, or compute it in your evaluation",
    ),
    (
        lambda: run("simulate", with_metrics({"loss": 0.5})),
        "loss_fn returns metrics called ['loss'], which the engines report themselves; rename them",
    ),
    (
        lambda: run("simulate", lambda params, state, batch, key: (squares(params, batch), ({"mean": 1.0}, {}))),
        "the run was given no model_state=, but loss_fn returned another model state than it was given: the "
        "tree PyTreeDef({'mean': *}), expected PyTreeDef(()); return a tree like the one given",
    ),
    (
        lambda: run("simulate", model_state={"mode": "train"}),
        "model_state at ['mode'] is the str 'train', but model_state may have arrays only; keep it in the "
        "loss function",
    ),
    (
        lambda: run("simulate", callback=lambda progress: "stop"),
        "callback returned the str 'stop'; return True to end the run, False or None to continue",
    ),
    (
        lambda: run("simulate", diagnostics=["pi_medain"], tx=gemjax.gem(0.1, num_workers=2)),
        "no member of this method reports pi_medain; did you mean 'pi_median'? It offers gap, normalised_gap,"
        " update_norm, compensation, energy_ratio, learning_rate, pi_05, pi_25, pi_75, pi_95, pi_median",
    ),
    (
        lambda: gemjax.simulate(asgd(), squares, PARAMS, ones, arrivals.Gamma(2)),
        "trace must be a gemjax.Trace, got Gamma; call its .trace(num_commits)",
    ),
    (
        lambda: gemjax.simulate(asgd(), squares, PARAMS, iter([X]), TRACE),
        "batches must be a function (worker, step) -> batch or an object such as gemjax.Epochs, got "
        "list_iterator: an iterator gives each batch once, but a run can be replayed and resumed only if any "
        "batch can be computed again from worker and step; give arrays as gemjax.Epochs(data, batch_size), or"
        " a dataset with rows by number as gemjax.FromSource(dataset, batch_size=...)",
    ),
    (
        lambda: gemjax.simulate(asgd(), squares, PARAMS, X, TRACE),
        "batches must be a function (worker, step) -> batch or an object such as gemjax.Epochs, got ndarray; "
        "data need a batch size and an order, so give gemjax.Epochs(data, batch_size)",
    ),
    (
        lambda: gemjax.simulate(asgd(), squares, PARAMS, Dataset(), TRACE),
        "batches must be a function (worker, step) -> batch or an object such as gemjax.Epochs, got Dataset, "
        "a dataset with rows by number; give gemjax.FromSource(dataset, batch_size=...)",
    ),
    (
        lambda: gemjax.simulate(asgd(), squares, PARAMS, lambda step: step, TRACE),
        "batches are called as batches(worker, step), but <lambda> takes (step); give a function of two "
        "arguments",
    ),
    (
        lambda: gemjax.simulate(asgd(), squares, PARAMS, gemjax.Shards(X, 1, 3), TRACE),
        "the batches were made with num_workers=3, but the run has 2 workers; make them for as many",
    ),
    (
        lambda: gemjax.Epochs(X, 7),
        "batch_size must be in 1 … 6 (the rows of the data), got 7",
    ),
    (
        lambda: gemjax.Epochs({"x": np.zeros(3), "y": np.zeros(4)}, 1),
        "all arrays of the data must have the same number of rows, got ['x'] with 3 and ['y'] with 4",
    ),
    (
        lambda: gemjax.Epochs({"name": np.array(["a", "b"])}, 1),
        "devices take numbers only, but ['name'] is an array of <U1; encode it as numbers or leave it out",
    ),
    (
        lambda: gemjax.FromSource(X),
        "FromSource needs batch_size=, or batches that are rows: gemjax.Epochs, gemjax.Shards, gemjax.Stream "
        "of np.arange(len(source)), or a class that derives from gemjax.batches.Rows; got NoneType",
    ),
    (
        lambda: gemjax.LocalSteps(optax.sgd(0.1), 0),
        "the period of LocalSteps must be an int of at least 1, got 0",
    ),
    (
        lambda: gemjax.Trace([0, 1, 0], pulled_at=[0, 2, 1]),
        "row 1 of the trace cannot happen: it pulls the future: pulled_at is 2, the clock only 1",
    ),
    (
        lambda: gemjax.EventLog("gs://bucket/run"),
        "path is the address gs://bucket/run, but gemjax reads and writes files of this host; give a path, "
        "such as that at which a bucket is mounted",
    ),
    (
        lambda: run("devices", state=gemjax.initial_state(asgd(), PARAMS, num_workers=2)),
        "to continue give state=result, or give both state= and recorded=, the trace of its commits",
    ),
    (
        lambda: run("simulate", state=gemjax.simulate(asgd(), squares, PARAMS, ones, arrivals.Gamma(2).trace(4, seed=1))),
        "state= is a Result of another trace: its 4 commits are not the first rows of trace=, which has 4; "
        "give the trace that it ran on, or one that begins with its trace",
    ),
    (
        lambda: run("simulate", state=run("simulate", tx=gemjax.gem(0.1, num_workers=2))),
        "the state to continue from is of another method, schedule, model or number of workers; arrays that "
        "differ: 3, the first is 'view.value.params': found none, expected float32[2, 4]; give the method "
        "with its schedules, params= and the number of workers as the run had them",
    ),
    (
        lambda: run("devices", num_workers=2, placement=gemjax.place(4)),
        "num_workers=2, but the placement has 4 workers",
    ),
    (
        lambda: gemjax.place(2, "dedicated", jax.devices()[:1], central_devices=9),
        "central='dedicated' with central_devices=9 and worker_devices=1 needs at least 10 devices, but there"
        " are 1 in all; give smaller numbers, or on a CPU call gemjax.cpu_devices(n) first",
    ),
    (
        lambda: gemjax.sweep(asgd(), squares, PARAMS, ones, TRACE, {"rate": [0.1]}),
        "make is of type GradientTransformationExtraArgs, but a sweep takes a function that returns the "
        "transformation; give one, such as lambda rate: gemjax.gem(rate, num_workers=8)",
    ),
    (
        lambda: gemjax.sweep(asgd, squares, PARAMS, ones, TRACE, 0.1),
        "over must be a dict of lists, such as {'learning_rate': [0.1, 0.2]}, or a list of points, dicts with"
        " one value per name; got 0.1",
    ),
    (
        lambda: gemjax.summarise(TRACE),
        "the run is of type Trace; give the result, its history or the events of a log",
    ),
    (
        lambda: jax.jit(lambda params: run("simulate", params=params))(PARAMS),
        "an engine cannot be called inside of jax.jit, vmap or grad, because it calls compiled programs from "
        "Python; call it outside, gemjax.sweep for many hyper-parameters and seeds, or gemjax.pull and "
        "tx.update for a loop of your own",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), MESSAGES, ids=range(len(MESSAGES)))
def test_the_words_of_a_message(call, message):
    with pytest.raises((TypeError, ValueError)) as refused:
        call()
    assert str(refused.value) == message
