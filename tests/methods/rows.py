"""Every method, one row each: what the contract, the golden histories and the law of the engines run over."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import optax
import pytest

import gemjax

LOCAL_STEPS = gemjax.LocalSteps(optax.sgd(0.1, momentum=0.5, nesterov=True), period=3)


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """A method as the shared tests use it.

    Args:
      name: what the test and the golden file are called; letters, digits and dashes.
      alias: ``alias(learning_rate, num_workers=N, **keywords)`` makes the transformation.
      learning_rate: converges on an objective of curvature 2 with up to 16 workers, stale or not.
      keywords: further arguments of the alias.
      converges_stale: False for a published rule that may diverge on stale gradients, whatever its learning rate.
      variant: True if other rows test the same code: its contract is slow, but for the golden history.
      measures_ahead: True for a rule that compares the central variable with a view that it shifted itself; leaving out the
        pulls then means something else.
      gathers: True for a rule that moves the central variable once every so many commits, and not at each.
      takes_displacements: True for a rule that needs local steps in an engine.
      moves_at_rest: True for a rule that moves the central variable though the learning rate is 0.
      refuses: True for a rule that drops commits of any ordinary trace.
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
    moves_at_rest: bool = False
    refuses: bool = False

    @property
    def local(self) -> gemjax.LocalSteps | None:
        """The local steps that it runs with in an engine: three of Nesterov's momentum."""
        return LOCAL_STEPS if self.takes_displacements else None

    @property
    def marks(self):
        """Slow for a variant."""
        return pytest.mark.slow if self.variant else ()

    def __call__(self, num_workers: int, learning_rate: optax.ScalarOrSchedule | None = None):
        """The transformation, for ``num_workers`` workers."""
        rate = self.learning_rate if learning_rate is None else learning_rate
        return self.alias(rate, num_workers=num_workers, **self.keywords)


def adam_with_matched_energy(learning_rate: optax.ScalarOrSchedule, num_workers: int = 1):
    """One Adam for all workers, its updates scaled by GEM."""
    return gemjax.asynchronous(optax.chain(optax.adam(learning_rate), gemjax.match_energy()), num_workers)


def adam_per_worker(learning_rate: optax.ScalarOrSchedule, num_workers: int = 1):
    """An Adam for each worker."""
    return gemjax.per_worker(optax.adam(learning_rate), num_workers)


def agn(learning_rate: optax.ScalarOrSchedule, num_workers: int = 1):
    """AGN, where nothing is told of local steps, after two of them."""
    tx = gemjax.agn(learning_rate, num_workers)

    def update(updates, state, params=None, *, local_steps=2, **extra_args):
        return tx.update(updates, state, params, local_steps=local_steps, **extra_args)

    return optax.GradientTransformationExtraArgs(tx.init, update)


def _judged_by_length(tx: optax.GradientTransformationExtraArgs):
    """``tx``, where no loss is told, with the length of a displacement for one."""

    def update(updates, state, params=None, *, value=None, **extra_args):
        value = optax.tree.norm(updates) if value is None else value
        return tx.update(updates, state, params, value=value, **extra_args)

    return optax.GradientTransformationExtraArgs(tx.init, update)


def lsgd(learning_rate: optax.ScalarOrSchedule, num_workers: int = 1):
    """LSGD with one group."""
    return _judged_by_length(gemjax.lsgd(learning_rate, num_workers))


def lsgd_in_groups(learning_rate: optax.ScalarOrSchedule, num_workers: int = 1):
    """LSGD in pairs of workers, or each alone where they do not come out even."""
    groups = num_workers // 2 if num_workers % 2 == 0 else num_workers
    if groups == 1:
        return lsgd(learning_rate, num_workers)
    tx = gemjax.lsgd(learning_rate, num_workers, groups=groups, global_period=2, global_strength=0.2)
    return _judged_by_length(tx)


METHODS = (
    Row("asgd", gemjax.asgd, 0.02),
    Row("multi-asgd", gemjax.multi_asgd, 0.01, {"momentum": 0.5}),
    Row("staleness-aware", gemjax.staleness_aware, 0.25),
    Row("dynsgd", gemjax.dynsgd, 0.25),
    Row("gem", gemjax.gem, 0.02),
    Row("gem-code", gemjax.gem, 0.02, {"reading": "code"}),
    Row("gem-algorithm", gemjax.gem, 0.02, {"reading": "algorithm"}),
    # The equations without a clamp reverse updates where the others have moved far, and climb.
    Row("gem-unclamped", gemjax.gem, 0.01, {"clamp": None, "momentum": 0.5}, converges_stale=False),
    Row("adam-matched-energy", adam_with_matched_energy, 0.005),
    Row("adam-per-worker", adam_per_worker, 0.001),
    Row("momentum-asgd", gemjax.momentum_asgd, 0.01, {"momentum": 0.5}, variant=True),
    Row("nag-asgd", gemjax.nag_asgd, 0.01, {"momentum": 0.5}, variant=True),
    Row("delay-adaptive", gemjax.delay_adaptive, 0.02, variant=True),
    Row("dana-slim", gemjax.dana_slim, 0.01, {"momentum": 0.5}, variant=True),
    Row("dana-zero", gemjax.dana_zero, 0.01, {"momentum": 0.5}),
    # Compensation as strong as the authors' outweighs the large gradients that the objectives begin with.
    Row("dc-asgd", gemjax.dc_asgd, 0.02, {"strength": 0.002}, variant=True),
    Row("dc-asgd-adaptive", gemjax.dc_asgd, 0.02, {"variant": "adaptive", "strength": 0.02}),
    Row("dana-dc", gemjax.dana_dc, 0.01, {"momentum": 0.5, "strength": 0.002}, variant=True, measures_ahead=True),
    Row("gap-aware", gemjax.gap_aware, 0.03, {"momentum": 0.5}),
    Row("dana-ga", gemjax.dana_ga, 0.03, {"momentum": 0.5}, variant=True, measures_ahead=True),
    Row("lwp", gemjax.lwp, 0.005, {"momentum": 0.5}, variant=True),
    Row("downpour", gemjax.downpour, 0.02, variant=True, takes_displacements=True),
    Row("agn", agn, 0.04, variant=True, takes_displacements=True),
    Row("easgd", gemjax.easgd, 0.1, {"strength": 0.3}, variant=True, takes_displacements=True, moves_at_rest=True),
    Row("eamsgd", gemjax.eamsgd, 0.05, {"momentum": 0.5, "strength": 0.3}, variant=True, moves_at_rest=True),
    Row("lsgd", lsgd, 0.1, variant=True, takes_displacements=True, moves_at_rest=True),
    Row("lsgd-groups", lsgd_in_groups, 0.1, variant=True, takes_displacements=True, moves_at_rest=True),
    Row("ringmaster", gemjax.ringmaster, 0.1, {"threshold": 2}, variant=True, refuses=True),
    Row("rennala", gemjax.rennala, 0.3, gathers=True, refuses=True, variant=True),
    Row("delayed-nesterov", gemjax.delayed_nesterov, 0.1, {"momentum": 0.5}, variant=True, takes_displacements=True),
    Row("diloco", gemjax.diloco, 0.1, {"momentum": 0.5}, variant=True, gathers=True, takes_displacements=True),
    Row("momentum-lookahead", gemjax.momentum_lookahead, 0.01, variant=True, takes_displacements=True),
    Row("heloco", gemjax.heloco, 0.03, variant=True, takes_displacements=True),
    Row("gap-aware-adam", gemjax.gap_aware_adam, 0.001, variant=True),
    Row("one-step-delay", gemjax.one_step_delay, 0.01, {"momentum": 0.5}, variant=True, moves_at_rest=True),
    # Without noise the gradients vanish, what it takes for curvature with them, and the rate grows without bound.
    Row("yellowfin", gemjax.yellowfin, 0.01, converges_stale=False, variant=True),
)

every_method = pytest.mark.parametrize("row", [pytest.param(row, id=row.name, marks=row.marks) for row in METHODS])
