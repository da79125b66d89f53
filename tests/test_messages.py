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


def commit(tx, worker=0, updates=PARAMS):
    return tx.update(updates, tx.init(PARAMS), PARAMS, worker=worker)


MESSAGES = [
    (
        lambda: gemjax.gem(-0.1),
        "learning_rate must be finite and at least 0, got -0.1",
    ),
    (
        lambda: gemjax.gem(0.1, 8),
        "momentum must be in [0, 1), got 8",
    ),
    (
        lambda: run("simulate", tx=gemjax.gem),
        "tx must be an optax transformation, such as optax.sgd(0.1), got the function gem itself; call it and give "
        "its result",
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
        lambda: run("simulate", tx=optax.chain(gemjax.rules.average_elastically(0.1), asgd())),
        "Position takes part in pulls, but is outside of gemjax.asynchronous, which would call it; put the "
        "whole chain inside of one, gemjax.asynchronous(optax.chain(…), num_workers=N)",
    ),
    (
        lambda: commit(gemjax.rules.match_energy()),
        "match_energy was called without staleness=. It acts on one worker's commit, so it must be inside "
        "gemjax.asynchronous(optax.chain(…, match_energy(…), …), num_workers=N) and be given params; if it is"
        " inside of an optax.MultiSteps in a chain, give optax.GradientTransformationExtraArgs(steps.init, "
        'steps.update); if it is inside of optax.inject_hyperparams, give that static_args=("num_workers",)',
    ),
    (
        lambda: commit(asgd(), worker=None),
        "worker must be an int in 0 … 1, got None",
    ),
    (
        lambda: commit(asgd(), updates=jnp.ones(3)),
        "the gradient at the root is float32[3], expected float32[4]; give one of the same shape and dtype",
    ),
    (
        lambda: run("simulate", PARAMS, squares),
        "loss_fn is of type ArrayImpl and params is a function: swap the two; engines are called as (tx, "
        "loss_fn, params, batches, …) with loss_fn(params, batch) -> loss",
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
        "the model state that loss_fn returned is the tree PyTreeDef({'mean': *}), expected PyTreeDef(()); give one of "
        "the same structure",
    ),
    (
        lambda: run("simulate", model_state={"mode": "train"}),
        "model_state at ['mode'] is 'train', but model_state may have arrays only; give the "
        "parameters of a module, and keep everything else in the loss function",
    ),
    (
        lambda: run("simulate", diagnostics=["pi_medain"], tx=gemjax.gem(0.1, num_workers=2)),
        "no member of this method reports pi_medain; did you mean 'pi_median'? It offers gap, normalised_gap,"
        " update_norm, elastic_constant, compensation, energy_ratio, learning_rate, pi_05, pi_25, pi_75, pi_95, pi_median",
    ),
    (
        lambda: gemjax.simulate(asgd(), squares, PARAMS, ones, arrivals.Gamma(2)),
        "trace must be a gemjax.Trace, got Gamma; call its .trace(num_commits)",
    ),
    (
        lambda: gemjax.simulate(asgd(), squares, PARAMS, X, TRACE),
        "batches must be a function (worker, step) -> batch or an object such as gemjax.Epochs, got ndarray; give "
        "arrays as gemjax.Epochs(data, batch_size), and a dataset with rows by number as "
        "gemjax.FromSource(dataset, batch_size=...). An iterator gives each batch once, but a run can be replayed "
        "and resumed only if any batch can be computed again from worker and step",
    ),
    (
        lambda: gemjax.simulate(asgd(), squares, PARAMS, gemjax.Shards(X, 1, 3), TRACE),
        "the batches were made with num_workers=3, but the run has 2 workers; make them for as many",
    ),
    (
        lambda: gemjax.Epochs(X, 7),
        "batch_size must be an int in 1 … 6, got 7",
    ),
    (
        lambda: gemjax.Epochs({"x": np.zeros(3), "y": np.zeros(4)}, 1),
        "all arrays of the data must have the same number of rows, at least 1, got ['x'] with 3 and ['y'] with 4",
    ),
    (
        lambda: gemjax.FromSource(X),
        "FromSource gathers rows and numbers them anew, so it needs batches that are rows of data: gemjax.Epochs, "
        "gemjax.Shards, gemjax.Stream, or a class that derives from gemjax.batches.Rows without a batch or gather "
        "of its own; got NoneType; change the batch in the loss function instead",
    ),
    (
        lambda: gemjax.LocalSteps(optax.sgd(0.1), 0),
        "the period of LocalSteps must be an int in 1 … 1048576, got 0",
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
        "the state to continue from is of another method, schedule, model or number of workers; what "
        "differs: 3, the first is 'view.value.params': found none, expected float32[2, 4]; give the method "
        "with its schedules, params=, model_state=, the number of workers and of blocks (read_at) as the run had them",
    ),
    (
        lambda: run("simulate", window=0),
        "window must be an int in 1 … 2147483647, got 0",
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
        lambda: gemjax.summarise(TRACE),
        "the run is of type Trace; give the result, its history or the events of a log",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), MESSAGES, ids=range(len(MESSAGES)))
def test_the_words_of_a_message(call, message):
    with pytest.raises((TypeError, ValueError)) as refused:
        call()
    assert str(refused.value) == message
