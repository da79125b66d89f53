"""Published claims, one per file.

A module's docstring states setting and findings; its `CLAIM` has the runs in the simulator that check it
(`python -m train reproduce NAME`). Modules without `CLAIM` hold the settings that claims share.
"""

import dataclasses
import importlib
import pkgutil
from types import ModuleType

from train.claims.claim import Claim

_MODULES = {
    module.name: importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)
}
_CLAIMS = {
    name: dataclasses.replace(module.CLAIM, name=name) for name, module in _MODULES.items() if hasattr(module, "CLAIM")
}
CLAIMS = tuple(sorted(_CLAIMS))


def claim(name: str) -> Claim:
    """Return the claim called `name`."""
    return _CLAIMS[name]


def module(name: str) -> ModuleType:
    """Return the module of the claim called `name`."""
    return _MODULES[name]
