"""Networks that do not fit the memory are refused before their parameters are made."""

import re

import jax
import pytest
from flax import linen as nn

from train import cli
from train.config.config import Config
from train.task import memory, models

LARGE = ["--model", "resnet20", "--width", "1000"]
REFUSED = (
    r"train: the run keeps .* GiB \(central variable .* GiB.*\), but .* has .* GiB; take fewer workers, .* narrower"
)


class Large(nn.Module):
    """A network that is traced quickly."""

    num_classes: int
    width: float = 1.0
    depth: int = 20

    @nn.compact
    def __call__(self, images):
        for _ in range(2):
            images = nn.Dense(int(1000 * self.width))(images.reshape(len(images), -1))
        return nn.Dense(self.num_classes)(images)


@pytest.mark.parametrize("command", [[], ["sweep"]])
def test_a_network_that_does_not_fit_is_refused_before_its_parameters_are_made(command, monkeypatch, tmp_path, capsys):
    def shapes_only(*args):
        assert isinstance(jax.numpy.zeros(()), jax.core.Tracer), "parameters are made"  # Not within jax.eval_shape.
        return init(*args)

    init = models.init
    monkeypatch.setattr(models, "init", shapes_only)
    monkeypatch.setattr(models, "CifarResNet", Large)
    monkeypatch.chdir(tmp_path)
    assert cli.main([*command, *LARGE]) == 2
    assert re.search(REFUSED, capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


class Gpu:
    """Placeholder for a GPU with a kilobyte."""

    platform = "gpu"

    def memory_stats(self):
        return {"bytes_limit": 1024}

    def __str__(self):
        return "gpu:0"


def test_the_only_accelerator_must_hold_workers_and_central_variable(monkeypatch):
    cpus, params = jax.devices("cpu"), jax.numpy.zeros(1000)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda platform=None: cpus if platform == "cpu" else [Gpu()])
    monkeypatch.setattr(jax, "local_devices", lambda: [Gpu()])
    with pytest.raises(MemoryError, match=r"but gpu:0 has 1 KiB; take fewer workers, --central host, or"):
        memory.check_memory(Config(), params)
    for central in ("host", "dedicated"):
        memory.check_memory(Config(central=central), params)
    memory.check_memory(Config(central_devices=2), params)  # On the host.
    monkeypatch.setattr(jax, "local_devices", lambda: [Gpu(), Gpu()])
    memory.check_memory(Config(), params)


def test_gradients_that_wait_for_a_quorum_are_counted(monkeypatch):
    """At most eight are in flight on an accelerator, and the quorum's others wait at the central variable."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [Gpu()])
    gradients = lambda quorum: memory._memory(Config(workers=40), jax.numpy.zeros(1000), quorum)["gradients"]
    assert [gradients(1), gradients(5), gradients(40)] == [8 * 4000, 12 * 4000, 40 * 4000]
