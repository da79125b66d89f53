"""`python -m train`."""

import os
import sys

from train.cli import main

if __name__ == "__main__":
    status = main()
    if status == 130:  # JAX may crash at the interpreter's end when Ctrl-C broke off what it compiled.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
