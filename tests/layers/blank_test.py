import ml_dtypes
import numpy as np
import pytest
from keras import Variable, ops

from kzoo.layers.blank import Blank, fill


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (257, 1031)])
def test_a_variable_has_what_was_written_and_trains_on(shape, dtype):
    variable = Variable(Blank(), shape=shape, dtype=dtype)
    np.testing.assert_array_equal(ops.convert_to_numpy(variable), np.zeros(shape))
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape) % 100

    def write(array):
        assert array.shape == shape and array.dtype == np.dtype(dtype)
        assert not array.any()
        array[...] = values

    fill(variable, write)
    np.testing.assert_array_equal(ops.convert_to_numpy(variable), values)
    variable.assign_add(ops.ones(shape, dtype))
    np.testing.assert_array_equal(ops.convert_to_numpy(variable), values + 1)
    assert ops.convert_to_numpy(variable).dtype == getattr(ml_dtypes, dtype, dtype)
