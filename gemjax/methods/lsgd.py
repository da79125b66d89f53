"""Leader SGD: workers are pulled towards the worker with the lowest loss (Teng et al., 2019)."""

import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from gemjax.methods.papers import Paper
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method, PyTree
from gemjax.protocol.checks import check_between, check_bool, check_choice, check_learning_rate, check_positive_int
from gemjax.protocol.hooks import NeedsLocalSteps, ReadsStaleParams, where_present
from gemjax.protocol.nodes import StalenessState, check_of_one_run, nodes
from gemjax.protocol.slots import SharedRows, Slots, match_mask
from gemjax.protocol.staleness import asynchronous, require_protocol

TENG2019LEADER = Paper("inproceedings", "teng2019leader", {
    "author": "Teng, Yunfei and Gao, Wenbo and Chalus, Francois and Choromanska, Anna and Goldfarb, Donald and "
    "Weller, Adrian",
    "title": "Leader Stochastic Gradient Descent for Distributed Training of Deep Learning Models",
    "booktitle": "Advances in Neural Information Processing Systems", "year": "2019", "eprint": "1905.10395"})  # fmt: skip
PAPERS = {"follow_leader": (TENG2019LEADER,)}


class Following(NamedTuple):
    """Positions and losses of all workers, and the settings of the exchange."""

    positions: SharedRows  # x_j; each worker's position at its last commit.
    losses: jax.Array  # float [N]; mean of each worker's last losses, infinite before its first commit.
    worker: Slots  # int32 []; the worker's own index.
    exchanges: Slots  # int32 []; the worker's commits so far.
    group_size: jax.Array  # int32 []
    strength: jax.Array  # float []; lambda.
    global_strength: jax.Array  # float []; lambda_G.
    global_period: jax.Array  # int32 []; exchanges from one global pull to the next.

    def is_global(self) -> jax.Array:
        """Return True if the worker's exchange is a global one."""
        return self.exchanges.value % self.global_period == 0

    def leaders(self) -> tuple[jax.Array, jax.Array]:
        """Return the leader of this worker's group and the leader of all workers."""
        group = jnp.arange(self.losses.size) // self.group_size
        mine = group == group[self.worker.value]
        # Finite, so that a group without a commit is led by its first worker.
        losses = jnp.minimum(self.losses, jnp.finfo(self.losses.dtype).max)
        return jnp.argmin(jnp.where(mine, losses, jnp.inf)), jnp.argmin(losses)

    def on_pull(self, params: PyTree, view: PyTree, moved: jax.Array) -> tuple:
        """Return the worker's position after the pull to its group's leader and, if it is time, to the global leader."""
        position = self.position_of(self.worker.value, params)
        for leader, strength in zip(
            self.leaders(), (self.strength, self.global_strength * self.is_global()), strict=True
        ):
            point = self.position_of(leader, params)
            position = jax.tree.map(lambda x, z, c=strength: x - jnp.asarray(c, x.dtype) * (x - z), position, point)
        return self, where_present(lambda own, _: own, position, view), self.anchors(params)

    def position_of(self, worker: jax.typing.ArrayLike, params: PyTree) -> PyTree:
        """Return a worker's position; before its first commit that is the central variable."""
        has_committed, row = self.losses[worker] < jnp.inf, self.positions.read(worker)
        return jax.tree.map(lambda own, now: jnp.where(has_committed, own, now), row, match_mask(params, row))

    def anchors(self, params: PyTree) -> tuple[PyTree, ...]:
        """Return the points that are sent with the view."""
        return ()


class FollowingLeader(Following):
    """One group: the leader's position is sent with the view."""

    def anchors(self, params: PyTree) -> tuple[PyTree, ...]:
        """Return the position of the leader."""
        return (self.position_of(self.leaders()[1], params),)


class FollowingLeaders(Following):
    """Several groups: the positions of the global leader and of the group's leader are sent with the view."""

    def anchors(self, params: PyTree) -> tuple[PyTree, ...]:
        """Return the positions of the global leader and of the group's leader."""
        of_group, of_all = self.leaders()
        return self.position_of(of_all, params), self.position_of(of_group, params)


class FollowingKeptLeader(NamedTuple):
    """Several groups, global pulls at some exchanges only: the position of the global leader is kept until the next one."""

    following: Following
    target: Slots  # a_w, like params; the position of the global leader at the worker's last global pull.

    def on_pull(self, params: PyTree, view: PyTree, moved: jax.Array) -> tuple:
        """Return the view of ``following``, and renew the target at a global exchange."""
        _, view, (leader, of_group) = self.following.on_pull(params, view, moved)
        is_global = self.following.is_global()
        target = jax.tree.map(lambda z, a: jnp.where(is_global, z, a), leader, self.target.value)
        return self._replace(target=Slots(target)), view, (target, of_group)


class FollowLeaderState(NamedTuple):
    """State of :func:`follow_leader`."""

    following: Following | FollowingKeptLeader
    recent: Slots  # float [window]; the worker's last mini-batch losses, the newest last.
    seen: Slots  # int32 []; the number of entries of `recent` that hold a loss.
    stale_params: ReadsStaleParams
    local_steps: NeedsLocalSteps


def follow_leader(
    num_workers: int,
    strength: float = 0.1,
    groups: int = 1,
    global_strength: float | None = None,
    global_period: int = 1,
    window: int = 10,
    anchors: bool = False,
) -> "Method":
    """Keep the position of each worker, pull workers to the leader, and set the central variable to the leader.

    The atom of :func:`gemjax.lsgd`, whose docstring explains the mathematics and the arguments. It takes its input for the
    worker's displacement and goes last in a chain, without a learning rate behind it.

    Args:
      num_workers: number of workers N, the same as that of :func:`gemjax.asynchronous`.
      strength: as in :func:`gemjax.lsgd`.
      groups: as in :func:`gemjax.lsgd`.
      global_strength: as in :func:`gemjax.lsgd`.
      global_period: as in :func:`gemjax.lsgd`.
      window: as in :func:`gemjax.lsgd`.
      anchors: as in :func:`gemjax.lsgd`.

    Returns:
      A transformation that needs ``params``, the extra arguments that :func:`gemjax.asynchronous` supplies, and ``value`` or
      ``local_losses`` with ``local_steps``. It keeps two copies of the parameters per worker, three with anchors of several
      groups and ``global_period > 1``. It offers the diagnostics ``leader`` and ``group_leader``.

    Raises:
      ValueError: as :func:`gemjax.lsgd`.
      TypeError: at a commit, without a loss or outside :func:`gemjax.asynchronous`.
    """
    strength, global_strength = _checked(num_workers, strength, groups, global_strength, global_period, window)
    num_workers = operator.index(num_workers)
    check_bool("anchors", anchors)
    keeps = anchors and groups > 1 and global_period > 1
    kind = Following if not anchors else FollowingLeader if groups == 1 else FollowingLeaders

    def settings(following: Following) -> Following:
        return following._replace(
            group_size=jnp.int32(num_workers // groups),
            strength=jnp.asarray(strength, jnp.result_type(float)),
            global_strength=jnp.asarray(global_strength, jnp.result_type(float)),
            global_period=jnp.asarray(global_period, jnp.int32),
        )

    def init_fn(params) -> Any:
        nothing, losses = jnp.zeros([], jnp.int32), jnp.full(num_workers, jnp.inf)
        positions = SharedRows.of(params, num_workers)
        # Set at the start, because a worker may pull again before its first commit.
        workers = Slots(jnp.arange(num_workers, dtype=jnp.int32), num_workers)
        following = settings(kind(positions, losses, workers, Slots(nothing), nothing, losses[0], losses[0], nothing))
        node = FollowingKeptLeader(following, Slots(params)) if keeps else following
        recent = Slots(jnp.zeros(window))
        return FollowLeaderState(node, recent, Slots(nothing), ReadsStaleParams(), NeedsLocalSteps())

    def update_fn(
        updates, state, params=None, *, worker=None, stale_params=None, value=None, local_losses=None, local_steps=None,
        observe=None, **extra_args,
    ) -> Any:  # fmt: skip
        del extra_args
        require_protocol("follow_leader", worker=worker, params=params, value=local_losses if value is None else value)
        # The losses of an engine are padded behind their first `local_steps` entries.
        losses, count = (jnp.asarray(value)[None], 1) if local_losses is None else (local_losses, local_steps)
        recent = jnp.concatenate([state.recent.value, losses.astype(state.recent.value.dtype)])
        recent = lax.dynamic_slice_in_dim(recent, jnp.asarray(count, jnp.int32), window)
        seen = jnp.minimum(state.seen.value + jnp.asarray(count, jnp.int32), window)
        mean = jnp.sum(jnp.where(jnp.arange(window) >= window - seen, recent, 0.0)) / seen
        position = jax.tree.map(jnp.subtract, match_mask(stale_params, updates), updates)
        before = state.following.following if keeps else state.following
        following = settings(before)._replace(
            positions=before.positions.write(worker, position),
            losses=before.losses.at[worker].set(mean),
            exchanges=Slots(before.exchanges.value + 1),
        )
        of_group, of_all = following.leaders()
        if observe is not None:
            observe("group_leader", lambda: of_group)
            observe("leader", lambda: of_all)
        updates = jax.tree.map(jnp.subtract, following.positions.read(of_all), params)
        following = state.following._replace(following=following) if keeps else following
        return updates, state._replace(following=following, recent=Slots(recent), seen=Slots(seen))

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def lsgd(
    learning_rate: "optax.ScalarOrSchedule" = 1.0,
    num_workers: int = 1,
    *,
    strength: float = 0.1,
    groups: int = 1,
    global_strength: float | None = None,
    global_period: int = 1,
    window: int = 10,
    anchors: bool = False,
) -> "Method":
    """Leader SGD: each worker trains from its own position and is pulled towards the worker with the lowest loss.

    If the loss is not convex, the average of several workers need not be good, but the best of them is. At each commit, after τ
    local steps, a worker reports the losses of its mini-batches. Its position is then pulled towards the leader of its group
    and, at a global exchange, towards the global leader, which has the lowest loss of all workers. A leader feels no pull. The
    central variable is the position of the global leader.

        x_w ← s_w - η_t Δ_w,   ℓ_w ← mean of the last K losses of w
        θ ← x_z,   z = argmin_j ℓ_j   over all workers,   z_G = argmin_j ℓ_j   over those of G(w)
        s_w ← x_w - λ (x_w - x_(z_G))
        s_w ← s_w - λ_G (s_w - x_z),   a_w ← x_z   at every n-th exchange of w

    with w the worker that commits, G(w) its group, s_w its view, a_w its anchor and Δ_w the displacement by its local
    optimizer. The last two lines are computed at the pull. At the start all positions, views and anchors are the initial
    parameters. Run it with ``local=gemjax.LocalSteps(optax.sgd(rate), period)``.

    **Asynchronous or in step.** If each worker pulls right after its commit, as in most traces, it is pulled towards the
    leaders of that moment: the method is fully asynchronous. If all workers commit before the first one pulls, the exchange is
    the collective one of the authors' program. :class:`gemjax.arrivals.SemiSynchronous` makes such traces for the simulator;
    on devices workers do not wait for each other.

    **Proximal extension.** With ``anchors=True`` each view comes with the points towards which
    :func:`gemjax.rules.pull_to_anchors` pulls the worker at each local step: a_w, the global leader's position at the last
    global exchange, and then, with several groups, the position of the group's leader at the last exchange. The published
    strengths are p_G / τ_G and p / τ. A new a_w exists only at a global exchange, so a larger ``global_period`` saves traffic;
    the engines of this library send both points with each view nevertheless.

    **Evaluation.** ``result.params`` is the leader. The paper evaluates the average of the workers; see
    :func:`gemjax.rules.average_position`. The diagnostics ``leader`` and ``group_leader`` record which worker leads.

    Reductions:
      - at ``strength=0`` and ``global_strength=0``, or with one worker: each worker runs its local optimizer alone;
      - at ``strength=1`` with one group: each worker continues from the leader;
      - several groups at ``strength=0`` and ``global_period=1``: one group with ``strength`` set to the global strength;
      - at ``global_period=1``: both anchors are the leaders at the worker's last pull.

    Args:
      learning_rate: η, scales displacements, a non-negative float or a schedule over commits of the central
        variable; default 1. The local optimizer has the rate of the steps.
      num_workers: number of workers N, default 1.
      strength: λ in [0, 1], the pull towards the group's leader, default 0.1; not multiplied by a rate.
      groups: number of groups, a divisor of N, default 1; worker w belongs to group ``w // (N / groups)``. Put the workers of
        one host, or of one slice of the mesh, in one group.
      global_strength: λ_G in [0, 1], the pull towards the global leader, with several groups only; ``None``
        (default) is ``strength``.
      global_period: n ≥ 1, exchanges of a worker from one global exchange to the next, the paper's
        τ_G / τ; default 1. It has no effect with one group.
      window: K ≥ 1, number of mini-batch losses in the mean that ranks a worker, default 10.
      anchors: True sends the leaders' positions with each view; default False. It costs one copy of the parameters per worker
        with one group, two with several groups, and three if ``global_period > 1`` as well.

    Returns:
      A transformation to be committed with ``update(displacement, state, params, worker=w, value=loss)``; :func:`gemjax.pull`
      returns the worker's own position. It keeps two copies of the parameters per worker (x_w, s_w).

    Raises:
      ValueError: if ``learning_rate`` is negative, a strength is outside [0, 1], a count is below 1, ``groups`` does not
        divide ``num_workers``, or ``anchors`` is no bool; in an engine, without ``local=``.
      TypeError: at a commit, without a loss.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.lsgd(num_workers=2, strength=0.5)
    >>> params = jnp.zeros(1)
    >>> state = tx.init(params)
    >>> for worker, moved, loss in ((0, 1.0, 0.3), (1, 3.0, 0.9)):
    ...     updates, state = tx.update(jnp.array([-moved]), state, params, worker=worker, value=jnp.array(loss))
    ...     params = optax.apply_updates(params, updates)
    ...     view, state = gemjax.pull(state, params, worker)
    ...     print(params, view)
    [1.] [1.]
    [1.] [2.]

    References:
      Teng et al., `Leader Stochastic Gradient Descent for Distributed Training of Deep Learning Models
      <https://arxiv.org/abs/1905.10395>`_, 2019

    Readings: the supplement of the paper was not available. The exchange is that of the released program: λ is not multiplied
    by the rate, the pull towards the group's leader comes first, and with one group there is one pull only. The proximal
    extension is in the program, not in the paper.

    Deviations from the paper and its program:
      1. In the asynchronous form the leaders are those at a worker's pull, and their positions are those of their last
         commits.
      2. A worker's mean has only losses that it has reported. In the program missing losses count as zero.
      3. The leader of a group without any commit is its first worker, at the central variable.
      4. With several groups and ``global_period=1`` both pulls happen. The program switches the group pull and its proximal
         term off if the two periods are equal; ``groups=1`` is that case.
      5. In the program an evaluation overwrites the stored a_w with the average of the workers until the next global
         exchange. Here it does not.
      6. Model state (BatchNorm statistics) is one for all workers and follows the engine's policy. In the program each worker
         has its own. Recompute the statistics for the parameters that you evaluate.
    """
    check_learning_rate(learning_rate)
    scale = scale_by_learning_rate(learning_rate, flip_sign=False)
    follow = follow_leader(num_workers, strength, groups, global_strength, global_period, window, anchors)
    return asynchronous(optax.chain(scale, follow), num_workers)


def average_position(opt_state: PyTree, *, exchange: str = "before") -> PyTree:
    """Return the average of the positions of the workers of :func:`gemjax.lsgd`, the point that the paper evaluates.

        x̄ = (1/N) Σ_j x_j,   s̄ = (1/N) Σ_j s_j

    with x_j the position of worker j at its last commit, before the exchange, and s_j its last view, after it. If all workers
    pull at the same leader x_z with one group, s̄ = (1 - λ) x̄ + λ x_z. The authors' program evaluates right after an exchange;
    with several groups it averages each group by itself.

    Args:
      opt_state: an optimizer state of :func:`gemjax.lsgd`, or of a chain with it, such as ``result.opt_state``.
      exchange: ``"before"`` (default) for x̄, ``"after"`` for s̄. A trace in step ends before the
        workers pull at their last meeting; call :func:`gemjax.pull` for each worker first.

    Returns:
      A tree like the parameters.

    Raises:
      ValueError: if the state is not one of LSGD, or that of all runs of a sweep, or ``exchange`` is unknown.

    >>> import gemjax, jax.numpy as jnp
    >>> tx, params = gemjax.lsgd(num_workers=2, strength=0.5), jnp.zeros(1)
    >>> state = tx.init(params)
    >>> for worker, moved, loss in ((0, 1.0, 0.3), (1, 3.0, 0.9)):
    ...     _, state = tx.update(jnp.array([-moved]), state, params, worker=worker, value=jnp.array(loss))
    ...     _, state = gemjax.pull(state, params, worker)
    >>> average = gemjax.rules.average_position
    >>> print(average(state), average(state, exchange="after"))  # Worker 1 went to 2.
    [2.] [1.5]
    """
    check_choice("exchange", exchange, ("before", "after"))
    check_of_one_run(opt_state, "average_position")
    (rows,) = (node.rows for node in nodes(nodes(opt_state, FollowLeaderState), SharedRows))
    if exchange == "after":
        (state,) = (state for state in nodes(opt_state, StalenessState) if nodes(state, FollowLeaderState))
        rows = match_mask(state.stale_params.value, rows)
    return jax.tree.map(lambda rows: rows.mean(0), rows)


def _checked(num_workers, strength, groups, global_strength, global_period, window) -> tuple[float, float]:
    """Check all arguments and return the strengths of the two pulls."""
    check_positive_int("num_workers", num_workers)
    for name, value in (("groups", groups), ("window", window), ("global_period", global_period)):
        check_positive_int(name, value)
    if num_workers % groups:
        raise ValueError(f"groups must divide the workers: got {groups} groups for {num_workers} workers")
    global_strength = (0.0 if groups == 1 else strength) if global_strength is None else global_strength
    for name, value in (("strength", strength), ("global_strength", global_strength)):
        check_between(name, value, 0.0, 1.0)
    return strength, global_strength
