"""NoLoCo: a worker averages with one other worker at a time instead of all of them (Kolehmainen et al., 2025)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.papers import Paper
from gemjax.methods.rates import rate_at
from gemjax.protocol import Method, PyTree
from gemjax.protocol.checks import check_learning_rate, check_momentum, check_positive_int
from gemjax.protocol.hooks import MadeFor, ReadsStaleParams, where_present
from gemjax.protocol.local_steps import displacements
from gemjax.protocol.slots import SharedRows, Slots, match_mask
from gemjax.protocol.staleness import asynchronous, require_protocol

KOLEHMAINEN2025NOLOCO = Paper("article", "kolehmainen2025noloco", {
    "author": "Kolehmainen, Jari and Blagoev, Nikolay and Donaghy, John and Ersoy, O{\\u{g}}uzhan and Nies, Christopher",
    "title": "{NoLoCo}: No-all-reduce Low Communication Training Method for Large Models", "year": "2025",
    "eprint": "2506.10911"})  # fmt: skip
PAPERS = {"average_in_pairs": (KOLEHMAINEN2025NOLOCO,)}


class Pairs(NamedTuple):
    """Positions of all workers, and from where each goes on."""

    positions: SharedRows  # x_j, like params; each worker's position at its last commit.
    began: jax.Array  # bool [N]; True for a worker that has committed.
    alone: Slots  # a_w, like params; from where the worker goes on without a partner.
    rate: Slots  # float []; alpha at the worker's last commit.
    exchanges: Slots  # int32 []; the worker's commits so far.
    worker: Slots  # int32 []; the worker's own index.

    def on_pull(self, params: PyTree, view: PyTree, moved: jax.Array) -> tuple:
        """Return the slow weights after the worker has met its partner."""
        worker = self.worker.value
        other = partner(worker, self.exchanges.value, self.began.size)
        half = jnp.where(self.began[worker] & self.began[other], self.rate.value / 2, 0.0)
        slow = jax.tree.map(
            lambda a, x, y: a + jnp.asarray(half, a.dtype) * (y - x),
            self.alone.value, self.positions.read(worker), self.positions.read(other),
        )  # fmt: skip
        return self, where_present(lambda own, _: own, slow, view), ()


class AverageInPairsState(NamedTuple):
    """State of :func:`average_in_pairs`."""

    pairs: Pairs
    slow: Slots  # phi_w, like params; the worker's view at its last commit.
    count: jax.Array  # int32 []; commits so far.
    stale_params: ReadsStaleParams
    made_for: MadeFor


def partner(worker: jax.typing.ArrayLike, exchange: jax.typing.ArrayLike, num_workers: int) -> jax.Array:
    """Return the worker that ``worker`` meets at an exchange; of an odd number of workers one meets itself.

    >>> [[int(partner(w, exchange, 4)) for w in range(4)] for exchange in (1, 2, 3)]
    [[1, 0, 3, 2], [3, 2, 1, 0], [1, 0, 3, 2]]
    """
    order = jax.random.permutation(jax.random.fold_in(jax.random.key(0), exchange), num_workers)
    place, half = jnp.argmax(order == worker), num_workers // 2
    return jnp.where(place < 2 * half, order[(place + half) % max(1, 2 * half)], jnp.asarray(worker))


def average_in_pairs(num_workers: int, strength: "optax.ScalarOrSchedule" = 0.7, momentum: float = 0.5) -> "Method":
    """Let each worker go on from slow weights of its own, which it averages with those of one other worker.

    The atom of :func:`gemjax.no_loco`, whose docstring explains the mathematics. It takes its input for the worker's
    displacement and goes last in a chain, without a learning rate behind it.

    Args:
      num_workers: number of workers N, the same as that of :func:`gemjax.asynchronous`.
      strength: α, the learning rate of :func:`gemjax.no_loco`.
      momentum: as in :func:`gemjax.no_loco`.

    Returns:
      A transformation that needs ``params`` and the extra arguments that :func:`gemjax.asynchronous` supplies. It keeps four
      copies of the parameters per worker.

    Raises:
      ValueError: as :func:`gemjax.no_loco`.
    """
    check_positive_int("num_workers", num_workers)
    check_learning_rate(strength)
    check_momentum("momentum", momentum)

    def init_fn(params) -> Any:
        nothing = jnp.zeros([], jnp.int32)
        pairs = Pairs(
            SharedRows.of(params, num_workers),
            jnp.zeros(num_workers, bool),
            Slots(params),
            Slots(jnp.zeros([], jnp.result_type(float))),
            Slots(nothing),
            # Set at the start, because a worker may pull again before its first commit.
            Slots(jnp.arange(num_workers, dtype=jnp.int32), num_workers),
        )
        return AverageInPairsState(pairs, Slots(params), nothing, ReadsStaleParams(), MadeFor(num_workers))

    def update_fn(
        updates, state, params=None, *, worker: Any = None, stale_params: Any = None, observe=None, **extra_args
    ) -> Any:
        del extra_args
        require_protocol("average_in_pairs", worker=worker, params=params)
        before, rate = state.pairs, rate_at(strength, state.count)
        if observe is not None:
            observe("learning_rate", lambda: rate)
        slow = match_mask(stale_params, updates)
        began = before.began.at[worker].set(True)
        alone = jax.tree.map(
            lambda s, old, d: s + jnp.asarray(momentum, s.dtype) * (s - old) - jnp.asarray(rate, s.dtype) * d,
            slow, state.slow.value, updates,
        )  # fmt: skip
        # The mean over workers that have committed: the first commit of one counts it in.
        last = jax.tree.map(lambda a, p: jnp.where(before.began[worker], a, p), before.alone.value, params)
        moved = jax.tree.map(lambda new, old: (new - old) / began.sum().astype(new.dtype), alone, last)
        pairs = Pairs(
            before.positions.write(worker, jax.tree.map(jnp.subtract, slow, updates)),
            began,
            Slots(alone),
            Slots(rate),
            Slots(before.exchanges.value + 1),
            before.worker,
        )
        count = jnp.asarray(optax.safe_increment(state.count))
        return moved, state._replace(pairs=pairs, slow=Slots(slow), count=count)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def no_loco(learning_rate: "optax.ScalarOrSchedule" = 0.7, momentum: float = 0.5, num_workers: int = 1) -> "Method":
    """NoLoCo: DiLoCo whose workers meet in pairs, so that no average over all workers is needed.

    Each worker has slow weights and an outer momentum of its own. After its local steps it meets one other worker, drawn at
    random, and both go on from weights that are partly averaged. No commit waits for all workers, and a meeting costs the
    same for any number of them.

        x_w ← φ_w - Δ_w
        m_w ← β m_w + α ((x_w + x_j) / 2 - φ_w)
        φ_w ← φ_w + m_w

    with w the worker that commits, φ_w its view, Δ_w the displacement by its local optimizer, and j its partner, at the
    position x_j of its last commit. All φ_w are the initial parameters and all m_w = 0 at the start. The last two lines are
    computed at the pull. Until its partner has committed once, a worker goes on alone, as with x_j = x_w. Run it with
    ``local=gemjax.LocalSteps(optimizer, period)``.

    **Asynchronous or in rounds.** The partners of the k-th exchange are one random pairing of all workers, the same in each
    run. If all workers commit before the first one pulls, as with :class:`gemjax.arrivals.Barrier`, both workers of a pair
    meet each other, and the method is that of the paper. Otherwise a worker does not wait: it meets its partner at the position
    of that one's last commit. Each worker must take part: the last position of one that has left still attracts others.

    **Evaluation.** ``result.params`` is the mean over the workers that have committed of φ_w + β m_w - α Δ_w, from where
    each would go on alone. In rounds at a constant rate that is the mean of the slow weights.

    Reductions: with one worker, and with two in rounds, it is :func:`gemjax.diloco` with ``nesterov=False`` at a constant
    rate. At ``learning_rate=1`` and ``momentum=0`` a worker goes on from the mean of two positions.

    Args:
      learning_rate: α, a non-negative float or a schedule over commits of the central variable, default 0.7. The local
        optimizer has its own rate.
      momentum: β in [0, 1), default 0.5. The velocity carries the learning rate.
      num_workers: number of workers N, default 1.

    Returns:
      A transformation to be committed with ``update(displacement, state, params, worker=w)``; :func:`gemjax.pull` returns the
      worker's own φ_w. It keeps four copies of the parameters per worker (x_w, the last two φ_w, and from where it goes on
      alone).

    Raises:
      ValueError: if ``learning_rate`` is negative, ``momentum`` outside [0, 1) or ``num_workers`` not positive; in an engine,
        without ``local=``.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx, params = gemjax.no_loco(learning_rate=0.5, momentum=0.0, num_workers=2), jnp.zeros(1)
    >>> state = tx.init(params)
    >>> for worker, moved in ((0, 1.0), (1, 3.0)):
    ...     updates, state = tx.update(jnp.array([-moved]), state, params, worker=worker)
    ...     params = optax.apply_updates(params, updates)
    >>> print(params, *(gemjax.pull(state, params, worker)[0] for worker in (0, 1)))  # They meet at 1 and 3.
    [1.] [1.] [1.]

    References:
      Kolehmainen et al., `NoLoCo: No-all-reduce Low Communication Training Method for Large Models
      <https://arxiv.org/abs/2506.10911>`_, 2025

    Readings: the rule is that of `the authors' code <https://github.com/gensyn-ai/noloco>`_ with groups of two.

    Deviations from that code:
      1. The pairs are other random ones, and of an odd number of workers one goes on alone.
      2. The code routes activations of a pipeline at random, which is no part of the optimizer.
    """
    return asynchronous(
        optax.chain(displacements(), average_in_pairs(num_workers, learning_rate, momentum)), num_workers
    )
