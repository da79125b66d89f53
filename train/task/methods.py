"""The methods by the names that the command line knows."""

import dataclasses
import types
from collections.abc import Callable
from typing import Any

import optax

import gemjax
from train.config.config import Config, Method
from train.config.validation import LOCAL
from train.task import cluster as pace
from train.task import schedules

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
    "dana_dc": lambda c: gemjax.dana_dc(c.learning_rate, c.momentum, c.workers, **_strength(c)),
    "dc_asgd": lambda c: gemjax.dc_asgd(c.learning_rate, c.workers, variant=c.variant, **_strength(c)),
    "dc_momentum_asgd": lambda c: _dc_momentum(c),
    "gap_aware": lambda c: gemjax.gap_aware(c.learning_rate, c.momentum, c.workers),
    "gap_aware_adam": lambda c: gemjax.gap_aware_adam(c.learning_rate, c.workers),
    "dana_ga": lambda c: gemjax.dana_ga(c.learning_rate, c.momentum, c.workers),
    "lwp": lambda c: gemjax.lwp(c.learning_rate, c.momentum, c.workers),
    "one_step_delay": lambda c: gemjax.one_step_delay(c.learning_rate, c.momentum, c.workers, **_strength(c)),
    "yellowfin": lambda c: gemjax.yellowfin(c.learning_rate, c.workers),
    "eamsgd": lambda c: gemjax.eamsgd(c.learning_rate, c.momentum, c.workers, **_strength(c)),
    "ringmaster": lambda c: gemjax.ringmaster(c.learning_rate, c.workers),
    "rennala": lambda c: gemjax.rennala(c.learning_rate, c.workers),
    "downpour": lambda c: gemjax.downpour(_outer(c, 1.0), c.workers),
    "agn": lambda c: gemjax.agn(_outer(c, 1.0), c.workers),
    "easgd": lambda c: gemjax.easgd(_outer(c, 1.0), c.workers, **_strength(c)),
    "lsgd": lambda c: gemjax.lsgd(_outer(c, 1.0), c.workers, **_strength(c)),
    "outer_nesterov": lambda c: gemjax.delayed_nesterov(_outer(c, 0.07), c.momentum, c.workers, buffer_size=1),
    "delayed_nesterov": lambda c: gemjax.delayed_nesterov(_outer(c, 0.07), c.momentum, c.workers),
    "diloco": lambda c: gemjax.diloco(_outer(c, 0.7), c.momentum, c.workers),
    "momentum_lookahead": lambda c: gemjax.momentum_lookahead(_outer(c, 0.7), c.momentum, c.workers),
    "heloco": lambda c: gemjax.heloco(_outer(c, 0.7), c.momentum, c.workers),
}


def _strength(config: Config) -> dict[str, Any]:
    """The strength of a method that has one, if it is given."""
    return {} if config.strength is None else {"strength": config.strength}


def _dc_momentum(config: Config) -> optax.GradientTransformation:
    """Delay compensation in front of one momentum for all, which DANA's experiments call DC-ASGD."""
    compensate = gemjax.compensate_delay(2.0 if config.strength is None else config.strength)
    momentum = optax.sgd(config.learning_rate, config.momentum)
    return gemjax.asynchronous(optax.chain(compensate, momentum), config.workers)


def _outer(config: Config, published: float) -> float:
    """The rate at the centre of a method whose workers have a rate of their own."""
    return published if config.outer_learning_rate is None else config.outer_learning_rate


def make_method(config: Config, steps_per_epoch: float = 1.0) -> optax.GradientTransformation:
    """The method of a run, with its schedule and weight decay.

    Weight decay is the papers' L2 term: `weight_decay` times the weights is added to a gradient before the method sees it,
    by `optax.add_decayed_weights`. The weights are the central ones at the time of the commit, as where a parameter
    server's optimizer has the decay; of methods with local steps they are the worker's own, at each of its steps.

    Args:
      config: what the run is; a namespace with the same fields will do, whose numbers may be traced.
      steps_per_epoch: gradients that go through the data once.
    """
    fields = dataclasses.asdict(config) if dataclasses.is_dataclass(config) else vars(config)
    rate = schedules.rate(config, steps_per_epoch)
    own: Any = types.SimpleNamespace(**fields | {"learning_rate": rate})
    tx = METHODS[config.method](own)
    return tx if config.method in LOCAL else _decayed(config, tx)


def at(config: Config, point: dict[str, Any]) -> Any:
    """A configuration with numbers that are traced, which a `Config` could not check."""
    return types.SimpleNamespace(**dataclasses.asdict(config) | point)


def local_steps(config: Config, steps_per_epoch: float = 1.0) -> gemjax.LocalSteps | None:
    """What workers do between two commits: `period` steps of SGD, with the methods that are made for that.

    A worker's schedule counts its own steps: an epoch of all workers together is its share of one.
    """
    if config.method not in LOCAL:
        return None
    momentum = config.local_momentum or None
    rate = schedules.rate(config, steps_per_epoch / config.workers)
    tx = _decayed(config, optax.sgd(rate, momentum, nesterov=bool(momentum)))
    return gemjax.LocalSteps(tx, pace.periods(config))


def _decayed(config: Config, tx: optax.GradientTransformation) -> optax.GradientTransformation:
    """`tx` behind weight decay, if there is any."""
    return optax.chain(optax.add_decayed_weights(config.weight_decay), tx) if config.weight_decay else tx


def knobs(method: Method) -> frozenset[str]:
    """Which hyper-parameters a method reads: of `learning_rate`, `momentum`, `kappa` and `strength`."""
    seen = set()

    class Seen:
        def __getattr__(self, name: str) -> Any:
            seen.add(name)
            return getattr(config, name)

    config: Any = Config(method=method)
    METHODS[method](Seen())  # pyrefly: ignore
    if method in LOCAL:
        seen.add("learning_rate")  # Of the local steps.
    return frozenset(seen & {"learning_rate", "momentum", "kappa", "strength"})
