"""What is trained: data, network, loss and evaluation of a configuration."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gemjax
from train.config import networks
from train.config.config import Config
from train.task import cluster as pace
from train.task import losses, models
from train.task.data import load as data
from train.task.data.augment import augment
from train.task.evaluate import make_evaluate

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Task:
    """A learning problem, ready for any engine; another seed has other initial parameters and shuffles."""

    params: PyTree
    model_state: PyTree  # Statistics of batch normalisation, the same for each seed; () where there are none.
    loss_fn: Callable
    batches: gemjax.Epochs
    evaluate: Callable[..., tuple[float, float]]  # (params, model_state=()) -> (test loss, test accuracy)
    train_loss: Callable[..., float]  # (params, model_state=()) -> loss on as many training rows as there are test rows
    num_commits: int
    params_of: Callable[[int], PyTree]  # seed -> params
    batches_of: Callable[[int], gemjax.Epochs]  # seed -> batches


def network(config: Config, shape: tuple[int, ...], classes: int) -> Any:
    """The Flax module that `config` trains on rows of `shape` with so many classes, or different tokens.

    Raises:
      DataError: if it does not fit them (a ValueError).
    """
    networks.check(config.model, config.dataset, shape, (), config.depth, config.augment)
    return models.build(config.model, shape, classes, width=config.width, depth=config.depth, dropout=config.dropout)


def parameter_shapes(config: Config) -> PyTree:
    """The parameters that `config` trains, as shapes; neither needs data nor compiles."""
    row = data.spec(config.dataset, data_dir=config.data_dir)
    model = network(config, row.shape, row.num_classes)
    return jax.eval_shape(lambda: _init(model, row.shape, config.seed))[0]


def make_task(config: Config) -> Task:
    """Reads the data and builds the network that `config` asks for."""
    dataset = data.load(config.dataset, data_dir=config.data_dir, manual_dir=config.manual_dir)
    test_rows = len(jax.tree.leaves(dataset.test)[0])
    text = "tokens" in dataset.train
    shape = (dataset.train["tokens"].shape[1] - 1,) if text else dataset.train["image"].shape[1:]
    model = network(config, shape, dataset.num_classes)
    rows = losses.token_rows(model) if text else _image_rows(config, model, dataset)
    evaluate = make_evaluate(rows)

    @functools.cache  # Flax compiles the initialisation anew each time.
    def begin(seed: int) -> tuple[PyTree, PyTree]:
        return _init(model, shape, seed)

    def batches_of(seed: int) -> gemjax.Epochs:
        return gemjax.Epochs(dataset.train, min(config.batch_size, len(jax.tree.leaves(dataset.train)[0])), seed)

    test = jax.device_put(dataset.test)

    def evaluate_now(params: PyTree, model_state: PyTree = ()) -> tuple[float, float]:
        # Where the test set is; what is trained may be elsewhere, or spread.
        where = jax.tree.leaves(test)[0].sharding
        there = jax.device_put((params, model_state), where)
        loss, accuracy = evaluate(there[0], there[1], test)
        return float(loss), float(accuracy)

    def train_loss(params: PyTree, model_state: PyTree = ()) -> float:
        some = jax.tree.map(lambda column: column[:test_rows], dataset.train)  # The same shapes: nothing is compiled.
        return float(evaluate(params, model_state, jax.device_put(some))[0])

    batches = batches_of(config.seed)
    params, model_state = begin(config.seed)
    return Task(
        params=params,
        model_state=model_state,
        loss_fn=losses.make_loss(rows),
        batches=batches,
        evaluate=evaluate_now,
        train_loss=train_loss,
        num_commits=max(
            1, int(np.ceil(config.workers * config.epochs * batches.steps_per_epoch / pace.mean_period(config)))
        ),
        params_of=lambda seed: begin(seed)[0],
        batches_of=batches_of,
    )


def _init(model: Any, shape: tuple[int, ...], seed: int) -> tuple[PyTree, PyTree]:
    return models.init(model, jax.random.key(seed), shape, jnp.int32 if len(shape) == 1 else jnp.float32)


def _image_rows(config: Config, model: Any, dataset: data.Dataset) -> losses.Rows:
    shift = None
    if config.augment:
        # A shift by 2 pixels and the centre of 28x28 are a random crop of 28x28.
        shift = functools.partial(augment, pad=2 if config.model == "cnn7" else 4)
    return losses.image_rows(model, dataset.mean, dataset.std, dataset.scale, shift)
