"""Forms of sentences that ruff does not see: first words of docstrings, and idioms that have a plain equivalent."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("gemjax", "train", "tests")
SOURCES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if path != Path(__file__)]
PAGES = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")),
         *ROOT.glob("colab/*.ipynb"), *ROOT.glob(".ci/*"), ROOT / "pyproject.toml"]  # fmt: skip

# A first line is an imperative or a noun phrase. Ruff checks verbs in functions alone, so some are listed here for classes.
NO_FIRST_WORD = re.compile(
    r"(what|whatever|whether|how|who|whose|where|when|why|that|those|if|"
    r"appends|computes|does|ends|gives|has|holds|is|keeps|makes|raises|returns|saves|says|shows|stands|tells|writes)\b",
    re.IGNORECASE,
)
# Each with what to write instead.
IDIOMS = {
    r"whoever|nobody|somebody|everybody|anybody": "the worker, no worker, a worker, all workers, any worker",
    r"the centre(?! (of|crop)\b)": "the central variable",
    r"mends?": "fix, remedy, advice",
    r"at hand": "current, ready",
    r"left over": "remaining",
    r"at the door": "before the run starts",
    r"to be had": "available",
    r"stands? still": "does not progress",
    r"(commits|gradients|steps|copies|events|lines|images|rows|bytes|µs|ms) a (second|commit|worker|gradient|round|device)":
        "per second, per commit, per worker, per gradient, per round, per device",
}  # fmt: skip
ANY_IDIOM = re.compile(rf"\b({'|'.join(IDIOMS)})(?!\w)", re.IGNORECASE)


def docstrings(text):
    """Yield the line and the text of each docstring of a source file."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, kinds) and (found := ast.get_docstring(node)):
            yield node.body[0].lineno, found


def sentences(path, text):
    """Yield the line and the text of all prose of a file: docstrings, messages and comments, or the whole page."""
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), start=1)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def wrong_first_lines(text):
    """List the docstrings of a source file whose first word is none that a first line begins with."""
    return [f"line {line}: {found.splitlines()[0]}" for line, found in docstrings(text) if NO_FIRST_WORD.match(found)]


def idioms(path, text):
    """List the idioms of a file, each with its plain equivalent."""
    found = []
    for line, sentence in sentences(path, text):
        plain = " ".join(sentence.split())
        if not ANY_IDIOM.search(plain):
            continue
        for pattern, better in IDIOMS.items():
            hits = re.finditer(rf"\b({pattern})(?!\w)", plain, re.IGNORECASE)
            found += [f"line {line}: {hit[0]!r}; write {better}" for hit in hits]
    return found


def test_first_lines_are_imperatives_or_noun_phrases():
    found = {str(path): wrong_first_lines(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_prose_is_plain():
    found = {str(path): idioms(path, path.read_text(encoding="utf-8")) for path in [*SOURCES, *PAGES]}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_first_words_are_seen_in_modules_classes_and_functions():
    text = (
        '"""Tools."""\nclass A:\n    """Whether it\n    holds."""\n    def f():\n        """How."""\n        "What."\n'
    )
    assert wrong_first_lines(text) == ["line 3: Whether it", "line 6: How."]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('"""Nobody waits."""', 1),
        ("x = 1  # Five copies a worker.", 1),
        ('print(f"the {x} is at\\nhand")', 1),
        ('"""The centre of the image, a centre crop; workers commit gradients."""', 0),
        ("nobody = 1", 0),
    ],
)
def test_idioms_are_seen_in_docstrings_comments_and_messages(text, count):
    assert len(idioms(Path("a.py"), text)) == count
