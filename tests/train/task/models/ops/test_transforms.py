"""The transforms are exact, and their numbers are those that binary holds."""

from fractions import Fraction

import pytest

from train.task.models.ops.transforms import SPAN, transforms


def times(matrix, vector):
    return [sum(weight * value for weight, value in zip(row, vector, strict=True)) for row in matrix]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6])
def test_transforms_give_the_convolution_exactly(size):
    image = [Fraction(n * n + 1, 7) for n in range(SPAN)]
    kernel = [Fraction(3 * n - 4, 5) for n in range(size)]
    of_image, of_kernel, of_result = transforms(size)
    products = [one * other for one, other in zip(times(of_image, image), times(of_kernel, kernel), strict=True)]
    expected = [sum(kernel[i] * image[first + i] for i in range(size)) for first in range(SPAN + 1 - size)]
    assert times(of_result, products) == expected


@pytest.mark.parametrize("size", [3, 5])
def test_transforms_of_images_and_results_round_nothing(size):
    of_image, _, of_result = transforms(size)
    for matrix in (of_image, of_result):
        assert all(Fraction(float(weight)) == weight and weight.denominator <= 64 for row in matrix for weight in row)
