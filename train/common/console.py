"""What a run says on the terminal beside its progress."""

import contextlib
import warnings
from collections.abc import Iterator

from rich.console import Console


def say(console: Console, text: str) -> None:
    """Prints `text` as it is, in a line however long."""
    console.print(text, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def warnings_on(console: Console) -> Iterator[None]:
    """What a run warns of, as a line above its progress."""
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
