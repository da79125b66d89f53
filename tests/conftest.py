"""The strict world of the tests: eight worker devices and a central one, no rank promotion, slow tests on demand."""

import jax
import pytest
from xla_flags import set_flags

import gemjax
from gemjax.compat import enable_x64

set_flags()
gemjax.cpu_devices(9)
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_addoption(parser):
    parser.addoption("--run-slow", action="store_true", help="run the tests marked slow, too")
    parser.addoption("--renew-golden", action="store_true", help="write the golden histories anew instead of comparing")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--run-slow"):
        return
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="slow; run with --run-slow"))


@pytest.fixture
def x64():
    """Double precision for one test."""
    with enable_x64(True):
        yield
