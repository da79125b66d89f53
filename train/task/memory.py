"""What memory a run keeps, known before it begins."""

import jax
from rich.console import Console

import gemjax
from gemjax.engines.memory import check_fits, readable
from train.common.console import say
from train.config.config import Config
from train.config.parsing import in_flags
from train.task.methods import local_steps, make_method
from train.task.task import PyTree, make_task, parameter_shapes

RECORDS = 160  # Bytes a commit, about: its trace, and a history of twelve columns or so.


def dry_run(config: Config, console: Console) -> None:
    """Says what the run would be and what memory it would keep.

    Raises:
      MemoryError: if that does not fit, after it has been said.
    """
    params, lacking = parameter_shapes(config), ""
    try:
        task = make_task(config)
    except FileNotFoundError as error:  # The originals of the data: what is kept does not depend on them.
        task, lacking = None, str(error)
    data = "not known before they are prepared"
    if task is not None:
        data = readable(sum(leaf.nbytes for leaf in jax.tree.leaves(task.batches.data)))
    commits = None if task is None else task.num_commits
    kept = _kept(config, params)
    say(console, in_words(config, params, commits))
    parts = ", ".join(f"{name} {readable(size)}" for name, size in kept.items() if size)
    more = "activations" if config.engine == "devices" else "gradients and activations"
    say(console, f"it keeps {readable(sum(kept.values()))}: {parts}; data: {data}; {more} come on top")
    if lacking:
        say(console, f"but {in_flags(lacking)}")
    check_memory(config, params, commits or 0)


def check_memory(config: Config, params: PyTree, num_commits: int) -> None:
    """Raises `MemoryError` if what a run keeps cannot fit; says nothing of devices that share it among them."""
    cpu = jax.devices("cpu")[0]  # Of it, all devices that are CPUs have their memory.
    if config.engine == "simulate" or jax.default_backend() == "cpu":
        check_fits(_kept(config, params), jax.devices()[0] if config.engine == "simulate" else cpu)
    check_fits({"trace and history": RECORDS * num_commits}, cpu, "fewer workers, fewer epochs or larger batches")


def _kept(config: Config, params: PyTree) -> dict[str, int]:
    kept = gemjax.memory_of(make_method(config), params, num_workers=config.workers, local=local_steps(config))
    if (
        config.engine == "devices"
    ):  # Workers hold what they compute on and what they compute, whatever the method keeps.
        copies = config.workers * kept["central variable"]
        kept |= {"views": max(copies, kept["views"]), "gradients": copies}
    return kept


def in_words(config: Config, params: PyTree, commits: int | None) -> str:
    """What the run is, in a line."""
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    return (
        f"{config.method} with {config.workers} workers on {config.dataset}, {count:,} parameters, "
        + ("" if commits is None else f"{commits:,} commits, ")
        + f"engine {config.engine} ({jax.default_backend()})"
    )
