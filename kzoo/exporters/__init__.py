"""Exports: a model becomes a file of another runtime, which is run and compared."""

from kzoo.exporters.answers import answers_from
from kzoo.exporters.errors import ExportError
from kzoo.exporters.export import export
from kzoo.exporters.onnx_session import text_operators
from kzoo.exporters.report import ExportReport
from kzoo.exporters.signatures import Argument, Function
from kzoo.exporters.verify import verify

__all__ = [
    "Argument",
    "ExportError",
    "ExportReport",
    "Function",
    "answers_from",
    "export",
    "text_operators",
    "verify",
]
