"""Short runs of the command line in this process, and the fixtures of their tests."""

import functools
import io

import pytest
from rich.console import Console
from shrunk import dense

import gemjax
from train.config.config import Config
from train.run import engine, figures
from train.run import train as training
from train.run.folder import RunFolder


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    return str(tmp_path_factory.mktemp("data"))


@pytest.fixture
def small(data_dir, tmp_path, monkeypatch):
    """Return a run of 33 commits; its callback is called after commits, at no time that depends on the machine.

    Its picture is left out: it takes longer than such a run.
    """
    monkeypatch.setattr(engine, "CALLBACK_SECONDS", 1e6)
    monkeypatch.setattr(figures, "draw_run", lambda *_: None)
    return Config(
        workers=3,
        epochs=1.0,
        batch_size=128,
        learning_rate=0.1,
        data_dir=data_dir,
        out=str(tmp_path / "run"),
        eval_every=11,
    )


@pytest.fixture
def tiny(monkeypatch):
    dense(monkeypatch)


def run(config, folder=None):
    output = io.StringIO()
    folder = folder or RunFolder.fresh(config)
    summary = training.train(config, folder, Console(file=output, width=200))
    return folder, summary, output.getvalue()


def hanging(monkeypatch, gate):
    """Pass `gate` to all later runs."""
    monkeypatch.setattr(gemjax, "run_on_devices", functools.partial(gemjax.run_on_devices, gate=gate))
