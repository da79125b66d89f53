"""Fragments: parts of the parameters that are committed and pulled at moments of their own."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.leaf_groups import Groups, checked_groups, chosen, number_leaves
from gemjax.methods.papers import Paper
from gemjax.protocol import Method, PyTree
from gemjax.protocol.checks import (
    check_between,
    check_method,
    check_positive_int,
    integer,
    with_extra_args,
)
from gemjax.protocol.hooks import Refusals, answer_pull, has_on_pull, where_present
from gemjax.protocol.nodes import StalenessState, map_nodes, nodes
from gemjax.protocol.slots import SharedRows, Slots, match_mask
from gemjax.protocol.staleness import require_protocol

DOUILLARD2025STREAMING = Paper("article", "douillard2025streaming", {
    "author": "Douillard, Arthur and Donchev, Yanislav and Rush, Keith and Kale, Satyen and Charles, Zachary and "
    "Garrett, Zachary and Teston, Gabriel and Lacey, Dave and McIlroy, Ross and Shen, Jiajun and "
    "Ram{\\'e}, Alexandre and Szlam, Arthur and Ranzato, Marc'Aurelio and Barham, Paul",
    "title": "Streaming {DiLoCo} with overlapping communication: Towards a Distributed Free Lunch", "year": "2025",
    "eprint": "2501.18512"})  # fmt: skip
PAPERS = {"by_fragment": (DOUILLARD2025STREAMING,)}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PerFragment:
    """A count or another leaf that is no copy of the parameters, once per fragment."""

    rows: jax.Array  # [1, F, ...]


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["keep", "clocks", "count", "pulled_at", "steps", "pending", "own", "anchor", "inner"],
    meta_fields=["fragments"],
)
@dataclasses.dataclass(frozen=True)
class FragmentsState:
    """State of :func:`by_fragment`. Fragments are numbered from 0 to F - 1."""

    keep: Slots  # float []; alpha at the worker's last commit, for the pull behind it.
    clocks: jax.Array  # int32 [1, F]; commits of each fragment.
    count: Slots  # int32 []; commits of the worker.
    pulled_at: Slots  # int32 [1, F]; the clock of each fragment at the worker's last pull of it.
    steps: Slots  # int32 [1, F]; local steps since then.
    pending: Slots  # int32 []; the fragment to pull now; F for all, -1 for none.
    own: Slots  # x_w, like params; the worker's parameters after its local steps.
    anchor: Slots  # a_w, like params; each fragment as the worker last pulled it.
    inner: PyTree  # The inner state, with PerFragment in place of leaves that are no copies of the parameters.
    fragments: Any

    def on_pull(self, params: PyTree, view: PyTree, moved: jax.Array) -> tuple:
        """Replace the pending fragment of the worker's parameters; a second pull replaces it again."""
        numbers, num_fragments = number_leaves(self.fragments, self.own.value)
        sent, points = self._sent(numbers, num_fragments, params, view, moved)
        anchor = jax.tree.map(
            lambda number, old, new: jnp.where(self._is_due(number, num_fragments), new, old),
            numbers, self.anchor.value, match_mask(sent, self.own.value),
        )  # fmt: skip
        is_due = self._is_due(jnp.arange(num_fragments)[None], num_fragments)
        node = dataclasses.replace(
            self,
            anchor=Slots(anchor),
            pulled_at=Slots(jnp.where(is_due, self.clocks, self.pulled_at.value)),
            steps=Slots(jnp.where(is_due, 0, self.steps.value)),
        )
        return node, where_present(lambda x, _: x, node.view(), view), points

    def view(self) -> PyTree:
        """Return the worker's parameters, of which the pending fragment is mixed with what the worker pulled."""
        numbers, num_fragments = number_leaves(self.fragments, self.own.value)

        def mix(number, x, a):
            # Before its first commit a worker has all of the central variable.
            keep = jnp.where(self.pending.value == num_fragments, 0, self.keep.value).astype(x.dtype)
            mixed = jnp.where(keep == 0, a, (1 - keep) * a + keep * x)
            return jnp.where(self._is_due(number, num_fragments), mixed, x)

        return jax.tree.map(mix, numbers, self.own.value, self.anchor.value)

    def of_fragment(self, fragment: Any) -> PyTree:
        """Return the inner state as the rule for one fragment sees it."""
        return map_nodes(lambda node: node.rows[0, fragment], _is_per_fragment, self.inner)

    def _is_due(self, fragment: Any, num_fragments: int) -> jax.Array:
        return (self.pending.value == fragment) | (self.pending.value == num_fragments)

    def _sent(self, numbers: PyTree, num_fragments: int, params: PyTree, view: PyTree, moved: jax.Array) -> tuple:
        """Return the central variable as inner members shift it for each fragment, and their points for local steps."""
        sent, points = view, ()
        for fragment in range(num_fragments):
            shifted = view

            def call(node):
                nonlocal shifted, points
                after, shifted, more = answer_pull(node, params, shifted, moved)
                if after is not node or more:
                    raise TypeError(f"by_fragment cannot have {type(node).__name__} inside, which changes at a pull")
                return node

            map_nodes(call, has_on_pull, self.of_fragment(fragment))
            if shifted is not view:
                take = lambda number, new, old, fragment=fragment: new if number == fragment else old
                known = [match_mask(tree, self.own.value) for tree in (shifted, sent)]
                sent = where_present(lambda x, _: x, jax.tree.map(take, numbers, *known), sent)
        return sent, points


def by_fragment(
    inner: optax.GradientTransformation, fragments: Groups = 4, *, keep: float = 0.0, delay: int = 0, every: int = 1
) -> "Method":
    """Let each commit of a worker carry one fragment of its displacement, and each pull one fragment of the parameters.

    The atom of :func:`gemjax.streaming_diloco` and :func:`gemjax.decoupled_diloco`. A worker keeps parameters x_w of its own
    and visits F fragments in turn. At its commit k, counted from 0,

        x_w ← x_w - Δ_w
        if E divides k:
            f = (k / E) mod F
            Δ^f = a_w^f - x_w^f
        if E divides k - D ≥ 0:
            h = ((k - D) / E) mod F
            a_w^h ← θ^h,   x_w^h ← (1 - α) θ^h + α x_w^h

    with Δ_w the displacement by local steps since the last commit, θ^f the leaves of fragment f, and a_w^f what the worker last
    pulled of them. ``inner`` maps Δ^f to an update; the other leaves do not change. A commit with neither condition only
    carries x_w on. The second condition acts at the pull.

    Each fragment has a clock of its own, and counts and scalars of ``inner`` of its own. For a member of ``inner`` a commit is
    one of its fragment: ``staleness`` counts those since the worker's pull of that fragment, ``local_steps`` its local steps
    since then, and ``stale_params`` is a_w. A member that shifts views (HeLoCo's look-ahead) shifts its fragment.

    A *delay* D lets the worker train on while its displacement travels. Commits that are only pulls make it shorter than the
    time between two fragments: with ``every=2, delay=1`` and local periods that alternate between h - d and d, as in
    ``gemjax.LocalSteps(optax.sgd(0.1), [(h - d, d) * 100] * num_workers)``, fragments follow each other after h steps, and each
    is pulled d steps after its displacement was committed.

    Reductions: with one fragment and ``keep=delay=0`` it is ``inner``, except that workers pull only after their commits.

    Args:
      inner: a chain of atoms or any optax transformation, without a learning rate and without refusals; not a whole method.
      fragments: an int F: that many groups of consecutive leaves, of sizes as equal as possible (one per leaf if there
        are fewer leaves); a sequence of prefixes of paths, or of tuples of prefixes, one per fragment, such as ``["embed",
        ("layers/0", "layers/1")]``, of which the first that fits counts; or a function from the path and the leaf to the
        number of the fragment, ``lambda path, leaf: 0 if "norm" in path else 1``.
      keep: α in [0, 1], how much of its own parameters a worker keeps at a pull, default 0. If it changes, a pull
        has the one of the worker's commit before it.
      delay: D ≥ 0, commits of the worker from the displacement of a fragment to its pull, below F E; default
        0.
      every: E ≥ 1, commits of the worker from one displacement to the next, default 1.

    Returns:
      A transformation that keeps two copies of the parameters per worker (x_w, a_w), needs ``params`` and works
      inside :func:`gemjax.asynchronous`. It offers the diagnostic ``exchanged``: bytes of the fragments that a commit and its
      pull carry.

    Raises:
      TypeError: if a member of ``inner`` refuses commits or is a whole method.
      ValueError: if an argument is out of range or a leaf belongs to no fragment.

    >>> import gemjax, jax.numpy as jnp, optax
    >>> tx = gemjax.asynchronous(optax.chain(gemjax.rules.by_fragment(optax.identity(), ["a", "b"]), optax.scale(-1.0)))
    >>> params = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
    >>> state = tx.init(params)
    >>> for _ in range(2):  # Each displacement of b is 1; the second commit carries both.
    ...     updates, state = tx.update({"a": jnp.ones(1), "b": jnp.ones(1)}, state, params, worker=0)
    ...     params = optax.apply_updates(params, updates)
    ...     view, state = gemjax.pull(state, params, worker=0)
    ...     print(params["a"], params["b"])
    [-1.] [0.]
    [-1.] [-2.]
    """
    check_method("inner", inner)
    check_between("keep", keep, 0.0, 1.0)
    check_positive_int("every", every)
    if not isinstance(delay, jax.core.Tracer):
        integer("delay", delay, 0)
    fragments = checked_groups("fragments", fragments)
    inner = with_extra_args(inner)

    def init_fn(params) -> Any:
        _, num_fragments = number_leaves(fragments, params)
        check_between("delay", delay, 0, num_fragments * every - 1)
        state = inner.init(params)
        if any(nodes(state, kind) for kind in (StalenessState, Refusals, SharedRows)):
            raise TypeError(
                "by_fragment takes atoms that refuse nothing and keep no rows, such as optax.trace(0.9), not a whole method; "
                "put drop_stale in front of it"
            )
        rows = lambda leaf: PerFragment(jnp.stack([jnp.asarray(leaf)] * num_fragments)[None])
        zeros, zero = jnp.zeros((1, num_fragments), jnp.int32), jnp.zeros([], jnp.int32)
        return FragmentsState(
            keep=Slots(jnp.array(keep, jnp.result_type(float))), clocks=zeros, count=Slots(zero), pulled_at=Slots(zeros),
            steps=Slots(zeros), pending=Slots(jnp.int32(num_fragments)), own=Slots(params), anchor=Slots(params),
            inner=optax.tree.map_params(inner.init, lambda leaf: leaf, state, transform_non_params=rows),
            fragments=chosen(fragments, params),
        )  # fmt: skip

    def update_fn(
        updates, state, params=None, *, worker: Any = None, local_steps: Any = None, observe=None, **extra_args
    ) -> Any:
        require_protocol("by_fragment", worker=worker, params=params)
        numbers, num_fragments = number_leaves(fragments, updates)
        own, anchor = jax.tree.map(jnp.subtract, state.view(), updates), state.anchor.value
        count, steps = (
            state.count.value,
            state.steps.value + jnp.asarray(0 if local_steps is None else local_steps, jnp.int32),
        )
        committed, pending = (_turn(count - late, every, num_fragments) for late in (0, delay))
        index = jnp.maximum(committed, 0)
        extra_args |= {
            "worker": worker,
            "staleness": (state.clocks - state.pulled_at.value)[0, index],
            "stale_params": anchor,
            "local_steps": None if local_steps is None else steps[0, index],
        }
        in_fragment = lambda number, x: jnp.where(committed == number, x, jnp.zeros_like(x))
        displacement = jax.tree.map(lambda number, a, x: in_fragment(number, a - x), numbers, anchor, own)
        before = state.of_fragment(index)
        found, after = inner.update(displacement, before, params, **extra_args)
        if observe is not None:
            observe("exchanged", lambda: _bytes(numbers, params, committed) + _bytes(numbers, params, pending))
        return jax.tree.map(in_fragment, numbers, found), FragmentsState(
            keep=Slots(jnp.array(keep, state.keep.value.dtype)), clocks=state.clocks.at[0, index].add(committed >= 0),
            count=Slots(count + 1), pulled_at=state.pulled_at, steps=Slots(steps), pending=Slots(pending),
            own=Slots(own), anchor=state.anchor, inner=_after(inner, state, numbers, committed, before, after),
            fragments=state.fragments,
        )  # fmt: skip

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _after(inner: Any, state: FragmentsState, numbers: PyTree, committed: jax.Array, before: PyTree, after: PyTree):
    """Return the inner state after a commit, which changes what belongs to its fragment."""
    owners = optax.tree.map_params(
        inner.init, lambda _, number: number, before, numbers, transform_non_params=lambda _: -1
    )

    def put(kept, owner, old, new):
        if _is_per_fragment(kept):
            row = jnp.where(committed >= 0, new, old)
            return PerFragment(kept.rows.at[0, jnp.maximum(committed, 0)].set(row))
        return jnp.where(committed == owner, new, old)

    return jax.tree.map(put, state.inner, owners, before, after, is_leaf=_is_per_fragment)


def _is_per_fragment(node: Any) -> bool:
    return isinstance(node, PerFragment)


def _turn(tick: jax.Array, every: int, num_fragments: int) -> jax.Array:
    """Return the fragment whose turn it is, -1 for none."""
    return jnp.where((tick >= 0) & (tick % every == 0), tick // every % num_fragments, -1)


def _bytes(numbers: PyTree, params: PyTree, fragment: jax.Array) -> jax.Array:
    """Return the bytes of a fragment, a float scalar."""
    sizes = jax.tree.map(
        lambda number, p: jnp.where(fragment == number, float(p.size * p.dtype.itemsize), 0.0), numbers, params
    )
    return jnp.asarray(sum(jax.tree.leaves(sizes)), jnp.result_type(float))
