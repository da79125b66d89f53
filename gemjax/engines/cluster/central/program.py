"""A traced program as one flat list of equations, whose calls and branches are expanded."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex

PyTree = Any
# Primitives that only call another program, under the names of all supported releases of JAX.
CALLS = (
    "jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call",
    "custom_vjp_call_jaxpr",
)  # fmt: skip


class Equation(NamedTuple):
    """One primitive operation; values have numbers."""

    primitive: Any
    params: Mapping[str, Any]
    ins: tuple[int, ...]
    outs: tuple[int, ...]


class Program:
    """The equations of ``fn`` on arguments like ``args``, of which it needs shapes only.

    Calls are expanded. So is a ``cond``, whose branches are all computed and one of which is selected: its branches may belong
    to several places. One that chooses between platforms stays.

    Raises:
      ValueError: if an operation has effects, such as printing.

    Attributes:
      avals: per value, its shape and dtype.
      constants: values that the program contains.
      equations: those on which an output depends, in order.
      inputs, outputs: the numbers of the leaves of the arguments and of the result.
    """

    def __init__(self, fn: Callable, *args: PyTree):
        closed = jax.make_jaxpr(fn)(*args)
        self.avals: list[Any] = []
        self.constants: dict[int, Any] = {}
        self.equations: list[Equation] = []
        self.inputs = [self._new(var.aval) for var in closed.jaxpr.invars]
        self.outputs = self._expand(closed, self.inputs)
        self.equations, _ = self.needed_for(self.outputs)

    def needed_for(self, values: Iterable[int]) -> tuple[list[Equation], set[int]]:
        """Return the equations on which ``values`` depend, in order, and all values that those read, and ``values``."""
        needed = set(values)
        for equation in reversed(self.equations):
            if not needed.isdisjoint(equation.outs):
                needed.update(equation.ins)
        return [equation for equation in self.equations if not needed.isdisjoint(equation.outs)], needed

    def _new(self, aval: Any) -> int:
        self.avals.append(aval)
        return len(self.avals) - 1

    def _constant(self, value: Any, aval: Any) -> int:
        number = self._new(aval)
        self.constants[number] = value
        return number

    def _expand(self, closed: Any, ins: Iterable[int]) -> list[int]:
        jaxpr, consts = (closed.jaxpr, closed.consts) if hasattr(closed, "jaxpr") else (closed, [])
        known = dict(zip(jaxpr.invars, ins, strict=True))
        known |= {var: self._constant(value, var.aval) for var, value in zip(jaxpr.constvars, consts, strict=True)}

        def read(atom):
            return self._constant(atom.val, atom.aval) if isinstance(atom, jex.Literal) else known[atom]

        for eqn in jaxpr.eqns:
            name, numbers = eqn.primitive.name, tuple(map(read, eqn.invars))
            inner = next((eqn.params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in eqn.params), None)
            if name in CALLS and inner is not None:
                outs = self._expand(inner, numbers)
            elif name == "cond" and eqn.params.get("branches_platforms") is None:
                outs = self._select(eqn.params["branches"], *numbers)
            else:
                if eqn.effects:
                    raise ValueError(
                        f"the method calls `{name}`, which has an effect besides its result, so that its commits cannot be "
                        "divided over hosts; remove the call, such as jax.debug.print, or leave out central_hosts="
                    )
                outs = [self._new(var.aval) for var in eqn.outvars]
                self.equations.append(Equation(eqn.primitive, eqn.params, numbers, tuple(outs)))
            known.update(zip(eqn.outvars, outs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _select(self, branches: Iterable[Any], which: int, *ins: int) -> list[int]:
        cases = [self._expand(branch, ins) for branch in branches]
        outs = [self._new(self.avals[case]) for case in cases[0]]
        for out, *values in zip(outs, *cases, strict=True):
            self.equations.append(Equation(jax.lax.select_n_p, {}, (which, *values), (out,)))
        return outs


def evaluate(equations: Iterable[Equation], values: dict[int, Any]) -> None:
    """Compute the equations; ``values`` has what they read, and receives what they return."""
    for primitive, params, ins, outs in equations:
        answer = primitive.bind(*(values[number] for number in ins), **params)
        values.update(zip(outs, answer if primitive.multiple_results else (answer,), strict=True))
