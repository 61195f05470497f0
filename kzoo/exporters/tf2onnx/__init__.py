"""ONNX of any Keras model on the TensorFlow backend, through tf2onnx.

The second road: for models with layers that are not written over `kzoo.ops`. tf2onnx
lacks some operators that Keras emits, leaves constants captured from outside as
inputs of the file, logs its errors and writes the file all the same. Here the missing
ones have handlers, captured constants are stored, every error is raised, and no file
gets its name before onnxruntime has run it and agreed with the model.
"""

from kzoo.exporters.tf2onnx.conversion import (
    compare,
    convert,
    promised_axes,
    random_inputs,
)

__all__ = ["compare", "convert", "promised_axes", "random_inputs"]
