"""torchft's six fixtures of (Streaming) DiLoCo with two replicas.

Source: https://github.com/meta-pytorch/torchft/tree/7eb7087, ``torchft/local_sgd.py`` and ``torchft/test_fixtures``,
``torchft.diloco_regression_test.DiLoCoMockedUpdateTest.test_diloco_mocked_updates_0.json`` to ``…_5.json``.

Two scalar fragments start at 1, the gradient is 2, the local rate 1 and the outer rate 2. L0 is exchanged at the local steps
3, 9 and 15, L1 at 6 and 12. With a delay of one step its displacement is taken one step earlier.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax

REPLICAS = 2
# (delay, alpha), then L0 after 3, 9, 15 steps and L1 after 6, 12; then the same of the outer parameters.
FIXTURES = {
    0: ((0, 0.0), ([-11, -35, -59], [-23, -47]), ([-11, -35, -59], [-23, -47])),
    1: ((0, 0.5), ([-8, -24.5, -40.25], [-17, -32]), ([-11, -29], [-23, -35])),
    2: ((0, 1.0), ([-5, -17, -29], [-11, -23]), ([-11, -23], [-23, -23])),
    3: ((1, 0.0), ([-7, -27, -47], [-19, -39]), ([-7, -27, -47], [-19, -39])),
    4: ((1, 0.5), ([-6, -21.5, -35.75], [-15, -29]), ([-7, -25], [-19, -31])),
    5: ((1, 1.0), ([-5, -17, -29], [-11, -23]), ([-7, -23], [-19, -23])),
}


def method(delay, alpha):
    """Return the method and the local steps before each commit."""
    options = {"delay": 1, "every": 2} if delay else {}
    tx = gemjax.streaming_diloco(2.0, 0.0, REPLICAS, fragments=["L0", "L1"], keep=alpha, **options)
    return tx, (3 - delay, delay) * 5 if delay else (3,) * 5


@pytest.mark.slow
@pytest.mark.parametrize("number", FIXTURES)
def test_fixture(number):
    (delay, alpha), local, outer = FIXTURES[number]
    tx, periods = method(delay, alpha)
    params = {"L0": jnp.ones([]), "L1": jnp.ones([])}
    state, views = tx.init(params), [params] * REPLICAS
    update, steps, found = jax.jit(tx.update), 0, {}
    for period in periods:
        steps += period
        for replica in range(REPLICAS):
            displacement = {name: jnp.float32(2.0 * period) for name in params}
            updates, state = update(displacement, state, params, worker=replica)
            params = optax.apply_updates(params, updates)
        for replica in range(REPLICAS):
            views[replica], state = gemjax.pull(state, params, replica)
        assert views[0] == views[1]
        found[steps] = jax.tree.map(float, (views[0], params))
    for name, moments, own, central in zip(("L0", "L1"), ((3, 9, 15), (6, 12)), local, outer, strict=True):
        assert [found[moment][0][name] for moment in moments] == own
        assert [found[moment][1][name] for moment in moments][: len(central)] == central


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(n, marks=() if n == 4 else pytest.mark.slow) for n in FIXTURES])
def test_fixture_in_the_simulator(number):
    """Local steps are made by the engine, and a barrier lets both replicas pull after both commits."""
    (delay, alpha), local, outer = FIXTURES[number]
    tx, periods = method(delay, alpha)
    result = gemjax.simulate(
        tx, lambda params, batch: 2.0 * (params["L0"] + params["L1"]), {"L0": jnp.ones([]), "L1": jnp.ones([])},
        lambda worker, step: 0.0,
        gemjax.arrivals.Barrier(gemjax.arrivals.RoundRobin(REPLICAS)).trace(REPLICAS * len(periods)),
        local=gemjax.LocalSteps(optax.sgd(1.0), (periods,) * REPLICAS),
    )  # fmt: skip
    # The last replica pulls after the last commit.
    view = gemjax.pull(result.opt_state, result.params, REPLICAS - 1)[0]
    assert float(view["L0"]) == local[0][-1]
    assert float(result.params["L1"]) == outer[1][-1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 4])
def test_fixture_on_devices(number):
    """A quorum of both replicas is the barrier; the recorded run is replayed in the simulator."""
    (delay, alpha), local, outer = FIXTURES[number]
    tx, periods = method(delay, alpha)
    problem = lambda params, batch: 2.0 * (params["L0"] + params["L1"]), {"L0": jnp.ones([]), "L1": jnp.ones([])}
    options = {"local": gemjax.LocalSteps(optax.sgd(1.0), (periods,) * REPLICAS)}
    result = gemjax.run_on_devices(
        tx, *problem, lambda worker, step: 0.0, REPLICAS * len(periods), placement=gemjax.place(REPLICAS),
        policy=gemjax.Policy(quorum=REPLICAS), **options,
    )  # fmt: skip
    assert float(result.params["L1"]) == outer[1][-1]
    replay = gemjax.simulate(tx, *problem, lambda worker, step: 0.0, result.trace, **options)
    assert replay.params == result.params
    last = int(result.trace.worker[-1])
    for run in (result, replay):
        assert float(gemjax.pull(jax.device_get(run.opt_state), run.params, last)[0]["L0"]) == local[0][-1]


def test_whole_commits_are_one_run_per_fragment():
    """Without fragments, case 0 is DiLoCo of each fragment alone, with its own periods."""
    for periods, golden in (([3, 6, 6], [-11.0, -35.0, -59.0]), ([6, 6], [-23.0, -47.0])):
        tx, params = gemjax.fedbuff(2.0, REPLICAS, buffer_size=REPLICAS), jnp.ones([])
        state, found = tx.init(params), []
        for period in periods:
            for replica in range(REPLICAS):
                updates, state = tx.update(jnp.float32(2.0 * period), state, params, worker=replica)
                params = optax.apply_updates(params, updates)
            for replica in range(REPLICAS):
                _, state = gemjax.pull(state, params, replica)
            found.append(float(params))
        np.testing.assert_array_equal(found, golden)
