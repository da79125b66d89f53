"""Refused checkpoints: of other states, methods, numbers of workers, formats and metadata."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines.running.checkpoints.states import BATCHES, LOSS, PARAMS, arrived, like, method

import gemjax
from gemjax import arrivals
from gemjax.protocol.compat import enable_x64


def test_a_state_is_saved_with_its_own_trace_only(tmp_path):
    """A checkpoint of fewer commits would replace those of more, and no run could continue from it."""
    result = gemjax.simulate(method(), LOSS, PARAMS, BATCHES, arrivals.Gamma(3).trace(6))
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(result.state, result.trace)
        with pytest.raises(ValueError, match="the state has 6 commits of 3 workers, but trace has 4 of 3; give"):
            checkpoints.save(result.state, result.trace.first(4))
        with pytest.raises(ValueError, match="the state has 6 commits of 3 workers, but trace has 6 of 2; give"):
            checkpoints.save(result.state, arrivals.Gamma(2).trace(6))
        with pytest.raises(ValueError, match="the state has 6 commits of 3 workers, but trace has 9 of 3; give"):
            checkpoints.save(result.state, arrivals.Gamma(3).trace(9))  # The planned trace of a run that goes on.
        with pytest.raises(
            TypeError, match=r"state is of type Result, but must be a gemjax.RunState; give result.state"
        ):
            checkpoints.save(result, result.trace)
        progress = gemjax.Progress(6, 6, 0, 0, None, (), lambda: result.state, lambda: result.trace, {})
        with pytest.raises(TypeError, match=r"must be a gemjax.RunState; give progress\.state\(\)"):
            checkpoints.save(progress, result.trace)
        with pytest.raises(TypeError, match=r"trace is of type dict, but must be a gemjax.Trace; give result.trace"):
            checkpoints.save(result.state, result.history)
        assert checkpoints.commits == [6]


def test_pulls_alone_have_no_row_of_the_trace(tmp_path):
    """After six commits behind a barrier eight arrivals have been counted, and a trace of eight commits was accepted."""
    trace, taken = arrivals.Barrier(arrivals.Gamma(3)).trace(12), []

    def callback(progress):
        taken.append((progress.state(), progress.trace()))
        return True

    gemjax.simulate(method(), LOSS, PARAMS, BATCHES, trace, stops=[6], callback=callback, callback_every=12)
    (state, own), *_ = taken
    assert int(state.arrivals) > int(state.commits) == 6
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(ValueError, match="the state has 6 commits of 3 workers, but trace has 8 of 3; give"):
            checkpoints.save(state, trace.first(8))
        checkpoints.save(state, own)


@pytest.mark.parametrize("wrong", [None, PARAMS, method()], ids=lambda wrong: type(wrong).__name__)
def test_a_checkpoint_is_loaded_into_the_state_of_a_run_only(tmp_path, wrong):
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(0))
        with pytest.raises(
            TypeError, match=r"like is of type .* but must be a gemjax.RunState; give that of a result, or"
        ):
            checkpoints.load(wrong)


def test_no_checkpoint_is_an_error(tmp_path):
    with gemjax.Checkpoints(tmp_path) as checkpoints, pytest.raises(FileNotFoundError, match="no checkpoint"):
        checkpoints.load(like())


@pytest.mark.parametrize(
    ("other", "wrong"),
    [
        (lambda: like(tx=gemjax.asgd(0.1, num_workers=3)), "is of another method: its state is made of"),
        (lambda: like(tx=gemjax.dana_slim(0.1, num_workers=3)), "is of another method: its state is made of"),
        (lambda: like(num_workers=4), "has 5 commits of 3 workers, expected 5 of 4"),
    ],
)
def test_a_checkpoint_of_another_method_or_number_of_workers_is_refused(tmp_path, other, wrong):
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        with pytest.raises(ValueError, match=wrong):
            checkpoints.load(other())


def test_a_checkpoint_of_an_older_format_is_refused(tmp_path, monkeypatch):
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        with monkeypatch.context() as patched:
            patched.setattr("gemjax.engines.running.checkpoints.contents.FORMAT", "gemjax.run.1")
            checkpoints.save(like(), arrivals.Gamma(3).trace(5))
        with pytest.raises(
            ValueError, match=r"checkpoint 5 is of the format 'gemjax\.run\.1', .* reads 'gemjax\.run\.6'"
        ):
            checkpoints.load(like())


@pytest.mark.parametrize(
    ("metadata", "wrong"),
    [
        ({"note": 1, "metric": np.ones(2)}, r"metadata\['metric'\] is of type ndarray and cannot be written as JSON"),
        (
            {"metric": jnp.float32(1)},
            r"metadata\['metric'\] is of type \w+ and cannot be written as JSON .* float\(x\)",
        ),
        ([1], "metadata is of type list, expected a dict"),
    ],
)
def test_metadata_that_are_not_json_are_refused_before_anything_is_written(tmp_path, metadata, wrong):
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(TypeError, match=wrong):
            checkpoints.save(like(), arrivals.Gamma(3).trace(5), metadata)
        assert checkpoints.latest is None


@pytest.mark.slow
def test_a_method_whose_state_has_other_parts_without_arrays_is_named(tmp_path):
    """Orbax names none of them, and the checkpoint was called damaged."""
    with gemjax.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(like(tx=gemjax.asgd(0.1, num_workers=3)), arrivals.Gamma(3).trace(5))
        said = r"checkpoint 5 is of another method: its state is made of StalenessState, EmptyState, but that of this"
        with pytest.raises(gemjax.CheckpointError, match=said):
            checkpoints.load(like(tx=gemjax.dynsgd(0.1, num_workers=3)))
        checkpoints.load(like(tx=gemjax.asgd(0.2, num_workers=3)))


@pytest.mark.parametrize("shapes", [False, True])
def test_numbers_of_64_bits_are_not_rounded_where_they_are_not_enabled(tmp_path, shapes):
    checkpoints, trace = gemjax.Checkpoints(tmp_path), arrivals.Gamma(3).trace(4)
    with enable_x64(True):
        state = arrived(gemjax.initial_state(method(), jnp.full(4, 0.1, jnp.float64), num_workers=3))
        checkpoints.save(state, trace)
        wide = jax.eval_shape(lambda: state) if shapes else state
        np.testing.assert_array_equal(checkpoints.load(state)[0].params, state.params)
    with pytest.raises(
        TypeError, match=r"like has float64 numbers \(params\), and numbers of 64 bits are not enabled here"
    ):
        checkpoints.load(wide)


def test_a_state_that_the_run_has_gone_on_from_is_refused_in_one_line(tmp_path):
    kept, problem = [], (method(), LOSS, PARAMS, BATCHES)
    gemjax.simulate(
        *problem, arrivals.Gamma(3).trace(8), stops=[4],
        callback=lambda progress: kept.append((progress.state(), progress.trace())),
    )  # fmt: skip
    state, trace = kept[0]
    for leaf in jax.tree.leaves(state.params):
        leaf.delete()  # As the next commit does where the state was not copied.
    for use in (lambda: gemjax.Checkpoints(tmp_path).save(state, trace),):
        with pytest.raises(ValueError, match="state is no longer valid, because the run went on"):
            use()


def test_numbers_of_python_and_of_numpy_are_those_that_jax_makes_of_them(tmp_path):
    tx, checkpoints = gemjax.asgd(0.1, 3), gemjax.Checkpoints(tmp_path)
    state = arrived(gemjax.initial_state(tx, jnp.float32(0.5), model_state={"n": jnp.int32(3)}))
    checkpoints.save(state, arrivals.Gamma(3).trace(4))
    for params, count in ((0.0, 0), (np.zeros(()), np.int64(0))):
        found, _, _ = checkpoints.load(state._replace(params=params, model_state={"n": count}))
        assert (found.params, found.model_state["n"]) == (0.5, 3)
