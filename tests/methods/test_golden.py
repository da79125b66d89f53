"""Golden histories: the recorded numbers of each method.

They catch changes that no property test does: another result that is as good as before.
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
    "{leaf!r}. If the mathematics was not meant to change, the change is a bug. If it was (a bug was fixed, a paper "
    "read again), add it to the changelog, write the histories anew with `pytest tests/methods/test_golden.py "
    "--renew-golden -k {row}`, and look at their diff: only this method's file may have changed"
)


def _gradient(view, worker, commit):
    """Return the gradient of a separable quadratic with a target per worker and commit; all constants are binary fractions."""
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


def _difference(row, found, path):
    """Describe the first difference from the recorded history; None if they agree."""
    recorded = json.loads(path.read_text())
    if [commit["worker"] for commit in recorded] != list(ORDER):
        return f"{path} records another order of commits"
    for commit, (new, old) in enumerate(zip(found, recorded, strict=True)):
        for leaf in ("b", "w"):
            error = float(np.max(np.abs(np.asarray(new["params"][leaf]) - np.asarray(old["params"][leaf]))))
            if not error <= 1e-13:
                facts = {"commit": commit, "worker": new["worker"], "error": error, "leaf": leaf}
                return WHY.format(row=row.name, path=path.name, **facts)
    return None


@pytest.mark.parametrize("row", METHODS, ids=lambda row: row.name)
def test_history(x64, row, request):
    path = FOLDER / f"{row.name}.json"
    found = _history(row(3, 0.125))
    renew = request.config.getoption("--renew-golden")
    if renew and not (path.exists() and _difference(row, found, path) is None):
        path.write_text(json.dumps(found, indent=1) + "\n")
    assert path.exists(), (
        f"{path} is missing: write it with `pytest {__file__} --renew-golden -k {row.name}` and look at the numbers"
    )
    assert _difference(row, found, path) is None, _difference(row, found, path)


def test_every_history_belongs_to_a_method():
    differ = {path.stem for path in FOLDER.glob("*.json")} ^ {row.name for row in METHODS}
    assert not differ, f"only one of tests/methods/golden and tests/methods/rows.py has {differ}"
