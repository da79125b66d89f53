"""Errors for data and ``batches=`` that cannot be used, with the alternative."""

import numpy as np
import pytest

import gemjax
from gemjax.protocol.compat import enable_x64

WIDE = np.arange(2**40, 2**40 + 8)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: gemjax.Epochs({"id": WIDE}, 2),
        lambda path: gemjax.OnHost(gemjax.Epochs({"id": WIDE}, 2)),
        lambda path: gemjax.OnHost(gemjax.Epochs({"id": on_disk(path, WIDE)}, 2)),
        lambda path: gemjax.Epochs({"id": on_disk(path, WIDE)}, 2),
        lambda path: gemjax.FromSource([{"id": int(number)} for number in WIDE], batch_size=2),
    ],
    ids=["memory", "host", "file on the host", "file", "source"],
)
def test_integers_that_jax_would_take_for_others_are_refused(make, tmp_path):
    """Numbers of rows in a table of embeddings, for example."""
    loss_fn, tx = lambda params, batch: (params - batch["id"].sum()) ** 2, gemjax.asgd(0.1, 2)
    message = r"\['id'\] has the integer 10995116277\d\d, which does not fit into JAX's int32; .*jax_enable_x64"
    with pytest.raises((TypeError, ValueError), match=message):
        gemjax.simulate(tx, loss_fn, 0.0, make(tmp_path), gemjax.arrivals.Gamma(2).trace(4))
    with pytest.raises((TypeError, ValueError), match=message):
        gemjax.run_on_devices(tx, loss_fn, 0.0, make(tmp_path), 4)
    with enable_x64(True):
        assert gemjax.simulate(tx, loss_fn, 0.0, make(tmp_path), gemjax.arrivals.Gamma(2).trace(1)).params != 0


def on_disk(path, array):
    np.save(path / "array.npy", array)
    return np.load(path / "array.npy", mmap_mode="r")
