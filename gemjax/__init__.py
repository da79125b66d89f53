"""gemjax: asynchronous distributed gradient descent in JAX."""

from gemjax import arrivals, eventlog
from gemjax.batches import Computed, Epochs
from gemjax.checkpoints import Checkpoints
from gemjax.engines.devices import run_on_devices
from gemjax.engines.result import Progress, Result, RunFailedError
from gemjax.engines.simulate import simulate
from gemjax.engines.transition import RunState, initial_state
from gemjax.eventlog import EventLog
from gemjax.methods.asgd import asgd
from gemjax.methods.dana import dana_dc, dana_momentum, dana_slim, dana_zero
from gemjax.methods.dc_asgd import compensate_delay, dc_asgd
from gemjax.methods.delay_adaptive import delay_adaptive
from gemjax.methods.gap_aware import dana_ga, gap_aware, scale_by_gap
from gemjax.methods.gap_aware_adam import gap_aware_adam
from gemjax.methods.gem import gem, match_energy
from gemjax.methods.lwp import lwp
from gemjax.methods.momentum_asgd import look_ahead_momentum, momentum_asgd, nag_asgd
from gemjax.methods.multi_asgd import multi_asgd
from gemjax.methods.one_step_delay import correct_one_step_delay, one_step_delay
from gemjax.methods.staleness_aware import StalenessSchedule, dynsgd, scale_by_staleness, staleness_aware
from gemjax.methods.yellowfin import tune_momentum, yellowfin
from gemjax.per_worker import per_worker
from gemjax.placement import Placement, cpu_devices, place
from gemjax.slots import Slots
from gemjax.staleness import StalenessState, asynchronous, pull
from gemjax.trace import Trace

__all__ = [
    # Runs.
    "Checkpoints",
    "Computed",
    "Epochs",
    "EventLog",
    "Placement",
    "Progress",
    "Result",
    "RunFailedError",
    "RunState",
    # Protocol.
    "Slots",
    "StalenessSchedule",
    "StalenessState",
    "Trace",
    "arrivals",
    # Methods and their atoms.
    "asgd",
    "asynchronous",
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
    "dynsgd",
    "eventlog",
    "gap_aware",
    "gap_aware_adam",
    "gem",
    "initial_state",
    "look_ahead_momentum",
    "lwp",
    "match_energy",
    "momentum_asgd",
    "multi_asgd",
    "nag_asgd",
    "one_step_delay",
    "per_worker",
    "place",
    "pull",
    "run_on_devices",
    "scale_by_gap",
    "scale_by_staleness",
    "simulate",
    "staleness_aware",
    "tune_momentum",
    "yellowfin",
]
