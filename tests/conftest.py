"""Strict settings of all tests: eight worker devices and a central one, no rank promotion, slow and nightly tests on demand."""

import os
import signal
import time

# Many tests need several devices, and a host may have one accelerator only. JAX_PLATFORMS=cuda,cpu tests a GPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Ray's processes at its own niceness of 15 take several times as long beside any other work.
os.environ.setdefault("RAY_worker_niceness", "0")

import hypothesis
import jax
import pytest
from xla_flags import set_flags

import gemjax
from gemjax.protocol.compat import enable_x64

set_flags()
gemjax.cpu_devices(9)
jax.config.update("jax_numpy_rank_promotion", "raise")
# The same cases each time, on a host of any speed.
hypothesis.settings.register_profile(
    "gemjax", derandomize=True, deadline=None, database=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("gemjax")

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # In the background of a shell, where subprocesses would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

DAYS_KEPT = 7
LONG_PAGES = ("gemjax/README.md", "gemjax/runs.md", "gemjax/results.md")  # Their examples take 14 seconds.


def pytest_addoption(parser):
    parser.addoption("--run-slow", action="store_true", help="also run the tests marked slow")
    parser.addoption("--run-nightly", action="store_true", help="also run the tests marked slow or nightly")
    parser.addoption("--renew-golden", action="store_true", help="rewrite the golden histories instead of comparing")
    parser.addoption("--renew-reference", action="store_true", help="rewrite gemjax/reference.md instead of comparing")
    parser.addoption("--renew-notebooks", action="store_true", help="store the outputs of notebooks that are executed")
    parser.addoption(
        "--compile-anew", action="store_true", help="do not keep compiled programs in pytest's cache folder"
    )


def pytest_configure(config):
    """Share compiled programs between tests, xdist workers, subprocesses and runs; `--cache-clear` deletes them."""
    # A program that cannot be read (another process may be writing it) or written is compiled as without a cache.
    late = [f"ignore:Error {verb} persistent compilation cache entry" for verb in ("reading", "writing")]
    for ignored in late:
        config.addinivalue_line("filterwarnings", ignored)
    given = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(
        [given, *late] if given else late
    )  # For subprocesses whose stderr tests read.
    if config.getoption("--compile-anew") or not hasattr(config, "cache") or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        folder = config.cache.mkdir("compiled")
        for program in folder.iterdir():  # JAX never deletes any.
            if time.time() - program.stat().st_mtime > DAYS_KEPT * 86_400:
                program.unlink(missing_ok=True)
    except OSError:
        return
    for option, value in (
        ("jax_compilation_cache_dir", str(folder)),
        ("jax_persistent_cache_min_compile_time_secs", 0.0),
        ("jax_persistent_cache_min_entry_size_bytes", -1),
    ):
        os.environ[option.upper()] = str(value)  # For xdist's workers and subprocesses.
        jax.config.update(option, value)


@pytest.hookimpl(trylast=True)  # After `-k` and `-m`.
def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.nodeid.startswith(LONG_PAGES):
            item.add_marker("slow")
    if config.getoption("--run-nightly"):
        return
    left_out = {"nightly"} if config.getoption("--run-slow") else {"nightly", "slow"}
    wanted = lambda item: left_out.isdisjoint(mark.name for mark in item.iter_markers())
    deselected = [item for item in items if not wanted(item)]
    items[:] = filter(wanted, items)
    config.hook.pytest_deselected(items=deselected)
    if hasattr(config, "workeroutput"):
        config.workeroutput["deselected"] = len(deselected)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Count the deselected tests for the last line; under xdist only the workers collect, and each collects all tests."""
    if reporter := node.config.pluginmanager.get_plugin("terminalreporter"):
        reporter.stats["deselected"] = [node] * getattr(node, "workeroutput", {}).get("deselected", 0)


@pytest.fixture(autouse=True)
def _single_precision_remains():
    """Fail the test that leaves double precision enabled, and not another one an hour later."""
    yield
    left = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", False)
    assert not left, "the test has left double precision enabled"


@pytest.fixture
def x64():
    """Enable double precision for one test."""
    with enable_x64(True):
        yield
