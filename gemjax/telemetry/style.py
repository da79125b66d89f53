"""The style of all pictures of the project: one colour and marker per method, direct labels, headings; needs matplotlib.

Methods of a family share a hue; the twelve of ``WELL_KNOWN`` differ in colour under each kind of colour blindness, and in
their markers. Draw inside ``style()``, set limits and scales, then call ``label_ends`` in place of a legend:

>>> with style():
...     figure = picture(columns=1)
...     axes = figure.subplots()
...     for method, errors in {"asgd": [1.2, 1.9, 4.1], "gem": [1.1, 1.2, 1.4]}.items():
...         _ = axes.plot([4, 8, 16], errors, label=method, **look(method))
...     ticks_at(axes, [4, 8, 16], log=True)
...     heading(figure, "GEM keeps its accuracy with 16 workers", "digits, mean of 5 seeds")
...     texts = label_ends(axes)
>>> [text.get_text() for text in texts]
['asgd', 'gem']
"""

import contextlib
import io
import zlib
from collections.abc import Iterator
from colorsys import hls_to_rgb
from typing import Any, cast

import numpy as np

try:
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.colors import to_hex, to_rgb
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.lines import Line2D
    from matplotlib.text import Annotation, Text
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
    from PIL import Image  # Matplotlib needs it, too.
except ImportError as error:
    raise ImportError("drawing needs matplotlib, which is not installed: pip install matplotlib") from error

COLUMN, PAGE = 3.3, 6.9  # Inches: the width of a column, and of both with the space between.
WELL_KNOWN = ("gem", "asgd", "nag_asgd", "multi_asgd", "staleness_aware", "gap_aware", "dana_slim", "dc_asgd", "downpour",
              "easgd", "lsgd", "diloco")  # fmt: skip
LOOKS = {  # Colour, marker, line; a line per family.
    "asgd": ("#655d5f", "s", "-"), "momentum_asgd": ("#b5a083", "8", "--"), "nag_asgd": ("#491602", "d", "-"),
    "multi_asgd": ("#8b7962", "P", "-"),
    "staleness_aware": ("#e4b309", "D", "-"), "dynsgd": ("#a58400", "p", "--"), "delay_adaptive": ("#c9bd4b", "H", ":"),
    "yellowfin": ("#8a9400", "d", "-."),
    "gap_aware": ("#e07e06", "^", "-"), "gap_aware_adam": ("#b35c00", "v", "--"),
    "gem": ("#254bd2", "o", "-"),
    "dana_slim": ("#57b179", "v", "-"), "dana_zero": ("#1f7a43", "^", "--"), "dana_dc": ("#8bc34a", "X", "-."),
    "dana_ga": ("#0b4f2c", "D", "--"), "lwp": ("#6f9c5a", "<", ":"),
    "dc_asgd": ("#c157ae", "X", "-"), "dc_momentum_asgd": ("#8e2f7d", "P", "--"), "one_step_delay": ("#e08ad0", "d", ":"),
    "async_pipeline": ("#a0267a", "v", "-."),
    "easgd": ("#b3260f", ">", "-"), "eamsgd": ("#e8694a", "<", "--"), "lsgd": ("#741d39", "*", "-"),
    "diloco": ("#8567fb", "h", "-"), "delayed_nesterov": ("#5a35c8", "s", "--"), "momentum_lookahead": ("#b09af0", "^", "-."),
    "heloco": ("#3d1f94", "D", "--"), "outer_nesterov": ("#9c86c9", "P", ":"),
    "streaming_diloco": ("#7a4fd0", "p", ":"), "decoupled_diloco": ("#c3b1f5", "X", "--"),
    "downpour": ("#00bced", "<", "-"), "agn": ("#0083a8", "p", "--"), "fedbuff": ("#62b5c8", "o", "-."),
    "fedasync": ("#3f6f8c", "X", ":"),
    "incremental": ("#00897b", "s", "--"), "malenia": ("#5cc0ae", "v", "-."), "ringleader": ("#005f56", "H", "--"),
    "ringmaster": ("#7a9490", "p", "-."), "rennala": ("#2aa79b", "D", ":"),
    "sequential": ("#000000", "", ":"), "synchronous": ("#000000", "8", "--"),
}  # fmt: skip
NAMES = {"adaptive_staleness": "dynsgd", "plain_asynchronous_sgd": "asgd", "plain_asgd": "asgd", "sgd": "sequential",
         "sequential_sgd": "sequential", "synchronous_sgd": "synchronous", "ssgd": "synchronous"}  # fmt: skip
SCREEN = 140  # Dots per inch in notebooks.
QUIET = "0.45"  # Subtitles and what is not a method.
RC = {
    "font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8, "axes.titlelocation": "left", "xtick.labelsize": 8,
    "ytick.labelsize": 8, "legend.fontsize": 8, "legend.frameon": False, "figure.titlesize": 9,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "0.4", "xtick.color": "0.3", "ytick.color": "0.3",
    "axes.grid": True, "axes.axisbelow": True, "grid.color": "0.9", "grid.linewidth": 0.6,
    "lines.linewidth": 1.4, "lines.markersize": 4.5, "savefig.dpi": 200, "pdf.fonttype": 42,
    "axes.formatter.min_exponent": 3,
    "figure.constrained_layout.w_pad": 0.06,
}  # fmt: skip
READABLE = 4.5  # Contrast of text against white.


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Give figures in a ``with`` block the project's fonts, grid and lines, whatever the user's own style."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(RC)
        yield


def colour(method: str) -> str:
    """Return the colour of a method.

    Args:
      method: its name, or a label such as ``"DANA-Slim"``. A method without a row in ``LOOKS`` has a colour that depends on
        its name alone.

    >>> colour("gem") == colour("GEM"), colour("DC-ASGD") == colour("dc_asgd")
    (True, True)
    """
    return _entry(method)[0]


def marker(method: str) -> str:
    """Return the marker of a method; see :func:`colour`."""
    return _entry(method)[1]


def look(method: str, **others: Any) -> dict[str, Any]:
    """Return colour, marker and line of a method for ``axes.plot``, updated by ``others``.

    Long curves take ``markevery=0.1``, or ``marker=""``.
    """
    color, shape, dashes = _entry(method)
    return {"color": color, "marker": shape, "ls": dashes} | others


def picture(columns: float = 1, height: float = 2.4) -> Figure:
    """Return an empty figure of one column's width, or of two, that notebooks show; it is not registered with ``pyplot``.

    Args:
      columns: 1 for the width of a column (3.3 inches), 2 for that of a page (6.9 inches), or between.
      height: in inches.
    """
    return Picture(figsize=(COLUMN + (PAGE - COLUMN) * (columns - 1), height), layout="constrained")


class Picture(Figure):
    """A matplotlib figure that notebooks show without ``%matplotlib inline``."""

    def savefig(self, *args: Any, **options: Any) -> None:
        with style():  # Some settings are read when ticks are drawn.
            super().savefig(*args, **options)

    def _repr_png_(self) -> bytes:
        drawn, small = io.BytesIO(), io.BytesIO()
        self.savefig(drawn, format="png", dpi=SCREEN)
        Image.open(drawn).convert("RGB").quantize(256).save(small, format="png", optimize=True)  # A third of the bytes.
        return small.getvalue()


def heading(figure: Figure, title: str, subtitle: str = "") -> None:
    """Write a title above a figure, and below the title a subtitle, both wrapped at the width of the figure.

    The figure needs a constrained layout, whose area shrinks by the height of the heading.
    """
    size = FontProperties(size=mpl.rcParams["axes.labelsize"]).get_size_in_points()
    used, inches = 0.04, figure.get_figheight()
    for words, points, weight, color in ((title, size + 1, "bold", "black"), (subtitle, size, "normal", QUIET)):
        if words:
            text = figure.text(0, 1, "", fontsize=points, weight=weight, color=color, va="top")
            _wrap(text, words, 0.98 * figure.bbox.width)
            text.set_position((0.06 / figure.get_figwidth(), 1 - used / inches))
            used += points * 1.3 * (text.get_text().count("\n") + 1) / 72
    layout = figure.get_layout_engine()
    if isinstance(layout, ConstrainedLayoutEngine):
        layout.set(rect=(0, 0, 1, 1 - (used + 0.04) / inches))


def label_ends(axes: Axes, gap: float = 6.0) -> list[Annotation]:
    """Write the label of each line in its colour beside its end, apart from the other labels.

    Call it last: it needs the final limits, scales and headings. Labels that had to move, and those of lines that end
    earlier, are joined to their lines by a thin line.

    Args:
      axes: lines with a ``label``, error bars included.
      gap: points between the axes and the labels.

    Returns:
      The labels, in the order of the legend's entries.
    """
    figure = cast(Figure, axes.figure.figure)  # The root, where axes are in a subfigure.
    figure.draw_without_rendering()
    ends = []
    for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
        line: Any = getattr(handle, "lines", [handle])[0]  # Error bars have their line inside.
        if isinstance(line, Line2D) and len(points := _shown(line)):
            ends.append((label, line.get_color(), points[np.argmax(points[:, 0])]))
    if not ends:
        return []
    size, box = FontProperties(size=mpl.rcParams["axes.labelsize"]).get_size_in_points(), axes.get_window_extent()
    point = figure.dpi / 72
    heights = np.array([1.15 * size * point * (label.count("\n") + 1) for label, *_ in ends])
    at = np.clip([end for *_, end in ends], box.min, box.max)
    placed = _apart(at[:, 1], heights, box.y0, box.y1)
    moved = (abs(placed - at[:, 1]) > 0.4 * size * point) | (box.x1 - at[:, 0] > 0.06 * box.width)
    left = 1 + (gap + 4 * moved.any()) * point / box.width
    texts = []
    starts = axes.transAxes.inverted().transform(at)
    for (label, color, _), start, to, far in zip(ends, starts, placed, moved, strict=True):
        arrow = {
            "arrowstyle": "-",
            "color": color,
            "lw": 0.5,
            "shrinkA": 0,
            "shrinkB": 3,
            "alpha": 0.7,
            "relpos": (0, 0.5),
        }
        text = axes.annotate(
            label, start, (left, (to - box.y0) / box.height), "axes fraction", va="center", fontsize=size,
            color=ink(color), arrowprops=arrow if far else None, annotation_clip=False,
        )  # fmt: skip
        texts.append(text)
    return texts


def ticks_at(axes: Axes, values: Any, *, log: bool = False) -> None:
    """Put the ticks of the horizontal axis at ``values`` alone, as plain numbers; ``log`` makes the axis logarithmic."""
    if log:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(values)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def band(
    axes: Axes, x: Any, low: Any, high: Any, color: Any, limits: tuple[float, float] = (-np.inf, np.inf), **looks: Any
) -> None:
    """Draw an interval as a band, or at a single point as a line, cut at the possible range.

    Args:
      axes: where it is drawn.
      x: positions of the points.
      low: lower ends.
      high: upper ends.
      color: a colour, usually ``colour(method)``.
      limits: the least and the largest possible value, such as ``(0, 100)`` for per cent.
      **looks: arguments of ``axes.fill_between``.
    """
    low, high = np.clip(low, *limits), np.clip(high, *limits)
    if np.size(x) == 1:
        axes.vlines(x, low, high, colors=[color], alpha=0.5)
        return
    filled: dict[str, Any] = {"color": color, "alpha": 0.18, "lw": 0} | looks
    axes.fill_between(x, low, high, **filled)


def ink(color: Any) -> tuple[float, float, float]:
    """Return a colour for text: ``color``, darkened until it is readable on white."""
    rgb = np.array(to_rgb(color))
    while 1.05 / (_luminance(rgb) + 0.05) < READABLE:
        rgb = 0.95 * rgb
    return tuple(rgb.tolist())


def _entry(method: str) -> tuple[str, str, str]:
    name = method.strip().lower().replace("-", "_").replace(" ", "_")
    if (found := LOOKS.get(NAMES.get(name, name))) is not None:
        return found
    number = zlib.crc32(name.encode())
    hue, light = number % 360 / 360, 0.3 + number // 360 % 3 * 0.12
    return to_hex(hls_to_rgb(hue, light, 0.65)), "oDsX^v"[number // 8 % 6], ("-", "--", "-.", ":")[number // 64 % 4]


def _luminance(rgb: np.ndarray) -> float:
    """Return the relative luminance of sRGB, as WCAG defines it."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def _wrap(text: Text, words: str, width: float) -> None:
    """Set a text, with a line break before each word that would exceed `width` pixels."""
    lines = [""]
    for word in words.split():
        text.set_text(f"{lines[-1]} {word}".strip())
        if lines[-1] and text.get_window_extent().width > width:
            lines.append(word)
        else:
            lines[-1] = text.get_text()
    text.set_text("\n".join(lines))


def _shown(line: Any) -> np.ndarray:
    """Return where a line is drawn, in pixels, without points that have no finite place."""
    points = np.column_stack([np.asarray(part, float) for part in line.get_data(orig=False)])  # Categories as numbers.
    with np.errstate(all="ignore"):
        points = line.get_transform().transform(points)
    return points[np.isfinite(points).all(axis=1)]


def _apart(wanted: np.ndarray, heights: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return positions nearest to `wanted` (least squares) at which labels of these heights do not overlap."""
    order = np.argsort(wanted, kind="stable")
    tall = heights[order]
    below = np.cumsum(tall) - tall / 2
    groups: list[tuple[float, int]] = []  # Mean of the wanted offsets, and number, of labels that touch.
    for offset in wanted[order] - below:
        count = 1
        while groups and groups[-1][0] >= offset:
            mean, number = groups.pop()
            offset, count = (number * mean + count * offset) / (number + count), number + count
        groups.append((offset, count))
    offsets = np.repeat([mean for mean, _ in groups], [count for _, count in groups])
    first, last = low - tall[0] / 2, high + tall[-1] / 2 - tall.sum()
    placed = np.empty_like(wanted)
    placed[order] = np.clip(offsets, min(first, last), max(first, last)) + below
    return placed
