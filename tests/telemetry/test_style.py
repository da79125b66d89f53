"""The style of pictures: each method has one look, well-known ones are told apart, labels and headings do not overlap."""

import inspect
import io
import itertools

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.text import Text

import gemjax
from gemjax.telemetry import style
from train.config.methods import METHODS

# Linear sRGB as seen with full colour vision, and without cones for long, middle and short waves (Machado et al., 2009).
VISION = {
    "full": np.eye(3),
    "protan": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "deutan": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    "tritan": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip
TO_LMS = np.array([[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
                   [0.0883024619, 0.2817188376, 0.6299787005]])  # fmt: skip
TO_OKLAB = np.array([[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
                     [0.0259040371, 0.7827717662, -0.8086757660]])  # fmt: skip


def oklab(color, vision):
    rgb = np.array(style.to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return TO_OKLAB @ np.cbrt(TO_LMS @ np.clip(VISION[vision] @ linear, 0, 1))


def test_a_users_own_style_changes_no_picture():
    def drawn():
        with style.style():
            figure = style.picture()
            figure.subplots().plot([-1, 1])
            assert (mpl.rcParams["text.usetex"], mpl.rcParams["font.size"]) == (False, 8)
        figure.savefig(content := io.BytesIO(), format="png", metadata={"Software": None})
        return content.getvalue()

    expected = drawn()
    own = {
        "text.usetex": True,
        "figure.subplot.left": 0.9,
        "font.size": 30,
        "savefig.facecolor": "red",
        "xtick.labelsize": 30,
    }
    with mpl.rc_context(own):
        assert drawn() == expected
        assert mpl.rcParams["font.size"] == 30


def test_every_method_has_a_look_of_its_own():
    functions = {
        name: getattr(gemjax, name) for name in gemjax.__all__ if name.islower() and callable(getattr(gemjax, name))
    }
    takes = {name: {*inspect.signature(function).parameters} for name, function in functions.items()}
    names = {name for name, arguments in takes.items() if {"learning_rate", "num_workers"} <= arguments} | set(METHODS)
    assert len(names) > 30
    assert len({style.colour(name) for name in names}) == len(names), "give one of them a row in LOOKS of style.py"


@pytest.mark.parametrize("vision", VISION)
def test_the_well_known_differ_in_colour_and_marker(vision):
    assert len({style.marker(name) for name in style.WELL_KNOWN}) == len(style.WELL_KNOWN) == 12
    seen = {name: oklab(style.colour(name), vision) for name in style.WELL_KNOWN}
    distances = {pair: np.linalg.norm(seen[pair[0]] - seen[pair[1]]) for pair in itertools.combinations(seen, 2)}
    assert min(distances.values()) > 0.08, min(distances, key=distances.get)


def test_labels_and_unknown_names_have_looks():
    assert style.look("DANA-Slim", ms=3) == style.look("dana_slim") | {"ms": 3}
    assert style.colour("mine") == style.colour("mine") != style.colour("yours")
    style.to_rgb(style.colour("mine"))


def drawn(labels, ends, scale="linear", title=""):
    """Draw lines with these labels and ends, and return the boxes of the labels and their axes."""
    with style.style():
        figure = style.picture(height=2.0)
        axes = figure.subplots()
        for label, end in zip(labels, ends, strict=True):
            axes.plot([0, 1], [1.0, end], label=label)
        axes.set_yscale(scale)
        style.heading(figure, title, "a subtitle of some length that has to be wrapped at the width of one column")
        texts = style.label_ends(axes)
    figure.draw_without_rendering()  # Moves the texts of annotations to their places.
    for text in texts:
        text.get_window_extent()
    assert [text.get_text() for text in texts] == [*labels]
    return figure, axes, [Text.get_window_extent(text) for text in texts]


@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize(
    "ends", [[3, 3, 3, 3], [1, 2, 3, 4], [4, 3.99, 1, 3.98], [1, 1, 1, 1.01], [2, float("nan"), 2, 2]]
)
def test_labels_at_the_ends_do_not_overlap(ends, scale):
    figure, axes, boxes = drawn("abcd", ends, scale)
    boxes = sorted(boxes, key=lambda box: box.y0)
    assert all(upper.y0 >= lower.y1 - 1 for lower, upper in itertools.pairwise(boxes))
    assert all(box.x0 > axes.get_window_extent().x1 for box in boxes)
    assert all(figure.bbox.x1 >= box.x1 and figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1 for box in boxes)


def test_a_heading_is_inside_of_the_figure_and_above_its_axes():
    figure, axes, _ = drawn(
        "ab", [1, 2], title="A title with so many words that one line of a column cannot hold all of them"
    )
    title, subtitle = (text.get_window_extent() for text in figure.texts)
    assert figure.bbox.y1 >= title.y1 > title.y0 >= subtitle.y1 > subtitle.y0 >= axes.get_window_extent().y1
    assert max(title.x1, subtitle.x1) <= figure.bbox.x1


def test_bands_end_at_the_possible_range():
    with style.style():
        axes = style.picture().subplots()
        style.band(axes, [0, 1], [-5, 90], [10, 120], "C0", limits=(0, 100))
    (path,) = axes.collections[0].get_paths()
    assert (path.vertices[:, 1].min(), path.vertices[:, 1].max()) == (0, 100)


@pytest.mark.parametrize("color", [style.colour(name) for name in (*style.LOOKS, "mine", "yours")])
def test_text_is_readable_on_white(color):
    assert 1.05 / (style._luminance(np.array(style.ink(color))) + 0.05) >= 4.5
