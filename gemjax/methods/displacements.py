"""What marks a method as one for workers that make local steps."""

import optax

from gemjax.staleness import NeedsLocalSteps


def takes_displacements() -> optax.GradientTransformation:
    """Changes nothing; has engines refuse a chain with this member unless workers make local steps."""

    def update_fn(updates, state, params=None):
        del params
        return updates, state

    return optax.GradientTransformation(lambda params: NeedsLocalSteps(), update_fn)
