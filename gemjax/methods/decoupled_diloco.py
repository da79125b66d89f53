"""Decoupled DiLoCo: quorums of displacements are merged by their tokens and directions (2026)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.diloco import DOUILLARD2023DILOCO
from gemjax.methods.fragments import by_fragment
from gemjax.methods.leaf_groups import Groups
from gemjax.methods.papers import Paper
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method, PyTree, slots
from gemjax.protocol.checks import (
    check_choice,
    check_learning_rate,
    check_method,
    check_momentum,
    check_positive,
    check_positive_int,
    with_extra_args,
)
from gemjax.protocol.hooks import MadeFor
from gemjax.protocol.local_steps import displacements
from gemjax.protocol.staleness import asynchronous, is_asynchronous, require_protocol

DOUILLARD2026DECOUPLED = Paper("article", "douillard2026decoupled", {
    "author": "Douillard, Arthur and Rush, Keith and Donchev, Yani and Charles, Zachary and Fallen, Nova and "
    "Dubey, Ayush and Gog, Ionel and Dean, Josef and Woodworth, Blake and Garrett, Zachary and Keating, Nate and "
    "Bishop, Jenny and Prior, Henry and Yvinec, Edouard and Szlam, Arthur and Ranzato, Marc'Aurelio and Dean, Jeff",
    "title": "Decoupled {DiLoCo} for Resilient Distributed Pre-training", "year": "2026", "eprint": "2604.21428"})  # fmt: skip
PAPERS = {
    "merge_quorum": (
        DOUILLARD2026DECOUPLED,
        DOUILLARD2023DILOCO,
    )
}

MERGES = ("radial", "mean")


class MergeQuorumState(NamedTuple):
    """State of :func:`merge_quorum`, shared by all workers."""

    gathered: jax.Array  # int32 []; displacements since the last step.
    weight: jax.Array  # float []; the sum of their weights.
    radius: jax.Array  # float [L] for L leaves; the weighted sum of their norms. [0] with merge="mean".
    weighted_sum: PyTree  # Like params but at least float32; of displacements, or of their directions.
    inner: optax.OptState
    workers: MadeFor | None  # The length of ``tokens``; None without them.


def merge_quorum(
    inner: optax.GradientTransformation, count: int, *, merge: str = "radial", tokens: Sequence[float] | None = None
) -> "Method":
    """Apply ``inner`` to the merge of every ``count`` displacements, weighted by the work behind them.

    The atom of :func:`gemjax.decoupled_diloco`, whose docstring explains the mathematics. It goes before the learning rate in a
    chain; between two steps its output is zero and the state of ``inner`` does not change.

    Reductions: with ``merge="mean"``, equal numbers of local steps and no ``tokens`` it is ``optax.MultiSteps``; with
    ``count=1`` it is ``inner``.

    Args:
      inner: any optax transformation, such as ``optax.trace(0.9, nesterov=True)``.
      count: K, displacements per step, a positive int.
      merge: as in :func:`gemjax.decoupled_diloco`.
      tokens: as in :func:`gemjax.decoupled_diloco`.

    Returns:
      A transformation that keeps one copy of the parameters centrally besides the state of ``inner``. It needs the extra
      argument ``local_steps`` and, with ``tokens``, ``worker``. Engines supply both; inside of :func:`gemjax.asynchronous`
      ``local_steps`` is 1 if it is not given and no member expects displacements.

    Raises:
      ValueError: if ``count`` is not positive, ``merge`` unknown or ``tokens`` not positive.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.rules.merge_quorum(optax.identity(), 2, merge="mean")
    >>> state = tx.init(jnp.zeros(1))
    >>> for displacement, steps in ((0.1, 1), (0.3, 3)):
    ...     updates, state = tx.update(jnp.full(1, displacement), state, local_steps=steps)
    >>> updates
    Array([0.25], dtype=float32)
    """
    check_method("inner", inner)
    check_positive_int("count", count)
    check_choice("merge", merge, MERGES)
    per_step = None if tokens is None else tuple(tokens)
    for value in per_step or ():
        check_positive("each of tokens", value)
    inner = with_extra_args(inner)

    def init_fn(params) -> Any:
        zeros = jax.tree.map(lambda p: jnp.zeros_like(p, jnp.promote_types(p.dtype, jnp.float32)), params)
        if is_asynchronous(state := inner.init(params)):
            raise ValueError(
                "inner of merge_quorum is a whole method, whose staleness would count other commits than it receives; give a "
                "plain optax transformation, such as optax.sgd(0.7)"
            )
        kind, leaves = jnp.result_type(float), len(jax.tree.leaves(zeros)) if merge == "radial" else 0
        return MergeQuorumState(
            jnp.zeros([], jnp.int32), jnp.zeros([], kind), jnp.zeros(leaves, kind), zeros, state,
            None if per_step is None else MadeFor(len(per_step)),
        )  # fmt: skip

    def update_fn(updates, state, params=None, *, local_steps: Any = None, worker: Any = None, **extra_args) -> Any:
        require_protocol("merge_quorum", local_steps=local_steps)
        share = jnp.asarray(local_steps, state.weight.dtype)
        if per_step is not None:
            require_protocol("merge_quorum", worker=worker)
            # Relative to the largest, so that squares of counts of tokens do not overflow.
            counts = jnp.asarray(per_step, share.dtype)
            share = share * (counts / jnp.max(counts))[worker] ** 2
        extra_args |= {"local_steps": local_steps, "worker": worker}
        radius, weight = state.radius, state.weight + share
        wide = jax.tree.map(lambda u, s: u.astype(s.dtype), updates, state.weighted_sum)
        if merge == "radial":
            wide, structure = jax.tree.flatten(wide)
            norms = [_norm(w) for w in wide]
            radius = radius + share * jnp.array(norms, share.dtype)
            wide = jax.tree.unflatten(structure, [_over(w, norm) for w, norm in zip(wide, norms, strict=True)])
        weighted_sum = jax.tree.map(lambda s, w: s + share.astype(s.dtype) * w, state.weighted_sum, wide)
        merged = jax.tree.map(lambda s: _over(s, weight.astype(s.dtype)), weighted_sum)
        if merge == "radial":
            merged, structure = jax.tree.flatten(merged)
            lengths = [r.astype(m.dtype) for r, m in zip(_over(radius, weight), merged, strict=True)]
            merged = jax.tree.unflatten(structure, [_with_norm(m, r) for m, r in zip(merged, lengths, strict=True)])
        merged = jax.tree.map(lambda m, u: m.astype(u.dtype), merged, updates)
        full = state.gathered + 1 >= count
        before = slots.begin_commit(state.inner)
        step, after = inner.update(merged, before, params, **extra_args)
        start_anew = lambda tree: jax.tree.map(lambda x: jnp.where(full, jnp.zeros_like(x), x), tree)
        return jax.tree.map(lambda s: jnp.where(full, s, jnp.zeros_like(s)), step), MergeQuorumState(
            start_anew(state.gathered + 1), start_anew(weight), start_anew(radius), start_anew(weighted_sum),
            slots.select(full, after, state.inner), state.workers,
        )  # fmt: skip

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _norm(x: jax.Array) -> jax.Array:
    """Return the norm of ``x``, computed on ``x`` scaled by a power of 2, so that squares neither overflow nor underflow."""
    _, exponent = jnp.frexp(jnp.max(jnp.abs(x), initial=0))
    scaled = jnp.ldexp(x, -exponent)
    return jnp.ldexp(jnp.sqrt(jnp.sum(scaled * scaled)), exponent)


def _over(x: jax.Array, norm: jax.Array) -> jax.Array:
    """Return ``x / norm``; 0 if the norm is 0."""
    return jnp.where(norm > 0, x / jnp.where(norm > 0, norm, 1), jnp.zeros_like(x))


def _with_norm(direction: jax.Array, radius: jax.Array) -> jax.Array:
    """Return ``direction`` with the norm ``radius``; 0 if directions have cancelled out, so that rounding is not amplified."""
    norm = _norm(direction)
    return _over(direction, jnp.where(norm > jnp.finfo(direction.dtype).eps, norm, 0)) * radius


def decoupled_diloco(
    learning_rate: "optax.ScalarOrSchedule" = 0.7,
    momentum: float = 0.9,
    num_workers: int = 1,
    *,
    buffer_size: int | None = None,
    merge: str = "radial",
    tokens: "Sequence[float] | None" = None,
    fragments: "Groups" = 4,
    keep: float = 0.0,
    delay: int = 0,
    every: int = 1,
) -> "Method":
    """Decoupled DiLoCo: an outer step per fragment as soon as a quorum of displacements has arrived.

    No worker waits for a slow or lost one: the first K displacements of a fragment make a step. Slow workers then have made
    fewer steps than fast ones, so each counts by its work. The mean of displacements in different directions is short; the
    radial merge takes the mean of the directions and the mean of the lengths apart, so that steps keep their length however
    many workers disagree.

        ρ_j = (c_j² / τ_j) / Σ_i (c_i² / τ_i)
        r = Σ_j ρ_j ‖Δ_j‖,   d = Σ_j ρ_j Δ_j / ‖Δ_j‖
        Δ̄ = r d / ‖d‖     (radial)
        Δ̄ = Σ_j ρ_j Δ_j   (mean)
        v ← γ v + Δ̄
        θ ← θ - η_t (Δ̄ + γ v)

    at every K-th commit of a fragment, for each of its tensors, with v = 0 at the start, Δ_j the K displacements since the last
    step, τ_j the local steps that each took since its worker pulled the fragment, and c_j the tokens it processed in those
    steps. Tensors whose directions cancel out do not move.

    Reductions: with ``merge="mean"``, ``buffer_size=num_workers`` and equal numbers of steps and tokens it is
    :func:`gemjax.streaming_diloco`; with one fragment, too, :func:`gemjax.diloco`.

    Args:
      learning_rate: η of the outer step, a non-negative float or a schedule over commits of the central variable, K of
        which make an outer step of a fragment; default 0.7. The local optimizer has its own rate.
      momentum: γ in [0, 1), default 0.9. The velocity does not carry the learning rate.
      num_workers: number of workers N, default 1.
      buffer_size: K, the quorum: commits per step of a fragment, a positive int; ``None`` (default) is N.
      merge: ``"radial"`` (default) or ``"mean"``, as above.
      tokens: tokens (or examples) per local step, one positive number per worker, so c_j is that times τ_j;
        ``None`` (default): the same for all workers, whose weights are then τ_j.
      fragments: the fragments, as in :func:`gemjax.rules.by_fragment`: their number (default 4), prefixes of paths, or a
        function.
      keep: share of its own parameters that a worker keeps at a pull, in [0, 1], default 0.
      delay: commits of the worker from a displacement to its pull, default 0; as in :func:`gemjax.rules.by_fragment`.
      every: commits of the worker from one displacement to the next, default 1; as in :func:`gemjax.rules.by_fragment`.

    Returns:
      A transformation to be committed with ``update(displacement, state, params, worker=w, local_steps=tau)``;
      :func:`gemjax.pull` returns the worker's parameters. It keeps two copies of the parameters per worker and two centrally
      (v, the merge so far), and offers the diagnostic ``exchanged``, as :func:`gemjax.streaming_diloco`.

    Raises:
      ValueError: if ``learning_rate`` is negative, ``momentum`` outside [0, 1), ``keep`` outside [0, 1], ``num_workers``,
        ``buffer_size`` or ``every`` not positive, ``delay`` negative or too long, ``merge`` unknown, ``tokens`` not a positive
        number per worker, or a leaf in no fragment; in an engine, without ``local=``.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.decoupled_diloco(learning_rate=1.0, momentum=0.0, num_workers=2, fragments=1)
    >>> params = jnp.zeros(2)
    >>> state = tx.init(params)
    >>> for worker, displacement in enumerate(([1.0, 0.0], [0.0, 1.0])):  # The mean has a norm of only 0.7.
    ...     updates, state = tx.update(jnp.array(displacement), state, params, worker=worker, local_steps=5)
    >>> print(updates.round(3), jnp.linalg.norm(updates).round(3))
    [-0.707 -0.707] 1.0

    References:
      `Decoupled DiLoCo <https://arxiv.org/abs/2604.21428>`_, 2026; Douillard et al., `DiLoCo: Distributed Low-Communication
      Training of Language Models <https://arxiv.org/abs/2311.08105>`_, 2023 (the outer step)

    Readings: the text of the paper was not available in full. Weights and merge are those of `an implementation that names it
    as its source <https://github.com/aaasif-isu/panofabric-engine>`_. The rates are DiLoCo's.

    Deviations from the paper:
      1. A quorum has exactly K displacements, several of which may come from one worker. Those that arrive in a grace window
         belong to the next quorum; ``gemjax.Policy(quorum=K, grace=…)`` waits for them before it commits any.
      2. A worker pulls a fragment after its own displacement of it, not whenever the fragment has moved.
      3. All tensors are merged alike. The implementation takes plain means of embeddings.
      4. Sums are kept in float32 where the parameters are narrower.
    """
    check_learning_rate(learning_rate)
    check_momentum("momentum", momentum)
    check_positive_int("num_workers", num_workers)
    count = num_workers if buffer_size is None else buffer_size
    check_positive_int("buffer_size", count)
    outer = merge_quorum(optax.trace(momentum, nesterov=True), count, merge=merge, tokens=tokens)
    atom = by_fragment(outer, fragments, keep=keep, delay=delay, every=every)
    return asynchronous(optax.chain(displacements(), atom, scale_by_learning_rate(learning_rate)), num_workers)
