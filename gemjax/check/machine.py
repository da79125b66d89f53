"""Description of this machine: software, processor, devices, placement, memory."""

import collections
import contextlib
import dataclasses
import importlib.metadata
import logging
import os
import pathlib
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence

import jax

import gemjax
from gemjax.engines.memory import host_memory, memory_stats, readable

PACKAGES = ("jax", "jaxlib", "numpy", "optax", "orbax-checkpoint")
PLUGINS = re.compile(r"(jax[-_].*(plugin|pjrt|metal).*|libtpu.*)", re.IGNORECASE)
PRECISION = "jax_default_matmul_precision"
SETTINGS = (
    "JAX_PLATFORMS",
    "JAX_NUM_CPU_DEVICES",
    "JAX_ENABLE_X64",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "XLA_FLAGS",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "CUDA_VISIBLE_DEVICES",
)


@dataclasses.dataclass(frozen=True)
class Machine:
    """Software and processor, known even if JAX finds no device.

    Attributes:
      versions: of Python, gemjax, JAX, the packages that gemjax needs, and JAX's plugins; by name.
      system: operating system.
      processor: model of the CPU.
      cores: cores that this process may use.
      memory: bytes of the host's memory; ``None`` if not known.
      driver: first line of the NVIDIA driver's description; empty without one.
      settings: environment variables that are set and affect JAX.
      matmul_precision: JAX's default precision of matrix products; ``"default"`` is the platform's choice.
    """

    versions: dict[str, str]
    system: str
    processor: str
    cores: int
    memory: int | None
    driver: str
    settings: dict[str, str]
    matmul_precision: str


@dataclasses.dataclass(frozen=True)
class Devices:
    """Devices and their roles in a run.

    Attributes:
      kinds: descriptions of the local devices, with equal ones counted.
      platform: platform of the devices, such as ``"cpu"`` or ``"gpu"``.
      central: device of the central variable, by name.
      workers: device of each worker, by name.
      messages: warnings that JAX logged while it looked for devices, such as a plugin that failed to initialise.
    """

    kinds: tuple[str, ...]
    platform: str
    central: str
    workers: tuple[str, ...]
    messages: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Memory:
    """Peak memory use so far.

    Attributes:
      devices: for each device that reports it, by name: (peak bytes in use, bytes that JAX may use or ``None``).
      process: peak resident bytes of this process; ``None`` if not known.
    """

    devices: dict[str, tuple[int, int | None]]
    process: int | None


def describe() -> Machine:
    """Describe software and processor without starting JAX's devices."""
    return Machine(
        versions=versions(),
        system=platform.platform(),
        processor=processor(),
        cores=cores(),
        memory=host_memory(),
        driver=_first_line("/proc/driver/nvidia/version"),
        settings={name: os.environ[name] for name in SETTINGS if os.environ.get(name)},
        matmul_precision=str(getattr(jax.config, PRECISION, None) or "default"),
    )


def describe_devices(placement: gemjax.Placement, messages: Sequence[str] = ()) -> Devices:
    """Describe the local devices and their roles in ``placement``."""
    names, devices = placement.names(), jax.local_devices()
    return Devices(
        tuple(counted(devices)), devices[0].platform, names["central"], tuple(names["devices"]), tuple(messages)
    )


def default_workers(devices: Sequence[jax.Device]) -> int:
    """Return the number of workers: two per accelerator that has workers, or one per such CPU device, and at least 4."""
    places = len(set(gemjax.place(len(devices), devices=devices).workers))
    return max(4, places if devices[0].platform == "cpu" else 2 * places)


def versions() -> dict[str, str]:
    """Versions by name, plugins of JAX last.

    >>> list(versions())[:3]
    ['python', 'gemjax', 'jax']
    """
    found = {"python": platform.python_version(), "gemjax": gemjax.__version__}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    installed = ((one.metadata["Name"] or "", one.version) for one in importlib.metadata.distributions())
    return found | dict(sorted((name, version) for name, version in installed if PLUGINS.fullmatch(name)))


def cores() -> int:
    """Cores that this process may use, at least 1."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return usable or 1


def processor() -> str:
    """Model of the CPU, as the system names it."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "cpu model"):
                return value.strip()
    if sys.platform == "darwin":
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    return platform.processor() or platform.machine()


def counted(devices: Iterable[jax.Device]) -> list[str]:
    """Descriptions of devices, with equal ones counted.

    >>> counted(jax.devices("cpu")[:1])
    ['1 × cpu']
    """
    described = collections.Counter()
    for device in devices:
        limit = memory_stats(device).get("bytes_limit")
        kind = device.device_kind if device.device_kind != device.platform else ""
        name = f"{kind} ({device.platform})" if kind else device.platform
        described[name + (f", {readable(limit)} for JAX" if limit else "")] += 1
    return [f"{count} × {name}" for name, count in described.items()]


def peak_memory() -> Memory:
    """Read the peak memory use of the local devices and of this process."""
    devices = {}
    for device in jax.local_devices():
        stats = memory_stats(device)
        if "peak_bytes_in_use" in stats:
            devices[f"{device.platform}:{device.id}"] = (stats["peak_bytes_in_use"], stats.get("bytes_limit"))
    return Memory(devices, _peak_of_process())


@contextlib.contextmanager
def warnings_of_jax() -> Iterator[list[str]]:
    """Collect the warnings and errors that JAX logs, without tracebacks."""
    messages: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            cause = record.exc_info[1] if record.exc_info else None
            messages.append(" ".join(record.getMessage().split()) + (f": {cause}" if cause else ""))

    handler, logger = Handler(logging.WARNING), logging.getLogger("jax")
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)


def _peak_of_process() -> int | None:
    try:
        import resource  # Not on Windows.
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _first_line(path: str) -> str:
    with contextlib.suppress(OSError):
        return (pathlib.Path(path).read_text().splitlines() or [""])[0].strip()
    return ""
