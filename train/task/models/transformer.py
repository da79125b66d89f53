"""A small decoder-only transformer that models language byte by byte."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

init = nn.initializers.normal(0.02)


def rotate(vectors: jax.Array) -> jax.Array:
    """Apply rotary positions (Su et al. 2021, arXiv:2104.09864): [B, L, heads, d], each half pair turned by its position.

    The scalar product of two rotated vectors depends on how far apart they are, not on where.
    """
    length, half = vectors.shape[1], vectors.shape[-1] // 2
    frequencies = 10_000.0 ** (-jnp.arange(half) / half)
    angles = (jnp.arange(length)[:, None] * frequencies[None]).astype(vectors.dtype)[None, :, None]
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    first, second = vectors[..., :half], vectors[..., half:]
    return jnp.concatenate([first * cosine - second * sine, first * sine + second * cosine], axis=-1)


class Attention(nn.Module):
    """Causal self-attention with `heads` heads."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        batch, length, units = x.shape
        qkv = nn.Dense(3 * units, use_bias=False, kernel_init=init)(x)
        qkv = qkv.reshape(batch, length, 3, self.heads, units // self.heads)
        query, key, value = rotate(qkv[:, :, 0]), rotate(qkv[:, :, 1]), qkv[:, :, 2]
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * (units // self.heads) ** -0.5
        past = jnp.tril(jnp.ones((length, length), bool))
        weights = jax.nn.softmax(jnp.where(past[None, None], scores, -jnp.inf))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(batch, length, units)
        return nn.Dense(units, use_bias=False, kernel_init=init)(mixed)


class Transformer(nn.Module):
    """A pre-norm transformer (Vaswani et al. 2017; Radford et al. 2019): 1,246,848 parameters with its defaults.

    An embedding, `depth` blocks of attention and a GELU layer of four times the units, a dense layer to the vocabulary;
    12 * depth * units**2 parameters and few more. Layers are normalised at their entrance, which lets the network
    train without warm-up (Xiong et al. 2020), and have no biases. Positions are rotary: they have no
    parameters, so a network does not depend on the length of the rows that it was trained on.

    Args:
      vocabulary: number of tokens; 256 are bytes.
      depth: blocks.
      width: factor on 128 units: 1, 2 and 4 make 1.2, 4.8 and 19 million parameters.
      units_a_head: units of an attention head, even.
    """

    vocabulary: int = 256
    depth: int = 6
    width: float = 1.0
    units_a_head: int = 32

    @nn.compact
    def __call__(self, tokens: jax.Array, train: bool = False) -> jax.Array:
        """Return logits [B, L, vocabulary] of the token after each of `tokens`, int [B, L]."""
        del train  # The same network in training and in evaluation.
        heads = max(1, round(128 * self.width / self.units_a_head))
        units = heads * self.units_a_head
        norm = lambda x: nn.LayerNorm(epsilon=1e-5, use_bias=False)(x)
        x = nn.Embed(self.vocabulary, units, embedding_init=init)(tokens)
        for _ in range(self.depth):
            x = x + Attention(heads)(norm(x))
            hidden = nn.gelu(nn.Dense(4 * units, use_bias=False, kernel_init=init)(norm(x)))
            x = x + nn.Dense(units, use_bias=False, kernel_init=init)(hidden)
        return nn.Dense(self.vocabulary, use_bias=False, kernel_init=init)(norm(x))
