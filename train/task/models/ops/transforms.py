"""The transforms of Winograd's convolutions, from the points at which they evaluate polynomials.

A convolution of `tile + size - 1` values with a kernel of `size` gives `tile` values. It is the transpose of a product of
two polynomials, of `tile` and `size` coefficients, which their values at `tile + size - 1` points determine (Toom and Cook):
as many multiplications, instead of `tile * size` (Winograd 1980; Lavin and Gray 2016, arXiv:1509.09308). One of the points
is infinity, where a polynomial's value is its last coefficient.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

Matrix = tuple[tuple[Fraction, ...], ...]

POINTS = tuple(Fraction(point) for point in ("0", "3/4", "-3/4", "3/2", "-3/2"))
"""The finite points. All numbers of their transforms of images and results are exact in binary."""

SPAN = len(POINTS) + 1
"""Values under the window of a tile, along one axis."""


class Transforms(NamedTuple):
    """Matrices of a convolution: result = of_result ((of_kernel kernel) * (of_image image))."""

    of_image: Matrix  # [SPAN, SPAN]
    of_kernel: Matrix  # [SPAN, size]
    of_result: Matrix  # [tile, SPAN]


@functools.cache
def transforms(size: int) -> Transforms:
    """Return the matrices for a kernel of `size` values and tiles of `SPAN + 1 - size`."""
    others = [[other for other in POINTS if other != point] for point in POINTS]
    of_image = [(*_coefficients(roots), Fraction(0)) for roots in others] + [tuple(_coefficients(POINTS))]
    scales = [1 / _value(roots, point) for roots, point in zip(others, POINTS, strict=True)] + [Fraction(1)]
    of_kernel = [tuple(scale * power for power in row) for scale, row in zip(scales, _powers(size), strict=True)]
    of_result = zip(*_powers(SPAN + 1 - size), strict=True)
    return Transforms(tuple(of_image), tuple(of_kernel), tuple(of_result))


def _coefficients(roots: Sequence[Fraction]) -> list[Fraction]:
    """Return the coefficients of the polynomial with these roots, from that of degree 0 to the last, 1."""
    found = [Fraction(1)]
    for root in roots:
        found = [above - root * below for above, below in zip([0, *found], [*found, 0], strict=True)]
    return found


def _value(roots: Sequence[Fraction], point: Fraction) -> Fraction:
    value = Fraction(1)
    for root in roots:
        value *= point - root
    return value


def _powers(count: int) -> list[list[Fraction]]:
    """Return the first `count` powers of all points; those of infinity are 0 but for the last, 1."""
    infinity = [Fraction(0)] * (count - 1) + [Fraction(1)]
    return [[point**power for power in range(count)] for point in POINTS] + [infinity]
