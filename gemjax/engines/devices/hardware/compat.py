"""Names that differ between the releases of JAX that gemjax supports."""

import jax

if hasattr(jax, "enable_x64"):
    enable_x64 = jax.enable_x64
else:  # JAX before 0.8.
    from jax.experimental import enable_x64  # pyrefly: ignore[missing-module-attribute]

__all__ = ["enable_x64"]
