"""Functions of batches: two arguments, traceable, and not frozen by compilation; integers that JAX would cut."""

import functools
import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import gemjax
from gemjax.batches.functions import Computed
from gemjax.batches.rows import as_batches
from gemjax.protocol.compat import enable_x64

X = np.arange(100.0, dtype=np.float32).reshape(50, 2)
ON_DEVICE = jnp.asarray(X)
KEY = jax.random.key(0)


COUNT = itertools.count()


def drawn(size):
    """Return other rows at each call, like random numbers."""
    return (next(COUNT) + np.arange(size)) % 50


def frozen_by_class():
    class Batches:
        def __call__(self, worker, step):
            return X[drawn(16)]

    return Batches()


def from_iterator():
    batches = iter(np.arange(20.0, dtype=np.float32).reshape(10, 2))
    return lambda worker, step: next(batches)


FROZEN = {
    "rows of NumPy": lambda: lambda worker, step: X[drawn(16)],
    "rows of JAX": lambda: lambda worker, step: jnp.take(ON_DEVICE, jnp.asarray(drawn(16)), axis=0),
    "a slice": lambda: lambda worker, step: ON_DEVICE[next(COUNT) % 50],
    "a number": lambda: lambda worker, step: float(next(COUNT)),
    "half of it": lambda: lambda worker, step: jnp.take(ON_DEVICE, worker + next(COUNT), axis=0),
    "a key": lambda: lambda worker, step: jax.random.normal(jax.random.key(next(COUNT)), 16),
    "iterator": from_iterator,
    "jitted": lambda: jax.jit(lambda worker, step: X[drawn(16)]),
    "in a loop": lambda: (
        lambda worker, step: jax.lax.fori_loop(0, step, lambda i, x: x + X[drawn(16)], jnp.zeros((16, 2)))
    ),
    "in a jitted function": lambda: lambda worker, step: jax.jit(lambda step: step + X[drawn(16)])(step),
    "callable object": frozen_by_class,
}


@pytest.mark.parametrize("make", FROZEN.values(), ids=FROZEN)
def test_data_drawn_on_the_host_are_warned_about(make):
    with pytest.warns(
        gemjax.BatchesWarning, match="returned other data when it was traced again: .*jax.random.*gemjax.Epochs"
    ):
        as_batches(make(), 2)


CONSTANT = {
    "NumPy": lambda: lambda worker, step: {"x": X[:20]},
    "JAX": lambda: lambda worker, step: jnp.sin(ON_DEVICE),
    "unused": lambda: lambda worker, step: (step + worker, ON_DEVICE)[1],
}


@pytest.mark.parametrize("make", CONSTANT.values(), ids=CONSTANT)
def test_one_batch_for_the_whole_run_is_warned_about(make):
    with pytest.warns(
        gemjax.BatchesWarning, match="depends neither on worker nor on step.*gemjax.Epochs.*gemjax.Computed"
    ):
        as_batches(make(), 2)


def normal(shape, worker, step):
    return jax.random.normal(jax.random.fold_in(jax.random.fold_in(KEY, worker), step), shape)


def rows_of_a_worker(worker, step):
    return jax.vmap(lambda row: ON_DEVICE[row])((16 * worker + step + jnp.arange(16)) % 50)


def with_a_callback(worker, step):
    """Return rows by a callback, so that the jaxpr contains the address of a Python function."""
    return jax.pure_callback(
        lambda step: X[int(step) : int(step) + 16], jax.ShapeDtypeStruct((16, 2), np.float32), step
    )


def from_the_host(worker, step):
    """Return rows that depend on neither argument, but may differ between calls."""
    return io_callback(lambda: X[drawn(16)], jax.ShapeDtypeStruct((16, 2), np.float32))


def purely_from_the_host(worker, step):
    call = lambda: jax.pure_callback(lambda: X[drawn(16)], jax.ShapeDtypeStruct((16, 2), np.float32))
    return jax.jit(call)()


FINE = {
    "from the host": from_the_host,
    "purely from the host": purely_from_the_host,
    "random": functools.partial(normal, (16, 2)),
    "rows": rows_of_a_worker,
    "of the worker": lambda worker, step: ON_DEVICE[:20] * worker,
    "callback": with_a_callback,
    "a target": lambda worker, step: jnp.array([1.0, 2.0, 3.0]),
    "not a number": lambda worker, step: jnp.full(4, jnp.nan),
    "key": lambda worker, step: (KEY, step),
    "jitted": jax.jit(functools.partial(normal, (16, 2))),
    "meant": Computed(lambda worker, step: ON_DEVICE),
}


@pytest.mark.parametrize("batches", FINE.values(), ids=FINE)
def test_other_functions_cause_no_warning(batches):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        as_batches(batches, 2)


@pytest.mark.parametrize("engine", ["simulate", "devices"])
def test_engines_warn_once_at_the_line_that_called_them(engine):
    tx, fn = gemjax.asgd(0.1, 2), lambda worker, step: X[drawn(16)]
    loss_fn, trace = lambda params, batch: params * batch.sum(), gemjax.arrivals.RoundRobin(2).trace(2)
    run = {
        "simulate": lambda: gemjax.simulate(tx, loss_fn, jnp.zeros([]), fn, trace),
        "devices": lambda: gemjax.run_on_devices(tx, loss_fn, jnp.zeros([]), fn, 2, num_workers=2),
    }[engine]
    with pytest.warns(gemjax.BatchesWarning) as caught:
        run(), run()
    assert [warning.filename for warning in caught] == [__file__]


WIDE = np.arange(2**40, 2**40 + 8)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: gemjax.Epochs({"id": WIDE}, 2),
        lambda path: gemjax.OnHost(gemjax.Epochs({"id": on_disk(path, WIDE)}, 2)),
        lambda path: gemjax.FromSource([{"id": int(number)} for number in WIDE], batch_size=2),
    ],
    ids=["memory", "file on the host", "source"],
)
def test_data_with_integers_that_jax_would_take_for_others_are_refused(make, tmp_path):
    """Numbers of rows in a table of embeddings, for example."""
    loss_fn, tx = lambda params, batch: (params - batch["id"].sum()) ** 2, gemjax.asgd(0.1, 2)
    message = r"\['id'\] has the integer 10995116277\d\d, which does not fit into JAX's int32; .*jax_enable_x64"
    with pytest.raises((TypeError, ValueError), match=message):
        gemjax.simulate(tx, loss_fn, 0.0, make(tmp_path), gemjax.arrivals.Gamma(2).trace(4))
    with pytest.raises((TypeError, ValueError), match=message):
        gemjax.run_on_devices(tx, loss_fn, 0.0, make(tmp_path), 4)
    with enable_x64(True):
        assert gemjax.simulate(tx, loss_fn, 0.0, make(tmp_path), gemjax.arrivals.Gamma(2).trace(1)).params != 0


def on_disk(path, array):
    np.save(path / "array.npy", array)
    return np.load(path / "array.npy", mmap_mode="r")
