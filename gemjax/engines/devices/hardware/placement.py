"""Which device each worker computes on, and where the central variable lives."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from gemjax.engines.devices.hardware.sharding import Place, devices_of
from gemjax.protocol.staleness import check_num_workers

CENTRAL = ("dedicated", "host", "colocated")


@dataclasses.dataclass(frozen=True)
class Placement:
    """Devices of a run.

    Args:
      workers: the device of each worker, several of which may share one; or a tuple of devices that share each batch of that
        worker, so that it is faster and the result the same up to rounding.
      central: the device of the central variable, or a tuple of devices over which it is sharded, and all method state with
        it. A commit queues behind whatever those devices are doing, so on a worker's device every commit waits for that
        worker's running gradient: a hidden barrier.

    Raises:
      ValueError: if there are no workers, a tuple is empty, or a device stands in it twice.
    """

    workers: tuple[Place, ...]
    central: Place

    def __post_init__(self):
        if not self.workers:
            raise ValueError("a run on devices needs at least one worker, got none")
        for name, place in (
            *((f"worker {w}", place) for w, place in enumerate(self.workers)),
            ("central", self.central),
        ):
            if not devices_of(place) or len(set(devices_of(place))) != len(devices_of(place)):
                raise ValueError(f"{name} must have different devices, at least one, got {place}")
        # One device is the same place whether or not it stands in a tuple.
        object.__setattr__(self, "workers", tuple(_plain(place) for place in self.workers))
        object.__setattr__(self, "central", _plain(self.central))

    @property
    def colocated(self) -> bool:
        """Whether the central variable shares a device with a worker."""
        return bool(set(devices_of(self.central)) & {device for place in self.workers for device in devices_of(place)})

    def names(self) -> dict[str, Any]:
        """The devices by name, as an event log notes them: ``cpu:3``, or ``cpu:4+cpu:5`` of a place of two."""
        named = [
            "+".join(f"{device.platform}:{device.id}" for device in devices_of(place))
            for place in (*self.workers, self.central)
        ]
        return {"devices": named[:-1], "central": named[-1]}


def _plain(place: Place) -> Place:
    return place[0] if isinstance(place, tuple) and len(place) == 1 else place


def place(
    num_workers: int,
    central: str | None = None,
    devices: Sequence[jax.Device] | None = None,
    *,
    central_devices: int = 1,
    worker_devices: int = 1,
) -> Placement:
    """Spreads workers over this host's devices and finds a place for the central variable.

    Args:
      num_workers: number of workers N, positive; they go round the worker devices in turn. With two to a device it is
        pipelined: it computes for one, on the view at hand, while the other's commit and pull are on their way, and staleness
        doubles.
      central: ``"dedicated"`` keeps the last device for the central variable; ``"host"`` keeps it on the host's CPU beside
        accelerators; ``"colocated"`` puts it on the first worker's device, where commits queue behind that worker's
        gradients (:func:`gemjax.run_on_devices` warns of it). Default: with one device, ``host`` beside an accelerator and
        ``colocated`` on a CPU (there is no other); else ``dedicated`` on CPU devices, which are free, and ``host`` on up to 3
        accelerators, where giving one up costs too much, ``dedicated`` beyond.
      devices: default ``jax.local_devices()``.
      central_devices: over how many devices the central variable is sharded, positive, default 1; with ``"dedicated"`` the
        last ones, with ``"colocated"`` the first.
      worker_devices: how many devices a worker has, which share each of its batches; positive, default 1. Devices that are left
        over, fewer than that, are not used.

    Raises:
      ValueError: if there are no workers, the choice is unknown, or there are not as many devices as are asked for.
    """
    devices = list(jax.local_devices() if devices is None else devices)
    check_num_workers(num_workers)
    if not devices:
        raise ValueError("a run on devices needs at least one device, got none")
    accelerated = devices[0].platform != "cpu"
    if central is None:
        if len(devices) == 1:
            central = "host" if accelerated else "colocated"
        else:
            central = "host" if accelerated and len(devices) <= 3 else "dedicated"
    if central not in CENTRAL:
        raise ValueError(f"central must be one of {', '.join(map(repr, CENTRAL))}, got {central!r}")
    for name, count in (("central_devices", central_devices), ("worker_devices", worker_devices)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"{name} must be a positive int, got {count!r}")
    needed = worker_devices + central_devices * (central == "dedicated")
    if len(devices) < max(needed, central_devices * (central == "colocated")):
        raise ValueError(
            f"central={central!r} with central_devices={central_devices} and worker_devices={worker_devices} needs at least "
            f"{max(needed, central_devices)} devices, but there are {len(devices)} in all; use fewer, 'host' or 'colocated', "
            "or on CPU call gemjax.cpu_devices(n) first"
        )
    if central == "host":
        home = tuple(jax.local_devices(backend="cpu")[:central_devices])
        if len(home) < central_devices:
            raise ValueError(
                f"central_devices={central_devices}, but the host's CPU is {len(home)} JAX devices; see cpu_devices"
            )
    elif central == "colocated":
        home = tuple(devices[:central_devices])
    else:
        devices, home = devices[:-central_devices], tuple(devices[-central_devices:])
    slices = [
        tuple(devices[i : i + worker_devices]) for i in range(0, len(devices) - worker_devices + 1, worker_devices)
    ]
    return Placement(tuple(slices[w % len(slices)] for w in range(num_workers)), home)


def cpu_devices(count: int) -> list[jax.Device]:
    """Splits this host's CPU into ``count`` JAX devices, for demonstrations and tests without accelerators.

    Call it before anything else touches JAX's devices. All CPU devices share the same cores: expect asynchrony, no
    speed-up.

    Args:
      count: number of devices, positive.

    Returns:
      The first ``count`` CPU devices.

    Raises:
      ValueError: if ``count`` is not positive.
      RuntimeError: if JAX has started already, with fewer devices.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"count must be a positive int, got {count!r}")
    with contextlib.suppress(RuntimeError):  # Started already; what it has may be enough.
        jax.config.update("jax_num_cpu_devices", count)
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise RuntimeError(
            f"JAX has started with {len(devices)} CPU devices, and {count} are wanted; their number cannot change any more. "
            f"Call gemjax.cpu_devices({count}) before the first use of JAX, or set JAX_NUM_CPU_DEVICES={count}"
        )
    return devices[:count]
