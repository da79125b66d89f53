"""gemjax: asynchronous distributed gradient descent in JAX."""

import importlib.metadata

from gemjax import arrivals, eventlog, telemetry, testing
from gemjax.asynchrony import Verdict, verdict
from gemjax.batches import Computed, Epochs, Stream
from gemjax.checkpoints import CheckpointError, Checkpoints, CheckpointWriteError
from gemjax.engines.devices import run_on_devices
from gemjax.engines.memory import memory_of
from gemjax.engines.result import Progress, Result, RunFailedError, RunWarning
from gemjax.engines.simulate import simulate
from gemjax.engines.sweep import SweepResult, sweep
from gemjax.engines.transition import RunState, initial_state
from gemjax.eventlog import EventLog
from gemjax.from_source import FromSource
from gemjax.local_steps import LocalSteps, displacements, pull_to_anchors
from gemjax.members import Members
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
from gemjax.on_host import OnHost
from gemjax.per_seed import PerSeed
from gemjax.per_worker import per_worker
from gemjax.perfetto import chrome_trace
from gemjax.placement import Placement, cpu_devices, place
from gemjax.policies import Policy
from gemjax.shards import Shards
from gemjax.slots import Slots
from gemjax.staleness import StalenessState, asynchronous, pull
from gemjax.summary import Summary, summarise
from gemjax.telemetry import Timeline, timeline
from gemjax.trace import Trace

__version__ = importlib.metadata.version("gemjax")

__all__ = [
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
