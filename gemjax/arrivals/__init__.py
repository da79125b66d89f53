"""Models of how long workers compute, which make the traces of simulated runs.

By default a worker starts its next gradient as soon as it has committed, commits take no time, and workers do not wait for
each other. So every worker's finishing times are a running sum of its own durations, and a trace is their merge. It does not
depend on parameters, so it can be made before the run.

Every worker draws from a random stream of its own, keyed by (seed, worker). A longer trace therefore begins with the shorter
one, and adding workers does not change the durations of the others.

Models compose: ``Incidents(Delayed(Scaled(Gamma(4), [1, 1, 1, 3]), up=0.1, down=0.1), [Leaves(worker=2, at=40.0)])``.
"""

from gemjax.arrivals.assigned import Assigned
from gemjax.arrivals.barriers import Barrier, SemiSynchronous
from gemjax.arrivals.base import Arrivals
from gemjax.arrivals.incidents import Incidents, Joins, Leaves, Slows
from gemjax.arrivals.interrupts import Interrupted
from gemjax.arrivals.models import ConstantSpeeds, Exponential, Gamma, LogNormal, Pareto, RoundRobin, Scaled
from gemjax.arrivals.network import Delayed, Queue
from gemjax.arrivals.reads import Adversary, Scattered, Sweep
from gemjax.arrivals.speed_up import SpeedUp, speed_up

__all__ = [
    "Adversary",
    "Arrivals",
    "Assigned",
    "Barrier",
    "ConstantSpeeds",
    "Delayed",
    "Exponential",
    "Gamma",
    "Incidents",
    "Interrupted",
    "Joins",
    "Leaves",
    "LogNormal",
    "Pareto",
    "Queue",
    "RoundRobin",
    "Scaled",
    "Scattered",
    "SemiSynchronous",
    "Slows",
    "SpeedUp",
    "Sweep",
    "speed_up",
]
