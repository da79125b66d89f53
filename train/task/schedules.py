"""Learning rates that change during a run."""

from __future__ import annotations

from typing import Any

import optax


def rate(config: Any, steps_per_epoch: float) -> optax.ScalarOrSchedule:
    """Return the learning rate of a run: a number, or a schedule if a flag asks for warm-up, decay or a cosine.

    The warm-up rises linearly from 1 / workers of the rate to the whole rate. After it, the rate is multiplied by
    `decay_factor` at each of `decay_epochs` (Hakimi et al. 2019, arXiv:1907.11612), or follows half a cosine down to 0 at the
    end of the run (Loshchilov & Hutter 2017, arXiv:1608.03983). An epoch is one pass of all workers together through the
    data, so a run has workers * epochs of them.

    Args:
      config: a :class:`train.config.config.Config`, or a namespace with its fields; its learning rate may be traced.
      steps_per_epoch: steps per epoch of the transformation that the schedule drives.

    Returns:
      The learning rate, or a function of the number of steps made so far.

    >>> from train.config.config import Config
    >>> schedule = rate(Config(workers=4, learning_rate=1.0, warmup_epochs=1.0, decay_epochs=(3.0,)), steps_per_epoch=10)
    >>> [round(float(schedule(step)), 4) for step in (0, 5, 10, 29, 30)]
    [0.25, 0.625, 1.0, 1.0, 0.1]
    >>> schedule = rate(Config(workers=4, epochs=1.0, learning_rate=1.0, schedule="cosine"), steps_per_epoch=10)
    >>> [round(float(schedule(step)), 4) for step in (0, 20, 40)]
    [1.0, 0.5, 0.0]
    """
    if not config.warmup_epochs and not config.decay_epochs and config.schedule == "constant":
        return config.learning_rate
    rises = max(1, _steps(config.warmup_epochs * steps_per_epoch)) if config.warmup_epochs else 0
    begin = 1 / config.workers if rises else 1.0
    if config.schedule == "cosine":
        total = _steps(config.workers * config.epochs * steps_per_epoch)
        # A run that ends within its warm-up has no decay.
        shape = optax.warmup_cosine_decay_schedule(begin, 1.0, rises, total if total > rises else max(1, 2 * rises))
        return lambda count: config.learning_rate * shape(count)
    warm = optax.linear_schedule(begin, 1.0, max(1, rises))
    at = [_steps(epoch * steps_per_epoch) for epoch in config.decay_epochs]
    # Several drops within one step are all made.
    drops = {step: config.decay_factor ** at.count(step) for step in at}
    decay = optax.piecewise_constant_schedule(1.0, drops)
    return lambda count: config.learning_rate * warm(count) * decay(count)


def _steps(number: float) -> Any:
    """Return the nearest whole number of steps; it is a float where JAX's int32 ends, which no run reaches."""
    return round(number) if number < 2**31 - 1 else min(number, 1e30)
