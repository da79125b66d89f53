"""Variables of the environment that other libraries read: one line instead of their tracebacks."""

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("JAX_PLATFORMS", "banana", "train: JAX cannot use JAX_PLATFORMS=banana: "),
        ("JAX_PLATFORMS", "rocm", "train: JAX cannot use JAX_PLATFORMS=rocm: "),
        ("JAX_ENABLE_X64", "maybe", "train: JAX refuses JAX_ENABLE_X64=maybe: invalid truth value"),
        ("JAX_TRANSFER_GUARD", "disallow", "train: JAX_TRANSFER_GUARD=disallow forbids transfers that training makes"),
        (
            "JAX_NUMPY_DTYPE_PROMOTION",
            "strict",
            "train: JAX_NUMPY_DTYPE_PROMOTION=strict forbids promotions that training",
        ),
        ("MPLBACKEND", "nonsense", "train: Matplotlib has no MPLBACKEND=nonsense; unset it, or set it to agg"),
    ],
)
def test_a_variable_that_another_library_refuses(tmp_path, variable, value, message):
    command = [sys.executable, "-m", "train", "--workers", "2", "--epochs", "0.4", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {variable: value})
    assert done.returncode == 2
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()
