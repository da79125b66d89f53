"""Asynchronous distributed gradient descent in JAX.

Workers share one set of parameters, the central variable. A worker pulls a view of it, computes a gradient there and commits
it; the commits of others in the meantime are its staleness. A method says what to do about staleness. Each method is an optax
transformation. There are three ways to use one.

**On the devices of this host**, each gradient committed when it is finished (``gemjax.cpu_devices(n)`` first makes ``n``
devices of a CPU):

>>> import gemjax, jax, jax.numpy as jnp, optax
>>> loss_fn = lambda params, batch: jnp.mean((params["w"] - batch) ** 2)
>>> batches = lambda worker, step: jnp.array([1.0, 2.0])
>>> tx, params = gemjax.gem(learning_rate=0.05, num_workers=2), {"w": jnp.zeros(2)}
>>> result = gemjax.run_on_devices(tx, loss_fn, params, batches, num_commits=200)

**In the simulator**, hundreds of virtual workers in one compiled program; a run on devices is replayed by its trace:

>>> trace = gemjax.arrivals.Gamma(64).trace(2000)
>>> simulated = gemjax.simulate(gemjax.gem(0.05, num_workers=64), loss_fn, params, batches, trace)
>>> replay = gemjax.simulate(tx, loss_fn, params, batches, result.trace)
>>> bool(jnp.allclose(replay.params["w"], result.params["w"], atol=1e-3))
True

**In a loop of your own**, by the protocol that the engines use:

>>> state = tx.init(params)
>>> view, state = gemjax.pull(state, params, worker=1)
>>> grads = jax.grad(loss_fn)(view, batches(1, 0))
>>> updates, state = tx.update(grads, state, params, worker=1)
>>> params = optax.apply_updates(params, updates)

Where things are:

- Methods: ``gem``, ``asgd``, ``dana_zero``, ``lsgd`` and the others; ``asynchronous`` and ``per_worker`` around any optax
  transformation.
- Engines: ``simulate``, ``run_on_devices``, ``sweep``.
- Data: ``Epochs``, ``Shards``, ``Stream``; ``OnHost`` and ``FromSource`` for data that do not fit the device or memory.
- Workers: ``LocalSteps``, ``place``, ``Policy``, ``Members``; ``arrivals`` for virtual clusters.
- Tools: ``Checkpoints``, ``callbacks``, ``memory_of``, ``summarise``, ``verdict``, ``chrome_trace``, ``EventLog``, ``testing``;
  ``python -m gemjax.check`` tests this machine.

Pages: ``README.md`` in the folder of this package is the guide; ``methods/README.md`` has the table of methods, how to choose
one and how to add one. ``help`` of a name has its arguments and an example.
"""

import importlib.metadata

from gemjax import arrivals, batches, callbacks, telemetry, testing
from gemjax.batches.from_source import FromSource
from gemjax.batches.functions import BatchesWarning
from gemjax.batches.on_host import OnHost
from gemjax.batches.rows import Computed, Epochs, Stream
from gemjax.batches.shards import Shards
from gemjax.checkpoints import CheckpointError, Checkpoints, CheckpointWriteError
from gemjax.engines.devices.hardware.placement import Placement, cpu_devices, place
from gemjax.engines.devices.members import Members
from gemjax.engines.devices.policy import Policy
from gemjax.engines.devices.run import run_on_devices
from gemjax.engines.memory import memory_of
from gemjax.engines.per_seed import PerSeed
from gemjax.engines.result import Progress, Result, RunFailedError, RunWarning
from gemjax.engines.simulator.simulate import simulate
from gemjax.engines.simulator.sweep import SweepResult, sweep
from gemjax.engines.transition import RunState, initial_state
from gemjax.methods.asgd import asgd
from gemjax.methods.dana import dana_dc, dana_momentum, dana_slim, dana_zero
from gemjax.methods.dc_asgd import compensate_delay, dc_asgd
from gemjax.methods.delay_adaptive import delay_adaptive
from gemjax.methods.delayed_nesterov import delay_momentum, delayed_nesterov, dynamic_periods
from gemjax.methods.diloco import diloco
from gemjax.methods.downpour import agn, downpour, scale_by_local_steps
from gemjax.methods.easgd import average_elastically, eamsgd, easgd
from gemjax.methods.gap_aware import dana_ga, gap_aware, scale_by_gap
from gemjax.methods.gap_aware_adam import gap_aware_adam
from gemjax.methods.gem import gem, match_energy
from gemjax.methods.heloco import align_with_momentum, heloco
from gemjax.methods.lsgd import average_position, follow_leader, lsgd
from gemjax.methods.lwp import lwp
from gemjax.methods.momentum_asgd import look_ahead_momentum, momentum_asgd, nag_asgd
from gemjax.methods.momentum_lookahead import discount_momentum, momentum_lookahead
from gemjax.methods.multi_asgd import multi_asgd
from gemjax.methods.one_step_delay import correct_one_step_delay, one_step_delay
from gemjax.methods.rennala import gather_fresh, rennala
from gemjax.methods.ringmaster import drop_stale, ringmaster
from gemjax.methods.staleness_aware import StalenessSchedule, dynsgd, scale_by_staleness, staleness_aware
from gemjax.methods.yellowfin import tune_momentum, yellowfin
from gemjax.protocol import diagnostics
from gemjax.protocol.hooks import ReadsStaleParams
from gemjax.protocol.local_steps import LocalSteps, displacements, pull_to_anchors
from gemjax.protocol.per_worker import per_worker
from gemjax.protocol.slots import Slots
from gemjax.protocol.staleness import StalenessState, asynchronous, pull
from gemjax.protocol.trace import Trace
from gemjax.telemetry import eventlog
from gemjax.telemetry.eventlog import EventLog
from gemjax.telemetry.perfetto import chrome_trace
from gemjax.telemetry.summary import Summary, summarise
from gemjax.telemetry.timeline import Timeline, timeline
from gemjax.telemetry.verdict import Verdict, verdict

try:
    __version__ = importlib.metadata.version("gemjax")
except importlib.metadata.PackageNotFoundError:  # A checkout that is on the path but not installed.
    __version__ = "0+unknown"

__all__ = [
    "BatchesWarning",
    "CheckpointError",
    "CheckpointWriteError",
    "Checkpoints",
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
    "agn",
    "align_with_momentum",
    "arrivals",
    "asgd",
    "asynchronous",
    "average_elastically",
    "average_position",
    "batches",
    "callbacks",
    "chrome_trace",
    "compensate_delay",
    "correct_one_step_delay",
    "cpu_devices",
    "dana_dc",
    "dana_ga",
    "dana_momentum",
    "dana_slim",
    "dana_zero",
    "dc_asgd",
    "delay_adaptive",
    "delay_momentum",
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
    "follow_leader",
    "gap_aware",
    "gap_aware_adam",
    "gather_fresh",
    "gem",
    "heloco",
    "initial_state",
    "look_ahead_momentum",
    "lsgd",
    "lwp",
    "match_energy",
    "memory_of",
    "momentum_asgd",
    "momentum_lookahead",
    "multi_asgd",
    "nag_asgd",
    "one_step_delay",
    "per_worker",
    "place",
    "pull",
    "pull_to_anchors",
    "rennala",
    "ringmaster",
    "run_on_devices",
    "scale_by_gap",
    "scale_by_local_steps",
    "scale_by_staleness",
    "simulate",
    "staleness_aware",
    "summarise",
    "sweep",
    "telemetry",
    "testing",
    "timeline",
    "tune_momentum",
    "verdict",
    "yellowfin",
]
