"""The driver's side of a central variable over several hosts."""

import dataclasses
import os
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gemjax.engines.checks import shapes_of
from gemjax.engines.cluster.central.actor import Recipe
from gemjax.engines.cluster.central.world import World
from gemjax.engines.cluster.cluster import send_missing, settings
from gemjax.engines.cluster.connection import imported_ray
from gemjax.engines.cluster.pieces import Pieces
from gemjax.engines.devices.hardware.packing import numbers_of, packed_report
from gemjax.engines.devices.hardware.programs.gradients import Packers
from gemjax.engines.memory import Elsewhere
from gemjax.engines.running import keys
from gemjax.engines.transition import RunState, Transition, no_loss
from gemjax.protocol import PyTree, slots
from gemjax.protocol.local_steps import LocalSteps
from gemjax.protocol.slots import Slots


def unmade_state(transition: Transition, params: PyTree, model_state: PyTree) -> RunState:
    """Return the state before the first commit, with shapes in place of the method's arrays, which the actors make.

    Counters and the states of local optimizers are arrays. A method whose ``init`` cannot be traced gets all arrays.
    """
    params, model_state = jax.tree.map(jnp.asarray, (params, model_state))
    if not is_unmade(shapes := shapes_of(transition.init, params, model_state)):
        return shapes

    def known(params, model_state):
        state = transition.init(params, model_state)
        return state._replace(params=(), opt_state=(), model_state=(), view=state.view.value.local)

    counters = jax.jit(known)(params, model_state)  # Compiled, it makes no array that it does not return.
    view = Slots(shapes.view.value._replace(local=counters.view), transition.num_workers)
    return counters._replace(params=params, model_state=model_state, opt_state=shapes.opt_state, view=view)


def is_unmade(state: RunState) -> bool:
    """Return True for a state of :func:`unmade_state`."""
    return any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(state))


class Awaited:
    """A vector of the report of a commit, which the actors return."""

    def __init__(self, world: World, calls: list[Any], name: str):
        self._world, self._calls, self._name = world, calls, name

    def is_ready(self) -> bool:
        """Return True if reading it would not wait."""
        return self._world.failed_or_ready(self._calls)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._world.wait(self._calls)[0][self._name], dtype)


class AtActors(Elsewhere):
    """An array of the state that the actors have, after so many commits and pulls."""

    def __init__(self, owner: "SharedCentral", version: int, index: int, like: Any):
        super().__init__(like.shape, like.dtype)
        self.owner = self._central = owner
        self.version, self.index = version, index

    def read(self) -> np.ndarray:
        self._central.check(self.version)
        return self._central.world.each("read", self.index)[0]


class SharedCentral:
    """The central variable as one global array of several processes, to which the driver gives commits in order.

    Args:
      transition, state, packers, keeps_local: as for :class:`gemjax.engines.devices.hardware.central.Central`.
      here: device of what is read.
    """

    def __init__(self, transition: Transition, state: RunState, packers: Packers, keeps_local: bool, here: jax.Device):
        self._begin: RunState | None = state
        self._here = here
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
        # A commit computes no gradient.
        local = transition.local and LocalSteps(optax.identity())
        self.recipe = Recipe(
            dataclasses.replace(transition, loss_fn=no_loss, local=local), shapes, packers, keeps_local
        )
        self._vectors = jax.eval_shape(self._report, shapes)  # By name.
        self.world: World = None  # type: ignore[assignment]

    def _report(self, state: RunState) -> dict[str, Any]:
        taken, transition = slots.take(state, 0), self.recipe.transition
        gradient = self.recipe.packers.gradients.unpack(self.recipe.packers.gradients.zeros())
        named = numbers_of(transition.commit_and_pull(taken, gradient, jnp.int32(0), jnp.int32(0))[2])
        self.reported = {name: np.dtype(value.dtype) for name, value in named.items()}  # Set by tracing.
        return packed_report(named)

    def connect(self, world: World, pickle: Callable[[], bytes], by_value: Callable[[str], bool]) -> None:
        """Let the actors of ``world`` begin with the state of the run; the others as for ``Cluster.begin``."""
        state, ray = self._begin, imported_ray()
        assert state is not None
        while send_missing(world.each("begin", settings(), ray.put(pickle())), by_value):
            pass
        first = is_unmade(state)
        files: dict[tuple, dict[int, str]] = {}
        for index, leaf in enumerate(
            jax.tree.leaves(keys.as_data((state.params, state.model_state) if first else state))
        ):
            if isinstance(leaf, AtActors) and leaf.owner is world.owner:
                world.owner.check(leaf.version)
                world.each("keep_leaf", index, leaf.index)
            elif isinstance(leaf, Elsewhere) and leaf.at is not None:
                leaf.check()
                files.setdefault(leaf.at, {})[index] = leaf.name
            else:  # One at a time, as Ray's memory may have room for one alone.
                world.each("load", index, ray.put(np.asarray(leaf)))
        for (checkpoint, names), wanted in files.items():
            world.each("read_files", checkpoint, names, wanted)
        self._begin, self._version, self.world = None, 0, world
        world.owner = self
        world.each("start", first)

    def first_view(self, worker: int) -> Pieces:
        """Return the view of a worker, as the state has it; an empty one before there are actors."""
        send = lambda actor, host: actor.first_view.remote(worker)
        return Pieces([] if self.world is None else self.world.send(send))

    def no_gradient(self) -> Pieces:
        """Return zeros in place of a gradient."""
        return Pieces([])

    def warm_up(self, nothing: Pieces) -> None:
        """Compile the commit."""
        del nothing
        self.world.each("warm_up")

    def receive(self, gradient: Pieces) -> None:
        """Send the actors a gradient, and wait until all have it; a failure leaves the central variable untouched."""
        pieces = gradient.pieces or [None] * len(self.world.actors)
        self.world.wait(self.world.send(lambda actor, host: actor.receive.remote(pieces[host])), alone=True)

    def commit(self, worker: int, gradient: Pieces, event: np.ndarray) -> tuple[Pieces, dict[str, Awaited]]:
        """Dispatch the commit of a gradient that the actors have; return the worker's next view and the report, at once."""
        if not gradient.pieces:
            self.receive(gradient)
        self._version += 1
        calls = self.world.send(lambda actor, host: actor.commit.options(num_returns=2).remote(worker, event))
        report = {name: Awaited(self.world, [one for one, _ in calls], name) for name in self._vectors}
        return Pieces([view for _, view in calls], report), report

    def bring(self, tree: PyTree) -> PyTree:
        """Return arrays on the driver."""
        return jax.device_put(tree, self._here)

    def params(self) -> tuple[PyTree, PyTree]:
        """Return parameters and model state, from the actors."""
        like = self.recipe.state.params, self.recipe.state.model_state
        if self._begin is not None:
            return self._begin.params, self._begin.model_state
        leaves = self.world.each("params")[0]
        found = jax.device_put(leaves, self._here, may_alias=False)
        return keys.as_keys(jax.tree.unflatten(jax.tree.structure(like), found), like)

    def gather(self, to: jax.Device | None = None) -> RunState:
        """Return the state with the slots of all workers stacked; large arrays stay in the actors."""
        del to
        if self._begin is not None:
            return self._begin
        small, like = self.world.each("gather")[0], self.recipe.state
        shapes, structure = jax.tree.flatten(keys.as_data(like))
        leaves = [
            AtActors(self, self._version, index, shape) if leaf is None else self.bring(np.array(leaf))
            for index, (leaf, shape) in enumerate(zip(small, shapes, strict=True))
        ]
        # Keys are brought here.
        bring = lambda leaf, of: self.bring(np.array(leaf)) if keys.is_key(of) else leaf
        return keys.as_keys(jax.tree.unflatten(structure, map(bring, leaves, jax.tree.leaves(like))), like)

    def check(self, version: int) -> None:
        """Check that the actors have the state after so many commits and pulls.

        Raises:
          RuntimeError: if they have another one.
        """
        if self.world.owner is not self or not self.world.actors:
            raise RuntimeError(
                "this array is no longer in the actors of the central variable, because the cluster was closed or has begun "
                "its next run; read it, or save a checkpoint, before that"
            )
        if version != self._version:
            raise RuntimeError(
                f"the central variable is at version {self._version}, not at {version}; the state of a callback is valid "
                "during the callback: read or save it there"
            )

    def writer(self, leaves: Mapping[str, AtActors]) -> Callable[[str, Mapping[str, Any], Any], None]:
        """Return ``write(path, arrays, metadata)``, by which all actors write one checkpoint with ``leaves`` of the state."""
        for leaf in leaves.values():
            self.check(leaf.version)
        kept = uuid.uuid4().hex  # The actors outlive the run, and what they keep may be written after its end.
        self.world.each("keep", kept, {name: leaf.index for name, leaf in leaves.items()})

        def write(path: str, arrays: Mapping[str, Any], metadata: Any) -> None:
            sent, made = imported_ray().put(jax.tree.map(np.asarray, arrays)), f"{path}-made"
            os.mkdir(made)
            try:
                self.world.each("sees", made, alone=True)
            finally:
                os.rmdir(made)
            # If one process fails to write, the others wait for it beside commits, until Orbax gives up.
            self.world.each("write", path, sent, metadata, kept, alone=True)
            self.world.each("written", alone=True)

        return write
