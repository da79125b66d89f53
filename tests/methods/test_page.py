"""The methods' page: every method is on it, with the defaults, the memory and the results that it really has."""

import inspect
import json
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gemjax

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "gemjax" / "methods" / "README.md").read_text(encoding="utf-8")
OF_METHODS = {
    name for name in gemjax.__all__ if getattr(getattr(gemjax, name), "__module__", "").startswith("gemjax.methods.")
}
ALIASES = {
    name
    for name in OF_METHODS
    if {"learning_rate", "num_workers"} <= {*inspect.signature(getattr(gemjax, name)).parameters}
}


def _tables(*columns):
    """Rows of the page's tables that have these columns, as dicts."""
    header = []
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells or not header:
            header = cells
        elif set(columns) <= set(header) and not cells[0].startswith("---"):
            yield dict(zip(header, cells, strict=True))


METHODS = {row["method"].strip("`"): row for row in _tables("method", "defaults")}


def test_every_method_has_one_row():
    assert len(METHODS) == len(list(_tables("method", "defaults")))
    assert set(METHODS) == ALIASES


def test_every_export_of_a_method_file_is_named():
    assert not {name for name in OF_METHODS if f"`{name}`" not in PAGE}


@pytest.mark.parametrize("name", METHODS)
def test_the_defaults_are_those_of_the_signature(name):
    found = eval(f"dict({METHODS[name]['defaults'].strip('`')})")
    parameters = inspect.signature(getattr(gemjax, name)).parameters.values()
    assert found == {p.name: p.default for p in parameters if p.default is not p.empty and p.name != "num_workers"}


@pytest.mark.parametrize("name", METHODS)
def test_the_memory_is_what_the_state_takes(name):
    params = jax.ShapeDtypeStruct((1_000_000,), jnp.float32)

    def copies(num_workers):
        rate = () if "learning_rate" in METHODS[name]["defaults"] else (0.1,)
        state = jax.eval_shape(getattr(gemjax, name)(*rate, num_workers=num_workers).init, params)
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state)) / 1e6

    worker = round(copies(5) - copies(4))
    central = round(copies(4) - 4 * worker)
    assert [int(METHODS[name][column].split()[0]) for column in ("worker", "central")] == [worker, central]


def test_the_results_are_those_of_the_claim():
    """A run that failed counts as 0."""
    path = ROOT / "train" / "results" / "every_method-cpu.json"
    known = {}
    for result in json.loads(path.read_text(encoding="utf-8"))["results"]:
        method, cluster, _ = result["series"].split(", ")
        values = [value or 0.0 for value in result["test_accuracy"]["values"]]
        known[method, f"{result['point']} {'' if cluster == 'homogeneous' else 'un'}equal"] = 100 * np.mean(values)
    rows = list(_tables("method", "16 equal"))
    assert len(rows) == 8
    for row in rows:
        for column, shown in row.items():
            if column != "method":
                assert shown == f"{known[row['method'].strip('`'), column]:.1f}", (row["method"], column)


def test_what_none_stands_for_is_explained():
    explained = PAGE[PAGE.index("What `None` stands for") :].partition("\n\n")[0]
    nones = {name for row in METHODS.values() for name in re.findall(r"(\w+)=None", row["defaults"])}
    assert nones == {name for name in re.findall(r"`(\w+)`", explained) if name in nones}
