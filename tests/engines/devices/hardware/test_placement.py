"""Placement of workers and of the central variable."""

import dataclasses
import subprocess
import sys

import jax
import pytest

import gemjax
from gemjax.engines.devices.hardware.placement import Placement, place


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """Placeholder for a device that this host lacks; placing uses no device."""

    id: int
    platform: str = "gpu"


ACCELERATORS = [Accelerator(i) for i in range(8)]


def test_workers_are_assigned_to_devices_in_turn():
    devices = jax.local_devices()
    placed = place(10, devices=devices[:4])
    assert placed.workers == tuple(devices[i % 3] for i in range(10))
    assert placed.central == devices[3]
    assert not placed.colocated


@pytest.mark.parametrize(
    ("devices", "central"),
    [
        (ACCELERATORS[:1], "colocated"),
        (ACCELERATORS[:2], "host"),
        (ACCELERATORS[:3], "host"),
        (ACCELERATORS[:4], "dedicated"),
        (ACCELERATORS, "dedicated"),
        (jax.local_devices()[:1], "colocated"),
        (jax.local_devices()[:2], "dedicated"),
        (jax.local_devices(), "dedicated"),
    ],
)
def test_the_default_depends_on_the_devices(devices, central):
    assert place(2, devices=devices) == place(2, central, devices=devices)


def test_the_three_places_of_the_central_variable():
    cpu = jax.local_devices(backend="cpu")[0]
    assert place(2, "dedicated", ACCELERATORS) == Placement(ACCELERATORS[:2], ACCELERATORS[7], ACCELERATORS[2])
    assert place(2, "host", ACCELERATORS) == Placement(ACCELERATORS[:2], cpu, ACCELERATORS[2])
    colocated = place(9, "colocated", ACCELERATORS)
    assert colocated.workers == (*ACCELERATORS, ACCELERATORS[0])
    assert colocated.central == ACCELERATORS[0]
    assert colocated.colocated


def test_several_devices_for_the_central_variable_and_for_workers():
    devices = ACCELERATORS
    placed = place(3, "dedicated", devices, central_devices=2, worker_devices=3)
    assert placed.workers == (tuple(devices[:3]), tuple(devices[3:6]), tuple(devices[:3]))
    assert placed.central == tuple(devices[6:])
    assert not placed.colocated
    together = place(2, "colocated", devices, central_devices=8, worker_devices=4)
    assert together.central == tuple(devices)
    assert together.workers == (tuple(devices[:4]), tuple(devices[4:]))
    assert together.colocated
    with pytest.raises(ValueError, match="needs at least 9 devices, but there are 8"):
        place(2, "dedicated", devices, central_devices=5, worker_devices=4)
    with pytest.raises(ValueError, match="needs at least 2 devices, but there are 0"):
        place(2, devices=[])
    with pytest.raises(ValueError, match="central_devices must be an int in 1 … 2147483647, got 0"):
        place(2, central_devices=0)
    with pytest.raises(ValueError, match="but the host's CPU is 9 JAX devices"):
        place(2, "host", devices, central_devices=10)


def test_lists_of_devices_are_tuples():
    one, two, three = ACCELERATORS[:3]
    assert Placement([[one, two]], [three]) == Placement(((one, two),), three)


def test_cpu_devices_returns_existing_devices():
    assert gemjax.cpu_devices(9) == jax.devices("cpu")[:9]
    assert gemjax.cpu_devices(2) == jax.devices("cpu")[:2]


def test_cpu_devices_fails_when_jax_has_started():
    with pytest.raises(RuntimeError, match=r"started with 9 CPU devices, but 10 are wanted.*JAX_NUM_CPU_DEVICES=10"):
        gemjax.cpu_devices(10)
    assert len(jax.devices("cpu")) == 9


@pytest.mark.slow
def test_cpu_devices_splits_the_host_before_jax_has_started():
    code = """
import gemjax, jax
devices = gemjax.cpu_devices(3)
assert len(devices) == len(jax.devices()) == 3, devices
try:
    gemjax.cpu_devices(4)
except RuntimeError as error:
    print("refused:", error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={"JAX_PLATFORMS": "cpu"}
    )
    assert done.returncode == 0, done.stderr
    assert "refused: JAX has started with 3 CPU devices, but 4 are wanted" in done.stdout
