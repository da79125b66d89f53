"""Notebooks run from top to bottom, each in a fresh kernel and outside the checkout, and are stored with current outputs."""

import base64
import hashlib
import io
import shlex
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from PIL import Image
from xla_flags import as_users_have_them

COLAB = "https://colab.research.google.com/github/gemjax/gemjax/blob/main/colab/"
FOLDER = Path(__file__).parents[1] / "colab"
IN_CI = "your_own_model"  # It uses Flax NNX, checkpoints, devices, the simulator and pictures.
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
PICTURES = {  # Thumbnails, numbered from 0.
    "quickstart": 3,
    "why_staleness_hurts": 2,
    "your_own_model": 0,
    "your_own_method": 1,
    "a_cluster_in_a_notebook": 0,
}
FOLDED = {"cellView": "form", "jupyter": {"source_hidden": True}}  # Colab and Jupyter show the output alone.
TIMEOUT = 600  # Seconds per cell.
LARGEST = 500_000  # Bytes of a notebook with its pictures.
KEPT = ("stdout", "display_data", "execute_result")  # Outputs; warnings and logs of one machine are not stored.


def read(path):
    return nbformat.read(path, as_version=4)


def digest(notebook):
    """Return the digest of all code of a notebook."""
    return hashlib.sha256(
        "\0".join(cell.source for cell in notebook.cells if cell.cell_type == "code").encode()
    ).hexdigest()


def store(path, notebook):
    """Write an executed notebook with its outputs and the digest of the code that made them."""
    for cell in notebook.cells:
        cell.metadata = FOLDED if cell.source.startswith("# @title") else {}
        if cell.cell_type == "code":
            cell.outputs = [out for out in cell.outputs if out.get("name", out.output_type) in KEPT]
    notebook.metadata["gemjax"] = {"executed": digest(notebook)}
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, path)
    (FOLDER / "thumbnails" / f"{path.stem}.png").write_bytes(thumbnail(notebook, PICTURES[path.stem]))


def thumbnail(notebook, number):
    """Return one of a notebook's pictures, reduced for the page of the gallery."""
    shown = [out.get("data", {}) for cell in notebook.cells for out in cell.get("outputs", ())]
    pictures = [data["image/png"] for data in shown if "image/png" in data]
    picture = Image.open(io.BytesIO(base64.b64decode(pictures[number]))).convert("RGB")
    picture.thumbnail((480, 480))
    small = io.BytesIO()
    picture.quantize(128).save(small, format="png", optimize=True)
    return small.getvalue()


def test_there_are_notebooks():
    assert {path.stem for path in NOTEBOOKS} == set(PICTURES)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_valid_and_linked_to_itself_and_from_the_gallery(path):
    notebook = read(path)
    nbformat.validate(notebook)
    assert f"({COLAB}{path.name})" in notebook.cells[0].source
    gallery = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"(thumbnails/{path.stem}.png)]({path.name})" in gallery
    assert (FOLDER / "thumbnails" / f"{path.stem}.png").stat().st_size < 60_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_has_the_outputs_of_its_code(path):
    notebook = read(path)
    renew = f"pytest tests/test_colab.py --run-nightly --renew-notebooks -k {path.stem}"
    assert notebook.metadata.get("gemjax", {}).get("executed") == digest(notebook), (
        f"its code has changed since it was executed: {renew}"
    )
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert {out.output_type for cell in code for out in cell.outputs} <= {"stream", "display_data", "execute_result"}
    assert code[-1].outputs[-1].text == "All claims hold.\n"
    assert any("image/png" in out.get("data", {}) for cell in code for out in cell.outputs)
    assert path.stat().st_size <= LARGEST


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_code_that_draws_is_folded(path):
    for cell in read(path).cells:
        draws = cell.cell_type == "code" and "style.style()" in cell.source
        assert draws == cell.source.startswith("# @title"), cell.source
        assert cell.metadata == (FOLDED if draws else {})


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_installation_upgrades_no_package(path):
    """An upgrade of JAX alone would break the accelerator plugin of Colab's image, one of protobuf (`gemjax[train]`) others."""
    commands = [line for cell in read(path).cells for line in cell.source.splitlines() if "pip install" in line]
    assert len(commands) == 1
    program, install, quiet, *packages = shlex.split(commands[0])
    assert (program, install, quiet) == ("%pip", "install", "--quiet")
    assert packages[0] == "gemjax @ git+https://github.com/gemjax/gemjax.git"
    assert set(packages[1:]) <= {"flax", "matplotlib", "scikit-learn"}  # Without bounds, so an image keeps its own.


@pytest.mark.notebook
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=pytest.mark.slow if path.stem == IN_CI else pytest.mark.nightly)
        for path in NOTEBOOKS
    ],
)
def test_runs_and_its_claims_hold(path, tmp_path, tmp_path_factory, monkeypatch, request):
    for name in ("IPYTHONDIR", "TFDS_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path_factory.getbasetemp() / "mplconfigdir"))  # With its list of fonts.
    monkeypatch.setenv("XLA_FLAGS", as_users_have_them())
    folder = tmp_path / "folder"
    folder.mkdir()
    notebook = read(path)
    client = NotebookClient(
        notebook, timeout=TIMEOUT, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    executed = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in executed)
    assert list(folder.iterdir()) == []
    if request.config.getoption("--renew-notebooks"):
        store(path, notebook)
