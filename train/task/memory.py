"""The memory that a run keeps, computed before it begins."""

import jax

import gemjax
from gemjax.engines.devices.roster import Roster
from gemjax.engines.memory import check_fits
from train.config.config import Config
from train.task.methods import local_steps, make_method
from train.task.task import PyTree


def check_memory(config: Config, params: PyTree, policy: gemjax.Policy | None = None) -> dict[str, int]:
    """Return the bytes that a run keeps, by purpose; that several accelerators hold them is not checked.

    Args:
      config: the run.
      params: its parameters, or their shapes.
      policy: that of a run with real workers.

    Raises:
      MemoryError: if they do not fit.
    """
    kept = _memory(config, params, (policy and policy.quorum) or 1)
    on_cpu = jax.default_backend() == "cpu"  # All CPU devices share the host's memory.
    one = len(jax.local_devices()) == 1 and config.central_devices == 1 and config.central in ("auto", "colocated")
    if config.engine == "simulate" or on_cpu:
        check_fits(kept, jax.devices()[0])
    elif one and config.engine == "devices":
        advice = "fewer workers, --central host, or a method that keeps fewer copies of the parameters per worker"
        check_fits(kept, jax.local_devices()[0], advice)
    return kept


def _memory(config: Config, params: PyTree, quorum: int) -> dict[str, int]:
    kept = gemjax.memory_of(make_method(config), params, num_workers=config.workers, local=local_steps(config))
    if config.central_hosts and config.address is not None:  # The rest is in actors on other hosts.
        here = ("central variable", "local optimizers")
        kept = {name: kept[name] for name in here if name in kept} | {
            "its copy in a callback": kept["central variable"]
        }
    # Workers hold their views and gradients with every method, but not in the memory of this host if they are on others.
    if config.engine != "simulate" and config.address is None:
        copy, gradients = kept["central variable"], config.workers
        # A CPU may not be split into its devices yet, and on a cluster each worker has its own.
        if config.engine == "devices" and jax.default_backend() != "cpu":
            gradients = min(gradients, Roster.ROOM * len(jax.local_devices()) + quorum - 1)
        kept |= {"views": kept["views"] + config.workers * copy, "gradients": gradients * copy}
    return kept
