"""The methods of the command line: facts about each, one row per method.

A new method needs its file in `gemjax/methods` and a row here. A row repeats arguments of the function because flags are
checked before JAX is imported; `tests/train/task/test_methods.py` compares the two.
"""

import dataclasses
from typing import TYPE_CHECKING, Literal


@dataclasses.dataclass(frozen=True)
class MethodFacts:
    """Facts about a method.

    The row's name is that of the function in `gemjax` that makes the method, or of one in `train.task.methods`.

    Args:
      takes: fields of a configuration, besides the learning rate, that are arguments of that function.
      local: True if workers take local steps between two commits; the learning rate is then that of the local steps.
      rounds: True if it is defined in rounds, for which workers wait for each other unless the command line says otherwise.
      adds_up: True if its momentum adds gradients up, so that each of them moves the parameters by
        learning rate / (1 - momentum) in all.
    """

    takes: tuple[str, ...] = ()
    local: bool = False
    rounds: bool = False
    adds_up: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        """Fields of a configuration that act with some methods only, and with this one."""
        return self.takes + (LOCAL_FLAGS if self.local else ())


LOCAL_FLAGS = ("period", "dynamic_periods", "local_optimizer", "local_momentum", "outer_learning_rate")
USUAL_RATE = 0.1
METHODS = {
    "gem": MethodFacts(("momentum", "kappa", "reading")),
    "asgd": MethodFacts(),
    "multi_asgd": MethodFacts(("momentum",), adds_up=True),
    "ordered_momentum": MethodFacts(("momentum",), adds_up=True),
    "staleness_aware": MethodFacts(),
    "dynsgd": MethodFacts(),
    "momentum_asgd": MethodFacts(("momentum",), adds_up=True),
    "nag_asgd": MethodFacts(("momentum",), adds_up=True),
    "delay_adaptive": MethodFacts(),
    "dana_slim": MethodFacts(("momentum",), adds_up=True),
    "dana_zero": MethodFacts(("momentum",), adds_up=True),
    "dana_dc": MethodFacts(("momentum", "strength"), adds_up=True),
    "dc_asgd": MethodFacts(("strength", "variant")),
    "dc_momentum_asgd": MethodFacts(("momentum", "strength"), adds_up=True),
    "gap_aware": MethodFacts(("momentum",), adds_up=True),
    "gap_aware_adam": MethodFacts(),
    "dana_ga": MethodFacts(("momentum",), adds_up=True),
    "lwp": MethodFacts(("momentum",), adds_up=True),
    "one_step_delay": MethodFacts(("momentum", "strength"), adds_up=True),
    "yellowfin": MethodFacts(),
    "async_pipeline": MethodFacts(("momentum", "strength")),
    "eamsgd": MethodFacts(("momentum", "strength")),
    "ringmaster": MethodFacts(),
    "rennala": MethodFacts(),
    "rescaled_asgd": MethodFacts(),
    "m_synchronous_sgd": MethodFacts(("momentum", "quorum")),
    "incremental": MethodFacts(),
    "malenia": MethodFacts(),
    "ringleader": MethodFacts(),
    "downpour": MethodFacts(local=True),
    "agn": MethodFacts(local=True),
    "easgd": MethodFacts(("strength",), local=True),
    "lsgd": MethodFacts(("strength",), local=True),
    "no_loco": MethodFacts(("momentum",), local=True),
    "outer_nesterov": MethodFacts(("momentum",), local=True),
    "delayed_nesterov": MethodFacts(("momentum",), local=True),
    "diloco": MethodFacts(("momentum",), local=True, rounds=True),
    "streaming_diloco": MethodFacts(("momentum",), local=True, rounds=True),
    "decoupled_diloco": MethodFacts(("momentum",), local=True),
    "momentum_lookahead": MethodFacts(("momentum",), local=True),
    "heloco": MethodFacts(("momentum",), local=True),
    "fedbuff": MethodFacts(local=True),
    "fedasync": MethodFacts(local=True),
}
if TYPE_CHECKING:
    Method = str
else:
    Method = Literal[tuple(METHODS)]


def usual_rate(method: str, momentum: float) -> float:
    """Return the learning rate of a run that names none: the one with which a gradient moves parameters by 0.1 in all.

    >>> usual_rate("asgd", 0.9), usual_rate("gem", 0.9), usual_rate("dana_slim", 0.9)
    (0.1, 0.1, 0.01)
    """
    return round(USUAL_RATE * (1 - momentum), 6) if METHODS[method].adds_up else USUAL_RATE


def methods_with(flag: str) -> list[str]:
    """Return the methods with which a field of a configuration acts.

    >>> methods_with("kappa"), methods_with("variant")
    (['gem'], ['dc_asgd'])
    """
    return [name for name, facts in METHODS.items() if flag in facts.flags]
