"""This machine: cores, device and versions."""

import contextlib
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe() -> dict[str, Any]:
    """What this process computes on, and with which versions."""
    import jax

    device = jax.devices()[0]
    return {
        "backend": jax.default_backend(),
        "device": _cpu_name() if device.platform == "cpu" else device.device_kind,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("jax", "optax", "flax")},
    }


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
