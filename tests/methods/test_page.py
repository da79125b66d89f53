"""The page of methods and the guide list every method with its defaults, memory, results and diagnostics."""

import inspect
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import gemjax
from gemjax.protocol.diagnostics import Observer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "gemjax" / "methods" / "README.md").read_text(encoding="utf-8")
COMPOSE = (ROOT / "gemjax" / "methods" / "compose.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "gemjax" / "results.md").read_text(encoding="utf-8")
OF_METHODS = {
    name: value
    for place in (gemjax, gemjax.rules)
    for name in place.__all__
    if getattr(value := getattr(place, name), "__module__", "").startswith("gemjax.methods.")
}
ALIASES = {
    name
    for name, value in OF_METHODS.items()
    if {"learning_rate", "num_workers"} <= {*inspect.signature(value).parameters}
}


def _tables(*columns, text=PAGE):
    """Yield the rows of the tables of ``text`` with these columns, as dicts."""
    header = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells or not header:
            header = cells
        elif set(columns) <= set(header) and not cells[0].startswith("---"):
            yield dict(zip(header, cells, strict=True))


METHODS = {row["method"].strip("`"): row for row in _tables("method", "defaults")}


def test_every_method_has_one_row():
    assert len(METHODS) == len(list(_tables("method", "defaults")))
    assert set(METHODS) == ALIASES, "gemjax/methods/README.md: its tables and the functions that gemjax exports differ"


def test_every_export_of_a_method_file_is_named():
    missing = {name for name in OF_METHODS if f"`{name}`" not in PAGE + COMPOSE}
    assert not missing, f"gemjax/methods/README.md and compose.md do not name {missing}"


@pytest.mark.parametrize(
    ("page", "pattern"),
    [("README.md", r"\*\*(\d+) methods\*\*"), ("gemjax/README.md", r"\| gemjax \| JAX \| yes \| (\d+) \|")],
)
def test_the_pages_count_the_methods(page, pattern):
    stated = re.search(pattern, (ROOT / page).read_text(encoding="utf-8"))
    assert int(stated[1]) == len(ALIASES), f"{page}: write {len(ALIASES)}"


@pytest.mark.parametrize("name", METHODS)
def test_the_defaults_are_those_of_the_signature(name):
    found = eval(f"dict({METHODS[name]['defaults'].strip('`')})")
    parameters = inspect.signature(getattr(gemjax, name)).parameters.values()
    assert found == {p.name: p.default for p in parameters if p.default is not p.empty and p.name != "num_workers"}


def _made(name, num_workers):
    """Return the method with its defaults."""
    rate = () if "learning_rate" in METHODS[name]["defaults"] else (0.1,)
    return getattr(gemjax, name)(*rate, num_workers=num_workers)


@pytest.mark.parametrize("name", METHODS)
def test_the_memory_is_what_the_state_takes(name):
    params = jax.ShapeDtypeStruct((1_000_000,), jnp.float32)

    def copies(num_workers):
        state = jax.eval_shape(_made(name, num_workers).init, params)
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state)) / 1e6

    worker = round(copies(5) - copies(4))
    central = round(copies(4) - 4 * worker)
    assert [int(METHODS[name][column].split()[0]) for column in ("worker", "central")] == [worker, central]


@pytest.mark.parametrize("name", METHODS)
def test_the_guide_lists_the_diagnostics_that_it_offers(name):
    tx, params, observer = _made(name, 2), jnp.ones(3), Observer()
    given = {"value": jnp.float32(1), "local_steps": 2, "observe": observer}
    jax.eval_shape(lambda state: tx.update(params, state, params, worker=0, **given), jax.eval_shape(tx.init, params))
    listed = {
        diagnostic
        for row in _tables("diagnostic", "offered by", text=GUIDE)
        for diagnostic in re.findall(r"`(\w+)`", row["diagnostic"])
        if f"`{name}`" in row["offered by"] or "all methods" in row["offered by"]
    }
    assert observer.offered == listed, (
        f"gemjax/results.md, table of diagnostics: the cells `offered by` that name `{name}` must be those of "
        f"{sorted(observer.offered)}, but are those of {sorted(listed)}"
    )


def test_the_first_page_has_the_table_of_the_benchmarks_page():
    table = re.compile(r"^\| workers \| data .*?\n\n", re.DOTALL | re.MULTILINE)
    first, measured = (
        (ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "train/results/benchmark.md")
    )
    assert table.search(first)[0] == table.search(measured)[0]
    said = r"the gain of 16 unequal workers with images is ([^)]*\)), with (`\w+`), and that of 4 equal ones ([^)]*\))"
    [(unequal, method, equal)] = re.findall(said, " ".join(first.split()))
    late = measured.partition("## A later target")[2].partition("##")[0].splitlines()
    for start, gain in (
        ("| 16 unequal | images |", f"| {method} | {unequal} |"),
        ("| 4 equal | images |", f"| {equal} |"),
    ):
        [row] = [line for line in late if line.startswith(start)]
        assert gain in row


def test_the_meaning_of_none_is_explained():
    explained = PAGE[PAGE.index("What `None` stands for") :].partition("\n\n")[0]
    nones = {name for row in METHODS.values() for name in re.findall(r"(\w+)=None", row["defaults"])}
    assert nones == {name for name in re.findall(r"`(\w+)`", explained) if name in nones}
