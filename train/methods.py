"""The methods by the names that the command line knows."""

from collections.abc import Callable

import optax

import gemjax
from train.config import Config

METHODS: dict[str, Callable[[Config], optax.GradientTransformation]] = {
    "gem": lambda c: gemjax.gem(c.learning_rate, c.momentum, c.workers, kappa=c.kappa, reading=c.reading),
    "asgd": lambda c: gemjax.asgd(c.learning_rate, c.workers),
    "multi_asgd": lambda c: gemjax.multi_asgd(c.learning_rate, c.momentum, c.workers),
    "staleness_aware": lambda c: gemjax.staleness_aware(c.learning_rate, c.workers),
    "dynsgd": lambda c: gemjax.dynsgd(c.learning_rate, c.workers),
    "momentum_asgd": lambda c: gemjax.momentum_asgd(c.learning_rate, c.momentum, c.workers),
    "nag_asgd": lambda c: gemjax.nag_asgd(c.learning_rate, c.momentum, c.workers),
    "delay_adaptive": lambda c: gemjax.delay_adaptive(c.learning_rate, c.workers),
    "dana_slim": lambda c: gemjax.dana_slim(c.learning_rate, c.momentum, c.workers),
    "dana_zero": lambda c: gemjax.dana_zero(c.learning_rate, c.momentum, c.workers),
    "dana_dc": lambda c: gemjax.dana_dc(c.learning_rate, c.momentum, c.workers),
    "dc_asgd": lambda c: gemjax.dc_asgd(c.learning_rate, c.workers, variant=c.variant),
    "gap_aware": lambda c: gemjax.gap_aware(c.learning_rate, c.momentum, c.workers),
    "gap_aware_adam": lambda c: gemjax.gap_aware_adam(c.learning_rate, c.workers),
    "dana_ga": lambda c: gemjax.dana_ga(c.learning_rate, c.momentum, c.workers),
    "lwp": lambda c: gemjax.lwp(c.learning_rate, c.momentum, c.workers),
    "one_step_delay": lambda c: gemjax.one_step_delay(c.learning_rate, c.momentum, c.workers),
    "yellowfin": lambda c: gemjax.yellowfin(c.learning_rate, c.workers),
}


def local_steps(config: Config) -> gemjax.LocalSteps | None:
    """What workers do between two commits: nothing, or `config.period` steps of (momentum) SGD."""
    return None
