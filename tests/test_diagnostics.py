import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax
from gemjax import diagnostics
from gemjax.diagnostics import Observer


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


def test_double_precision_is_kept(x64):
    assert diagnostics.rms(jnp.ones(3, jnp.float64)).dtype == jnp.float64


def test_rms_of_nothing_is_zero():
    assert float(diagnostics.rms({})) == 0.0


def test_flatten():
    np.testing.assert_array_equal(diagnostics.flatten({"a": jnp.ones((1, 2)), "b": jnp.zeros([])}), [1, 1, 0])


def test_an_observer_computes_only_what_is_wanted():
    observer = Observer({"wanted"})
    observer("wanted", lambda: 3)

    def refuse():
        raise AssertionError("computed though nobody asked")

    observer("unwanted", refuse)
    assert observer.collected() == {"wanted": 3}


def test_what_no_member_offers_is_an_error():
    observer = Observer({"pi_median", "vim", "gap"})
    observer("gap", lambda: 1)
    with pytest.raises(ValueError, match="no member of this method reports pi_median, vim; every method has 'gap'"):
        observer.collected()


def test_gem_offers_its_quantities_and_nothing_unasked():
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


def test_asgd_has_no_pi():
    tx, params = gemjax.asgd(0.5), jnp.ones(2)
    observer = Observer({"pi_median"})
    tx.update(params, tx.init(params), params, observe=observer)
    with pytest.raises(ValueError, match="no member of this method reports pi_median"):
        observer.collected()


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
