"""One stream for all workers, in every engine: the next batch goes to the next worker."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import Abreast, Behind, assert_close, assert_same_bits, late

import gemjax
from gemjax.batches.local import LocalBatches
from gemjax.testing import Faults, run_in_python

N = 4
ROWS = 30
DATA = {
    "row": np.arange(ROWS, dtype=np.float32),
    "x": np.sin(np.arange(3.0 * ROWS)).reshape(ROWS, 3).astype(np.float32),
}
STREAM = gemjax.Stream(DATA, 2, seed=1)
LATE = late()
GEM = gemjax.gem(0.05, num_workers=N)


def loss_fn(params, model_state, batch, key):
    del key
    loss = jnp.sum((params[None] - batch["x"]) ** 2)
    return loss, (model_state, {"row": batch["row"][0], "rows": batch["row"].sum()})


def run(trace=LATE, tx=GEM, batches=STREAM, **options):
    return gemjax.simulate(tx, loss_fn, jnp.zeros(3), batches, trace, **options)


def first_rows(draws):
    """Return the first row of each batch, according to the stream."""
    return STREAM.select(draws, draws, draws)[:, 0]


@pytest.mark.parametrize(
    "model",
    [gemjax.arrivals.Gamma(N, machine_variation=0.4), gemjax.arrivals.RoundRobin(N), gemjax.arrivals.Exponential(N)],
    ids=["gamma", "round-robin", "exponential"],
)
def test_the_run_is_that_of_a_plain_event_loop(model):
    """All workers take a batch from a queue, and the next one after each of their commits."""
    trace = model.trace(50)
    queue = collections.deque(first_rows(np.arange(N + 50)))
    holds = [queue.popleft() for _ in range(N)]
    expected = []
    for worker in trace.worker:
        expected.append(holds[worker])
        holds[worker] = queue.popleft()
    np.testing.assert_array_equal(run(trace).history["row"], expected)


@pytest.mark.parametrize("model", [gemjax.arrivals.Barrier(gemjax.arrivals.Gamma(N)), gemjax.arrivals.Gamma(N)])
def test_all_workers_together_go_through_the_data(model):
    """No batch is skipped, even if pulls are late because workers wait for each other."""
    commits = 4 * STREAM.steps_per_epoch
    history = run(model.trace(commits), gemjax.asgd(0.0, N)).history
    early = history["draw"] < 3 * STREAM.steps_per_epoch  # The last draws of a run are not committed in it.
    assert history["rows"][early].sum() == 3 * DATA["row"].sum()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"callback_every": 1}, {"callback_every": 7}])
def test_the_chunk_size_does_not_matter(options):
    assert_same_bits(run(**options).state, run().state)


@pytest.mark.parametrize("stop", [1, 9, 20])
def test_a_continued_run_continues_the_stream(stop):
    begun = run(callback_every=1, callback=lambda progress: progress.commits == stop)
    assert begun.stopped
    rest = run(state=begun.state)
    assert_same_bits(rest.state, run().state)
    np.testing.assert_array_equal(np.concatenate([begun.history["draw"], rest.history["draw"]]), run().history["draw"])


def test_the_state_has_the_batch_of_every_worker():
    """The state has them after each commit; a worker that only pulls keeps its batch."""
    found = []
    run(callback_every=1, callback=lambda progress: found.append(np.array(progress.state().draw.value)))
    holds, events = np.arange(N), LATE.events()
    assert not events.commits.all()
    for worker, row, draws in zip(events.worker[events.commits], range(len(LATE)), found, strict=True):
        holds[worker] = N + row
        np.testing.assert_array_equal(draws, holds)


@pytest.mark.slow
def test_a_sweep_follows_the_stream(x64):
    swept = gemjax.sweep(lambda rate: gemjax.gem(rate, num_workers=N), loss_fn, jnp.zeros(3), STREAM, LATE,
                         {"rate": [0.01, 0.05]}, callback_every=7)  # fmt: skip
    assert_close(jax.tree.map(lambda x: x[1], swept.state), run().state, rtol=1e-10)
    np.testing.assert_array_equal(swept.history["row"][1], run().history["row"])
    np.testing.assert_array_equal(swept.history["draw"], run().history["draw"])


@pytest.mark.slow
def test_local_steps_draw_consecutive_batches():
    """In a plain loop over a copy of the stream each commit takes three batches, the period."""
    local = gemjax.LocalSteps(optax.sgd(0.1), 3)
    result = run(tx=gemjax.downpour(num_workers=N), local=local, callback_every=5)
    draws = LATE.draw
    steps = 3 * draws[:, None] + np.arange(3)
    rows = STREAM.select(steps.ravel(), steps.ravel(), steps.ravel()).reshape(len(draws), 3, -1)
    np.testing.assert_allclose(result.history["rows"], DATA["row"][rows].sum(-1).mean(-1), rtol=1e-6)
    params = run_in_python(gemjax.downpour(num_workers=N), loss_fn, jnp.zeros(3), STREAM, LATE, local=local)
    assert_close(result.params, params, rtol=1e-5)


@pytest.mark.parametrize("period", [(1, 2, 1, 3), tuple((2,) * 30 for _ in range(N))])
def test_periods_that_differ_are_refused(period):
    message = "a shared stream hands out as many batches at a time as the period .* give one int"
    with pytest.raises(ValueError, match=message):
        run(tx=gemjax.downpour(num_workers=N), local=gemjax.LocalSteps(optax.sgd(0.1), period))


# --- Devices

SPOILT = gemjax.Stream(DATA | {"x": np.where(DATA["row"][:, None] % 11 == 5, np.nan, DATA["x"])}, 2, seed=1)


def on_devices(num_commits=40, tx=GEM, batches=STREAM, **options):
    options = {"num_workers": N, "gate": Abreast(N)} | options
    return gemjax.run_on_devices(tx, loss_fn, jnp.zeros(3), batches, num_commits, **options)


def assert_replays(result, tx=GEM, batches=STREAM, **options):
    again = run(result.trace, tx, batches, **options)
    assert_close(result.params, jax.device_get(again.params), rtol=1e-5)
    applied = result.history["applied"]
    np.testing.assert_array_equal(again.history["row"][-applied.sum() :], result.history["row"][applied])


def assert_nothing_skipped(draws, state):
    """Check that each batch was used by one commit, applied or not, or is still held by a worker."""
    held = np.asarray(state.draw.value)
    np.testing.assert_array_equal(np.sort(np.concatenate([draws, held])), np.arange(len(draws) + N))


@pytest.mark.slow
def test_a_run_on_devices_replays():
    result = on_devices()
    np.testing.assert_array_equal(result.history["row"], first_rows(result.history["draw"]))
    np.testing.assert_array_equal(result.trace.draw, gemjax.Trace(result.trace.worker, num_workers=N).draw)
    assert_nothing_skipped(result.history["draw"], result.state)
    assert_replays(result)


@pytest.mark.slow
def test_rejected_gradients_draw_too():
    result = on_devices(batches=SPOILT)
    assert int(result.state.rejected) > 2
    assert_nothing_skipped(result.history["draw"], result.state)
    assert (result.trace.draw > gemjax.Trace(result.trace.worker, num_workers=N).draw).any()
    assert_replays(result, batches=SPOILT)


@pytest.mark.slow
def test_dropped_gradients_draw_too():
    tx = gemjax.asynchronous(optax.chain(gemjax.rules.drop_stale(3), optax.sgd(0.05)), num_workers=N)
    result = on_devices(tx=tx, gate=Behind(N, 3, by=2))  # Six others commit before each of worker 3.
    assert int(result.state.dropped) > 2
    assert_nothing_skipped(result.history["draw"], result.state)
    assert_replays(result, tx)


@pytest.mark.slow
def test_a_worker_that_raises_repeats_its_batch():
    with Faults().fail(worker=2, step=1).fail(worker=0, step=3, times=2) as faults:
        result = on_devices(gate=Abreast(N, faults))
    assert len(faults.injected) == 3
    assert_nothing_skipped(result.history["draw"], result.state)
    assert_replays(result)


@pytest.mark.slow
def test_a_run_continued_on_devices_continues_the_stream():
    """There are rejected gradients before and after the stop; workers continue with the batches that they held."""
    begun = on_devices(20, batches=SPOILT)
    assert_nothing_skipped(begun.history["draw"], begun.state)
    rest = on_devices(40, batches=SPOILT, state=begun.state, recorded=begun.trace)
    assert_nothing_skipped(np.concatenate([begun.history["draw"], rest.history["draw"]]), rest.state)
    assert_replays(rest, batches=SPOILT)


@pytest.mark.slow
def test_a_replay_is_continued_on_devices():
    """The replay lacks the draws of rejected gradients; still no batch is used twice, and the trace is valid."""
    begun = on_devices(20, batches=SPOILT)
    assert int(begun.state.rejected) > 0
    replay = run(begun.trace, batches=SPOILT)
    rest = on_devices(60, batches=SPOILT, state=replay.state, recorded=begun.trace)
    assert rest.trace.first(20) == begun.trace
    assert_replays(rest, batches=SPOILT)
    again = on_devices(70, batches=SPOILT, state=rest.state, recorded=rest.trace)
    assert_replays(again, batches=SPOILT)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.nightly), N])
def test_a_run_on_devices_is_continued_in_the_simulator(workers):
    """Rejected gradients arrive, but have no row in the trace."""
    tx = gemjax.gem(0.05, num_workers=workers)
    begun = on_devices(20, tx, SPOILT, num_workers=workers, gate=Abreast(workers))
    assert int(begun.state.rejected) > 0
    columns = {name: list(getattr(begun.trace, name)) for name in ("worker", "pulled_at", "step", "time", "draw")}
    held = {name: np.array(getattr(begun.state, name).value) for name in ("pulled_at", "step", "draw")}
    for clock in range(20, 20 + 2 * workers):
        worker = clock % workers
        row = {"worker": worker, "time": begun.trace.time[-1] + clock} | {name: held[name][worker] for name in held}
        for name, column in columns.items():
            column.append(row[name])
        after = {"pulled_at": clock + 1, "step": held["step"][worker] + 1, "draw": held["draw"].max() + 1}
        for name, value in after.items():
            held[name][worker] = value
    trace = gemjax.Trace(**columns, num_workers=workers)
    rest, whole = run(trace, tx, SPOILT, state=begun), run(trace, tx, SPOILT)
    assert rest.trace == trace
    assert_close(rest.params, whole.params, rtol=1e-5)


def test_local_steps_on_a_stream_count_batches_beyond_32_bits():
    stream = gemjax.Stream({"x": np.arange(6.0)}, batch_size=1)
    batches = LocalBatches(stream, gemjax.LocalSteps(optax.sgd(0.1), 500))
    *_, rows = batches.select(np.zeros(1, np.int32), np.zeros(1, np.int32), np.array([5_000_000], np.int32))
    np.testing.assert_array_equal(rows[0], stream.select(None, None, 5_000_000 * 500 + np.arange(500)))
