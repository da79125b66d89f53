"""DOWNPOUR: workers take local steps and push their displacements (Dean et al., 2012)."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from gemjax.methods.papers import Paper
from gemjax.methods.rates import scale_by_learning_rate
from gemjax.protocol import Method
from gemjax.protocol.checks import check_learning_rate
from gemjax.protocol.local_steps import displacements
from gemjax.protocol.staleness import asynchronous, require_protocol

HERMANS2017ACCUMULATED = Paper("inproceedings", "hermans2017accumulated", {
    "author": "Hermans, Joeri and Spanakis, Gerasimos and M{\\\"o}ckel, Rico",
    "title": "Accumulated Gradient Normalization", "booktitle": "Asian Conference on Machine Learning", "year": "2017",
    "eprint": "1710.02368"})  # fmt: skip
PAPERS = {"scale_by_local_steps": (HERMANS2017ACCUMULATED,)}


def downpour(learning_rate: "optax.ScalarOrSchedule" = 1.0, num_workers: int = 1) -> "Method":
    """DOWNPOUR: the central variable moves by each displacement in full.

    A worker pulls θ, takes τ steps of its own optimizer and pushes the sum of its updates. It communicates once per τ steps. By
    the time of its push the other workers have moved the central variable by about τ steps each. Nothing compensates for that,
    so the rule suits short periods and few workers.

        Δ_w = s_w - x_w,   x_w = the point after τ local steps from s_w
        θ ← θ - η_t Δ_w
        s_w ← θ

    with w the worker that commits. Run it with ``local=gemjax.LocalSteps(optax.sgd(rate), period)``, whose displacement is Δ_w;
    a momentum is that optimizer's and stays with the worker.

    Reductions: with ``LocalSteps(optax.sgd(rate), period=1)`` it is ``gemjax.asgd(rate)``; with one worker it is its local
    optimizer. The variant with a momentum at the central variable (MDOWNPOUR) is :func:`gemjax.nag_asgd`.

    Args:
      learning_rate: η, the share of a displacement that is applied, a non-negative float or a schedule over commits
        of the central variable; default 1, as published. The local optimizer has the rate of the steps.
      num_workers: number of workers N, default 1.

    Returns:
      A transformation to be committed with ``update(displacement, state, params, worker=w)``. It keeps no copy of the
      parameters.

    Raises:
      ValueError: if ``learning_rate`` is negative or ``num_workers`` not positive; in an engine, without ``local=``.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.downpour(num_workers=2)
    >>> updates, state = tx.update(jnp.array([0.25]), tx.init(jnp.zeros(1)), worker=1)  # The worker moved from 0 to -0.25.
    >>> updates
    Array([-0.25], dtype=float32)

    References:
      - Dean et al., `Large Scale Distributed Deep Networks
        <https://papers.nips.cc/paper/2012/hash/6aca97005c68f1206823815f66102863-Abstract.html>`_, 2012
      - Zhang, Choromanska & LeCun, `Deep Learning with Elastic Averaging SGD <https://arxiv.org/abs/1412.6651>`_, 2015 (the
        form taken here)

    Deviations from the papers:
      1. A push and a pull are one exchange, as in the second paper. In the first paper their periods may differ, and Adagrad
        acts centrally.
    """
    check_learning_rate(learning_rate)
    return asynchronous(optax.chain(displacements(), scale_by_learning_rate(learning_rate)), num_workers)


def scale_by_local_steps() -> "Method":
    """Divide a displacement by its number of local steps.

    The atom of :func:`gemjax.agn`. It works anywhere inside :func:`gemjax.asynchronous`.

    Returns:
      A stateless transformation that needs the extra argument ``local_steps``, an integer scalar. Engines supply it; inside of
      :func:`gemjax.asynchronous` it is 1 by default where no member expects displacements.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.rules.scale_by_local_steps()
    >>> updates, _ = tx.update(jnp.ones(1), tx.init(None), local_steps=4)
    >>> updates
    Array([0.25], dtype=float32)
    """

    def update_fn(updates, state, params=None, *, local_steps: Any = None, **extra_args):
        del params, extra_args
        require_protocol("scale_by_local_steps", local_steps=local_steps)
        return jax.tree.map(lambda u: u / jnp.asarray(local_steps, u.dtype), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)


def agn(learning_rate: "optax.ScalarOrSchedule" = 1.0, num_workers: int = 1) -> "Method":
    """Accumulated gradient normalisation: a displacement counts as one step, whatever the number of local steps.

    As :func:`gemjax.downpour`, but the worker pushes the mean of its local steps instead of their sum: the direction is that of
    τ steps, the length that of one. Longer periods then save communication and smooth the direction without large jumps of the
    central variable; the progress per gradient is τ times smaller.

        Δ_w = s_w - x_w
        θ ← θ - η_t Δ_w / τ_w
        s_w ← θ

    with x_w the point after τ_w local steps from s_w, and w the worker that commits.

    Reductions: with ``period=1`` it is :func:`gemjax.downpour`; for any fixed period it is :func:`gemjax.downpour` at
    ``learning_rate=1/period``.

    Args:
      learning_rate: η, the share of a displacement that is applied, a non-negative float or a schedule over commits
        of the central variable; default 1, as published.
      num_workers: number of workers N, default 1.

    Returns:
      A transformation to be committed with ``update(displacement, state, params, worker=w, local_steps=tau)``. It keeps no copy
      of the parameters.

    Raises:
      ValueError: if ``learning_rate`` is negative or ``num_workers`` not positive; in an engine, without ``local=``.

    >>> import gemjax, jax.numpy as jnp
    >>> tx = gemjax.agn(num_workers=2)
    >>> updates, state = tx.update(jnp.array([0.5]), tx.init(jnp.zeros(1)), worker=1, local_steps=4)
    >>> updates
    Array([-0.125], dtype=float32)

    References:
      Hermans, Spanakis & Möckel, `Accumulated Gradient Normalization <https://arxiv.org/abs/1710.02368>`_, 2017

    Readings: the mean over the window is that of the author's dist-keras, where the class is called ADAG. There, too, the
    worker's own optimizer makes the steps. The program of TensorFlow 1 sends the mean of the gradients instead, to an optimizer
    of the central variable; :func:`gemjax.rules.scale_by_local_steps` in front of one does that with a sum of gradients.
    """
    check_learning_rate(learning_rate)
    chain = optax.chain(displacements(), scale_by_local_steps(), scale_by_learning_rate(learning_rate))
    return asynchronous(chain, num_workers)
