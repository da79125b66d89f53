"""Gradients in fewer bytes, whose errors their worker adds to its next gradient (Seide et al., 2014; Sarfi et al., 2025)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.papers import Paper
from gemjax.protocol import Method
from gemjax.protocol.checks import check_between, check_choice, check_positive, integer
from gemjax.protocol.hooks import Code, Sends
from gemjax.protocol.slots import Slots

SEIDE2014ONEBIT = Paper("inproceedings", "seide2014onebit", {
    "author": "Seide, Frank and Fu, Hao and Droppo, Jasha and Li, Gang and Yu, Dong",
    "title": "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of Speech {DNN}s",
    "booktitle": "Interspeech", "year": "2014", "doi": "10.21437/Interspeech.2014-274"})  # fmt: skip
SARFI2025COMMUNICATION = Paper("article", "sarfi2025communication", {
    "author": "Sarfi, Amir and Th{\\'e}rien, Benjamin and Lidin, Joel and Belilovsky, Eugene",
    "title": "Communication Efficient {LLM} Pre-training with {SparseLoCo}",
    "year": "2025", "eprint": "2508.15706"})  # fmt: skip
PAPERS = {"round_to": (SEIDE2014ONEBIT,), "sparsify": (SARFI2025COMMUNICATION,)}
DTYPES = ("bfloat16", "float16", "int8", "int16")


@dataclasses.dataclass(frozen=True)
class Rounded:
    """Numbers in another dtype; whole ones count a unit per array, a power of two, so that no product is rounded."""

    dtype: str

    def encode(self, array: jax.Array) -> tuple[jax.Array, ...]:
        """Return the numbers, and the unit of whole ones."""
        if not self._is_whole:
            return (array.astype(self.dtype),)
        limits, wide = jnp.iinfo(self.dtype), array.astype(jnp.promote_types(array.dtype, jnp.float32))
        _, exponent = jnp.frexp(jnp.max(jnp.abs(wide), initial=0))
        unit = jnp.ldexp(jnp.ones([], wide.dtype), exponent - limits.bits + 1)
        unit = jnp.maximum(unit, jnp.finfo(wide.dtype).tiny)
        return jnp.clip(jnp.round(wide / unit), -limits.max, limits.max).astype(self.dtype), unit

    def decode(self, sent: tuple[jax.Array, ...], like: Any) -> jax.Array:
        """Return the numbers in their own dtype."""
        if not self._is_whole:
            return sent[0].astype(like.dtype)
        return (sent[0].astype(sent[1].dtype) * sent[1]).astype(like.dtype)

    @property
    def _is_whole(self) -> bool:
        return jnp.issubdtype(self.dtype, jnp.integer)


@dataclasses.dataclass(frozen=True)
class Largest:
    """The numbers of largest magnitude in each chunk of an array, with their places."""

    keep: float
    chunk: int

    def encode(self, array: jax.Array) -> tuple[jax.Array, ...]:
        """Return numbers and places, one row per chunk."""
        length, rows = self._shape(array.size)
        chunks = jnp.pad(array.ravel(), (0, rows * length - array.size)).reshape(rows, length)
        count = max(1, round(self.keep * length)) if length else 0
        _, places = jax.lax.top_k(jnp.abs(chunks), count)
        return jnp.take_along_axis(chunks, places, axis=1), places.astype(jnp.uint16)

    def decode(self, sent: tuple[jax.Array, ...], like: Any) -> jax.Array:
        """Return the array with zeros in all other places."""
        numbers, places = sent
        length, rows = self._shape(like.size)
        chunks = jnp.zeros((rows, length), like.dtype).at[jnp.arange(rows)[:, None], places].set(numbers)
        return chunks.ravel()[: like.size].reshape(like.shape)

    def _shape(self, size: int) -> tuple[int, int]:
        length = min(self.chunk, size)
        return length, -(-size // length) if length else 0


def round_to(dtype: str = "int8") -> "Method":
    """Round gradients to numbers of few bytes, and add each worker's rounding errors to its next gradient.

    Between hosts a gradient takes as long as its bytes. Rounded gradients take fewer, and with error feedback no part of a
    gradient is lost, only late: a number that is always rounded to zero adds up until it is not. With the error e_w of the
    worker, which begins at 0, a gradient g of worker w becomes q:

        a = g + e_w,   q = Q(a),   e_w ← a - q

    Q rounds to the nearest number of ``dtype``. For integers of b bits the numbers of each array are multiples of its unit,
    2^(1-b) times the smallest power of two above max |a|; at most 2^(b-1) - 1 of them. Products with such a unit are exact, so
    all engines keep the same errors.

    Place it in front of all else in a chain inside :func:`gemjax.asynchronous`. :func:`gemjax.run_on_cluster` then lets the
    workers round and sends q in ``dtype``; the error stays on the worker's host. Everywhere else it has the same effect on the
    numbers, so a run is simulated and replayed like any other. A gradient that is refused or not finite leaves the error as it
    was.

    Reductions: gradients that are numbers of ``dtype`` pass unchanged, as if the part were not there.

    Args:
      dtype: ``"int8"`` (default), ``"int16"``, ``"bfloat16"`` or ``"float16"``.

    Returns:
      A transformation with one copy of the parameters per worker.

    Raises:
      ValueError: if ``dtype`` is another one.

    >>> import gemjax
    >>> tx = gemjax.asynchronous(optax.chain(round_to("int8"), gemjax.gem(0.05, num_workers=4)), num_workers=4)

    >>> tx = gemjax.asynchronous(round_to("int8"), num_workers=1)
    >>> state = tx.init(jnp.zeros(2))
    >>> for _ in range(3):                    # 0.4, 0.8 and 0.2, with the errors before, are rounded to whole numbers.
    ...     updates, state = tx.update(jnp.array([127.0, 0.4]), state)
    ...     print(updates)
    [127.   0.]
    [127.   1.]
    [127.   0.]

    References:
      Seide et al., *1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of Speech
      DNNs*, Interspeech 2014 (error feedback, there with one bit per number)

    Deviations from the paper:
      1. A number has 8 or 16 bits in place of one, and an array one unit in place of two reconstruction values per column.
    """
    check_choice("dtype", dtype, DTYPES)
    return _with_feedback(Rounded(dtype))


def sparsify(keep: float = 1 / 64, chunk: int = 4096, decay: float = 0.95) -> "Method":
    """Keep the largest numbers of a gradient, and add what each worker left out to its next gradient.

    The compression of SparseLoCo. With the error e_w of the worker, which begins at 0, a gradient or displacement Δ of worker w
    becomes s:

        a = Δ + β e_w,   s = TopK(a),   e_w ← a - s

    TopK keeps the k numbers of largest magnitude of each chunk of an array in row-major order, and sets the others to zero. The
    error works like a momentum of the displacements, so SparseLoCo has no other one: place this in front of a plain rate, and
    take local steps.

    Its place in a chain, what is sent, and what happens to a refused gradient are those of :func:`gemjax.rules.round_to`. A
    message has k numbers per chunk and their places in 2 bytes each.

    Reductions: with ``keep=1`` everything is sent, as if the part were not there; with a chunk that no array exceeds and
    ``decay=1`` it is top-k with error feedback.

    Args:
      keep: share of each chunk that is sent, in (0, 1], default 1/64; k is at least 1.
      chunk: numbers per chunk, 1 to 65,536, default 4096; a shorter array is one chunk.
      decay: β in [0, 1], default 0.95; 0 forgets what was left out.

    Returns:
      A transformation with one copy of the parameters per worker.

    Raises:
      ValueError: if an argument is out of range.

    >>> import gemjax
    >>> tx = gemjax.asynchronous(optax.chain(sparsify(), gemjax.asgd(1.0, num_workers=8)), num_workers=8)

    >>> tx = gemjax.asynchronous(sparsify(keep=0.5, decay=1.0), num_workers=1)
    >>> state = tx.init(jnp.zeros(2))
    >>> for _ in range(3):
    ...     updates, state = tx.update(jnp.array([4.0, 3.0]), state)
    ...     print(updates)
    [4. 0.]
    [0. 6.]
    [8. 0.]

    References:
      Sarfi, Thérien, Lidin & Belilovsky, `Communication Efficient LLM Pre-training with SparseLoCo
      <https://arxiv.org/abs/2508.15706>`_, 2025

    Deviations from the paper:
      1. Commits are asynchronous: each worker's message is a step of its own, not a mean over workers.
      2. The numbers that are sent keep their dtype; the paper quantizes them to 2 bits.
      3. Chunks run over an array in row-major order.
    """
    check_positive("keep", keep)
    check_between("keep", keep, 0, 1)
    check_between("decay", decay, 0, 1)
    return _with_feedback(Largest(float(keep), integer("chunk", chunk, 1, 2**16)), float(decay))


def _with_feedback(code: Code, decay: float = 1.0) -> "Method":
    def init_fn(params) -> Any:
        return Sends(Slots(optax.tree.zeros_like(params)), code, decay)

    def update_fn(updates, state, params=None, **extra_args) -> Any:
        del params, extra_args
        if state.error is None:  # Its worker has done it.
            return updates, state
        message, state = state.message(updates)
        return state.read(message, updates), state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)
