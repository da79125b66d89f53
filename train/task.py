"""What is trained: data, network, loss and evaluation of a configuration."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import gemjax
from train import data, models
from train.config import Config

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Task:
    """A learning problem, ready for any engine; another seed has other initial parameters and shuffles."""

    params: PyTree
    loss_fn: Callable
    batches: gemjax.Epochs
    evaluate: Callable[[PyTree], tuple[float, float]]  # params -> (test loss, test accuracy)
    train_loss: Callable[[PyTree], float]  # params -> loss on as many training rows as there are test rows
    num_commits: int
    params_of: Callable[[int], PyTree]  # seed -> params
    batches_of: Callable[[int], gemjax.Epochs]  # seed -> batches


def network(config: Config) -> Any:
    """The Flax module that `config` trains."""
    return models.DigitsCNN() if config.dataset == "digits" else models.GemCNN(dropout=config.dropout)


def parameter_shapes(config: Config) -> PyTree:
    """The parameters that `config` trains, as shapes; neither needs data nor compiles."""
    shape = data.image_shape(config.dataset)
    return jax.eval_shape(lambda: models.init_params(network(config), jax.random.key(config.seed), shape))


def make_task(config: Config) -> Task:
    """Reads the data and builds the network that `config` asks for."""
    dataset = data.load(config.dataset, data_dir=config.data_dir, manual_dir=config.manual_dir)
    model = network(config)
    normalisation = (dataset.mean, dataset.std, dataset.scale)

    @functools.cache  # Flax compiles the initialisation anew each time.
    def params_of(seed: int) -> PyTree:
        return models.init_params(model, jax.random.key(seed), dataset.train["image"].shape[1:])

    def batches_of(seed: int) -> gemjax.Epochs:
        return gemjax.Epochs(dataset.train, min(config.batch_size, len(dataset.train["label"])), seed)

    evaluate = models.make_evaluate(model, *normalisation)
    images, labels = jax.device_put((dataset.test["image"], dataset.test["label"]))

    def evaluate_now(params: PyTree) -> tuple[float, float]:
        loss, accuracy = evaluate(jax.device_put(params, images.sharding), images, labels)
        return float(loss), float(accuracy)

    def train_loss(params: PyTree) -> float:
        some = len(dataset.test["label"])  # The same shapes: nothing is compiled for them.
        rows = jax.device_put((dataset.train["image"][:some], dataset.train["label"][:some]))
        return float(evaluate(params, *rows)[0])

    batches = batches_of(config.seed)
    return Task(
        params=params_of(config.seed),
        loss_fn=models.make_loss(model, *normalisation),
        batches=batches,
        evaluate=evaluate_now,
        train_loss=train_loss,
        num_commits=max(1, int(np.ceil(config.workers * config.epochs * batches.steps_per_epoch / config.period))),
        params_of=params_of,
        batches_of=batches_of,
    )
