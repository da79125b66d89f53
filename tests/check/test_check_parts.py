"""The whole check: exit status, reasons, figures, and errors reported before any work."""

import dataclasses
import io
import json
import os
import pathlib
import subprocess
import sys

import pytest
from shrunk import no_file_beyond

import gemjax
from gemjax import check
from gemjax.check import __main__ as command
from gemjax.check import law, machine, parts, speed

HOLDS = law.Law("gem", "float32", 4, 60, (3.0, 8), 2e-7, 1e-4, 6e-8, 3e-2, same_bits=True)


@pytest.fixture
def quick_parts(monkeypatch):
    """Replace the parts by ones that take no time; a test breaks the part that it is about."""
    fakes = {
        "check_law": lambda name, dtype, *args, **options: HOLDS,
        "measure_speed": lambda units, *args: speed.Speed(1000, 64, 4, 2000.0, 1830.0, 1000.0),
        "measure_overlap": lambda *args: speed.Overlap(2, 1.93, 1.8, 0.02, "Truly asynchronous."),
        "measure_windows": lambda *args: speed.Windows(1000, 32, {1: 900.0, 32: 1800.0}, 1),
        "peak_memory": lambda: machine.Memory({"gpu:0": (2**30, 2**31)}, 2**20),
    }
    for name, part in fakes.items():
        monkeypatch.setattr(parts, name, part)


def test_a_check_that_passes(quick_parts, capsys, tmp_path):
    assert command.main(["--workers", "4", "--json", str(tmp_path / "figures.json")]) == 0
    out = capsys.readouterr().out
    verdict = out.splitlines()[-1]
    assert verdict.startswith(f"  gemjax {gemjax.__version__} works on 9 × cpu (")
    assert verdict.endswith(
        "the law holds to 2.0e-07 in float32 (allowed 1e-04), 4 workers, 1.9 gradients at once, 1,830 commits/s (0.92 of a "
        "bare loop)"
    )
    for part in ("machine", "law:", "speed:", "overlap", "simulator:", "memory", "verdict"):
        assert f"\n{part}" in f"\n{out}"
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["passed"] is True
    assert figures["devices"]["central"] == "cpu:8"
    assert figures["windows"]["rates"] == {"1": 900.0, "32": 1800.0}
    assert len(figures["speed"]) == len(speed.MODELS)


def test_an_encoding_without_the_signs_of_the_report_is_no_failure(quick_parts, monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    assert command.main(["--workers", "4"]) == 0
    output.seek(0)
    assert "\\xd7" in output.read()


def test_a_law_that_is_violated(quick_parts, capsys, monkeypatch):
    violated = dataclasses.replace(HOLDS, dtype="float64", difference=0.1)
    monkeypatch.setattr(parts, "check_law", lambda name, dtype, *_, **__: violated if dtype == "float64" else HOLDS)
    assert command.main(["--quick"]) == 1
    out = capsys.readouterr().out
    assert "FAILED                 law (gem, float64): the replay differs from the run by" in out
    assert "do not rely on replays" in out
    assert "FAILED the check on 9 × cpu" in out.splitlines()[-1]
    assert "1,830.0" in out  # The other parts ran.


@pytest.mark.parametrize("part", ["measure_speed", "check_law", "measure_overlap", "measure_windows", "peak_memory"])
def test_a_part_that_raises_does_not_stop_the_others(part, quick_parts, capsys, monkeypatch):
    def broken(*args, **options):
        raise ValueError("odd")

    monkeypatch.setattr(parts, part, broken)
    assert command.main(["--quick"]) == 1
    captured = capsys.readouterr()
    assert "odd" in captured.out.splitlines()[-1]
    assert "send this output, with the traceback" in captured.out
    assert "ValueError: odd" in captured.err  # The traceback.
    others = {
        "measure_speed": "1,830.0",
        "measure_overlap": "1.9 on 2",
        "measure_windows": "1,800.0",
        "peak_memory": "1 GiB of",
    }
    assert all((text in captured.out) == (name != part) for name, text in others.items())


def test_a_file_that_cannot_be_written_is_refused_before_any_work(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(check, "run", lambda *args, **options: pytest.fail("it ran"))
    with pytest.raises(SystemExit) as stopped:
        command.main(["--json", str(tmp_path / "missing" / "figures.json")])
    assert stopped.value.code == 2
    assert "cannot be written; name another file" in capsys.readouterr().err


def test_a_full_disk_leaves_the_figures_of_before(quick_parts, capsys, tmp_path):
    path = tmp_path / "figures.json"
    path.write_text('{"passed": true, "verdict": "before"}')
    with no_file_beyond(60):
        assert command.main(["--workers", "4", "--json", str(path)]) == 1
    assert f"the figures could not be saved in {path} (File too large)" in capsys.readouterr().err
    assert path.read_text() == '{"passed": true, "verdict": "before"}'


@pytest.mark.slow
def test_from_the_command_line_beside_a_broken_plugin(tmp_path):
    """A plugin of JAX that cannot start is reported, and the CPU is checked."""
    plugin = tmp_path / "jax_plugins" / "broken" / "__init__.py"
    plugin.parent.mkdir(parents=True)
    plugin.write_text("def initialize():\n    raise RuntimeError('the driver is too old')\n")
    root = str(pathlib.Path(gemjax.__file__).parent.parent)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"}
    environment.pop("JAX_PLATFORMS", None)
    finished = subprocess.run(
        [sys.executable, "-m", "gemjax.check", "--quick", "--cpu-devices", "3", "--workers", "3", "--json", "figures.json"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["passed"]
    assert "the driver is too old" in figures["devices"]["messages"][0]
    assert figures["devices"]["workers"] == ["cpu:0", "cpu:1", "cpu:0"]
    assert [(one["method"], one["dtype"]) for one in figures["law"]] == [
        ("gem", "float32"), ("easgd, local steps", "float32"), ("gem", "float64"),
    ]  # fmt: skip
    assert all(one["difference"] <= one["allowed"] for one in figures["law"])
    assert "JAX warned when it started" in finished.stdout.splitlines()[-1]
