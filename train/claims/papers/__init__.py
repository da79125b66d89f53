"""One claim a file: a module with a docstring that says what it shows, at what cost, and with `CLAIM`, a published claim that
is checked by runs in the simulator (`python -m train reproduce NAME`). Several claims share a module without `CLAIM`.
"""

import importlib
import pkgutil
from types import ModuleType

from train.claims.claim import Claim
from train.config.validation import one_of

_MODULES = {
    module.name: importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)
}
CLAIMS = tuple(sorted(name for name, module in _MODULES.items() if hasattr(module, "CLAIM")))


def claim(name: str) -> Claim:
    """The claim called `name`.

    Raises:
      ValueError: if there is none; the message names those there are.
    """
    if name not in CLAIMS:
        raise ValueError(f"there is no claim {name!r}; choose {one_of(name, CLAIMS)}")
    return _MODULES[name].CLAIM


def module(name: str) -> ModuleType:
    """The module of the claim called `name`."""
    return _MODULES[name]
