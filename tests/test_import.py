"""Import of a checkout that is not installed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

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
