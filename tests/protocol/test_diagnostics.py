import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import diagnostics
from gemjax.protocol.diagnostics import Observer


def test_gap_and_rms_count_every_number_once():
    a = {"x": jnp.array([3.0, 0.0]), "y": jnp.array([[4.0, 0.0]])}
    zero = jax.tree.map(jnp.zeros_like, a)
    np.testing.assert_allclose(diagnostics.rms(a), 5 / 2)
    np.testing.assert_allclose(diagnostics.gap(a, zero), 5 / 2)
    np.testing.assert_allclose(diagnostics.gap(a, a), 0.0)


def test_half_precision_is_accumulated_in_float32():
    many = jnp.full((4096,), 100.0, jnp.float16)  # The sum of squares is 40,960,000; float16 ends at 65,504.
    found = diagnostics.rms(many)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, 100.0)
    assert diagnostics.rms(jnp.ones(3, jnp.bfloat16)).dtype == jnp.float32


@pytest.mark.parametrize("size", [1e-37, 1e-25, 1e-16, 1.0, 1e19, 1e30, 3e38])
@pytest.mark.parametrize("wrap", [lambda fn: fn, jax.jit, lambda fn: lambda tree: jax.vmap(fn)(tree[None])[0]])
def test_numbers_of_any_size_have_a_mean_square(size, wrap):
    """The squares of the smallest and the largest are 0 and infinite in floats of 32 bits."""
    numbers = jnp.array([3.0, -4.0, 0.0, 0.0], jnp.float32) * jnp.float32(size / 4)
    np.testing.assert_allclose(
        wrap(diagnostics.rms)(numbers), np.sqrt(np.mean(np.square(np.float64(numbers)))), rtol=1e-6
    )


def test_diagnostics_of_small_and_large_numbers():
    one, nothing, tiny = jnp.ones(1), jnp.zeros(1), jnp.full(1, 1e-25)
    np.testing.assert_allclose(diagnostics.normalised_gap(one, nothing, tiny), 1e25, rtol=1e-6)
    np.testing.assert_allclose(diagnostics.relative_change(2 * tiny, tiny), 1.0, rtol=1e-6)
    assert [float(diagnostics.rms(value)) for value in (nothing, one * jnp.inf)] == [0.0, np.inf]
    assert np.isnan(diagnostics.rms({"a": one, "b": one * jnp.nan}))


def test_an_observer_computes_only_wanted_quantities():
    observer = Observer({"wanted"})
    observer("wanted", lambda: 3)

    def refuse():
        raise AssertionError("computed without a request")

    observer("unwanted", refuse)
    assert observer.collected() == {"wanted": 3}


def test_a_quantity_that_no_member_offers_is_an_error():
    observer = Observer({"pi_median", "vim", "leader"})
    observer("leader", lambda: 1)
    observer("group_leader", lambda: 2)
    message = r"no member of this method reports pi_median, vim; it offers gap, group_leader, leader$"
    with pytest.raises(ValueError, match=message):
        observer.collected(besides=["gap"])
    with pytest.raises(ValueError, match=r"reports learning_rate; it offers gap; elastic_constant needs that rate"):
        Observer({"learning_rate"}).collected(besides=["gap", "elastic_constant"])


def test_a_change_is_measured_relative_to_the_step():
    step = {"x": jnp.array([3.0, 0.0]), "y": jnp.array([[4.0]])}
    for factor, size in ((1.0, 0.0), (0.0, 1.0), (-1.0, 2.0), (1.5, 0.5)):
        changed = jax.tree.map(lambda u, f=factor: f * u, step)
        np.testing.assert_allclose(diagnostics.relative_change(changed, step), size, rtol=1e-6)
    zero = jax.tree.map(jnp.zeros_like, step)
    assert float(diagnostics.relative_change(zero, zero)) == 0.0
    nan = jax.tree.map(lambda u: u * jnp.nan, step)
    assert np.isnan([diagnostics.relative_change(nan, nan), diagnostics.normalised_gap(nan, step, step)]).all()


def test_the_normalised_gap_is_relative_to_the_gradient():
    here, there, gradient = {"x": jnp.array([4.0, 0.0])}, {"x": jnp.zeros(2)}, {"x": jnp.array([0.0, 0.5])}
    nothing = {"x": jnp.zeros(2)}
    np.testing.assert_allclose(diagnostics.normalised_gap(here, there, gradient), 8.0)
    assert float(diagnostics.normalised_gap(here, here, nothing)) == 0.0
    assert float(diagnostics.normalised_gap(here, there, nothing)) == np.inf


def test_quantiles_are_over_all_numbers():
    tree = {"a": jnp.arange(60.0).reshape(20, 3), "b": jnp.arange(60.0, 101.0)}
    for q in (0.05, 0.5, 0.95):
        np.testing.assert_allclose(diagnostics.quantile(tree, q), 100 * q, rtol=1e-6)
    # 0.95 of 99,999 is beyond what bfloat16 can count to.
    many = diagnostics.quantile(jnp.linspace(0, 1, 100_000, dtype=jnp.bfloat16), 0.95)
    assert many.dtype == jnp.float32
    np.testing.assert_allclose(many, 0.95, rtol=1e-2)


@pytest.mark.parametrize(
    ("tx", "expected"),
    [
        (gemjax.staleness_aware(1.0, 3), 0.5),  # The gradient counts one half.
        # The steps were 1 and 1/2, and the central variable is 2 away.
        (gemjax.gap_aware(1.0, momentum=0.0, num_workers=3), 1 - 1 / (1 + 2 / ((0.999 + 0.25) / 1.999) ** 0.5)),
        (gemjax.dc_asgd(1.0, 3, strength=0.5), 1.0),  # One half of -2 is added, which gives 0.
        (gemjax.gem(1.0, momentum=0.0, num_workers=3), 1.0),  # Others have used all energy.
        (gemjax.one_step_delay(1.0, momentum=0.0, num_workers=3), 0.0),  # Updates did not change.
    ],
    ids=["staleness_aware", "gap_aware", "dc_asgd", "gem", "one_step_delay"],
)
def test_the_compensation_of_a_commit_after_two_others(tx, expected):
    """Three workers pulled 0; each commits the gradient 1 while the central variable is 0, -1 and -2."""
    params, gradient = jnp.zeros(2), jnp.ones(2)
    state = tx.init(params)
    for worker, moved in ((0, 0.0), (1, 1.0), (2, 2.0)):
        observer = Observer({"compensation"})
        _, state = tx.update(gradient, state, params - moved, worker=worker, observe=observer)
    np.testing.assert_allclose(observer.collected()["compensation"], expected, rtol=1e-5)


def test_gem_offers_its_quantities_on_request_only():
    tx = gemjax.gem(0.5, momentum=0.0, num_workers=2)
    params = jnp.array([1.0, -2.0, 3.0])
    observer = Observer({"pi_median", "energy_ratio"})
    tx.update(params, tx.init(params), params, worker=0, observe=observer)
    found = observer.collected()
    np.testing.assert_allclose(found["pi_median"], 1.0, rtol=1e-6)
    np.testing.assert_allclose(found["energy_ratio"], 1.0, rtol=1e-6)
    nothing = Observer()
    tx.update(params, tx.init(params), params, worker=0, observe=nothing)
    assert nothing.collected() == {}


def test_observed_in_a_compiled_chain():
    tx = optax.chain(optax.clip(1.0), gemjax.gem(0.5, momentum=0.0, num_workers=2))
    params = jnp.array([1.0, -2.0, 3.0])
    state = tx.init(params)

    @jax.jit
    def commit(worker):
        observer = Observer({"pi_median"})
        tx.update(params, state, params, worker=worker, observe=observer)
        return observer.collected()

    np.testing.assert_allclose(commit(1)["pi_median"], 1.0, rtol=1e-6)


def test_two_learning_rates_have_no_single_value():
    rates = {"a": scale_by_learning_rate(0.1), "b": scale_by_learning_rate(0.2)}
    for tx in (optax.chain(*rates.values()), optax.partition(rates, {"a": "a", "b": "b"})):
        observer, params = Observer(["learning_rate"]), {"a": jnp.zeros(1), "b": jnp.zeros(1)}
        tx.update(params, tx.init(params), params, observe=observer)
        with pytest.raises(
            ValueError,
            match=r"several members of this method report learning_rate.*leave learning_rate and elastic_constant out",
        ):
            observer.collected()


def test_an_observed_number_of_python_is_a_column():
    def update(updates, state, params=None, *, observe=None, **extra_args):
        if observe is not None:
            observe("momentum", lambda: 0.5)
        return updates, state

    rule = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
    tx = gemjax.asynchronous(optax.chain(rule, optax.sgd(0.1)), 2)
    result = gemjax.run_on_devices(tx, lambda p, b: p**2, jnp.ones([]), lambda w, s: 0.0, 4, diagnostics=("momentum",))
    np.testing.assert_array_equal(result.history["momentum"], 0.5)


@pytest.mark.parametrize("also", [(), ("gap", "learning_rate")])
def test_an_engine_reports_the_elastic_constant(also):
    """The distance to the view over the rate: for unit gradients in one dimension, the staleness."""
    problem = lambda params, batch: jnp.sum(params), jnp.zeros(4), lambda worker, step: 0.0
    trace = gemjax.arrivals.RoundRobin(3).trace(12)
    tx = gemjax.asgd(lambda count: 0.25, 3)
    history = gemjax.simulate(tx, *problem, trace, diagnostics=["elastic_constant", *also]).history
    np.testing.assert_allclose(
        history["elastic_constant"], 2.0 * trace.staleness, rtol=1e-6
    )  # Of the length of ones(4).
    assert ("learning_rate" in history) == ("learning_rate" in also)
