"""How near an artifact has to be to the model: every bound, and why it is that."""

from typing import NamedTuple

import numpy as np


class Tolerance(NamedTuple):
    """Bounds of a form; tokens and integers of what is not quantised must be equal.

    Args:
        numbers: largest absolute difference, for values up to `size`; it grows with the
            largest one beyond, as the rounding of a float does.
        size: see `numbers`.
        operators: root mean square difference from the float32 artifact with the
            rounded weights, in multiples of what that artifact differs by when its
            activations get 8 bits. A scale that is wrong in one matrix gives a
            difference of the whole matrix, many times that of rounding. Twice as much
            where fewer than `FEW` numbers are compared, or scores of a search: their
            difference is less certain.
        tokens: the least share of generated tokens that are that artifact's. It was
            at least 0.88 in 15 models with random weights, whose best tokens are close
            to one another; tokens of other weights agree hardly ever.
        model: root mean square difference from the model, in units of the output's
            spread. Numbers that have nothing to do with the model's are about 1.4
            apart.
    """

    numbers: float | None = None
    size: float = 10.0
    operators: float | None = None
    tokens: float = 1.0
    model: float | None = None


TOLERANCES = {
    # What arithmetic in another order explains after some ten layers. Kernels, and so
    # the order, differ from one CPU to another.
    "float32": Tolerance(numbers=1e-4),
    # TensorFlow's own graph, operator by operator, so that the order hardly differs.
    # Models are any, and their values are taken for what they are from 1 on.
    "tf2onnx": Tolerance(numbers=1e-5, size=1.0),
    # Cast to float32 at once, so that the products are those of the float32 artifact
    # with the rounded weights, which they are held to as "float32". 11 bits a weight.
    "float16": Tolerance(model=0.02),
    # Activations keep 8 bits for a whole matrix, as in the artifact compared with:
    # 0.95 to 1.1 of its difference in 60 models with random weights. Weights keep 7
    # bits; these models' outputs were off by up to 0.25, most by less than 0.05.
    "int8": Tolerance(operators=2.0, tokens=0.5, model=0.5),
    # Activations keep 8 bits for each block of a row, other bits than those of the
    # artifact compared with: 0.5 to 1.8 of its difference, the latter where an output
    # is a few numbers. Weights keep 8 bits; off by up to 0.15.
    "int8_weights": Tolerance(operators=3.0, tokens=0.5, model=0.3),
    # As before; but a weight keeps 4 bits and is off by some 10%. Models with random
    # weights were off by 0.15 to 0.86.
    "int4": Tolerance(operators=3.0, tokens=0.5, model=1.2),
}
FEW = 100
# Of float32, in units of an output's spread, where no matrix is quantised.
ROUNDING = 1e-3
# From so many medians on, a number says nothing of the others' sizes and is judged by
# its own: such is the logit of a token that a bias of -1e9 bans.
FAR = 1e3
# Sizes from here on say "none": masked logits, scores of missing sequences.
NOTHING = 1e20


def largest_difference(form, size, numbers=None):
    """The largest difference of a form's numbers whose largest one is `size`.

    Of an array of sizes that of each, as if it were the largest. With `numbers` instead
    of the form's own.
    """
    tolerance = TOLERANCES[form]
    numbers = tolerance.numbers if numbers is None else numbers
    return numbers * np.maximum(1.0, size / tolerance.size)


def bounds(form, values, numbers=None):
    """How much each number of an output may differ.

    Args:
        form: a key of `TOLERANCES`.
        values: what the model gives, float (...), finite.
        numbers: as in `largest_difference`.

    Returns:
        The bound of those that are near to one another, a float; that of each, float
        (...); and which those are, bool (...). Others are judged by their own sizes.
    """
    sizes = np.abs(values)
    far = is_far(sizes)
    largest = float(np.max(sizes, initial=0.0, where=~far))
    most = float(largest_difference(form, largest, numbers))
    every = np.broadcast_to(most, sizes.shape)
    if far.any():
        every = np.where(far, largest_difference(form, sizes, numbers), most)
    return most, every, ~far


def is_far(sizes):
    """Which numbers, by their sizes (...), say nothing of the others; see `FAR`."""
    far = sizes > FAR
    if not far.any():  # nor of any larger median
        return far
    masked = sizes[far & (sizes < NOTHING)]  # most may be: one of each power of two
    _, first = np.unique(np.frexp(masked)[1], return_index=True)
    real = np.append(sizes[~far & (sizes < NOTHING)], masked[first])
    median = np.quantile(real, 0.5, method="lower") if real.size else 0.0
    return sizes > FAR * max(1.0, median)
