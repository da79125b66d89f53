"""Arrival models that wrap other models: speeds, latencies, queues, incidents, barriers."""

import numpy as np
import pytest

import gemjax
import gemjax.testing
from gemjax import arrivals
from gemjax.arrivals import (
    Barrier,
    ConstantSpeeds,
    Delayed,
    Gamma,
    Incidents,
    Joins,
    Leaves,
    Queue,
    RoundRobin,
    Scaled,
    Slows,
)
from gemjax.arrivals.base import draw

WRAPPED = {
    "Exponential": arrivals.Exponential(4),
    "LogNormal": arrivals.LogNormal(4),
    "Pareto": arrivals.Pareto(4),
    "Scaled": Scaled(Gamma(4), [1.0, 2.0, 3.0, 4.0]),
    "Delayed": Delayed(Gamma(4), up=0.2, down=[0.1, 0.2, 0.3, 0.4]),
    "Queue": Queue(Gamma(4), service=0.2),
    "Incidents": Incidents(
        Gamma(4), [Slows(0, 2.0, 3.0), Leaves(1, 3.0), Joins(1, 7.5), Joins(2, 4.0), Leaves(3, 9.0)]
    ),
    "Barrier": Barrier(Gamma(4)),
    "Barrier of the first": Barrier(Gamma(4), quorum=3),
    "all": Incidents(Delayed(Scaled(Gamma(4), [1.0, 1.0, 1.0, 0.5]), up=0.1), [Leaves(0, 5.0)]),
}
every_model = pytest.mark.parametrize("model", WRAPPED.values(), ids=WRAPPED.keys())


@every_model
def test_the_same_seed_gives_the_same_trace_and_a_longer_one_begins_with_it(model):
    trace = model.trace(400, seed=3)
    assert trace == model.trace(400, seed=3)
    assert trace != model.trace(400, seed=4)
    assert model.trace(1500, seed=3).first(400) == trace
    assert len(model.trace(0)) == 0


@every_model
def test_times_are_finite_and_ordered(model):
    trace = model.trace(500)
    assert (np.diff(trace.time) >= 0).all()
    assert trace.time[0] > 0
    assert (trace.staleness >= 0).all()


# --- Distributions


@pytest.mark.parametrize("mean", [1.0, 8.0])
@pytest.mark.parametrize("kind", [arrivals.Exponential, arrivals.LogNormal, arrivals.Pareto])
def test_durations_have_the_given_mean(kind, mean):
    drawn = kind(1, mean=mean).trace(60_000)
    assert drawn.time[-1] / 60_000 == pytest.approx(mean, rel=0.02)


def test_exponential_arrivals_are_memoryless():
    """The next worker is independent of the last, so the staleness is geometric with mean N - 1."""
    lag = arrivals.Exponential(8).trace(60_000).staleness[100:]
    assert lag.mean() == pytest.approx(7, rel=0.01)
    np.testing.assert_allclose(np.bincount(lag, minlength=20)[:6] / len(lag), (7 / 8) ** np.arange(6) / 8, rtol=0.05)


def test_log_normal_has_its_variation():
    taken = arrivals.LogNormal(1, variation=0.7).durations(0, np.random.default_rng(0), 200_000)
    assert taken.std() / taken.mean() == pytest.approx(0.7, rel=0.02)


def test_pareto_follows_its_power_law():
    taken = arrivals.Pareto(1, shape=2.5, mean=2.0).durations(0, np.random.default_rng(0), 200_000)
    least = 2.0 * 1.5 / 2.5
    assert taken.min() == pytest.approx(least, rel=1e-3)
    assert (taken > 4 * least).mean() == pytest.approx(4**-2.5, rel=0.1)


# --- Speeds and ways


def test_scaled_round_robin_is_constant_speeds():
    scaled, constant = Scaled(RoundRobin(3), [2.0, 1.0, 0.5]).trace(60), ConstantSpeeds([2.0, 1.0, 0.5]).trace(60)
    np.testing.assert_array_equal(scaled.worker, constant.worker)
    np.testing.assert_allclose(scaled.time, constant.time)


def test_latency_only_lengthens_every_round():
    near, far = Gamma(4).trace(200), Delayed(Gamma(4), up=1.0, down=2.0).trace(200)
    for worker in range(4):
        mine, other = near.time[near.worker == worker], far.time[far.worker == worker]
        count = min(len(mine), len(other))
        np.testing.assert_allclose(other[:count], mine[:count] + 3.0 * np.arange(1, count + 1))


# --- The queue


def test_a_queue_without_service_time_changes_nothing():
    queued, free = Queue(Gamma(5), service=0.0).trace(300), Gamma(5).trace(300)
    np.testing.assert_array_equal(queued.worker, free.worker)
    np.testing.assert_allclose(queued.time, free.time)


def test_a_saturated_queue_serves_one_worker_at_a_time_in_order_of_arrival():
    """64 workers of one gradient per unit, 0.05 per commit: 20 commits per unit of time, each worker in turn."""
    trace = Queue(Gamma(64), service=0.05).trace(4000, seed=1)
    assert (np.diff(trace.time) >= 0.05 - 1e-9).all()
    assert 4000 / trace.time[-1] == pytest.approx(20, rel=0.01)
    assert trace.staleness[200:].mean() == pytest.approx(63, rel=0.01)
    counts = np.bincount(trace.worker)
    assert counts.max() - counts.min() <= 2


def test_an_idle_queue_delays_only_by_its_service():
    trace = Queue(ConstantSpeeds([1.0]), service=0.25).trace(3)
    np.testing.assert_allclose(trace.time, [1.25, 2.5, 3.75])


# --- Incidents


@pytest.mark.slow
def test_a_run_with_incidents_obeys_the_law():
    loss_fn, params, batches = gemjax.testing.quadratic()
    trace = WRAPPED["Incidents"].trace(60)
    assert (~trace.events().commits).any()
    tx = gemjax.gem(0.05, num_workers=4)
    result = gemjax.simulate(tx, loss_fn, params, batches, trace)
    np.testing.assert_array_equal(result.history["pulled_at"], trace.pulled_at)


def test_there_are_no_commits_after_all_workers_have_left():
    with pytest.raises(ValueError, match="only 2 of 5 commits happen before the last worker has left for good"):
        Incidents(RoundRobin(1), [Leaves(0, 2.5)]).trace(5)
    assert len(Incidents(RoundRobin(1), [Leaves(0, 2.5)]).trace(2)) == 2


# --- Barriers

# N, then commits per unit of time over those behind a barrier, on a homogeneous cluster (DANA's simulation).
SPEED_UPS = [(4, 1.10), (8, 1.15), (16, 1.19), (32, 1.22), (64, 1.25)]


@pytest.mark.parametrize(("num_workers", "speed_up"), SPEED_UPS)
def test_the_speed_up_over_synchronous_training_is_the_published_one(num_workers, speed_up):
    found = arrivals.speed_up(Gamma(num_workers), 400 * num_workers)
    assert found.over_synchronous == pytest.approx(speed_up, rel=0.01)
    assert found.over_one_worker == pytest.approx(num_workers, rel=0.01)


def test_speed_up_by_hand():
    """Six gradients: together at 2, by the fast worker alone at 3, by the slow one at 6, behind a barrier at 3."""
    found = arrivals.speed_up(ConstantSpeeds([2.0, 1.0]), 6)
    assert found == (pytest.approx((3 + 6) / 2 / 2), pytest.approx(3 / 2))


def test_one_worker_alone_is_no_faster_than_itself():
    assert arrivals.speed_up(Delayed(Gamma(1), up=0.5), 50, seed=3) == (1.0, 1.0)


def test_workers_behind_a_barrier_are_compared_with_one_worker():
    """Six gradients behind a barrier at 3; by one worker alone at 3 and at 6."""
    found = arrivals.speed_up(Barrier(ConstantSpeeds([2.0, 1.0])), 6)
    assert found == (pytest.approx((3 + 6) / 2 / 3), 1.0)


def test_behind_a_barrier_views_are_those_of_the_last_meeting():
    trace = Barrier(Gamma(3, machine_variation=0.6)).trace(8)
    np.testing.assert_array_equal(trace.pulled_at, [0, 0, 0, 3, 3, 3, 6, 6])
    assert [sorted(trace.worker[k : k + 3]) for k in (0, 3)] == [[0, 1, 2]] * 2


@pytest.mark.parametrize("seed", range(3))
def test_a_barrier_of_the_first_ends_each_round_at_their_last(seed):
    """Against a loop in the words of the definition; every worker uses up a duration per round."""
    model = Scaled(arrivals.Exponential(5), [1.0, 1.0, 2.0, 0.5, 0.1])
    drawn = [draw(model, worker, seed, 30) for worker in range(5)]
    rows, now = [], 0.0
    for begin in range(0, 90, 3):
        taken = [durations[begin // 3] for durations in drawn]
        first = sorted(range(5), key=lambda worker: taken[worker])[:3]
        now += taken[first[-1]]
        rows += [(worker, begin, now) for worker in first]
    trace = Barrier(model, quorum=3).trace(90, seed)
    found = zip(trace.worker.tolist(), trace.pulled_at.tolist(), trace.time.tolist(), strict=True)
    assert [row[:2] for row in rows] == [row[:2] for row in found]
    np.testing.assert_allclose(trace.time, [row[2] for row in rows], rtol=1e-12)


def test_a_barrier_of_all_is_the_default():
    assert Barrier(Gamma(3), quorum=3).trace(40) == Barrier(Gamma(3)).trace(40)


@pytest.mark.slow
@pytest.mark.parametrize(("num_workers", "gain", "best"), [(4, 1.30, 3), (16, 1.54, 10), (64, 1.80, 40)])
def test_waiting_for_the_first_gains_what_unequal_workers_cost(num_workers, gain, best):
    """Medians over 100 heterogeneous clusters of DANA's simulation, against those of an independent loop over 400."""
    rounds, counts = 60, sorted({*range(1, num_workers + 1, max(1, num_workers // 16)), num_workers})
    gains, quorums = [], []
    for seed in range(100):
        model = Gamma(num_workers, machine_variation=0.6)
        times = [Barrier(model, quorum=count).trace(rounds * count, seed).time[-1] / count for count in counts]
        gains.append(times[-1] / min(times))
        quorums.append(counts[int(np.argmin(times))])
    assert np.median(gains) == pytest.approx(gain, rel=0.08)
    assert abs(np.median(quorums) - best) <= 0.15 * num_workers


def test_the_speed_up_of_the_first_is_over_a_barrier_of_all():
    """Twelve gradients: in six rounds of two, 3 units; in four of three, 4; by one worker alone at 3, 6 and 12."""
    found = arrivals.speed_up(Barrier(ConstantSpeeds([4.0, 2.0, 1.0]), quorum=2), 12)
    assert found == (pytest.approx((3 + 6 + 12) / 3 / 3), pytest.approx(4 / 3))


@pytest.mark.slow
def test_behind_a_barrier_asgd_is_synchronous_sgd():
    """N gradients at one point, each with weight 1/N: one step on their mean."""
    loss_fn, params, batches = gemjax.testing.quadratic(noise=0.0)
    result = gemjax.simulate(gemjax.asgd(0.3 / 4, 4), loss_fn, params, batches, Barrier(Gamma(4)).trace(40))
    alone = gemjax.simulate(gemjax.asgd(0.3), loss_fn, params, batches, RoundRobin(1).trace(10))
    np.testing.assert_allclose(result.params["x"], alone.params["x"], rtol=1e-5)


# --- Refusals


def test_the_former_name_of_latency():
    assert Delayed(Gamma(2), up=1.0, down=[0.5, 2.0]).way == (1.5, 3.0)


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_virtual_time_is_added_up_in_64_bits(kind):
    """In 16 bits it stopped at 256."""
    queue = arrivals.Queue(arrivals.Gamma(8, mean=0.05), service=kind(0.125))
    assert queue.trace(5_000) == arrivals.Queue(arrivals.Gamma(8, mean=0.05), service=0.125).trace(5_000)
