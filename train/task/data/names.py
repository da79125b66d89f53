"""The names of data sets on the command line."""

from train.config.datasets import DATASETS


def check_dataset(name: str, data_dir: str | None) -> None:
    """Check that there is a data set `name`; TFDS is imported only for a name outside the project's table.

    Raises:
      DataError: if not, with the names that there are.
    """
    if name not in DATASETS:
        from train.task.data import load

        load.check_name(name, data_dir)
