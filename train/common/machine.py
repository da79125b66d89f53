"""The machine of this process: cores, device, precision and versions."""

import contextlib
import functools
import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def precision(x64: bool) -> Iterator[None]:
    """Let all threads compute in double precision if `x64` is set, else in single, and restore the former one at the end.

    The variable `JAX_ENABLE_X64` has no effect: random numbers of a run that was begun without it would be other ones.
    """
    import jax

    from gemjax.protocol.compat import enable_x64

    with futures.ThreadPoolExecutor(1) as other:  # This thread may have a precision of its own.
        before = other.submit(jax.config.read, "jax_enable_x64").result()
    jax.config.update("jax_enable_x64", x64)
    try:
        with enable_x64(x64):
            yield
    finally:
        jax.config.update("jax_enable_x64", before)


def in_its_precision(function: Function) -> Function:
    """Make a function compute in the precision of its first argument, a configuration."""

    @functools.wraps(function)
    def wrapped(config: Any, *args: Any, **options: Any) -> Any:
        with precision(config.x64):
            return function(config, *args, **options)

    return wrapped  # pyrefly: ignore


def generator() -> dict[str, Any]:
    """Return the settings of JAX that decide which numbers a seed draws, as environment variables set them."""
    import jax

    names = ("jax_default_prng_impl", "jax_threefry_partitionable", "jax_random_seed_offset")
    return {name.upper(): getattr(jax.config, name) for name in names}


def other_generator(before: Any) -> str:
    """Return the first setting of an earlier `generator()` that differs now, in words; empty if none does or it is unknown."""
    if not isinstance(before, dict):
        return ""
    for name, value in generator().items():
        if before.get(name, value) != value:
            return f"{name}={str(before[name])[:60]}, and now it is {value}"
    return ""


def describe() -> dict[str, Any]:
    """Return the device of this process, its cores and the versions of the libraries."""
    import jax

    from gemjax.check.machine import processor

    device = jax.devices()[0]
    return {
        "backend": jax.default_backend(),
        "device": processor() if device.platform == "cpu" else device.device_kind,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("jax", "optax", "flax")},
    }
