"""A small benchmark and made-up records of its runs."""

import dataclasses

from train.claims.runs import num_commits
from train.config.datasets import DATASETS
from train.sweep.benchmark.settings import (
    QUICK,
)

SMALL = dataclasses.replace(
    QUICK, settings=QUICK.settings[:1], methods=("asgd", "gem", "easgd"), seeds=(0, 1, 2), evaluations=3
)
BEST = 0.02  # The rate at which made-up runs have the least loss.


def made_up(run, accuracy=0.9, pace=1.0):
    """Return a record in which the accuracy rises linearly to its end, `pace` commits per unit of time."""
    total = num_commits(run.config, DATASETS[run.config.dataset].rows)
    looks = [total * (k + 1) // run.evaluations for k in range(run.evaluations)]
    return {
        "test_accuracy": accuracy + 0.001 * run.config.seed if run.config.seed < 100 else accuracy,
        "final_loss": abs(run.config.learning_rate - BEST),
        "evaluations": {"commits": looks, "test_accuracy": [accuracy * look / total for look in looks]},
        "curve": {"commits": [total // 2, total], "time": [total / 2 / pace, total / pace]},
        "time": total / pace,
        "seconds": 1.0,
    }
