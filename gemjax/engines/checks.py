"""Checks of the arguments of a run, made before anything is computed."""

import io
import numbers
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gemjax.batches.per_seed import PerSeed
from gemjax.protocol.checks import check_range, check_width, with_extra_args
from gemjax.protocol.compat.programs import Kept, Program, Same, kind_of, settings
from gemjax.protocol.diagnostics import Observer
from gemjax.protocol.local_steps import LocalSteps
from gemjax.protocol.staleness import is_asynchronous, needs_local_steps, needs_rounds
from gemjax.protocol.trace import Trace

PyTree = Any
WIDE = ("float64", "complex128", "int64", "uint64")  # Of JAX arrays with jax_enable_x64 only.


class RunWarning(UserWarning):
    """A condition that does not stop a run: a long wait, two learning rates, or a placement that makes workers wait."""


def check_given(loss_fn: Callable, params: PyTree, model_state: PyTree, where: str = "") -> None:
    """Raise ``TypeError`` if arguments are swapped or of a type that engines do not take.

    Args:
      loss_fn: the argument of that name.
      params: the argument of that name.
      model_state: the argument of that name.
      where: name of an argument that may be a :class:`gemjax.PerSeed`.
    """
    given = {"loss_fn": loss_fn, "params": params, "model_state": model_state}
    if wrong := [name for name, value in given.items() if isinstance(value, PerSeed) and name != where]:
        raise TypeError(
            f"{wrong[0]} is a gemjax.PerSeed, which is accepted for params, batches and trace of gemjax.sweep only; give the "
            "value itself"
        )
    if not callable(loss_fn):
        swapped = " and params is a function: swap the two" if callable(params) else ""
        raise TypeError(
            f"loss_fn is of type {type(loss_fn).__name__}{swapped}; engines are called as (tx, loss_fn, params, batches, …) "
            "with loss_fn(params, batch) -> loss"
        )
    _check_no_module(params)
    for name, tree in (("params", params), ("model_state", model_state)):
        if name != where:
            _check_leaves(name, tree)


def check_untraced(params: PyTree, model_state: PyTree) -> None:
    """Raise ``TypeError`` inside of ``jax.jit``, ``vmap`` or ``grad``: an engine calls compiled programs from Python."""
    if is_traced(params, model_state):
        raise TypeError(
            "an engine cannot be called inside of jax.jit, vmap or grad, because it calls compiled programs from Python; call "
            "it outside, gemjax.sweep for many hyper-parameters and seeds, or gemjax.pull and tx.update for a loop of your own"
        )


def is_traced(*trees: PyTree) -> bool:
    """Return True inside of ``jax.jit``, and if one of ``trees`` comes from there or from ``vmap`` or ``grad``."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((trees, jnp.zeros([]))))


def check_placed(params: PyTree, model_state: PyTree, *, together: bool) -> None:
    """Raise ``ValueError`` if arrays are where compiled programs of engines cannot take them.

    Args:
      params: the argument of that name.
      model_state: the argument of that name.
      together: True if one program takes all arrays from where they are; False if they are copied to other devices first.
    """
    places: dict[frozenset, str] = {}  # Sets of devices, with the first array on each.
    for name, tree in (("params", params), ("model_state", model_state)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if (sharding := getattr(leaf, "sharding", None)) is None:
                continue
            explicit = jax.sharding.AxisType.Explicit in getattr(getattr(sharding, "mesh", None), "axis_types", ())
            if explicit and (together or not sharding.is_fully_replicated):
                raise ValueError(
                    f"{name} at {_place(path)} is on a mesh with explicit axes, whose arrays cannot be mixed with others; make "
                    "the mesh with jax.make_mesh(…, axis_types=(jax.sharding.AxisType.Auto,) * n) for n axes"
                )
            places.setdefault(frozenset(sharding.device_set), f"{name} at {_place(path)}")
    if together and len(places) > 1:
        (first, one), (other, two) = list(places.items())[:2]
        raise ValueError(
            f"{one} is on {_devices(first)}, but {two} on {_devices(other)}; put all arrays on the same devices with "
            "jax.device_put"
        )


def check_no_mesh() -> None:
    """Raise ``ValueError`` inside of ``jax.set_mesh``: workers compute on devices of their own."""
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty:
        raise ValueError(
            f"jax.set_mesh is in effect with a mesh of {mesh.size} devices, but each worker computes on devices of its own; "
            "leave its block first, and give placement= to divide a worker or the central variable over several devices"
        )


def _devices(devices: Any) -> str:
    return ", ".join(sorted(str(device) for device in devices))


def check_tx(tx: Any) -> None:
    """Raise ``TypeError`` unless ``tx`` is a transformation."""
    if not isinstance(tx, type) and all(callable(getattr(tx, name, None)) for name in ("init", "update")):
        return
    if callable(tx):
        name = getattr(tx, "__name__", type(tx).__name__)
        raise TypeError(f"tx is the function {name} itself; call it and give its result, {name}(learning_rate, …)")
    raise TypeError(
        f"tx is {described(tx)}, but engines take an optax transformation; give one, such as "
        "gemjax.gem(0.1, num_workers=8)"
    )


def check_make(make: Any) -> None:
    """Raise ``TypeError`` unless ``make``, the first argument of a sweep, is callable."""
    if not callable(make):
        raise TypeError(
            f"make is {described(make)}, but a sweep takes a function that returns the transformation; give one, such as "
            "lambda rate: gemjax.gem(rate, num_workers=8)"
        )


def check_params(params: PyTree) -> None:
    """Raise ``ValueError`` unless ``params`` are arrays of real floats of 16 bits or more, at least one."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    if not leaves:
        raise ValueError("params has no arrays, so there is nothing to train")
    for path, leaf in leaves:
        dtype = jnp.result_type(leaf)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            raise ValueError(
                f"params at {_place(path)} is {dtype}, but methods are defined for real numbers; give its real and "
                "imaginary parts as two arrays, and join them in the loss function with jax.lax.complex"
            )
        if not jnp.issubdtype(dtype, jnp.inexact):
            raise ValueError(
                f"params at {_place(path)} is {dtype}, but only floats can be trained; "
                "keep integers and keys in model_state or in the loss function"
            )
        if jnp.finfo(dtype).bits < 16:
            raise ValueError(
                f"params at {_place(path)} is {dtype}, which JAX does not mix with other floats; give bfloat16 or float32, and "
                "convert it in the loss function"
            )


# Optimizers that need more than gradients, by a part of the name of their state: the reason, and what to give instead.
DEMANDING = {
    "Linesearch": (
        "has a line search, which evaluates the loss at further points, but a commit has a gradient alone; give one without, "
        "such as optax.scale_by_lbfgs() with optax.scale_by_learning_rate(…)"
    ),
    "LookaheadState": (
        "is optax.lookahead, which trains pairs of parameters, but workers pull one of them; give "
        "gemjax.downpour(slow_step_size, num_workers) and local=gemjax.LocalSteps(fast_optimizer, sync_period)"
    ),
    "HutchinsonState": (
        "has optax.contrib.hutchinson_estimator_diag_hessian, as sophia does, which differentiates the loss again, but a "
        "commit has a gradient alone; give one without, such as optax.contrib.ademamix(…)"
    ),
    "SAMState": (
        "is optax.contrib.sam, which goes to a second point and back in steps of its own; give the optimizer inside of it, and "
        "a loss_fn that takes the loss at the second point, loss(params + jax.lax.stop_gradient(step), batch)"
    ),
}


def check_gradients_are_enough(opt_state: Any) -> None:
    """Raise ``TypeError`` if an optimizer with this state needs more than gradients."""
    name_of = lambda node: next((name for name in DEMANDING if name in type(node).__name__), None)
    for node in jax.tree.leaves(opt_state, is_leaf=lambda node: name_of(node) is not None):
        if (name := name_of(node)) is not None:
            raise TypeError(f"the optimizer {DEMANDING[name]}")


def check_option(name: str, value: Any, kind: type, example: str) -> None:
    """Raise ``TypeError`` unless ``value`` is ``None`` or an instance of ``kind``.

    Args:
      name: name of the argument.
      value: the argument.
      kind: the required class.
      example: an expression for such a value.
    """
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} is {described(value)}, but must be a gemjax.{kind.__name__}; give {example}")


def check_callback(callback: Any, name: str = "callback", form: str = "(progress) -> bool") -> None:
    """Raise ``TypeError`` unless ``callback``, the argument ``name``, is ``None``, a function, or a callable object."""
    if isinstance(callback, type):
        raise TypeError(f"{name} is {described(callback)}; give an instance of it, {callback.__name__}(…)")
    if callback is not None and not callable(callback):
        advice = f"; give {name}{form}" if form else ""
        raise TypeError(f"{name} is {described(callback)}, but must be a function{advice}")


def check_log(log: Any) -> None:
    """Raise ``TypeError`` unless ``log`` is ``None`` or has the methods ``write`` and ``flush`` of :class:`gemjax.EventLog`."""
    methods = [getattr(log, name, None) for name in ("write", "flush")]
    is_other = isinstance(log, (type, io.IOBase)) or not all(map(callable, methods))
    if log is not None and is_other:
        raise TypeError(
            f"log is {described(log)}, but must be a gemjax.EventLog, or have its write and flush; give "
            "gemjax.EventLog('run.jsonl')"
        )


def ends_run(answer: Any) -> bool:
    """Return True if a callback that returned ``answer`` ends the run.

    Raises:
      TypeError: unless ``answer`` is ``None``, a bool or a number.
    """
    if answer is None or isinstance(answer, numbers.Number):
        return bool(answer)
    if is_numeric(answer) and not np.shape(answer) and not is_key(answer):
        return bool(answer)
    raise TypeError(f"callback returned {described(answer)}; return True to end the run, False or None to continue")


def _check_no_module(params: PyTree) -> None:
    """Raise ``TypeError`` for a Flax module or training state, recognised by its class without importing Flax."""
    kind = type(params)
    if any(base.__module__.startswith("flax.nnx") and base.__name__ == "Module" for base in kind.__mro__):
        raise TypeError(
            f"params is the Flax NNX module {kind.__name__}; give its parameters, as in graphdef, params, model_state = "
            "nnx.split(net, nnx.Param, ...), and rebuild the module in the loss function with nnx.merge"
        )
    is_empty = not any(is_numeric(leaf) for leaf in jax.tree.leaves(params))  # A registered class may hold arrays.
    if hasattr(kind, "init") and hasattr(kind, "apply") and is_empty:
        raise TypeError(
            f"params is the module {kind.__name__}, which has no parameters; give those that its init returns "
            "(variables['params'] in Flax Linen), and call its apply in the loss function"
        )
    if hasattr(params, "apply_fn") and hasattr(params, "params"):
        raise TypeError(
            f"params is a {kind.__name__}; give its .params, and call its apply_fn in the loss function (engines keep the "
            "optimizer's state themselves)"
        )


def _check_leaves(name: str, tree: PyTree) -> None:
    """Raise ``TypeError`` for a leaf that is no array, naming its path."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not is_numeric(leaf):
            raise TypeError(
                f"{name} at {_place(path)} is {described(leaf)}, but {name} may have arrays only; keep it in the loss function"
            )
        if isinstance(leaf, np.ndarray) and not leaf.dtype.isnative:
            raise TypeError(
                f"{name} at {_place(path)} is an array of {leaf.dtype}, not in this machine's order of bytes; give "
                "x.astype(x.dtype.newbyteorder('='))"
            )
        if isinstance(leaf, jax.Array) and str(leaf.dtype) in WIDE and jnp.result_type(float) != np.float64:
            raise TypeError(
                f"{name} at {_place(path)} is {leaf.dtype}, but numbers of 64 bits are not enabled here; call the engine with "
                "jax_enable_x64, too, or convert the array"
            )
        if isinstance(leaf, int) and abs(leaf) > jnp.iinfo(dtype := jnp.result_type(int)).max:
            raise TypeError(f"{name} at {_place(path)} is {described(leaf)}, which does not fit into {dtype.name}")
        check_range(f"{name} at {_place(path)}", leaf)
        check_width(f"{name} at {_place(path)}", leaf)


def is_key(leaf: Any) -> bool:
    """Return True if ``leaf``, an array or its shape and dtype, holds typed PRNG keys (``jax.random.key``)."""
    try:
        return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    except TypeError:  # An array of another library.
        return False


def is_numeric(leaf: Any) -> bool:
    """Return True for a number, an array of numbers, truth values or typed keys, and the shape of such an array."""
    if isinstance(leaf, (int, float, complex)):
        return True
    dtype = getattr(leaf, "dtype", None)
    kinds = (np.number, np.bool_, jax.dtypes.prng_key)
    return hasattr(leaf, "shape") and dtype is not None and any(jax.dtypes.issubdtype(dtype, kind) for kind in kinds)


def _place(path: tuple) -> str:
    return jax.tree_util.keystr(path) or "the root"


def described(value: Any) -> str:
    """Describe a value in a few words.

    >>> described("gem"), described(len), described(np.zeros(3)), described({})
    ("the str 'gem'", 'a function', 'an array of shape [3]', 'of type dict')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, (str, int, float)):
        return f"the {type(value).__name__} {value!r:.40}"
    if is_key(value):
        return "a random key" if not np.shape(value) else f"an array of random keys of shape {list(np.shape(value))}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array of shape {list(np.shape(value))}"
    return "a function" if callable(value) else f"of type {type(value).__name__}"


def shapes_of(init: Callable, *args: PyTree) -> PyTree:
    """Return the shapes and dtypes of ``init(*args)``; if it cannot be traced, its arrays."""
    try:
        return jax.eval_shape(init, *args)
    except jax.errors.JAXTypeError:
        return init(*jax.tree.map(jnp.asarray, args))


def warn_of_two_rates(tx: optax.GradientTransformation, params: PyTree, local: LocalSteps | None) -> None:
    """Warn if ``tx`` is a method for gradients with a learning rate other than 1, and the run has local steps.

    A displacement contains the learning rate of the local optimizer, so the two rates multiply. There is no warning for methods
    that expect displacements, for optimizers that divide by the length of a gradient (Adam), for schedules, and for plain optax
    transformations, whose rate the caller chose on purpose.
    """
    rate = None if local is None else _first_rate(tx, params)
    if rate is not None and rate != 1:
        warnings.warn(
            f"the method multiplies the displacements of local steps, which have the rate of their own optimizer, by "
            f"learning_rate={rate:g}; give learning_rate=1.0, or a method made for displacements (downpour, easgd, lsgd, "
            "diloco, …)",
            RunWarning, stacklevel=3,
        )  # fmt: skip


def warn_without_rounds(
    tx: optax.GradientTransformation, params: PyTree, local: LocalSteps | None, *traces: Trace
) -> None:
    """Warn if ``tx`` is defined in rounds, but a trace is not."""
    if local is not None and not all(map(is_in_rounds, traces)) and needs_rounds(shapes_of(tx.init, params)):
        warnings.warn(
            "the method is defined in rounds, whose steps average displacements of all workers from the same view, but the "
            "trace has none; give that of gemjax.arrivals.Barrier(model), or take a method without rounds, such as "
            "gemjax.delayed_nesterov",
            RunWarning, stacklevel=3,
        )  # fmt: skip


def is_in_rounds(trace: Trace) -> bool:
    """Return False if a trace has commits at views that are older than their round of N commits."""
    begins = np.arange(len(trace)) // trace.num_workers * trace.num_workers
    return bool(np.all(trace.pulled_at >= begins))


def _first_rate(tx: optax.GradientTransformation, params: PyTree) -> float | None:
    """Return the rate of the first commit; ``None`` if ``tx`` reports none, several or one in a branch, or is exempt."""
    state = shapes_of(tx.init, params)
    if not is_asynchronous(state) or needs_local_steps(state) or _has(_EXEMPT, state):
        return None
    shapes = jax.eval_shape(lambda params: params, params)

    def rate():
        observer = Observer(["learning_rate"])
        observer.offered.add("learning_rate")  # So that a rate of optax.inject_hyperparams is not offered.
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        losses = {"value": 0.0, "local_losses": jnp.zeros(1), "local_steps": 1, "observe": observer}
        with_extra_args(tx).update(zeros, tx.init(zeros), zeros, worker=0, **losses)
        return None if observer.several else observer.seen.get("learning_rate")

    # Compiled, so that nothing but the rate is computed.
    program = _RATES.get((Same(tx), kind_of(params), settings()), lambda: Program(rate))
    try:
        found = program()
    except (
        ValueError,
        jax.errors.JAXTypeError,
    ):  # A rate inside of optax.apply_if_finite; an `init` that cannot be traced.
        return None
    return None if found is None else float(found)


_RATES = Kept()
# Adam divides by the length of a gradient. The first rate of a schedule, such as a warm-up from 0, says little.
_EXEMPT = (optax.ScaleByAdamState, optax.ScaleByScheduleState)


def _has(kinds: tuple[type, ...], state: PyTree) -> bool:
    is_one = lambda node: isinstance(node, kinds)
    return any(map(is_one, jax.tree.leaves(state, is_leaf=is_one)))


def checked_stops(stops: Iterable[int]) -> np.ndarray:
    """Return ``stops`` as an array of ints.

    Raises:
      ValueError: if they are no sequence of ints.
    """
    counts = np.asarray([*stops] if isinstance(stops, Iterable) and not hasattr(stops, "ndim") else stops)
    if counts.ndim != 1 or (counts.size and not np.issubdtype(counts.dtype, np.integer)):
        raise ValueError(
            f"stops must be numbers of commits, a sequence of ints; got {counts.dtype}{list(counts.shape)}"
        )
    return counts.astype(int)
