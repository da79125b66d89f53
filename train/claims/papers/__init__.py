"""Published claims, one per file.

The module's docstring states setting and findings; its `CLAIM` is a published claim that runs in the simulator
check (`python -m train reproduce NAME`). Modules without `CLAIM` hold the settings that claims share.
"""

import importlib
import pkgutil
from types import ModuleType

from train.claims.claim import Claim

_MODULES = {
    module.name: importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)
}
CLAIMS = tuple(sorted(name for name, module in _MODULES.items() if hasattr(module, "CLAIM")))


def claim(name: str) -> Claim:
    """Return the claim called `name`."""
    return _MODULES[name].CLAIM


def module(name: str) -> ModuleType:
    """Return the module of the claim called `name`."""
    return _MODULES[name]
