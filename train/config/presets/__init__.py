"""One configuration a file: a module with a docstring that says what it trains, at what cost, and with `CONFIG`, a run to start
from (`python -m train NAME`)."""

from train.config.config import Config
from train.config.presets import digits, mnist
from train.config.validation import one_of

_MODULES = {"digits": digits, "mnist": mnist}
NAMES = tuple(_MODULES)


def load(name: str, *, swept: bool = False) -> Config:
    """The configuration called `name`, or what a sweep of it starts from.

    Raises:
      ValueError: if there is none; the message names those there are.
    """
    if name not in _MODULES:
        raise ValueError(f"there is no configuration {name!r}; choose {one_of(name, NAMES)}")
    module = _MODULES[name]
    return getattr(module, "SWEPT", module.CONFIG) if swept else module.CONFIG
