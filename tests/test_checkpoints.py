"""Checkpoints: what was saved comes back, and nothing else is taken for it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gemjax
from gemjax import arrivals, testing

LOSS, PARAMS, BATCHES = testing.quadratic()


def method(num_workers=3):
    return optax.chain(optax.clip_by_global_norm(1.0), gemjax.gem(0.1, num_workers=num_workers))


def like(num_workers=3, tx=None):
    return gemjax.initial_state(tx or method(num_workers), PARAMS, num_workers=num_workers)


def test_state_and_trace_come_back_and_the_run_goes_on_bit_for_bit(tmp_path):
    trace = arrivals.Gamma(3).trace(40)
    tx = method()
    whole = gemjax.simulate(tx, LOSS, PARAMS, BATCHES, trace)
    half = gemjax.simulate(tx, LOSS, PARAMS, BATCHES, trace, chunk_size=20, callback=lambda progress: True)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(half.state, trace.first(20), {"note": "half"})
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        state, recorded, metadata = checkpoints.load(like())
    assert recorded == trace.first(20)
    assert metadata == {"note": "half"}
    rest = gemjax.simulate(tx, LOSS, PARAMS, BATCHES, trace, state=state)
    for one, other in zip(jax.tree.leaves(rest.state), jax.tree.leaves(whole.state), strict=True):
        np.testing.assert_array_equal(one, other)
    assert int(rest.opt_state[1].clock) == 40


def test_only_the_newest_are_kept(tmp_path):
    with gemjax.Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.latest is None
        for commits in (0, 3, 9):
            checkpoints.save(like(), arrivals.Gamma(3).trace(commits))
        assert checkpoints.latest == 9
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "9"]


def test_bfloat16_and_empty_traces_come_back(tmp_path):
    params = {"w": jnp.array([1.5, -2.0], jnp.bfloat16)}
    state = gemjax.initial_state(gemjax.gem(0.1, num_workers=2), params, num_workers=2)
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state, gemjax.Trace(worker=[], num_workers=2))
        loaded, trace, _ = checkpoints.load(state)
    assert len(trace) == 0
    assert loaded.params["w"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(loaded.params["w"], params["w"])


def test_no_checkpoint_is_an_error(tmp_path):
    with gemjax.Checkpoints(tmp_path) as checkpoints, pytest.raises(FileNotFoundError, match="no checkpoint"):
        checkpoints.load(like())


@pytest.mark.parametrize(
    "other", [lambda: like(tx=gemjax.asgd(0.1, num_workers=3)), lambda: like(num_workers=4)], ids=["method", "workers"]
)
def test_a_checkpoint_of_something_else_is_refused(tmp_path, other):
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        with pytest.raises(ValueError, match=r"another method, model or number of workers.*saved .*expected "):
            checkpoints.load(other())


def test_a_checkpoint_of_an_older_format_is_refused(tmp_path, monkeypatch):
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        with monkeypatch.context() as patched:
            patched.setattr("gemjax.checkpoints.FORMAT", "gemjax.run.1")
            checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        with pytest.raises(ValueError, match=r"checkpoint 5 is of the format gemjax\.run\.1, .* reads gemjax\.run\.2"):
            checkpoints.load(like())
