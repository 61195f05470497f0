"""A number or a probability of a pair of texts that are read together."""

import keras
import numpy as np

from kzoo import ops
from kzoo.arguments import check_count
from kzoo.tasks.forms import as_list
from kzoo.tasks.text_classifier import TextRegressor
from kzoo.training import MaskedBinaryCrossEntropy
from kzoo.training.scores import binary_scores, regression_scores


@keras.saving.register_keras_serializable("kzoo")
class PairScorer(TextRegressor):
    """How well two texts go together: a cross-encoder.

    Both are read as one sequence, so that each token of one attends to those of the
    other. Better than `SentenceEmbedder` at a pair, and slower at many: nothing of a
    text is kept for the next pair.

    Papers: Reimers and Gurevych, 2019, https://arxiv.org/abs/1908.10084, section 1;
    Nogueira and Cho, 2019, https://arxiv.org/abs/1901.04085 (ranking).

    Calling it gives logits; `predict`, `rank` and an export give scores.

    Args:
        config: a `ModelConfig`.
        tokenizer: for strings.
        output_activation: `None`: the score is any number, learned with the mean
            squared error; or `"sigmoid"`: a probability, learned with the binary
            cross-entropy of targets in [0, 1].
        pooling: as in `TextClassifier`; so for the others.
        hidden_activation: of an inner layer of the head.
        head_dropout: rate on what the head's last layer reads.
        max_length: see `EncoderTask`; the longer text is cut first.
        **kwargs: `hidden_bias` and `hidden_norm`, see `PredictionTask`.

    Raises:
        ValueError: an unknown activation.

    Example:
        >>> scorer = kzoo.PairScorer.from_size(
        ...     "tiny", tokenizer, output_activation="sigmoid", num_layers=1)
        >>> scorer.compile()
        >>> scorer.fit([("a film?", "a film"), ("a film?", "a dog")], [1, 0], epochs=20)
        >>> [index for index, score in scorer.rank("a film?", ["a dog", "a film"])]
        [1, 0]
    """

    texts_per_example = (2,)
    own_options = ("output_activation",)
    one_example = ([("a", "a")], [0.0])

    def __init__(self, config, tokenizer=None, output_activation=None, **kwargs):
        super().__init__(config, tokenizer, **kwargs)
        if output_activation not in (None, "sigmoid"):
            raise ValueError(
                "output_activation must be None or 'sigmoid'. "
                f"Received: {output_activation!r}."
            )
        self.output_activation = output_activation

    @property
    def output_axes(self):
        """A score."""
        return {"scores": (1,)}

    def named_outputs(self, inputs):
        """What an artifact's `forward` gives: scores, as `predict` does."""
        logits = self(inputs, training=False)
        return {"scores": ops.sigmoid(logits) if self.output_activation else logits}

    def from_named_outputs(self, outputs):
        """Logits, of scores."""
        scores = super().from_named_outputs(outputs)
        if not self.output_activation:
            return scores
        logits = keras.ops.log(scores) - keras.ops.log1p(-scores)
        return keras.ops.clip(logits, -1e4, 1e4)  # finite, and as certain: 0 and 1

    def default_loss(self, label_smoothing):
        """Mean squared error, or binary cross-entropy."""
        loss = super().default_loss(label_smoothing)
        return MaskedBinaryCrossEntropy() if self.output_activation else loss

    def encode_targets(self, y):
        """Numbers as floats; probabilities where scores are."""
        values = super().encode_targets(y)
        outside = (values < 0) | (values > 1)
        if self.output_activation and outside.any():
            i = int(outside.argmax())
            raise ValueError(
                f"{self.name} has output_activation='sigmoid', so targets must be in "
                f"[0, 1]. Received: {values[i]!s} for example {i}. Scale them, or use "
                "output_activation=None."
            )
        return values

    def predict(self, x, **options):
        """The score of each pair, float (B, 1).

        Args:
            x: pairs of strings, or what Keras's `predict` takes.
            **options: of `EncoderTask.predict`.
        """
        logits = super().predict(x, **options)
        if not self.output_activation:
            return logits
        return 0.5 * (1.0 + np.tanh(0.5 * logits))  # a sigmoid that cannot overflow

    def rank(self, query, documents, *, top_k=None, **options):
        """Documents by their score with a query.

        Args:
            query: string, the first text of every pair.
            documents: strings.
            top_k: how many to return; `None` means all.
            **options: of `predict`.

        Returns:
            list of (index, score), best first; equal scores in the documents' order.

        Raises:
            ValueError: several queries, one document, or `top_k` below 1.
        """
        if not isinstance(query, str):
            raise ValueError(
                f"rank takes one query, a string. Received: {type(query).__name__}."
            )
        if isinstance(documents, str):
            raise ValueError("rank takes a list of documents. Received: one string.")
        if top_k is not None:
            check_count("top_k", top_k)
        pairs = [(query, document) for document in as_list(documents)]
        if not pairs:
            return []
        scores = self.predict(pairs, **{"verbose": 0, **options})[:, 0]
        order = np.argsort(-scores, kind="stable")[:top_k]
        return [(int(i), float(scores[i])) for i in order]

    def score(self, x, y, **options):
        """How well scores agree with targets, by scipy or scikit-learn.

        Args:
            x: what `predict` takes.
            y: targets.
            **options: of `predict`.

        Returns:
            dict of floats: `accuracy`, `average_precision` and `roc_auc` of
            probabilities when all targets are 0 or 1, the latter two NaN unless both
            are there; else `pearson`, `spearman` and `mean_squared_error`.
        """
        self._check_targets(x, y)
        predicted = self.predict(x, **{"verbose": 0, **options})[:, 0]
        targets = self.encode_targets(y)
        if self.output_activation and set(targets.tolist()) <= {0.0, 1.0}:
            return binary_scores(targets, predicted)
        return regression_scores(targets, predicted)
