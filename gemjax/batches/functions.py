"""A function as a source of batches, and its checks: JAX can trace it, and compilation does not freeze its batches."""

import contextlib
import dataclasses
import inspect
import re
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from gemjax.batches.base import Batches
from gemjax.protocol import PyTree

TOY = 16  # Numbers. A constant batch of no more is the target of a toy problem, so it causes no warning.
_checked: set[tuple[int, int]] = set()  # The ids of functions that have been checked for frozen data.


class BatchesWarning(UserWarning):
    """A warning that a function of batches, which JAX can trace, probably returns other batches than meant.

    Its host code runs once, when the run is compiled. A batch that it draws there with NumPy's or Python's random numbers,
    or takes from an iterator, is the batch of every gradient of the run.
    """


@dataclasses.dataclass(frozen=True)
class Computed(Batches):
    """Batches that a traceable function computes on the device; two compare equal if their functions do.

    Engines make one of a function that is given as ``batches=``. They warn (:class:`gemjax.BatchesWarning`) if the
    function draws data on the host, because it does so only once, when the run is compiled. They also warn if all workers
    and steps get the same batch of more than 16 numbers. ``Computed(fn)`` causes no warning: it states that one batch for
    the whole run is meant.

    Args:
      fn: ``fn(worker, step) -> batch`` for int32 scalars, in JAX; typically folds both into a key.

    >>> import gemjax, jax.numpy as jnp
    >>> key = jax.random.key(0)
    >>> def fn(worker, step):                     # Another batch for each worker and step, reproducible at any time.
    ...     return 1.0 + jax.random.normal(jax.random.fold_in(jax.random.fold_in(key, worker), step), (2,))
    >>> loss_fn = lambda params, batch: jnp.mean((params - batch) ** 2)
    >>> trace = gemjax.arrivals.Gamma(4).trace(200)
    >>> gemjax.simulate(gemjax.asgd(0.05, num_workers=4), loss_fn, jnp.zeros(2), fn, trace).params.round()
    Array([1., 1.], dtype=float32)
    """

    fn: Callable[[jax.Array, jax.Array], PyTree]

    def select(self, worker, step):
        return np.asarray(worker, np.int32), np.asarray(step, np.int32)

    def batch(self, data, selection):
        del data
        return self.fn(*selection)


def warn_if_frozen(fn: Callable) -> None:
    """Warn once with :class:`BatchesWarning` if compilation would fix the data of the whole run.

    ``fn`` is traced twice. If the traces differ, it takes data from outside of JAX. A batch that depends neither on the worker
    nor on the step is one batch for the whole run. This may be meant: up to :data:`TOY` numbers cause no warning. A function
    that calls back to the host causes no such warning, because its batches may differ between calls.
    """
    # Every access to a bound method makes a new object, so its instance identifies it. It need not be hashable.
    owner, function = (fn.__self__, fn.__func__) if inspect.ismethod(fn) else (fn, fn)
    key = (id(owner), id(function))
    if key in _checked:
        return
    with contextlib.suppress(TypeError):  # Some callable objects do not support weak references.
        weakref.finalize(owner, _checked.discard, key)
        _checked.add(key)
    # JAX would trace a compiled one only once.
    python = getattr(fn, "__wrapped__", fn) if isinstance(fn, jax.stages.Wrapped) else fn
    first, second = (_trace_anew(python) for _ in range(2))
    if not _equal(first, second):
        found = (
            "batches(worker, step) returned other data when it was traced again: it draws them on the host, which happens only "
            "when the run is compiled, so the same data serve the whole run; draw them with jax.random from worker and step, "
            "or give all data as gemjax.Epochs(data, batch_size)"
        )
    elif (
        not (_uses_arguments(first.jaxpr) or _calls_host(first.jaxpr))
        and sum(aval.size for aval in first.out_avals) > TOY
    ):
        found = (
            "batches(worker, step) depends neither on worker nor on step, so the whole run computes on one batch; give all "
            "data as gemjax.Epochs(data, batch_size), or gemjax.Computed(batches) if one batch is meant"
        )
    else:
        return
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("gemjax."):
        frame, level = frame.f_back, level + 1
    warnings.warn(found, BatchesWarning, stacklevel=level)  # At the line that called the engine.


def _trace_anew(fn: Callable) -> Any:
    def another(worker, step):  # JAX caches the trace of fn itself.
        return fn(worker, step)

    return jax.make_jaxpr(another)(np.int32(0), np.int32(0))


def _equal(first: Any, second: Any) -> bool:
    """Return True if two jaxprs are the same program of the same constants."""
    texts = [re.sub(r"0x[0-9a-f]+", "", str(jaxpr)) for jaxpr in (first, second)]  # Older JAX prints addresses.
    ones, others = list(_constants(first)), list(_constants(second))
    return (
        texts[0] == texts[1]
        and len(ones) == len(others)
        and all(one is other or _bits(one) == _bits(other) for one, other in zip(ones, others, strict=True))
    )


def _constants(jaxpr: Any) -> Iterator[Any]:
    for inner in jaxprs(jaxpr):
        yield from getattr(inner, "consts", ())
        for equation in inner.eqns:
            yield from (var.val for var in equation.invars if hasattr(var, "val"))


def jaxprs(jaxpr: Any) -> Iterator[Any]:
    """Yield ``jaxpr`` and all programs within it."""
    yield jaxpr
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else [value]:
                if hasattr(inner, "eqns"):
                    yield from jaxprs(inner)


def _calls_host(jaxpr: Any) -> bool:
    """Return True if the program calls Python each time it runs: by an effect, or by a ``pure_callback``, which has none."""
    return bool(jaxpr.effects) or any(
        equation.primitive.name == "pure_callback" for inner in jaxprs(jaxpr) for equation in inner.eqns
    )


def _bits(constant: Any) -> bytes:
    is_key = isinstance(constant, jax.Array) and jax.dtypes.issubdtype(constant.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(constant) if is_key else constant).tobytes()  # Bits: NaN equals NaN.


def _uses_arguments(jaxpr: Any) -> bool:
    """Return True if results may depend on arguments; an operation is assumed to use all of its operands."""
    used = {id(var) for var in jaxpr.outvars}
    for equation in reversed(jaxpr.eqns):
        if any(id(var) in used for var in equation.outvars):
            used.update(id(var) for var in equation.invars)
    return any(id(var) in used for var in jaxpr.invars)
