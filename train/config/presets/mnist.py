"""GEM's MNIST experiment with 8 workers, one epoch each: at least 98.5 % test accuracy.

Cost: some 20 seconds of training on two CPU cores. `python -m train mnist --manual-dir FOLDER`
"""

from train.config.config import Config

CONFIG = Config(dataset="mnist", epochs=1.0, batch_size=64, learning_rate=0.05, momentum=0.9)
