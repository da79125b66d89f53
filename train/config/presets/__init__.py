"""The configurations that `python -m train NAME` starts from, one per file: a `CONFIG` and a docstring with claim and cost."""

from train.config.config import Config
from train.config.presets import digits, mnist

_MODULES = {"digits": digits, "mnist": mnist}
NAMES = tuple(_MODULES)


def load(name: str, *, swept: bool = False) -> Config:
    """Return the configuration called `name`, or the one that a sweep of it starts from."""
    module = _MODULES[name]
    return getattr(module, "SWEPT", module.CONFIG) if swept else module.CONFIG
