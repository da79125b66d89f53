"""The task of a configuration: data, network, loss and evaluation."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import gemjax
from train.common.errors import DataError
from train.config import networks
from train.config.config import Config
from train.task import losses, models
from train.task.cluster import commits
from train.task.data import load as data
from train.task.data import on_each_host
from train.task.data.augment import augment

PyTree = Any
# Fields that decide a task, besides the seed and the number of its commits.
DECIDING = (
    "dataset",
    "batch_size",
    "model",
    "width",
    "depth",
    "dropout",
    "augment",
    "pool",
    "x64",
    "test_share",
    "image_size",
)


@dataclasses.dataclass(frozen=True)
class Task:
    """A learning problem for any engine. Another seed has other initial parameters and shuffles."""

    params: PyTree
    model_state: PyTree  # Statistics of batch normalisation, the same for each seed; () if there are none.
    loss_fn: Callable
    batches: gemjax.Epochs
    # With `rows`, on the first so many rows of a set only; by default on the test set, or as many training rows.
    # (params, model_state=(), rows=None, device=None) -> (test loss, test accuracy)
    evaluate: Callable[..., tuple[float, float]]
    train_loss: Callable[..., float]  # (params, model_state=(), rows=None) -> loss
    num_commits: int
    params_of: Callable[[int], PyTree]  # seed -> params
    batches_of: Callable[[int], gemjax.Epochs]  # seed -> batches
    data_checksum: Callable[[], str]  # Checksum of training and test data.
    data: str  # Description of the data, in one line.

    def of(self, seed: int) -> "Task":
        """Return the task with the parameters and batches of another seed."""
        return dataclasses.replace(self, params=self.params_of(seed), batches=self.batches_of(seed))


def network(config: Config, dataset: data.Dataset | None = None) -> tuple[Any, Callable[[int], tuple[PyTree, PyTree]]]:
    """Return the Flax module that `config` trains, and a function that initialises it from a seed.

    The function returns parameters and model state; with `--x64` those of single precision, as float64.

    Args:
      config: the run.
      dataset: its data; not needed for what is known before they are prepared.

    Raises:
      DataError: if the network does not fit the rows, or the device has no float64 (a ValueError).
    """
    if dataset is None:
        shape, classes = data.spec(config.dataset, **_files(config))
    else:
        shape, classes = dataset.shape, dataset.num_classes
    name = networks.check_network(config, shape)
    if config.x64 and jax.default_backend() == "tpu":
        raise DataError("--x64 does not work on TPUs, which have no float64; set JAX_PLATFORMS=cpu to use the CPU")
    model = models.build(name, classes, width=config.width, depth=config.depth, dropout=config.dropout)

    def cast(leaf: Any) -> Any:
        return leaf.astype(jnp.float64) if config.x64 and jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    def init(seed: int) -> tuple[PyTree, PyTree]:
        begin = models.init(model, jax.random.key(seed), shape, jnp.int32 if len(shape) == 1 else jnp.float32)
        return jax.tree.map(cast, begin)

    return model, init


def parameter_shapes(config: Config) -> PyTree:
    """Return the shapes of the parameters that `config` trains, without data or compilation."""
    _, init = network(config)
    return jax.eval_shape(lambda: init(config.seed))[0]


def make_task(config: Config) -> Task:
    """Return the task of a configuration, with its data in memory."""
    dataset = data.load(config.dataset, **_files(config))
    test_rows, shape = len(jax.tree.leaves(dataset.test)[0]), dataset.shape
    model, init = network(config, dataset)
    begin = functools.cache(init)  # Flax compiles the initialisation at each call.
    if len(shape) == 1:
        rows = losses.token_rows(model)
    else:  # The middle 28x28 pixels after a shift by up to 2 are a random crop of 28x28.
        shift = functools.partial(augment, pad=2 if config.model == "cnn7" else 4) if config.augment else None
        rows = losses.image_rows(model, dataset.mean, dataset.std, dataset.scale, shift)
    loss_fn, evaluate = losses.make_loss(rows), losses.make_evaluate(rows)

    def batches_of(seed: int) -> gemjax.Epochs:
        batch_size = min(config.batch_size, len(jax.tree.leaves(dataset.train)[0]))
        if config.engine == "cluster":
            return on_each_host.epochs(dataset, batch_size, seed, **_files(config))
        return gemjax.Epochs(dataset.train, batch_size, seed)

    test_on = functools.cache(lambda device: jax.device_put(dataset.test, device))

    def evaluate_now(
        params: PyTree, model_state: PyTree = (), rows: int | None = None, device: jax.Device | None = None
    ) -> tuple[float, float]:
        # Training may have its parameters on other devices, or sharded.
        test = test_on(device)
        params, model_state = jax.device_put((params, model_state), jax.tree.leaves(test)[0].sharding)
        with jax.default_device(
            device
        ):  # The engine's thread has the same setting: another one would need another program.
            loss, accuracy = evaluate(params, model_state, jax.tree.map(lambda column: column[:rows], test))
        return float(loss), float(accuracy)

    def train_loss(params: PyTree, model_state: PyTree = (), rows: int | None = None) -> float:
        count = test_rows if rows is None else min(rows, test_rows)  # The test set's shapes: no compilation.
        some = jax.tree.map(lambda column: column[:count], dataset.train)
        return float(evaluate(params, model_state, jax.device_put(some))[0])

    batches = batches_of(config.seed)
    params, model_state = begin(config.seed)
    return Task(
        params=params,
        model_state=model_state,
        loss_fn=loss_fn,
        batches=batches,
        evaluate=evaluate_now,
        train_loss=train_loss,
        num_commits=commits(config, batches.steps_per_epoch),
        params_of=lambda seed: begin(seed)[0],
        batches_of=batches_of,
        data_checksum=lambda: data.checksum(dataset),
        data=dataset.described(),
    )


def _files(config: Config) -> dict[str, Any]:
    """Return the keywords with which the data of a configuration are loaded."""
    return {name: getattr(config, name) for name in ("data_dir", "manual_dir", "test_share", "image_size", "pool")}
