"""What a claim is: the runs that decide it, the published numbers, a judgement and a picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from train.claims.runs import REQUIRED, Run, Scale

if TYPE_CHECKING:  # Claims are listed and planned without drawing.
    from matplotlib.figure import Figure

    from train.claims.results import Measured

Verdict = Literal["held", "held in part", "did not hold"]


@dataclasses.dataclass(frozen=True)
class Statement:
    """One sentence of a claim, and whether the runs bear it out.

    Args:
      text: the sentence.
      held: whether it holds for what was measured.
      measured: our numbers, in words.
      paper: the published ones, in words; empty if there are none.
    """

    text: str
    held: bool
    measured: str
    paper: str = ""

    def __post_init__(self):
        object.__setattr__(self, "held", bool(self.held))  # JSON has no numpy.bool.


@dataclasses.dataclass(frozen=True)
class Claim:
    """A published claim and how it is checked; `CLAIM` of a module in `train.claims.papers`.

    Args:
      name: the module's name.
      title: one line, what is claimed.
      source: the paper and figure.
      runs: for each scale, what is run: `"full"` is the paper's setting, `"small"` takes minutes on two cores and needs no
        files from elsewhere; `"cpu"`, where the paper's setting would take days there, about an hour.
      paper: published numbers by quantity, series and point (`{"train_loss": {"GEM": {5: 0.075}}}`).
      read_off: whether those were read off a figure, so are approximate.
      judge: a pure function of what was measured; the statements, each held or not. It can ask for `measured.scale`.
      draw: draws what was measured, beside the published numbers at full scale, into an empty figure.
      minutes: for each scale, what all of its runs took on two CPU cores, those shared with other claims too, or would take
        by the speed of their first commits.
      setting: for each scale whose setting is not the paper's, what it is, in a few words; stands in tables and pictures.
      paper_note: where the published numbers are from and how sure they are, if that is not simply the paper.
      then: further runs that depend on what was measured so far (rates chosen on one seed, reported on others); asked again
        with these, until it names no new ones.
      tuning: seeds that serve this choice alone, and are not reported.
      together: whether runs that differ in learning rate and seed alone are made as one program, for networks so small
        that compiling takes longer than running; their numbers are the same up to rounding.
    """

    name: str
    title: str
    source: str
    runs: Mapping[Scale, Sequence[Run]]
    judge: Callable[[Measured], Sequence[Statement]]
    draw: Callable[[Figure, Measured], None]
    paper: Mapping[str, Mapping[str, Mapping[Any, float]]] = dataclasses.field(default_factory=dict)
    read_off: bool = True
    minutes: Mapping[Scale, float] = dataclasses.field(default_factory=dict)
    setting: Mapping[Scale, str] = dataclasses.field(default_factory=dict)
    paper_note: str = ""
    then: Callable[[Measured], Sequence[Run]] | None = None
    tuning: Sequence[int] = ()
    together: bool = False

    def __post_init__(self):
        if missing := set(REQUIRED) - set(self.runs):
            raise ValueError(f"the claim {self.name} has no runs at scale {', '.join(sorted(missing))}")
        for scale in self.runs:
            if not self.runs[scale]:
                raise ValueError(f"the claim {self.name} has no runs at scale {scale}")
            seen: dict[tuple, Run] = {}
            for run in self.runs[scale]:
                place = (run.series, run.point, run.config.seed)
                if place in seen:
                    raise ValueError(f"the claim {self.name} has two runs at {place}, scale {scale}")
                seen[place] = run


def file_name(claim: str, scale: Scale) -> str:
    """What the files of a claim's result are called, without their ending."""
    return claim if scale == "full" else f"{claim}-{scale}"


def verdict(statements: Iterable[Statement]) -> Verdict:
    """What became of a claim, in words.

    >>> verdict([Statement("a", True, ""), Statement("b", False, "")])
    'held in part'
    """
    held = [statement.held for statement in statements]
    return "held" if all(held) else "held in part" if any(held) else "did not hold"
