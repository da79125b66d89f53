"""Commits at a central variable that is divided over actors of Ray."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from gemjax.engines.cluster.actor import Reply
from gemjax.engines.cluster.central.actor import CentralActor
from gemjax.engines.cluster.central.driver import DividedCentral
from gemjax.engines.cluster.cluster import settings
from gemjax.engines.cluster.programs import ClusterPrograms, by_value, pickled
from gemjax.engines.devices.hardware import keys
from gemjax.engines.transition import RunState, Transition

PyTree = Any


class DividedPrograms(ClusterPrograms):
    """Commits at a central variable that is divided over actors: no large array passes through the driver.

    The state of local optimizers, of which there is one per worker, stays with the driver.
    """

    largest_packed = -1  # Leaves travel alone, because they belong to several parts.
    central: DividedCentral
    _views: list[Any]
    _settle: Any

    def _make_central(self, transition: Transition, state: RunState) -> DividedCentral:
        self._settle = lambda view, local, moved: moved if view.small[-1] > 0 else local
        return DividedCentral(
            transition, state, self.placement.central, self.packers, self._keeps_local, self.placement.parts
        )

    def _pickled_job(self) -> bytes:
        self._pickled_recipe()  # Refuses a method that cannot be pickled before anything starts.
        return super()._pickled_job()

    def _pickled_recipe(self) -> bytes:
        return pickled(self.central.recipe, tx=self.central.recipe.transition.tx)

    def warm_up(self) -> None:
        """Divide the central variable over the actors of the cluster, and compile all programs."""
        actors = self.cluster.start_central(CentralActor, self.placement.parts, keep=self.central.begins_elsewhere)
        self.central.connect(actors, settings(), self._pickled_recipe, by_value)
        self.cluster.end_central(but=actors)
        self._views = list(self.central.first_views())
        super().warm_up()

    def compute(self, worker: int, selected: None) -> Callable[[], tuple[Any, float]]:
        """Do what :meth:`ClusterPrograms.compute` does; the view is in Ray's memory already."""
        view: Any = self._views[worker]
        local, request = self._local[worker], self._next_request(worker)
        places = self.central.commit_program.view_places, self.central.commit_program.gradient_places

        def send() -> tuple[Any, float]:
            small, data = jax.tree.map(np.asarray, (view.small, keys.as_data(local) if self._keeps_local else ()))
            sent = time.perf_counter()
            method = self.cluster.actors[worker].gradient_in_parts.options(num_returns=1 + len(view.parts))
            return method.remote(self._run, *places, small, data, True, request, *view.parts), sent

        return send

    def bring(self, gradient: Reply) -> tuple[Any, PyTree]:
        """Send the parts of a gradient to the actors, which wait for them."""
        self.central.receive(gradient.gradient)
        return gradient.gradient, self._local_of(gradient)

    @property
    def _central_in_words(self) -> str:
        return f"the central variable, divided over {self.placement.parts} actors,"

    @property
    def params(self) -> PyTree:
        """The central variable, gathered from the actors."""
        return self.central.read(lambda state: state.params)

    @property
    def model_state(self) -> PyTree:
        """The model state, gathered from the actors."""
        return self.central.read(lambda state: state.model_state)

    def copy(self) -> tuple[PyTree, PyTree]:
        """Return parameters and model state, gathered from the actors, on the evaluator."""
        return jax.device_put((self.params, self.model_state), self.evaluator)

    def reached(self) -> RunState:
        return self.gather()._replace(params=self.params, model_state=self.model_state)
