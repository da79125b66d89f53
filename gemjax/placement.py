"""Which device each worker computes on, and where the central variable lives."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from gemjax.staleness import check_num_workers

CENTRAL = ("dedicated", "host", "colocated")


@dataclasses.dataclass(frozen=True)
class Placement:
    """Devices of a run.

    Args:
      workers: the device of each worker; several workers may share one.
      central: the device of the central variable. A commit queues behind whatever that device is doing, so on a worker's
        device every commit waits for that worker's running gradient: a hidden barrier.
    """

    workers: tuple[jax.Device, ...]
    central: jax.Device

    def __post_init__(self):
        if not self.workers:
            raise ValueError("a run on devices needs at least one worker, got none")

    @property
    def colocated(self) -> bool:
        """Whether the central variable shares its device with a worker."""
        return self.central in self.workers

    def names(self) -> dict[str, Any]:
        """The devices by name, as an event log notes them."""
        named = [f"{device.platform}:{device.id}" for device in (*self.workers, self.central)]
        return {"devices": named[:-1], "central": named[-1]}


def place(num_workers: int, central: str | None = None, devices: Sequence[jax.Device] | None = None) -> Placement:
    """Spreads workers over this host's devices and finds a place for the central variable.

    Args:
      num_workers: number of workers N, positive; they go round the worker devices in turn.
      central: ``"dedicated"`` keeps the last device for the central variable; ``"host"`` keeps it on the host's CPU beside
        accelerators; ``"colocated"`` puts it on the first worker's device. Default: with one device, ``host`` beside an
        accelerator and ``colocated`` on a CPU (there is no other); else ``dedicated`` on CPU devices, which are free, and
        ``host`` on up to 3 accelerators, where giving one up costs too much, ``dedicated`` beyond.
      devices: default ``jax.local_devices()``.

    Raises:
      ValueError: if there are no workers, the choice is unknown, or a dedicated device is asked for and there is only one.
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
    if central == "dedicated":
        if len(devices) == 1:
            raise ValueError(
                "central='dedicated' needs a device besides the workers', but there is one in all; use 'host' or 'colocated', "
                "or on CPU call gemjax.cpu_devices(n) first"
            )
        devices, home = devices[:-1], devices[-1]
    else:
        home = jax.local_devices(backend="cpu")[0] if central == "host" else devices[0]
    return Placement(tuple(devices[w % len(devices)] for w in range(num_workers)), home)


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
