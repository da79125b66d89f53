"""`python -m train`."""

import sys

from train import interrupts

if __name__ == "__main__":
    interrupts.end_at_once()
    from train.cli import main

    status = main()
    if status == 130:
        interrupts.leave(status)
    sys.exit(status)
