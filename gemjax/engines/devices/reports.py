"""Commits that are dispatched, and whose reports are still to be read."""

import collections

from gemjax.engines.devices.hardware.programs import Programs
from gemjax.engines.devices.records import Pending, Records


class Reports:
    """Reads what commits report, in their order, and has it noted."""

    def __init__(self, programs: Programs, records: Records):
        self.programs, self.records = programs, records
        self.pending: collections.deque[Pending] = collections.deque()

    def read_next(self) -> None:
        """Reads the report of the oldest commit; waits for it."""
        pending = self.pending.popleft()
        self.records.commit(pending, self.programs.read(pending.report))

    def read_all(self) -> None:
        """Reads all reports that are still to come; raises what one of them does, the first, when all have been read."""
        failure: Exception | None = None
        while self.pending:
            try:
                self.read_next()
            except Exception as error:  # The commits behind it are made, too.
                failure = failure or error
        if failure is not None:
            raise failure
