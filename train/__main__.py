"""`python -m train`."""

from train.common import interrupts

if __name__ == "__main__":
    interrupts.end_at_once()
    from train.cli import main

    # All is written by now; the interpreter's own end would wait for workers that compute still.
    interrupts.leave(main())
