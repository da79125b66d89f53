"""When a run is evaluated."""

import numpy as np

import gemjax
from train.config.config import Config

EVALUATIONS = 20  # In a run, if the configuration does not say otherwise.


def evaluations(config: Config, num_commits: int, trace: gemjax.Trace | None = None) -> np.ndarray:
    """After how many commits a run is evaluated, in increasing order; the last is its end.

    Args:
      config: asks for one every so many commits, or every so many virtual seconds.
      num_commits: of the whole run, positive.
      trace: of a simulated run; its times are the virtual ones.

    Returns:
      With `--eval-every` its multiples. With `--eval-seconds` the last commit that is not later than each of its multiples,
      once: where nobody committed between two of them, there is nothing new to evaluate.

    >>> trace = gemjax.Trace([0, 0, 0, 0, 0], time=[0.5, 1.0, 1.5, 4.0, 4.5])
    >>> evaluations(Config(engine="simulate", eval_seconds=1.0), 5, trace).tolist()
    [2, 3, 4, 5]
    """
    if config.eval_seconds is not None and trace is not None:
        seconds = config.eval_seconds
        interval = np.ceil(trace.time / seconds)  # It ends with the multiple that it is called by.
        interval += trace.time > interval * seconds  # Where the quotient was rounded down to a whole number, or up.
        interval -= trace.time <= (interval - 1) * seconds
        found = np.flatnonzero(interval[1:] > interval[:-1]) + 1
    else:
        every = config.eval_every or max(1, num_commits // EVALUATIONS)
        found = np.arange(every, num_commits, every)
    return np.append(found, num_commits)
