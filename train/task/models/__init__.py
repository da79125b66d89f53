"""Networks for images and for text.

They are Flax Linen modules: Linen's `init` and `apply` are pure functions of a pytree of parameters, as the library's engines
need. Networks for images take normalised floating-point images [B, H, W, C], the network for text takes tokens, int [B, L].
They compute in the dtype of the parameters and images. The model state holds statistics of batch normalisation; it is `()` if
there are none.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from train.common.errors import UsageError
from train.config.networks import NETWORKS
from train.task.models.cnn7 import CNN7
from train.task.models.gem_cnn import GemCNN
from train.task.models.resnet import CifarResNet, ResNet50
from train.task.models.small import MLP, BatchNormCNN, DigitsCNN, PooledCNN
from train.task.models.transformer import Transformer

__all__ = [
    "CNN7",
    "MLP",
    "BatchNormCNN",
    "CifarResNet",
    "DigitsCNN",
    "GemCNN",
    "PooledCNN",
    "ResNet50",
    "Transformer",
    "build",
    "init",
]

PyTree = Any


def init(model: nn.Module, key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> tuple[PyTree, PyTree]:
    """Return the initial parameters and the initial model state of `model`.

    Args:
      model: a network.
      key: decides the parameters.
      shape: shape of one input: [H, W, C] for images, [L] for tokens.
      dtype: type of its inputs; an integer type for tokens.

    Raises:
      UsageError: if it has other variables than `params` and `batch_stats`.

    >>> params, model_state = init(CifarResNet(depth=8), jax.random.key(0), (8, 8, 3))
    >>> sum(leaf.size for leaf in jax.tree.leaves(params)), list(model_state)
    (75290, ['batch_stats'])
    """
    example = jax.ShapeDtypeStruct((1, *shape), dtype)
    variables = dict(model.lazy_init(key, example))  # The forward pass is traced, not computed.
    params = variables.pop("params")
    if others := sorted(variables.keys() - {"batch_stats"}):
        raise UsageError(
            f"the network {type(model).__name__} has variables in {', '.join(others)}; the model state of `train` holds "
            "batch_stats alone, so keep them there, or train with the library, whose losses return any model state"
        )
    return params, variables or ()


def build(
    model: str,
    classes: int,
    *,
    width: float = 1.0,
    depth: int | None = None,
    dropout: float = 0.5,
) -> Any:
    """Return the Flax module of a network; options that it does not have are ignored.

    `classes` is the number of classes of images, or of different tokens.
    """
    network = NETWORKS[model]
    given = {"width": width, "depth": depth, "dropout": dropout}
    options = {name: value for name, value in given.items() if name in network.flags and value is not None}
    options["num_classes" if network.side else "vocabulary"] = classes
    return globals()[network.class_name](**options)
