"""Arguments that the simulator refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.simulator.simulations import LATE, QUADRATIC, asgd, gem, run

import gemjax
from gemjax.engines.loss import COLUMNS
from gemjax.telemetry import schema


def test_a_method_for_another_number_of_workers_is_refused():
    with pytest.raises(ValueError, match="made with num_workers=2, but the run has 4 workers"):
        run(QUADRATIC, lambda n: gem(2), LATE)


@pytest.mark.parametrize("callback_every", [0, -3])
def test_a_chunk_has_at_least_one_commit(callback_every):
    with pytest.raises(ValueError, match=f"callback_every must be positive, got {callback_every}"):
        run(QUADRATIC, asgd, LATE, callback_every=callback_every)


def test_a_loss_of_another_form_is_refused():
    with pytest.raises(TypeError, match=r"loss_fn must be .* got one with the arguments \(a, b, c\)"):
        run(QUADRATIC._replace(loss_fn=lambda a, b, c: 0.0), asgd, LATE)


@pytest.mark.parametrize("name", [*sorted(COLUMNS), "gap", "energy_ratio"])
def test_metrics_with_names_of_columns_are_refused(name):
    def loss_fn(params, model_state, batch, key):
        loss = jnp.sum(params["x"] ** 2)
        return loss, (model_state, {name: loss})

    measured = {"gap", "energy_ratio"} & {name}  # Diagnostics, reserved where they are requested.
    start, one = {"x": jnp.ones(2)}, lambda worker, step: step
    with pytest.raises(ValueError, match=rf"metrics called \['{name}'\]"):
        gemjax.simulate(gemjax.gem(0.1), loss_fn, start, one, gemjax.Trace([0, 0]), diagnostics=measured)
    if measured:
        result = gemjax.simulate(gemjax.gem(0.1), loss_fn, start, one, gemjax.Trace([0, 0]))
        np.testing.assert_array_equal(result.history[name], result.history["loss"])


@pytest.mark.parametrize("name", ["time", "gap"])
def test_quantities_of_a_rule_with_names_of_others_are_refused(name):
    def update(updates, state, params=None, *, observe, **extra_args):
        observe(name, lambda: jnp.ones(()))
        return updates, state

    rule = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
    method = gemjax.asynchronous(optax.chain(rule, optax.sgd(0.1)))
    message = rf"the method observes quantities called \['{name}'\], which the engines report"
    with pytest.raises(ValueError, match=message):
        run(QUADRATIC, lambda n: method, gemjax.Trace([0]), diagnostics=[name])
    run(QUADRATIC, lambda n: method, gemjax.Trace([0]))


def test_no_metric_has_the_name_of_a_field_that_events_have():
    """A log of a metric with such a name could not be read."""
    fields = {*schema.KINDS, *schema.FOREIGN}
    assert fields <= COLUMNS


@pytest.mark.parametrize(
    ("params", "message"), [({}, "params has no arrays"), ({"x": jnp.arange(3)}, r"params at \['x'\] is int32")]
)
def test_parameters_that_cannot_be_trained_are_refused(params, message):
    with pytest.raises(ValueError, match=message):
        gemjax.simulate(gemjax.asgd(0.1), lambda p, b: 0.0, params, lambda w, s: s, gemjax.Trace([0, 0]))


def test_a_loss_that_changes_the_type_of_its_model_state_is_refused():
    def loss_fn(params, model_state, batch, key):
        return jnp.sum(params["x"] ** 2), (model_state.astype(jnp.bfloat16), {})

    with pytest.raises(ValueError, match="another model state than it was given"):
        gemjax.simulate(
            gemjax.asgd(0.1), loss_fn, {"x": jnp.ones(2)}, lambda w, s: s, gemjax.Trace([0]), model_state=jnp.ones(1)
        )


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        (gemjax.arrivals.Gamma(4), r"trace must be a gemjax.Trace, got Gamma; call its .trace\(num_commits\)"),
        ([0, 1, 2], r"trace must be a gemjax.Trace, got list; make one with gemjax.Trace\(worker=…\)"),
        (np.arange(3), r"trace must be a gemjax.Trace, got ndarray; make one with gemjax.Trace\(worker=…\)"),
    ],
)
def test_an_argument_that_is_no_trace_is_refused(trace, message):
    with pytest.raises(TypeError, match=message):
        gemjax.simulate(gemjax.asgd(0.1, 4), *QUADRATIC[:3], trace)


def test_an_optimizer_is_no_local_steps():
    with pytest.raises(TypeError, match=r"local is .*, but must be a gemjax.LocalSteps; give gemjax.LocalSteps\(opt"):
        gemjax.simulate(gemjax.downpour(num_workers=4), *QUADRATIC[:3], LATE, local=optax.sgd(0.1))


def test_a_loss_of_several_numbers_is_refused():
    with pytest.raises(ValueError, match=r"the loss has shape \(4,\), a scalar was expected; take its mean"):
        gemjax.simulate(gemjax.asgd(0.1, 4), lambda p, b: p["x"] ** 2, *QUADRATIC[1:3], LATE)


@pytest.mark.slow
def test_data_on_another_device_than_the_parameters_are_brought_there():
    here, there = jax.devices()[:2]
    put = lambda array, place: array if place is None else jax.device_put(array, place)
    data = np.arange(12.0, dtype=np.float32).reshape(6, 2)
    loss_fn, trace = lambda params, rows: jnp.mean((params[None] - rows) ** 2), gemjax.Trace([0, 1, 0, 1])
    expected = gemjax.simulate(gemjax.asgd(0.1, num_workers=2), loss_fn, jnp.zeros(2), gemjax.Epochs(data, 2), trace)
    for places in ((here, there), (None, there), (there, None), (there, here)):
        params, rows = map(put, (jnp.zeros(2), data), places)
        run = loss_fn, params, gemjax.Epochs(rows, 2), trace
        result = gemjax.simulate(gemjax.asgd(0.1, num_workers=2), *run)
        np.testing.assert_array_equal(result.params, expected.params)
        swept = gemjax.sweep(lambda rate: gemjax.asgd(rate, num_workers=2), *run, {"rate": [0.1]})
        np.testing.assert_allclose(swept.params[0], expected.params, rtol=1e-6)


@pytest.mark.slow
def test_data_on_one_device_are_brought_to_all_of_a_divided_central_variable():
    devices = jax.devices()[:4]
    data = np.arange(64.0, dtype=np.float32).reshape(8, 8)
    batches = gemjax.Epochs(jax.device_put(data, devices[0]), 2)
    problem = gemjax.gem(0.05, num_workers=2), lambda params, rows: jnp.mean((params[None] - rows) ** 2), jnp.zeros(8)
    placement = gemjax.place(2, devices=devices, central_devices=2)
    first = gemjax.run_on_devices(*problem, batches, 10, placement=placement)
    result = gemjax.run_on_devices(*problem, batches, 20, placement=placement, state=first)
    replayed = gemjax.simulate(*problem, batches, result.trace, state=first)
    np.testing.assert_allclose(replayed.params, result.params, rtol=1e-5)


def test_the_old_name_of_callback_every_works_with_a_warning():
    calls = []
    with pytest.warns(DeprecationWarning, match="chunk_size= is callback_every= now"):
        run(QUADRATIC, asgd, LATE, chunk_size=12, callback=lambda progress: calls.append(progress.commits))
    assert calls == [12, 24]
