"""A divided commit is the commit as one program, and it happens in all parts or in none."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.cluster.central.in_process import Divided, assert_equal_to_rounding, spiked
from engines.problems import Problem, assert_close, every_method, mlp

import gemjax

N = 3
TRACE = gemjax.arrivals.Gamma(N, machine_variation=0.4).trace(20, seed=3).worker.tolist()


@pytest.mark.slow
@every_method("asgd", "gem", "dc-asgd", each_kind=True)
def test_a_divided_commit_is_the_commit_as_one_program(make, x64):
    run = Divided(make(N), mlp(jnp.float64), N, make.local)
    assert all(load > 0 for load in run.commit_program.division.load)
    for worker in TRACE:
        gradient = run.gradient(worker)
        run.rounds(worker, gradient)
        divided, whole = run.finish(), run.as_one(worker, gradient)
        assert_equal_to_rounding(divided, whole)
        assert_equal_to_rounding(*run.state(worker))
        run.moves_on(worker, divided[0])


@pytest.mark.slow
@pytest.mark.parametrize("size", [np.nan, 1e200])
def test_a_commit_that_one_part_cannot_take_is_applied_in_none(size, x64):
    """The gradient of one leaf ruins that leaf; the others have finite numbers."""
    run = Divided(gemjax.gem(0.05, num_workers=N), mlp(jnp.float64), N)
    for worker in (0, 1, 0, 2):
        run.rounds(worker, run.gradient(worker))
        run.moves_on(worker, run.finish()[0])
    before = run.state(1)[0]
    run.rounds(1, spiked(run.gradient(1), size))
    report = dict(zip(run.commit_program.reported, run.finish()[1], strict=True))
    assert not report["applied"]
    shared = len(run.commit_program.layout.shared)
    changed = [np.size(old) for old, new in zip(before[:shared], run.state(1)[0], strict=False) if (old != new).any()]
    assert changed
    assert set(changed) == {1}  # Counts of arrivals and rejections.


@pytest.mark.slow
def test_a_part_that_fails_before_the_last_round_leaves_all_parts_as_they_were(x64):
    run = Divided(gemjax.gem(0.05, num_workers=N), mlp(jnp.float64), N)
    last = run.commit_program.division.rounds - 1
    before, gradient = run.bits(), run.gradient(1)
    with pytest.raises(RuntimeError, match="a part has failed"):
        run.rounds(1, gradient, fails=lambda place, level: (place, level) == (1, last))
    assert run.bits() == before
    run.rounds(1, gradient)
    run.finish()
    assert run.bits() != before


MATRICES = Problem(
    lambda params, batch: sum(jnp.sum((leaf - batch) ** 2) for leaf in jax.tree.leaves(params)),
    {name: jnp.ones((4, 4)) for name in "abc"},
    lambda worker, step: jnp.sin(1.0 * worker + step),
)


def of_one_vector():
    """Return a rule that treats all parameters as one vector."""

    def update(updates, state, params=None, **extra_args):
        flat, unravel = jax.flatten_util.ravel_pytree(updates)
        return unravel(-0.1 * jnp.sort(flat)), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def test_a_method_that_ties_all_leaves_is_refused():
    with pytest.raises(ValueError, match=r"over 2 hosts.* only 1 .*; `concatenate` takes \['a'\] .* \['b'\]"):
        Divided(of_one_vector(), MATRICES, N)


def test_more_hosts_than_leaves_are_refused():
    assert Divided(gemjax.asgd(0.1, num_workers=N), MATRICES, N, parts=3).commit_program.division.load == [48] * 3
    with pytest.raises(ValueError, match=r"4 hosts.* more than 1 numbers form only 3 .* groups; divide it over fewer"):
        Divided(gemjax.asgd(0.1, num_workers=N), MATRICES, N, parts=4)


def test_small_parameters_are_not_divided():
    with pytest.raises(
        ValueError, match=r"more than 16 numbers form only 0 .*; smaller arrays stay together, so leave out"
    ):
        Divided(gemjax.asgd(0.1, num_workers=N), MATRICES, N, small=16)


@pytest.mark.slow
@pytest.mark.parametrize(
    "tx",
    [
        optax.chain(optax.clip_by_global_norm(0.01), optax.sgd(0.1, momentum=0.5)),
        optax.MultiSteps(optax.sgd(0.1, momentum=0.5), every_k_schedule=3),
        optax.masked(optax.sgd(0.1, momentum=0.5), {"a": True, "b": False, "c": True}),
        optax.chain(optax.add_noise(0.01, 0.5, key=3), optax.lamb(0.01)),
    ],
    ids=["clipped by the global norm", "steps every third time", "masked", "noise and layerwise norms"],
)
def test_transformations_of_optax_are_divided(tx):
    tx = optax.GradientTransformation(tx.init, tx.update)
    run = Divided(gemjax.asynchronous(tx, N), MATRICES, N)
    for worker in TRACE[:9]:
        gradient = run.gradient(worker)
        run.rounds(worker, gradient)
        divided, whole = run.finish(), run.as_one(worker, gradient)
        assert_close(jax.device_get(divided), jax.device_get(whole), rtol=1e-6)
        run.moves_on(worker, divided[0])
