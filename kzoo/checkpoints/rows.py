"""Rows of a family's table: which tensors a variable's numbers are, and how they lie.

A row is the name of a module, or one of the classes here; `Source` takes the tensors
apart into variables, and joins them again.
"""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class ByHead:
    """A module whose outputs are head by head: query, key, value of one, then the next.

    Args:
        name: of the module.
    """

    name: str


@dataclasses.dataclass(frozen=True)
class Raw:
    """One tensor by its whole name, in the order of the variable's numbers.

    Args:
        name: of the tensor.
        shape: of the tensor, where it is not the variable's: -1 for its length.
        or_zeros: whether the variable is zeros where there is no tensor.
    """

    name: str
    shape: tuple[int, ...] | None = None
    or_zeros: bool = False


@dataclasses.dataclass(frozen=True)
class Choice:
    """A module whose name depends on a field of its model or stack.

    Args:
        field: of `ModelConfig` or `StackConfig`.
        names: by the field's value.
    """

    field: str
    names: Mapping


@dataclasses.dataclass(frozen=True)
class Source:
    """The tensor of one variable, or of several behind one another.

    Args:
        names: that it may have; the first one is written.
        paths: of the variables.
        row: the table's entry.
        kernels_in_out: see `Family`.
    """

    names: tuple[str, ...]
    paths: tuple[str, ...]
    row: object
    kernels_in_out: bool

    def split(self, array, shapes, num_heads):
        """The variables' arrays, of the tensor's.

        Args:
            array: the tensor, a numpy array of the shape that `shape` says.
            shapes: of the variables, tuples in the order of `paths`.
            num_heads: of the stack, where the outputs are head by head.
        """
        if isinstance(self.row, Raw):
            return [array.reshape(shapes[0])]
        if self._is_turned:
            array = array.T
        if isinstance(self.row, ByHead):
            parts = array.reshape(*array.shape[:-1], num_heads, len(shapes), -1)
            return [parts[..., k, :].reshape(shape) for k, shape in enumerate(shapes)]
        arrays, first = [], 0
        for shape in shapes:
            arrays.append(array[..., first : first + shape[-1]])
            first += shape[-1]
        return arrays

    def join(self, arrays, num_heads):
        """The tensor of the variables' arrays: what `split` takes apart."""
        import numpy as np

        if isinstance(self.row, Raw):
            return arrays[0].reshape(self.shape([arrays[0].shape]))
        if isinstance(self.row, ByHead):
            parts = [a.reshape(*a.shape[:-1], num_heads, -1) for a in arrays]
            array = np.stack(parts, axis=-2).reshape(*arrays[0].shape[:-1], -1)
        elif len(arrays) > 1:
            array = np.concatenate(arrays, axis=-1)
        else:
            (array,) = arrays
        if self._is_turned:
            array = array.T
        return np.ascontiguousarray(array)

    def shape(self, shapes):
        """The tensor's shape, of the variables'."""
        if isinstance(self.row, Raw):
            if self.row.shape is None:
                return tuple(shapes[0])
            return tuple(shapes[0][-1] if n == -1 else n for n in self.row.shape)
        whole = (*shapes[0][:-1], sum(shape[-1] for shape in shapes))
        if self._is_turned:
            return whole[::-1]
        return whole

    @property
    def _is_turned(self):
        return self.paths[0].endswith("/kernel") and not self.kernels_in_out
