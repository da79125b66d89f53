"""`python -m train`."""

import sys

from train.common import interrupts

if __name__ == "__main__":
    interrupts.end_at_once()
    try:
        from train.cli import main
    except ModuleNotFoundError as error:
        sys.exit(f"train: {error}; install what training needs with: pip install -e '.[train]'")

    # All is written by now; the interpreter's own end would wait for workers that compute still.
    interrupts.leave(main())
