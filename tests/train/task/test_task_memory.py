"""Networks that do not fit the memory are refused before their parameters are made."""

import re

import jax
import pytest
from flax import linen as nn

from train import cli
from train.task import models, task

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

    init = task._init
    monkeypatch.setattr(task, "_init", shapes_only)
    monkeypatch.setattr(models, "CifarResNet", Large)
    monkeypatch.chdir(tmp_path)
    assert cli.main([*command, *LARGE]) == 2
    assert re.search(REFUSED, capsys.readouterr().err)
    assert not list(tmp_path.iterdir())
