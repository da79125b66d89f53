"""Exceptions of signal handlers while data are read, and errors of the data themselves."""

import numpy as np
import pytest
from engines import signals
from engines.signals import PreemptedError, press, raising

import gemjax
from gemjax.engines.devices.scheduler import Scheduler

restored = signals.restored


def test_an_exception_of_a_handler_while_the_first_rows_are_read_is_no_fault_of_the_data():
    reads = []

    class Source:
        def __len__(self):
            return 64

        def __getitem__(self, row):
            if not reads:
                reads.append(row)
                press()
            return np.float32(row)

    with raising(PreemptedError), pytest.raises(PreemptedError):
        gemjax.run_on_devices(
            gemjax.asgd(0.1, 2), lambda params, batch: (params - batch.mean()) ** 2, 0.0,
            gemjax.FromSource(Source(), batch_size=4), 8, policy=gemjax.Policy(retries=3),
        )  # fmt: skip


def test_an_exception_of_a_handler_in_a_dispatch_is_no_fault_of_the_data(monkeypatch):
    dispatch, calls = Scheduler.dispatch, []

    def pressed(self, number):
        calls.append(number)
        if len(calls) == 5:
            press()
        dispatch(self, number)

    monkeypatch.setattr(Scheduler, "dispatch", pressed)
    source = gemjax.FromSource(np.arange(64, dtype=np.float32), batch_size=4)
    with raising(PreemptedError), pytest.raises(PreemptedError) as ended:
        gemjax.run_on_devices(
            gemjax.asgd(0.1, 2), lambda params, batch: (params - batch.mean()) ** 2, 0.0, source, 80,
            policy=gemjax.Policy(retries=3),
        )  # fmt: skip
    assert int(ended.value.result.state.commits) < 80
