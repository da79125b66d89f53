"""One claim a file: a module with a docstring that says what it shows, at what cost, and with one of

- `CONFIG`, a run to start from (`python -m train NAME`),
- `CLAIM`, a published claim that is checked by runs in the simulator (`python -m train reproduce NAME`).
"""

import importlib
import pkgutil
from types import ModuleType

from train.claim import Claim
from train.config import Config
from train.ranges import one_of

_MODULES = {
    module.name: importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)
}
NAMES = tuple(sorted(name for name, module in _MODULES.items() if hasattr(module, "CONFIG")))
CLAIMS = tuple(sorted(name for name, module in _MODULES.items() if hasattr(module, "CLAIM")))


def load(name: str, *, swept: bool = False) -> Config:
    """The configuration called `name`, or what a sweep of it starts from.

    Raises:
      ValueError: if there is none; the message names those there are.
    """
    if name not in NAMES:
        raise ValueError(f"there is no configuration {name!r}; choose {one_of(name, NAMES)}")
    module = _MODULES[name]
    return getattr(module, "SWEPT", module.CONFIG) if swept else module.CONFIG


def claim(name: str) -> Claim:
    """The claim called `name`.

    Raises:
      ValueError: if there is none; the message names those there are.
    """
    if name not in CLAIMS:
        raise ValueError(f"there is no claim {name!r}; choose {one_of(name, CLAIMS)}")
    return _MODULES[name].CLAIM


def module(name: str) -> ModuleType:
    """The module of the configuration or claim called `name`."""
    return _MODULES[name]
