"""The driver's side of a central variable that is divided over actors."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gemjax.engines.cluster.actor import Scattered
from gemjax.engines.cluster.central import division
from gemjax.engines.cluster.central.commit import Arrays, Commit, Leaf, Part, Recipe
from gemjax.engines.cluster.central.division import DRIVER
from gemjax.engines.cluster.central.first import First, is_unmade
from gemjax.engines.cluster.central.stand_ins import AtActor
from gemjax.engines.cluster.cluster import sent_by_value
from gemjax.engines.cluster.connection import imported_ray
from gemjax.engines.devices.hardware import keys
from gemjax.engines.devices.hardware.packing import packed_report
from gemjax.engines.devices.hardware.programs.gradients import Packers
from gemjax.engines.devices.hardware.sharding import Place
from gemjax.engines.memory import Elsewhere
from gemjax.engines.result import RunFailedError
from gemjax.engines.transition import RunState, Transition, no_loss
from gemjax.protocol.local_steps import LocalSteps

PyTree = Any


class PartLostError(RunFailedError):
    """An actor of the central variable has ended."""


class DividedCentral:
    """The central variable in actors, one per part; the driver has the small values, and sees no large ones.

    A commit is atomic: in each round every part computes on copies, and only after the last round all parts are told to replace
    their arrays. If a part fails before that, all of them have the state before the commit.

    Args:
      transition, state, place: as for :class:`gemjax.engines.devices.hardware.central.Central`.
      packers: of views and gradients, no leaf of which is packed with others.
      keeps_local: True if the worker has a local optimizer.
      parts: number of actors.
    """

    def __init__(
        self, transition: Transition, state: RunState, place: Place, packers: Packers, keeps_local: bool, parts: int
    ):
        self.place, self.num_workers = place, transition.num_workers
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
        # A commit computes no gradient.
        local = transition.local and LocalSteps(optax.identity())
        tx_alone = dataclasses.replace(transition, loss_fn=no_loss, local=local)
        self.recipe = Recipe(tx_alone, shapes, packers, keeps_local, parts, division.SMALL)
        self.commit_program = Commit(self.recipe)
        self.reported = {name: np.dtype(dtype) for name, dtype in self.commit_program.reported.items()}
        self._begin: RunState | None = state
        self._actors: Sequence[Any] = ()

    def connect(
        self,
        actors: Sequence[Any],
        config: Mapping[str, Any],
        pickle: Callable[[], bytes],
        by_value: Callable[[str], bool],
    ) -> None:
        """Divide the state that the run begins with over the actors.

        Args:
          actors: the actors, one per part.
          config: settings of JAX.
          pickle, by_value: as for :meth:`gemjax.engines.cluster.cluster.Cluster.begin`; ``pickle`` returns the recipe.

        Raises:
          RuntimeError: if an actor divides the program in another way.
          ValueError: if the actors cannot import a module.
        """
        commit, state = self.commit_program, self._begin
        assert state is not None
        self._actors = actors
        while True:
            job = imported_ray().put(pickle())
            answers = self._each(lambda actor, place, job=job: actor.begin.remote(place, config, job))
            if not sent_by_value(answers, by_value):
                break
        if {digest for _, digest in answers} != {commit.digest}:
            raise RuntimeError(
                "a central actor has divided the commit in another way than the driver; let all hosts have the same versions "
                "of Python, JAX, optax and gemjax"
            )
        self._driver = Part(commit, DRIVER, *(self._make(state) if is_unmade(state) else self._send(state)))
        self._begin, self._version = None, 0

    def _make(self, state: RunState) -> tuple[Arrays, list[Arrays]]:
        """Let each actor make its own leaves of the first state; return those of the driver."""
        first, leaves = First(self.commit_program), jax.tree.leaves(keys.as_data((state.params, state.model_state)))
        given = lambda place: [np.asarray(leaves[index]) for index in first.inputs(place)]
        self._each(lambda actor, place: actor.make_first.remote(given(place), self.num_workers))
        return jax.device_put(first.make(DRIVER, given(DRIVER), self.num_workers), self._here)

    def _send(self, state: RunState) -> tuple[Arrays, list[Arrays]]:
        """Send each actor its own leaves of a state, or let it read them; return those of the driver."""
        commit = self.commit_program
        shared: dict[int, Any] = {}
        each: list[Any] = [{} for _ in range(self.num_workers)]
        arrays, pending = jax.tree.leaves(keys.as_data(state)), []
        for leaf, array in zip(jax.tree.leaves(commit.leaves()), arrays, strict=True):
            if (place := commit.division.place[leaf.number]) != DRIVER:
                sent = array.sent() if isinstance(array, Elsewhere) else np.asarray(array)
                pending.append(self._actors[place].load.remote(leaf.number, sent, leaf.stacked))
                in_file = isinstance(array, Elsewhere) and array.owner is None
                if not in_file:  # One at a time, as Ray's memory may have room for one alone.
                    self.wait([pending.pop()])
                continue
            for kept, one in zip(each, np.asarray(array), strict=True) if leaf.stacked else [(shared, array)]:
                kept[leaf.number] = jax.device_put(np.asarray(one), self._here)
        self.wait(pending)
        self._each(lambda actor, place: actor.continue_run.remote(self.num_workers))
        return shared, each

    @property
    def begins_elsewhere(self) -> bool:
        """True if the state to begin with has arrays in actors."""
        return any(isinstance(leaf, Elsewhere) and leaf.owner is not None for leaf in jax.tree.leaves(self._begin))

    @property
    def _here(self) -> jax.Device:
        return self.place[0] if isinstance(self.place, tuple) else self.place

    def _each(self, call: Callable[[Any, int], Any]) -> list[Any]:
        """Call every actor and wait for all answers."""
        return self.wait([call(actor, place) for place, actor in enumerate(self._actors)])

    def wait(self, calls: Sequence[Any]) -> list[Any]:
        """Wait for the answers to calls of actors, and return them.

        Raises:
          PartLostError: if an actor has ended.
          Exception: that of an actor.
        """
        ray = imported_ray()
        try:
            return ray.get(calls)
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnavailableError) as error:
            raise PartLostError(
                f"the central variable, divided over {self.recipe.parts} actors, has lost one of them with its part; continue "
                "from the last checkpoint with state= and recorded="
            ) from error

    def first_views(self) -> Iterable[Scattered]:
        """Yield the view of each worker, as the state has it; empty ones before there are actors."""
        if not self._actors:
            yield from [Scattered([], [])] * self.num_workers
            return
        sources, places = self.commit_program.first_views(), self.commit_program.view_places
        dtypes = [leaf.dtype for leaf in jax.eval_shape(self.recipe.packers.views.zeros).apart]
        for worker in range(self.num_workers):
            kept: dict[int | None, Any] = {**self._driver.shared, **self._driver.slots[worker]}
            small = [
                np.asarray(kept.get(n, 0.0)).astype(dtype)
                for n, at, dtype in zip(sources, places, dtypes, strict=True) if at == DRIVER
            ]  # fmt: skip
            numbers = [[n for n, at in zip(sources, places, strict=True) if at == k] for k in range(len(self._actors))]
            calls = [actor.read.remote(0, mine, worker) for actor, mine in zip(self._actors, numbers, strict=True)]
            yield Scattered(small, calls)

    def no_gradient(self) -> Scattered:
        """Return zeros in place of a gradient."""
        avals, here = self.commit_program.division.program.avals, self.commit_program.gradient_at(DRIVER)
        return Scattered([np.zeros(avals[n].shape, avals[n].dtype) for n in here], [None] * len(self._actors))

    def receive(self, gradient: Scattered) -> None:
        """Send a gradient to the actors and wait until each has its part; a failure leaves the central variable untouched."""
        self._each(lambda actor, place: actor.receive.remote(gradient.parts[place]))

    def commit(self, worker: int, gradient: Scattered, event: np.ndarray) -> tuple[Scattered, jax.Array]:
        """Commit a gradient that the actors have received, and return the worker's next view and the report's numbers."""
        if None in gradient.parts:
            self.receive(gradient)
        self._run(worker, gradient, event)
        views = [actor.finish.remote() for actor in self._actors]
        self._version += 1
        found = self._driver.finish()
        small = [found[out] for out in self.commit_program.view_at(DRIVER)]
        outs = zip(self.reported.items(), self.commit_program.layout.report, strict=True)
        report = packed_report({name: np.asarray(found[out], kind) for (name, kind), out in outs}, np.stack)
        return Scattered(small, views), jax.tree.map(jnp.asarray, report)

    def warm_up(self, nothing: Scattered) -> None:
        """Compile all pieces by a commit of zeros that is not finished."""
        self.receive(nothing)
        self._run(0, nothing, np.array((0, 0, 1), np.int32))

    def _run(self, worker: int, gradient: Scattered, event: np.ndarray) -> None:
        commit = self.commit_program
        driver = self._driver
        numbers = (*commit.gradient_at(DRIVER), *commit.layout.event)
        driver.begin(worker, dict(zip(numbers, (*gradient.small, *event), strict=True)))
        with jax.default_device(self._here):
            for level, pieces in enumerate(commit.division.pieces):
                driver.run(level, driver.values)
                calls = {}
                for place, actor in enumerate(self._actors):
                    if level == 0 or place in pieces:
                        received = pieces[place].received if place in pieces else ()
                        values = {n: np.asarray(driver.values[n]) for n in received}
                        calls[place] = actor.round.remote(self._version, worker, level, values)
                for answer in self.wait(list(calls.values())):
                    driver.values.update(answer)

    def bring(self, tree: PyTree) -> PyTree:
        """Return arrays on the driver."""
        return jax.device_put(tree, self._here)

    def read(self, select: Callable[[RunState], PyTree]) -> PyTree:
        """Return a subtree of what all workers share, gathered from the actors."""
        if self._begin is not None:
            return select(self._begin)
        leaves, structure = jax.tree.flatten(self._state(select))
        calls = {index: leaf.sent() for index, leaf in enumerate(leaves) if isinstance(leaf, AtActor)}
        for index, call in calls.items():
            leaves[index] = jax.device_put(self.wait([call])[0], self._here, may_alias=False)
        return jax.tree.unflatten(structure, leaves)

    def gather(self, to: jax.Device | None = None) -> RunState:
        """Return the whole state, with the slots of all workers stacked; large arrays stay in the actors.

        Args:
          to: as for :class:`Central`; here the others are in the driver's memory anyway.

        Raises:
          RuntimeError: if the first state has not been made.
        """
        del to
        if self._begin is None:
            return self._state(lambda state: state)
        if is_unmade(self._begin):
            raise RuntimeError("the run has not begun")
        return self._begin

    def _state(self, select: Callable[[RunState], PyTree]) -> PyTree:
        return jax.tree.map(self._array, select(self.commit_program.leaves()), select(self.recipe.state))

    def _array(self, leaf: Leaf, like: Any) -> Any:
        """Return a leaf of the state, or the stand-in for one that an actor has; PRNG keys are brought here."""
        if (place := self.commit_program.division.place[leaf.number]) != DRIVER:
            found = AtActor(self, place, self._version, leaf, keys.as_data(like))
            return keys.as_keys(jax.device_put(found.read(), self._here), like) if keys.is_key(like) else found
        each = [slot[leaf.number] for slot in self._driver.slots] if leaf.stacked else self._driver.shared[leaf.number]
        return keys.as_keys(jnp.stack(each) if leaf.stacked else each, like)

    def actor_at(self, place: int) -> Any:
        """Return the actor of a part.

        Raises:
          RuntimeError: if it has ended.
        """
        if not self._actors:
            raise RuntimeError(
                "this array was in an actor of the central variable that has ended; read it, or save a checkpoint, before the "
                "cluster is closed or begins its next run"
            )
        return self._actors[place]
