"""XLA flags that reduce compile time, set only if this release of JAX accepts them: an unknown flag aborts the process."""

import os
import subprocess
import sys

# With this flag, which selects the older emitters, a file of tests takes 0.6 of the time (JAX 0.10).
FASTER = "--xla_cpu_use_fusion_emitters=false"


def set_flags():
    """Add the flag to XLA_FLAGS if a process with it can start JAX; call before JAX starts, subprocesses inherit the flag."""
    flags = os.environ.get("XLA_FLAGS", "")
    if FASTER in flags or "PYTEST_XDIST_WORKER" in os.environ:  # The parent process has tried.
        return
    flags = f"{flags} {FASTER}".strip()
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    start = subprocess.run([sys.executable, "-c", "import jax; jax.devices()"], env=environment, capture_output=True)
    if start.returncode == 0:
        os.environ["XLA_FLAGS"] = flags
