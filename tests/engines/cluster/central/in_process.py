"""A divided commit in one process, next to the same commit as one program."""

import jax
import jax.numpy as jnp
import numpy as np

from gemjax.batches.local import LocalBatches
from gemjax.batches.rows import as_batches
from gemjax.engines.cluster.central.commit import Commit, Part, Recipe
from gemjax.engines.cluster.central.division import DRIVER
from gemjax.engines.devices.hardware import keys
from gemjax.engines.devices.hardware.packing import Packed
from gemjax.engines.devices.hardware.prefetch import Selections
from gemjax.engines.devices.hardware.programs.gradients import event_of, gradient_at, packers
from gemjax.engines.transition import Transition
from gemjax.protocol import slots

SEED = 5


class Divided:
    """A run's central variable in ``parts`` parts, and the same as a whole."""

    def __init__(self, tx, problem, num_workers, local=None, *, parts=2, small=1):
        self.problem, self.num_workers = problem, num_workers
        transition = Transition(loss_fn=problem.loss_fn, tx=tx, num_workers=num_workers, seed=SEED, local=local)
        transition = transition.bind(problem.params, problem.model_state)
        state = transition.init(problem.params, problem.model_state)
        batches = as_batches(problem.batches, num_workers)
        self.batches = batches if local is None else LocalBatches(batches, local)
        self.selections = Selections(self.batches, num_workers)
        place, self.steps = jax.devices()[0], [0] * num_workers
        taken = [slots.take(state, worker) for worker in range(num_workers)]
        self.views = [transition.view_of(one) for one in taken]
        self.locals = [view.local for view in self.views]
        sent = jax.eval_shape(lambda: (self.views[0]._replace(local=()), ()))
        self.packers = packers(transition, self.batches, place, sent, self.locals[0], self.selections.example(), -1)
        state = state._replace(view=slots.Slots(state.view.value._replace(local=()), num_workers))
        shapes = jax.eval_shape(lambda: state)
        self.commit_program = commit = Commit(Recipe(transition, shapes, self.packers, False, parts, small))
        found = dict(zip(jax.tree.leaves(commit.leaves()), jax.tree.leaves(keys.as_data(state)), strict=True))
        shared = {leaf.number: array for leaf, array in found.items() if not leaf.stacked}
        each = [
            {leaf.number: array[worker] for leaf, array in found.items() if leaf.stacked}
            for worker in range(num_workers)
        ]
        self.parts = {
            at: Part(commit, at, commit.at(at, shared), [commit.at(at, one) for one in each])
            for at in (DRIVER, *range(parts))
        }
        split = [slots.split(slots.take(state, worker)) for worker in range(num_workers)]
        self.shared, self.slots = keys.as_data(split[0][2]), [keys.as_data(one[0]) for one in split]
        self._whole = jax.jit(commit._step)
        self._gradient = jax.jit(
            lambda view, local, data, selection, event: gradient_at(
                transition.gradient, self.batches, None, view, local, data, selection, event
            )
        )

    def gradient(self, worker):
        """Compute the worker's next gradient; return its leaves."""
        step = self.steps[worker]
        data, selection = self.selections.take(worker, step, worker)
        data = self.batches.data if data is None else data
        found = self._gradient(self.views[worker], self.locals[worker], data, selection, event_of(worker, step))
        self.locals[worker] = found.local
        return self.packers.gradients.pack(found._replace(local=())).apart

    def rounds(self, worker, gradient, *, commits=True, fails=lambda place, level: False):
        """Compute all rounds of a commit, but do not finish it."""
        commit, event = self.commit_program, event_of(worker, self.steps[worker], commits=commits)
        known = dict(zip(commit.layout.event, event, strict=True))
        known |= zip(commit.layout.gradient, gradient, strict=True)
        for place, part in self.parts.items():
            part.begin(worker, commit.at(place, known))
        sent = self.parts[DRIVER].values
        for level, _ in enumerate(commit.division.pieces):
            self.parts[DRIVER].run(level, sent)
            answers = []
            for place, part in self.parts.items():
                if fails(place, level):
                    raise RuntimeError("a part has failed")
                if place != DRIVER:
                    answers.append(part.run(level, sent))
            for answer in answers:
                sent.update(answer)

    def finish(self):
        """Finish a commit; return the leaves of the view and the numbers of the report."""
        found = {}
        for part in self.parts.values():
            found |= part.finish()
        layout = self.commit_program.layout
        return [found[out] for out in layout.view], [found[out] for out in layout.report]

    def as_one(self, worker, gradient):
        """Do the same commit as one program."""
        event = event_of(worker, self.steps[worker])
        self.shared, self.slots[worker], view, report = self._whole(
            self.shared, self.slots[worker], gradient, tuple(event)
        )
        return view, report

    def moves_on(self, worker, view):
        """Let the worker compute its next gradient at ``view``."""
        self.views[worker], _ = self.packers.views.unpack(Packed({}, view))
        self.steps[worker] += 1

    def state(self, worker):
        """Return the leaves of the state of one worker, from all parts and from the whole."""
        layout, divided = self.commit_program.layout, {}
        for part in self.parts.values():
            divided |= part.shared | part.slots[worker]
        whole = (*self.shared, *jax.tree.leaves(self.slots[worker]))
        return [divided[number] for number in (*layout.shared, *layout.slot)], whole

    def bits(self):
        """Return the bytes of the whole divided state."""
        return [np.asarray(leaf).tobytes() for worker in range(self.num_workers) for leaf in self.state(worker)[0]]


def assert_equal_to_rounding(actual, desired):
    """Check float64 arrays to 1e-14 of the largest finite number; numbers that are not finite are equal."""
    for a, d in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
        a, d = np.asarray(a, np.float64), np.asarray(d, np.float64)
        largest = np.abs(d[np.isfinite(d)]).max(initial=1e-30)
        np.testing.assert_allclose(a, d, rtol=0, atol=1e-14 * largest)


def spiked(gradient, size):
    """Return a gradient with ``size`` in one number of its largest leaf."""
    largest = max(range(len(gradient)), key=lambda index: gradient[index].size)
    return [
        leaf if index != largest else jnp.ravel(leaf).at[0].set(size).reshape(leaf.shape)
        for index, leaf in enumerate(gradient)
    ]
