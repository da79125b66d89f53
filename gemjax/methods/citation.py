"""BibTeX of the papers behind a method or chain."""

import functools
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

import optax

from gemjax.methods.asgd import DEAN2012LARGE
from gemjax.methods.easgd import ZHANG2015DEEP
from gemjax.methods.momentum_asgd import HAKIMI2019TAMING
from gemjax.methods.papers import Paper
from gemjax.protocol.checks import shown

# Papers of what the methods without parts of their own are built on.
BASES = {"displacements": (DEAN2012LARGE, ZHANG2015DEEP), "trace": (HAKIMI2019TAMING,)}
PLAIN = (DEAN2012LARGE,)


def citation(tx: Any) -> str:
    """Return the BibTeX entries of the papers behind a method.

    Args:
      tx: a method such as ``gemjax.gem(0.1)``, or a chain of optax transformations with parts of methods in it at any depth,
        or a function that makes one, such as ``gemjax.gem``.

    Returns:
      One entry per paper. Papers of a chain are those of all its parts. Optax's own transformations have no entries,
      unless the chain has no part of a method: it is then asynchronous SGD, without or with momentum.

    Raises:
      TypeError: if ``tx`` is neither an optax transformation nor a function that makes a method.

    >>> import gemjax, optax
    >>> print(gemjax.citation(optax.chain(optax.clip(1.0), gemjax.gem(0.1, num_workers=8))))
    @article{hermans2018gradient,
      author = {Hermans, Joeri and Louppe, Gilles},
      title = {Gradient Energy Matching for Distributed Asynchronous Gradient Descent},
      year = {2018},
      eprint = {1805.08469},
      archiveprefix = {arXiv},
      url = {https://arxiv.org/abs/1805.08469},
    }
    """
    if not isinstance(tx, (optax.GradientTransformation, optax.MultiSteps)) and not _is_method(tx):
        raise TypeError(
            f"tx must be an optax transformation, or the function of a whole method such as gemjax.gem, got {shown(tx)}"
        )
    used = dict.fromkeys(_functions(tx, set()))
    names = {name for _, name in used}
    own = "gather_fresh" not in names  # Which keeps its sum in the buffer of `gather`.
    papers = [paper for module, name in used if own or name != "gather" for paper in _papers(module).get(name, ())]
    papers = papers or [paper for base, its in BASES.items() if base in names for paper in its] or list(PLAIN)
    return "\n\n".join({paper.key: paper.bibtex() for paper in papers}.values())


def _papers(module: str) -> dict[str, tuple[Paper, ...]]:
    """Return the papers of each part in the file of a method, by the name of the function that makes it."""
    return getattr(sys.modules[module], "PAPERS", {}) if module.startswith("gemjax.methods.") else {}


def _is_method(value: Any) -> bool:
    """Return True for a function of the library that makes a method."""
    return (
        isinstance(value, types.FunctionType)
        and value.__module__.startswith("gemjax.methods.")
        and {"learning_rate", "num_workers"} <= {*inspect.signature(value).parameters}
    )


def _functions(value: Any, seen: set[int]) -> Iterator[tuple[str, str]]:
    """Yield module and name of the functions of which a transformation is made, from outside to inside."""
    if id(value) in seen:
        return
    seen.add(id(value))
    inner: Any = ()
    if isinstance(value, types.FunctionType):
        yield value.__module__, value.__qualname__.split(".")[0]
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        inner = [*cells, value(learning_rate=1.0, num_workers=2)] if _is_method(value) else cells
    elif isinstance(value, types.MethodType):
        inner = (value.__func__, value.__self__)
    elif isinstance(value, functools.partial):
        inner = (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, (tuple, list)):
        inner = value
    elif isinstance(value, dict):
        inner = value.values()
    elif type(value).__module__.startswith(("gemjax.", "optax.")):  # Such as MultiSteps, and a schedule of staleness.
        inner = getattr(value, "__dict__", {}).values()
    for one in inner:
        yield from _functions(one, seen)


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises.
    except ValueError:
        return False
    return True
