"""Names of the package: those that moved, and the import of a checkout that is not installed."""

import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import gemjax

ROOT = Path(__file__).parents[1]
PLACES = ("gemjax", "train", "tests", "colab", "README.md", "CONTRIBUTING.md")
# In gemjax itself before gemjax.rules.
MOVED = (
    "ReadsStaleParams", "Slots", "StalenessSchedule", "aggregate_last", "align_with_momentum",
    "average_elastically", "average_position", "by_fragment", "compensate_delay", "correct_one_step_delay",
    "dana_momentum", "delay_momentum", "delay_stages", "discount_momentum", "displacements", "drop_stale",
    "dynamic_periods", "follow_leader", "gather", "gather_fresh", "gather_per_worker", "hinge_weight",
    "look_ahead_momentum", "match_energy", "merge_quorum", "mix_with_worker", "polynomial_weight",
    "pull_to_anchors", "scale_by_gap", "scale_by_local_steps", "scale_by_progress", "scale_by_staleness",
    "stage_momentum", "take_turns", "tune_momentum", "weigh_samples",
)  # fmt: skip

NOT_INSTALLED = """
import importlib.metadata

found = importlib.metadata.Distribution.from_name

def from_name(name):
    if name == "gemjax":
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)

importlib.metadata.Distribution.from_name = from_name
"""


@pytest.mark.slow
def test_a_checkout_that_is_not_installed_can_be_imported(tmp_path):
    (tmp_path / "gemjax").symlink_to(ROOT / "gemjax", target_is_directory=True)
    code = f"{NOT_INSTALLED}\nimport gemjax\nprint(gemjax.__version__, gemjax.gem(0.1).init(1.0).clock)"
    environment = {"PYTHONPATH": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == ("0+unknown 0\n", "")


@pytest.mark.parametrize("name", MOVED)
def test_an_old_name_warns_and_is_the_same_object(name):
    with pytest.warns(DeprecationWarning, match=rf"^gemjax\.{name} is gemjax\.rules\.{name} now"):
        assert getattr(gemjax, name) is getattr(gemjax.rules, name)


def test_no_file_uses_an_old_name():
    files = [path for place in PLACES for path in [ROOT / place, *(ROOT / place).rglob("*")]]
    old = re.compile(rf"\bgemjax\.(?:{'|'.join(MOVED)})\b|from gemjax import [^\n]*\b(?:{'|'.join(MOVED)})\b")
    found = {
        str(path.relative_to(ROOT)): old.findall(path.read_text(encoding="utf-8"))
        for path in files
        if path.suffix in (".py", ".md", ".ipynb")
    }
    assert {path: names for path, names in found.items() if names} == {}


def test_the_package_lists_few_names_and_no_module_of_python():
    is_method = lambda name: getattr(getattr(gemjax, name), "__module__", "").startswith("gemjax.methods.")
    others = [name for name in dir(gemjax) if not is_method(name)]
    assert len(others) <= 49, "what only rules need is in gemjax.rules"
    modules = [value for name in dir(gemjax) if isinstance(value := getattr(gemjax, name), types.ModuleType)]
    assert all(module.__name__.startswith("gemjax.") for module in modules)
    with pytest.raises(AttributeError, match="module 'gemjax' has no attribute 'gen'"):
        gemjax.gen  # noqa: B018 - access is what is tested.


@pytest.mark.slow
def test_optional_packages_and_parts_are_imported_on_demand():
    code = "import gemjax, sys; print({'ray', 'matplotlib', 'gemjax.check', 'gemjax.telemetry.plotting'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
