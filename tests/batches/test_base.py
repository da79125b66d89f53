"""The base class of batch sources, and sources that do not derive from it."""

import jax.numpy as jnp
import numpy as np
import pytest
from engines.problems import Abreast, assert_close

import gemjax
from gemjax.batches import Batches, as_batches

N = 3
TEXT = np.sin(np.arange(60.0)).astype(np.float32)
TRACE = gemjax.arrivals.Gamma(N).trace(20)


def begins(worker, step):
    return ((7 * np.asarray(step) + np.asarray(worker)) % 50).astype(np.int32)


class Windows(Batches):
    """Batches of windows of a text, which are no rows."""

    data = TEXT

    def select(self, worker, step):
        return begins(worker, step)

    def batch(self, data, selection):
        return data[selection + jnp.arange(8)]


class Foreign:
    """The same batches without the base class."""

    data, select, batch = TEXT, Windows.select, Windows.batch


class SharedForeign(Foreign):
    shared, threads, num_workers = True, 2, N

    def select(self, worker, step, draw):
        return begins(worker, draw)

    def part(self, selection):
        return "host data", selection + 1


def loss_fn(params, batch):
    return jnp.mean((params - batch) ** 2)


def run(batches):
    return gemjax.simulate(gemjax.asgd(0.1, N), loss_fn, 0.0, batches, TRACE)


def test_a_source_gets_the_defaults_of_its_base():
    windows = Windows()
    assert (windows.shared, windows.threads, windows.num_workers) == (False, 0, None)
    assert windows.gather(3) == (None, 3)
    assert as_batches(windows, N) is windows


def test_a_method_that_a_source_lacks_is_named():
    class Unfinished(Batches):
        select = Windows.select

    with pytest.raises(TypeError, match=r"^Unfinished must define batch"):
        as_batches(Unfinished(), N)


def test_an_error_within_a_property_is_not_taken_for_a_missing_attribute():
    class Broken(Windows):
        @property
        def data(self):
            return self.txt

    with pytest.raises(AttributeError, match="'txt'"):
        as_batches(Broken(), N)


def test_a_source_without_the_base_is_adapted():
    adapted = as_batches(Foreign(), N)
    assert (adapted.shared, adapted.threads, adapted.num_workers) == (False, 0, None)
    assert adapted.data is TEXT
    assert adapted.gather(3) == (None, 3)
    np.testing.assert_array_equal(run(Foreign()).history["loss"], run(Windows()).history["loss"])


def test_an_adapted_source_keeps_what_it_has():
    adapted = as_batches(SharedForeign(), N)
    assert (adapted.shared, adapted.threads, adapted.num_workers) == (True, 2, N)
    assert adapted.gather(3) == ("host data", 4)
    with pytest.raises(ValueError, match="the batches were made with num_workers=3, but the run has 4 workers"):
        as_batches(SharedForeign(), N + 1)


@pytest.mark.slow
@pytest.mark.parametrize("source", [Windows, Foreign])
def test_both_run_on_devices(source):
    result = gemjax.run_on_devices(gemjax.asgd(0.1, N), loss_fn, 0.0, source(), 12, num_workers=N, gate=Abreast(N))
    again = gemjax.simulate(gemjax.asgd(0.1, N), loss_fn, 0.0, Windows(), result.trace)
    assert_close(float(result.params), float(again.params), rtol=1e-5)


def test_wrappers_have_the_properties_of_their_rows():
    stream = gemjax.Stream({"x": TEXT}, 4)
    shards = gemjax.Shards({"x": TEXT}, 4, N)
    assert (gemjax.OnHost(stream).shared, gemjax.OnHost(shards).shared) == (True, False)
    assert (gemjax.OnHost(stream).num_workers, gemjax.OnHost(shards).num_workers) == (None, N)
    source = gemjax.FromSource(TEXT.tolist(), gemjax.Stream(np.arange(60), 4))
    assert (source.shared, source.threads, source.data) == (True, 16, ())
    rows, places = source.part(np.array([[3, 1]]))
    np.testing.assert_array_equal(rows.astype(np.float32), TEXT[[3, 1]])
    np.testing.assert_array_equal(places, [[0, 1]])
