"""Messages on the terminal beside the progress of a run."""

import contextlib
import io
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.table import Table

from train.common.interrupts import discard


def adapt_output() -> None:
    """Let output appear on any terminal: characters that its encoding lacks are escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # Not in a notebook.
            stream.reconfigure(errors="backslashreplace")


class RunConsole(Console):
    """Console of a command with results in files, which goes on if its output cannot be written.

    Ending the command would lose hours of training because a viewer was closed, as `head` does, or because the disk of its
    output is full. Ctrl-C still ends it, with a checkpoint.
    """

    def __init__(self):
        super().__init__(emoji=False)  # A folder may be named a:smile:b.

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except BrokenPipeError:  # Earlier versions of rich do not call `on_broken_pipe`.
            self.on_broken_pipe()
        except OSError as error:
            self._go_on(f"the output cannot be written ({error.strerror})")

    def on_broken_pipe(self) -> None:
        self._go_on("the reader of the output has ended")

    def _go_on(self, reason: str) -> None:
        """Discard the output from now on and report that on stderr."""
        self.quiet = True
        discard(1)
        try:
            print(f"train: {reason}; the command goes on without output", file=sys.stderr, flush=True)
        except OSError:  # Both streams led to that reader.
            discard(2)


def say(console: Console, text: str) -> None:
    """Print `text` as it is, in one line of any length."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def show_table(
    console: Console,
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    words: int = 1,
    caption: str = "",
) -> None:
    """Print a table, with its first `words` columns to the left and numbers to the right."""
    table = Table(title=title, caption=caption or None)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < words else "right", no_wrap=index < words)
    for row in rows:
        table.add_row(*row)
    console.print(table)


@contextlib.contextmanager
def warnings_on(console: Console) -> Iterator[None]:
    """Print the warnings of a run, each as a line above its progress."""
    import gemjax  # Here: claims are listed and planned without JAX.

    with warnings.catch_warnings():
        warnings.simplefilter("always", gemjax.RunWarning)
        elsewhere = warnings.showwarning

        def show(message, category, filename, lineno, file=None, line=None):
            if issubclass(category, gemjax.RunWarning):
                say(console, f"warning: {message}")
            else:
                elsewhere(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield
