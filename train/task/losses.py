"""Losses per row (the classes of images, the next token of a text), their means, and the evaluation of a whole set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

PyTree = Any
Batch = Mapping[str, jax.Array]
Metrics = dict[str, jax.Array]
Loss = Callable[[PyTree, PyTree, Batch, jax.Array], tuple[jax.Array, tuple[PyTree, Metrics]]]
Augment = Callable[[jax.Array, jax.Array], jax.Array]
Evaluate = Callable[[PyTree, PyTree, Batch], tuple[jax.Array, jax.Array]]

# rows(params, model_state, batch, key) -> (losses [B], fraction that is right [B], new model state). If `key` is None it
# evaluates: without dropout and augmentation, and with running statistics, which stay as they are.
Rows = Callable[[PyTree, PyTree, Batch, jax.Array | None], tuple[jax.Array, jax.Array, PyTree]]


def image_rows(
    model: nn.Module,
    mean: float | Sequence[float],
    std: float | Sequence[float],
    scale: float,
    augment: Augment | None = None,
) -> Rows:
    """Return cross-entropy and correctness of a network on raw images, {"image": uint8 [B, H, W, C], "label": int [B]}.

    Args:
      model: the network.
      mean: mean of the images over all pixels, in units of `scale`; one number, or one per channel.
      std: standard deviation, likewise.
      scale: value of white.
      augment: `augment(images, key) -> images`, for raw images in training.
    """

    def rows(params, model_state, batch, key):
        images = batch["image"]
        if key is not None and augment is not None:
            images = augment(images, jax.random.fold_in(key, 1))
        images = normalise(images, mean, std, scale, _dtype_of(params))
        logits, model_state = _apply(model, params, model_state, images, key)
        right = (logits.argmax(-1) == batch["label"]).astype(logits.dtype)
        return cross_entropy_each(logits, batch["label"]), right, model_state

    return rows


def token_rows(model: nn.Module) -> Rows:
    """Return mean cross-entropy (nats per token) and correctness of the next token over rows {"tokens": int [B, L + 1]}.

    A row is L inputs, the first L tokens, and L answers, the last L. If tokens are bytes the loss is in nats per byte;
    its exponential is the perplexity, and divided by ln 2 it is in bits per byte.
    """

    def rows(params, model_state, batch, key):
        tokens = batch["tokens"].astype(jnp.int32)
        logits, model_state = _apply(model, params, model_state, tokens[:, :-1], key)
        losses = cross_entropy_each(logits, tokens[:, 1:]).mean(-1)
        right = (logits.argmax(-1) == tokens[:, 1:]).mean(-1, dtype=logits.dtype)
        return losses, right, model_state

    return rows


def make_loss(rows: Rows) -> Loss:
    """Return the mean loss of a batch in the form that the engines call.

    The result is `loss_fn(params, model_state, batch, key) -> (loss, (model_state, {"accuracy": …}))`; `key` draws dropout
    masks and augmentation. The loss has no term for weight decay, which is an optax transformation in front of the method
    (`train.task.methods.make_method`), so losses with and without it are comparable.
    """

    def loss_fn(params, model_state, batch, key):
        losses, right, model_state = rows(params, model_state, batch, key)
        return losses.mean(), (model_state, {"accuracy": right.mean()})

    return loss_fn


def make_evaluate(rows: Rows, chunk: int = 1000) -> Evaluate:
    """Return a compiled `evaluate(params, model_state, data) -> (mean loss, accuracy)` over all rows of `data`.

    It takes `chunk` rows at a time, so that memory does not grow with the number of rows. The last chunk is padded, and the
    padding is not counted.
    """

    @jax.jit
    def evaluate(params, model_state, data):
        count = len(jax.tree.leaves(data)[0])
        size = min(chunk, count)
        pad = -count % size
        counted = jnp.arange(count + pad) < count

        def totals(part):
            batch, real = part
            losses, right, _ = rows(params, model_state, batch, None)
            return jnp.where(real, losses, 0).sum(), jnp.where(real, right, 0).sum()

        def chunked(column):
            column = jnp.pad(column, ((0, pad),) + ((0, 0),) * (column.ndim - 1))
            return column.reshape(-1, size, *column.shape[1:])

        losses, right = lax.map(totals, (jax.tree.map(chunked, dict(data)), counted.reshape(-1, size)))
        return losses.sum() / count, right.sum() / count

    return evaluate


def normalise(
    images: jax.Array,
    mean: float | Sequence[float],
    std: float | Sequence[float],
    scale: float,
    dtype: Any = jnp.float32,
) -> jax.Array:
    """Return raw images as floating point: (images / scale - mean) / std, with one mean and std, or one per channel."""
    shift, factor = (
        value if jnp.ndim(value) == 0 else value.reshape((1,) * (images.ndim - 1) + (-1,))
        for value in (jnp.asarray(mean, dtype) * scale, 1.0 / (jnp.asarray(std, dtype) * scale))
    )
    return (images.astype(dtype) - shift) * factor


def cross_entropy_each(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the cross-entropy of each row of `logits` [..., classes] against integer `labels` [...]."""
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean cross-entropy of `logits` [B, classes] against integer `labels` [B]."""
    return cross_entropy_each(logits, labels).mean()


def _apply(model, params, model_state, inputs, key) -> tuple[Any, PyTree]:
    """Return logits and the new model state; `key` is None outside training."""
    train, rngs = key is not None, None if key is None else {"dropout": key}
    if "batch_stats" not in model_state:
        return model.apply({"params": params}, inputs, train=train, rngs=rngs), model_state
    variables = {"params": params, "batch_stats": model_state["batch_stats"]}
    if not train:
        return model.apply(variables, inputs, train=False), model_state
    logits, changed = model.apply(variables, inputs, train=True, rngs=rngs, mutable=["batch_stats"])
    return logits, model_state | changed


def _dtype_of(params: PyTree) -> Any:
    """Return the common type of the parameters, so that float64 parameters see float64 images."""
    return jnp.result_type(*jax.tree.leaves(params))
