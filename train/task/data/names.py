"""The names of data sets on the command line."""

from train.common.errors import DataError, UsageError
from train.config.config import DATASETS


def check_dataset(name: str, data_dir: str | None) -> None:
    """Raises, with what is possible, unless there is a data set `name`; imports TFDS only for a name that is not built in.

    Raises:
      UsageError: if there is none.
    """
    if name not in DATASETS:
        from train.task.data import load

        try:
            load.check_name(name, data_dir=data_dir)
        except DataError as error:
            raise UsageError(str(error)) from None
