"""Programs of a run on devices: warm-up, and lowering for accelerators that this host lacks."""

import dataclasses
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines.problems import every_method, quadratic_with_dropout
from jax import export
from methods.rows import KINDS

import gemjax
from gemjax.batches.local import LocalBatches
from gemjax.batches.rows import as_batches
from gemjax.engines.devices.hardware.central import EXAMPLE_EVENT
from gemjax.engines.devices.hardware.placement import Placement
from gemjax.engines.devices.hardware.programs.host import Programs
from gemjax.engines.programs import Program
from gemjax.engines.simulator.loops import inputs, loop
from gemjax.engines.transition import Transition

WORKERS, PLATFORMS = 3, ("cuda", "tpu")
every_exported = every_method("asgd", "gem", each_kind=True, kinds=KINDS)


@dataclasses.dataclass(frozen=True)
class Device:
    """A substitute for a device that this host lacks."""

    id: int
    platform: str


class Recorded(Programs):
    """Programs that only record how many workers are warmed up at a time, after both have read."""

    def __init__(self, workers, at_once):
        self.placement = Placement(workers, Device(3, workers[0][0].platform))
        self.running, self.most, self.warm, self.changed = 0, 0, [], threading.Condition()
        self._selections, self.both = self, threading.Barrier(2)
        self.patience = 60 if at_once == 2 else 0.3  # Seconds to wait for a second worker.

    _settled = lambda self, *arguments: None

    def example(self, worker, read):
        self.both.wait(timeout=60)

    def compute(self, worker, batch):
        with self.changed:
            self.running += 1
            self.most = max(self.most, self.running)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.most > 1, timeout=self.patience)
            self.running -= 1
            self.warm.append(worker)
        return jnp.zeros(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("platform", "groups", "at_once"),
    [("cpu", "0 1", 2), ("gpu", "0 1", 1), ("tpu", "0 1", 1), ("cpu", "01 012", 1), ("cpu", "0 01", 1)],
)
def test_accelerators_and_groups_that_overlap_are_warmed_up_one_after_the_other(monkeypatch, platform, groups, at_once):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    workers = [[Device(int(i), platform) for i in group] for group in groups.split()]
    programs, committed = Recorded(workers, at_once), []
    programs.central = types.SimpleNamespace(bring=lambda packed: packed, warm_up=committed.append)
    programs.warm_up()
    assert programs.most == at_once
    assert sorted(programs.warm) == [0, 1]
    assert len(committed) == 1


def exported(function, *arguments):
    """Lower a compiled function for accelerators; return the platforms."""
    function = function.at(*arguments) if isinstance(function, Program) else function
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jnp.asarray(leaf).dtype), arguments)
    return export.export(function, platforms=PLATFORMS)(*shapes).platforms


def bound(make):
    """Return the transition, the batches and the initial state of a run with three workers."""
    loss_fn, params, batches, model_state = quadratic_with_dropout()
    local = getattr(make, "local", None)
    transition = Transition(
        tx=make(WORKERS), loss_fn=loss_fn, num_workers=WORKERS, diagnostics=("gap", "update_norm"), local=local
    ).bind(params)
    batches = as_batches(batches, WORKERS)
    batches = batches if local is None else LocalBatches(batches, local)
    return transition, batches, transition.init(params, model_state)


@every_exported
def test_gradients_commits_and_pulls_lower_for_accelerators(make):
    transition, batches, state = bound(make)
    programs = Programs(transition, batches, gemjax.place(WORKERS), state)
    data, selection = programs.select(0)
    place, central = programs.placement.workers[0], programs.central
    data = programs._data[place] if data is None else data
    worker = programs.view(0), programs._local[0]
    gradient = central.no_gradient()
    assert exported(programs._compute[place], *worker, data, selection, EXAMPLE_EVENT) == PLATFORMS
    assert exported(programs._settle, *worker, worker[1]) == PLATFORMS
    assert exported(central._commit, central.shared, central.slots[0], gradient, EXAMPLE_EVENT) == PLATFORMS
    assert exported(central.programs.first_view, central.shared, central.slots[0]) == PLATFORMS


@pytest.mark.parametrize("window", [1, pytest.param(2, marks=pytest.mark.nightly)])
@every_exported
def test_loops_of_the_simulator_lower_for_accelerators(make, window):
    transition, batches, state = bound(make)
    trace = gemjax.arrivals.Gamma(WORKERS).trace(6)
    columns = inputs(trace.events(), batches, 6, window)
    run_chunk = jax.jit(loop(transition, batches, 6, window, with_pulls=True), donate_argnums=0)
    assert exported(run_chunk, state, batches.data, *columns) == PLATFORMS


def buffers(tree):
    """Return device and address of each array of some size."""
    shards = [shard for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards]
    return {(shard.device.id, shard.data.unsafe_buffer_pointer()) for shard in shards if shard.data.size > 1000}


@pytest.mark.slow
@pytest.mark.parametrize("home", ["dedicated", "colocated"])
@pytest.mark.parametrize("central_devices", [1, 2])
@pytest.mark.parametrize(
    "make", [pytest.param(gemjax.asgd, marks=pytest.mark.nightly), gemjax.gem], ids=["asgd", "gem"]
)
def test_views_have_buffers_of_their_own(make, home, central_devices):
    """A commit donates the central variable while views of it may still be in transfer."""
    params = jnp.ones(40_000)
    loss_fn = lambda params, batch: jnp.sum((params - batch) ** 2)
    transition = Transition(tx=make(0.1, num_workers=WORKERS), loss_fn=loss_fn, num_workers=WORKERS).bind(params)
    placement = gemjax.place(WORKERS, home, central_devices=central_devices)
    batches = as_batches(lambda worker, step: 0.0, WORKERS)
    programs = Programs(transition, batches, placement, transition.init(params))
    central = programs.central
    views = [programs.view(worker) for worker in range(WORKERS)]
    for _ in range(2):
        assert buffers(views)
        assert len(buffers((central.shared, central.slots))) >= central_devices
        assert not buffers(views) & buffers((central.shared, central.slots))
        gradient, _ = programs.bring(programs.compute(0, programs.select(0)))
        views = [central.commit(0, gradient, EXAMPLE_EVENT)[0]]
