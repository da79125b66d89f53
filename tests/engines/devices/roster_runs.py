"""A run that follows a roster, without programs, threads or clocks."""

from gemjax.engines.devices.policy import Policy
from gemjax.engines.devices.roster import Commit, Confirm, Dispatch, Interrupt, Pull, Read, Record, Roster

ERROR = OSError("the device is lost")
FOREVER = float("inf")


class Run:
    """A run whose transport executes each instruction at once, and counts commits by itself."""

    def __init__(
        self,
        num_workers=4,
        num_commits=10**6,
        *,
        devices=None,
        absent=(),
        behind=None,
        commits=0,
        num_blocks=0,
        **policy,
    ):
        self.roster = Roster(
            Policy(**policy), num_commits, commits=commits, behind=behind or [0] * num_workers, steps=[0] * num_workers,
            devices=devices or range(num_workers), absent=absent, num_blocks=num_blocks,
        )  # fmt: skip
        self.now, self.applied, self.pulled = 0.0, commits, [commits - since for since in behind or [0] * num_workers]
        self.computing, self.reports, self.committed, self.staleness = {}, [], [], []
        self.unread, self.lost, self.refuses = set(), set(), False  # Workers without a batch, or without a device.
        self.undeliverable = set()

    def go(self):
        """Execute instructions until there are none, and return them abbreviated."""
        done = []
        for _ in range(1000):
            for worker in self.roster.unprepared:
                if worker not in self.unread:
                    self.roster.prepared(worker)
            instruction = self.roster.instruct(self.now)
            if instruction is None:
                return done
            if (outcome := self._execute(instruction)) is not None:
                done.append(outcome)
        raise AssertionError(f"instructions without end: {done[-8:]}")

    def _execute(self, instruction):
        match instruction:
            case Record(event, worker, step):
                assert step == self.roster.steps[worker]
                return event, worker
            case Dispatch(worker, step, number):
                assert worker not in self.computing, "dispatched twice at the same time"
                assert step == self.roster.steps[worker]
                self.computing[worker] = number
                return "dispatch", worker
            case Commit(worker, gradient):
                assert worker not in self.computing, "a view is sent to a worker that computes"
                self._commit(worker, gradient)
                return "commit", worker
            case Interrupt(worker):
                assert worker in self.computing, "nothing to interrupt"
                return "call back", worker
            case Confirm():
                while self.reports:
                    self._read()
                self.roster.confirmed()
                return None
            case Pull(worker):
                assert worker not in self.computing, "a view is sent to a worker that computes"
                if worker in self.lost:
                    self.roster.fault(worker, ERROR)
                else:
                    self.pulled[worker] = self.applied
                    self.roster.pulled(worker)
                return "pull", worker
            case Read(worker, block):
                assert worker not in self.computing, "a worker that computes reads"
                self.roster.block_read(worker)
                return f"read {block}", worker

    def _commit(self, worker, gradient):
        assert gradient not in self.committed, "committed twice"
        self.committed.append(gradient)
        self.staleness.append(self.applied - self.pulled[worker])
        self.reports.append((self.applied, self.refuses))
        self.applied += not self.refuses
        self.pulled[worker] = self.applied
        self.roster.steps[worker] += 1
        self.roster.committed(worker)
        if worker in self.undeliverable:
            self.roster.fault(worker, ERROR)

    def arrive(self, worker, error=None):
        number = self.computing.pop(worker)
        self.roster.arrived(worker, number, self.now, (worker, number), error)
        return self.go()

    def read(self):
        self._read()
        return self.go()

    def _read(self):
        commits, refused = self.reports.pop(0)
        if refused:
            self.roster.refused(commits)

    def wait(self, seconds, step=0.25):
        """Poll for some seconds; workers that compute beyond their deadline are silent."""
        done = []
        for _ in range(round(seconds / step)):
            self.now += step
            for worker in self.roster.begin_round(self.now):
                if worker in self.computing:
                    self.roster.fell_silent(worker)
            done += self.go()
        return done

    def join(self, worker):
        self.roster.join(worker)
        return self.go()

    def leave(self, worker):
        self.roster.leave(worker)
        return self.go()
