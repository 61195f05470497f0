"""What a user compiles, fits, generates with and exports."""

from kzoo.tasks.causal_lm import CausalLM
from kzoo.tasks.pair_scorer import PairScorer
from kzoo.tasks.sentence_embedder import SentenceEmbedder
from kzoo.tasks.seq2seq_lm import Seq2SeqLM
from kzoo.tasks.task import load_model, load_task
from kzoo.tasks.text_classifier import TextClassifier, TextRegressor

__all__ = [
    "CausalLM",
    "PairScorer",
    "SentenceEmbedder",
    "Seq2SeqLM",
    "TextClassifier",
    "TextRegressor",
    "load_model",
    "load_task",
]
