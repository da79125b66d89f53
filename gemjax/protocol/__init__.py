"""Protocol between methods and engines: pulls, commits, staleness and per-worker state.

The author of a method reads the table at the top of :mod:`gemjax.protocol.hooks`. Public signatures name three types:

- ``Method``: an optax transformation that takes extra arguments, such as the worker that commits.
- ``Loss``: ``loss_fn(params, batch) -> loss``, or with model state and randomness
  ``loss_fn(params, model_state, batch, key) -> (loss, (model_state, metrics))``.
- ``PyTree``: nested containers of arrays, as JAX takes them.

They are quoted in signatures, so that ``help`` shows their names.
"""

from collections.abc import Callable
from typing import Any

import optax

Method = optax.GradientTransformationExtraArgs
Loss = Callable[..., Any]
PyTree = Any
