"""The division of a commit's program over places: large arrays stay where they are, small ones travel.

No list says which methods can be divided. The program itself does: arrays that meet in one operation are *tied*, and have to be
at one place. The rules of most methods are per leaf, so that the parameters of one leaf are tied to its momenta, its gradients
and its views, but not to other leaves. What a rule needs of the whole tree, such as a norm, an energy, or a bool that says if
all numbers are finite, is a small array per leaf, and small arrays are sent to the driver, which combines them.
"""

import collections
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from gemjax.engines.cluster.central.program import Equation, Program, evaluate
from gemjax.engines.devices.hardware import keys

DRIVER = -1  # The place of small values; the others are numbered from 0.
SMALL = 256  # Numbers in the largest array that is sent to the driver.


class Piece(NamedTuple):
    """The computation of one place between two messages."""

    equations: list[Equation]
    constants: dict[int, Any]
    received: tuple[int, ...]  # Small values from elsewhere.
    kept: tuple[int, ...]  # Values that the place has.
    computed: tuple[int, ...]  # Values that are needed later.
    sent: tuple[int, ...]  # Those of them that are needed elsewhere.

    avals: Mapping[int, Any]  # Of what it takes.

    def __call__(self, received: Sequence[Any], kept: Sequence[Any]) -> list[Any]:
        """Return the computed values; traceable. Between pieces typed keys are integers."""
        given = dict(zip((*self.received, *self.kept), (*received, *kept), strict=True))
        values = {**self.constants, **keys.as_keys(given, self.avals)}
        evaluate(self.equations, values)
        return keys.as_data([values[number] for number in self.computed])


class Division:
    """The pieces of a program, per round and place.

    In each round the driver computes its piece first, and then all other places theirs, each on its own. A last piece of the
    driver follows. The numbers are those that the whole program computes, with the same operations in the same order.

    Args:
      program: the program.
      parts: number of places besides the driver.
      tied: pairs of an input and an output, by index, that are at one place: a state before and after.
      names: per input, what an error message calls it; ``None`` for an input that is no parameter.
      small: as :data:`SMALL`.

    Attributes:
      place: per input and output value, its place.
      rounds: number of rounds.

    Raises:
      ValueError: if the program ties so many arrays together that some part would have none; the message names the
        operation.

    Two leaves, each divided by the norm of both:

    >>> import jax, jax.numpy as jnp, optax
    >>> tree = {"a": jnp.full(4, 3.0), "b": jnp.full(4, 4.0)}
    >>> scaled = lambda tree: jax.tree.map(lambda leaf: leaf / optax.tree.norm(tree), tree)
    >>> division = Division(Program(scaled, tree), 2, small=1)
    >>> division.rounds, [division.place[number] for number in division.program.inputs]
    (2, [0, 1])
    """

    def __init__(
        self, program: Program, parts: int, *, tied: Iterable[tuple[int, int]] = (), names: Sequence[str | None] = (),
        small: int = SMALL,
    ):  # fmt: skip
        self.program, self.parts = program, parts
        self._small = small
        self._is_small = [int(np.prod(aval.shape)) <= small for aval in program.avals]
        self._before = {after: program.inputs[before] for before, after in tied}
        self._tied = [(before, program.outputs[after]) for after, before in self._before.items()]
        self._names = {number: name for number, name in zip(program.inputs, names, strict=False) if name}
        self._sources = self._find_sources()
        self.place = self._assign()
        self._level = dict.fromkeys(program.inputs, 0)
        self._pinned = [self._pin(equation) for equation in program.equations]
        self._settle_outputs()
        self.rounds = 1 + max(level for level in self._level.values())
        self.pieces = self._cut()

    def _find_sources(self) -> dict[int, frozenset[int]]:
        """Return the values that each place computes for itself, with the small values that they depend on.

        They depend on constants alone; or they are large, and depend on small values alone.
        """
        sources = dict.fromkeys(self.program.constants, frozenset[int]())
        for equation in self.program.equations:
            if all(number in sources or self._is_small[number] for number in equation.ins):
                found = frozenset[int]().union(*(sources.get(number, {number}) for number in equation.ins))
                sources.update({out: found for out in equation.outs if not found or not self._is_small[out]})
        return sources

    def _is_tied(self, number: int) -> bool:
        """Return True for a large array that has one place."""
        return not self._is_small[number] and number not in self._sources

    def _needs(self, numbers: Iterable[int]) -> set[int]:
        """Return the values that have one place each, and from which a place can compute ``numbers``."""
        return {need for number in numbers for need in self._sources.get(number, {number})}

    def _assign(self) -> dict[int, int]:
        """Return the places of all large values that have one, and of the inputs."""
        ties, named = {}, dict(self._names)
        culprits: list[tuple[str, str, str]] = []

        def root(number):
            while ties.setdefault(number, number) != number:
                ties[number] = number = ties[ties[number]]
            return number

        def tie(numbers, by):
            large = list(filter(self._is_tied, numbers))
            for number in large:
                one, other = root(large[0]), root(number)
                if one != other:
                    if one in named and other in named and named[one] != named[other]:
                        culprits.append((named[one], named[other], by))
                    ties[other] = one
                    if other in named:
                        named.setdefault(one, named[other])

        for equation in self.program.equations:
            tie((*equation.ins, *equation.outs), equation.primitive.name)
        for pair in self._tied:
            tie(pair, "the state")
        sizes: dict[int, int] = collections.defaultdict(int)
        for number in self.program.inputs:
            if not self._is_small[number]:
                sizes[root(number)] += int(np.prod(self.program.avals[number].shape))
        if len(sizes) < self.parts:
            why = "".join(f"; `{by}` takes {one} together with {other}" for one, other, by in culprits[:3])
            advice = (
                "divide it over fewer hosts, or use a method whose rule treats each leaf for itself"
                if sizes
                else "smaller arrays stay together, so leave out central_hosts"
            )
            raise ValueError(
                f"the central variable cannot be divided over {self.parts} hosts, because its arrays of more than "
                f"{self._small} numbers form only {len(sizes)} independent groups{why}; {advice}"
            )
        load, places = [0] * self.parts, {}
        for one in sorted(sizes, key=lambda one: (-sizes[one], one)):  # The largest first, where there is most room.
            places[one] = load.index(min(load))
            load[places[one]] += sizes[one]
        self.load = load
        found = {number: places[root(number)] for number in list(ties) if root(number) in places}
        return found | {n: DRIVER if self._is_small[n] else places[root(n)] for n in self.program.inputs}

    def _pin(self, equation: Equation) -> tuple[int, int] | None:
        """Return the place and the round of an equation; ``None`` if each place computes it for itself."""
        if all(out in self._sources for out in equation.outs):
            return None
        needs = self._needs(equation.ins)
        large = {self.place[n] for n in (*equation.ins, *equation.outs) if self._is_tied(n)}
        elsewhere = {self.place[need] for need in needs} - {DRIVER}
        # A number that depends on one part stays there, which saves a round.
        place = large.pop() if large else elsewhere.pop() if len(elsewhere) == 1 else DRIVER
        level = max((self._when(need, place) for need in needs), default=0)
        for out in equation.outs:
            if out not in self._sources:
                self.place[out], self._level[out] = place, level
        return place, level

    def _when(self, number: int, place: int) -> int:
        """Return the first round in which ``place`` can read a value."""
        return self._level[number] + (self.place[number] not in (place, DRIVER))

    def _settle_outputs(self) -> None:
        """Decide where each output is returned, and when it is there."""
        self.returned = []
        for index, out in enumerate(self.program.outputs):
            if index in self._before:
                place = self.place[self._before[index]]
            else:
                place = self.place[out] if self._is_tied(out) else DRIVER
            level = max((self._when(need, place) for need in self._needs([out])), default=0)
            self.returned.append((out, place, level))

    def _cut(self) -> list[dict[int, Piece]]:
        rounds = 1 + max([self.rounds - 1, *(level for _, _, level in self.returned)])
        self.rounds = rounds
        mine: dict[tuple[int, int], set[int]] = collections.defaultdict(set)  # Equations, by place and round.
        wanted: dict[tuple[int, int], set[int]] = collections.defaultdict(set)  # Values to compute or read.
        equations, maker = self.program.equations, {}
        for index, (equation, pinned) in enumerate(zip(equations, self._pinned, strict=True)):
            maker.update(dict.fromkeys(equation.outs, index))
            if pinned is not None:
                mine[pinned].add(index)
                wanted[pinned].update(equation.ins)
        for out, place, level in self.returned:
            wanted[place, level].add(out)
        reads: dict[tuple[int, int], set[int]] = {}
        for at, numbers in wanted.items():
            reads[at], stack = set(), list(numbers)
            while stack:
                number = stack.pop()
                if number not in self._sources:
                    if maker.get(number) not in mine[at]:
                        reads[at].add(number)
                elif number in maker and maker[number] not in mine[at]:
                    mine[at].add(maker[number])
                    stack.extend(equations[maker[number]].ins)
        return [self._round(level, mine, reads) for level in range(rounds)]

    def _round(self, level: int, mine: dict, reads: dict) -> dict[int, Piece]:
        pieces = {}
        for (place, at), read in reads.items():
            if at != level:
                continue
            inside = [self.program.equations[index] for index in sorted(mine[place, at])]
            made = {out for equation in inside for out in equation.outs}
            used = {number for equation in inside for number in equation.ins}
            later = {n for (p, k), numbers in reads.items() if (p, k) != (place, at) for n in numbers}
            returned = {n for n, where, when in self.returned if n not in self._sources or (where, when) == (place, at)}
            elsewhere = {n for (p, _), numbers in reads.items() if p != place for n in numbers}
            computed = sorted(n for n in made & (later | returned) if self.place.get(n, place) == place)
            avals = {n: jax.ShapeDtypeStruct(a.shape, a.dtype) for n in read for a in (self.program.avals[n],)}
            pieces[place] = Piece(
                inside, {n: value for n, value in self.program.constants.items() if n in used | returned},
                tuple(sorted(n for n in read if self.place[n] != place)),
                tuple(sorted(n for n in read if self.place[n] == place)),
                tuple(computed), tuple(n for n in computed if n in elsewhere), avals,
            )  # fmt: skip
        return pieces

    def describe(self) -> str:
        """Return a digest of the pieces: equal if two processes may exchange their values."""
        digest = hashlib.sha256()
        for place, piece in (item for pieces in self.pieces for item in sorted(pieces.items())):
            names = [equation.primitive.name for equation in piece.equations]
            digest.update(repr((place, piece.received, piece.kept, piece.computed, names)).encode())
        return digest.hexdigest()
