"""Messages in place of gradients, for methods that begin with a part that says what is sent."""

from collections.abc import Callable
from typing import Any

import jax

from gemjax.engines.devices.hardware.packing import packer_of
from gemjax.engines.devices.hardware.programs.gradients import Packers, gradient_at
from gemjax.engines.devices.hardware.sharding import Place
from gemjax.protocol.hooks import Sends


def packers_of_messages(packed_as: Packers, part: Sends, central: Place, largest: float) -> Packers:
    """Return the packers with one of messages in place of that of gradients; ``part`` has shapes."""
    gradient = packed_as.gradients.example
    message, _ = jax.eval_shape(lambda part, grads: part.message(grads), part, gradient.grads)
    return packed_as._replace(gradients=packer_of(gradient._replace(grads=message), central, largest))


def packed_message(gradient: Callable, batches: Any, packed_as: Packers) -> Callable:
    """Return ``compute(packed, local, data, selection, event, part, place) -> (packed message, new local, new part)``."""

    def compute(packed, local, data, selection, event, part, place):
        found = gradient_at(gradient, batches, place, packed_as.views.unpack(packed)[0], local, data, selection, event)
        message, part = part.message(found.grads)
        return packed_as.gradients.pack(found._replace(grads=message, local=())), found.local, part

    return compute
