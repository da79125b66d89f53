"""Description of a machine: plugins, devices and messages of JAX."""

import logging
import sys
import types

import pytest

import gemjax
from gemjax.check import machine


def device(platform="gpu", kind="NVIDIA H200", stats=None, number=0):
    made = type("Device", (), {"memory_stats": lambda self: stats})()
    made.platform, made.device_kind, made.id = platform, kind, number
    return made


def test_plugins_are_among_the_versions(tmp_path, monkeypatch):
    for name, version in (("jax_cuda12_plugin", "0.10.2"), ("libtpu", "0.0.40"), ("jaxtyping", "0.3")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    versions = machine.versions()
    assert versions["gemjax"] == gemjax.__version__
    assert list(versions.items())[-2:] == [("jax-cuda12-plugin", "0.10.2"), ("libtpu", "0.0.40")]


def test_equal_devices_are_counted():
    stats = {"bytes_limit": 100 * 2**30}
    devices = [device(stats=stats), device(stats=stats, number=1), device("cpu", "cpu")]
    assert machine.counted(devices) == ["2 × NVIDIA H200 (gpu), 100 GiB for JAX", "1 × cpu"]


@pytest.mark.parametrize(
    ("count", "platform", "workers"), [(1, "gpu", 4), (3, "gpu", 6), (8, "tpu", 14), (3, "cpu", 4), (9, "cpu", 8)]
)
def test_the_number_of_workers_follows_from_the_devices(count, platform, workers):
    assert machine.default_workers([device(platform) for _ in range(count)]) == workers


def test_peaks_of_devices_that_report_them(monkeypatch):
    def broken():
        raise RuntimeError("not implemented")

    stats = {"peak_bytes_in_use": 5, "bytes_limit": 9}
    silent = types.SimpleNamespace(platform="gpu", id=1, memory_stats=broken)
    monkeypatch.setattr(machine.jax, "local_devices", lambda: [device(stats=stats), silent, device(stats=None)])
    memory = machine.peak_memory()
    assert memory.devices == {"gpu:0": (5, 9)}
    assert memory.process > 2**20


def test_warnings_of_jax_are_kept_with_their_causes():
    logger = logging.getLogger("jax._src.xla_bridge")
    with machine.warnings_of_jax() as messages:
        logger.debug("looking for plugins")
        logger.warning("CUDA backend failed:\n  no device")
        try:
            raise RuntimeError("the driver is too old")
        except RuntimeError:
            logger.exception("error in %s", "initialize()")
    logger.warning("later")
    assert messages == ["CUDA backend failed: no device", "error in initialize(): the driver is too old"]
