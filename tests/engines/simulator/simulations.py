"""Simulations of small problems, which the tests of the simulator share."""

import functools

import jax
from engines.problems import (
    late,
    mlp,
    quadratic,
)

import gemjax

MLP = mlp()
QUADRATIC = quadratic()
LATE = late()
_compiled: list[float] = []


@jax.monitoring.register_event_duration_secs_listener
def _listen(event, duration, **_):
    if event == "/jax/core/compile/backend_compile_duration":
        _compiled.append(duration)


@functools.cache
def made(make, num_workers):
    """Return one object per method, so that a second run of a test compiles nothing."""
    return make(num_workers)


def programs():
    """Return the number of programs that were compiled in this process."""
    return len(_compiled)


def run(problem, make, trace, **options):
    options = {"model_state": problem.model_state, "local": getattr(make, "local", None)} | options
    return gemjax.simulate(
        made(make, trace.num_workers), problem.loss_fn, problem.params, problem.batches, trace, **options
    )


def gem(num_workers):
    return gemjax.gem(0.05, num_workers=num_workers)


def multi_asgd(num_workers):
    return gemjax.multi_asgd(0.02, num_workers=num_workers)


def asgd(num_workers):
    return gemjax.asgd(0.05, num_workers=num_workers)
