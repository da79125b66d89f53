"""Random runs of the public API: methods, parameters, arrivals, policies and faults."""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import optax
from engines.problems import without
from hypothesis import strategies as st
from methods.rows import METHODS, Row

import gemjax
from gemjax import arrivals
from gemjax.protocol.diagnostics import NEED_RATE, OF_ANY_COMMIT

DTYPES = ("float16", "bfloat16", "float32", "float64")
LONGER = int(os.environ.get("GEMJAX_FUZZ", "1"))


def examples(count: int) -> hypothesis.settings:
    """Return settings for ``count`` fixed cases, or for ``GEMJAX_FUZZ`` times as many random ones.

    A failure is not shrunk, because most cases are compiled anew.
    """
    return hypothesis.settings(
        max_examples=count * LONGER, derandomize=LONGER == 1, deadline=None, database=None, print_blob=False,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
    )  # fmt: skip


@functools.partial(jax.tree_util.register_dataclass, data_fields=["left", "right"], meta_fields=[])
@dataclasses.dataclass
class Pair:
    """Parameters in a dataclass."""

    left: Any
    right: Any


class Both(NamedTuple):
    """Parameters in a named tuple."""

    one: Any
    other: Any


# By name, functions of ``array(*shape)``.
TREES: dict[str, Callable] = {
    "scalar": lambda array: array(),
    "vector": lambda array: {"x": array(3)},
    "one": lambda array: (array(1, 1),),
    "nested": lambda array: {"in": {"w": array(2, 3), "b": array()}, "out": (array(1), [array(2)])},
    "empty": lambda array: {"x": array(3), "none": array(0), "two": array(2, 0)},
    "tall": lambda array: (array(65, 2), array(1)),
    "dataclass": lambda array: Pair(array(2), array(1, 2)),
    "named": lambda array: Both(array(2), None),
}


def alternately(kinds: Sequence[Any]) -> Callable:
    """Return a function that labels the leaves of a tree with ``kinds`` in turn."""

    def label(tree):
        leaves, structure = jax.tree.flatten(tree)
        return jax.tree.unflatten(structure, [kinds[index % len(kinds)] for index in range(len(leaves))])

    return label


def _injected(row: Row, n: int):
    given = {"learning_rate": row.learning_rate, "num_workers": n, **row.keywords}
    return optax.inject_hyperparams(row.alias, static_args=[*given][1:])(**given)


def _masked(row: Row, n: int):
    rest = optax.masked(optax.set_to_zero(), alternately([False, True]))
    return optax.chain(optax.masked(row(n), alternately([True, False])), rest)


def _as_tx(steps: optax.MultiSteps) -> optax.GradientTransformation:
    return optax.GradientTransformationExtraArgs(steps.init, steps.update)


WRAPS: dict[str, Callable[[Row, int], optax.GradientTransformation]] = {
    "bare": lambda row, n: row(n),
    "clipped": lambda row, n: optax.chain(optax.clip_by_global_norm(0.5), row(n)),
    "decayed": lambda row, n: optax.chain(optax.add_decayed_weights(0.01), row(n)),
    "masked": _masked,
    "partition": lambda row, n: optax.partition({"a": row(n), "b": optax.sgd(0.01)}, alternately("ab")),
    "two methods": lambda row, n: optax.partition({"a": row(n), "b": gemjax.gem(0.01, 0.9, n)}, alternately("ab")),
    "MultiSteps": lambda row, n: _as_tx(optax.MultiSteps(row(n), 2)),
    "injected": _injected,
    "if finite": lambda row, n: optax.apply_if_finite(row(n), 3),
    "schedule": lambda row, n: row(n, optax.linear_schedule(row.learning_rate, 0.0, 9)),
    "per worker": lambda row, n: optax.chain(gemjax.per_worker(optax.trace(0.5), n), row(n)),
    "plain": lambda row, n: optax.adam(row.learning_rate),
}
MODELS: dict[str, Callable[[int], arrivals.Arrivals]] = {
    "round robin": arrivals.RoundRobin,
    "constant": lambda n: arrivals.ConstantSpeeds([1.0 + w for w in range(n)]),
    "gamma": lambda n: arrivals.Gamma(n, machine_variation=0.6),
    "exponential": arrivals.Exponential,
    "log-normal": arrivals.LogNormal,
    "pareto": lambda n: arrivals.Pareto(n, shape=1.5),
    "scaled": lambda n: arrivals.Scaled(arrivals.Gamma(n), [1.0] * (n - 1) + [8.0]),
    "delayed": lambda n: arrivals.Delayed(arrivals.Gamma(n), up=0.5, down=[0.1] * n),
    "queue": lambda n: arrivals.Queue(arrivals.Exponential(n), service=0.3),
    "barrier": lambda n: arrivals.Barrier(arrivals.Gamma(n)),
    "incidents": lambda n: arrivals.Incidents(
        arrivals.Gamma(n),
        [arrivals.Leaves(n - 1, 2.5), arrivals.Joins(n - 1, 4.0), arrivals.Slows(0, 1.5, 3.0)],
    ),
}


class Source(Sequence):
    """Rows that are read one by one."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        return self.rows[number]


ROWS = 0.1 * np.sin(np.arange(12, dtype=np.float32))
BATCHES: dict[str, Callable[[int], Any]] = {
    "function": lambda n: lambda worker, step: 0.1 * jnp.sin(3.0 * worker + step)[None],
    "epochs": lambda n: gemjax.Epochs(ROWS, 5, seed=1),
    "shards": lambda n: gemjax.Shards(ROWS, 2, n, seed=1),
    "stream": lambda n: gemjax.Stream(ROWS, 4, seed=1),
    "on host": lambda n: gemjax.OnHost(gemjax.Epochs(ROWS, 1)),
    "source": lambda n: gemjax.FromSource(Source(ROWS), batch_size=3),
    "streamed source": lambda n: gemjax.FromSource(Source(ROWS), gemjax.Stream(np.arange(12), 2)),
}
STATES: dict[str, Callable[[], Any]] = {
    "none": lambda: (),
    "mean": lambda: {"mean": jnp.zeros(()), "seen": jnp.int32(0)},
    "key": lambda: {"mean": jnp.zeros((), jnp.bfloat16), "seen": jnp.uint8(0), "key": jax.random.key(3)},
    "empty": lambda: {"mean": jnp.zeros(()), "seen": jnp.zeros(0, jnp.int32)},
}
DIAGNOSTICS = (*OF_ANY_COMMIT, "learning_rate", "compensation", "look_ahead", "pi_median")


@dataclasses.dataclass(frozen=True)
class Case:
    """Arguments of an engine, as names where the values have no readable ``repr``."""

    row: Row
    wrap: str
    tree: str
    dtypes: tuple[str, ...]
    x64: bool
    workers: int
    arrivals: str
    lost: tuple[int, ...]  # Rows of the trace that were lost, so that their workers pulled late.
    commits: int
    batches: str
    model_state: str
    average: bool
    period: Any
    diagnostics: tuple[str, ...]
    seed: int

    def __repr__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return f"Case({values | {'row': self.row.name}})"

    @property
    def params(self) -> Any:
        count = iter(range(1000))

        def array(*shape):
            index = next(count)
            values = 0.5 + 0.1 * np.cos(np.arange(np.prod(shape, dtype=int)) + index)
            return jnp.asarray(values.reshape(shape), self.dtypes[index % len(self.dtypes)])

        return TREES[self.tree](array)

    @property
    def trace(self) -> gemjax.Trace:
        trace = MODELS[self.arrivals](self.workers).trace(self.commits, self.seed)
        return without(trace, sorted({row for row in self.lost if row < len(trace)}))

    @functools.cached_property
    def tx(self) -> Any:
        return WRAPS[self.wrap](self.row, self.workers)

    @functools.cached_property
    def problem(self) -> tuple:
        """``loss_fn`` and the other arguments after ``tx`` that all engines share."""
        loss_fn = plain_loss if self.model_state == "none" else loss_with_state
        return loss_fn, self.params, BATCHES[self.batches](self.workers)

    @functools.cached_property
    def options(self) -> dict[str, Any]:
        local = None if self.period is None else gemjax.LocalSteps(optax.sgd(0.1, momentum=0.5), self.period)
        return {
            "model_state": STATES[self.model_state](), "average_model_state": self.average, "local": local,
            "seed": self.seed, "diagnostics": self.diagnostics,
        }  # fmt: skip


def plain_loss(params, batch):
    """Return a quadratic loss in the largest dtype of the parameters."""
    return sum(0.5 * jnp.sum(jnp.square(leaf - batch.mean().astype(leaf.dtype))) for leaf in jax.tree.leaves(params))


def loss_with_state(params, model_state, batch, key):
    """Return the same loss with noise, model state and a metric."""
    noise = jax.random.bits(key, (), "uint8").astype("float32") / 2560.0
    loss = plain_loss(params, batch + noise)
    mean = model_state["mean"]
    mean = mean + (jax.lax.stop_gradient(loss).astype(mean.dtype) - mean) / 2
    return loss, (model_state | {"mean": mean, "seen": model_state["seen"] + 1}, {"noise": noise})


@st.composite
def cases(draw, most_workers=4) -> Case:
    """Draw the arguments of a run, nearly all of them valid."""
    row, n = draw(st.sampled_from(METHODS)), draw(st.integers(1, most_workers))
    dtypes = draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=2).map(tuple))
    period = st.integers(1, 3) | st.lists(st.integers(1, 3), min_size=n, max_size=n).map(tuple)
    wrap = draw(st.sampled_from(list(WRAPS)))
    # A member in a branch cannot report: JAX refuses values that do not exist outside of it.
    known = {*OF_ANY_COMMIT} - NEED_RATE if wrap in ("if finite", "MultiSteps") else DIAGNOSTICS
    return Case(
        row=row,
        wrap=wrap,
        tree=draw(st.sampled_from(list(TREES))),
        dtypes=dtypes,
        x64="float64" in dtypes or draw(st.booleans()),
        workers=n,
        arrivals=draw(st.sampled_from(list(MODELS))),
        lost=draw(st.just(()) | st.lists(st.integers(0, 11), max_size=3).map(tuple)),
        commits=draw(st.sampled_from([1, 2, 7, 12, 0])),
        batches=draw(st.sampled_from(list(BATCHES))),
        model_state=draw(st.sampled_from(list(STATES))),
        average=draw(st.booleans()),
        period=draw(period if row.takes_displacements else st.none() | st.none() | period),
        diagnostics=draw(
            st.just(())
            | st.lists(st.sampled_from(DIAGNOSTICS), max_size=2, unique=True).map(
                lambda names: tuple(name for name in names if name in known)
            )
        ),
        seed=draw(st.integers(0, 5)),
    )
