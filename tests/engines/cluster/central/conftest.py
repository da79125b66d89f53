"""A fake Ray, and divisions of small arrays."""

import sys

import jax
import pytest
from engines.cluster.fake_ray import FakeRay

from gemjax.engines.cluster.central import division
from gemjax.engines.cluster.cluster import settings


@pytest.fixture
def small(monkeypatch):
    """Arrays of five numbers are large."""
    monkeypatch.setattr(division, "SMALL", 4)


@pytest.fixture
def fake(monkeypatch, small):
    fake, before = FakeRay(), settings()
    monkeypatch.setitem(sys.modules, "ray", fake)
    yield fake
    assert not fake.running
    for name, value in before.items():  # Its actors are threads, whose settings are those of this process.
        jax.config.update(name, value)
