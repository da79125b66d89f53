"""Rules of a run on devices for staleness, silence and failures."""

import dataclasses
from collections.abc import Iterable

from gemjax.protocol.checks import check_at_least, check_positive, integer


@dataclasses.dataclass(frozen=True)
class Policy:
    """Rules for the dispatch and the commit of gradients, and for giving up workers.

    **Pacing.** With ``max_staleness=K`` the staleness of every commit is at most K, and no gradient is discarded for it. No
    worker is dispatched while more than K others are in flight (dispatched, but not yet committed), and a gradient waits if its
    commit would make one in flight too stale. With K < N - 1 some workers are therefore idle at any time. (Dropping
    instead is a rule of the method: :func:`gemjax.rules.drop_stale`.)

    **Quorum.** With ``quorum=Q`` gradients wait until there are Q of them, then for another ``grace`` seconds, or until no
    worker computes. Then all of them commit one after the other, and only then do their workers pull. Q = N is a barrier,
    the default of a method that is defined in rounds (:func:`gemjax.diloco`, :func:`gemjax.streaming_diloco`). A slower worker
    commits in a later round, unless ``interrupt=Q`` calls it back: then the first Q gradients make the round, no gradient is
    of an earlier one, and the run is m-synchronous SGD (in the simulator ``gemjax.arrivals.Barrier(model, quorum=Q)``).

    **Interruption.** With ``interrupt=R`` a worker whose staleness reaches R while it computes is called back: what it has
    computed is dropped, it pulls, and begins its step again (algorithm 2 of Ringmaster ASGD; in the simulator
    :class:`gemjax.arrivals.Interrupted`). Every commit then has a staleness below R. Local steps end at the next step, because
    each is a program of its own in such a run. A single gradient is finished on its device, but neither sent nor committed.
    ``history["interrupted"]`` has the interruptions since the worker's previous commit.

    **Faults.** A worker that raises pulls and repeats its step, up to ``retries`` times in a row; then it is retired. The same
    holds if a source (:class:`gemjax.FromSource`) cannot read its batch, or if nothing can be sent to its device. A worker that
    is silent for ``deadline`` seconds is given up at once. If it finishes after all, its gradient is discarded, and the worker
    pulls and continues. If all workers that still take part miss the deadline more than ``retries`` times each, and no gradient
    is in time for a minute, the run fails. Time in which the run was not polling does not count: callbacks, or a suspended
    process or machine.

    Args:
      max_staleness: K, a non-negative int; ``None`` (default) sets no bound. It cannot be combined with a quorum.
      quorum: Q, a positive int. ``None`` (default) is N for a method that is defined in rounds, unless ``max_staleness`` or
        ``interrupt`` is given; else 1: each gradient commits when it is finished.
      grace: seconds, not negative, default 0.
      deadline: longest time in seconds from the dispatch of a gradient to its arrival, and for the batch of a worker that waits
        for it to be read, positive; ``None`` (default) sets no limit. It must be longer than the slowest worker needs.
      retries: a non-negative int, default 2.
      interrupt: R, a positive int; ``None`` (default) interrupts no worker. It cannot be combined with ``max_staleness``, which
        discards nothing. With a quorum it must be at least Q, so that a round is not called back while it commits.

    Raises:
      ValueError: if a value is outside its range.

    >>> Policy(max_staleness=3).admits(in_flight=4), Policy(max_staleness=3).admits(in_flight=3)
    (False, True)
    >>> Policy(max_staleness=3).may_commit(clock=7, pulled_at=[4]), Policy(max_staleness=3).may_commit(clock=6, pulled_at=[4])
    (False, True)
    """

    max_staleness: int | None = None
    quorum: int | None = None
    grace: float = 0.0
    deadline: float | None = None
    retries: int = 2
    interrupt: int | None = None

    def __post_init__(self):
        for name, lowest in (("max_staleness", 0), ("quorum", 1), ("retries", 0), ("interrupt", 1)):
            value = getattr(self, name)
            if value is not None or name == "retries":
                integer(name, value, lowest)
        check_at_least("grace", self.grace, 0.0)
        if self.deadline is not None:
            check_positive("deadline", self.deadline)
        waits = self.quorum is not None and self.quorum > 1
        if self.max_staleness is not None and (waits or self.interrupt is not None):
            raise ValueError("max_staleness= goes with neither quorum= nor interrupt=; leave out the one or the others")
        if self.interrupt is not None and self.interrupt < (self.quorum or 1):
            raise ValueError(f"interrupt={self.interrupt} must be at least the quorum, got quorum={self.quorum}")
        if self.grace and not waits:
            raise ValueError("grace is the time after a quorum; give quorum= as well")

    def resolved(self, num_workers: int, in_rounds: bool) -> "Policy":
        """Return the policy with its default quorum, for a method that is or is not defined in rounds.

        Raises:
          ValueError: if its quorum is larger than ``num_workers``.

        >>> Policy(retries=0).resolved(4, in_rounds=True).quorum, Policy(max_staleness=2).resolved(4, in_rounds=True).quorum
        (4, 1)
        """
        if self.quorum is None:
            barrier = in_rounds and self.max_staleness is None and self.interrupt is None
            return dataclasses.replace(self, quorum=num_workers if barrier else 1)
        if self.quorum > num_workers:
            raise ValueError(f"quorum={self.quorum}, but the run has {num_workers} workers")
        return self

    def admits(self, in_flight: int) -> bool:
        """Return True if a worker may be dispatched while ``in_flight`` others compute or wait to commit."""
        return self.max_staleness is None or in_flight <= self.max_staleness

    def interrupts(self, staleness: int) -> bool:
        """Return True if a worker is called back at this staleness."""
        return self.interrupt is not None and staleness >= self.interrupt

    def may_commit(self, clock: int, pulled_at: Iterable[int]) -> bool:
        """Return True if a commit at ``clock`` lets all others in flight, which pulled at ``pulled_at``, keep the bound.

        They keep it if they can commit in the order of their pulls, the i-th of them at clock + 1 + i.
        """
        if self.max_staleness is None:
            return True
        return all(clock + 1 + i - pulled <= self.max_staleness for i, pulled in enumerate(sorted(pulled_at)))
