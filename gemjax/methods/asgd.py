"""Plain asynchronous SGD."""

import optax

from gemjax.methods.papers import Paper
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method
from gemjax.protocol.checks import check_learning_rate
from gemjax.protocol.staleness import asynchronous

DEAN2012LARGE = Paper("inproceedings", "dean2012large", {
    "author": "Dean, Jeffrey and Corrado, Greg and Monga, Rajat and Chen, Kai and Devin, Matthieu and Le, Quoc V. and "
    "Mao, Mark Z. and Ranzato, Marc'Aurelio and Senior, Andrew and Tucker, Paul and Yang, Ke and Ng, Andrew Y.",
    "title": "Large Scale Distributed Deep Networks", "booktitle": "Advances in Neural Information Processing Systems",
    "year": "2012",
    "url": "https://papers.nips.cc/paper/2012/hash/6aca97005c68f1206823815f66102863-Abstract.html"})  # fmt: skip


def asgd(learning_rate: "optax.ScalarOrSchedule", num_workers: int = 1) -> "Method":
    """Asynchronous SGD: each gradient is applied when it arrives.

    The baseline of the field; with one local step per commit it is DOWNPOUR. Staleness is ignored: the gradient was computed at
    s = θ[t-τ] and moves θ[t]. The rate must therefore fall as workers are added, and a momentum behind it turns stale steps
    into divergence.

        θ[t+1] = θ[t] - η_t g(θ[t-τ])

    Reductions: with one worker it is ``optax.sgd``.

    Args:
      learning_rate: η, a non-negative float or a schedule over commits of the central variable.
      num_workers: number of workers N, default 1.

    Returns:
      A transformation to be committed with ``update(grads, state, params, worker=w)``. It keeps no copy of the parameters.

    Raises:
      ValueError: if ``learning_rate`` is negative or ``num_workers`` not positive.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.asgd(learning_rate=0.1, num_workers=4)
    >>> state = tx.init(jnp.zeros(2))
    >>> updates, state = tx.update(jnp.ones(2), state, worker=3)
    >>> updates
    Array([-0.1, -0.1], dtype=float32)

    References:
      Dean et al., `Large Scale Distributed Deep Networks
      <https://papers.nips.cc/paper/2012/hash/6aca97005c68f1206823815f66102863-Abstract.html>`_, 2012
    """
    check_learning_rate(learning_rate)
    return asynchronous(scale_by_learning_rate(learning_rate), num_workers)
