"""The page of all public names and arguments, made from docstrings, and what the other pages say of these names."""

import inspect
import pkgutil
import re
from pathlib import Path

import pytest
from test_pages import PAGES

import gemjax

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "gemjax" / "reference.md"
RENEW = "pytest tests/test_reference.py --renew-reference"
PLACES = (gemjax.rules, gemjax.arrivals, gemjax.batches, gemjax.callbacks, gemjax.eventlog, gemjax.testing)
ENGINES = (gemjax.simulate, gemjax.run_on_devices, gemjax.run_on_cluster, gemjax.sweep)
METHODS = {
    name: value
    for name in gemjax.__all__
    if inspect.isfunction(value := getattr(gemjax, name)) and "num_workers" in inspect.signature(value).parameters
    if value.__module__.startswith("gemjax.methods.")
}
EXAMPLE = "gemjax.damped_momentum"  # The method that the page of methods adds.
OF_ALL = ("learning_rate", "momentum", "num_workers")
HEAD = f"""# Reference

All public names and arguments with the first sentence of their docstrings, written by `{RENEW}`.
The defaults of methods, and the memory that each takes, are on [the page of methods](methods/README.md#the-table).
All methods take `num_workers` and `learning_rate`, a number or a schedule over commits; most take `momentum`.
"""


def plain(text):
    """Return a sentence of a docstring as Markdown for a cell of a table."""
    text = re.sub(r":\w+:`~?(?:gemjax\.)?([^`]+)`", r"`\1`", text).replace("``", "`")
    return " ".join(text.split()).replace("|", r"\|")


def sentence(text):
    """Return the first sentence of a text."""
    return re.split(r"(?<=[^.][.:;]) - |(?<=[^.]\.) (?=[A-Z`])", " ".join(text.split()), maxsplit=1)[0].strip(" .:;")


def arguments(function):
    """Return the first sentence about each argument, from the docstring of a function."""
    found = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", inspect.getdoc(function), re.DOTALL | re.MULTILINE)
    entries = re.findall(
        r"^  \*{0,2}([\w, *]+): (.*?)(?=^  \S|\Z)", found[1] if found else "", re.DOTALL | re.MULTILINE
    )
    return {name: sentence(text) for names, text in entries for name in names.replace("*", "").split(", ")}


def names_of(place):
    """Return the names of a module that are not those of a module above it."""
    public = getattr(place, "__all__", None) or [
        name
        for name, value in vars(place).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == place.__name__
    ]
    return sorted(name for name in public if callable(getattr(place, name)) and name not in gemjax.__all__)


def rows_of(place, names):
    """Yield a row per name, with the first line of its docstring."""
    for name in names:
        value = getattr(place, name)
        doc = inspect.getdoc(value)
        yield f"| `{name}` | {plain(doc.splitlines()[0]) if doc else ''} |"


def rows_of_engines():
    """Yield a row per argument of the engines, with the engines that take it."""
    shown = {}
    for engine in ENGINES:
        told = arguments(engine)
        for name in inspect.signature(engine).parameters:
            taken, text = shown.setdefault(name, ([], told.get(name, "")))
            taken.append(f"`{engine.__name__}`")
            if re.match(r"as (for|in) ", text):
                shown[name] = (taken, told.get(name, ""))
    for name, (taken, text) in shown.items():
        if text.startswith("old "):  # Names that will be removed in the next release.
            continue
        yield f"| `{name}` | {'all' if len(taken) == len(ENGINES) else ', '.join(taken)} | {plain(text)} |"


def rows_of_arguments():
    """Yield a row per argument of the methods that are told alike."""
    shown = {}
    for method, function in METHODS.items():
        for name, text in arguments(function).items():
            if name in OF_ALL:
                continue
            shown.setdefault((name, plain(text)), []).append(f"`{method}`")
    for (name, text), methods in sorted(shown.items(), key=lambda item: (item[0][0], -len(item[1]))):
        yield f"| `{name}` | {', '.join(methods)} | {text} |"


def written():
    """Return the page."""
    parts = [HEAD]

    def table(title, header, rows):
        columns = header.count("|") + 1
        parts.append(f"## {title}\n\n| {header} |\n|{'---|' * columns}\n" + "\n".join(rows) + "\n")

    others = [name for name in gemjax.__all__ if name not in METHODS]
    table("Engines and tools", "`gemjax.` | is", rows_of(gemjax, others))
    table("Arguments of the engines", "argument | of | meaning", rows_of_engines())
    table("Methods", "`gemjax.` | is", rows_of(gemjax, METHODS))
    table("Arguments of the methods", "argument | of | meaning", rows_of_arguments())
    for place in PLACES:
        table(f"`{place.__name__}`", "name | is", rows_of(place, names_of(place)))
    return "\n".join(parts)


def exists(dotted):
    """Return True if a name such as ``gemjax.rules.gather`` can be imported or looked up."""
    try:
        pkgutil.resolve_name(dotted)
    except (AttributeError, ModuleNotFoundError):
        return False
    return True


def text_of(page):
    """Return a page, without addresses and without the names of files."""
    return re.sub(r"https?://\S+|[\w./]*gemjax/[\w./]*|gemjax\.git", "", (ROOT / page).read_text(encoding="utf-8"))


def test_the_page_is_that_of_the_docstrings(request):
    if request.config.getoption("--renew-reference"):
        PAGE.write_text(written(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == written(), f"a docstring has changed: {RENEW}"


@pytest.mark.parametrize("page", PAGES)
def test_the_names_of_a_page_exist(page):
    names = set(re.findall(r"\bgemjax(?:\.[A-Za-z]\w*)+", text_of(page)))
    assert [name for name in sorted(names - {EXAMPLE}) if not exists(name)] == []


def test_every_name_is_on_the_page():
    named = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert {*gemjax.__all__, *gemjax.rules.__all__, *gemjax.arrivals.__all__} - named == set()


def test_a_name_that_does_not_exist_is_found():
    assert exists("gemjax.rules.gather")
    assert exists("gemjax.check")
    assert not exists("gemjax.rules.gatherer")
    assert not exists("gemjax.gemm")
