"""The simulator of a recorded run, which continues from any of its states."""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gemjax
from gemjax.engines.result import with_numbers
from train.config.config import Config
from train.task.methods import arguments, initial_state, state_shapes
from train.task.task import Task

PyTree = Any
Settings = list[tuple[int, dict[str, Any]]]  # Commits from which on fields of the configuration have these values.


class Replayer:
    """Simulation of a run along its recorded trace.

    Args:
      config: configuration of the run.
      task: its task.
      trace: its applied commits.
      settings: values of fields that changed when the run was resumed, in the order of commits.
    """

    def __init__(self, config: Config, task: Task, trace: gemjax.Trace, settings: Settings):
        self.config, self.task, self.trace = config, task, trace
        self.settings = settings
        self._events = trace.events()
        self._ends = np.flatnonzero(self._events.commits) + 1  # Arrivals up to each commit.
        self._arguments = functools.cache(self._make)  # The same objects: compiled programs are found by identity.

    def initial(self) -> gemjax.RunState:
        """Return the state before the first commit."""
        return initial_state(self.config, self._arguments(0), jax.devices()[0])

    def shapes(self) -> gemjax.RunState:
        """Return the shapes of a state on the device of the simulator."""
        return state_shapes(self.config, self._arguments(0), jax.devices()[0])

    def run(self, state: gemjax.RunState, begin: int, end: int) -> gemjax.RunState:
        """Return the state after `end` commits, from that after `begin` commits."""
        if begin == end:
            return state
        cuts = [begin, *(first for first, _ in self.settings if begin < first < end), end]
        for begins, ends in itertools.pairwise(cuts):
            given, shared = self._arguments(max(k for k, (first, _) in enumerate(self.settings) if first <= begins))
            state = gemjax.simulate(
                *given, self.trace, **shared, diagnostics=("gap",), state=self._without_losses(state, begins), stops=[ends],
                callback=lambda progress, ends=ends: progress.commits >= ends,
            ).state  # fmt: skip
        return state

    def _without_losses(self, state: gemjax.RunState, commits: int) -> gemjax.RunState:
        """Return the state after so many commits, as a run without refused gradients has it.

        The recorded trace has applied commits alone. In the run, a worker whose gradients were refused took further steps and
        pulled again; in the replay it pulls once, before its next commit. So the numbers of refused gradients become 0, and a
        worker's step is that of the trace unless the trace allows the step found here.
        """
        worker, step, is_commit, done = *self._events[:3], int(self._ends[commits - 1]) if commits else 0
        last, following = np.full((2, self.trace.num_workers), -1)
        last[worker[:done]] = np.arange(done)
        following[worker[done:][::-1]] = np.arange(done, len(worker))[::-1]
        found = np.asarray(state.step.value)
        implied = np.where(last < 0, found, step[last] + is_commit[last])
        most = np.where(following < 0, found, step[following])
        steps = jnp.asarray(np.where((implied <= found) & (found <= most), implied, found), jnp.int32)
        arrivals, none = jnp.int32(done), jnp.int32(0)
        state = state._replace(
            arrivals=arrivals, dropped=none, rejected=none, step=jax.tree.map(lambda _: steps, state.step)
        )
        return with_numbers(state, steps, state.draw.value, self._arguments(0)[1]["local"])

    def _make(self, number: int) -> tuple[tuple[Any, Any, Any, Any], dict[str, Any]]:
        return arguments(dataclasses.replace(self.config, **self.settings[number][1]), self.task)
