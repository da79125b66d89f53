"""The command line: `python -m train [CONFIGURATION | sweep | benchmark | reproduce | …] [flags]`."""

import importlib
import os
import re
import sys
from collections.abc import Sequence

from train.common import compilation, interrupts
from train.common.console import adapt_output
from train.common.errors import DataError, RecordError, UsageError, printable
from train.common.files import in_words
from train.config.parsing import COMMANDS, in_flags
from train.run import command

HOME = re.compile(r"^(--[\w-]+=|)(~(?:/.*)?)$")  # Shells do not expand it behind "=".
BROKEN_PIPE = 141  # Exit status that shells report for a process that SIGPIPE ended.


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    adapt_output()
    try:
        argv = [HOME.sub(lambda found: found[1] + os.path.expanduser(found[2]), word) for word in argv]
        argv = compilation.use_flag(argv)
        if argv and argv[0] in COMMANDS:
            return importlib.import_module(COMMANDS[argv[0]]).main(argv[1:])
        return command.run(argv)
    except KeyboardInterrupt as stop:
        number = interrupts.number_of(stop)
        print(f"train: interrupted by {interrupts.name_of(number)}", file=sys.stderr)
        return interrupts.status_of(number)
    except BrokenPipeError:  # The reader of the output has ended, as `head` does.
        return BROKEN_PIPE
    except (UsageError, DataError, RecordError, OSError, MemoryError) as error:
        message = in_words(error) if isinstance(error, OSError) else str(error)
        message = in_flags(message) or "there is not enough memory"
        print(f"train: {printable(message)}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        _, is_full, found = str(error).partition("RESOURCE_EXHAUSTED")
        if not is_full:
            raise
        message = (
            f"a device has not enough memory ({' '.join(found.lstrip(': ').split())[:200]}); {command.MORE_MEMORY}"
        )
        print(f"train: {printable(message)}", file=sys.stderr)
        return 1
