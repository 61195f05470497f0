"""One tensor where it lies in a file, read when it is asked for."""

import dataclasses
import math
import mmap
from pathlib import Path
from typing import BinaryIO

import ml_dtypes
import numpy as np

_MOST_AXES = 64  # of a numpy array
_STEP = 2**22  # bytes that are copied at once


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor's place in a file, checked when it is made.

    Args:
        file: open for reading in binary.
        path: of the file, for messages.
        name: of the tensor, for messages.
        dtype: numpy's, or of `ml_dtypes`.
        shape: a tuple of lengths.
        start: of the first element, in bytes from the file's begin.
        strides: in bytes, an axis each; `None` for a tensor without gaps.

    Raises:
        ValueError: no numpy array can have this shape.
    """

    file: BinaryIO
    path: Path
    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    strides: tuple[int, ...] | None = None

    def __post_init__(self):
        if len(self.shape) > _MOST_AXES:
            raise ValueError(
                f"{self.path}: tensor {self.name!r} must have at most {_MOST_AXES} "
                f"axes. Received: {len(self.shape)}."
            )
        # numpy counts the bytes of an empty array as if lengths of 0 were 1.
        nbytes = math.prod(n or 1 for n in self.shape) * self.dtype.itemsize
        if nbytes > np.iinfo(np.intp).max:
            raise ValueError(
                f"{self.path}: tensor {self.name!r} is larger than an array can be. "
                f"Received: {self.shape} of {self.dtype}."
            )
        if self.strides is None:
            strides, step = [], self.dtype.itemsize
            for length in reversed(self.shape):
                strides.append(step)
                step *= length or 1
            object.__setattr__(self, "strides", tuple(reversed(strides)))

    @property
    def nbytes(self):
        """Bytes of the elements, whether or not some share their place."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def span(self):
        """Bytes from the first element to the end of the last."""
        if 0 in self.shape:
            return 0
        steps = zip(self.shape, self.strides, strict=True)
        return sum((n - 1) * s for n, s in steps) + self.dtype.itemsize

    def read(self, start=None, stop=None):
        """The tensor, or its rows `start:stop`, as an array over the mapped file."""
        if start is None and stop is None:
            rows = self
        elif not self.shape:
            raise ValueError(f"Tensor {self.name!r} has no axis to read rows of.")
        else:
            start, stop, _ = slice(start, stop).indices(self.shape[0])
            rows = dataclasses.replace(
                self,
                shape=(max(0, stop - start), *self.shape[1:]),
                start=self.start + start * self.strides[0],
            )
        return rows._map()

    def _map(self):
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        # Each tensor has a map of its own, which goes with its array: pages of tensors
        # that nobody holds count for nobody. Copy on write, so that no consumer of the
        # array has to know that it is not plain memory.
        before = self.start % mmap.ALLOCATIONGRANULARITY
        try:
            data = mmap.mmap(
                self.file.fileno(),
                before + self.span,
                access=mmap.ACCESS_COPY,
                offset=self.start - before,
            )
        except ValueError as error:
            raise ValueError(
                f"{self.path} was closed or has changed while tensor {self.name!r} was "
                f"to be read: {error}"
            ) from error
        return np.ndarray(self.shape, self.dtype, data, before, self.strides)


def copy(source, target):
    """Copies an array over a mapped file, of which few pages are in memory at a time.

    Args:
        source: a view of what `StoredTensor.read` gave, and not written to.
        target: an array of the same shape, in the dtype that it is to be.
    """
    source, target = np.atleast_1d(source, target)
    # Rows as the file has them, so that each page is read once.
    axis = int(np.argmax(source.strides))
    source, target = np.moveaxis(source, axis, 0), np.moveaxis(target, axis, 0)
    for rows in parts(source.shape, source.itemsize, _STEP):
        target[rows] = source[rows]
        _release(source)


def parts(shape, itemsize, step):
    """Slices of the first axis that hold about `step` bytes each."""
    if not shape:
        return [slice(None)]
    rows = max(1, step // max(1, math.prod(shape[1:]) * itemsize))
    return [slice(first, first + rows) for first in range(0, shape[0], rows)]


def _release(array):
    """Gives back the pages of a mapped file; what reads them again gets them again."""
    while isinstance(array, np.ndarray):
        array = array.base
    if isinstance(array, mmap.mmap) and hasattr(array, "madvise"):
        array.madvise(mmap.MADV_DONTNEED)


def numpy_dtype(name):
    """The dtype of a name; bfloat16 and float8 are those of `ml_dtypes`."""
    return np.dtype(getattr(ml_dtypes, name, name))
