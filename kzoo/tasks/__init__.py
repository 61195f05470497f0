"""What a user compiles, fits, generates with and exports."""

from kzoo.tasks.causal_lm import CausalLM
from kzoo.tasks.masked_lm import Candidate, MaskedLM
from kzoo.tasks.pair_scorer import PairScorer
from kzoo.tasks.question_answering import Answer, QuestionAnswering
from kzoo.tasks.saving import load_model, load_task
from kzoo.tasks.sentence_embedder import SentenceEmbedder
from kzoo.tasks.seq2seq_lm import Seq2SeqLM
from kzoo.tasks.text_classifier import TextClassifier, TextRegressor
from kzoo.tasks.token_classifier import TokenClassifier

__all__ = [
    "Answer",
    "Candidate",
    "CausalLM",
    "MaskedLM",
    "PairScorer",
    "QuestionAnswering",
    "SentenceEmbedder",
    "Seq2SeqLM",
    "TextClassifier",
    "TextRegressor",
    "TokenClassifier",
    "load_model",
    "load_task",
]
