"""Asynchronous distributed gradient descent in JAX.

Workers share one set of parameters, the central variable. A worker pulls a view of it, computes a gradient there and commits
it; the number of commits by other workers in the meantime is its staleness. A method decides how a stale gradient changes the
central variable. Each method is an optax transformation. There are three ways to use one.

**On the devices of this host**, where each gradient is committed when it is finished (``gemjax.cpu_devices(n)`` first splits
a CPU into ``n`` devices):

>>> import gemjax, jax, jax.numpy as jnp, optax
>>> loss_fn = lambda params, batch: jnp.mean((params["w"] - batch) ** 2)
>>> batches = lambda worker, step: jnp.array([1.0, 2.0])
>>> tx, params = gemjax.gem(learning_rate=0.05, num_workers=2), {"w": jnp.zeros(2)}
>>> result = gemjax.run_on_devices(tx, loss_fn, params, batches, num_commits=200)

**In the simulator**, with hundreds of virtual workers in one compiled program; the trace of a run on devices replays it:

>>> trace = gemjax.arrivals.Gamma(64).trace(2000)
>>> simulated = gemjax.simulate(gemjax.gem(0.05, num_workers=64), loss_fn, params, batches, trace)
>>> replay = gemjax.simulate(tx, loss_fn, params, batches, result.trace)
>>> bool(jnp.allclose(replay.params["w"], result.params["w"], atol=1e-3))
True

**In your own loop**, with the protocol that the engines use:

>>> state = tx.init(params)
>>> view, state = gemjax.pull(state, params, worker=1)
>>> grads = jax.grad(loss_fn)(view, batches(1, 0))
>>> updates, state = tx.update(grads, state, params, worker=1)
>>> params = optax.apply_updates(params, updates)

Contents:

- Methods: ``gem``, ``asgd``, ``dana_zero``, ``lsgd`` and others; ``asynchronous`` and ``per_worker`` around any optax
  transformation.
- Engines: ``simulate``, ``run_on_devices``, ``run_on_cluster``, ``sweep``.
- Data: ``Epochs``, ``Shards``, ``Stream``; ``OnHost`` and ``FromSource`` for data that do not fit the device or memory.
- Workers: ``LocalSteps``, ``place``, ``Policy``, ``Members``; ``arrivals`` for virtual clusters.
- Tools: ``Checkpoints``, ``callbacks``, ``memory_of``, ``summarise``, ``verdict``, ``chrome_trace``, ``EventLog``, ``testing``;
  ``citation``. ``python -m gemjax.check`` tests this machine.

Pages: ``README.md`` in the folder of this package is the guide. ``methods/README.md`` has the table of methods, and explains
how to choose one and how to add one. ``help`` of a name shows its arguments and an example.
"""

import importlib.metadata

from gemjax import arrivals, batches, callbacks, telemetry, testing
from gemjax.batches.from_source import FromSource
from gemjax.batches.functions import BatchesWarning, Computed
from gemjax.batches.on_host import OnHost
from gemjax.batches.per_seed import PerSeed
from gemjax.batches.rows import Epochs, Stream
from gemjax.batches.shards import Shards
from gemjax.checkpoints import CheckpointError, Checkpoints, CheckpointWriteError
from gemjax.engines.cluster.cluster import Cluster
from gemjax.engines.cluster.run import run_on_cluster
from gemjax.engines.devices.hardware.placement import Placement, cpu_devices, place
from gemjax.engines.devices.members import Members
from gemjax.engines.devices.policy import Policy
from gemjax.engines.devices.run import run_on_devices
from gemjax.engines.memory import memory_of
from gemjax.engines.result import Progress, Result, RunFailedError, RunWarning
from gemjax.engines.simulator.simulate import simulate
from gemjax.engines.simulator.sweep import SweepResult, sweep
from gemjax.engines.transition import RunState, initial_state
from gemjax.methods.asgd import asgd
from gemjax.methods.citation import citation
from gemjax.methods.dana import dana_dc, dana_momentum, dana_slim, dana_zero
from gemjax.methods.dc_asgd import compensate_delay, dc_asgd
from gemjax.methods.decoupled_diloco import decoupled_diloco, merge_quorum
from gemjax.methods.delay_adaptive import delay_adaptive
from gemjax.methods.delayed_nesterov import delay_momentum, delayed_nesterov, dynamic_periods
from gemjax.methods.diloco import diloco
from gemjax.methods.downpour import agn, downpour, scale_by_local_steps
from gemjax.methods.easgd import average_elastically, eamsgd, easgd
from gemjax.methods.fedasync import fedasync, mix_with_worker
from gemjax.methods.fedbuff import fedbuff
from gemjax.methods.fragments import by_fragment
from gemjax.methods.gap_aware import dana_ga, gap_aware, scale_by_gap
from gemjax.methods.gap_aware_adam import gap_aware_adam
from gemjax.methods.gather import gather, hinge_weight, polynomial_weight
from gemjax.methods.gem import gem, match_energy
from gemjax.methods.heloco import align_with_momentum, heloco
from gemjax.methods.incremental import aggregate_last, incremental
from gemjax.methods.lsgd import average_position, follow_leader, lsgd
from gemjax.methods.lwp import lwp
from gemjax.methods.malenia import gather_per_worker, malenia
from gemjax.methods.momentum_asgd import look_ahead_momentum, momentum_asgd, nag_asgd
from gemjax.methods.momentum_lookahead import discount_momentum, momentum_lookahead
from gemjax.methods.multi_asgd import multi_asgd
from gemjax.methods.one_step_delay import correct_one_step_delay, one_step_delay
from gemjax.methods.pipeline import async_pipeline, delay_stages, stage_momentum
from gemjax.methods.rennala import gather_fresh, rennala
from gemjax.methods.ringleader import ringleader, take_turns
from gemjax.methods.ringmaster import drop_stale, ringmaster
from gemjax.methods.samples import weigh_samples
from gemjax.methods.staleness_aware import StalenessSchedule, dynsgd, scale_by_staleness, staleness_aware
from gemjax.methods.streaming_diloco import streaming_diloco
from gemjax.methods.yellowfin import tune_momentum, yellowfin
from gemjax.protocol import diagnostics
from gemjax.protocol.hooks import ReadsStaleParams
from gemjax.protocol.local_steps import LocalSteps, displacements, pull_to_anchors, scale_by_progress
from gemjax.protocol.nodes import StalenessState
from gemjax.protocol.per_worker import per_worker
from gemjax.protocol.slots import Slots
from gemjax.protocol.staleness import asynchronous, pull
from gemjax.protocol.trace import Trace
from gemjax.telemetry import eventlog
from gemjax.telemetry.eventlog import EventLog
from gemjax.telemetry.perfetto import chrome_trace
from gemjax.telemetry.summary import Summary, summarise
from gemjax.telemetry.timeline import Timeline, timeline
from gemjax.telemetry.verdict import Verdict, verdict

try:
    __version__ = importlib.metadata.version("gemjax")
except importlib.metadata.PackageNotFoundError:  # A checkout on the path that is not installed.
    __version__ = "0+unknown"

__all__ = [
    "BatchesWarning",
    "CheckpointError",
    "CheckpointWriteError",
    "Checkpoints",
    "Cluster",
    "Computed",
    "Epochs",
    "EventLog",
    "FromSource",
    "LocalSteps",
    "Members",
    "OnHost",
    "PerSeed",
    "Placement",
    "Policy",
    "Progress",
    "ReadsStaleParams",
    "Result",
    "RunFailedError",
    "RunState",
    "RunWarning",
    "Shards",
    "Slots",
    "StalenessSchedule",
    "StalenessState",
    "Stream",
    "Summary",
    "SweepResult",
    "Timeline",
    "Trace",
    "Verdict",
    "aggregate_last",
    "agn",
    "align_with_momentum",
    "arrivals",
    "asgd",
    "async_pipeline",
    "asynchronous",
    "average_elastically",
    "average_position",
    "batches",
    "by_fragment",
    "callbacks",
    "chrome_trace",
    "citation",
    "compensate_delay",
    "correct_one_step_delay",
    "cpu_devices",
    "dana_dc",
    "dana_ga",
    "dana_momentum",
    "dana_slim",
    "dana_zero",
    "dc_asgd",
    "decoupled_diloco",
    "delay_adaptive",
    "delay_momentum",
    "delay_stages",
    "delayed_nesterov",
    "diagnostics",
    "diloco",
    "discount_momentum",
    "displacements",
    "downpour",
    "drop_stale",
    "dynamic_periods",
    "dynsgd",
    "eamsgd",
    "easgd",
    "eventlog",
    "fedasync",
    "fedbuff",
    "follow_leader",
    "gap_aware",
    "gap_aware_adam",
    "gather",
    "gather_fresh",
    "gather_per_worker",
    "gem",
    "heloco",
    "hinge_weight",
    "incremental",
    "initial_state",
    "look_ahead_momentum",
    "lsgd",
    "lwp",
    "malenia",
    "match_energy",
    "memory_of",
    "merge_quorum",
    "mix_with_worker",
    "momentum_asgd",
    "momentum_lookahead",
    "multi_asgd",
    "nag_asgd",
    "one_step_delay",
    "per_worker",
    "place",
    "polynomial_weight",
    "pull",
    "pull_to_anchors",
    "rennala",
    "ringleader",
    "ringmaster",
    "run_on_cluster",
    "run_on_devices",
    "scale_by_gap",
    "scale_by_local_steps",
    "scale_by_progress",
    "scale_by_staleness",
    "simulate",
    "stage_momentum",
    "staleness_aware",
    "streaming_diloco",
    "summarise",
    "sweep",
    "take_turns",
    "telemetry",
    "testing",
    "timeline",
    "tune_momentum",
    "verdict",
    "weigh_samples",
    "yellowfin",
]
