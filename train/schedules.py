"""Learning rates that change during a run."""

from __future__ import annotations

from typing import Any

import optax


def rate(config: Any, steps_per_epoch: float) -> optax.ScalarOrSchedule:
    """The learning rate of a run: a number, or a schedule where `--warmup-epochs` or `--decay-epochs` are given.

    It rises linearly from 1 / workers of the rate to all of it, and is multiplied by `decay_factor` at each of `decay_epochs`
    (Hakimi et al. 2019, arXiv:1907.11612). Epochs are of the data and of all workers together, whatever their number.

    Args:
      config: a :class:`train.config.Config`, or a namespace with its fields; its learning rate may be traced.
      steps_per_epoch: steps of what is to follow the schedule that make an epoch.

    >>> from train.config import Config
    >>> schedule = rate(Config(workers=4, learning_rate=1.0, warmup_epochs=1.0, decay_epochs=(3.0,)), steps_per_epoch=10)
    >>> [round(float(schedule(step)), 4) for step in (0, 5, 10, 29, 30)]
    [0.25, 0.625, 1.0, 1.0, 0.1]
    """
    if not config.warmup_epochs and not config.decay_epochs:
        return config.learning_rate
    rises = max(1, round(config.warmup_epochs * steps_per_epoch))
    begin = 1 / config.workers if config.warmup_epochs else 1.0
    warm = optax.linear_schedule(begin, 1.0, rises)
    at = [round(epoch * steps_per_epoch) for epoch in config.decay_epochs]
    # Shares of an epoch can fall on the same step.
    drops = {step: config.decay_factor ** at.count(step) for step in at}
    decay = optax.piecewise_constant_schedule(1.0, drops)
    return lambda count: config.learning_rate * warm(count) * decay(count)
