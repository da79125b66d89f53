"""A very short run, and files of limited size."""

import contextlib
import dataclasses
import functools

from flax import linen as nn

from train.config.config import BOOKKEEPING, Config
from train.run import train as training
from train.task import methods, models

COMMITS = 33


class Dense(nn.Module):
    """Substitute for the convolutional network that compiles at once."""

    num_classes: int = 10

    @nn.compact
    def __call__(self, images, train=False):
        del train
        return nn.Dense(10)(images.reshape(len(images), -1))


PLAIN = {name: getattr(Config(), name) for name in BOOKKEEPING if name not in ("data_dir", "manual_dir")}
kept = functools.cache(lambda make, config, *rest: make(config, *rest))


def dense(monkeypatch):
    """Give runs this network, and runs of one configuration the same objects, by which engines find compiled programs."""
    monkeypatch.setattr(models, "DigitsCNN", Dense)
    for module, name in ((training, "make_task"), (methods, "make_method"), (methods, "local_steps")):
        make = getattr(module, name)
        of = lambda config, *rest, make=make: kept(make, dataclasses.replace(config, **PLAIN), *rest)
        monkeypatch.setattr(module, name, of)


def flags(folder, *more):
    """Return the command line of a run of 33 commits in `folder`."""
    small = "--engine simulate --workers 3 --epochs 1 --batch-size 128 --eval-every 11 --checkpoint-every 11"
    return [*small.split(), "--out", str(folder), *more]


@contextlib.contextmanager
def no_file_beyond(size):
    """Limit the size of files to `size` bytes, as a disk does that becomes full."""
    import resource  # Not on Windows.

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
