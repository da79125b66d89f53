"""Arrival models: the order and virtual times of commits."""

import numpy as np
import optax
import pytest

import gemjax
from gemjax import arrivals

MODELS = [
    arrivals.RoundRobin(4),
    arrivals.ConstantSpeeds([4.0, 2.0, 1.0, 0.5]),
    arrivals.Gamma(4),
    arrivals.Gamma(4, machine_variation=0.6, mean=128.0),
]
model = pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)


def lags(num_workers, machine_variation, seed=0, num_commits=40_000):
    """Staleness in the steady state: the first N commits are dropped, as in the published simulation."""
    return (
        arrivals.Gamma(num_workers, machine_variation=machine_variation)
        .trace(num_commits, seed)
        .staleness[num_workers:]
    )


def test_round_robin_is_exact():
    trace = arrivals.RoundRobin(3).trace(8)
    np.testing.assert_array_equal(trace.worker, [0, 1, 2, 0, 1, 2, 0, 1])
    np.testing.assert_array_equal(trace.time, [1, 1, 1, 2, 2, 2, 3, 3])
    np.testing.assert_array_equal(trace.staleness, [0, 1, 2, 2, 2, 2, 2, 2])


def test_constant_speeds_commit_in_proportion():
    speeds = np.array([7.0, 3.0, 2.0, 1.0])
    trace = arrivals.ConstantSpeeds(speeds).trace(1300)
    counts = np.bincount(trace.worker, minlength=4)
    np.testing.assert_allclose(counts, 1300 * speeds / speeds.sum(), atol=1)


def test_no_worker_starves():
    """In virtual time a worker of speed v makes floor(v·t) commits by t, whatever the others do."""
    speeds = (100.0, 10.0, 3.0, 1.0)
    trace = arrivals.ConstantSpeeds(speeds).trace(5000)
    for worker, speed in enumerate(speeds):
        made = np.cumsum(trace.worker == worker)
        np.testing.assert_array_less(speed * trace.time - 1 - 1e-6, made)
        mine = trace.time[trace.worker == worker]
        np.testing.assert_allclose(np.diff(mine, prepend=0.0), 1 / speed, rtol=1e-6)
    slowest = trace.staleness[trace.worker == 3]
    assert slowest.max() <= sum(speeds) + len(
        speeds
    )  # The most that the others can commit during one of its gradients.


def test_equal_finishing_times_are_ordered_by_worker_number():
    np.testing.assert_array_equal(arrivals.ConstantSpeeds([1.0, 2.0, 1.0]).trace(8).worker, [1, 0, 1, 2, 1, 0, 1, 2])


# N, then the standard deviation and 99th percentile of the lag on a homogeneous cluster (DANA's simulation).
LAGS = [(4, 0.63, 5), (8, 1.09, 10), (16, 1.93, 20), (32, 3.6, 40), (64, 6.8, 80)]


@pytest.mark.parametrize(("num_workers", "deviation", "percentile"), LAGS)
def test_homogeneous_gamma_has_the_published_lags(num_workers, deviation, percentile):
    lag = lags(num_workers, 0.0)
    np.testing.assert_allclose(lag.mean(), num_workers - 1, rtol=1e-3)
    np.testing.assert_allclose(lag.std(), deviation, rtol=0.05)
    np.testing.assert_allclose(np.percentile(lag, 99), percentile, atol=max(1, 0.03 * percentile))


@pytest.mark.parametrize("num_workers", [4, 16])
def test_heterogeneous_gamma_has_the_same_mean_and_long_tails(num_workers):
    """The mean lag is N - 1 on any cluster; the spread depends on the drawn machines, and is far wider."""
    spreads = []
    for seed in range(5):
        lag = lags(num_workers, 0.6, seed)
        np.testing.assert_allclose(lag.mean(), num_workers - 1, rtol=2e-2)
        spreads.append(lag.std() / lags(num_workers, 0.0, seed).std())
    assert np.median(spreads) > 2


@pytest.mark.parametrize(("machine_variation", "late"), [(0.0, 0.0094), (0.6, 0.279)])
def test_gamma_has_the_published_share_of_slow_batches(machine_variation, late):
    """Share of batches longer than 1.25 times the mean: about 1% homogeneous, 27.9% heterogeneous."""
    cluster = arrivals.Gamma(4000, machine_variation=machine_variation, mean=128.0)
    rngs = [np.random.default_rng(worker) for worker in range(cluster.num_workers)]
    times = np.stack([cluster.durations(worker, rng, 100) for worker, rng in enumerate(rngs)])
    np.testing.assert_allclose(times.mean(), 128.0, rtol=0.03)
    np.testing.assert_allclose((times > 160.0).mean(), late, rtol=0.1)


@model
def test_the_seed_decides_everything(model):
    assert model.trace(300, seed=5) == model.trace(300, seed=5)
    if isinstance(model, arrivals.Gamma):
        assert model.trace(300, seed=5) != model.trace(300, seed=6)


@pytest.mark.parametrize("num_commits", [1, 16, 79])
def test_a_longer_trace_begins_with_the_shorter_though_durations_are_0(num_commits):
    """Gamma variables of such a variation are mostly smaller than the smallest float."""
    model = arrivals.Gamma(4, batch_variation=100.0)
    assert model.trace(num_commits) == model.trace(80).first(num_commits)


@model
@pytest.mark.parametrize("num_commits", [0, 1, 3, 97, 998])
def test_a_longer_trace_begins_with_the_shorter(model, num_commits):
    longer, shorter = model.trace(1000, seed=1), model.trace(num_commits, seed=1)
    assert len(shorter) == num_commits
    assert shorter == longer.first(num_commits)


def test_a_very_uneven_cluster_is_merged_completely():
    """The fast worker makes nearly all commits, so it needs more durations than an equal share."""
    trace = arrivals.ConstantSpeeds([1000.0] + [1.0] * 9).trace(3000)
    fast = trace.time[trace.worker == 0]
    np.testing.assert_allclose(np.diff(fast), 1e-3, rtol=1e-6)
    assert np.bincount(trace.worker)[0] > 2950


def test_more_workers_do_not_change_the_durations_of_others():
    few, many = arrivals.Gamma(3, machine_variation=0.6), arrivals.Gamma(5, machine_variation=0.6)
    few, many = few.trace(600, seed=2), many.trace(1500, seed=2)
    for worker in range(3):
        mine, same = few.time[few.worker == worker], many.time[many.worker == worker]
        count = min(len(mine), len(same))
        assert count > 50
        np.testing.assert_array_equal(mine[:count], same[:count])


def test_workers_have_streams_of_their_own():
    trace = arrivals.Gamma(2).trace(200)
    mine, other = (np.diff(trace.time[trace.worker == worker])[:80] for worker in range(2))
    assert not np.isin(mine, other).any()


def test_a_variation_per_worker():
    model = arrivals.Gamma(2, batch_variation=np.array([0.05, 0.5]), mean=2.0)
    assert hash(model) == hash(arrivals.Gamma(2, batch_variation=(0.05, 0.5), mean=2.0))
    found = [model.durations(worker, np.random.default_rng(7), 20_000) for worker in range(2)]
    np.testing.assert_allclose([np.std(one) / np.mean(one) for one in found], [0.05, 0.5], rtol=0.03)
    equal = arrivals.Gamma(2, batch_variation=[0.3, 0.3]).trace(50)
    np.testing.assert_array_equal(equal.time, arrivals.Gamma(2, batch_variation=0.3).trace(50).time)
    assert len(arrivals.Gamma(2, batch_variation=np.float32(0.3)).trace(50)) == 50


def test_a_user_model_needs_one_method():
    class Doubling(arrivals.Arrivals):
        def durations(self, worker, rng, count):
            return np.full(count, 2.0**worker)

    np.testing.assert_array_equal(Doubling(2).trace(6).worker, [0, 0, 1, 0, 0, 1])
    assert isinstance(Doubling(2).trace(6), gemjax.Trace)


# --- Meetings

CONSTANT = arrivals.ConstantSpeeds([4.0, 2.0, 1.0])
MEETING = [
    (arrivals.RoundRobin(4), 3),
    (CONSTANT, 5),
    (arrivals.Gamma(4), 1),
    (arrivals.Gamma(6, machine_variation=0.8), 4),
]
meeting = pytest.mark.parametrize(("model", "period"), MEETING)


@meeting
def test_between_meetings_workers_take_their_steps_together(model, period):
    """N times the period, of which every worker takes at least one."""
    trace, periods = arrivals.SemiSynchronous(model, period).trace(20, seed=3)
    taken = np.array(periods)
    assert taken.shape == (model.num_workers, 20)
    np.testing.assert_array_equal(taken.sum(0), np.full(20, model.num_workers * period))
    assert taken.min() >= 1
    assert len(trace) == 20 * model.num_workers
    assert all(type(count) is int for row in periods for count in row)


@meeting
def test_all_commit_at_a_meeting_and_pull_after_it(model, period):
    trace, _ = arrivals.SemiSynchronous(model, period).trace(20, seed=3)
    who, n = trace.worker.reshape(20, -1), model.num_workers
    np.testing.assert_array_equal(np.sort(who), np.tile(np.arange(n), (20, 1)))
    np.testing.assert_array_equal(trace.pulled_at, np.repeat(n * np.arange(20), n))
    np.testing.assert_array_equal(trace.step, np.repeat(np.arange(20), n))
    time = trace.time.reshape(20, -1)
    np.testing.assert_array_equal(time, np.tile(time[:, :1], (1, n)))
    assert (np.diff(time[:, 0], prepend=0.0) > 0).all()


def test_a_meeting_by_hand():
    """Speeds 4, 2, 1, 9 steps: at 0.25, 0.5, 0.5, 0.75, 1, 1 the next is assigned; ties are ordered by worker number."""
    trace, periods = arrivals.SemiSynchronous(CONSTANT, period=3).trace(3)
    # At 0 each worker gets one; then 0, 0, 1, 0, 0, 1 (worker 2 is also ready at 1, but comes last): 5, 3, 1 steps.
    assert periods == ((5, 5, 5), (3, 3, 3), (1, 1, 1))
    # They join at 5/4, 3/2 and 1.
    np.testing.assert_array_equal(trace.worker, [2, 0, 1] * 3)
    np.testing.assert_array_equal(trace.time, np.repeat([1.5, 3.0, 4.5], 3))


@pytest.mark.parametrize(
    ("speeds", "period"),
    [((9.0, 9.0, 1.0), 4), ((11.0, 6.0, 7.0, 11.0), 6), ((10.0, 6.0, 5.0, 4.0), 3), ((3.0, 1.0), 2)],
)
def test_constant_speeds_make_every_meeting_like_the_first(speeds, period):
    """Ties stay ties."""
    trace, periods = arrivals.SemiSynchronous(arrivals.ConstantSpeeds(speeds), period).trace(60)
    assert periods == tuple((row[0],) * 60 for row in periods)
    who = trace.worker.reshape(60, -1)
    np.testing.assert_array_equal(who, np.tile(who[0], (60, 1)))
    np.testing.assert_allclose(trace.time[:: len(speeds)], trace.time[0] * np.arange(1, 61), rtol=1e-12)


class Written(arrivals.Arrivals):
    """A model of given durations, followed by durations of 100."""

    rows = ((1.0, 1.0, 4.0, 1.0, 7.0), (3.0, 2.0, 1.0, 1.0, 1.0))

    def durations(self, worker, rng, count):
        return np.concatenate([self.rows[worker], np.full(count, 100.0)])[:count]


def test_durations_go_on_from_meeting_to_meeting():
    trace, periods = arrivals.SemiSynchronous(Written(2), period=2).trace(2)
    # From 0: worker 0 finishes at 1 and 2 and takes both further steps, the last until 6; worker 1 joins at 3.
    # From 6, with the rest, (1, 7) and (2, 1, 1, 1): worker 0 finishes at 1, worker 1 at 2; each takes one further
    # step, and they join at 8 and 3.
    assert periods == ((3, 2), (1, 2))
    np.testing.assert_array_equal(trace.worker, [1, 0, 1, 0])
    np.testing.assert_array_equal(trace.time, [6.0, 6.0, 14.0, 14.0])


@pytest.mark.parametrize("seed", [2**63 + 1, 2**64 - 2, np.uint64(2**63 + 5)])
def test_every_digit_of_a_large_seed_counts(seed):
    found = {tuple(arrivals.Gamma(2).trace(8, seed=one).time) for one in (0, seed, seed + 1, seed - 1)}
    assert len(found) == 4


def test_with_a_period_of_one_it_is_a_barrier():
    """One step per worker, and all wait for the slowest."""
    model = arrivals.Gamma(5, machine_variation=0.6)
    trace, periods = arrivals.SemiSynchronous(model).trace(30, seed=7)
    assert periods == ((1,) * 30,) * 5
    free = model.trace(5000, seed=7)  # The same durations, without a barrier.
    durations = np.stack([np.diff(free.time[free.worker == w], prepend=0.0)[:30] for w in range(5)])
    np.testing.assert_allclose(trace.time, np.repeat(np.cumsum(durations.max(0)), 5), rtol=1e-9)
    np.testing.assert_array_equal(trace.worker, np.argsort(durations, axis=0).T.ravel())


def test_the_periods_fit_the_trace():
    """A simulation takes both."""
    trace, periods = arrivals.SemiSynchronous(arrivals.Gamma(3), 4).trace(6, seed=2)
    first, count = gemjax.LocalSteps(optax.sgd(0.1), periods).span(trace.worker, trace.step)
    assert count.sum() == 6 * 3 * 4
    for worker in range(3):
        mine = trace.worker == worker
        np.testing.assert_array_equal(first[mine][1:], np.cumsum(count[mine])[:-1])
