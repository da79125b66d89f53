"""A sweep of one point and the simulator: the same numbers, the same refusals in the same words."""

import warnings

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


@pytest.mark.slow
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("seed", SEEDS, ids=str)
def test_a_seed_gives_the_same_keys_or_the_same_refusal(bits, seed):
    draw = lambda params, model_state, batch, key: (jnp.sum(params * jax.random.normal(key, (2,))), ((), {}))
    with enable_x64(bits == 64):
        alone, swept = both(seed, loss_fn=draw, params=jnp.zeros(2))
    assert alone == swept
    assert isinstance(alone, list) == (isinstance(seed, int) and -(2**63) <= seed < 2**63)


WRONG = {
    "loss": ({"loss_fn": None}, "TypeError: loss_fn is of type NoneType"),
    "integer-loss": (
        {"loss_fn": lambda params, batch: 3},
        "TypeError: loss_fn returned a loss of int32, expected a real",
    ),
    "complex-loss": (
        {"loss_fn": lambda params, batch: params[0] * 1j},
        "TypeError: loss_fn returned a loss of complex64",
    ),
    "params": ({"params": {}}, "ValueError: params has no arrays"),
    "integer-params": ({"params": jnp.zeros(2, int)}, "ValueError: params at the root is int32"),
    "batches": ({"batches": np.zeros((4, 2))}, "TypeError: batches must be a function"),
    "trace": ({"trace": [0, 1]}, "TypeError: trace must be a gemjax.Trace"),
    "workers": ({"trace": gemjax.arrivals.Gamma(4).trace(9)}, "ValueError: the method was made with num_workers=3"),
    "method": ({"make": lambda: None}, "TypeError: tx is of type NoneType"),
    "needs-local": ({"make": lambda: gemjax.diloco(num_workers=3)}, "ValueError: this method takes the displacement"),
    "local": ({"local": 3}, "TypeError: local is the int 3"),
    "periods": ({"local": gemjax.LocalSteps(optax.sgd(0.1), [2, 2])}, "ValueError: LocalSteps has periods for 2"),
    "two-rates": (
        {"local": gemjax.LocalSteps(optax.sgd(0.1), 2)},
        "RunWarning: the method multiplies the displacements",
    ),
    "chunk": ({"callback_every": 2.5}, "TypeError: callback_every must be an int, got 2.5"),
    "no-chunk": ({"callback_every": 0}, "ValueError: callback_every must be positive, got 0"),
    "stops-array": (
        {"stops": np.array(5)},
        "ValueError: stops must be numbers of commits, a sequence of ints; got int64[]",
    ),
    "stops": ({"stops": 5}, "ValueError: stops must be numbers of commits, a sequence of ints; got int64[]"),
    "no-stops": ({"stops": None}, "ValueError: stops must be numbers of commits, a sequence of ints; got object[]"),
    "diagnostic": ({"diagnostics": ["nope"]}, "ValueError: no member of this method reports nope"),
    "diagnostics": ({"diagnostics": None}, 'TypeError: diagnostics must be names, such as ["gap"], got None'),
    "callback": ({"callback": 3}, "TypeError: callback is the int 3"),
    "answer": ({"callback": lambda *_: "x"}, "TypeError: callback returned the str 'x'"),
}


@pytest.mark.parametrize(("changes", "refused"), WRONG.values(), ids=WRONG)
def test_a_wrong_argument_is_refused_with_the_same_words(changes, refused):
    with warnings.catch_warnings(action="error"):
        alone, swept = both(**changes)
    assert alone == swept
    assert alone.startswith(refused)


@pytest.mark.parametrize("seeds", [5, "12", None])
def test_seeds_are_a_sequence(seeds):
    make, *given = RUN.values()
    with pytest.raises(TypeError, match="seeds must be a sequence of ints, got"):
        gemjax.sweep(make, *given, {}, seeds=seeds)


@pytest.mark.parametrize("batched", [True, False])
def test_a_make_that_branches_on_a_swept_number_is_explained(batched):
    make = lambda decay: gemjax.asgd(optax.exponential_decay(0.1, 10, decay), num_workers=2)
    with pytest.raises(jax.errors.ConcretizationTypeError) as failure:
        gemjax.sweep(
            make, lambda p, b: jnp.sum(p**2), jnp.ones(2), lambda worker, step: 0.0, gemjax.Trace([0, 1]),
            {"decay": [0.5, 0.9]}, batched=batched,
        )  # fmt: skip
    assert any("gemjax.simulate once per value" in note for note in failure.value.__notes__)
