"""How long a worker has been silent: the time in which it could have been heard."""

import time

LONGEST_BEAT = 1.0  # Seconds.


class Deadlines:
    """A clock that goes on only while the scheduler listens; deadlines are times of it.

    Silence means something only while somebody listens. A callback, a process or a machine that was stopped keep the scheduler
    from listening, and mostly workers from computing, too: a healthy one must not be given up for that. So the scheduler never
    waits for longer than a *beat* at a time, a quarter of the deadline and a second at most. If it finds at its next look
    that much more time has passed, it has not listened: the clock goes on by one beat, and for another one nobody is
    given up.

    Args:
      seconds: from the dispatch of a gradient to its arrival, at most; ``None`` for ever.

    >>> deadlines = Deadlines(None)
    >>> deadlines.from_now(), deadlines.look()
    (inf, False)
    """

    def __init__(self, seconds: float | None):
        self.seconds = seconds
        self.beat = float("inf") if seconds is None else min(LONGEST_BEAT, seconds / 4)
        self.now = 0.0  # Seconds of listening.
        self._looked_at = time.perf_counter()
        self._spares_until = 0.0
        self._spares = False  # Since the last time that nobody listened; further such times make it no longer.

    def from_now(self) -> float:
        """When somebody who begins now is to be there."""
        return float("inf") if self.seconds is None else self.now + self.seconds

    def look(self) -> bool:
        """Lets the clock go on, once in every round of the scheduler; whether those who are overdue may be given up."""
        if self.seconds is None:
            return False
        at = time.perf_counter()
        passed, self._looked_at = at - self._looked_at, at
        listened = passed <= 2 * self.beat
        if not listened:
            passed = self.beat
            self._spare(2 * self.beat)
        self.now += passed
        if self.now < self._spares_until:
            return False
        self._spares = self._spares and not listened
        return True

    def resume(self) -> None:
        """Leaves out the time since the last look, in which something else was done."""
        self._looked_at = time.perf_counter()
        self._spare(self.beat)

    def wait(self, expires: float) -> float:
        """Seconds to listen before the next look, where the first who is awaited is to be there at ``expires``."""
        return min(self.beat, max(0.0, max(expires, self._spares_until) - self.now))

    def _spare(self, seconds: float) -> None:
        if not self._spares:
            self._spares, self._spares_until = True, self.now + seconds
