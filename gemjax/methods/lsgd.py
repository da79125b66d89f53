"""Leader SGD: workers drawn towards the one that does best (Teng et al., 2019)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol.board import Board
from gemjax.protocol.checks import check_between, check_learning_rate, check_positive_int
from gemjax.protocol.hooks import NeedsLocalSteps, ReadsStaleParams
from gemjax.protocol.slots import Slots, like
from gemjax.protocol.staleness import asynchronous, check_num_workers, require_protocol
from gemjax.protocol.views import where_present

PyTree = Any


class Following(NamedTuple):
    """What a worker's pull needs: everybody's position and loss, and who is asking."""

    positions: Board  # x_j; where each worker was when it last arrived.
    losses: jax.Array  # float [N]; mean of each worker's last losses, infinite before it has arrived.
    worker: Slots  # int32 []; itself.
    exchanges: Slots  # int32 []; how often it has arrived.
    group_size: jax.Array  # int32 []
    strength: jax.Array  # float []; lambda.
    global_strength: jax.Array  # float []; lambda_G.
    global_period: jax.Array  # int32 []; exchanges from one global pull to the next.

    def leaders(self) -> tuple[jax.Array, jax.Array]:
        """The worker that leads this one's group, and the one that leads all."""
        group = jnp.arange(self.losses.size) // self.group_size
        mine = group == group[self.worker.value]
        losses = jnp.minimum(
            self.losses, jnp.finfo(self.losses.dtype).max
        )  # The first of a group nobody has come from.
        return jnp.argmin(jnp.where(mine, losses, jnp.inf)), jnp.argmin(losses)

    def shift_view(self, view: PyTree) -> PyTree:
        """Its own position, drawn to its group's leader and, when it is time, to the leader of all."""
        is_time = self.exchanges.value % self.global_period == 0
        position = self.positions.read(self.worker.value)
        for leader, strength in zip(self.leaders(), (self.strength, self.global_strength * is_time), strict=True):
            point = self.positions.read(leader)
            position = jax.tree.map(lambda x, z, c=strength: x - jnp.asarray(c, x.dtype) * (x - z), position, point)
        return where_present(lambda own, _: own, position, view)


class FollowingLeader(Following):
    """With one group: the leader's position is sent along."""

    def anchors(self) -> tuple[PyTree, ...]:
        return (self.positions.read(self.leaders()[1]),)


class FollowingLeaders(Following):
    """With several groups: the leaders' positions are sent along, that of all first."""

    def anchors(self) -> tuple[PyTree, ...]:
        of_group, of_all = self.leaders()
        return self.positions.read(of_all), self.positions.read(of_group)


class FollowLeaderState(NamedTuple):
    """State of :func:`follow_leader`."""

    following: Following
    recent: Slots  # float [window]; the worker's last mini-batch losses, the newest last.
    seen: Slots  # int32 []; how many of them are real.
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
) -> optax.GradientTransformationExtraArgs:
    r"""Keeps every worker's position, draws workers to the leader, and has the central variable be the leader.

    The atom of :func:`gemjax.lsgd`, where mathematics and arguments are explained. It takes what comes in for the displacement
    of the worker, and stands last in a chain, without a learning rate behind it.

    Args:
      num_workers: number of workers N, as :func:`gemjax.asynchronous` has it.
      strength: as in :func:`gemjax.lsgd`, like the rest.
      groups: likewise.
      global_strength: likewise.
      global_period: likewise.
      window: likewise.
      anchors: likewise.

    Returns:
      A transformation that keeps two copies of the parameters a worker. It needs ``params`` and the extra arguments that
      :func:`gemjax.asynchronous` supplies, and ``value`` or ``local_losses``.

    Raises:
      ValueError: as :func:`gemjax.lsgd`.
    """
    strength, global_strength = _checked(num_workers, strength, groups, global_strength, global_period, window)
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
        board = Board.of(params, num_workers)
        # Known from the start, because a worker may pull again before its first commit.
        workers = Slots(jnp.arange(num_workers, dtype=jnp.int32), num_workers)
        following = kind(board, losses, workers, Slots(nothing), nothing, losses[0], losses[0], nothing)
        recent = Slots(jnp.zeros(window))
        return FollowLeaderState(settings(following), recent, Slots(nothing), ReadsStaleParams(), NeedsLocalSteps())

    def update_fn(
        updates, state, params=None, *, worker=None, stale_params=None, value=None, local_losses=None, local_steps=1,
        applied=True, observe=None, **extra_args,
    ) -> Any:  # fmt: skip
        del extra_args
        require_protocol("follow_leader", worker=worker, params=params)
        if value is None and local_losses is None:
            raise TypeError("follow_leader ranks workers by their losses: call update(…, value=loss), as engines do")
        losses = jnp.asarray(value)[None] if local_losses is None else local_losses
        # The newest losses end where the real ones of the commit end.
        recent = jnp.concatenate([state.recent.value, losses.astype(state.recent.value.dtype)])
        recent = lax.dynamic_slice_in_dim(recent, jnp.asarray(local_steps, jnp.int32), window)
        seen = jnp.minimum(state.seen.value + jnp.asarray(local_steps, jnp.int32), window)
        mean = jnp.sum(jnp.where(jnp.arange(window) >= window - seen, recent, 0.0)) / seen
        position = jax.tree.map(jnp.subtract, like(stale_params, updates), updates)
        following = settings(state.following)._replace(
            positions=state.following.positions.write(worker, position, applied),
            losses=state.following.losses.at[worker].set(mean),
            exchanges=Slots(state.following.exchanges.value + 1),
        )
        of_group, of_all = following.leaders()
        if observe is not None:
            before = state.following.leaders()
            observe("group_leader", lambda: jnp.where(applied, of_group, before[0]))
            observe("leader", lambda: jnp.where(applied, of_all, before[1]))
        updates = jax.tree.map(jnp.subtract, following.positions.read(of_all), params)
        return updates, state._replace(following=following, recent=Slots(recent), seen=Slots(seen))

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def lsgd(
    learning_rate: optax.ScalarOrSchedule = 1.0,
    num_workers: int = 1,
    *,
    strength: float = 0.1,
    groups: int = 1,
    global_strength: float | None = None,
    global_period: int = 1,
    window: int = 10,
    anchors: bool = False,
) -> optax.GradientTransformationExtraArgs:
    r"""Leader SGD: every worker trains from a position of its own and is drawn to whoever has the lowest loss.

    Averages of workers need not be good where the loss is not convex; the best of them is good by definition. A worker
    that arrives after :math:`\tau` local steps says how its last :math:`K` mini-batches went, and goes on a little nearer
    to the leader of its group and, less often, to the leader of all. Leaders feel no pull. The central variable is the
    leader of all.

    .. math::

      x_w &\leftarrow s_w - \eta_t \Delta_w, \quad \ell_w \leftarrow \text{mean of the last } K \text{ losses of } w \\
      \theta &\leftarrow x_z, \quad z = \arg\min_j \ell_j, \quad z_G = \arg\min_{j \in G(w)} \ell_j \\
      s_w &\leftarrow x_w - \lambda (x_w - x_{z_G}) \\
      s_w &\leftarrow s_w - \lambda_G (s_w - x_z) \quad \text{at every } n\text{-th exchange of } w

    with :math:`w` the worker that commits, :math:`G(w)` its group, :math:`s_w` what it pulls (the last two lines happen at
    the pull) and :math:`\Delta_w` what its optimizer moved it by. Run it with
    ``local=gemjax.LocalSteps(optax.sgd(rate), period)``.

    **Asynchronous or in step.** The pull is a matter of when workers pull. If each pulls when it has arrived, as in every
    ordinary trace, it is drawn to the leaders of that moment: fully asynchronous. If all of them arrive before the first one
    pulls, the exchange is the collective one of the authors' code; :class:`gemjax.arrivals.SemiSynchronous` makes
    such traces for the simulator (on devices nobody waits).

    **Evaluation.** ``result.params`` is the leader; the paper evaluates the average of the workers,
    ``gemjax.average_position(result.opt_state)``. Ask an engine for the diagnostics ``leader`` and ``group_leader`` to know who
    led when.

    Reductions: at ``strength=0`` (and ``global_strength=0``) each worker is its own local optimizer alone; with one worker,
    too. At ``strength=1`` workers go on from the leader.

    Args:
      learning_rate: :math:`\eta`, scales displacements, a non-negative float or a schedule over commits of the central
        variable; default 1. The rate of the steps belongs to the local optimizer.
      num_workers: number of workers N, default 1.
      strength: :math:`\lambda` in [0, 1], default 0.1; not multiplied by a rate.
      groups: number of groups, a divisor of N, default 1; worker w belongs to group ``w // (N / groups)``. Put the workers of
        one host, or mesh slice, in one group.
      global_strength: :math:`\lambda_G` in [0, 1], with several groups only; ``None`` (default) is ``strength``.
      global_period: :math:`n \ge 1`, exchanges of a worker from one global pull to the next, default 1; the paper's
        :math:`\tau_G / \tau`.
      window: :math:`K \ge 1`, mini-batch losses that a worker is judged by, default 10.
      anchors: whether workers are sent the leaders' positions, for :func:`gemjax.pull_to_anchors` in the local optimizer (the
        proximal extension; there with strength :math:`p_G / \tau_G`, and for several groups :math:`p / \tau` second). Costs a
        copy a worker for each, default False.

    Returns:
      A transformation to be committed with ``update(displacement, state, params, worker=w, value=loss)``; :func:`gemjax.pull`
      returns the worker's own position. Keeps two copies of the parameters a worker (:math:`x_w`, :math:`s_w`).

    Raises:
      ValueError: if ``learning_rate`` is negative, a strength outside [0, 1], a count below 1, ``groups`` no divisor of
        ``num_workers``, or ``global_strength`` given for one group; in an engine, without ``local=``.

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

    Readings: the text's supplement could not be consulted; the exchange is that of the released code, where :math:`\lambda` is
    not multiplied by the rate, the pull to the group's leader comes first, and one group is only pulled once.

    Deviations from the paper and its code:
      1. In the asynchronous form leaders are those of a worker's arrival, at the positions in which they last arrived.
      2. Losses that have not been seen yet do not count as zero.
      3. The leader of a group that nobody has arrived from yet is where it began.
      4. Model state (BatchNorm statistics) is the engine's, one for all, and follows its policy; in the code it is each
         worker's own. Recompute statistics for what you evaluate.
    """
    check_learning_rate(learning_rate)
    scale = scale_by_learning_rate(learning_rate, flip_sign=False)
    follow = follow_leader(num_workers, strength, groups, global_strength, global_period, window, anchors)
    return asynchronous(optax.chain(scale, follow), num_workers)


def average_position(opt_state: PyTree) -> PyTree:
    """The mean of the positions in which the workers of :func:`gemjax.lsgd` last arrived, a tree like the parameters.

    Raises:
      ValueError: if the state is not one of LSGD.

    >>> import gemjax, jax.numpy as jnp
    >>> gemjax.average_position(gemjax.lsgd(num_workers=4).init(jnp.ones(2)))
    Array([1., 1.], dtype=float32)
    """
    boards = [node for node in jax.tree.leaves(opt_state, is_leaf=_is_board) if _is_board(node)]
    if len(boards) != 1:
        raise ValueError("average_position needs the optimizer state of gemjax.lsgd, and this is of another method")
    return jax.tree.map(lambda rows: rows.mean(0), boards[0].rows)


def _is_board(node: Any) -> bool:
    return isinstance(node, Board)


def _checked(num_workers, strength, groups, global_strength, global_period, window) -> tuple[float, float]:
    """The two pulls as they are applied, after all arguments were found to be possible."""
    check_num_workers(num_workers)
    for name, value in (("groups", groups), ("window", window), ("global_period", global_period)):
        check_positive_int(name, value)
        if isinstance(value, jax.core.Tracer):
            raise TypeError(f"{name} cannot be traced; under optax.inject_hyperparams name it in static_args")
    if num_workers % groups:
        raise ValueError(f"groups must divide the workers: got {groups} groups for {num_workers} workers")
    if groups == 1 and global_strength is not None:
        raise ValueError(
            f"global_strength={global_strength} needs several groups: with one its leader is the leader of all, see strength"
        )
    global_strength = (0.0 if groups == 1 else strength) if global_strength is None else global_strength
    for name, value in (("strength", strength), ("global_strength", global_strength)):
        check_between(name, value, 0.0, 1.0)
    return strength, global_strength
