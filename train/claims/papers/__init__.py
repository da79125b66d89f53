"""Published claims, one per file.

The module's docstring states setting, cost and findings; its `CLAIM` is a published claim that runs in the simulator
check (`python -m train reproduce NAME`). Modules without `CLAIM` hold the settings that claims share.
"""

import importlib
import pkgutil
from types import ModuleType

from train.claims.claim import Claim
from train.config.validation import one_of

_MODULES = {
    module.name: importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)
}
REPLACED = {"every_method": "python -m train benchmark"}
CLAIMS = tuple(sorted(name for name, module in _MODULES.items() if hasattr(module, "CLAIM")))


def claim(name: str) -> Claim:
    """Return the claim called `name`.

    Raises:
      ValueError: if there is none; the message lists the names.
    """
    if name in REPLACED:
        raise ValueError(f"the claim {name!r} has been replaced by: {REPLACED[name]}")
    if name not in CLAIMS:
        raise ValueError(f"there is no claim {name!r}; choose {one_of(name, CLAIMS)}")
    return _MODULES[name].CLAIM


def module(name: str) -> ModuleType:
    """Return the module of the claim called `name`."""
    return _MODULES[name]
