"""XLA flags that reduce compile time, set only if this release of JAX accepts them: an unknown flag aborts the process."""

import os
import subprocess
import sys

# With the older emitters a file of tests takes 0.6 of the time (JAX 0.10), and half of that without LLVM's optimizations.
FASTER = {"--xla_cpu_use_fusion_emitters": "false", "--xla_backend_optimization_level": "0"}


def set_flags():
    """Add those flags to XLA_FLAGS that it lacks if a process with them can start JAX.

    Call it before JAX starts. Subprocesses inherit the flags.
    """
    given = os.environ.get("XLA_FLAGS", "")
    missing = [f"{name}={value}" for name, value in FASTER.items() if name not in given]
    if not missing or "PYTEST_XDIST_WORKER" in os.environ:  # The parent process has tried.
        return
    flags = " ".join([given, *missing]).strip()
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    start = subprocess.run([sys.executable, "-c", "import jax; jax.devices()"], env=environment, capture_output=True)
    if start.returncode == 0:
        os.environ["XLA_FLAGS"] = flags
