"""BibTeX of methods: each has the papers of its docstring, chains the union, and entries parse."""

import re
import sys

import optax
import pytest
from methods.rows import METHODS

import gemjax
from gemjax.methods import citation, papers

PUBLISHED = [row for row in METHODS if "References:" in (row.alias.__doc__ or "")]
ADDRESS = re.compile(r"https://(?:arxiv\.org|doi\.org|openreview\.net|papers\.nips\.cc)/[^>`\s]+")


def parse(text):
    """Return the entries of a BibTeX file by key, each a dict of its fields; braces must match."""
    found = {}
    for key, body in re.findall(r"^@\w+\{(\w+),\n(.*?)^\}$", text, re.DOTALL | re.MULTILINE):
        fields = dict(re.findall(r"^  (\w+) = \{(.*)\},$", body, re.MULTILINE))
        assert len(fields) == body.count("\n"), body
        assert all(value.count("{") == value.count("}") for value in fields.values())
        found[key] = fields
    assert text.count("@") == len(found)
    return found


def addresses(tx):
    entries = parse(gemjax.citation(tx)).values()
    return {entry.get("url") or f"https://doi.org/{entry['doi']}" for entry in entries}


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row.name)
def test_every_method_cites_the_papers_of_its_docstring(row):
    assert len(PUBLISHED) >= 34
    references = row.alias.__doc__.partition("References:")[2].partition("Readings:")[0].partition("Deviations")[0]
    stated = set(ADDRESS.findall(references))
    assert stated
    assert stated <= addresses(row(4)), "PAPERS in the file of a part has the papers of its method"


def test_every_entry_is_complete_and_of_some_part():
    modules = {name: module for name, module in sys.modules.items() if name.startswith("gemjax.methods.")}
    parts = [(module, *part) for module in modules.values() for part in getattr(module, "PAPERS", {}).items()]
    cited = {paper.key: paper for *_, its in parts for paper in its}
    assert len(cited) >= 28
    for module, part, its in parts:
        assert callable(getattr(module, part)), "PAPERS has the papers of a function by its name"
        assert its
    for key, (_, _, fields) in cited.items():
        assert {"author", "title", "year"} < fields.keys()
        assert {"eprint", "url", "doi"} & fields.keys()
        assert key[-1].isalpha()
        assert fields["year"] in key
    defined = {value.key: value for module in modules.values() for value in vars(module).values() if _is_paper(value)}
    assert defined == cited | {paper.key: paper for paper in citation.PLAIN}


def _is_paper(value):
    return isinstance(value, papers.Paper)


def test_a_chain_has_the_papers_of_all_its_parts():
    chain = gemjax.asynchronous(
        optax.chain(gemjax.rules.compensate_delay(), gemjax.rules.drop_stale(4), optax.sgd(0.1)), 8
    )
    union = addresses(gemjax.dc_asgd(0.1)) | addresses(gemjax.ringmaster(0.1))
    assert len(union) == 2
    assert addresses(chain) == union


def test_methods_without_parts_of_their_own_have_the_papers_of_what_they_are_built_on():
    assert list(parse(gemjax.citation(gemjax.asgd(0.1)))) == ["dean2012large"]
    assert list(parse(gemjax.citation(gemjax.dana_slim(0.1)))) == ["hakimi2019taming"]
    assert list(parse(gemjax.citation(gemjax.rennala(0.1)))) == ["tyurin2023optimal"]
