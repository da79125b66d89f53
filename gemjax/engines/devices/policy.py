"""What the scheduler of a run on devices does about staleness, silence and failure: rules, without threads or clocks."""

import dataclasses
import math
from collections.abc import Collection


@dataclasses.dataclass(frozen=True)
class Policy:
    """When gradients are begun and committed, and when a worker is given up.

    **Pacing.** With ``max_staleness=K`` no commit is ever staler than K, and nothing is thrown away for it: a worker is not
    sent off while more than K others are out, and a gradient that overtakes waits where its commit would push one that is
    still out beyond the bound. With K < N - 1 some workers therefore stand idle at any time. (Dropping instead of pacing is a
    rule of the method: :func:`gemjax.drop_stale`.)

    **Quorum.** With ``quorum=Q`` gradients are held until Q are at hand, then for another ``grace`` seconds, or until no worker
    is out any more; then all of them commit, one after the other, and only then do their workers pull. Q = N is a barrier.

    **Faults.** A worker that raises pulls afresh and tries its step again, ``retries`` times in a row; then it is retired. So
    is one whose batch a source (:class:`gemjax.FromSource`) cannot read, or to which nothing can be sent any more: its
    device is lost. One that has been silent for ``deadline`` seconds is retired at once; should it finish after all, what it
    computed is thrown away, it pulls and goes on. Time in which the run itself could not listen does not count: callbacks,
    a process or a machine that was stopped.

    Args:
      max_staleness: K, a non-negative int; ``None`` (default) sets no bound. Not together with a quorum.
      quorum: Q, a positive int, default 1: whoever finishes commits at once.
      grace: seconds, not negative, default 0.
      deadline: seconds from the dispatch of a gradient to its arrival, positive; ``None`` (default) waits for ever. It must be
        longer than the slowest worker's gradient takes.
      retries: a non-negative int, default 2.

    Raises:
      ValueError: for a value that is not among these.

    >>> Policy(max_staleness=3).admits(out=4), Policy(max_staleness=3).admits(out=3)
    (False, True)
    >>> Policy(max_staleness=3).may_commit(clock=7, pulled_at=[4]), Policy(max_staleness=3).may_commit(clock=6, pulled_at=[4])
    (False, True)
    """

    max_staleness: int | None = None
    quorum: int = 1
    grace: float = 0.0
    deadline: float | None = None
    retries: int = 2

    def __post_init__(self):
        for name, lowest in (("max_staleness", 0), ("quorum", 1), ("retries", 0)):
            value = getattr(self, name)
            if value is None and name == "max_staleness":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise ValueError(f"{name} must be an int of at least {lowest}, got {value!r}")
        if not (math.isfinite(self.grace) and self.grace >= 0):
            raise ValueError(f"grace must be a number of seconds, not negative, got {self.grace!r}")
        if self.deadline is not None and not (math.isfinite(self.deadline) and self.deadline > 0):
            raise ValueError(f"deadline must be a positive number of seconds or None, got {self.deadline!r}")
        if self.max_staleness is not None and self.quorum > 1:
            raise ValueError("max_staleness and quorum both decide when a gradient may commit; give one of them")
        if self.grace and self.quorum == 1:
            raise ValueError("grace is the time after a quorum; give quorum, too")

    def check(self, num_workers: int) -> None:
        """Raises ``ValueError`` if the policy cannot be that of a run with so many workers."""
        if self.quorum > num_workers:
            raise ValueError(f"quorum={self.quorum}, but the run has {num_workers} workers")

    def admits(self, out: int) -> bool:
        """Whether a worker may be sent off while ``out`` others are out."""
        return self.max_staleness is None or out <= self.max_staleness

    def may_commit(self, clock: int, pulled_at: Collection[int]) -> bool:
        """Whether a commit at ``clock`` leaves time for all others that are out, which pulled at ``pulled_at``.

        The one that pulled first is to commit next, and so on: the i-th then finds the clock at clock + 1 + i.
        """
        if self.max_staleness is None:
            return True
        return all(clock + 1 + i - pulled <= self.max_staleness for i, pulled in enumerate(sorted(pulled_at)))
