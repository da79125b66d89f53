"""Rows that are read when needed give the same run, and no worker waits for the rows of another."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import Abreast, assert_same_bits, late

import gemjax
from gemjax import FromSource
from gemjax.batches.base import RowsError
from gemjax.batches.from_source import read_rows
from gemjax.batches.rows import Rows

N, ROWS = 4, 30
DATA = {"row": np.arange(ROWS), "x": np.sin(np.arange(64.0 * ROWS)).reshape(ROWS, 64)}
NUMBERS = np.arange(ROWS)
START = jnp.zeros(64)
GEM = gemjax.gem(0.05, num_workers=N)
LATE = late()
KINDS = {
    "epochs": lambda data: gemjax.Epochs(data, 4, seed=1),
    "shards": lambda data: gemjax.Shards(data, 3, N, seed=1, labels=DATA["row"] % 3, concentration=20.0),
    "stream": lambda data: gemjax.Stream(data, 4, seed=1),
}
every_kind = pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=() if name == "stream" else pytest.mark.nightly)
        for name, make in KINDS.items()
    ],
)


class Source:
    """A source of single rows; ``at(number)`` is called before each, and may block or raise."""

    def __init__(self, at=lambda number: None):
        self.at, self.read = at, []

    def __len__(self):
        return ROWS

    def __getitem__(self, number):
        self.read.append(number)
        self.at(number)
        return jax.tree.map(lambda column: column[number], DATA)


class Whole(Source):
    """A source of all rows of a batch at a time, like TFDS's and Grain's data sources."""

    def __getitems__(self, numbers):
        return [self[number] for number in numbers]


def loss_fn(params, batch):
    return 0.1 * jnp.mean(jnp.sum((params[None] - jnp.sin(batch["x"])) ** 2, 1)) + 0.0 * batch["row"].sum()


def simulate(batches, tx=GEM, trace=LATE, **options):
    return gemjax.simulate(tx, loss_fn, START, batches, trace, **options)


def on_devices(batches, num_commits=24, tx=GEM, num_workers=N, **options):
    return gemjax.run_on_devices(tx, loss_fn, START, batches, num_commits, num_workers=num_workers, **options)


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize(
    ("kind", "threads"),
    [(Source, 16), (Whole, 1), *(pytest.param(*one, marks=pytest.mark.nightly) for one in [(Source, 1), (Whole, 16)])],
)
def test_a_simulation_is_that_of_rows_in_memory(make, kind, threads):
    found = simulate(FromSource(kind(), make(NUMBERS), threads), callback_every=7)
    expected = simulate(make(DATA), callback_every=7)
    assert_same_bits(found.state, expected.state)
    np.testing.assert_array_equal(found.history["loss"], expected.history["loss"])


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.nightly), 16])
def test_a_run_on_devices_replays_with_rows_in_memory(make, threads):
    """Every worker therefore has its own rows, regardless of prefetching."""
    found = on_devices(FromSource(Whole(), make(NUMBERS), threads), gate=Abreast(N))
    replay = simulate(make(DATA), trace=found.trace)
    np.testing.assert_allclose(found.params, replay.params, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.history["loss"], replay.history["loss"], rtol=1e-5)


@pytest.mark.parametrize("kind", ["epochs", pytest.param("stream", marks=pytest.mark.nightly)])
@pytest.mark.slow
def test_local_steps(kind):
    local, tx = gemjax.LocalSteps(optax.sgd(0.1), 2), gemjax.downpour(num_workers=N)
    source = FromSource(Source(), KINDS[kind](NUMBERS))
    found = on_devices(source, tx=tx, local=local, num_commits=16)
    replay = simulate(KINDS[kind](DATA), tx=tx, local=local, trace=found.trace)
    np.testing.assert_allclose(found.params, replay.params, rtol=1e-5, atol=1e-6)


class Own(Rows):
    """Batches in which worker w reads row w alone."""

    data = NUMBERS

    def select(self, worker, step):
        return np.asarray(worker, np.int32)[:, None]


@pytest.mark.slow
def test_a_worker_with_late_rows_does_not_delay_others():
    """Row 1 is given twice, and then blocked until the three others have made twenty commits; then they wait for it."""
    enough, given = threading.Event(), []

    def at(number):
        if number == 1:
            given.append(number)
            if len(given) > 2:
                assert enough.wait(60)

    def callback(progress):
        if np.sum(progress.trace().worker != 1) >= 20:
            enough.set()

    gate = Abreast(N, lost=lambda worker, step: worker == 1 and not enough.is_set())
    found = on_devices(FromSource(Source(at), Own()), num_commits=40, callback=callback, callback_every=1, gate=gate)
    assert enough.is_set()
    workers = found.trace.worker
    assert (np.bincount(workers, minlength=N) > 0).all()
    assert np.sum(workers[: np.flatnonzero(workers != 1)[19]] == 1) <= 2


def test_rows_are_read_while_their_worker_computes():
    """The gradient of step 0 is held back until the rows of step 1 have been requested."""
    asked = threading.Event()
    source = Source(lambda number: asked.set() if len(source.read) > 8 else None)  # Shapes; the first batch; the next.

    def gate(worker, step):
        assert asked.wait(60)

    batches = FromSource(source, KINDS["epochs"](NUMBERS))
    on_devices(batches, tx=gemjax.asgd(0.1), num_commits=3, num_workers=1, gate=gate)
    rows = KINDS["epochs"](NUMBERS).select(np.zeros(4, int), np.array([0, 0, 1, 2])).ravel()
    assert source.read[:16] == rows.tolist()


def broken(number):
    if number == 17:
        raise OSError("the disk is gone")


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", [pytest.param(1, marks=pytest.mark.nightly), 5, pytest.param(40, marks=pytest.mark.nightly)]
)
def test_one_failed_read_is_harmless_at_any_time(first):
    """Reads for compilation, before the run begins, may fail as well."""
    source = Source(lambda number: broken(17) if len(source.read) == first else None)
    found = on_devices(FromSource(source, KINDS["epochs"](NUMBERS)))
    assert len(found.trace) == 24
    replay = simulate(KINDS["epochs"](DATA), trace=found.trace)
    np.testing.assert_allclose(found.params, replay.params, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("run", [simulate, on_devices])
@pytest.mark.parametrize("kind", [Source, Whole])
def test_a_row_that_cannot_be_read_is_named(run, kind):
    with pytest.raises(RuntimeError, match=r"row 17 of the source cannot be read: OSError: the disk is gone") as raised:
        run(FromSource(kind(broken), KINDS["epochs"](NUMBERS)))
    # On devices the read is retried, and its worker retired; then the same happens to the other workers.
    error = raised.value.__cause__ if isinstance(raised.value, gemjax.RunFailedError) else raised.value
    assert isinstance(error.__cause__, OSError)


class Unlike(Source):
    """Row 17 differs from the others."""

    def __init__(self, other):
        super().__init__()
        self.other = other

    def __getitem__(self, number):
        row = super().__getitem__(number)
        return self.other(row) if number == 17 else row


UNLIKE = {
    "shape": (
        lambda row: row | {"x": row["x"][:1]},  # Broadcast by the loss.
        r"row 17 of the source is .*'x': ShapeDtypeStruct\(shape=\(1,\)",
    ),
    "dtype": (
        lambda row: row | {"x": np.ones(64, np.int32)},
        r"row 17 of the source is .*'x': ShapeDtypeStruct\(shape=\(64,\), dtype=int32\)",
    ),
    "structure": (
        lambda row: row | {"y": 1.0},
        r"row 17 of the source is .*'y'.*, but row \d+ is ",
    ),
}


@pytest.mark.parametrize("make", [lambda batches: simulate(batches, callback_every=1), simulate, on_devices])
@pytest.mark.parametrize("kind", UNLIKE)
def test_a_row_unlike_those_of_earlier_batches_ends_the_run(kind, make):
    """Each batch is one row, so rows differ only between batches."""
    other, words = UNLIKE[kind]
    order = gemjax.Stream(NUMBERS, 1, seed=1)
    assert order.select(np.zeros(1, int), np.zeros(1, int), np.zeros(1, int)).item() != 17
    source = Unlike(other)
    with pytest.raises(RowsError, match=f"^{words}") as raised:
        make(FromSource(source, order))
    if make is on_devices:
        assert source.read.count(17) == 1  # A retry would read the same.
        assert len(raised.value.result.trace) < 24


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_a_batch_size_means_epochs(seed):
    found, expected = (
        FromSource(Source(), batch_size=4, seed=seed),
        FromSource(Source(), gemjax.Epochs(NUMBERS, 4, seed or 0)),
    )
    worker, step = np.arange(20) % 3, np.arange(20)
    np.testing.assert_array_equal(found.select(worker, step), expected.select(worker, step))
    assert found.batches.seed == (seed or 0)


class Column:
    """A source of rows of an array, all of a batch at a time; an array takes a tuple for one index per axis."""

    def __len__(self):
        return ROWS

    def __getitem__(self, number):
        raise OSError("read rows by __getitems__")

    def __getitems__(self, numbers):
        return NUMBERS[numbers]


def test_a_source_gets_a_list_of_the_row_numbers_of_a_batch():
    batches = FromSource(Column(), batch_size=3)
    np.testing.assert_array_equal(batches.gather(np.array([[4, 1, 7]]))[0], [4, 1, 7])


def test_images_are_decoded():
    pillow = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    rows = [{"image": pillow.fromarray(np.full((4, 5, 3), shade, np.uint8))} for shade in range(2)]
    np.testing.assert_array_equal(read_rows(rows, [1, 0])["image"], np.stack([np.full((4, 5, 3), s) for s in (1, 0)]))


def test_a_data_source_of_tfds_is_read(tmp_path):
    """Its shapes and types are those of MNIST, its pixels random."""
    tfds = pytest.importorskip("tensorflow_datasets", reason="TFDS is not installed")
    with tfds.testing.mock_data(num_examples=10):
        source = tfds.data_source("mnist", split="train", data_dir=tmp_path)
        rows, places = (batches := FromSource(source, batch_size=3)).gather(
            batches.select(np.arange(2), np.zeros(2, int))
        )
    assert (rows["image"].shape, rows["image"].dtype, places.tolist()) == (
        (6, 28, 28, 1),
        np.uint8,
        [[0, 1, 2], [3, 4, 5]],
    )
    assert rows["label"].shape == (6,)


class OwnOfAll(gemjax.batches.Rows):
    """A shared sequence from which each worker takes rows of its own."""

    shared = True

    def __init__(self, data):
        self.data = data

    def select(self, worker, step, draw):
        return ((3 * (2 * draw[:, None] + np.arange(2)) + worker[:, None] + step[:, None]) % len(self.data)).astype(
            np.int32
        )


def test_rows_of_a_shared_sequence_may_depend_on_the_worker_and_its_step():
    loss_fn = lambda params, batch: jnp.mean((params - batch) ** 2)
    source = gemjax.FromSource(NUMBERS.astype(np.float32), OwnOfAll(np.arange(len(NUMBERS))))
    tx = gemjax.asgd(0.1, num_workers=3)
    result = gemjax.run_on_devices(tx, loss_fn, jnp.zeros(()), source, 40)
    whole = gemjax.simulate(tx, loss_fn, jnp.zeros(()), OwnOfAll(NUMBERS.astype(np.float32)), result.trace)
    np.testing.assert_allclose(result.history["loss"], whole.history["loss"], rtol=1e-5)
