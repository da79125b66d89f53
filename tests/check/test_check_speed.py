"""Measurements of speed: their arithmetic, and a short run of each."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gemjax
from gemjax.check import speed

TINY = (8, 4, 3)


def test_sizes_of_the_models():
    size = lambda units: sum(m * n + n for m, n in itertools.pairwise(units))
    sizes = {name: size(units) for name, units in speed.MODELS.items()}
    assert sizes == {"small": 99_738, "large": 3_962_890}
    assert speed.network(TINY).size == 8 * 4 + 4 + 4 * 3 + 3


@pytest.mark.slow
def test_a_loss_of_several_passes_is_their_mean():
    once, thrice = speed.network(TINY), speed.network(TINY, passes=3)
    batch = {"x": jnp.ones((2, 8)), "y": jnp.array([0, 2])}
    scaled = [once.loss_fn(once.params, batch | {"x": scale * batch["x"]}) for scale in (0.9, 1.0, 1.1)]
    np.testing.assert_allclose(thrice.loss_fn(thrice.params, batch), np.mean(scaled), rtol=1e-6)
    assert len({float(loss) for loss in scaled}) == 3


def test_ratio_and_overhead():
    measured = speed.Speed(parameters=1000, batch_size=64, workers=4, bare=1000.0, rate=1500.0, alone=800.0)
    assert measured.ratio == 1.5
    assert measured.overhead == pytest.approx(250e-6)


def test_a_rate_leaves_out_the_beginning():
    assert speed._rate(np.array([0.0, 5.0, 10.0, 10.5, 11.0, 11.5, 12.0, 12.5])) == pytest.approx(2.0)


def test_the_bare_loop_does_not_change_the_problem():
    problem = speed.network(TINY)
    before = jax.device_get(problem.params)
    assert speed.bare_rate(problem, jax.local_devices()[1], seconds=0.01) > 0
    jax.tree.map(np.testing.assert_array_equal, before, jax.device_get(problem.params))


def test_overlap_on_one_device_is_known_without_a_run():
    device = jax.local_devices()[0]
    overlap = speed.measure_overlap(gemjax.Placement((device,) * 4, jax.local_devices()[1]), seconds=60.0)
    assert (overlap.devices, overlap.at_once, overlap.gain) == (1, 1.0, None)


@pytest.mark.nightly
def test_the_engines_are_timed():
    placement = gemjax.place(3)
    measured = speed.measure_speed(TINY, placement, seconds=0.05)
    assert measured.workers == 3
    assert min(measured.bare, measured.rate, measured.alone) > 0
    windows = speed.measure_windows(32, TINY, workers=4, width=4)
    assert list(windows.rates) == [1, 4]
    assert windows.default == 1
    overlap = speed.measure_overlap(placement, seconds=0.3, units=TINY)
    assert 1 <= overlap.at_once <= overlap.devices == 3
    assert overlap.headline
