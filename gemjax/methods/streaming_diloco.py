"""Streaming DiLoCo: fragments are exchanged in turn while workers train on (Douillard et al., 2025)."""

import optax

from gemjax.methods.diloco import in_rounds
from gemjax.methods.fragments import by_fragment
from gemjax.methods.leaf_groups import Groups
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method
from gemjax.protocol.checks import check_bool, check_learning_rate, check_momentum, check_positive_int
from gemjax.protocol.local_steps import displacements
from gemjax.protocol.staleness import asynchronous


def streaming_diloco(
    learning_rate: "optax.ScalarOrSchedule" = 0.7,
    momentum: float = 0.9,
    num_workers: int = 1,
    *,
    fragments: "Groups" = 4,
    keep: float = 0.0,
    delay: int = 0,
    every: int = 1,
    nesterov: bool = True,
) -> "Method":
    """Streaming DiLoCo: the outer step of DiLoCo for one fragment of the parameters at a time.

    DiLoCo exchanges all parameters after each period of local steps, so links are idle and then full. Here a worker commits one
    of F fragments after each 1/F of the period. The largest exchange is F times smaller, and the total is the same. With a
    delay the worker trains on while its fragment travels, and at the pull it may keep a share of what it has learned in the
    meantime.

        Δ̄^f = (1/N) Σ_j Δ_j^f   over the N displacements
        v^f ← γ v^f + Δ̄^f
        θ^f ← θ^f - η_t (Δ̄^f + γ v^f)
        x_w^f ← (1 - α) θ^f + α x_w^f

    at every N-th commit of fragment f, with v = 0 at the start, Δ_j^f the displacement of the fragment since its worker's last
    pull of it, and the last line at a worker's pull, D of its commits after that of its displacement.
    :func:`gemjax.rules.by_fragment` has the exact order. All workers wait for each other, by default as with
    :func:`gemjax.diloco`; if they do not, any N displacements of a fragment make a step.

    Reductions: with one fragment, ``keep=0`` and ``delay=0`` it is :func:`gemjax.diloco`; with a barrier and ``keep=1`` workers
    train alone.

    Args:
      learning_rate: η of the outer step, a non-negative float or a schedule over commits of the central variable (N
        per fragment and outer step); default 0.7. The local optimizer has its own rate.
      momentum: γ in [0, 1), default 0.9. The velocity does not carry the learning rate.
      num_workers: number of workers N, default 1.
      fragments: the F fragments, as in :func:`gemjax.rules.by_fragment`: their number (default 4), prefixes of paths, or a
        function.
      keep: α in [0, 1], default 0.
      delay: D ≥ 0, commits of the worker from a displacement to its pull, default 0. Each commit is followed by
        ``period`` local steps.
      every: commits of the worker from one displacement to the next, default 1; see :func:`gemjax.rules.by_fragment` for delays
        that are shorter than a period.
      nesterov: ``True`` (default), or ``False`` for heavy-ball momentum, θ^f ← θ^f - η_t v^f.

    Returns:
      A transformation to be committed with ``update(displacement, state, params, worker=w)``; :func:`gemjax.pull` returns the
      worker's parameters x_w. It keeps two copies of the parameters per worker and two centrally (v,
      Δ̄), and offers the diagnostic ``exchanged``, the bytes of the fragments that a commit and its pull carry.

    Raises:
      ValueError: if ``learning_rate`` is negative, ``momentum`` outside [0, 1), ``keep`` outside [0, 1], ``num_workers`` or
        ``every`` not positive, ``delay`` negative or too long, ``nesterov`` no bool, or a leaf in no fragment; in an engine,
        without ``local=``.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.streaming_diloco(learning_rate=1.0, momentum=0.5, fragments=["a", "b"])
    >>> params = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
    >>> updates, state = tx.update({"a": jnp.ones(1), "b": jnp.ones(1)}, tx.init(params), params, worker=0)
    >>> print(updates["a"], updates["b"] + 0.0)
    [-1.5] [0.]
    >>> view, _ = gemjax.pull(state, {"a": updates["a"], "b": params["b"]}, worker=0)
    >>> print(view["a"], view["b"])  # It keeps its own b.
    [-1.5] [-1.]

    References:
      Douillard et al., `Streaming DiLoCo with overlapping communication: Towards a Distributed Free Lunch
      <https://arxiv.org/abs/2501.18512>`_, 2025

    Readings: the text of the paper was not available in full. Displacement, delay and α are those of `torchft
    <https://github.com/meta-pytorch/torchft>`_, whose recorded numbers are in the tests.

    Deviations from the paper:
      1. Equal fragments are consecutive leaves. The paper also takes every F-th layer; a function does that.
      2. Displacements are not rounded to four bits (the cluster can compress what it sends).
      3. The engines keep a worker's parameters at the central variable, as for :func:`gemjax.easgd`, and send all of them:
         ``exchanged`` counts what a program with parameters at the worker would send.
    """
    check_learning_rate(learning_rate)
    check_momentum("momentum", momentum)
    check_bool("nesterov", nesterov)
    check_positive_int("num_workers", num_workers)
    outer = in_rounds(optax.trace(momentum, nesterov=nesterov), num_workers)
    atom = by_fragment(outer, fragments, keep=keep, delay=delay, every=every)
    return asynchronous(
        optax.chain(displacements(in_rounds=True), atom, scale_by_learning_rate(learning_rate)), num_workers
    )
