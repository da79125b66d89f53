"""Facts about a method for the shared tests: contract, golden histories and the law of the engines."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import optax
import pytest

import gemjax

NESTEROV = optax.sgd(0.1, momentum=0.5, nesterov=True)


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """Facts about a method for the shared tests.

    Args:
      name: name of the tests and of the golden file; letters, digits and dashes.
      alias: function such that ``alias(learning_rate, num_workers=N, **keywords)`` is the transformation.
      learning_rate: rate that converges on an objective of curvature 2 with up to 16 workers, stale or not.
      keywords: further arguments of the alias.
      converges_stale: False for a published rule that may diverge on stale gradients, whatever its learning rate.
      variant: True if other rows test the same code; its tests are slow, except for the golden history.
      measures_ahead: True for a rule that compares the central variable with its own shifted view, so that pulls cannot be
        left out.
      gathers: True for a rule that moves the central variable once per several commits.
      takes_displacements: True for a rule that needs local steps in an engine.
      in_rounds: True for a rule whose steps take one displacement of each worker from the same view; tests run it on other
        traces, too.
      local_optimizer: the optimizer of these steps.
      moves_at_rest: True for a rule that moves the central variable though the learning rate is 0.
      partitioned: True for a rule with ``optax.partition``, whose states have no leaf where a part has no parameter.
      refuses: True for a rule that drops commits of any ordinary trace.
      factor: ``factor(staleness, num_workers)``, by which the rule multiplies the learning rate.
    """

    name: str
    alias: Callable[..., optax.GradientTransformationExtraArgs]
    learning_rate: float
    keywords: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    converges_stale: bool = True
    variant: bool = False
    measures_ahead: bool = False
    gathers: bool = False
    takes_displacements: bool = False
    in_rounds: bool = False
    local_optimizer: optax.GradientTransformation = NESTEROV
    moves_at_rest: bool = False
    partitioned: bool = False
    refuses: bool = False
    factor: Callable[[int, int], float] = lambda staleness, num_workers: 1.0

    @property
    def local(self) -> gemjax.LocalSteps | None:
        """Local steps in an engine, three of them, or None."""
        return gemjax.LocalSteps(self.local_optimizer, period=3) if self.takes_displacements else None

    @property
    def marks(self):
        """Mark a variant as slow, and let a rule that is defined in rounds run without them."""
        return (*([pytest.mark.slow] if self.variant else []), *self.without_rounds)

    @property
    def without_rounds(self):
        """Marks that allow traces without rounds."""
        ignored = "ignore:the method is defined in rounds:gemjax.RunWarning"
        return (pytest.mark.filterwarnings(ignored),) if self.in_rounds else ()

    def __call__(self, num_workers: int, learning_rate: optax.ScalarOrSchedule | None = None):
        """Return the transformation for ``num_workers`` workers."""
        rate = self.learning_rate if learning_rate is None else learning_rate
        return self.alias(rate, num_workers=num_workers, **self.keywords)
