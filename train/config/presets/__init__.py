"""One configuration a file: a module with a docstring that says what it trains, at what cost, and with `CONFIG`, a run to start
from (`python -m train NAME`)."""

from train.config.config import Config
from train.config.presets import digits, mnist
from train.config.validation import one_of

_CONFIGS = {"digits": digits.CONFIG, "mnist": mnist.CONFIG}
NAMES = tuple(_CONFIGS)


def load(name: str) -> Config:
    """The configuration called `name`.

    Raises:
      ValueError: if there is none; the message names those there are.
    """
    if name not in _CONFIGS:
        raise ValueError(f"there is no configuration {name!r}; choose {one_of(name, NAMES)}")
    return _CONFIGS[name]
