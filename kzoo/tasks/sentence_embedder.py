"""A vector of a text; texts of like meaning have vectors of a like direction."""

import keras
import numpy as np

from kzoo import ops
from kzoo.arguments import check_count
from kzoo.layers.pooling import Pooling, PoolingKind
from kzoo.tasks.encoder_task import EncoderTask
from kzoo.tasks.forms import as_list, is_text
from kzoo.tasks.text_classifier import encode_numbers
from kzoo.training import ContrastiveLoss, CosineSimilarityLoss, SimilarityLoss
from kzoo.training.scores import correlation_scores, retrieval_scores

# Scores that a search holds at a time: 64 MiB of them.
_QUERIES, _DOCUMENTS = 512, 32768


@keras.saving.register_keras_serializable("kzoo")
class SentenceEmbedder(EncoderTask):
    """A stack and pooling: each text by itself becomes one vector.

    It learns from pairs of texts with a score, to which the cosine of their vectors is
    fitted; or from pairs or triples without: an anchor, a text that belongs to it, and
    optionally one that does not although it seems to. The others of the batch do not
    belong to it either, so large batches teach more. `compile` has a `loss` for each,
    `CosineSimilarityLoss` and `ContrastiveLoss`; by default the first where there are
    scores, in [0, 1], else the second.

    Paper: Reimers and Gurevych, 2019, https://arxiv.org/abs/1908.10084.

    Args:
        config: a `ModelConfig` with one stack.
        tokenizer: for strings.
        pooling: `"mean"`, `"cls"`, `"max"` or `"last"`, see `kzoo.layers.pooling`.
        normalize: whether vectors have length 1, so that dot products are cosines.
        max_length: see `EncoderTask`.
        settings: dict of what sentence-transformers says besides, prompts and the name
            of a similarity, which is kept for `save_hf` and not followed.

    Raises:
        ValueError: an unknown pooling.

    Example:
        >>> embedder = kzoo.SentenceEmbedder.from_size("tiny", tokenizer)
        >>> embedder.compile(
        ...     loss=kzoo.training.CosineSimilarityLoss(score_range=(0, 5)))
        >>> embedder.fit([("a film", "a movie"), ("a film", "a dog")], [4.8, 0.5])
        >>> embedder.embed(["a film", "a dog", "a movie"]).shape
        (3, 64)
        >>> [[(index, cosine)]] = embedder.search(["a dog"], ["a film", "a dog"], 1)
        >>> index, round(cosine, 3)
        (1, 1.0)
    """

    one_example = (["a"], [0.0])
    texts_per_example = (1,)
    needs_targets = False
    own_options = ("pooling", "normalize")
    ignore_id = float("nan")

    def __init__(
        self,
        config,
        tokenizer=None,
        pooling="mean",
        normalize=True,
        max_length=None,
        settings=None,
        **kwargs,
    ):
        super().__init__(config, tokenizer=tokenizer, max_length=max_length, **kwargs)
        self._check_pooling(pooling, PoolingKind)
        self.pooling, self.normalize = pooling, normalize
        self.pool = Pooling(pooling, dtype=self.dtype_policy)
        # Past Layer.__setattr__, whose dicts JSON need not know.
        object.__setattr__(self, "settings", dict(settings or {}))
        self.head = None
        self.build()

    @property
    def options(self):
        """What the task was given beside config and tokenizer."""
        settings = {"settings": self.settings} if self.settings else {}
        return {**super().options, **settings}

    @property
    def output_axes(self):
        """The vector."""
        return {"embedding": (self.stack.config.hidden_dim,)}

    @property
    def text_outputs(self):
        """What an artifact of text gives; see `TextClassifier.text_outputs`."""
        return self.output_axes, lambda outputs, picked: outputs

    def call(self, inputs, training=None):
        """Vectors of texts.

        Args:
            inputs: as `states` takes them, int (B, T); or (B, P, T) for P texts an
                example, as it learns from them.
            training: whether dropout is applied.

        Returns:
            float (B, D), or (B, P, D); zeros where no token is real.
        """
        ids = inputs["token_ids"]
        together = len(ids.shape) == 3
        if together:
            length = ops.dim(ids, 2)
            inputs = {k: ops.reshape(x, (-1, length)) for k, x in inputs.items()}
        vectors = self.pool(*self.states(inputs, training))
        if self.normalize:
            vectors = ops.unit_length(vectors)
        if together:
            vectors = ops.reshape(vectors, (-1, ops.dim(ids, 1), vectors.shape[-1]))
        return vectors

    # What it learns from.

    def default_loss(self, label_smoothing):
        """That of scores where there are any, else that of pairs."""
        if label_smoothing:
            raise ValueError(
                f"label_smoothing is of classes, and {self.name} has none. "
                f"Received: label_smoothing={label_smoothing}."
            )
        return SimilarityLoss()

    def default_metrics(self):
        """None: the loss says it."""
        return []

    def encode_examples(self, x, y=None):
        """Ids of pairs or triples, and their scores; or of texts.

        Args:
            x: pairs of strings; or triples where there are no scores; or strings,
                which can only be embedded.
            y: a number each, or `None`.

        Returns:
            dict of lists: `token_ids` of texts; else `token_ids_0`, `token_ids_1`,
            ..., one a side, and `targets` where `y` is given.
        """
        if isinstance(x[0], str) and y is None:
            return self.encode_texts(x)
        allowed = (2,) if y is not None else (2, 3)
        counts = [len(each) if isinstance(each, (list, tuple)) else 1 for each in x]
        for i, (count, example) in enumerate(zip(counts, x, strict=True)):
            if count not in allowed or count != counts[0]:
                raise ValueError(
                    f"{self.name} learns from pairs of texts with a score, or from "
                    "pairs or triples without, all alike. "
                    f"Received: {example!r} as example {i}."
                )
        features = {
            f"token_ids_{number}": self.encode_texts(side)["token_ids"]
            for number, side in enumerate(zip(*x))
        }
        if y is not None:
            self._check_targets(x, y)
            features["targets"] = self._scores(y)
        return features

    def _scores(self, y):
        """Scores as float32 (B,), in the range of the loss."""
        scores = encode_numbers(y, self.name)
        loss = getattr(self, "loss", None)
        ranged = CosineSimilarityLoss() if isinstance(loss, SimilarityLoss) else loss
        lowest, highest = getattr(ranged, "score_range", (-np.inf, np.inf))
        wrong = (scores < lowest) | (scores > highest)
        if wrong.any():
            i = int(wrong.argmax())
            raise ValueError(
                f"Scores must be in [{lowest}, {highest}]. Received: {scores[i]!s} for "
                f"example {i}. For others compile(loss=kzoo.training."
                "CosineSimilarityLoss(score_range=(lowest, highest))), or say "
                "score_range = [lowest, highest] in the [training] of a recipe."
            )
        return scores

    def _features(self, x, *others):
        if isinstance(x[0], str):
            raise ValueError(
                f"{self.name} learns from pairs or triples of texts. "
                f"Received: {x[0]!r} as example 0."
            )
        return super()._features(x, *others)

    @staticmethod
    def _tokens_of(shape):
        """All texts of an example are as long as the longest."""
        return len(shape) * max(shape)

    def _inputs_and_targets(self, batch):
        sides = [ids for name, ids in batch.items() if name.startswith("token_ids_")]
        if not sides:
            return batch, None
        shape = (len(sides[0]), len(sides), max(ids.shape[1] for ids in sides))
        token_ids = np.full(shape, self.config.pad_token_id, "int32")
        for number, ids in enumerate(sides):
            token_ids[:, number, : ids.shape[1]] = ids
        return {"token_ids": token_ids}, batch.get("targets")

    def targets(self, x, y):
        """What the loss compares: scores; or without, which rows are examples.

        Args:
            x: dict of inputs with `token_ids` int (B, P, T).
            y: numbers (B,); or `None`, or bool (B, 1, 1), what came of that before.

        Returns:
            float (B,), or bool (B,): whether there is a token.

        Raises:
            ValueError: the loss needs scores that are missing, or the other way round;
                or there is one text an example.
        """
        ids = x["token_ids"]
        if len(ids.shape) != 3:
            raise ValueError(
                f"{self.name} learns from token_ids of pairs or triples, (batch, "
                f"texts, length). Received: a shape of {tuple(ids.shape)}."
            )
        made = y is not None and len(y.shape) == 3
        scored = y is not None and not made
        wrong = ContrastiveLoss if scored else CosineSimilarityLoss
        if isinstance(getattr(self, "loss", None), wrong):
            raise ValueError(
                f"{wrong.__name__} learns from pairs with{'out' * scored} "
                f"scores. Received: y={'given' if scored else None}."
            )
        if y is not None:
            return ops.reshape(y, (-1,)) if made else ops.cast(y, "float32")
        return ops.any(self._padding_mask(ids[:, 0]), axis=1)

    def _targets_beside(self, x, y, weights):
        if y is None and weights is not None and isinstance(x, dict):
            real = keras.ops.convert_to_numpy(self.targets(x, None))
            return real[:, None, None]  # of a shape that no scores have
        return super()._targets_beside(x, y, weights)

    def _compared(self, x, y):
        return self.targets(x, y)

    # What it is used for.

    def embed(self, texts, *, batch_size=32, verbose=0):
        """Vectors of texts.

        Args:
            texts: strings.
            batch_size: rows of a batch; texts of like length share one.
            verbose: 1 shows a bar.

        Returns:
            float32 (N, D), a numpy array.
        """
        texts = as_list(texts)
        if isinstance(texts, str) or len(texts) and not is_text(texts):
            raise ValueError(
                f"embed needs a list of strings. Received: {type(texts).__name__}."
            )
        if not len(texts):
            return np.zeros((0, self.stack.config.hidden_dim), "float32")
        vectors = self.predict(texts, batch_size=batch_size, verbose=verbose)
        return vectors.astype("float32")

    def similarity(self, a, b, **options):
        """Cosines of every text with every other.

        Args:
            a: strings, or their embeddings, float (N, D).
            b: strings, or their embeddings, float (M, D).
            **options: of `embed`.

        Returns:
            float32 (N, M), in [-1, 1].
        """
        return _cosines(self._directions(a, options), self._directions(b, options))

    def search(self, queries, corpus, top_k=10, **options):
        """The texts of a corpus that are most like each query; exact.

        A corpus that is searched often is embedded once: `corpus = embed(texts)`.

        Args:
            queries: strings, or their embeddings, float (N, D).
            corpus: strings, or their embeddings, float (M, D).
            top_k: how many; all M if there are fewer.
            **options: of `embed`.

        Returns:
            For each query a list of (index, cosine), best first; equal ones in the
            corpus's order.
        """
        check_count("top_k", top_k)
        queries = self._directions(queries, options)
        corpus = self._directions(corpus, options)
        found = []
        for first in range(0, len(queries), _QUERIES):
            some = queries[first : first + _QUERIES]
            best = [(np.zeros(0, int), np.zeros(0, "float32"))] * len(some)
            for start in range(0, len(corpus), _DOCUMENTS):
                scores = _cosines(some, corpus[start : start + _DOCUMENTS])
                best = [
                    _merged(known, start, row, top_k)
                    for known, row in zip(best, scores)
                ]
            found += [list(zip(i.tolist(), s.tolist())) for i, s in best]
        return found

    def score(self, x, y, **options):
        """Pearson and Spearman correlation of cosines and scores, by scipy.

        Args:
            x: pairs of strings.
            y: a number each, of any range.
            **options: of `embed`.

        Returns:
            dict of `pearson` and `spearman`, floats.
        """
        self._check_targets(x, y)
        y = encode_numbers(y, f"{self.name}.score")
        first, second = (
            self._directions(list(side), options) for side in zip(*x, strict=True)
        )
        return correlation_scores(y, np.sum(first * second, axis=-1))

    def score_retrieval(self, queries, corpus, relevant, top_k=(1, 5, 10), **options):
        """Recall and mean reciprocal rank of `search`.

        Args:
            queries: as in `search`; so for the next.
            corpus: what is searched.
            relevant: for each query the indices of the texts that it should find, a
                list of int; or one int.
            top_k: where recall is looked at, rising, or one int; the reciprocal rank
                at the last.
            **options: of `embed`.

        Returns:
            dict of `recall@k` for each k and `mrr@k` for the last, floats; see
            `kzoo.training.scores.retrieval_scores`.

        Raises:
            ValueError: a query has no relevant text, or one that the corpus lacks; or
                `top_k` does not rise from 1 at least.
        """
        top_k = (top_k,) if isinstance(top_k, (int, np.integer)) else tuple(top_k)
        if not top_k or list(top_k) != sorted({*top_k}) or top_k[0] < 1:
            raise ValueError(f"top_k must rise from 1 at least. Received: {top_k}.")
        relevant = [
            [r] if isinstance(r, (int, np.integer)) else list(r) for r in relevant
        ]
        if len(relevant) != len(queries) or not all(relevant):
            raise ValueError(
                f"Each of {len(queries)} queries needs a relevant text. Received: "
                f"{len(relevant)} lists, {sum(not r for r in relevant)} of them empty."
            )
        beyond = {r for each in relevant for r in each} - {*range(len(corpus))}
        if beyond:
            raise ValueError(
                f"Relevant texts are indices into the corpus of {len(corpus)}. "
                f"Received: {sorted(beyond, key=str)[:5]}."
            )
        found = self.search(queries, corpus, max(top_k), **options)
        return retrieval_scores(
            [[index for index, _ in row] for row in found], relevant, top_k
        )

    def _directions(self, x, options):
        """Unit vectors, float32 (N, D), of texts or of embeddings."""
        width = self.stack.config.hidden_dim
        if not isinstance(x, np.ndarray) or x.dtype.kind != "f":
            x = self.embed(x, **options)
        if x.ndim != 2 or x.shape[1] != width or not np.isfinite(x).all():
            raise ValueError(
                f"Embeddings must be finite and (texts, {width}). "
                f"Received: a shape of {x.shape}."
            )
        # Squares may overflow.
        largest = np.maximum(x.max(-1, keepdims=True), -x.min(-1, keepdims=True))
        x = x / np.where(largest > 0, largest, 1.0)
        lengths = np.linalg.norm(x, axis=-1, keepdims=True)
        return (x / np.where(lengths > 0, lengths, 1.0)).astype("float32")


def _cosines(a, b):
    """Of unit vectors, float32 (N, M); rounding leaves none outside [-1, 1]."""
    return np.clip(a @ b.T, -1.0, 1.0)


def _merged(known, start, scores, top_k):
    """The best of those known and of further ones, (indices, scores).

    Args:
        known: indices and scores, best first.
        start: index of the first further one.
        scores: float (M,), of the further ones.
        top_k: how many.
    """
    if len(scores) > top_k:
        least = np.partition(scores, -top_k)[-top_k]
        chosen = np.flatnonzero(scores >= least)
    else:
        chosen = np.arange(len(scores))
    indices = np.concatenate([known[0], chosen + start])
    scores = np.concatenate([known[1], scores[chosen]])
    order = np.argsort(-scores, kind="stable")[:top_k]
    return indices[order], scores[order]
