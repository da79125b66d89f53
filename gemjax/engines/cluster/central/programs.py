"""Commits at a central variable that actors of Ray have."""

from collections.abc import Callable
from typing import Any

import jax

from gemjax.engines.cluster.actor import Reply
from gemjax.engines.cluster.central.actor import CentralActor
from gemjax.engines.cluster.central.driver import SharedCentral
from gemjax.engines.cluster.central.world import World
from gemjax.engines.cluster.pieces import Pieces
from gemjax.engines.cluster.programs import ClusterPrograms, Times, by_value, on_host, pickled
from gemjax.engines.devices.hardware.packing import unpacked_report
from gemjax.engines.devices.hardware.sharding import Place, devices_of
from gemjax.engines.running import keys
from gemjax.engines.transition import RunState, Transition
from gemjax.protocol import PyTree


class SharedPrograms(ClusterPrograms):
    """Commits at a central variable over several hosts: no large array passes through the driver.

    The state of local optimizers, of which there is one per worker, stays with the driver.
    """

    central: SharedCentral

    @property
    def _cut_over(self) -> Place:
        return devices_of(self.placement.central)[:1] * self.placement.parts  # Only their number decides what is cut.

    def _make_central(self, transition: Transition, state: RunState) -> SharedCentral:
        here = devices_of(self.placement.central)[0]
        return SharedCentral(transition, state, self.packers, self._keeps_local, here)

    def _pickled_job(self) -> bytes:
        self._pickled_recipe()  # Refuses a method that cannot be pickled before anything starts.
        return super()._pickled_job()

    def _pickled_recipe(self) -> bytes:
        return pickled(self.central.recipe, tx=self.central.recipe.transition.tx)

    def warm_up(self) -> None:
        """Bring the central variable to the actors of the cluster, and compile all programs."""
        world: World = self.cluster.world(CentralActor, World, self.placement.parts)
        self.central.connect(world, self._pickled_recipe, by_value)
        self._views = [self.central.first_view(worker) for worker in range(self.num_workers)]
        super().warm_up()

    def compute(self, worker: int, selected: None) -> Callable[[], tuple[Any, Times]]:
        """Do what :meth:`ClusterPrograms.compute` does; the pieces of the view are in Ray's memory already."""
        view: Pieces = self._views[worker]
        local, request = self._local[worker], self._next_request(worker)

        def send() -> tuple[Any, Times]:
            data, times = on_host(keys.as_data(local) if self._keeps_local else ())
            method = self.cluster.actors[worker].gradient_in_pieces.options(num_returns=1 + len(view.pieces))
            return method.remote(self._run, data, request, *view.pieces), times

        return send

    def bring(self, gradient: Reply) -> tuple:
        """Let the actors take their pieces of a gradient."""
        self.central.receive(gradient.gradient)
        return gradient.gradient, self._local_of(gradient), None

    def _settled(self, worker: int) -> PyTree:
        report = getattr(self._views[worker], "report", None)
        if not self._keeps_local or report is None:
            return self._local[worker]
        applied = unpacked_report(report, self.reported)[list(self.reported).index("applied")] > 0
        return self._moved[worker] if applied else self._local[worker]

    def _local_at(self, worker: int, to: jax.Device | None) -> PyTree:
        if worker in self._undelivered:
            self.deliver(worker)
        return super()._local_at(worker, to)

    @property
    def _central_in_words(self) -> str:
        return f"the central variable, divided over {self.placement.parts} actors,"

    def copy(self) -> tuple[PyTree, PyTree]:
        return jax.device_put(self.central.params(), self.evaluator)  # Already a copy.

    def reached(self) -> RunState:
        params, model_state = self.central.params()
        return self.gather()._replace(params=params, model_state=model_state)
