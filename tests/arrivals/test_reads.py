"""Models of inconsistent reads, and the traces that they make."""

import numpy as np
import pytest

import gemjax
from gemjax import arrivals


@pytest.mark.parametrize("kind", [arrivals.Sweep, arrivals.Scattered])
@pytest.mark.parametrize(
    "model", [arrivals.Exponential(5), arrivals.Barrier(arrivals.Gamma(3)), arrivals.RoundRobin(4)]
)
def test_reads_keep_the_order_of_commits_and_lie_between_pull_and_commit(kind, model):
    plain, trace = model.trace(200), kind(model, num_blocks=6, span=0.8).trace(200)
    np.testing.assert_array_equal(trace.worker, plain.worker)
    np.testing.assert_array_equal(trace.time, plain.time)
    assert (trace.read_at >= plain.pulled_at[:, None]).all()
    assert (trace.read_at <= np.arange(200)[:, None]).all()
    assert kind(model, num_blocks=6, span=0.8).trace(80) == trace.first(80)
    if kind is arrivals.Sweep:
        np.testing.assert_array_equal(trace.pulled_at, plain.pulled_at)  # Its first block is read at the pull.
        assert (np.diff(trace.read_at, axis=1) >= 0).all()


def test_a_wider_span_reads_newer_blocks():
    newest = [arrivals.Sweep(arrivals.Gamma(8), 4, span).trace(400).read_at.mean() for span in (0.0, 0.3, 1.0)]
    assert newest[0] < newest[1] < newest[2]


def test_the_adversary_holds_the_gradients_that_it_is_told_to():
    trace = arrivals.Adversary(arrivals.Gamma(3), hold=20, every=2).trace(600)
    of_first = trace.staleness[trace.worker == 0]
    assert (of_first[1::2] >= 20).all()
    assert (of_first[::2] < 20).all()
    assert arrivals.Adversary(arrivals.Gamma(3), hold=0).trace(100) == arrivals.Gamma(3).trace(100)
    with pytest.raises(ValueError, match="num_workers"):
        arrivals.Adversary(arrivals.Gamma(1), hold=2)


def test_a_trace_with_reads_is_saved_and_checked(tmp_path):
    trace = arrivals.Sweep(arrivals.Gamma(3), 4).trace(30)
    trace.save(tmp_path / "trace.npz")
    assert gemjax.Trace.load(tmp_path / "trace.npz") == trace
    assert trace != arrivals.Gamma(3).trace(30)
    with pytest.raises(ValueError, match="row 1"):
        gemjax.Trace([0, 1], read_at=[[0, 0], [0, 2]])
    with pytest.raises(ValueError, match="row 1"):
        gemjax.Trace([0, 1], pulled_at=[0, 0], read_at=[[0, 0], [1, 1]])
