"""Text to token ids and back, thin over `sentencepiece` and `tokenizers`.

No Keras and no TensorFlow is imported here: a tokenizer is plain Python and its
`get_config` is JSON, so that a Keras model can carry it inside `.keras`.
"""

from kzoo.tokenizers.base import Tokenizer
from kzoo.tokenizers.conventions import Conventions, Template
from kzoo.tokenizers.fast import FastTokenizer
from kzoo.tokenizers.hf_saving import save_pretrained_tokenizer
from kzoo.tokenizers.pretrained import load_pretrained_tokenizer
from kzoo.tokenizers.saving import load_tokenizer
from kzoo.tokenizers.sentence_piece import SentencePieceTokenizer

__all__ = [
    "Conventions",
    "FastTokenizer",
    "SentencePieceTokenizer",
    "Template",
    "Tokenizer",
    "load_pretrained_tokenizer",
    "load_tokenizer",
    "save_pretrained_tokenizer",
]
