"""Pieces of a replay: each is compared with its checkpoint and with the effect of one unit in the last place."""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

import jax
import numpy as np

PyTree = Any
Agreement = Literal["same to rounding", "as far as rounding carries", "differs"]
VERDICTS: tuple[Agreement, ...] = get_args(Agreement)
FACTOR = 10.0  # A difference is as far as rounding carries up to this multiple of the effect of one unit.
NUDGES = 3  # Beginnings that differ by one unit.
MORE_NUDGES = 13  # Further ones before a piece differs: a rounding error that crosses a kink is rare among them.
TELLING = 0.01  # A piece with a larger effect of one unit, relative to its movement, may hide a wrong commit.


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of a run between two checkpoints, and how its replay ends.

    Attributes:
      begin: commits before it.
      end: commits at its end.
      moved: RMS change of the parameters over the piece.
      difference: RMS difference of the replayed parameters to the checkpoint.
      largest: largest absolute difference of a parameter.
      unit: RMS of one unit in the last place of the parameters.
      effect: largest RMS difference at the end between this replay and replays begun from nudged states.
      nudges: number of nudged replays.
      verdict: comparison of the difference with unit and effect.
    """

    begin: int
    end: int
    moved: float
    difference: float
    largest: float
    unit: float
    effect: float
    nudges: int
    verdict: Agreement

    @property
    def is_telling(self) -> bool:
        """True if rounding alone changes little, so that a wrong commit would show, or the end is equal to rounding."""
        return self.effect <= TELLING * self.moved or self.verdict == "same to rounding"

    def relative(self, value: float) -> float:
        """Return `value` relative to the movement of the piece."""
        return value / self.moved if self.moved else 0.0 if not value else float("inf")


def judge(difference: float, unit: float, effect: float) -> Agreement:
    """Compare a difference with one unit in the last place, and with the effect of one unit at the beginning.

    >>> judge(1e-8, unit=2e-8, effect=1e-6), judge(5e-6, unit=2e-8, effect=1e-6), judge(5e-5, unit=2e-8, effect=1e-6)
    ('same to rounding', 'as far as rounding carries', 'differs')
    """
    if not math.isfinite(difference):
        return "differs"
    if difference <= unit:
        return "same to rounding"
    return "as far as rounding carries" if difference <= FACTOR * effect else "differs"


def worst(verdicts: Iterable[Agreement]) -> Agreement:
    """Return the worst of some verdicts."""
    return max(verdicts, key=VERDICTS.index)


def compare(begin: Any, end: Any, commits: tuple[int, int], replay: Callable[[Any], Any]) -> Piece:
    """Replay a piece and compare its end with a checkpoint.

    Model state of integers is not compared; other model state may only make the verdict worse. Equal infinities do not differ.

    Args:
      begin: state at the beginning.
      end: state of the checkpoint at the end.
      commits: those before the piece and at its end.
      replay: function from a state at the beginning to the replayed state at the end.
    """
    found, expected, start = parts(replay(begin)), parts(end), parts(begin)
    differences = {name: distance(found[name], expected[name]) for name in expected}
    effects = dict.fromkeys(expected, 0.0)
    finite = {name: value[np.isfinite(value)].astype(dtype_of(begin)) for name, value in expected.items()}
    units = {name: rms(np.spacing(np.abs(value))) for name, value in finite.items()}
    nudges, verdict = 0, VERDICTS[-1]
    while nudges < NUDGES or (verdict == "differs" and nudges < NUDGES + MORE_NUDGES):
        beside = parts(replay(nudged(begin, nudges)))
        effects = {name: max(effects[name], distance(beside[name], found[name])) for name in effects}
        nudges += 1
        verdict = worst(judge(differences[name], units[name], effects[name]) for name in expected)
    return Piece(
        *commits,
        moved=distance(expected["params"], start["params"]),
        difference=differences["params"],
        largest=float(np.abs(found["params"] - expected["params"]).max(initial=0.0)),
        unit=units["params"],
        effect=effects["params"],
        nudges=nudges,
        verdict=verdict,
    )


def parts(state: Any) -> dict[str, np.ndarray]:
    """Return the floating-point numbers of the parameters and of the model state, as vectors."""
    vectors = {name: flat(getattr(state, name)) for name in ("params", "model_state")}
    return {name: vector for name, vector in vectors.items() if name == "params" or vector.size}


def flat(tree: PyTree) -> np.ndarray:
    """Return the floating-point numbers of a tree as one vector of float64."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree) if jax.numpy.issubdtype(leaf.dtype, np.floating)]
    return np.concatenate([np.zeros(0), *(leaf.astype(np.float64).ravel() for leaf in leaves)])


def dtype_of(state: Any) -> Any:
    return jax.tree.leaves(state.params)[0].dtype


def rms(values: np.ndarray) -> float:
    """Return the root of the mean square; infinity if a value is not finite."""
    if not values.size:
        return 0.0
    found = float(np.sqrt(np.mean(np.square(values))))
    return found if np.isfinite(found) else float("inf")


def distance(values: np.ndarray, others: np.ndarray) -> float:
    """Return the root of the mean square of the differences; 0 for equal infinities."""
    return rms(np.subtract(values, others, out=np.zeros_like(values), where=values != others))


def nudged(state: Any, seed: int) -> Any:
    """Return the state with each parameter changed by one unit in the last place, up or down at random.

    So are the numbers of views and of the method that have the shape of parameters: some methods, such as `lsgd`, go on from
    those alone. Zeros in them stay, as they may be squares, which are never negative, and so does what is not finite.
    """
    rng = np.random.default_rng(seed)

    def nudge(leaf: Any) -> Any:
        towards = np.where(rng.random(leaf.shape) < 0.5, -np.inf, np.inf).astype(leaf.dtype)
        return jax.numpy.nextafter(leaf, towards)

    def nudge_copy(leaf: Any) -> Any:
        is_copy = any(
            shape and np.shape(leaf)[-len(shape) :] == shape and leaf.dtype == dtype for shape, dtype in kinds
        )
        return jax.numpy.where((leaf == 0) | ~jax.numpy.isfinite(leaf), leaf, nudge(leaf)) if is_copy else leaf

    kinds = {(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state.params)}
    copies = {name: jax.tree.map(nudge_copy, getattr(state, name)) for name in ("opt_state", "view")}
    return state._replace(params=jax.tree.map(nudge, state.params), **copies)
