"""The networks by the names that the command line knows, and which data each of them fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Literal

from train.common.errors import DataError

ModelName = Literal[
    "auto",
    "digits_cnn",
    "gem_cnn",
    "cnn7",
    "resnet20",
    "vgg16",
    "wrn_16_4",
    "alexnet",
    "resnet50",
    "transformer",
]

SHAPES: dict[str, tuple[int, ...]] = {
    "digits": (8, 8, 1),
    "mnist": (28, 28, 1),
    "fashion_mnist": (28, 28, 1),
    "cifar10": (32, 32, 3),
    "cifar10_jpeg": (32, 32, 3),
    "cifar100": (32, 32, 3),
    "tiny_shakespeare": (128,),
}
"""Shapes of the rows of the known data sets, [H, W, C] of images and [L] of tokens; others are known once they are read."""


@dataclasses.dataclass(frozen=True)
class Network:
    """What the command line needs to know of a network.

    Args:
      module: the name of its class in `train.task.models`.
      side: pixels a side of the smallest images that it can take; 0 for one that takes tokens.
      flags: of `dropout`, `width` and `depth`, those that it has.
      layers: where it has a depth: of layers, `layers[0]` a step and `layers[1]` besides.
    """

    module: str
    side: int
    flags: frozenset[str] = frozenset({"width"})
    layers: tuple[int, int] = (1, 0)


NETWORKS = {
    "digits_cnn": Network("DigitsCNN", 4, frozenset()),
    "gem_cnn": Network("GemCNN", 16, frozenset({"dropout"})),
    "cnn7": Network("CNN7", 28, frozenset({"dropout", "width"})),
    "resnet20": Network("CifarResNet", 4, frozenset({"width", "depth"}), (6, 2)),
    "vgg16": Network("VGG16", 32),
    "wrn_16_4": Network("WideResNet", 4, frozenset({"width", "depth"}), (6, 4)),
    "alexnet": Network("AlexNet", 64, frozenset({"dropout", "width"})),
    "resnet50": Network("ResNet50", 32),
    "transformer": Network("Transformer", 0, frozenset({"width", "depth"})),
}


def own(shape: tuple[int, ...]) -> str:
    """The network that `auto` means for rows of `shape`.

    >>> own((8, 8, 1)), own((28, 28, 1)), own((32, 32, 3)), own((224, 224, 3)), own((128,))
    ('digits_cnn', 'gem_cnn', 'resnet20', 'resnet50', 'transformer')
    """
    if len(shape) == 1:
        return "transformer"
    side, channels = min(shape[:2]), shape[2]
    if side < NETWORKS["gem_cnn"].side:
        return "digits_cnn"
    if channels == 1 and side <= 32:
        return "gem_cnn"
    return "resnet20" if side < 64 else "resnet50"


def fitting(shape: tuple[int, ...]) -> list[str]:
    """The networks that take rows of `shape`.

    >>> fitting((8, 8, 1))
    ['digits_cnn', 'resnet20', 'wrn_16_4']
    """
    if len(shape) == 1:
        return [name for name, network in NETWORKS.items() if not network.side]
    return [name for name, network in NETWORKS.items() if 0 < network.side <= min(shape[:2])]


def check(
    model: str, dataset: str, shape: tuple[int, ...] | None, changed: Collection[str], depth: int | None, augment: bool
) -> None:
    """Judges a choice of network; where `shape` is not known yet and the network is `auto`, there is nothing to judge.

    Args:
      model: `--model`.
      dataset: `--dataset`.
      shape: of its rows.
      changed: of `dropout` and `width`, those that are not as they are by default.
      depth: `--depth`.
      augment: `--augment`.

    Raises:
      DataError: with the flag, what was found and what fits (a ValueError).
    """
    if model == "auto" and shape is None:
        return
    name = own(shape) if model == "auto" and shape else model
    network = NETWORKS[name]
    if shape is not None and name not in fitting(shape):
        wanted = f"images of at least {network.side}x{network.side} pixels" if network.side else "text"
        has = "text" if len(shape) == 1 else "images of " + "x".join(map(str, shape[:2]))
        raise DataError(f"--model {name} takes {wanted}; {dataset} has {has}, which {_words(fitting(shape))} takes")
    if augment and not network.side:
        raise DataError(f"--augment is for images; --dataset {dataset} is text")
    for one in [*changed, *(["depth"] if depth is not None else [])]:
        if one not in network.flags:
            having = [other for other, its in NETWORKS.items() if one in its.flags]
            raise DataError(f"--{one} acts only with --model {_words(having)}; the model is {name}")
    step, besides = network.layers
    if depth is not None and (depth < step + besides or (depth - besides) % step):
        formula = f"{step} n + {besides} with n of at least 1" if besides else "at least 1"
        raise DataError(f"--depth of {name} must be {formula}; got {depth}")


def _words(names: list[str]) -> str:
    return " or ".join(names)
