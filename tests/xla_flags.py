"""XLA flags that reduce compile time, set only if this release of JAX accepts them: an unknown flag aborts the process."""

import os
import subprocess
import sys

# With the older emitters a file of tests takes 0.6 of the time (JAX 0.10), and half of that without LLVM's optimizations. A
# program that is not divided among threads takes a tenth less processor time to compile.
FASTER = {
    "--xla_cpu_use_fusion_emitters": "false",
    "--xla_backend_optimization_level": "0",
    "--xla_cpu_parallel_codegen_split_count": "1",
}


def set_flags():
    """Add to XLA_FLAGS those of the flags that it lacks and that JAX starts with.

    Call it before JAX starts. Subprocesses inherit the flags.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:  # The parent process has tried.
        return
    for name, value in FASTER.items():
        given = os.environ.get("XLA_FLAGS", "")
        if name not in given and _starts_with(flags := f"{given} {name}={value}".strip()):
            os.environ["XLA_FLAGS"] = flags


def as_users_have_them():
    """Return XLA_FLAGS without those flags."""
    return " ".join(flag for flag in os.environ.get("XLA_FLAGS", "").split() if flag.split("=")[0] not in FASTER)


def _starts_with(flags):
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    start = subprocess.run([sys.executable, "-c", "import jax; jax.devices()"], env=environment, capture_output=True)
    return start.returncode == 0
