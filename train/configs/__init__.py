"""One claim a file: a module with `CONFIG`, and a docstring that says what it shows, at what cost."""

import importlib
import pkgutil

from train.config import Config

NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def load(name: str) -> Config:
    """The configuration called `name`.

    Raises:
      ValueError: if there is none; the message names those there are.
    """
    if name not in NAMES:
        raise ValueError(f"there is no configuration {name!r}; choose one of {', '.join(NAMES)}")
    return importlib.import_module(f"{__name__}.{name}").CONFIG
