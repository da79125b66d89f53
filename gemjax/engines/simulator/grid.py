"""The runs of a sweep: the points of its grid, and the traces and batches of its seeds."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gemjax.batches.base import Batches, Wrapper, select
from gemjax.batches.functions import Computed
from gemjax.batches.per_seed import PerSeed
from gemjax.batches.rows import are_plain, as_batches
from gemjax.engines.checks import checked_seed
from gemjax.engines.programs import UNTOLD
from gemjax.protocol import PyTree
from gemjax.protocol.checks import check_alike
from gemjax.protocol.trace import Trace, check_trace

TAKEN = ("seed", "loss", "rejected", "dropped")  # Columns of a sweep's table besides those of the points.


def grid(over: Any, seeds: Iterable[int]) -> dict[str, np.ndarray]:
    """Return the product of all values, or of all points with the seeds, as one column per name."""
    if isinstance(over, Mapping):
        names, points = [*over], itertools.product(*over.values())
    else:
        names, points = _listed(over)
    if taken := [name for name in names if name in TAKEN]:
        raise ValueError(
            f"a table of the runs has a column {taken[0]} already; give the hyper-parameter {taken[0]} another name in over= "
            "and among the arguments of make, and seeds as seeds="
        )
    repeated = [checked_seed(one) for one in seeds]
    rows = [(*point, seed) for point, seed in itertools.product(points, repeated)]
    return {name: np.array([row[k] for row in rows]) for k, name in enumerate([*names, "seed"])}


def _listed(over: Any) -> tuple[list[str], list[list[float]]]:
    points = list(over)
    if different := [point for point in points if point.keys() != points[0].keys()]:
        raise ValueError(f"all points of over= need the names {', '.join(points[0])}; got {', '.join(different[0])}")
    return [*points[0]], [[point[name] for name in points[0]] for point in points]


def of_each(value: Any, seeds: Sequence[int]) -> list:
    """Return a list with one value per seed, or with the one value of all seeds."""
    return [value.make(seed) for seed in seeds] if isinstance(value, PerSeed) else [value]


def batches_of(batches: Any, seeds: Sequence[int], num_workers: int) -> list:
    """Return a list with the batches of each seed, or with the one value of all seeds.

    Raises:
      ValueError: if the seeds do not share their data or function.
    """
    found = [as_batches(one, num_workers) for one in of_each(batches, seeds)]
    sources = [[one.fn] if isinstance(one, Computed) else jax.tree.leaves(one.data) for one in found]
    for seed, source in zip(seeds, sources, strict=False):
        if [id(leaf) for leaf in source] != [id(leaf) for leaf in sources[0]]:
            raise ValueError(
                f"the batches of seeds {seeds[0]} and {seed} have different data or functions; with PerSeed they must select "
                "from the same arrays, created once outside of it (as in gemjax.Epochs(data, 32, seed)); otherwise call sweep "
                "once per seed"
            )
    own = [one for one in map(_innermost, found) if not (are_plain(one) or isinstance(one, Computed))]
    if len(found) > 1 and own:
        given = _given_of(found[0])
        programs = {jax.jit(lambda *given, one=one: one.batch(*given)).lower(*given).as_text() for one in found}
        if len(programs) > 1 or UNTOLD.search(programs.pop()):
            kind = type(own[0]).__name__
            raise ValueError(
                f"{kind}.batch is another function of data and selection for each seed, or calls back to Python; with PerSeed "
                "only what select returns may depend on the seed; otherwise call sweep once per seed"
            )
    return found


def _innermost(batches: Any) -> Any:
    while isinstance(batches, Wrapper):
        batches = getattr(batches, "batches", None)
    return batches


def _given_of(batches: Batches) -> PyTree:
    """Return the kinds of data and selection of which a batch is made."""
    selection = select(batches, *np.zeros((3, 1), np.int32))
    data, selection = batches.gather(selection)
    first = jax.tree.map(lambda column: column[0], selection)
    return jax.eval_shape(lambda *given: given, batches.data if data is None else data, first)


def starts_of(params: PyTree | PerSeed, seeds: Sequence[int]) -> list[PyTree]:
    """Return a list with the initial parameters of each seed, or with those of all seeds.

    Raises:
      ValueError: if those of the seeds differ in structure, shapes or dtypes.
    """
    found = of_each(params, seeds)
    for seed, one in zip(seeds[1:], found[1:], strict=False):
        check_alike(
            f"params of seed {seed}", one, found[0], lambda new, old: jnp.result_type(new) == jnp.result_type(old)
        )
    return found


def paired(ones: list, others: list) -> list[tuple]:
    """Return pairs of the values of each seed, where either list may hold one value for all seeds."""
    count = max(len(ones), len(others))
    return [(ones[k % len(ones)], others[k % len(others)]) for k in range(count)]


def stacked(values: list, runs: int) -> PyTree:
    """Return one tree per seed as one tree with an axis of runs, in which seeds vary fastest."""
    return jax.tree.map(lambda *leaves: np.stack(leaves)[np.arange(runs) % len(leaves)], *values)


def traces_of(trace: Trace | PerSeed, seeds: Sequence[int]) -> list[Trace]:
    """Return a list with the trace of each seed, or with the one trace of all seeds.

    Raises:
      ValueError: if the traces cannot be run side by side.
    """
    traces = of_each(trace, seeds)
    for one in traces:
        check_trace(one)
    for seed, one in zip(seeds, traces, strict=False):
        if different := _difference(traces[0], one):
            raise ValueError(
                f"the traces of seeds {seeds[0]} and {seed} cannot be run side by side: {different}; traces must have equal "
                "lengths, numbers of workers and positions of late pulls; otherwise call sweep once per seed"
            )
    return traces


def _difference(one: Trace, other: Trace) -> str:
    """Return the reason why two traces cannot be run side by side; empty if they can."""
    if (len(one), one.num_workers) != (len(other), other.num_workers):
        return f"{len(one)} commits of {one.num_workers} workers, {len(other)} of {other.num_workers}"
    if one.num_blocks != other.num_blocks:
        return f"{one.num_blocks} blocks, {other.num_blocks}"
    first, second = one.events().commits, other.events().commits
    if np.array_equal(first, second):
        return ""
    if len(first) != len(second):  # Every late pull is an arrival of its own.
        return f"{np.sum(~first)} late pulls (apart from their workers' commits), {np.sum(~second)}"
    place = np.argmax(first != second)
    return f"a late pull after {np.sum(first[:place])} commits in only one of them"
