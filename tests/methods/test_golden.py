"""Golden histories: what each method has always computed, number for number.

They catch what no property does: a change that is as good as before, but not the same.
"""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods.rows import METHODS

import gemjax

FOLDER = pathlib.Path(__file__).parent / "golden"
ORDER = (0, 2, 2, 1, 0, 1, 2, 0, 0, 1, 2, 1)
WHY = (
    "{row} no longer computes what {path} records: commit {commit} of worker {worker} differs by {error:.3g} in "
    "{leaf!r}. If the mathematics was not meant to change, the change is a bug. If it was (a bug was mended, a paper "
    "read again), say so in the changelog, write the histories anew with `pytest tests/methods/test_golden.py "
    "--renew-golden`, and look at their diff: only this method's file may have changed"
)


def _gradient(view, worker, commit):
    """Of a separable quadratic whose target depends on who asks and when; every constant is a binary fraction."""
    curvature = {"b": np.array([1.0, 0.5]), "w": np.array([[2.0, 0.25, 1.0]])}
    target = {"b": np.array([0.5, -1.0]), "w": np.array([[0.25, 0.75, -0.5]])}
    shift = 0.125 * worker - 0.0625 * (commit % 5)
    return jax.tree.map(lambda c, x, t: c * (x - t - shift), curvature, view, target)


def _history(tx):
    params = {"b": jnp.array([1.0, 0.0]), "w": jnp.array([[-1.0, 2.0, 0.5]])}
    state, views, history = tx.init(params), [params] * 3, []

    @jax.jit
    def commit_and_pull(params, state, grads, worker):
        updates, state = tx.update(grads, state, params, worker=worker)
        params = optax.apply_updates(params, updates)
        view, state = gemjax.pull(state, params, worker)
        return params, state, view

    for commit, worker in enumerate(ORDER):
        params, state, views[worker] = commit_and_pull(params, state, _gradient(views[worker], worker, commit), worker)
        history.append({"worker": worker, "params": jax.tree.map(lambda x: np.asarray(x).tolist(), params)})
    return history


@pytest.mark.parametrize("row", METHODS, ids=lambda row: row.name)
def test_history(x64, row, request):
    path = FOLDER / f"{row.name}.json"
    found = _history(row(3, 0.125))
    if request.config.getoption("--renew-golden"):
        path.write_text(json.dumps(found, indent=1) + "\n")
    assert path.exists(), f"{path} is missing: write it with `pytest {__file__} --renew-golden` and look at the numbers"
    recorded = json.loads(path.read_text())
    assert [commit["worker"] for commit in recorded] == list(ORDER)
    for commit, (new, old) in enumerate(zip(found, recorded, strict=True)):
        for leaf in ("b", "w"):
            error = float(np.max(np.abs(np.asarray(new["params"][leaf]) - np.asarray(old["params"][leaf]))))
            why = WHY.format(row=row.name, path=path.name, commit=commit, worker=new["worker"], error=error, leaf=leaf)
            assert error <= 1e-13, why


def test_no_history_is_left_of_a_method_that_is_gone():
    assert {path.stem for path in FOLDER.glob("*.json")} == {row.name for row in METHODS}
