"""Methods that are defined in rounds: a barrier is the default with real workers, and traces without one are warned of."""

import warnings

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.problems import Behind, assert_close, quadratic

import gemjax
from gemjax import arrivals

N = 4
QUADRATIC = quadratic()
LOCAL = gemjax.LocalSteps(optax.sgd(0.1), 2)
SPEEDS = arrivals.ConstantSpeeds([1.0, 1.3, 1.7, 2.3])
IN_ROUNDS = arrivals.Barrier(SPEEDS).trace(5 * N)
MESSAGE = r"the method is defined in rounds, .* but the trace has none; give that of gemjax\.arrivals\.Barrier\(model\)"


def simulated(tx, trace):
    return gemjax.simulate(tx, *QUADRATIC[:3], trace, local=LOCAL)


def swept(tx, trace):
    return gemjax.sweep(lambda rate: tx, *QUADRATIC[:3], trace, {"rate": [1.0]}, seeds=[0, 1], local=LOCAL)


def on_devices(tx, commits=5 * N, **options):
    return gemjax.run_on_devices(tx, *QUADRATIC[:3], commits, num_workers=N, local=LOCAL, **options)


@pytest.mark.parametrize("enter", [simulated, pytest.param(swept, marks=pytest.mark.nightly)])
def test_a_trace_without_rounds_is_warned_of_once(enter):
    with pytest.warns(gemjax.RunWarning, match=MESSAGE) as seen:
        enter(gemjax.diloco(num_workers=N), SPEEDS.trace(5 * N))
    assert [one.filename for one in seen] == [__file__]


@pytest.mark.parametrize(
    ("make", "trace", "warns"),
    [
        (gemjax.diloco, IN_ROUNDS, False),
        (gemjax.diloco, arrivals.SemiSynchronous(SPEEDS, 2).trace(5)[0], False),
        (gemjax.diloco, IN_ROUNDS.first(6), False),  # It ends inside of a round.
        (gemjax.diloco, arrivals.RoundRobin(N).trace(2 * N), True),
        (gemjax.streaming_diloco, arrivals.RoundRobin(N).trace(2 * N), True),
        (gemjax.decoupled_diloco, arrivals.RoundRobin(N).trace(2 * N), False),
        (gemjax.fedbuff, arrivals.RoundRobin(N).trace(2 * N), False),
        (gemjax.delayed_nesterov, arrivals.RoundRobin(N).trace(2 * N), False),
        (lambda num_workers: optax.chain(optax.identity(), gemjax.diloco(num_workers=N)), SPEEDS.trace(2 * N), True),
    ],
)
def test_which_methods_and_traces_are_warned_of(make, trace, warns):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        gemjax.engines.checks.warn_without_rounds(make(num_workers=N), {"w": jnp.zeros((2, 2))}, LOCAL, trace)
    assert len(seen) == warns


@pytest.mark.parametrize("policy", [None, gemjax.Policy(retries=3)])
def test_the_default_on_devices_is_the_barrier(policy):
    """So it is the published method: as in the simulator with a barrier, whichever worker is slow."""
    result = on_devices(gemjax.diloco(num_workers=N), policy=policy)
    np.testing.assert_array_equal(result.trace.pulled_at, IN_ROUNDS.pulled_at)
    expected = simulated(gemjax.diloco(num_workers=N), IN_ROUNDS).params
    assert_close(result.params, expected, 1e-5)


def test_a_run_on_devices_in_which_a_worker_is_missing_is_warned_of():
    """Its barrier is one of three workers, but a step takes four displacements."""
    with pytest.warns(gemjax.RunWarning, match="the method is defined in rounds, .* but a worker was missing") as seen:
        on_devices(gemjax.diloco(num_workers=N), members=gemjax.Members(N, absent=[3]))
    assert [one.filename for one in seen] == [__file__]


@pytest.mark.parametrize(
    ("make", "policy"), [(gemjax.diloco, gemjax.Policy(quorum=1)), (gemjax.delayed_nesterov, None)]
)
def test_workers_do_not_wait_if_the_policy_says_so_or_the_method_has_no_rounds(make, policy):
    result = on_devices(make(num_workers=N), 4 * N, policy=policy, gate=Behind(N, 0, 2))
    assert result.trace.staleness.max() > N
