"""Compiled functions are told apart by the backend, too."""

import logging

import numpy as np
import pytest

from kzoo.generation import CompiledFunction


@pytest.mark.tensorflow
def test_many_functions_are_not_taken_for_one_that_is_traced_too_often(caplog):
    logger = logging.getLogger("tensorflow")
    logger.addHandler(caplog.handler)  # it does not propagate
    try:
        for n in range(8):
            function = CompiledFunction(
                None, lambda x, n=n: x + n, [((None,), "int32")]
            )
            assert function(np.array([1]))[0] == 1 + n
            assert function.traces == 1
    finally:
        logger.removeHandler(caplog.handler)
    assert not caplog.records
