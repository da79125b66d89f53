"""Gradients of several workers at once in windows, with the same result."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines.problems import assert_close, assert_same_bits, distinct, every_method, late, mlp, poisoned, quadratic
from jax.experimental import io_callback

import gemjax
from gemjax.engines.simulator import simulate as module
from gemjax.engines.simulator.loops import compiled, windows
from gemjax.protocol.trace import Trace

UNEQUAL = gemjax.arrivals.Gamma(4, machine_variation=0.4).trace(40, seed=2)


def run(problem, make, trace, **options):
    options = {"model_state": problem.model_state, "local": getattr(make, "local", None), "seed": 3} | options
    return gemjax.simulate(make(trace.num_workers), *problem[:3], trace, **options)


def gem(num_workers):
    return gemjax.gem(0.05, num_workers=num_workers)


@pytest.mark.parametrize("width", [1, 2, 3, 7, 64])
def test_windows_are_as_long_as_they_can_be(width):
    """Each has distinct workers; one more arrival would repeat a worker or exceed the width."""
    worker = np.random.default_rng(0).integers(0, 8, 500)
    begins = windows(worker, width)
    ends = np.append(begins[1:], len(worker))
    assert begins[0] == 0
    for begin, end in zip(begins, ends, strict=True):
        inside = worker[begin:end]
        assert 1 <= len(inside) == len(set(inside.tolist())) <= width
        assert len(inside) == width or end == len(worker) or worker[end] in inside


def test_no_arrivals_have_no_windows():
    assert len(windows(np.array([], int), 4)) == 0


@every_method(only=lambda row: distinct(row) and row.converges_stale, each_kind=True)
def test_the_result_is_that_of_one_by_one(make, x64):
    """There are late pulls, rejected gradients, model state, keys and local steps."""
    problem = mlp(jnp.float64)
    period = make.local.period if make.local else 1
    spoilt = poisoned(problem, [(1, 2 * period), (3, period)])
    expected, found = (run(spoilt, make, late(), window=width, diagnostics=["gap"]) for width in (1, 4))
    assert int(expected.state.rejected) == 2
    assert_close(found.state, expected.state, rtol=1e-9)
    for name, column in expected.history.items():
        np.testing.assert_allclose(found.history[name], column, rtol=1e-8, atol=1e-12, err_msg=name)


@pytest.fixture
def rbg():
    """Make keys of a generator whose numbers ``jax.vmap`` changes."""
    before = jax.config.jax_default_prng_impl
    jax.config.update("jax_default_prng_impl", "rbg")
    yield
    jax.config.update("jax_default_prng_impl", before)


@pytest.mark.slow
def test_it_is_that_of_one_by_one_if_keys_are_not_faithful_to_batches(rbg):
    loss_fn = lambda params, state, batch, key: (jnp.sum(params * jax.random.normal(key, (3,))), (state, {}))
    problem, trace = (loss_fn, jnp.zeros(3), lambda worker, step: 0.0), gemjax.arrivals.RoundRobin(2).trace(8)
    expected, found = (gemjax.simulate(gem(2), *problem, trace, window=window) for window in (1, 2))
    assert_close(found.params, expected.params, rtol=1e-6)
    swept = gemjax.sweep(
        lambda rate: gemjax.gem(rate, num_workers=2), *problem, trace, {"rate": [0.05, 0.1]}, seeds=[3, 0]
    )
    assert_close(swept.params[1], expected.params, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["pure", pytest.param("ordered", marks=pytest.mark.nightly), pytest.param("unordered", marks=pytest.mark.nightly)],
)
def test_it_is_that_of_one_by_one_if_python_is_called_as_vmap_refuses(kind):
    def call(value):
        if kind == "pure":
            return jax.pure_callback(lambda _: np.float32(2.0), jax.ShapeDtypeStruct((), jnp.float32), value)
        io_callback(lambda _: None, None, value, ordered=kind == "ordered")
        return 2.0

    loss_fn = lambda params, batch: call(jax.lax.stop_gradient(params[0])) * jnp.sum((params - batch) ** 2)
    problem, trace = (loss_fn, jnp.zeros(3), lambda worker, step: 1.0), gemjax.arrivals.RoundRobin(2).trace(8)
    expected, found = (gemjax.simulate(gem(2), *problem, trace, window=window) for window in (1, 2))
    assert_close(found.params, expected.params, rtol=1e-6)
    for batched in (None, True, False):
        swept = gemjax.sweep(
            lambda rate: gemjax.gem(rate, num_workers=2), *problem, trace, {"rate": [0.05, 0.1]}, batched=batched
        )
        assert_close(swept.params[0], expected.params, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("draws", [True, False])
def test_gradients_that_draw_nothing_are_computed_at_once_whatever_the_keys(rbg, monkeypatch, draws):
    loss_fn = lambda params, state, batch, key: (
        jnp.sum(params * (jax.random.normal(key, (3,)) if draws else 1.0)), (state, {})
    )  # fmt: skip
    made = []
    monkeypatch.setattr(module, "compiled", lambda *args, **options: made.append(args[3]) or compiled(*args, **options))
    gemjax.simulate(
        gem(2), loss_fn, jnp.zeros(3), lambda worker, step: 0.0, gemjax.arrivals.RoundRobin(2).trace(4), window=2
    )
    assert made == [1 if draws else 2]


def test_an_error_of_the_first_rows_leaves_the_result_that_it_continues():
    class Source:
        broken = False

        def __len__(self):
            return 8

        def __getitem__(self, number):
            if self.broken:
                raise OSError("the disk is gone")
            return np.float32(number)

    source, trace = Source(), gemjax.arrivals.RoundRobin(2).trace(8)
    batches = gemjax.FromSource(source, batch_size=2)
    problem = gem(2), lambda params, batch: jnp.sum(params * batch.mean()), jnp.zeros(3), batches
    earlier = gemjax.simulate(*problem, trace.first(4), window=2)
    source.broken = True
    with pytest.raises(RuntimeError, match="the disk is gone") as caught:
        gemjax.simulate(*problem, trace, state=earlier, window=2, callback_every=4)
    assert len(caught.value.result.trace) == 4


@pytest.mark.slow
@pytest.mark.parametrize("callback_every", [1, 7, 40])
def test_the_chunk_size_does_not_matter(x64, callback_every):
    """The end of a chunk may cut a window."""
    expected = run(quadratic(), gem, UNEQUAL, window=4)
    assert_close(
        run(quadratic(), gem, UNEQUAL, window=4, callback_every=callback_every).state, expected.state, rtol=1e-12
    )


@pytest.mark.slow
def test_a_run_continued_within_a_window_is_the_run_that_did_not_stop(x64):
    expected = run(quadratic(), gem, UNEQUAL, window=4)
    begun = run(
        quadratic(), gem, UNEQUAL, window=4, callback_every=10, callback=lambda progress: progress.commits == 10
    )
    assert begun.stopped
    assert_close(run(quadratic(), gem, UNEQUAL, window=4, state=begun.state).state, expected.state, rtol=1e-12)


@pytest.mark.slow
def test_a_window_is_never_wider_than_there_are_workers():
    trace = Trace([0, 1, 0, 1])
    assert_same_bits(run(quadratic(), gem, trace, window=64).state, run(quadratic(), gem, trace, window=2).state)


def test_on_a_cpu_gradients_are_computed_one_by_one():
    assert_same_bits(run(quadratic(), gem, UNEQUAL).state, run(quadratic(), gem, UNEQUAL, window=1).state)
