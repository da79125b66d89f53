"""The watchdog of a run on devices."""

LONGEST_BEAT = 1.0  # Seconds.


class Watchdog:
    """A clock that runs only while the scheduler is polling; deadlines are times of this clock.

    Only time in which the scheduler could have received a gradient counts as silence. A callback, or a suspended process or
    machine, stops the scheduler and usually the workers; a healthy worker must not be given up for that. The scheduler
    therefore never waits longer than one *beat*: a quarter of the deadline, but at most one second, also without a deadline. If
    more than two beats have passed since the last look, the scheduler was not polling: the clock advances by one beat only, and
    no worker is given up during the next one.

    Args:
      seconds: longest time from the dispatch of a gradient to its arrival; ``None`` for no limit.
      at: the time now, which the caller reads.

    >>> watchdog = Watchdog(None)
    >>> watchdog.deadline(), watchdog.look(at=60.0)
    (inf, False)
    """

    def __init__(self, seconds: float | None, at: float = 0.0):
        self.seconds = float("inf") if seconds is None else seconds
        self.beat = min(LONGEST_BEAT, self.seconds / 4)
        self.polled = 0.0  # Seconds of polling, the time of this clock.
        self.skipped = 0.0  # Seconds before the last look that the clock does not count.
        self._looked_at = at
        self._spares_until = 0.0
        self._spares = False  # True from an interruption until its period is over; others do not extend it.

    def deadline(self) -> float:
        """Return the deadline for a gradient dispatched now."""
        return self.polled + self.seconds

    def look(self, at: float) -> bool:
        """Advance the clock, once per round of the scheduler; return True if overdue workers may be given up."""
        passed, self._looked_at = at - self._looked_at, at
        counted = passed if passed <= 2 * self.beat else self.beat
        self.skipped = passed - counted
        if self.skipped:
            self._spare(2 * self.beat)
        self.polled += counted
        if self.polled < self._spares_until:
            return False
        self._spares = self._spares and self.skipped > 0
        return True

    def resume(self, at: float) -> None:
        """Do not count the time since the last look, in which the scheduler was not polling."""
        self._looked_at = at
        self._spare(self.beat)

    def wait(self, expires: float) -> float:
        """Return the seconds to poll before the next look if the first deadline is ``expires``."""
        return min(self.beat, max(0.0, max(expires, self._spares_until) - self.polled))

    def _spare(self, seconds: float) -> None:
        if not self._spares:
            self._spares, self._spares_until = True, self.polled + seconds
