"""Tables of the benchmarks on the terminal."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table


def show(
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
