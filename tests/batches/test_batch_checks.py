"""Errors for data and ``batches=`` that cannot be used, with the alternative."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gemjax
from gemjax.batches.rows import Rows, as_batches
from gemjax.protocol.compat import enable_x64

X = np.zeros((6, 3), np.float32)


class MapStyle:
    """A dataset like PyTorch's Dataset, Grain's MapDataset and TFDS's data sources."""

    def __len__(self):
        return 6

    def __getitem__(self, number):
        return X[number]


class HuggingFace(MapStyle):
    """A dataset whose methods have the names of those of batches, but other meanings."""

    shape = (6, 3)

    def data(self):
        raise AssertionError

    select = batch = with_format = data


class Iterable:
    """An iterable like tf.data.Dataset, Grain's IterDataset and DataLoader, PyTorch's IterableDataset."""

    def __iter__(self):
        return iter([X])


class Loader(Iterable):
    """A loader like PyTorch's DataLoader."""

    dataset = MapStyle()

    def __len__(self):
        return 1


class Frame(MapStyle):
    """A table like pandas.DataFrame."""

    shape, dtypes, columns = (6, 3), "one a column", "xyz"


class Tensor(MapStyle):
    """A tensor like torch.Tensor."""

    shape, dtype = (6, 3), "torch.float32"


def generator():
    yield X


ITERATOR = (
    "an iterator gives each batch once, but a run can be replayed and resumed only if any batch can be computed again"
)
REFUSED = {
    "generator": (generator(), f"got generator: {ITERATOR}.*gemjax.Epochs.*gemjax.FromSource"),
    "generator function": (generator, f"got function that yields: {ITERATOR}.*gemjax.Epochs.*gemjax.FromSource"),
    "iterator": (iter([X]), f"got list_iterator: {ITERATOR}.*gemjax.Epochs.*gemjax.FromSource"),
    "iterable": (Iterable(), f"got Iterable: {ITERATOR}.*gemjax.Epochs.*gemjax.FromSource"),
    "loader": (Loader(), rf"got Loader: {ITERATOR}.*gemjax.FromSource\(loader.dataset"),
    "list": ([X, X], r"got list; .* which batch a worker takes at which step.*gemjax.Epochs\(data, batch_size\)"),
    "dict": ({"x": X}, r"got dict; .*give gemjax.Epochs\(data, batch_size\)"),
    "tuple": ((X, X), r"got tuple; .*give gemjax.Epochs\(data, batch_size\)"),
    "array": (X, r"got ndarray; .*give gemjax.Epochs\(data, batch_size\)"),
    "frame": (Frame(), r"got Frame; .*give gemjax.Epochs\(data, batch_size\)"),
    "dataset": (MapStyle(), r"got MapStyle, .*give gemjax.FromSource\(dataset, batch_size"),
    "Hugging Face": (HuggingFace(), r"got HuggingFace, .*give gemjax.FromSource\(dataset, batch_size"),
    "splits": ({"train": HuggingFace()}, r"got dict of splits; .*gemjax.FromSource\(dataset\['train'\]"),
    "class": (gemjax.Epochs, "got the class Epochs; call it"),
    "name": ("digits", "got str$"),
}


@pytest.mark.parametrize(("wrong", "message"), REFUSED.values(), ids=REFUSED)
def test_wrong_batches_are_refused_with_an_alternative(wrong, message):
    with pytest.raises(TypeError, match=rf"batches must be a function \(worker, step\) -> batch .*{message}"):
        as_batches(wrong, 2)


def test_iterators_are_not_consumed():
    given = iter([1, 2])
    with pytest.raises(TypeError, match="iterator"):
        as_batches(given, 2)
    assert list(given) == [1, 2]


def test_grain_is_recognised():
    grain = pytest.importorskip("grain", reason="Grain is not installed")
    dataset = grain.MapDataset.source(X)
    loader = grain.DataLoader(
        data_source=X, sampler=grain.samplers.IndexSampler(6, grain.sharding.NoSharding(), num_epochs=1, seed=0)
    )
    for iterator in (dataset.to_iter_dataset(), iter(dataset.to_iter_dataset()), loader):
        with pytest.raises(TypeError, match=ITERATOR):
            as_batches(iterator, 2)
    with pytest.raises(TypeError, match=r"got SourceMapDataset, .*gemjax.FromSource"):
        as_batches(dataset, 2)


class Own(Rows):
    """Batches that are also a sequence."""

    data = X

    def select(self, worker, step):
        return np.zeros((len(worker), 1), np.int32)

    def __len__(self):
        return 6

    def __getitem__(self, number):
        return X[number]


def test_batches_may_have_a_length_and_items():
    own = Own()
    assert as_batches(own, 2) is own


class Indexed:
    """A function of worker and step that is also a sequence."""

    def __call__(self, worker, step):
        return jnp.zeros(2) + step

    def __len__(self):
        return 6

    def __getitem__(self, number):
        return X[number]


def test_a_callable_object_may_have_a_length_and_items():
    assert isinstance(as_batches(Indexed(), 2), gemjax.Computed)


ARRAYS = "the leaves of the data must be NumPy or JAX arrays, but"
DATA = {
    "tensor": ({"x": Tensor()}, rf"{ARRAYS} \['x'\] is of the type Tensor; np.asarray"),
    "frame": (Frame(), rf"{ARRAYS} the data is of the type Frame; give {{name: frame\[name\].to_numpy\(\)"),
    "dataset": (MapStyle(), rf"{ARRAYS} the data is of the type MapStyle; gemjax.FromSource"),
    "loader": (Loader(), rf"{ARRAYS} the data is of the type Loader; gemjax.FromSource"),
    "lists": ([[1.0, 2.0], [3.0, 4.0]], rf"{ARRAYS} \[0\]\[0\] is of the type float; np.asarray"),
    "string": ({"x": X, "name": "train"}, rf"{ARRAYS} \['name'\] is of the type str; encode it"),
    "strings": ({"x": X, "s": np.array(["a"] * 6)}, r"numbers only, but \['s'\] is an array of <U1; encode it"),
    "masked": (
        {"m": np.ma.masked_less(np.arange(6.0), 2.0)},
        r"\['m'\] is a masked array, and a batch has no mask; give",
    ),
    "objects": (np.array([None] * 6), "numbers only, but the data is an array of object; encode it"),
    "wrong order": (2, r"the data come first and the batch size second, gemjax.Epochs\(data, batch_size\); got 2"),
}


@pytest.mark.parametrize("make", [gemjax.Epochs, gemjax.Stream, lambda *given: gemjax.Shards(*given, num_workers=2)])
@pytest.mark.parametrize(("data", "message"), DATA.values(), ids=DATA)
def test_data_that_devices_cannot_take_are_refused(make, data, message):
    with pytest.raises(TypeError, match=message):
        make(data, 2)


@pytest.mark.parametrize(
    "make", [gemjax.Epochs, gemjax.Stream, lambda *given: gemjax.Shards(*given[:2], 2, *given[2:])]
)
@pytest.mark.parametrize(
    ("batch_size", "seed", "message"),
    [
        (2.0, 0, "batch_size must be an int, got 2.0"),
        ("2", 0, "batch_size must be an int, got '2'"),
        (2, 0.5, "seed must be an int, got 0.5"),
        (2, jax.random.key(0), "seed must be an int, got Array"),
    ],
)
def test_sizes_and_seeds_are_ints(make, batch_size, seed, message):
    with pytest.raises(TypeError, match=message):
        make(X, batch_size, seed)


@pytest.mark.parametrize("dtype", [np.float16, np.uint8, bool, np.complex64, jnp.bfloat16])
def test_all_numbers_are_data(dtype):
    assert gemjax.Epochs({"x": X.astype(dtype), "y": jnp.asarray(X, dtype)}, np.int64(2)).batch_size == 2


WIDE = np.arange(2**40, 2**40 + 8)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: gemjax.Epochs({"id": WIDE}, 2),
        lambda path: gemjax.OnHost(gemjax.Epochs({"id": WIDE}, 2)),
        lambda path: gemjax.OnHost(gemjax.Epochs({"id": on_disk(path, WIDE)}, 2)),
        lambda path: gemjax.Epochs({"id": on_disk(path, WIDE)}, 2),
        lambda path: gemjax.FromSource([{"id": int(number)} for number in WIDE], batch_size=2),
    ],
    ids=["memory", "host", "file on the host", "file", "source"],
)
def test_integers_that_jax_would_take_for_others_are_refused(make, tmp_path):
    """Numbers of rows in a table of embeddings, for example."""
    loss_fn, tx = lambda params, batch: (params - batch["id"].sum()) ** 2, gemjax.asgd(0.1, 2)
    message = r"\['id'\] has the integer 10995116277\d\d, which does not fit into JAX's int32; .*jax_enable_x64"
    with pytest.raises((TypeError, ValueError), match=message):
        gemjax.simulate(tx, loss_fn, 0.0, make(tmp_path), gemjax.arrivals.Gamma(2).trace(4))
    with pytest.raises((TypeError, ValueError), match=message):
        gemjax.run_on_devices(tx, loss_fn, 0.0, make(tmp_path), 4)
    with enable_x64(True):
        assert gemjax.simulate(tx, loss_fn, 0.0, make(tmp_path), gemjax.arrivals.Gamma(2).trace(1)).params != 0


class Unrelated:
    """A source of a class of its own."""

    def __init__(self, data):
        self.data = data

    def select(self, worker, step):
        return (step % 4).astype(np.int32)

    def batch(self, data, selection):
        return data[selection].astype(jnp.float32)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (WIDE, "data has the integer 10995116277.., which does not fit into JAX's int32"),
        (np.ma.masked_array(np.ones(8), mask=True), "data is a masked array, and a batch has no mask"),
        (np.array(["a", "b", "c", "d"]), "devices take numbers only, but data is an array of <U1"),
        (np.ones(4, np.longdouble), "data is of float128, and JAX has floats of 64 bits at most"),
    ],
    ids=["wide", "masked", "text", "long"],
)
def test_data_of_any_class_are_checked(data, message):
    loss_fn, trace = lambda params, batch: (params - batch) ** 2, gemjax.arrivals.Gamma(2).trace(4)
    with pytest.raises(TypeError, match=message):
        gemjax.simulate(gemjax.asgd(0.1, 2), loss_fn, 0.0, Unrelated(data), trace)


class Gathering(Unrelated):
    """A source of a class of its own that gathers its data on the host."""

    def gather(self, selection):
        return np.float32(self.data[selection] - 2**40 + 10), np.arange(len(selection), dtype=np.int32)


def test_a_class_of_any_base_may_gather_its_data_itself():
    problem = gemjax.asgd(0.1, 2), lambda params, batch: (params - batch) ** 2, 0.0
    trace = gemjax.arrivals.Gamma(2).trace(8)
    expected = gemjax.simulate(*problem, lambda worker, step: 10.0 + step % 4, trace)
    assert gemjax.simulate(*problem, Gathering(WIDE), trace).params == expected.params


def on_disk(path, array):
    np.save(path / "array.npy", array)
    return np.load(path / "array.npy", mmap_mode="r")


class Single(gemjax.batches.Batches):
    """Its select was written for one batch."""

    data = np.arange(100.0)

    def select(self, worker, step):
        return np.array([7 * int(step[0]) + int(worker[0])])

    def batch(self, data, selection):
        return data[selection]


class Keyed(gemjax.batches.Batches):
    data = ()

    def select(self, worker, step):
        return jax.vmap(jax.random.key)(jnp.asarray(step))

    def batch(self, data, selection):
        return jax.random.normal(selection)


@pytest.mark.parametrize("engine", ["simulate", "devices"])
@pytest.mark.parametrize(
    ("batches", "found"),
    [
        (
            Single(),
            r"select returned an array of shape \(1,\) for \d+ batches; each array must have one entry per batch",
        ),
        (Keyed(), r"select returned random keys, which the host cannot read; return jax\.random\.key_data"),
    ],
    ids=["one", "keys"],
)
def test_selections_of_ones_own_are_checked(engine, batches, found):
    """The simulator repeated the one entry for all arrivals of a chunk; on devices it was right."""
    problem = gemjax.asgd(0.1, num_workers=2), lambda params, batch: (params - batch) ** 2, jnp.zeros([]), batches
    if engine == "devices" and isinstance(batches, Single):
        assert len(gemjax.run_on_devices(*problem, 4).trace) == 4
        return
    start = gemjax.simulate if engine == "simulate" else gemjax.run_on_devices
    with pytest.raises(ValueError, match=found):
        start(*problem, gemjax.arrivals.RoundRobin(2).trace(6) if engine == "simulate" else 4)


def test_raw_bytes_are_no_numbers():
    with pytest.raises(TypeError, match=r"devices take numbers only, but .* is an array of \|V4"):
        gemjax.Epochs(np.zeros(8, "V4"), 2)
    records = np.rec.fromarrays([np.zeros(8), np.ones(8)], names="x,y")  # As those of a pandas.DataFrame.
    with pytest.raises(TypeError, match="devices take numbers only, but"):
        gemjax.Epochs(records, 2)
