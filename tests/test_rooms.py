"""Layers of both packages: imports go downwards and form no cycle, and no folder has too many entries."""

import ast
import collections
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# From top to bottom. A file imports only from rows below its own, and from its own entry. `__init__` is the package itself.
LAYERS = {
    "gemjax": (
        ("check",),
        ("__init__",),
        ("callbacks", "rules", "testing"),
        ("engines",),
        ("arrivals", "batches", "methods", "telemetry"),
        ("protocol",),
    ),
    "train": (
        ("__main__",),
        ("cli",),
        ("bench", "race", "report", "sweep"),
        ("claims",),
        ("run",),
        ("task",),
        ("config",),
        ("common",),
        ("__init__",),
    ),
}
MOST_ENTRIES = 11
CATALOGUES = ("gemjax/methods", "train/claims/papers", "train/results")
# Comparisons with programs of others, and random runs of both packages: of these no folder is a part of the library.
WITHOUT_MIRROR = ("external", "fuzz")


def modules(package):
    """Return the files of a package by module name; the name for a folder ends with `__init__`."""
    return {".".join(path.relative_to(package.parent).with_suffix("").parts): path for path in package.rglob("*.py")}


def imports(package):
    """Yield pairs of modules of which the first imports the second, including lazy imports and those for types."""
    files = modules(package)
    for importer, path in files.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path} imports relative to itself, in line {node.lineno}"
                children = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [child if child in files or f"{child}.__init__" in files else node.module for child in children]
            for name in names:
                for module in (name, f"{name}.__init__"):
                    if module in files and module != importer:
                        yield importer, module


def arrows(package):
    """Return, per folder, its entries (files and folders) with the entries that each of them imports."""
    found = {}
    for importer, imported in imports(package):
        left, right = importer.split("."), imported.split(".")
        depth = next(k for k, (one, other) in enumerate(zip(left, right, strict=False)) if one != other)
        folder = found.setdefault(".".join(left[:depth]), {})
        folder.setdefault(left[depth], set()).add(right[depth])
    return found


def cycle(graph):
    """Return entries of which each imports the next and the last one the first; empty if there is no cycle."""
    done = set()

    def visit(entry, path):
        if entry in path:
            return [*path[path.index(entry) :], entry]
        if entry in done:
            return []
        done.add(entry)
        return next(filter(None, (visit(other, [*path, entry]) for other in sorted(graph.get(entry, ())))), [])

    return next(filter(None, (visit(entry, []) for entry in sorted(graph))), [])


def upward(package, rows):
    """List the imports between the top entries of a package that do not go down."""
    level = {entry: number for number, row in enumerate(rows) for entry in row}
    found = []
    for importer, imported in imports(package):
        left, right = importer.split(".")[1], imported.split(".")[1]
        if left != right and level[left] >= level[right]:
            found.append(f"{importer} imports {imported}")
    return found


def entries(folder):
    """Return the modules and packages in a folder, without `__init__` and `__main__`; a folder of data is neither."""
    seen = {path.name for path in folder.iterdir() if path.suffix == ".py" or any(path.rglob("*.py"))}
    return seen - {"__init__.py", "__main__.py"}


def holds_files(folder):
    """Return True if the folder has files other than compiled ones, which another checkout may have left."""
    return any(path.is_file() and "__pycache__" not in path.parts for path in folder.rglob("*"))


def folders(package):
    return [package, *(path for path in package.rglob("*") if path.is_dir() and holds_files(path))]


@pytest.mark.parametrize("name", LAYERS)
def test_imports_go_downwards(name):
    found = {module.split(".")[1] for module in modules(ROOT / name)}
    assert found == {entry for row in LAYERS[name] for entry in row}, "a new entry needs a place in LAYERS"
    assert upward(ROOT / name, LAYERS[name]) == []


@pytest.mark.parametrize("name", LAYERS)
def test_imports_form_no_cycle(name):
    cycles = {folder: found for folder, graph in arrows(ROOT / name).items() if (found := cycle(graph))}
    assert cycles == {}


def test_the_library_does_not_import_the_command_line():
    for path in modules(ROOT / "gemjax").values():
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        named |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        assert "train" not in {name.split(".")[0] for name in named}, path


@pytest.mark.parametrize("name", LAYERS)
def test_no_folder_has_too_many_entries(name):
    catalogues = [ROOT / folder for folder in CATALOGUES]
    too_many = {
        str(folder.relative_to(ROOT)): sorted(entries(folder))
        for folder in folders(ROOT / name)
        if not any(folder.is_relative_to(catalogue) for catalogue in catalogues) and len(entries(folder)) > MOST_ENTRIES
    }
    assert too_many == {}


def test_the_folders_of_tests_are_those_of_the_packages():
    folders_of_tests = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    for folder in folders_of_tests - {Path(name) for name in WITHOUT_MIRROR}:
        assert (ROOT / "gemjax" / folder).is_dir() or (ROOT / folder).is_dir(), f"tests/{folder} mirrors no folder"


def make(folder, **files):
    """Make a package `house` with the given `files`, by module."""
    for name, text in files.items():
        path = folder.joinpath("house", *name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "house"


def test_a_lazy_import_that_goes_up_is_found(tmp_path):
    house = make(
        tmp_path, roof__tile="from house.cellar import wine", cellar__wine="def pour():\n    import house.roof.tile"
    )
    assert upward(house, (("roof",), ("cellar",))) == ["house.cellar.wine imports house.roof.tile"]
    assert cycle(arrows(house)["house"]) == ["cellar", "roof", "cellar"]


def test_a_cycle_is_found_inside_a_folder_and_through_a_type(tmp_path):
    house = make(
        tmp_path,
        hall__door="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.hall.bell import ring",
        hall__bell="from house.hall import wire",
        hall__wire="from house.hall.door import Door",
    )
    assert upward(house, (("hall",),)) == []
    assert cycle(arrows(house)["house.hall"]) == ["bell", "wire", "door", "bell"]


def test_a_diamond_is_no_cycle(tmp_path):
    house = make(
        tmp_path,
        top="import house.left\nfrom house import right",
        left="import house.low",
        right="import house.low",
        low="",
    )
    assert upward(house, (("top",), ("left", "right"), ("low",))) == []
    assert cycle(arrows(house)["house"]) == []


def test_modules_of_tests_have_names_of_their_own():
    """The folders of tests are no packages, so pytest collects no second module of a name."""
    found = collections.Counter(path.name for path in (ROOT / "tests").rglob("*.py"))
    assert {name for name, count in found.items() if count > 1} <= {"conftest.py"}
    assert found["conftest.py"] == 2  # A third one, in a folder below the second, is not collected.
