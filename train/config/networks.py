"""The networks of the command line: facts about each, and the data that they fit."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from train.common.errors import DataError, either


@dataclasses.dataclass(frozen=True)
class NetworkFacts:
    """Facts about a network.

    Args:
      class_name: name of its class in `train.task.models`.
      side: least height and width of its images, in pixels; 0 if it takes tokens.
      flags: of `dropout`, `width` and `depth`, those that it has.
      layers: if it has a depth, the possible ones are `layers[0]` n + `layers[1]` for n of at least 1.
    """

    class_name: str
    side: int
    flags: frozenset[str] = frozenset({"width"})
    layers: tuple[int, int] = (1, 0)


NETWORKS = {
    "mlp": NetworkFacts("MLP", 1),
    "digits_cnn": NetworkFacts("DigitsCNN", 4, frozenset()),
    "gem_cnn": NetworkFacts("GemCNN", 16, frozenset({"dropout"})),
    "pooled_cnn": NetworkFacts("PooledCNN", 10),
    "batchnorm_cnn": NetworkFacts("BatchNormCNN", 4),
    "cnn7": NetworkFacts("CNN7", 28, frozenset({"dropout", "width"})),
    "resnet20": NetworkFacts("CifarResNet", 4, frozenset({"width", "depth"}), (6, 2)),
    "resnet50": NetworkFacts("ResNet50", 32),
    "transformer": NetworkFacts("Transformer", 0, frozenset({"width", "depth"})),
}
if TYPE_CHECKING:
    ModelName = str
else:
    ModelName = Literal[("auto", *NETWORKS)]


def pooled(shape: tuple[int, ...], pool: int) -> tuple[int, ...]:
    """Return the shape of images of `shape` after squares of `pool` pixels a side have been averaged.

    Raises:
      DataError: if the images cannot be divided into such squares, or if it is a text (a ValueError).

    >>> pooled((32, 32, 3), 2)
    (16, 16, 3)
    """
    if pool == 1:
        return shape
    *sides, channels = shape
    if not sides or any(side % pool for side in sides):
        raise DataError(f"--pool must divide the sides of images; got {pool} for rows of the shape {shape}")
    return (*(side // pool for side in sides), channels)


def own(shape: tuple[int, ...]) -> str:
    """Return the network that `auto` means for rows of `shape`.

    >>> own((8, 8, 1)), own((28, 28, 1)), own((32, 32, 3)), own((224, 224, 3)), own((128,)), own((1, 1, 20))
    ('digits_cnn', 'gem_cnn', 'resnet20', 'resnet50', 'transformer', 'mlp')
    """
    if len(shape) == 1:
        return "transformer"
    side, channels = min(shape[:2]), shape[2]
    if side < NETWORKS["digits_cnn"].side:
        return "mlp"
    if side < NETWORKS["gem_cnn"].side:
        return "digits_cnn"
    if channels == 1 and side <= 32:
        return "gem_cnn"
    return "resnet20" if side < 64 else "resnet50"


def fitting(shape: tuple[int, ...]) -> list[str]:
    """Return the networks that take rows of `shape`.

    >>> fitting((8, 8, 1))
    ['mlp', 'digits_cnn', 'batchnorm_cnn', 'resnet20']
    """
    if len(shape) == 1:
        return [name for name, network in NETWORKS.items() if not network.side]
    return [name for name, network in NETWORKS.items() if 0 < network.side <= min(shape[:2])]


def check_network(config: Any, shape: tuple[int, ...] | None) -> str:
    """Return the network of a configuration, after a check that it fits the data and has the flags that were changed.

    Args:
      config: the configuration.
      shape: shape of a row; None if it is not known yet, when the network `auto` stays so.

    Raises:
      DataError: if not, with the flag and the networks that fit (a ValueError).
    """
    model, depth = config.model, config.depth
    if model == "auto" and shape is None:
        return model
    name = own(shape) if model == "auto" and shape else model
    network = NETWORKS[name]
    if shape is not None and name not in fitting(shape):
        wanted = f"images of at least {network.side}x{network.side} pixels" if network.side else "text"
        has = "text" if len(shape) == 1 else "images of " + "x".join(map(str, shape[:2]))
        others = (
            f"which {either(fitting(shape))} takes"
            if fitting(shape)
            else "which no network takes; give a smaller --pool"
        )
        raise DataError(f"--model {name} takes {wanted}; {config.dataset} has {has}, {others}")
    if config.augment and (not network.side or (shape is not None and shape[:2] == (1, 1))):
        raise DataError(f"--augment is for images; --dataset {config.dataset} has none")
    for field in dataclasses.fields(config):
        having = [other for other, its in NETWORKS.items() if field.name in its.flags]
        if having and name not in having and getattr(config, field.name) != field.default:
            raise DataError(f"--{field.name} acts only with --model {either(having)}; the model is {name}")
    step, besides = network.layers
    if depth is not None and (depth < step + besides or (depth - besides) % step):
        formula = f"{step} n + {besides} with n of at least 1" if besides else "at least 1"
        raise DataError(f"--depth of {name} must be {formula}; got {depth}")
    return name
