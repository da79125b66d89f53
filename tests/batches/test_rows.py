"""Batches: a pure function of (worker, step) or of the draw, on the host and on the device."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax
from gemjax.batches.functions import Computed
from gemjax.batches.rows import Epochs, Stream, as_batches

DATA = {"x": np.arange(46.0).reshape(23, 2), "y": np.arange(23)}


def epoch_of(epochs, worker, epoch):
    steps = epochs.steps_per_epoch * epoch + np.arange(epochs.steps_per_epoch)
    return epochs.select(np.full(len(steps), worker), steps)


@pytest.mark.parametrize("batch_size", [1, 5, 23])
@pytest.mark.parametrize("worker", [0, 7])
@pytest.mark.parametrize("epoch", [0, 3])
def test_an_epoch_takes_no_row_twice(batch_size, worker, epoch):
    epochs = Epochs(DATA, batch_size)
    rows = epoch_of(epochs, worker, epoch)
    assert rows.shape == (23 // batch_size, batch_size)
    assert len(np.unique(rows)) == rows.size
    assert set(np.unique(rows)) <= set(range(23))
    if 23 % batch_size == 0:
        np.testing.assert_array_equal(np.sort(rows.ravel()), np.arange(23))


def test_over_epochs_every_row_is_used():
    """The rows left out beyond the last full batch differ from epoch to epoch."""
    epochs = Epochs(DATA, 10)
    seen = np.concatenate([epoch_of(epochs, 0, epoch).ravel() for epoch in range(12)])
    assert set(seen) == set(range(23))


def test_any_batch_can_be_recomputed():
    """Neither the order of calls nor the object matters."""
    first, again = Epochs(DATA, 4, seed=3), Epochs(DATA, 4, seed=3)
    in_order = first.select(np.full(30, 2), np.arange(30))
    for step in (29, 0, 17, 17, 5):
        np.testing.assert_array_equal(again.select(np.array([2]), np.array([step])), in_order[step : step + 1])


def test_workers_epochs_and_seeds_shuffle_differently():
    orders = [
        epoch_of(Epochs(DATA, 23, seed), worker, epoch).tobytes()
        for seed in (0, 1)
        for worker in (0, 1)
        for epoch in (0, 1)
    ]
    assert len(set(orders)) == len(orders)


def test_one_row_and_many_rows_select_the_same():
    epochs = Epochs(DATA, 4)
    worker, step = np.array([0, 1, 0, 2, 1, 0]), np.array([0, 7, 1, 12, 5, 6])
    together = epochs.select(worker, step)
    assert together.dtype == np.int32
    for i in range(len(worker)):
        one = epochs.select(worker[i : i + 1], step[i : i + 1])
        assert one.dtype == np.int32
        np.testing.assert_array_equal(one, together[i : i + 1])


def test_the_batch_holds_the_selected_rows_of_every_array():
    epochs = Epochs(DATA, 4)
    selection = epochs.select(np.array([1]), np.array([3]))[0]
    batch = jax.jit(epochs.batch)(epochs.data, selection)
    np.testing.assert_array_equal(batch["y"], DATA["y"][selection])
    np.testing.assert_array_equal(batch["x"], DATA["x"][selection])


def test_a_function_becomes_batches():
    batches = as_batches(lambda worker, step: 10 * worker + step, 2)
    selection = batches.select(np.array([3, 4]), np.array([1, 2]))
    assert isinstance(batches, Computed)
    assert batches.batch(batches.data, jax.tree.map(lambda column: column[1], selection)) == 42


def test_the_same_function_makes_equal_batches():
    """A second run with it therefore finds the compiled program of the first."""

    def fn(worker, step):
        return jnp.float32(worker + step)

    assert as_batches(fn, 2) == as_batches(fn, 2)
    assert hash(as_batches(fn, 2)) == hash(as_batches(fn, 2))
    assert as_batches(fn, 2) != as_batches(lambda worker, step: 0, 2)


def test_every_worker_goes_through_the_data_in_a_run():
    """The engine selects exactly the steps of the trace: two epochs of two workers use every row four times."""
    epochs = Epochs({"row": np.eye(6, dtype=np.float32)}, batch_size=3)
    trace = gemjax.arrivals.RoundRobin(2).trace(8)
    result = gemjax.simulate(
        gemjax.asgd(1.0, num_workers=2),
        lambda params, batch: -jnp.sum(params * batch["row"].sum(0)),
        jnp.zeros(6),
        epochs,
        trace,
    )
    np.testing.assert_array_equal(result.params, np.full(6, 4.0))


# --- Stream


def drawn(stream, draws):
    """Return the rows of the batches, which do not depend on worker and step."""
    worker = np.arange(len(draws)) % 5
    return stream.select(worker, 7 * worker, np.asarray(draws))


@pytest.mark.parametrize("batch_size", [1, 5, 23])
def test_an_epoch_of_the_stream_takes_no_row_twice(batch_size):
    stream = Stream(DATA, batch_size)
    for epoch in (0, 3):
        rows = drawn(stream, epoch * stream.steps_per_epoch + np.arange(stream.steps_per_epoch))
        assert rows.dtype == np.int32
        assert rows.shape == (23 // batch_size, batch_size)
        assert len(np.unique(rows)) == rows.size
        assert set(np.unique(rows)) <= set(range(23))


def test_over_epochs_the_stream_uses_every_row():
    assert set(drawn(Stream(DATA, 10), np.arange(24)).ravel()) == set(range(23))


def test_any_batch_of_the_stream_can_be_recomputed():
    """Neither the order of draws nor the object matters."""
    one, other = Stream(DATA, 4, seed=3), Stream(DATA, 4, seed=3)
    order = np.random.default_rng(0).integers(0, 60, 50)
    together = drawn(one, order)
    for draw, rows in zip(order[::-1], together[::-1], strict=True):
        np.testing.assert_array_equal(drawn(other, [draw])[0], rows)


def test_epochs_and_seeds_of_the_stream_shuffle_differently():
    orders = [drawn(Stream(DATA, 23, seed), [epoch]).tobytes() for seed in (0, 1) for epoch in (0, 1, 2)]
    assert len(set(orders)) == len(orders)


class Beyond(gemjax.batches.Rows):
    """Row 3; from step 2 on another one beside it."""

    data = np.arange(40.0)

    def __init__(self, row):
        self.row = row

    def select(self, worker, step):
        rows = np.where(step >= 2, self.row, 3)
        return np.stack([np.full_like(rows, 3), rows], 1).astype(np.int32)


@pytest.mark.slow
@pytest.mark.parametrize("row", [-1, pytest.param(40, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    "local",
    [None, pytest.param(gemjax.LocalSteps(optax.sgd(0.1), 2), marks=pytest.mark.nightly)],
    ids=["gradients", "local steps"],
)
@pytest.mark.parametrize(
    "wrap", [lambda rows: rows, gemjax.OnHost, lambda rows: gemjax.FromSource(range(40), rows)], ids=["", "host", "source"]
)  # fmt: skip
def test_a_row_that_the_data_lack_is_refused_by_every_engine(row, local, wrap):
    """JAX would clip it, NumPy count from the end, and a source fault until its worker is retired."""
    tx = gemjax.asgd(0.1, num_workers=3) if local is None else gemjax.downpour(num_workers=3)
    loss_fn, trace = lambda params, batch: (params - batch.mean()) ** 2, gemjax.arrivals.RoundRobin(3).trace(12)
    message = rf"^the rows of worker [012] at its step 2 must be in 0 … 39, got {row}; correct Beyond.select; .* % 40$"
    with pytest.raises(ValueError, match=message):
        gemjax.simulate(tx, loss_fn, 0.0, wrap(Beyond(row)), trace, local=local)
    with pytest.raises(ValueError, match=message):
        gemjax.run_on_devices(tx, loss_fn, jnp.zeros(()), wrap(Beyond(row)), 30, local=local)
    assert np.isfinite(gemjax.simulate(tx, loss_fn, 0.0, wrap(Beyond(39)), trace, local=local).params)


class OnDisk(gemjax.batches.Rows):
    """Rows that the class gathers itself, of numbers of its own."""

    store, data = np.sin(np.arange(40.0)), {"number": np.arange(2**40, 2**40 + 40)}

    def select(self, worker, step):
        return (self.data["number"][0] + (7 * step + worker) % 40)[:, None]

    def gather(self, selection):
        numbers = selection.ravel() - self.data["number"][0]
        return {"x": self.store[numbers]}, np.arange(selection.size, dtype=np.int32).reshape(selection.shape)


def test_a_class_may_gather_rows_that_are_not_its_data():
    tx, loss_fn = gemjax.asgd(0.1, 3), lambda params, batch: (params - batch["x"].mean()) ** 2
    result = gemjax.run_on_devices(tx, loss_fn, 0.0, OnDisk(), 30)
    np.testing.assert_allclose(
        gemjax.simulate(tx, loss_fn, 0.0, OnDisk(), result.trace).params, result.params, rtol=1e-6
    )
