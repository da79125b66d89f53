"""Draws from a shared stream where workers are absent, leave, are lost or retired: the next worker computes on them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines.devices.roster_runs import Run
from engines.problems import Abreast, assert_close

import gemjax
from gemjax.arrivals import Incidents, Joins, Leaves, RoundRobin
from gemjax.protocol.trace import Draws
from gemjax.testing import Faults

N, ROWS = 8, 20
STREAM = gemjax.Stream({"row": np.arange(ROWS)}, 1, seed=1)
ASGD = gemjax.asgd(0.1, num_workers=N)


def loss_fn(params, model_state, batch, key):
    return jnp.sum(params[batch["row"]]), (model_state, {"row": batch["row"][0]})


def on_devices(num_commits=60, batches=STREAM, **options):
    return gemjax.run_on_devices(
        ASGD, loss_fn, jnp.zeros(ROWS), batches, num_commits, placement=gemjax.place(N), **options
    )


def assert_replays(result, batches=STREAM):
    again = gemjax.simulate(ASGD, loss_fn, jnp.zeros(ROWS), batches, result.trace)
    assert_close(jax.device_get(result.params), again.params, rtol=1e-5)
    np.testing.assert_array_equal(again.history["row"], result.history["row"])
    # The next draws, if not by the same workers.
    assert set(again.state.draw.value.tolist()) == set(result.state.draw.value.tolist())


def assert_nothing_skipped(result):
    """Check that the state has all draws that no commit has used."""
    draws = np.sort(np.concatenate([result.trace.draw, result.state.draw.value]))
    np.testing.assert_array_equal(draws, np.arange(len(result.trace) + N))


def rows_of_first_epoch(history):
    return len(set(history["row"][history["draw"] < ROWS].tolist()))


def test_absent_workers_hold_no_batch():
    gate = Abreast(N, lost=lambda worker, step: worker >= 2)
    result = on_devices(members=gemjax.Members(N, absent=range(2, N)), gate=gate)
    assert rows_of_first_epoch(result.history) == ROWS
    assert_nothing_skipped(result)
    assert_replays(result)


@pytest.mark.parametrize("absent", ["all along", "from the middle", "until the middle"])
def test_absent_workers_of_a_simulation_hold_no_batch(absent):
    moves = {
        "all along": lambda worker: [Joins(worker, 1e6)],
        "from the middle": lambda worker: [Leaves(worker, 1.5)],
        "until the middle": lambda worker: [Joins(worker, 20.5)],
    }[absent]
    model = Incidents(RoundRobin(N), [move for worker in range(2, N) for move in moves(worker)])
    trace = model.trace(60)
    result = gemjax.simulate(ASGD, loss_fn, jnp.zeros(ROWS), STREAM, trace)
    assert rows_of_first_epoch(result.history) == ROWS
    assert_nothing_skipped(result)
    assert model.trace(40) == trace.first(40)


def test_without_absences_draws_are_those_of_a_plain_trace():
    model = RoundRobin(N)
    incidents = [gemjax.arrivals.Slows(1, 3.0, 2.0)]
    slow = Incidents(model, incidents).trace(40)
    np.testing.assert_array_equal(slow.draw, gemjax.Trace(slow.worker, num_workers=N).draw)


@pytest.mark.slow
def test_the_batch_of_a_worker_that_leaves_goes_to_the_next(x64):
    members = gemjax.Members(N)

    def callback(progress):
        for worker in range(2, N):
            (members.leave if progress.commits < 40 else members.join)(worker)

    result = on_devices(80, members=members, callback=callback, callback_every=20)
    assert_nothing_skipped(result)
    assert_replays(result)


@pytest.mark.slow
def test_the_batch_of_a_worker_that_is_retired_goes_to_the_next():
    with Faults().fail(3, 1, times=9) as faults:
        result = on_devices(40, gate=Abreast(N, faults, lambda worker, step: worker == 3))
    assert (result.trace.worker == 3).sum() == 1
    assert_nothing_skipped(result)
    assert_replays(result)


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_the_batches_that_nobody_has_used():
    members = gemjax.Members(N, absent=range(2, N))
    first = on_devices(7, members=members)
    result = on_devices(60, members=gemjax.Members(N, absent=range(5)), state=first)
    assert_nothing_skipped(result)
    assert_replays(result)


# --- The roster


def test_a_roster_gives_draws_of_absent_workers_to_others():
    run = Run(4, absent=(2, 3))
    draws = run.roster.draws
    run.go()
    assert [draws.of(worker) for worker in (0, 1)] == [0, 1]
    run.arrive(0)
    draws.use(0)
    assert draws.of(0) == 2
    run.roster.leave(1)
    draws.use(0)
    assert [draws.of(0), draws.following(2)] == [1, [3, 4]]


@pytest.mark.parametrize(("kind", "is_first"), [("lost", True), ("retired", True), ("left", True), ("retried", False)])
def test_a_roster_takes_draws_back(kind, is_first):
    run = Run(2, retries=0 if kind == "retired" else 2)
    run.go()
    match kind:
        case "lost":
            run.roster.disappeared(0, run.computing.pop(0), 1.0, OSError())
        case "left":
            run.roster.leave(0)
        case _:
            run.arrive(0, OSError())
    run.roster.draws.use(1)
    assert (run.roster.draws.of(1) == 0) == is_first


def test_a_batch_with_which_two_workers_failed_is_not_drawn_again():
    """A row that cannot be read would otherwise retire all workers, one after the other."""
    draws = Draws([0, 1, 2])
    draws.give_back(0, failed=True)
    draws.use(1)
    assert draws.of(1) == 0
    draws.give_back(1, failed=True)
    draws.use(2)
    assert [draws.of(worker) for worker in (2, 1)] == [3, 4]
    assert draws.per_worker(3) == [5, 4, 3]
