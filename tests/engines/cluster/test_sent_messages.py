"""Messages in place of gradients: their bytes, and the errors that stay on the hosts of their workers, on a fake Ray."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engines.cluster.fake_ray import ray
from engines.problems import assert_close, mlp

import gemjax

N = 3


def rounded(part, num_workers=N, method=gemjax.asgd):
    return gemjax.asynchronous(optax.chain(part, method(0.1, num_workers=num_workers)), num_workers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "size"),
    [
        (optax.identity(), 4),
        (gemjax.rules.round_to("int8"), 1),
        (gemjax.rules.sparsify(1 / 8, decay=1.0), 0.75),
        pytest.param(gemjax.rules.round_to("bfloat16"), 2, marks=pytest.mark.nightly),
    ],
    ids=["plain", "int8", "top-k", "bfloat16"],
)
def test_messages_are_short_and_lose_nothing(fake, part, size, tmp_path):
    """A constant small gradient beside a large one, which int8 alone would round to zero, moves its parameter on average."""
    slopes = jnp.concatenate([jnp.array([1.0, 0.003]), jnp.zeros(998)])
    batches = lambda worker, step: 0.0
    with gemjax.EventLog(tmp_path / "log") as log:
        result = gemjax.run_on_cluster(rounded(part), lambda x, batch: jnp.sum(slopes * x), jnp.zeros(1000), batches, 60,
                                       log=log)  # fmt: skip
    start = next(iter(gemjax.eventlog.read(tmp_path / "log")))
    assert start["view_bytes"] == 4000
    assert 1000 * size <= start["gradient_bytes"] <= 1000 * size + 20
    np.testing.assert_allclose(result.params[:2], [-6.0, -0.018], rtol=0.15)


@pytest.mark.slow
def test_the_errors_of_a_rejected_gradient_are_not_added_to_the_next_one(fake):
    batches = lambda worker, step: jnp.where((worker == 1) & (step == 2), 3e37, 1.0)
    result = gemjax.run_on_cluster(
        rounded(gemjax.rules.round_to("int8")), lambda x, batch: jnp.sum(x * batch * 1.1), jnp.zeros(4), batches, 60,
        policy=gemjax.Policy(quorum=N),  # So that worker 1 reaches that step.
    )  # fmt: skip
    assert int(result.state.rejected) == 1
    np.testing.assert_allclose(result.params, -60 * 0.1 * 1.1, rtol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("part", [gemjax.rules.round_to("int8"), gemjax.rules.sparsify(0.25)], ids=["int8", "top-k"])
def test_a_run_with_messages_replays_and_goes_on_in_any_engine(fake, x64, part):
    """The errors are a part of the state: the second half, on a cluster or simulated, begins with those of the first."""
    problem, tx = mlp(jnp.float64), rounded(part, method=gemjax.gem)
    options = {"model_state": problem.model_state}
    half = gemjax.run_on_cluster(tx, *problem[:3], 30, **options)
    replay = gemjax.simulate(tx, *problem[:3], half.trace, **options)
    assert_close(half.params, replay.params, rtol=1e-10)
    assert_close(half.opt_state, replay.opt_state, rtol=1e-10)
    errors = jax.tree.leaves(half.opt_state.inner_state[0].error.value)
    assert all(np.abs(leaf).max() > 0 for leaf in errors)
    whole = gemjax.run_on_cluster(tx, *problem[:3], 60, state=half, **options)
    replay = gemjax.simulate(tx, *problem[:3], whole.trace, **options)
    assert_close(whole.params, replay.params, rtol=1e-10)
    assert_close(whole.opt_state, replay.opt_state, rtol=1e-10)


@pytest.mark.slow
def test_the_errors_of_a_result_are_at_the_place_of_the_central_variable(fake):
    central = jax.devices()[1]
    tx, batches = rounded(gemjax.rules.round_to("int8")), lambda worker, step: 1.0
    with gemjax.Cluster(N, central=central) as cluster:
        result = gemjax.run_on_cluster(tx, lambda x, b: jnp.sum(x * b), jnp.zeros(4), batches, 6, cluster=cluster)
    assert {device for leaf in jax.tree.leaves(result.opt_state) for device in leaf.devices()} == {central}


@pytest.mark.slow
def test_errors_survive_the_loss_of_an_actor_that_gives_its_gradient_anew(fake, x64):
    problem, tx, lost = mlp(jnp.float64), rounded(gemjax.rules.round_to("int8")), []

    def lose(actor, method, arguments):
        if method == "message" and arguments[-1][:2] == (1, 3) and not lost:
            lost.append(actor)
            return True
        return False

    fake.lose = lose
    result = gemjax.run_on_cluster(
        tx, *problem[:3], 40, model_state=problem.model_state, policy=gemjax.Policy(quorum=N)
    )
    assert lost
    replay = gemjax.simulate(tx, *problem[:3], result.trace, model_state=problem.model_state)
    assert_close(result.params, replay.params, rtol=1e-10)


@pytest.mark.slow
def test_errors_that_are_lost_with_their_host_begin_at_zero(fake, monkeypatch):
    """Worker 1 ends in its fourth step, and the memory of its host with it."""
    problem, tx, lost, get = mlp(), rounded(gemjax.rules.round_to("int8")), [], fake.get

    def lose(actor, method, arguments):
        if method == "message" and arguments[-1][:2] == (1, 3) and not lost:
            lost.append(arguments[-2])
            return True
        return False

    def gone(reply, timeout=None):
        if reply in lost:
            raise ray.exceptions.ObjectLostError("1", None, "")
        return get(reply, timeout)

    fake.lose = lose
    monkeypatch.setattr(fake, "get", gone)
    result = gemjax.run_on_cluster(
        tx, *problem[:3], 40, model_state=problem.model_state, policy=gemjax.Policy(quorum=N)
    )
    assert lost
    assert len(result.trace) == 40
    assert {1} < set(result.trace.worker[20:].tolist())


@pytest.mark.slow
def test_the_old_argument_is_the_part_in_front(fake):
    batches, slopes = lambda worker, step: 0.0, jnp.array([1.0, 0.003])
    given = gemjax.asgd(0.1, num_workers=N), lambda x, batch: jnp.sum(slopes * x), jnp.zeros(2), batches, 12
    with pytest.warns(DeprecationWarning, match=r"gemjax\.rules\.round_to"):
        old = gemjax.run_on_cluster(*given, compression="int8")
    new = gemjax.simulate(rounded(gemjax.rules.round_to("int8")), *given[1:4], old.trace)
    np.testing.assert_allclose(old.params, new.params, rtol=1e-6)
