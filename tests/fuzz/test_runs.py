"""Random runs of both engines have the properties that the library promises.

- A run returns a result or is refused: gemjax itself raises an error of a documented type, in one line. After a result nothing
  is refused.
- The only warnings are ``RunWarning``.
- Parameters stay finite.
- Commits, drops and rejections add up to the arrivals, and all columns of the history have one row per arrival.
- Windows change no result beyond rounding.
- A run that is stopped, saved, loaded and continued equals the whole run, bit for bit.
- Each run of a sweep equals the same run by itself, up to rounding.
- The trace of a run on devices gives the same parameters in the simulator, also after faults.
- The event log of a run on devices is complete.
"""

import contextlib
import dis
import signal
import tempfile
import warnings
from pathlib import Path

import hypothesis
import jax
import numpy as np
import pytest
from fuzz.strategies import Case, cases, examples
from hypothesis import strategies as st

import gemjax
from gemjax.protocol.compat import enable_x64
from gemjax.testing import Faults

FOLDER = str(Path(gemjax.__file__).parent)
DOCUMENTED = (TypeError, ValueError, gemjax.RunFailedError, MemoryError, FileNotFoundError)
SECONDS = 120  # After which a run hangs.
# Rounding differs between programs, and the methods amplify it; by the coarsest dtype of the parameters.
TOLERANCES = {"float64": 1e-9, "float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}

pytestmark = pytest.mark.slow


def is_refusal(error: Exception) -> bool:
    """Return True if a ``raise`` statement of gemjax raised ``error``, of a documented type and in one line."""
    last = error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    code = last.tb_frame.f_code
    raised = dis.opname[code.co_code[last.tb_lasti]] == "RAISE_VARARGS" and code.co_filename.startswith(FOLDER)
    return raised and isinstance(error, DOCUMENTED) and "\n" not in str(error)


@contextlib.contextmanager
def strictly(x64=False, seconds=SECONDS, is_refusal=is_refusal):
    """Accept refusals, unless something has been appended to the list, and ``RunWarning``; end a run that hangs."""
    begun = []

    def hangs(*_):
        raise AssertionError(f"the run did not end within {seconds} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(seconds)
    try:
        with warnings.catch_warnings(), enable_x64(x64):
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", gemjax.RunWarning)
            yield begun
    except Exception as error:
        if begun or not is_refusal(error):
            raise
        hypothesis.event(f"refused: {str(error)[:60]}")
        hypothesis.note(f"refused: {error}")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check(result: gemjax.Result) -> None:
    """Check counts, columns and parameters of a result."""
    state, history = result.state, result.history
    applied, dropped, rejected = (int(count) for count in (state.commits, state.dropped, state.rejected))
    assert len({len(column) for column in history.values()}) <= 1
    if history:
        assert history["applied"].sum() == applied
        assert history["dropped"].sum() == dropped
        assert len(history["applied"]) == applied + dropped + rejected
    assert int(state.arrivals) >= applied + dropped + rejected
    assert all(bool(np.isfinite(np.asarray(leaf, np.float64)).all()) for leaf in jax.tree.leaves(state.params))
    repr(result)


def bits(tree) -> list:
    """Return the structure, dtypes and bytes of a tree."""
    leaves = [
        jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        for leaf in jax.tree.leaves(tree)
    ]
    return [jax.tree.structure(tree), *((leaf.dtype, leaf.shape, np.asarray(leaf).tobytes()) for leaf in leaves)]


def assert_near(found, expected, case: Case, scale=1.0) -> None:
    """Check that parameters agree up to the rounding of their dtypes."""
    tolerance = scale * max(TOLERANCES[dtype] for dtype in case.dtypes)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        one, other = (np.asarray(leaf, np.float64) for leaf in (one, other))
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * max(1.0, np.abs(other).max(initial=0)))


def saved_and_loaded(case: Case, result: gemjax.Result) -> gemjax.Result:
    """Return ``result`` with the state and the trace from a checkpoint."""
    like = gemjax.initial_state(
        case.tx, case.params, num_workers=case.workers, model_state=case.options["model_state"],
        local=case.options["local"],
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, gemjax.Checkpoints(folder) as checkpoints:
        checkpoints.save(result.state, result.trace, {"note": 1})
        state, trace, metadata = checkpoints.load(like)
    assert (trace, metadata) == (result.trace, {"note": 1})
    assert bits(state) == bits(result.state)
    return gemjax.Result(state, result.history, trace, result.stopped)


@examples(8)
@hypothesis.given(case=cases(), chunk=st.integers(1, 5), window=st.integers(2, 4), through=st.booleans())
def test_simulated_runs(case, chunk, window, through):
    with strictly(case.x64) as begun:
        trace = case.trace
        run = lambda **more: gemjax.simulate(case.tx, *case.problem, trace, **case.options, **more)
        whole = run(callback_every=chunk)
        begun.append(whole)
        check(whole)
        assert len(whole.trace) == len(trace)
        part = run(callback_every=chunk, callback=lambda progress: True)
        check(part)
        rest = run(callback_every=chunk, state=saved_and_loaded(case, part) if through else part)
        assert bits(rest.state) == bits(whole.state)
        assert bits(rest.history) == bits(whole.history)
        if case.workers > 1:
            windows = run(window=window)
            assert bits(windows.history["applied"] if len(trace) else ()) == bits(
                whole.history["applied"] if len(trace) else ()
            )
            assert_near(windows.params, whole.params, case)


@examples(2)
@hypothesis.given(case=cases(), batched=st.none() | st.booleans())
def test_sweeps(case, batched):
    rates = [case.row.learning_rate, case.row.learning_rate / 2]
    options = {name: value for name, value in case.options.items() if name != "seed"}
    with strictly(case.x64) as begun:
        make = lambda rate: case.row(case.workers, rate)
        options |= {"over": {"rate": rates}, "seeds": [case.seed], "batched": batched}
        found = gemjax.sweep(make, *case.problem, case.trace, **options)
        begun.append(found)
        for index, rate in enumerate(rates):
            expected = gemjax.simulate(make(rate), *case.problem, case.trace, **case.options)
            assert_near(jax.tree.map(lambda leaf, index=index: leaf[index], found.params), expected.params, case)
        assert len(found.table()) == len(rates)


class Gate(Faults):
    """Faults, among them gradients that are huge."""

    def __init__(self, planned):
        super().__init__()
        self.huge = {(worker, step) for kind, worker, step in planned if kind == "huge"}
        for kind, worker, step in planned:
            if kind == "raise":
                self.fail(worker, step, times=1 + step % 4)
            elif kind == "nan":
                self.poison(worker, step)
            elif kind == "hang":
                self.hang(worker, step)
            elif kind == "late":
                self.slow(worker, 0.6, first=step, last=step)

    def __call__(self, worker, step):
        if (worker, step) in self.huge:
            return lambda gradient: jax.tree.map(lambda leaf: leaf * leaf.dtype.type(1e4), gradient)
        return super().__call__(worker, step)


FAULTS = st.lists(
    st.tuples(st.sampled_from(["raise", "nan", "huge", "late", "hang"]), st.integers(0, 3), st.integers(0, 4)),
    max_size=4,
)
POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "max_staleness": st.none() | st.integers(0, 4),
        "quorum": st.integers(1, 4),
        "grace": st.sampled_from([0.0, 0.01]),
        "retries": st.integers(0, 3),
    },
)


def check_log(path, case: Case, result: gemjax.Result) -> None:
    """Check that an event log gives the trace of its run, and that all evaluations of it succeed."""
    events = list(gemjax.eventlog.read(path))
    assert gemjax.eventlog.trace_of(path, case.workers) == result.trace
    run = gemjax.timeline(events, case.workers)
    if len(result.trace):
        repr(gemjax.verdict(gemjax.summarise(run)))
        gemjax.chrome_trace(run)


@examples(6)
@hypothesis.given(
    case=cases(most_workers=3), faults=st.just([]) | FAULTS, policy=POLICIES, moves=st.booleans(),
    absent=st.sets(st.integers(0, 3), max_size=2), through=st.booleans(),
)  # fmt: skip
def test_runs_on_devices(case, faults, policy, moves, absent, through):
    with strictly(case.x64) as begun, tempfile.TemporaryDirectory() as folder, Gate(faults) as gate:
        path, log = Path(folder, "events.jsonl"), contextlib.nullcontext()
        members = gemjax.Members(case.workers, absent=sorted(absent)) if absent else None
        if members is not None and len(absent) >= case.workers:
            members.close()
        policy = gemjax.Policy(deadline=0.4 if any(kind in ("late", "hang") for kind, *_ in faults) else None, **policy)

        def callback(progress):
            if moves and members is not None and not members.closed:
                (members.leave if progress.commits % 2 else members.join)(progress.commits % case.workers)

        def run(commits, **more):
            options = {"policy": policy, "num_workers": case.workers, "callback": callback, "callback_every": 1}
            return gemjax.run_on_devices(case.tx, *case.problem, commits, **case.options, **options, **more)

        try:
            with gemjax.EventLog(path) as log:
                result = run(case.commits, gate=gate, members=members, log=log)
        except gemjax.RunFailedError as error:
            result = error.result
            if result is None:
                raise
            hypothesis.event("failed with a result")
        else:
            assert int(result.state.commits) == case.commits
        begun.append(result)
        check(result)
        check_log(path, case, result)
        rows = (
            zip(*(result.history[name] for name in ("worker", "step", "applied")), strict=True)
            if result.history
            else ()
        )
        if gate.huge & {(worker, step) for worker, step, applied in rows if applied}:
            return  # A replay has the gradient that the worker computed.
        replayed = gemjax.simulate(case.tx, *case.problem, result.trace, **case.options)
        assert_near(result.params, replayed.params, case)
        if through and case.period is None:
            result = run(len(result.trace) + 2, state=saved_and_loaded(case, result))
            check(result)
            replayed = gemjax.simulate(case.tx, *case.problem, result.trace, **case.options)
            assert_near(result.params, replayed.params, case)
