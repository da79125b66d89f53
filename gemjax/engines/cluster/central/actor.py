"""A process of the world that has the central variable."""

import os
import pickle
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as ocp

from gemjax.engines.cluster.connection import imported_ray
from gemjax.engines.cluster.pieces import own_piece, spread, together
from gemjax.engines.devices.hardware.central import Central
from gemjax.engines.devices.hardware.packing import Packed
from gemjax.engines.devices.hardware.programs.gradients import Packers
from gemjax.engines.devices.hardware.sharding import Place, in_parts, shardings, whole
from gemjax.engines.memory import STATE
from gemjax.engines.result import without_numbers
from gemjax.engines.running import keys
from gemjax.engines.transition import RunState, Transition
from gemjax.protocol.compat import bind_collectives
from gemjax.protocol.slots import Slots

SMALL = 256  # Numbers in the largest array of a state that the driver always has.


class Recipe(NamedTuple):
    """Picklable description of a run's central variable."""

    transition: Transition
    state: RunState  # Shapes, without the state of local optimizers and what the host counts.
    packers: Packers
    keeps_local: bool


class CentralActor:
    """One process of several that have the central variable; all of them are called alike, in the same order.

    Args:
      paths: as for :class:`gemjax.engines.cluster.actor.Actor`.
    """

    def __init__(self, paths: list[str]):
        sys.path.extend(path for path in paths if path not in sys.path and os.path.isdir(path))
        self._central: Any = None  # A Central.
        self._kept: dict[str, dict[str, Any]] = {}
        self._gathered: list[Any] = []  # The leaves of its state, until the next commit.

    def address(self) -> str:
        """Return an address of this process that is free."""
        host = imported_ray().util.get_node_ip_address()
        with socket.socket() as free:
            free.bind((host, 0))
            return f"{host}:{free.getsockname()[1]}"

    def join(self, address: str, host: int, hosts: int) -> None:
        """Form one world with the others, of which the first one has the address; called once, before JAX has begun."""
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        bind_collectives(imported_ray().util.get_node_ip_address())
        jax.distributed.initialize(address, hosts, host, coordinator_bind_address=address)
        self._host, devices = host, jax.devices()
        # The CPU devices of one process share its cores, so the world has one of each process.
        self._place: Place = tuple(
            min((one for one in devices if one.process_index == of), key=lambda one: one.id) for of in range(hosts)
        )

    def begin(self, config: Mapping[str, Any], pickled: bytes) -> tuple[str, str]:
        """Prepare for a run; return "begun", or "missing" and the name of a module."""
        for name, value in config.items():
            jax.config.update(name, value)
        try:
            self._recipe: Recipe = pickle.loads(pickled)
        except ModuleNotFoundError as error:
            return "missing", error.name or str(error)
        self._leaves: dict[int, Any] = {}
        return "begun", ""

    def load(self, index: int, array: np.ndarray) -> None:
        """Take a leaf of what the run begins with."""
        self._leaves[index] = spread(self._place, array)

    def read_files(self, checkpoint: str, all_names: Sequence[str], wanted: Mapping[int, str]) -> None:
        """Read leaves of the state from a checkpoint, by their names there; ``all_names`` are those of all its leaves."""
        like = jax.tree.leaves(keys.as_data(self._recipe.state))
        names: dict[str, Any] = dict.fromkeys(all_names, ...)
        for index, name in wanted.items():
            shape, dtype = like[index].shape, like[index].dtype
            names[name] = jax.ShapeDtypeStruct(shape, dtype, sharding=in_parts(self._place, shape))
        found = ocp.load_checkpointables(checkpoint, {STATE: names})[STATE]
        self._leaves |= {index: found[name] for index, name in wanted.items()}

    def keep_leaf(self, index: int, before: int) -> None:
        """Take a leaf of the state from that which the last run has reached, by its numbers in both."""
        self._leaves[index] = self._gathered[before]

    def ping(self) -> None:
        """Return at once."""

    def start(self, first: bool) -> None:
        """Begin with the leaves that were loaded: those of the state, or those of parameters and model state alone.

        Args:
          first: True to make the first state of a run, of which only parameters and model state were loaded.
        """
        self._central, self._gathered = None, []
        transition, like, packers, keeps_local = self._recipe
        given = (like.params, like.model_state) if first else like
        leaves, self._leaves = [self._leaves[index] for index in sorted(self._leaves)], {}
        data = jax.tree.unflatten(jax.tree.structure(given), leaves)

        def begin(data):
            tree = keys.as_keys(data, given)
            state = without_numbers(transition.init(*tree)) if first else tree
            return state._replace(view=Slots(state.view.value._replace(local=()), transition.num_workers))

        state = jax.jit(begin, out_shardings=shardings(self._place, like))(data)
        del data, leaves
        self._central = Central(transition, state, self._place, *packers, keeps_local)
        self._nothing = jax.eval_shape(packers.gradients.zeros)

    def warm_up(self) -> None:
        """Compile the commit."""
        self._central.warm_up(self._central.no_gradient())

    def first_view(self, worker: int) -> Packed:
        """Return this host's piece of the view of a worker, as the state has it."""
        return own_piece(self._central.first_view(worker), self._host, self._place)

    def receive(self, piece: Packed | None) -> None:
        """Take the piece of the gradient of the next commit; ``None`` stands for zeros."""
        none = self._central.no_gradient
        self._gradient = none() if piece is None else together(self._place, piece, self._nothing)

    def commit(self, worker: int, event: np.ndarray) -> tuple[dict[str, np.ndarray] | None, Packed]:
        """Commit the gradient; return the numbers of the report, and this host's piece of the worker's next view."""
        self._gathered = []
        view, report = self._central.commit(worker, self._gradient, event)
        self._gradient = None
        # All wait, so that no process is ahead of another.
        numbers = {name: np.asarray(vector) for name, vector in report.items()}
        return numbers if self._host == 0 else None, own_piece(view, self._host, self._place)

    def gather(self) -> list[np.ndarray | None] | None:
        """Stack the slots of all workers; the first host returns the leaves of the state, with ``None`` for large ones."""
        if not self._gathered:
            self._gathered = jax.tree.leaves(keys.as_data(self._central.gather()))
        return self._from_first([leaf if leaf.size <= SMALL else None for leaf in self._gathered])

    def read(self, index: int) -> np.ndarray | None:
        """Return a leaf of the gathered state from the first host."""
        return self._from_first(self._gathered[index])

    def params(self) -> list[np.ndarray] | None:
        """Return the leaves of parameters and model state from the first host."""
        return self._from_first(jax.tree.leaves(keys.as_data(self._central.params())))

    def _from_first(self, leaves: Any) -> Any:
        """Return arrays in host memory from the first host, ``None`` from the others."""
        found = jax.tree.map(np.asarray, jax.device_put(leaves, whole(self._place)))
        return found if self._host == 0 else None

    def keep(self, kept: str, leaves: Mapping[str, int]) -> None:
        """Keep leaves of the gathered state, by their names, for :meth:`write`."""
        donated = set(map(id, self._central.shared.apart))  # To the next commit; stacked leaves are copies.
        found = {name: self._gathered[index] for name, index in leaves.items()}
        found = {name: jnp.copy(leaf) if id(leaf) in donated else leaf for name, leaf in found.items()}
        self._kept = dict([*self._kept.items()][-1:]) | {kept: found}  # Older ones failed before they were written.

    def sees(self, folder: str) -> None:
        """Check that this host has a folder that the driver has made."""
        if not os.path.isdir(folder):
            raise FileNotFoundError(
                f"give a folder in a file system that all hosts share; {socket.gethostname()} does not see the driver's"
            )

    def write(self, path: str, arrays: Mapping[str, Any], metadata: Any, kept: str) -> None:
        """Copy ``arrays`` and leaves that were kept, and begin to write a checkpoint of them beside the next commits."""
        of_state = dict(arrays[STATE]) | self._kept.pop(kept)
        self._writing = ocp.save_checkpointables_async(path, dict(arrays) | {STATE: of_state}, custom_metadata=metadata)

    def written(self) -> None:
        """Wait until the checkpoint is written; called beside commits, in another thread."""
        self._writing.result()
