"""Entry point of `python -m train`."""

import sys

from train.common import errors, interrupts

if __name__ == "__main__":
    interrupts.end_at_once()
    sys.unraisablehook = errors.show_unraisable
    try:
        from train.cli import main
    except ModuleNotFoundError as error:
        sys.exit(f"train: {error}; install the dependencies of training with: pip install -e '.[train]'")

    try:
        status = main()
    except SystemExit as stop:  # After the text of `--help`.
        status = stop.code if isinstance(stop.code, int) else 0
    # All files are written. A normal exit would wait for workers that still compute, and complain about a broken pipe.
    interrupts.leave(status)
