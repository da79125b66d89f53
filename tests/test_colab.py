"""The notebooks run from top to bottom, each in a fresh kernel and away from the checkout."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

COLAB = "https://colab.research.google.com/github/gemjax/gemjax/blob/main/colab/"
NOTEBOOKS = sorted((Path(__file__).parents[1] / "colab").glob("*.ipynb"))
TIMEOUT = 600  # Seconds a cell.


def read(path):
    return nbformat.read(path, as_version=4)


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_valid_stored_without_outputs_and_linked_to_itself(path):
    notebook = read(path)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
    assert f"({COLAB}{path.name})" in notebook.cells[0].source


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_and_its_claims_hold(path, tmp_path, monkeypatch):
    for name in ("IPYTHONDIR", "MPLCONFIGDIR", "TFDS_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    workplace = tmp_path / "workplace"
    workplace.mkdir()
    notebook = read(path)
    client = NotebookClient(
        notebook, timeout=TIMEOUT, kernel_name="python3", resources={"metadata": {"path": str(workplace)}}
    )
    client.execute()
    executed = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in executed)
    assert list(workplace.iterdir()) == []
