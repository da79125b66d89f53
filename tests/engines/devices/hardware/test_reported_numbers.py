"""Metrics of every type have the same values on devices as in the simulator."""

import jax.numpy as jnp
import numpy as np
import pytest

import gemjax

NARROW = {"loud": np.float16(0.5), "yes": np.bool_(True), "few": np.int16(-7), "tokens": np.int32(20_000_001)}
NARROW |= {"ids": np.uint32(4_000_000_001), "third": np.float32(1 / 3), "tiny": jnp.float8_e4m3fn(0.5)}
WIDE = {"count": np.int64(2**53 + 1), "most": np.uint64(2**64 - 1), "exact": np.float64(1 / 3)}


@pytest.mark.parametrize("kind", [pytest.param("float32", marks=pytest.mark.nightly), "float64"])
def test_wide_metrics_are_exact(request, kind):
    metrics = dict(NARROW)
    if kind == "float64":
        request.getfixturevalue("x64")
        metrics |= WIDE
    params, batches = jnp.zeros(2, kind), lambda worker, step: jnp.ones(2)

    def loss_fn(params, model_state, batch, key):
        return jnp.sum((params - batch) ** 2), (model_state, {name: jnp.asarray(one) for name, one in metrics.items()})

    tx = gemjax.asgd(0.1, num_workers=2)
    result = gemjax.run_on_devices(tx, loss_fn, params, batches, 6)
    replay = gemjax.simulate(tx, loss_fn, params, batches, result.trace)
    for name, value in metrics.items():
        for found in (result, replay):
            # NumPy would add up narrower ones in their own precision.
            assert found.history[name].dtype == (np.float32 if name in ("loud", "tiny") else value.dtype)
            assert (found.history[name] == np.asarray(value).astype(found.history[name].dtype)).all(), name
