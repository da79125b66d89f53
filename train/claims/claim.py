"""The definition of a claim: its runs, the published numbers, a judgement and a picture."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from train.claims.runs import PlannedRun, Scale

if TYPE_CHECKING:  # Claims are listed and planned without drawing.
    from matplotlib.figure import Figure

    from train.claims.results import Measured, Spread

Judgement = Literal["reproduced", "reproduced in direction", "differs", "not decidable here"]
VERDICTS: tuple[Judgement, ...] = get_args(Judgement)
Section = Literal["paper's setting", "reduced setting", "own investigation"]
MOST = 2.0  # Agreement to a larger factor says nothing about a number.


@dataclasses.dataclass(frozen=True)
class Statement:
    """One quantity of a claim: a row of the table of results.

    Args:
      text: the quantity, or the sentence that is judged.
      verdict: the judgement. True stands for a direction that is reproduced, False for "differs". Empty in an investigation of
        our own, which has findings but no verdict.
      measured: our numbers, in words.
      paper: the published numbers, in words; empty if there are none.
      compared: ratio to the paper or difference from it, in words.
      why: the reason for "not decidable here", and only for that.
    """

    text: str
    verdict: Judgement | Literal[""] | bool
    measured: str
    paper: str = ""
    compared: str = ""
    why: str = ""

    def __post_init__(self):
        if not isinstance(self.verdict, str):  # Also numpy.bool.
            object.__setattr__(self, "verdict", VERDICTS[1] if self.verdict else VERDICTS[2])

    @property
    def held(self) -> bool:
        """True if the statement is reproduced, in numbers or in direction."""
        return self.verdict in VERDICTS[:2]


class Scatter(NamedTuple):
    """Standard deviation of the logarithm of a quantity over seeds, and its degrees of freedom."""

    deviation: float
    freedom: int

    @classmethod
    def of(cls, points: Iterable[Sequence[float]]) -> Scatter:
        """Return the scatter over the seeds of each point, pooled over points.

        >>> Scatter.of([[1.0, 1.1, 1.2], [10.0, 11.0, 12.0], [5.0]]).freedom
        4
        """
        logs = [[math.log(value) for value in values if 0 < value < math.inf] for values in points]
        freedom = sum(len(values) - 1 for values in logs if values)
        squares = sum((value - statistics.fmean(values)) ** 2 for values in logs if values for value in values)
        return cls(math.sqrt(squares / freedom) if freedom else math.nan, freedom)

    def factor(self, seeds: int, runs: int, points: int = 1) -> float:
        """Return the factor by which two means may differ by chance, at 95 % for all points together; infinite if unknown.

        Args:
          seeds: number of our seeds per point.
          runs: number of the paper's runs per point.
          points: number of points that are compared.
        """
        from scipy import stats  # Here, so that claims are listed without it.

        if not self.freedom:
            return math.inf
        quantile = float(stats.t.ppf(1 - 0.025 / points, self.freedom))
        return math.exp(quantile * self.deviation * math.sqrt(1 / seeds + 1 / runs))


def compare(
    text: str,
    ours: Sequence[Sequence[float]],
    paper: Sequence[float],
    *,
    direction: bool,
    words: str = "",
    scatter: Scatter | None = None,
    runs: int = 3,
    form: str = ".3g",
    each: bool = False,
) -> Statement:
    """Compare means over seeds with positive published numbers, to the factor that the scatter over seeds allows.

    "Reproduced" if every ratio is within that factor of 1 and the factor is at most 2; else "reproduced in direction" if
    `direction` is true; else "not decidable here" if seeds scatter too much, or there is only one; else "differs".

    Args:
      text: the quantity.
      ours: per point, a value per seed.
      paper: the published numbers; empty where they are of another setting, so that the direction alone is judged.
      direction: true if our numbers bear out the paper's conclusion without its numbers.
      words: the direction, for this case.
      scatter: the scatter over seeds; default: that of `ours`.
      runs: number of the paper's runs behind each number.
      form: format of the numbers.
      each: show the value of each seed, not means, as where seeds end at unlike places.
    """
    means = [statistics.fmean(values) for values in ours]
    if not len(paper):
        return Statement(f"{text}: {words}" if words else text, direction, numbers(means, form))
    factor = (scatter or Scatter.of(ours)).factor(min(map(len, ours)), runs, len(paper))
    ratios = [mean / published for mean, published in zip(means, paper, strict=True)]
    near = all(1 / factor <= ratio <= factor for ratio in ratios)
    verdict: Judgement = "differs"
    why = ""
    if near and factor <= MOST:
        verdict = "reproduced"
    elif direction:
        verdict = "reproduced in direction"
    elif all(map(math.isfinite, means)) and (near or factor == math.inf):
        verdict = "not decidable here"
        why = "one seed" if factor == math.inf else f"seeds scatter by a factor of {factor:.2g}"
    shown = [*zip(*ours, strict=True)] if each else [means]
    ratios = [value / published for row in shown for value, published in zip(row, paper, strict=True)]
    chance = "" if factor == math.inf else f"; chance: up to {factor:{'.2f' if factor < 10 else '.3g'}}"
    return Statement(
        text,
        verdict,
        numbers([value for row in shown for value in row], form),
        numbers(paper, form),
        f"ratio {numbers(ratios, '.2f')}{chance}",
        why,
    )


def ahead(leads: Mapping[str, Spread], *, sound: bool = True, form: str = ".1f", factor: float = 1.0) -> dict[str, Any]:
    """Return verdict and reason of a statement that holds if all of `leads` are positive beyond their scatter over seeds.

    It is not decidable if a lead is within its scatter and none is negative beyond it.

    Args:
      leads: differences by what they are on, as in "points on ASGD".
      sound: false if the statement fails for another reason, as that nothing was learned.
      form: format of the leads.
      factor: by which they are multiplied.
    """
    unsure = {name: lead for name, lead in leads.items() if not lead.positive}
    if not unsure or not sound or any(lead.negative for lead in unsure.values()):
        return {"verdict": sound and not unsure}
    shown = ", ".join(f"{lead.text(form, factor)} {name}" for name, lead in unsure.items())
    return {"verdict": "not decidable here", "why": f"leads inside the scatter over seeds: {shown}"}


def numbers(values: Iterable[float], form: str = ".3g") -> str:
    """Return numbers in one line, formatted as in papers.

    >>> numbers([0.5, float("inf")])
    '0.5 / failed'
    """
    return " / ".join(f"{value:{form}}" if math.isfinite(value) else "failed" for value in values)


@dataclasses.dataclass(frozen=True)
class Claim:
    """A published claim and its check; `CLAIM` of a module in `train.claims.papers`.

    Args:
      title: the claim in one line.
      source: the paper and figure.
      runs: the runs of each scale, none for a claim that is computed. `"full"` is the paper's setting; `"small"` takes minutes
        on two cores and needs no files; `"cpu"` takes about an hour where the paper's setting would take days.
      paper: published numbers by quantity, series and point (`{"train_loss": {"GEM": {5: 0.075}}}`).
      read_off: true if the published numbers were read off a figure, and so are approximate.
      judge: a pure function of the measurements that returns the statements, at most three. It may depend on `measured.scale`.
      draw: draws the measurements into an empty figure, at full scale beside the published numbers, with the module
        `train.claims.plots`. It returns the axes whose lines get their labels at their ends.
      minutes: for each scale, the time of all its runs on two CPU cores, including runs shared with other claims, measured or
        estimated from the speed of the first commits.
      setting: for each scale whose setting is not the paper's, a short description for tables and pictures.
      paper_note: origin and accuracy of the published numbers, if they are not simply from the paper.
      then: further runs that depend on the measurements so far (rates chosen on one seed, reported on others). It is called
        again with their results, until it names no new runs.
      height: of the picture, in inches.
      own: true for an investigation of our own, whose statements have no verdict.
      tuning: seeds that serve this choice only and are not reported.
      name: the module's name, which the package of claims fills in.
    """

    title: str
    source: str
    runs: Mapping[Scale, Sequence[PlannedRun]]
    judge: Callable[[Measured], Sequence[Statement]]
    draw: Callable[[Figure, Measured, Any], Sequence[Any]]
    paper: Mapping[str, Mapping[str, Mapping[Any, float]]] = dataclasses.field(default_factory=dict)
    read_off: bool = False
    minutes: Mapping[Scale, float] = dataclasses.field(default_factory=dict)
    setting: Mapping[Scale, str] = dataclasses.field(default_factory=dict)
    paper_note: str = ""
    then: Callable[[Measured], Sequence[PlannedRun]] | None = None
    tuning: Sequence[int] = ()
    own: bool = False
    height: float = 2.8
    name: str = ""


def file_name(claim: str, scale: Scale) -> str:
    """Return the name of the files of a claim's result, without their ending."""
    return claim if scale == "full" else f"{claim}-{scale}"


def part(claim: Claim, scale: Scale) -> Section:
    """Return the part of the page of results to which a claim belongs."""
    return "own investigation" if claim.own else "paper's setting" if scale == "full" else "reduced setting"


def tally(statements: Iterable[Statement]) -> str:
    """Return the verdicts of a claim in words.

    >>> one, other = Statement("a", "reproduced", ""), Statement("b", "differs", "")
    >>> tally([one, other, one]), tally([one, one])
    ('2 reproduced, 1 differs', 'reproduced')
    """
    counts = Counter(str(statement.verdict) for statement in statements)
    if len(counts) == 1:
        return next(iter(counts))
    words = [f"{counts[word]} {word}" for word in VERDICTS if word in counts]
    return ", ".join(words).replace("differs", "differs" if counts["differs"] == 1 else "differ")
