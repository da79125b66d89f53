"""Errors for data and ``batches=`` that cannot be used, with the alternative."""

import jax.numpy as jnp
import numpy as np
import pytest

import gemjax
from gemjax.batches.rows import Rows, as_batches
from gemjax.protocol.compat import enable_x64

X = np.zeros((6, 3), np.float32)


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
        with pytest.raises(TypeError, match="an iterator gives each batch once"):
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
