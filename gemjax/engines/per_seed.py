"""What a sweep makes anew for each seed."""

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class PerSeed:
    """What a :func:`gemjax.sweep` is to make anew for each seed, in place of one value for all of them.

    It may stand for the sweep's ``params``, ``batches`` and ``trace``. The traces of all seeds must be equally long, of as many
    workers, and pull late at the same commits: so those of an arrival model whose pulls are late where its durations say so
    (:class:`gemjax.arrivals.Barrier`) do not go together.

    Args:
      make: ``make(seed)`` is the value for one of the sweep's seeds; called on the host, once a seed.

    >>> from gemjax import arrivals
    >>> PerSeed(lambda seed: arrivals.Gamma(4).trace(100, seed)).make(3) == arrivals.Gamma(4).trace(100, seed=3)
    True
    """

    make: Callable[[int], Any]
