"""Three asynchronous workers with GEM learn real handwritten digits to at least 97 % test accuracy.

A gradient takes longer than its commit, so the workers really compute at the same time, on two cores as well.

Cost: about ten seconds of training on two CPU cores. `python -m train`
"""

from train.config.config import Config

CONFIG = Config(workers=3, batch_size=256, epochs=40.0)
# Sweeps run in virtual time, where small batches cost nothing.
SWEPT = Config()
