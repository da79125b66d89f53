"""The whole check: exit status, reasons, figures, and errors reported before any work."""

import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

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


@pytest.mark.slow
def test_a_law_that_is_violated(quick_parts, capsys, monkeypatch):
    """A simulator that does nothing is found by the real check of the law, used here for one method."""
    real = law.check_law
    monkeypatch.setattr(
        gemjax, "simulate", lambda tx, loss_fn, params, *args, **options: SimpleNamespace(params=params)
    )
    monkeypatch.setattr(
        parts, "check_law",
        lambda name, dtype, *args, **options: real("dc_asgd", dtype, gemjax.place(3), 24) if dtype == "float64" else HOLDS,
    )  # fmt: skip
    assert command.main(["--quick"]) == 1
    out = capsys.readouterr().out
    assert "FAILED                 law (gem, float64): the replay differs from the run by" in out
    assert "do not rely on replays" in out
    assert "FAILED the check on 9 × cpu" in out.splitlines()[-1]
    assert "1,830.0" in out  # The other parts ran.


@pytest.mark.parametrize(
    ("part", "error", "advice"),
    [
        ("measure_speed", RuntimeError("RESOURCE_EXHAUSTED: out of memory"), "free the devices' memory"),
        ("check_law", ValueError("odd"), "send this output, with the traceback"),
        ("measure_overlap", ValueError("odd"), "send this output"),
        ("measure_windows", ValueError("odd"), "send this output"),
        ("peak_memory", ValueError("odd"), "send this output"),
    ],
)
def test_a_part_that_raises_does_not_stop_the_others(part, error, advice, quick_parts, capsys, monkeypatch):
    def broken(*args, **options):
        raise error

    monkeypatch.setattr(parts, part, broken)
    assert command.main(["--quick"]) == 1
    captured = capsys.readouterr()
    assert str(error) in captured.out.splitlines()[-1]
    assert advice in captured.out
    assert f"{type(error).__name__}: {error}" in captured.err  # The traceback.
    others = {
        "measure_speed": "1,830.0",
        "measure_overlap": "1.9 on 2",
        "measure_windows": "1,800.0",
        "peak_memory": "1 GiB of",
    }
    assert all((text in captured.out) == (name != part) for name, text in others.items())


@pytest.mark.parametrize(
    ("platforms", "devices", "advice"),
    [
        ("cuda", AssertionError(), "install the plugin of JAX for cuda"),
        ("tpu", RuntimeError("Unable to initialize backend 'tpu': no libtpu.so"), "install the plugin of JAX for tpu"),
        ("cuda", RuntimeError("Unknown backend cpu"), "set JAX_PLATFORMS=cuda,cpu"),
    ],
)
def test_machines_without_the_requested_devices(platforms, devices, advice, monkeypatch, capsys):
    def local_devices(backend=None):
        if backend is None and "Unknown" in str(devices):
            return ["an accelerator"]
        raise devices

    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setattr(parts.jax, "local_devices", local_devices)
    assert command.main(["--quick"]) == 1
    out = capsys.readouterr().out
    assert advice in out
    assert f"environment            JAX_PLATFORMS={platforms}" in out


def test_a_file_that_cannot_be_written_is_refused_before_any_work(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(check, "run", lambda *args, **options: pytest.fail("it ran"))
    with pytest.raises(SystemExit) as stopped:
        command.main(["--json", str(tmp_path / "missing" / "figures.json")])
    assert stopped.value.code == 2
    assert "cannot be written (No such file or directory); name another file" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, '{"passed": true, "verdict": "before"}'])
def test_a_check_that_is_interrupted_leaves_the_file_as_it_was(monkeypatch, tmp_path, content):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    path = tmp_path / "figures.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setattr(check, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        command.main(["--json", str(path)])
    assert (path.read_text() if path.exists() else None) == content


def test_a_file_of_the_user_is_not_replaced(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(check, "run", None)
    path = tmp_path / "notes.txt"
    for content in ("my notes", '{"case": 7, "verdict": "guilty"}', '"verdict": 1', "[]"):
        path.write_text(content)
        with pytest.raises(SystemExit):
            command.main(["--json", str(path)])
        assert (
            f"--json {path} is another file, which the check would replace; name another file"
            in capsys.readouterr().err
        )
        assert path.read_text() == content


def test_a_pipe_is_not_opened_before_there_are_figures(quick_parts, tmp_path):
    """Its reader would find its end."""
    path, read = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_text()), daemon=True)
    reader.start()
    assert command.main(["--workers", "4", "--json", str(path)]) == 0
    reader.join(60)
    assert json.loads(read[0])


def test_a_link_to_a_file_that_is_not_there_yet_makes_it(quick_parts, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "figures.json")
    assert command.main(["--workers", "4", "--json", str(tmp_path / "link")]) == 0
    assert json.loads((tmp_path / "link").read_text())


def test_a_full_disk_leaves_the_figures_of_before(quick_parts, capsys, tmp_path):
    path = tmp_path / "figures.json"
    path.write_text('{"passed": true, "verdict": "before"}')
    with no_file_beyond(60):
        assert command.main(["--workers", "4", "--json", str(path)]) == 1
    assert f"the figures could not be saved in {path} (File too large)" in capsys.readouterr().err
    assert path.read_text() == '{"passed": true, "verdict": "before"}'


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("0", "must be from 1 to 1024, got 0"),
        ("99999", "must be from 1 to 1024, got 99999"),
        ("1e3", "must be a whole number, got '1e3'"),
    ],
)
def test_numbers_must_be_positive(given, message, capsys):
    with pytest.raises(SystemExit):
        command.main(["--workers", given])
    assert f"argument --workers: {message}" in capsys.readouterr().err


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


@pytest.mark.slow
def test_the_library_does_not_import_it():
    command = "import gemjax, sys; assert 'gemjax.check' not in sys.modules"
    subprocess.run([sys.executable, "-c", command], check=True, timeout=120)


@pytest.mark.slow
def test_ctrl_c_ends_it_in_one_line():
    process = subprocess.Popen(
        [sys.executable, "-m", "gemjax.check", "--quick"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.readline()  # It has begun.
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, "gemjax.check: interrupted\n")


def said_to(output):
    command = "from gemjax.check.__main__ import _say; _say('a line'); print('not reached')"
    found = subprocess.run(
        [sys.executable, "-c", command], stdout=output, stderr=subprocess.PIPE, text=True, timeout=120, check=False
    )
    return found.returncode, found.stderr


@pytest.mark.slow
def test_output_whose_reader_has_ended_ends_it_without_a_word():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert said_to(writer) == (141, "")
    finally:
        os.close(writer)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no full device")
def test_output_on_a_full_disk_ends_it_in_one_line():
    with open("/dev/full", "w") as full:
        assert said_to(full) == (1, "gemjax.check: the output cannot be written: No space left on device\n")
