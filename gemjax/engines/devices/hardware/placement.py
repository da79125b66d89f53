"""The devices of the workers and of the central variable."""

import contextlib
import dataclasses
import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import jax

from gemjax.engines.checks import RunWarning
from gemjax.engines.devices.hardware.sharding import Place, devices_of
from gemjax.protocol.checks import check_choice, check_positive_int, integer

MOST_CPU_DEVICES = 2048  # Per process; JAX takes further ones for those of another process.
CENTRAL = ("dedicated", "host", "colocated")


@dataclasses.dataclass(frozen=True)
class Placement:
    """Devices of a run.

    Args:
      workers: the device of each worker; several workers may share one. Or, for a faster worker, a tuple of devices that share
        each of its batches; the result is the same up to rounding. If the number of devices does not divide the rows of the
        batch, each device computes all of it.
      central: the device of the central variable, or a tuple of devices over which it is sharded, and all method state with
        it. A commit is queued behind the computations of those devices: on a worker's device every commit waits for that
        worker's running gradient, a hidden barrier.
      evaluator: the device on which ``evaluate`` of :func:`gemjax.run_on_devices` is called. Default: a device of the workers'
        kind that has no other part in the run; if there is none, as on a single accelerator, that of the last worker, whose
        gradients then take turns with the evaluations.

    Raises:
      ValueError: if two tuples of devices overlap in part.
    """

    workers: tuple[Place, ...]
    central: Place
    evaluator: jax.Device | None = None

    def __post_init__(self):
        # One device is the same place with or without a tuple around it.
        object.__setattr__(self, "workers", tuple(_plain(place) for place in self.workers))
        object.__setattr__(self, "central", _plain(self.central))
        self._check_overlap()

    def _check_overlap(self):
        """Refuse tuples that overlap in part: their collectives wait for each other if the devices order them differently."""
        names = [*(f"worker {w}" for w in range(len(self.workers))), "central"]
        groups: dict[frozenset, str] = {}
        for name, place in zip(names, (*self.workers, self.central), strict=True):
            groups.setdefault(frozenset(devices_of(place)), name)
        for (one, name), (other, other_name) in itertools.combinations(groups.items(), 2):
            if one & other and not (one <= other or other <= one):
                raise ValueError(
                    f"the devices of {name} and {other_name} overlap in part, so that their collectives could wait for each "
                    "other; give them equal or separate groups of devices, or one group that holds the other"
                )

    @property
    def colocated(self) -> bool:
        """True if the central variable shares a device with a worker."""
        return bool(set(devices_of(self.central)) & {device for place in self.workers for device in devices_of(place)})

    def names(self) -> dict[str, Any]:
        """Return the devices by name, as in an event log: ``cpu:3``, or ``cpu:4+cpu:5`` for a place of two."""
        named = [
            "+".join(f"{device.platform}:{device.id}" for device in devices_of(place))
            for place in (*self.workers, self.central)
        ]
        return {"devices": named[:-1], "central": named[-1]}


def _plain(place: Place) -> Place:
    place = tuple(place) if isinstance(place, list) else place
    return place[0] if isinstance(place, tuple) and len(place) == 1 else place


def place(
    num_workers: int,
    central: str | None = None,
    devices: "Sequence[jax.Device] | None" = None,
    *,
    central_devices: int = 1,
    worker_devices: int = 1,
) -> "Placement":
    """Spread workers over this host's devices and choose a place for the central variable.

    Args:
      num_workers: number of workers N, positive; assigned to the worker devices in turn. A device with two workers is
        pipelined: it computes for one while the other's commit and pull are in transfer, and staleness doubles.
      central: ``"dedicated"`` keeps the last device for the central variable; ``"host"`` keeps it on the first CPU
        devices of the host, beside accelerators; ``"colocated"`` puts it on the first worker's device, where commits queue
        behind that worker's gradients (:func:`gemjax.run_on_devices` warns of it if others have devices of their own).
        Default: with one device ``colocated``, because its gradients take turns anyway and no parameters are transferred;
        with more, ``dedicated`` on CPU devices, which cost nothing, ``host`` on 2 or 3 accelerators, where one fewer worker
        costs too much, and ``dedicated`` on more.
      devices: default ``jax.local_devices()``.
      central_devices: number of devices over which the central variable is sharded, positive, default 1; with
        ``"dedicated"`` the last ones, with ``"colocated"`` the first.
      worker_devices: number of devices per worker, which share each of its batches if it divides the rows; positive, default
        1. Remaining devices have no worker; evaluations use the first of them.

    Raises:
      ValueError: if there are no workers, the choice is unknown, or there are not enough devices.
      RuntimeError: from JAX, if the CPU of the host is wanted or could help, and ``JAX_PLATFORMS`` leaves it out.
    """
    devices = list(jax.local_devices() if devices is None else devices)
    check_positive_int("num_workers", num_workers)
    given, accelerated = devices, bool(devices) and devices[0].platform != "cpu"
    if central is None:
        if len(devices) == 1 and (central_devices == 1 or not accelerated):
            central = "colocated"
        elif accelerated and len(devices) <= 3:
            central = "host"
        else:
            central = "dedicated"
    check_choice("central", central, CENTRAL)
    for name, count in (("central_devices", central_devices), ("worker_devices", worker_devices)):
        integer(name, count, 1)
    needed = {
        "dedicated": worker_devices + central_devices,
        "colocated": max(worker_devices, central_devices),
        "host": worker_devices,
    }
    if len(devices) < needed[central]:
        has_host = accelerated and central_devices <= len(host_devices())
        enough = [
            f"central={other!r}"
            for other, number in needed.items()
            if number <= len(devices) and (other != "host" or has_host)
        ]
        raise ValueError(
            f"central={central!r} with central_devices={central_devices} and worker_devices={worker_devices} needs at least "
            f"{needed[central]} devices, but there are {len(devices)} in all; give "
            f"{' or '.join([*enough, 'smaller numbers'])}, or on a CPU call gemjax.cpu_devices(n) first"
        )
    if central == "host":
        home = host_devices()[:central_devices]
        if len(home) < central_devices:
            raise ValueError(
                f"central_devices={central_devices}, but the host's CPU is {len(home)} JAX devices; see cpu_devices"
            )
    elif central == "colocated":
        home = tuple(devices[:central_devices])
    else:
        devices, home = devices[:-central_devices], tuple(devices[-central_devices:])
    starts = range(0, len(devices) - worker_devices + 1, worker_devices)
    slices = [tuple(devices[i : i + worker_devices]) for i in starts]
    workers = tuple(slices[w % len(slices)] for w in range(num_workers))
    return Placement(workers, home, spare(workers, home, given))


def spare(workers: Sequence[Place], central: Place, devices: Sequence[jax.Device] | None = None) -> jax.Device:
    """Return the first of ``devices`` that is neither a worker's nor the central variable's, or else the last worker's.

    By default ``devices`` are those of this host that are of the workers' kind.
    """
    last = devices_of(workers[-1])[0]
    used = {device for place in (*workers, central) for device in devices_of(place)}
    devices = jax.local_devices(backend=last.platform) if devices is None else devices
    return next((device for device in devices if device not in used), last)


def host_devices() -> tuple[jax.Device, ...]:
    """Return the JAX devices of this host's CPU; JAX raises an error if ``JAX_PLATFORMS`` leaves it out, as ``cuda`` does."""
    return tuple(jax.local_devices(backend="cpu"))


def warn_if_colocated(placement: Placement) -> None:
    """Warn of the hidden barrier if the central variable needlessly shares a worker's device and other workers wait for it."""
    central = set(devices_of(placement.central))
    taking_turns = len({frozenset(devices_of(place)) for place in placement.workers}) == 1
    if taking_turns or not placement.colocated:
        return
    ways = ("dedicated",) if all(device.platform == "cpu" for device in central) else ("dedicated", "host")
    sharing = [worker for worker, place in enumerate(placement.workers) if central & set(devices_of(place))]
    warnings.warn(
        f"the central variable shares its device with worker {', '.join(map(str, sharing))}: every commit waits "
        "there for the running gradient, up to the time of one gradient: a hidden barrier (gemjax.verdict reports the "
        f"wait). Give it a place of its own: {' or '.join(f'gemjax.place(n, {way!r})' for way in ways)}; on the command line "
        f"{' or '.join(f'--central {way}' for way in ways)}",
        RunWarning, stacklevel=3,
    )  # fmt: skip


def cpu_devices(count: int) -> "list[jax.Device]":
    """Split this host's CPU into ``count`` JAX devices, for demonstrations and tests without accelerators.

    Call it before any other use of JAX's devices. All CPU devices share the same cores, so there is asynchrony but no
    speed-up.

    Args:
      count: number of devices, positive and at most 2,048.

    Returns:
      The first ``count`` CPU devices.

    Raises:
      ValueError: if ``count`` is not such a number.
      RuntimeError: if JAX has started already, with fewer devices, or ``JAX_PLATFORMS`` leaves out the CPU.
    """
    integer("count", count, 1, MOST_CPU_DEVICES)
    with contextlib.suppress(RuntimeError):  # JAX has started; its devices may be enough.
        jax.config.update("jax_num_cpu_devices", count)
    devices = host_devices()
    if len(devices) < count:
        raise RuntimeError(
            f"JAX has started with {len(devices)} CPU devices, but {count} are wanted, and the number cannot change any more. "
            f"Call gemjax.cpu_devices({count}) before the first use of JAX, or set JAX_NUM_CPU_DEVICES={count}"
        )
    return list(devices[:count])
