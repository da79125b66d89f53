"""Tuning in the benchmark: the same budget for every method, and its rungs."""

import jax
import jax.numpy as jnp
import pytest
from made_up_runs import BEST, SMALL, made_up

from train.claims.execution.batch import numbers
from train.claims.runs import num_commits
from train.config.datasets import DATASETS
from train.config.methods import METHODS
from train.sweep.benchmark import settings
from train.sweep.benchmark.benchmark import Benchmark, alike
from train.sweep.benchmark.settings import (
    FAST,
    FIRST,
    FIRST_ONLY,
    FREE,
    FULL,
    LOCAL,
    NETWORKED,
    ONE,
    QUICK,
    SEARCH_SPACES,
    SLOW,
    SYNCHRONOUS,
    UNEQUAL,
    Entry,
)
from train.task.cluster import mean_period
from train.task.methods import local_steps, make_method


@pytest.mark.parametrize("name", SEARCH_SPACES)
@pytest.mark.parametrize("workers", [4, 16, 64])
def test_every_method_has_the_same_budget(name, workers):
    candidates = SEARCH_SPACES[name].candidates(workers)
    quorums = len(settings._quorums(workers)) / 2 if name == FIRST_ONLY else 1  # The baseline has more than any method.
    assert len({tuple(one.items()) for one in candidates}) == 12 * quorums
    configs = [FULL.config(Entry("cifar", workers, UNEQUAL, name), one, 1, 0) for one in candidates]
    rows = DATASETS["cifar10_jpeg"].rows
    gradients = {num_commits(config, rows) * mean_period(config) for config in configs}
    assert gradients == {FULL.gradients}
    factor = SEARCH_SPACES[name].factor(workers)
    rates = [config.learning_rate / factor for config in configs]
    assert min(rates) == pytest.approx(0.0006)
    assert max(rates) >= 0.2 * 0.999
    assert all(config.cluster.endswith("barrier") == (name in (SYNCHRONOUS, FIRST_ONLY, LOCAL)) for config in configs)


@pytest.mark.parametrize("name", [LOCAL, "easgd", "heloco"])
def test_on_a_network_periods_are_tuned_by_the_loss_after_the_same_virtual_time(name):
    entry = Entry("cifar", 8, UNEQUAL, name, SLOW)
    runs = [run for run in FULL.next_runs(entry, {})[0] if run.config.learning_rate == 0.02]
    rows, share = DATASETS["cifar10_jpeg"].rows, FULL.rungs[0][1]
    counts = [num_commits(run.config, rows) for run in runs]
    times = [count * (run.config.period + run.config.transfer) for run, count in zip(runs, counts, strict=True)]
    assert {run.config.period for run in runs} == {8, 32}
    assert max(times) - min(times) <= 2 * (32 + 10)
    gradients = [count * run.config.period for run, count in zip(runs, counts, strict=True)]
    assert sum(gradients) == pytest.approx(len(runs) * share * FULL.gradients, rel=0.02)
    reported = FULL.config(entry, {"learning_rate": 0.02, "period": 32}, 1, 0)
    assert num_commits(reported, rows) * 32 == FULL.gradients


def test_every_method_of_the_library_takes_part_and_the_budget_is_that_of_the_rungs():
    assert {*FULL.methods, FIRST_ONLY} == set(METHODS)
    assert FULL.budget == 40_000
    assert len(FULL.entries()) == 12 * (len(FULL.methods) + 3) + 6 * (9 + 3) + 6 * (len(NETWORKED) + 3) + 3
    core = [entry for entry in FULL.entries() if FULL.is_core(entry)]
    assert len(core) == 2 * len(FULL.methods) + 10 * len((*FIRST, *FAST)) + 6 * 9 + 6 * len(NETWORKED) + 24 * 3 + 3
    assert Benchmark().entries == core
    assert {entry.setting for entry in Benchmark(methods=("diloco",)).entries if entry.method == "diloco"} == {
        setting for setting in FULL.settings if setting[0] != "characters" and setting[3] == FREE
    }
    assert FULL.gradients // 64 >= 250
    first = FULL.entries()[:12]
    assert first[0] == Entry("cifar", 1, "homogeneous", ONE)
    assert all(entry.setting == ("cifar", 16, UNEQUAL, FREE) for entry in first[1:])
    assert len(set(FULL.entries())) == len(FULL.entries())


def test_each_rung_keeps_the_best_candidates_and_other_seeds_are_reported():
    entry, known = Entry("digits", 16, UNEQUAL, "gem"), {}
    sizes, shares = [], []
    while True:
        runs, best = SMALL.next_runs(entry, known)
        if all(run in known for run in runs):
            break
        sizes.append(len(runs))
        shares.append({num_commits(run.config, 1437) for run in runs})
        known |= {run: made_up(run) for run in runs}
    assert sizes == [12, 4, 3]
    assert shares == [{600}, {1200}, {4800}]
    assert best["learning_rate"] == BEST
    assert {run.config.seed for run in runs} == {0, 1, 2}
    assert settings.TUNING not in SMALL.seeds


def test_runs_of_one_program_have_one_quorum():
    runs, _ = SMALL.next_runs(Entry("digits", 16, UNEQUAL, FIRST_ONLY), {})
    groups = alike(runs)
    assert [run for group in groups for run in sorted(group, key=runs.index)] == sorted(
        runs, key=lambda run: (run.config.quorum, runs.index(run))
    )
    assert [{run.config.quorum for run in group} for group in groups] == [{8}, {10}, {12}, {14}, {16}]
    assert len(alike(SMALL.next_runs(Entry("digits", 16, UNEQUAL, "gem"), {})[0])) == 1


def test_a_candidate_that_failed_is_never_kept():
    entry = Entry("digits", 16, UNEQUAL, "asgd")
    runs, _ = SMALL.next_runs(entry, {})
    known = {run: made_up(run) | {"final_loss": None if run.config.learning_rate == BEST else 1.0} for run in runs}
    following, _ = SMALL.next_runs(entry, known)
    assert BEST not in {run.config.learning_rate for run in following}


@pytest.mark.parametrize("name", SEARCH_SPACES)
def test_all_numbers_that_are_tuned_are_arguments_of_the_program(name):
    space = SEARCH_SPACES[name]
    candidate = space.candidates(4)[0]
    config = QUICK.config(Entry("digits", 4, UNEQUAL, name), candidate, 1, 0)
    assert set(candidate) - {"quorum"} <= set(numbers(config))  # A quorum has a program of its own.

    def begin(point, params):
        tx, local = make_method(config, 100.0, **point), local_steps(config, 100.0, **point)
        state = tx.init(params)
        return state if local is None else (state, local.tx.init(params))

    jax.eval_shape(begin, {name: getattr(config, name) for name in numbers(config)}, {"w": jnp.zeros(3)})
