"""Methods, local steps and learning rates, made from a configuration, and the state of a run that begins with them."""

import dataclasses
import types
from typing import Any

import jax
import optax

import gemjax
from train.common.errors import UsageError
from train.config.config import Config
from train.config.methods import METHODS
from train.task.cluster import mean_period, periods
from train.task.task import PyTree, Task

Arguments = tuple[tuple[Any, Any, Any, Any], dict[str, Any]]


def make_method(config: Config, steps_per_epoch: float = 1.0, **point: Any) -> optax.GradientTransformation:
    """Return the method of a run, with its schedule and weight decay.

    Weight decay is the papers' L2 term: `weight_decay` times the weights is added to a gradient before the method sees it,
    by `optax.add_decayed_weights`. The weights are those of the central variable at the commit, as where a parameter
    server's optimizer has the decay. With a method with local steps they are the worker's own, at each of its steps.

    Args:
      config: the run.
      steps_per_epoch: gradients per pass through the data.
      point: numbers in place of those of `config`, which may be traced.

    Raises:
      UsageError: if the method refuses a number.
    """
    config = _at(config, point)
    facts, function = METHODS[config.method], maker(config.method)
    given = {name: value for name in facts.takes if (value := getattr(config, name)) is not None}
    if not facts.local:
        given["learning_rate"] = scheduled_rate(config, steps_per_epoch)
    elif config.outer_learning_rate is not None:  # Otherwise the published one, the default of the function.
        given["learning_rate"] = config.outer_learning_rate
    try:
        tx = function(num_workers=config.workers, **given)
    except ValueError as error:
        raise UsageError(f"{config.method}: {error}") from error
    tx = tx if facts.local else _decayed(config, tx)
    if config.compression == "none":
        return tx
    return gemjax.asynchronous(optax.chain(gemjax.rules.round_to(config.compression), tx), config.workers)


def local_steps(config: Config, steps_per_epoch: float = 1.0, **point: Any) -> gemjax.LocalSteps | None:
    """Return the local steps between two commits: `period` steps of SGD or AdamW; None for a method without them.

    A schedule follows the progress of the whole run, see :func:`gemjax.rules.scale_by_progress`. The arguments are those of
    :func:`make_method`.
    """
    if not METHODS[config.method].local:
        return None
    config = _at(config, point)
    momentum = config.local_momentum or None
    rate = scheduled_rate(config, steps_per_epoch / config.workers)
    whole = 1.0 if callable(rate) else rate
    if config.local_optimizer == "adamw":
        tx: optax.GradientTransformation = optax.adamw(whole, weight_decay=config.weight_decay)
    else:
        tx = _decayed(config, optax.sgd(whole, momentum, nesterov=bool(momentum)))
    if callable(rate):
        tx = optax.chain(tx, gemjax.rules.scale_by_progress(rate, mean_period(config), config.workers))
    return gemjax.LocalSteps(tx, periods(config))


def arguments(config: Config, task: Task) -> Arguments:
    """Return the arguments that every engine takes of a run: positional ones, up to the batches, and keywords.

    Engines find compiled programs by the identity of these objects: keep them for further calls.
    """
    steps = task.batches.steps_per_epoch
    given = make_method(config, steps), task.loss_fn, task.params, task.batches
    return given, {"model_state": task.model_state, "local": local_steps(config, steps), "seed": config.seed}


def initial_state(config: Config, passed: Arguments, device: jax.Device) -> gemjax.RunState:
    """Return the state of a run before its first commit, on a device; `passed` is from :func:`arguments`."""
    (tx, _, params, _), shared = passed

    def begin(params: PyTree, model_state: PyTree) -> gemjax.RunState:
        return gemjax.initial_state(
            tx, params, num_workers=config.workers, model_state=model_state, local=shared["local"]
        )

    with jax.default_device(device):
        return jax.jit(begin)(params, shared["model_state"])  # Eagerly each operation would be compiled by itself.


def state_shapes(config: Config, passed: Arguments, device: jax.Device) -> gemjax.RunState:
    """Return the shapes of the state of a run, on a device, to load a checkpoint into."""
    like = jax.eval_shape(lambda: initial_state(config, passed, device))
    sharding = jax.sharding.SingleDeviceSharding(device)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), like)


def scheduled_rate(config: Any, steps_per_epoch: float) -> optax.ScalarOrSchedule:
    """Return the learning rate of a run: a number, or a schedule if a flag asks for warm-up, decay or a cosine.

    The warm-up rises linearly from 1 / workers of the rate to the whole rate. After it, the rate is multiplied by
    `decay_factor` at each of `decay_epochs` (Hakimi et al. 2019, arXiv:1907.11612), or follows half a cosine down to 0 at the
    end of the run (Loshchilov & Hutter 2017, arXiv:1608.03983). An epoch is one pass of all workers together through the
    data, so a run has workers * epochs of them.

    Args:
      config: a :class:`Config`, or a namespace with its fields; its learning rate may be traced.
      steps_per_epoch: steps per epoch of the transformation that the schedule drives.

    Returns:
      The learning rate, or a function of the number of steps made so far.

    >>> config = Config(workers=4, learning_rate=1.0, warmup_epochs=1.0, decay_epochs=(3.0,))
    >>> schedule = scheduled_rate(config, steps_per_epoch=10)
    >>> [round(float(schedule(step)), 4) for step in (0, 5, 10, 29, 30)]
    [0.25, 0.625, 1.0, 1.0, 0.1]
    >>> schedule = scheduled_rate(Config(workers=4, epochs=1.0, learning_rate=1.0, schedule="cosine"), steps_per_epoch=10)
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


def maker(method: str) -> Any:
    """Return the function that makes a method."""
    return COMPOSITIONS.get(method) or getattr(gemjax, method)


def dc_momentum_asgd(
    learning_rate: Any, momentum: float = 0.9, num_workers: int = 1, *, strength: float = 2.0
) -> optax.GradientTransformationExtraArgs:
    """Return delay compensation before one momentum shared by all workers, which DANA's experiments call DC-ASGD."""
    tx = optax.chain(gemjax.rules.compensate_delay(strength), optax.sgd(learning_rate, momentum))
    return gemjax.asynchronous(tx, num_workers)


def outer_nesterov(
    learning_rate: Any = 0.07, momentum: float = 0.9, num_workers: int = 1
) -> optax.GradientTransformationExtraArgs:
    """Return Nesterov's momentum at every commit, the baseline of Delayed Nesterov."""
    return gemjax.delayed_nesterov(learning_rate, momentum, num_workers, buffer_size=1)


def m_synchronous_sgd(
    learning_rate: Any, momentum: float = 0.9, num_workers: int = 1, *, quorum: int | None = None
) -> optax.GradientTransformationExtraArgs:
    """Return synchronous SGD: a step of Nesterov's momentum by the mean of a round's first `quorum` gradients, or of all."""
    return gemjax.rennala(learning_rate, num_workers, batch_size=quorum, inner=optax.trace(momentum, nesterov=True))


COMPOSITIONS = {function.__name__: function for function in (dc_momentum_asgd, outer_nesterov, m_synchronous_sgd)}


def _at(config: Config, point: dict[str, Any]) -> Any:
    """Return `config` with its learning rate and the numbers of `point`; a `Config` could not check traced ones."""
    return types.SimpleNamespace(**dataclasses.asdict(config) | {"learning_rate": config.rate} | point)


def _decayed(config: Config, tx: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return `tx` behind weight decay, if there is any."""
    return optax.chain(optax.add_decayed_weights(config.weight_decay), tx) if config.weight_decay else tx
