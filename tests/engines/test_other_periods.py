"""Resumed runs with other periods of local steps, in every engine: data and keys follow the steps that were made."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import Abreast, assert_close, assert_same_bits

import gemjax

ROWS = 400
DATA = {"row": np.arange(ROWS)}
MOMENTUM = optax.sgd(0.5, momentum=0.5)


def loss_fn(params, model_state, batch, key):
    """Count each row in the parameters, and the draws of the keys in a metric."""
    return jnp.sum(params[batch["row"]]), (model_state, {"drawn": jax.random.uniform(key)})


def count(period):
    return gemjax.LocalSteps(optax.sgd(1.0), period)


def simulated(num_commits, num_workers=1, batches=None, tx=None, **options):
    trace = gemjax.arrivals.Gamma(num_workers).trace(num_commits)
    tx = gemjax.downpour(num_workers=num_workers) if tx is None else tx
    return gemjax.simulate(tx, loss_fn, jnp.zeros(ROWS), batches or gemjax.Epochs(DATA, 1), trace, **options)


def on_devices(num_commits, num_workers=1, batches=None, tx=None, **options):
    tx = gemjax.downpour(num_workers=num_workers) if tx is None else tx
    return gemjax.run_on_devices(
        tx, loss_fn, jnp.zeros(ROWS), batches or gemjax.Epochs(DATA, 1), num_commits, num_workers=num_workers,
        gate=Abreast(num_workers), **options,
    )  # fmt: skip


def interruptible(*arguments, **options):
    """Run with one program per local step."""
    return on_devices(*arguments, policy=gemjax.Policy(interrupt=1000), **options)


ENGINES = pytest.mark.parametrize("run", [simulated, on_devices, interruptible])


def times_seen(result):
    return dict(zip(*map(np.ndarray.tolist, np.unique(-np.asarray(result.params), return_counts=True)), strict=True))


@pytest.mark.slow
@ENGINES
def test_no_row_is_skipped_after_a_longer_period(run):
    result = run(50, local=count(8), state=run(20, local=count(8), state=run(10, local=count(4))))
    assert times_seen(result) == {0: ROWS - 360, 1: 360}
    longest = run(60, local=count(4), state=result)
    assert times_seen(longest) == {1: ROWS}


@pytest.mark.slow
@ENGINES
def test_a_resumed_run_is_that_of_a_table_of_all_periods(run):
    """Rows, keys and the local optimizer are those of one run whose periods change on the way."""
    table = count(((8,) * 10 + (4,) * 10,))
    whole, resumed = run(20, local=table), run(20, local=count(4), state=run(10, local=count(8)))
    assert_same_bits(resumed.params, whole.params)
    np.testing.assert_allclose(resumed.history["drawn"], whole.history["drawn"], rtol=1e-6)
    assert len(set(resumed.history["drawn"].tolist())) == 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shards", "function"])
@pytest.mark.parametrize(
    "second",
    [*(pytest.param(period, marks=pytest.mark.nightly) for period in (4, (1, 5))), ((6,) * 40, (2,) * 40)],
    ids=["int", "per worker", "table"],
)
def test_workers_go_on_with_rows_of_their_own(second, kind):
    """Each worker has made steps of its own number, according to a period of its own."""
    make = {"shards": gemjax.Shards(DATA, 2, 2), "function": lambda w, s: {"row": jnp.stack([w, 2 + s])}}
    run = functools.partial(simulated, num_workers=2, batches=make[kind])
    local = [gemjax.LocalSteps(MOMENTUM, period) for period in ((3, 8), second)]
    first = run(9, local=local[0])
    result = run(30, local=local[1], state=first)
    trace, begun = result.trace, np.bincount(first.trace.worker, minlength=2)
    rows = [
        [first_periods] * int(begun[worker]) + [local[1].span([worker], [step])[1].item() for step in range(begun[worker], 40)]
        for worker, first_periods in enumerate((3, 8))
    ]  # fmt: skip
    whole = run(30, local=gemjax.LocalSteps(MOMENTUM, rows))
    assert_close(result.params, whole.params, rtol=1e-6)
    np.testing.assert_allclose(result.history["drawn"], whole.history["drawn"], rtol=1e-6)
    made = [sum(rows[worker][: (trace.worker == worker).sum()]) for worker in range(2)]
    np.testing.assert_array_equal(result.state.local_step.value, made)


@pytest.mark.slow
def test_a_run_on_devices_with_two_periods_replays(x64):
    """A simulation of its trace changes the period at the same commit; or continues its state."""
    batches = gemjax.Shards(DATA, 1, 4)
    run = functools.partial(on_devices, num_workers=4, batches=batches)
    first = run(12, local=gemjax.LocalSteps(MOMENTUM, 8))
    local = gemjax.LocalSteps(MOMENTUM, (1, 2, 3, 4))
    second = run(40, local=local, state=first)
    options = {"batches": batches, "trace": second.trace}
    replay = functools.partial(gemjax.simulate, gemjax.downpour(num_workers=4), loss_fn, jnp.zeros(ROWS), **options)
    begun = replay(local=gemjax.LocalSteps(MOMENTUM, 8), stops=[12], callback=lambda progress: progress.commits == 12)
    for state in (first, begun):
        again = replay(local=local, state=state)
        assert_close(second.params, jax.device_get(again.params), rtol=1e-10)
        assert_same_bits(jax.device_get(second.state.local_step), jax.device_get(again.state.local_step))


# --- Changes that are refused


@pytest.mark.parametrize("run", [simulated, on_devices])
def test_another_period_of_a_shared_stream_is_refused(run):
    """Draws that workers hold are of the former period, so that rows would be skipped or repeated."""
    first = run(10, local=count(8), batches=gemjax.Stream(DATA, 1))
    with pytest.raises(
        ValueError, match="a stream that all workers share, and the run to continue from had another period"
    ):
        run(20, local=count(4), batches=gemjax.Stream(DATA, 1), state=first)
    run(20, local=count(8), batches=gemjax.Stream(DATA, 1), state=first)


@pytest.mark.parametrize("run", [simulated, on_devices])
@pytest.mark.parametrize(
    "wrap",
    [lambda batches: batches, pytest.param(gemjax.OnHost, marks=pytest.mark.slow)],
    ids=["on device", "on host"],
)
@pytest.mark.parametrize("kind", [gemjax.Epochs, pytest.param(gemjax.Stream, marks=pytest.mark.slow)])
def test_another_batch_size_is_refused(kind, wrap, run):
    first = run(10, batches=wrap(kind(DATA, 1)), tx=gemjax.asgd(0.1))
    with pytest.raises(ValueError, match="has made its steps on batches of 1 rows, but batches= has 2 per batch"):
        run(20, batches=wrap(kind(DATA, 2)), tx=gemjax.asgd(0.1), state=first)
    run(20, batches=wrap(kind(DATA, 1)), tx=gemjax.asgd(0.1), state=first)
