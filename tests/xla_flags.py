"""XLA flags that save the tests compile time, where this release of JAX knows them: an unknown flag aborts the process."""

import os
import subprocess
import sys

# Measured with JAX 0.10: the older emitters take 0.6 of the time that a file of tests takes without this flag.
FASTER = "--xla_cpu_use_fusion_emitters=false"


def set_flags():
    """Adds the flag to XLA_FLAGS if a process that starts JAX with it survives. Call before JAX starts; children inherit it."""
    flags = os.environ.get("XLA_FLAGS", "")
    if FASTER in flags or "PYTEST_XDIST_WORKER" in os.environ:  # The parent process has asked.
        return
    flags = f"{flags} {FASTER}".strip()
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    start = subprocess.run([sys.executable, "-c", "import jax; jax.devices()"], env=environment, capture_output=True)
    if start.returncode == 0:
        os.environ["XLA_FLAGS"] = flags
