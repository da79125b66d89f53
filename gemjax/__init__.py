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
  transformation; ``rules`` has the parts of methods, for chains and rules of your own.
- Engines: ``simulate``, ``run_on_devices``, ``run_on_cluster``, ``sweep``.
- Data: ``Epochs``, ``Shards``, ``Stream``; ``OnHost`` and ``FromSource`` for data that do not fit the device or memory.
- Workers: ``LocalSteps``, ``place``, ``Policy``, ``Members``; ``arrivals`` for virtual clusters.
- Tools: ``Checkpoints``, ``callbacks``, ``memory_of``, ``summarise``, ``verdict``, ``chrome_trace``, ``EventLog``, ``testing``;
  ``citation``. ``python -m gemjax.check`` tests this machine.

Pages: ``README.md`` in the folder of this package is the guide. ``methods/README.md`` has the table of methods, and explains
how to choose one; ``methods/add.md`` how to add one. ``help`` of a name shows its arguments and an example.
"""

import importlib.metadata
import warnings
from typing import Any

from gemjax import arrivals, batches, callbacks, rules, telemetry, testing
from gemjax.batches.from_source import FromSource
from gemjax.batches.functions import BatchesWarning, Computed
from gemjax.batches.on_host import OnHost
from gemjax.batches.per_seed import PerSeed
from gemjax.batches.rows import Epochs, Stream
from gemjax.batches.shards import Shards
from gemjax.engines.checks import RunWarning
from gemjax.engines.cluster.cluster import Cluster
from gemjax.engines.cluster.run import run_on_cluster
from gemjax.engines.devices.hardware.placement import Placement, cpu_devices, place
from gemjax.engines.devices.members import Members
from gemjax.engines.devices.policy import Policy
from gemjax.engines.devices.run import run_on_devices
from gemjax.engines.memory import memory_of
from gemjax.engines.result import Progress, Result, RunFailedError
from gemjax.engines.running.checkpoints import CheckpointError, Checkpoints, CheckpointWriteError
from gemjax.engines.simulator.simulate import simulate
from gemjax.engines.simulator.sweep import SweepResult, sweep
from gemjax.engines.transition import RunState, initial_state
from gemjax.methods.asgd import asgd
from gemjax.methods.citation import citation
from gemjax.methods.dana import dana_dc, dana_slim, dana_zero
from gemjax.methods.dc_asgd import dc_asgd
from gemjax.methods.decoupled_diloco import decoupled_diloco
from gemjax.methods.delay_adaptive import delay_adaptive
from gemjax.methods.delayed_nesterov import delayed_nesterov
from gemjax.methods.diloco import diloco
from gemjax.methods.downpour import agn, downpour
from gemjax.methods.easgd import eamsgd, easgd
from gemjax.methods.fedasync import fedasync
from gemjax.methods.fedbuff import fedbuff
from gemjax.methods.gap_aware import dana_ga, gap_aware
from gemjax.methods.gap_aware_adam import gap_aware_adam
from gemjax.methods.gem import gem
from gemjax.methods.heloco import heloco
from gemjax.methods.incremental import incremental
from gemjax.methods.lsgd import lsgd
from gemjax.methods.lwp import lwp
from gemjax.methods.malenia import malenia
from gemjax.methods.momentum_asgd import momentum_asgd, nag_asgd
from gemjax.methods.momentum_lookahead import momentum_lookahead
from gemjax.methods.multi_asgd import multi_asgd
from gemjax.methods.no_loco import no_loco
from gemjax.methods.one_step_delay import one_step_delay
from gemjax.methods.ordered_momentum import ordered_momentum
from gemjax.methods.pipeline import async_pipeline
from gemjax.methods.rennala import rennala
from gemjax.methods.rescaled_asgd import rescaled_asgd
from gemjax.methods.ringleader import ringleader
from gemjax.methods.ringmaster import ringmaster
from gemjax.methods.staleness_aware import dynsgd, staleness_aware
from gemjax.methods.streaming_diloco import streaming_diloco
from gemjax.methods.yellowfin import yellowfin
from gemjax.protocol.local_steps import LocalSteps
from gemjax.protocol.per_worker import per_worker
from gemjax.protocol.staleness import asynchronous, pull
from gemjax.protocol.trace import Trace
from gemjax.telemetry import eventlog
from gemjax.telemetry.eventlog import EventLog
from gemjax.telemetry.perfetto import chrome_trace
from gemjax.telemetry.summary import Summary, summarise
from gemjax.telemetry.timeline import timeline
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
    "Result",
    "RunFailedError",
    "RunState",
    "RunWarning",
    "Shards",
    "Stream",
    "Summary",
    "SweepResult",
    "Trace",
    "Verdict",
    "agn",
    "arrivals",
    "asgd",
    "async_pipeline",
    "asynchronous",
    "batches",
    "callbacks",
    "chrome_trace",
    "citation",
    "cpu_devices",
    "dana_dc",
    "dana_ga",
    "dana_slim",
    "dana_zero",
    "dc_asgd",
    "decoupled_diloco",
    "delay_adaptive",
    "delayed_nesterov",
    "diloco",
    "downpour",
    "dynsgd",
    "eamsgd",
    "easgd",
    "eventlog",
    "fedasync",
    "fedbuff",
    "gap_aware",
    "gap_aware_adam",
    "gem",
    "heloco",
    "incremental",
    "initial_state",
    "lsgd",
    "lwp",
    "malenia",
    "memory_of",
    "momentum_asgd",
    "momentum_lookahead",
    "multi_asgd",
    "nag_asgd",
    "no_loco",
    "one_step_delay",
    "ordered_momentum",
    "per_worker",
    "place",
    "pull",
    "rennala",
    "rescaled_asgd",
    "ringleader",
    "ringmaster",
    "rules",
    "run_on_cluster",
    "run_on_devices",
    "simulate",
    "staleness_aware",
    "streaming_diloco",
    "summarise",
    "sweep",
    "telemetry",
    "testing",
    "timeline",
    "verdict",
    "yellowfin",
]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    place = rules if name in rules.__all__ else telemetry if name == "Timeline" else None
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        f"gemjax.{name} is {place.__name__}.{name} now; the old name will be removed in the next release",
        DeprecationWarning,
        stacklevel=2,
    )
    return getattr(place, name)
