"""Names that differ between the releases of JAX that gemjax supports, settings of one thread, and one that JAX lacks."""

import contextlib
import functools
from collections.abc import Callable

import jax
import jaxlib._jax

if hasattr(jax, "enable_x64"):
    enable_x64 = jax.enable_x64
else:  # JAX before 0.8.
    from jax.experimental import enable_x64  # pyrefly: ignore[missing-module-attribute]

__all__ = ["bind_collectives", "enable_x64", "settings_here"]

SETTINGS = (
    "default_prng_impl", "threefry_partitionable", "default_matmul_precision", "numpy_dtype_promotion",
    "numpy_rank_promotion", "debug_nans", "debug_infs",
)  # fmt: skip


def settings_here() -> Callable[[], contextlib.ExitStack]:
    """Return a function that enters the settings of JAX which the calling thread has, in another thread.

    ``with jax.default_matmul_precision(...):`` and the like hold in one thread alone.
    """
    x64 = jax.config.read("jax_enable_x64")
    values = {name: getattr(jax.config, f"jax_{name}") for name in SETTINGS}

    def enter() -> contextlib.ExitStack:
        stack = contextlib.ExitStack()
        stack.enter_context(enable_x64(x64))
        for name, value in values.items():
            stack.enter_context(getattr(jax, name)(value))
        return stack

    return enter


def bind_collectives(address: str) -> None:
    """Bind the collectives between the CPUs of several processes to an address of this host, before JAX begins.

    By default they take that of the host's name, which is often one of the loopback interface, or has none.
    """
    make = jaxlib._jax.make_gloo_tcp_collectives
    jaxlib._jax.make_gloo_tcp_collectives = functools.partial(make, hostname=address)
