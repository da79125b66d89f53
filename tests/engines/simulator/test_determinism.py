"""Determinism of the simulator: the same bits in any chunks and in any process."""

import ast
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from engines.problems import (
    assert_same_bits,
    distinct,
    every_method,
)
from engines.simulator.simulations import LATE, MLP, gem, run

import gemjax


@pytest.mark.slow
@every_method("gem", only=distinct, each_kind=True)
def test_the_same_run_twice_is_the_same_to_the_bit(make):
    first, second = (run(MLP, make, LATE, diagnostics=["gap"]) for _ in range(2))
    assert_same_bits(first.state, second.state)
    assert_same_bits(first.history, second.history)


@pytest.mark.slow
@pytest.mark.parametrize(
    "callback_every", [1, 7, 1000, 2**31 - 1]
)  # The last: all in one call, and no room for more than that.
def test_the_chunk_size_changes_no_bit(callback_every):
    whole, chunked = run(MLP, gem, LATE), run(MLP, gem, LATE, callback_every=callback_every)
    assert_same_bits(chunked.state, whole.state)
    assert_same_bits(chunked.history, whole.history)


def digests():
    """Return digests of state and history for an MLP with dropout, model state and local steps."""
    trace = gemjax.arrivals.Gamma(5, machine_variation=0.3).trace(60, seed=1)
    local = gemjax.LocalSteps(optax.sgd(0.05, momentum=0.5), 3)
    runs = {
        "gem": (gemjax.gem(0.05, num_workers=5), None, ["gap", "energy_ratio", "pi_95", "compensation"]),
        "easgd": (gemjax.easgd(num_workers=5), local, ["update_norm", "normalised_gap", "gap"]),
    }
    found = {}
    for name, (tx, local, diagnostics) in runs.items():
        result = gemjax.simulate(
            tx, *MLP[:3], trace, model_state=MLP.model_state, local=local, seed=7, diagnostics=diagnostics
        )
        leaves = jax.tree.leaves((result.state, dict(sorted(result.history.items()))))
        found[name] = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()
        found[f"{name}'s columns"] = ",".join(result.history)
    return found


DIGESTS = """
import sys
sys.path[:0] = {paths}
import gemjax
gemjax.cpu_devices(9)
from engines.simulator.test_determinism import digests
print(digests())
"""


@pytest.mark.slow
def test_another_process_computes_the_same_bits():
    """The order of its sets and hash tables does not matter."""
    tests = Path(__file__).parents[2]
    script = DIGESTS.format(paths=[str(tests), str(tests.parent)])
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = {"JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": seed, "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}
    other = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
    here = digests()
    assert len(set(here.values())) == 4
    assert ast.literal_eval(other.stdout) == here
