"""The memory that a run keeps, computed before it begins."""

import jax
from rich.console import Console

import gemjax
from gemjax.engines.devices.roster import Roster
from gemjax.engines.memory import check_fits, readable
from train.common.console import say
from train.common.machine import in_its_precision
from train.config.config import Config
from train.config.parsing import in_flags
from train.task.cluster import policy
from train.task.methods import local_steps, make_method
from train.task.task import PyTree, Task, make_task, parameter_shapes


@in_its_precision
def dry_run(config: Config, console: Console) -> None:
    """Print what the run would be and the memory that it would keep.

    Raises:
      MemoryError: if that does not fit, after it has been printed.
    """
    if config.engine != "simulate":
        policy(config)  # Refuses numbers that do not go together.
    params, lacking = parameter_shapes(config), ""
    try:
        task = make_task(config)
    except FileNotFoundError as error:  # Original files are missing; the kept memory does not depend on them.
        task, lacking = None, str(error)
    data = "not known before they are prepared"
    if task is not None:
        data = readable(sum(leaf.nbytes for leaf in jax.tree.leaves(task.batches.data)))
    kept = _memory(config, params)
    announce(config, params, task, console)
    parts = ", ".join(f"{name} {readable(size)}" for name, size in kept.items() if size)
    more = "gradients and activations" if config.engine == "simulate" else "activations"
    say(console, f"it keeps {readable(sum(kept.values()))}: {parts}; data: {data}; {more} come on top")
    if lacking:
        say(console, f"but {in_flags(lacking)}")
    check_memory(config, params)


def check_memory(config: Config, params: PyTree) -> None:
    """Check that the kept memory of a run fits; several accelerators that share it are not checked.

    Raises:
      MemoryError: if it does not fit.
    """
    on_cpu = jax.default_backend() == "cpu"  # All CPU devices share the host's memory.
    one = len(jax.local_devices()) == 1 and config.central_devices == 1 and config.central in ("auto", "colocated")
    if config.engine == "simulate" or on_cpu:
        check_fits(_memory(config, params), jax.devices()[0])
    elif one and config.engine == "devices":
        advice = "fewer workers, --central host, or a method that keeps fewer copies of the parameters per worker"
        check_fits(_memory(config, params), jax.local_devices()[0], advice)


def _memory(config: Config, params: PyTree) -> dict[str, int]:
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
            gradients = min(gradients, Roster.ROOM * len(jax.local_devices()) + (policy(config).quorum or 1) - 1)
        kept |= {"views": kept["views"] + config.workers * copy, "gradients": gradients * copy}
    return kept


def announce(config: Config, params: PyTree, task: Task | None, console: Console, place: str = "") -> None:
    """Print a line on a run and one on its data, and one on its batches if the data have fewer rows than a batch asks for.

    Args:
      config: the run.
      params: its parameters or their shapes.
      task: its task, if that is known.
      console: where.
      place: end of the line on the run.
    """
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    commits = "" if task is None else f"{task.num_commits:,} commits, "
    say(
        console,
        f"{config.method} with {config.workers} workers on {config.dataset}, {count:,} parameters, {commits}engine "
        f"{config.engine} ({jax.default_backend()}){place}",
    )
    if task is not None:
        say(console, f"{config.dataset}: {task.data}")
    if task is not None and (rows := task.batches.batch_size) < config.batch_size:
        say(console, f"--batch-size {config.batch_size} is larger than the data: a batch has {rows} rows")
