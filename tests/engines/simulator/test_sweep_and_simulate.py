"""A sweep of one point and the simulator: the same numbers, the same refusals in the same words."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax
from gemjax.protocol.compat import enable_x64

RUN = {
    "make": lambda: gemjax.asgd(0.1, 3),
    "loss_fn": lambda params, batch: 0.5 * jnp.sum((params - batch) ** 2),
    "params": jnp.zeros(2),
    "batches": lambda worker, step: jnp.ones(2),
    "trace": gemjax.arrivals.Gamma(3).trace(12),
}


def both(seed=0, **changes):
    """Return what the simulator and a sweep give: the central variable, or the error."""
    options = RUN | changes
    make, *given = (options.pop(name) for name in RUN)
    calls = (
        lambda: gemjax.simulate(make(), *given, seed=seed, **options).params,
        lambda: gemjax.sweep(make, *given, {}, seeds=[seed], **options).params[0],
    )
    return [outcome(call) for call in calls]


def outcome(call):
    try:
        return np.asarray(call()).tolist()
    except (TypeError, ValueError, gemjax.RunWarning) as error:
        return f"{type(error).__name__}: {error}"


SEEDS = [-(2**63), -1, 7, 2**31, 2**32 + 1, 2**40 + 3, 2**63 - 1, 2**63, np.uint64(2**63), 2**64, 0.5, "a", None]


@pytest.mark.nightly
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("seed", SEEDS, ids=str)
def test_a_seed_gives_the_same_keys_or_the_same_refusal(bits, seed):
    draw = lambda params, model_state, batch, key: (jnp.sum(params * jax.random.normal(key, (2,))), ((), {}))
    with enable_x64(bits == 64):
        alone, swept = both(seed, loss_fn=draw, params=jnp.zeros(2))
    assert alone == swept
    assert isinstance(alone, list) == (isinstance(seed, int) and -(2**63) <= seed < 2**63)


@pytest.mark.parametrize("batched", [True, False])
def test_a_make_that_branches_on_a_swept_number_is_explained(batched):
    make = lambda decay: gemjax.asgd(optax.exponential_decay(0.1, 10, decay), num_workers=2)
    with pytest.raises(jax.errors.ConcretizationTypeError) as failure:
        gemjax.sweep(
            make, lambda p, b: jnp.sum(p**2), jnp.ones(2), lambda worker, step: 0.0, gemjax.Trace([0, 1]),
            {"decay": [0.5, 0.9]}, batched=batched,
        )  # fmt: skip
    assert any("gemjax.simulate once per value" in note for note in failure.value.__notes__)
