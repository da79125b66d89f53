"""Arguments of a sweep that differ between seeds."""

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class PerSeed:
    """An argument of :func:`gemjax.sweep` with a value per seed, in place of one value for all seeds.

    A sweep accepts it for ``params``, ``batches`` and ``trace``. The traces of all seeds must have the same length and number
    of workers, and late pulls at the same commits. Traces of an arrival model whose durations decide which pulls are late
    (:class:`gemjax.arrivals.Barrier`) cannot be combined. Batches must select from the same arrays; those of a class that makes
    them itself (``batch``) may depend on the seed by what ``select`` returns alone.

    Args:
      make: ``make(seed)`` returns the value for one seed of the sweep; called on the host, once per seed.

    >>> from gemjax import arrivals
    >>> PerSeed(lambda seed: arrivals.Gamma(4).trace(100, seed)).make(3) == arrivals.Gamma(4).trace(100, seed=3)
    True
    """

    make: Callable[[int], Any]
