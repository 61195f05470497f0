"""Text in and text out: the tokenizer as operators of the graph, or a refusal."""

import importlib.metadata

from kzoo.exporters.errors import ExportError
from kzoo.exporters.onnx import DEFAULT_OPSET
from kzoo.exporters.text.check import a_tie, check_codec
from kzoo.exporters.text.codecs import codec_of
from kzoo.exporters.text.functions import text_functions
from kzoo.exporters.text.strings import MINIMUM_OPSET

__all__ = ["check_tokenizer", "needs", "notes", "offered", "opset"]


def offered(task, format):
    """What an artifact of text offers; see `text_functions`.

    Raises:
        ExportError: the task or its tokenizer has no exact form, or a package lacks.
    """
    return text_functions(task, codec_of(task.tokenizer, format))


def needs(task, format):
    """Packages with their versions that such an artifact needs to be run."""
    package = codec_of(task.tokenizer, format).needs[format]
    return [f"{package} {importlib.metadata.version(package)}"] if package else []


def opset(opset, portable):
    """The ONNX opset of such an artifact, whose strings need a newer one.

    Raises:
        ExportError: an older one is asked for.
    """
    if portable or opset is not None and opset < MINIMUM_OPSET:
        raise ExportError(
            f"text=True needs ONNX opset {MINIMUM_OPSET}, the first with operators on "
            f"strings. Received: opset={opset}, portable={portable}; leave them out."
        )
    return opset or DEFAULT_OPSET


def check_tokenizer(task, format):
    """Compares the tokenizer in the graph with the task's; see `check_codec`."""
    check_codec(codec_of(task.tokenizer, format), hasattr(task, "generate"))


def notes(task, format):
    """What a report has to say of such an artifact, a sentence each."""
    tie = a_tie(codec_of(task.tokenizer, format))
    if tie is None:
        return []
    return [
        f"Of two splits of a text that are exactly as probable, as of {tie!r}, "
        f"{needs(task, format)[0]} may take the other one than sentencepiece "
        f"{importlib.metadata.version('sentencepiece')}."
    ]
