"""Docstrings and signatures as ``help`` shows them in a terminal."""

import inspect
import re

import pytest

import gemjax

PLACES = (gemjax, gemjax.rules, gemjax.arrivals, gemjax.batches, gemjax.callbacks, gemjax.telemetry, gemjax.testing)
PUBLIC = {
    f"{place.__name__}.{name}": value
    for place in PLACES
    for name in getattr(place, "__all__", ())
    if callable(value := getattr(place, name))
}
# Types that are shown by their place in the sources, or spelt out, although their users know them by a short name.
SPELT_OUT = re.compile(r"\w+\._\w+|\bcollections\.abc\b|\bgemjax\.\w+\.")


@pytest.mark.parametrize("name", PUBLIC)
def test_formulas_are_plain_symbols(name):
    assert not re.search(r":math:|\.\. math::|\\[a-zA-Z]{2,}|\$", inspect.getdoc(PUBLIC[name]) or "")


@pytest.mark.parametrize("name", [name for name in gemjax.__all__ if inspect.isfunction(getattr(gemjax, name))])
def test_signatures_have_the_names_that_users_write(name):
    assert not SPELT_OUT.search(shown := str(inspect.signature(getattr(gemjax, name)))), shown
