"""Simulations with local steps of several periods."""

import optax
import pytest
from engines.problems import late, quadratic

import gemjax

SGD = optax.sgd(0.1)
QUADRATIC = quadratic()
LATE = late()


def run(local, problem=QUADRATIC, trace=LATE, tx=None, **options):
    tx = gemjax.downpour(num_workers=trace.num_workers) if tx is None else tx
    options = {"model_state": problem.model_state} | options
    return gemjax.simulate(tx, problem.loss_fn, problem.params, problem.batches, trace, local=local, **options)


PERIODS = {
    "same": 3,
    "worker": (1, 4, 2),
    "table": ((2, 1, 3, 1, 1, 2, 1), (4, 4, 4, 4, 4, 4, 4), (1, 2, 3, 1, 2, 3, 1)),
}
# A table covers the simpler kinds.
periods = pytest.mark.parametrize(
    "period",
    [pytest.param(p, id=name, marks=() if name == "table" else pytest.mark.slow) for name, p in PERIODS.items()],
)
TURNS = gemjax.Trace([0, 1, 2] * 7)


def pairs(period, trace=TURNS):
    """Return the (worker, local step) pairs of all commits, in order, by counting."""
    counted, taken = [0] * trace.num_workers, []
    for worker, commit in zip(trace.worker.tolist(), trace.step.tolist(), strict=True):
        row = period if isinstance(period, int) else period[worker]
        count = row if isinstance(row, int) else row[commit]
        taken.append([(worker, counted[worker] + j) for j in range(count)])
        counted[worker] += count
    return taken
