"""Masked language modelling: a token from those on both sides of it."""

import functools
from typing import NamedTuple

import keras
import numpy as np

from kzoo import ops
from kzoo.arguments import check_count
from kzoo.generation import shape_bucket
from kzoo.layers.heads import MaskedLanguageModelHead
from kzoo.tasks.encoder_task import EncoderTask, softmax
from kzoo.tasks.forms import is_text
from kzoo.training import Perplexity, TokenAccuracy
from kzoo.training.scores import perplexity

_STREAM = 2**32  # beside the streams of the order of the examples, a bucket each


class Candidate(NamedTuple):
    """What may stand at a mask: a piece of the tokenizer, its id and probability."""

    token: str
    token_id: int
    probability: float


@keras.saving.register_keras_serializable("kzoo")
class MaskedLM(EncoderTask):
    """An encoder that guesses masked tokens, to learn a language from its texts alone.

    Of a row's tokens some are chosen, one at least, and the model is asked for them: of
    the chosen ones 80 % are the mask token, 10 % a random one, 10 % stay (Devlin et
    al., 2019, https://arxiv.org/abs/1810.04805, section 3.1). Other ones in every epoch
    (RoBERTa, Liu et al., 2019, https://arxiv.org/abs/1907.11692, section 4.1). Which,
    follows from the seed and the number of the batch, so that a training that was
    killed goes on with the same masks. With another `batch_size` other tokens are
    chosen, and the loss of `evaluate` is another. Special tokens and padding are never
    chosen.

    `fit` and `evaluate` mask texts, and arrays that come without targets, and compute
    logits at chosen places alone; where targets come too they are taken as they are,
    and a pipeline has to bring them (`masked`). A text longer than the model reads at
    once is cut into several rows.

    In strings that `predict` is given `<mask>` is the mask token, and nothing else is
    masked; of these it gives a list of logits, float (T, V), start and end among the T
    tokens.

    Args:
        config: a `ModelConfig` with an encoder, and a `mask_token_id` unless the
            tokenizer has one.
        tokenizer: for strings; trained with `mask_token=True`.
        mask_rate: share of the tokens to be chosen.
        max_length: the most tokens of a row, start and end among them.
        hidden_activation: of the head's inner layer; `None` means the stack's.
        hidden_bias: the inner layer has a bias; `None` means as the stack's layers.
        output_bias: logits have a bias.

    Raises:
        ValueError: there is no mask token, or a rate outside (0, 1).

    Example:
        >>> tokenizer = kzoo.FastTokenizer.train(texts, 8000, mask_token=True)
        >>> model = kzoo.MaskedLM.from_size("mini", tokenizer)
        >>> model.compile()
        >>> model.fit(texts, epochs=10)
        >>> model.fill(["A man rides a <mask>."], top_k=1)
        [[[Candidate(token=' bike', token_id=812, probability=0.61)]]]
        >>> classifier = kzoo.TextClassifier(model.config, labels, tokenizer=tokenizer)
        >>> classifier.load_encoder(model)
    """

    architectures = ("encoder",)
    texts_per_example = (1,)
    needs_targets = False
    own_options = ("mask_rate", "hidden_activation", "hidden_bias", "output_bias")
    trains_with_lora = ()

    def __init__(
        self,
        config,
        tokenizer=None,
        mask_rate=0.15,
        max_length=None,
        hidden_activation=None,
        hidden_bias=None,
        output_bias=True,
        **kwargs,
    ):
        super().__init__(config, tokenizer=tokenizer, max_length=max_length, **kwargs)
        if self.config.mask_token_id is None:
            raise ValueError(
                "MaskedLM needs a mask token: train the tokenizer with mask_token=True,"
                " or give ModelConfig.mask_token_id. Received: none."
            )
        if not 0.0 < mask_rate < 1.0:
            raise ValueError(
                f"mask_rate must be between 0 and 1. Received: {mask_rate}."
            )
        self.mask_rate = mask_rate
        self._special, self._ordinary = self._kinds_of_ids()
        self.head = MaskedLanguageModelHead(
            self.stack.config,
            self.stack.token_embedding if self.config.tie_head else None,
            hidden_activation,
            hidden_bias,
            output_bias,
            dtype=self.dtype_policy,
            name="head",
        )
        self.hidden_activation = self.head.activation
        self.hidden_bias = self.head.hidden.use_bias
        self.output_bias = output_bias
        self.build()

    @property
    def output_axes(self):
        """Logits of every token at every place."""
        return {"logits": ("sequence", self.stack.config.vocabulary_size)}

    def default_metrics(self):
        """Accuracy and perplexity of the chosen tokens."""
        return [
            TokenAccuracy(self.ignore_id, name="accuracy"),
            Perplexity(self.ignore_id),
        ]

    def call(self, inputs, training=None):
        """Logits.

        Args:
            inputs: as `states` takes them; and `masked_positions` int (B, M), where
                logits at these places of each row are all that is asked for.
            training: whether dropout is applied.

        Returns:
            float (B, T, V), or (B, M, V).
        """
        places = None
        if isinstance(inputs, dict) and "masked_positions" in inputs:
            inputs = dict(inputs)
            places = inputs.pop("masked_positions")
        states, _ = self.states(inputs, training)
        if places is not None:  # most of a head's work is at places without targets
            rows, length, width = ops.shape(states)
            first = ops.expand_dims(ops.arange(rows) * length, 1)
            flat = ops.reshape(states, (rows * length, width))
            states = ops.take(flat, ops.cast(places, first.dtype) + first)
        return self.head(states)

    # Masks.

    def _kinds_of_ids(self):
        """Ids that are never chosen, and those that may stand for a chosen one."""
        config, tokenizer = self.config, self.tokenizer
        special = {config.pad_token_id, config.start_token_id, config.end_token_id}
        special.add(config.mask_token_id)
        size, unknown = self.stack.config.vocabulary_size, None
        if tokenizer is not None:
            special |= tokenizer.special_ids
            size = min(size, tokenizer.vocabulary_size)
            unknown = tokenizer.unknown_token_id
        ordinary = [i for i in range(size) if i not in special and i != unknown]
        if not ordinary:
            raise ValueError(
                f"MaskedLM needs tokens beside the special ones. Received: {size}, all "
                "of them special."
            )
        return np.array(sorted(special)), np.array(ordinary, "int32")

    def masked(self, batch, index, seed=0):
        """A batch with tokens chosen and masked; equal arguments give equal masks.

        Args:
            batch: dict of int (B, T) `token_ids`, and what else `call` reads.
            index: the number of the batch, counted through all epochs.
            seed: of the choice.

        Returns:
            dict of the same arrays, `token_ids` masked; and targets int32 (B, T), the
            id at a chosen place, else -1.
        """
        ids = np.asarray(batch["token_ids"], "int32")
        allowed = ~np.isin(ids, self._special)
        if batch.get("padding_mask") is not None:
            allowed &= np.asarray(batch["padding_mask"], bool)
        rank, action, other = _random(seed, index, (3, *ids.shape))
        rank = np.where(allowed, rank, 2.0)  # nothing else is below 1
        lowest = rank.min(axis=1, keepdims=True)
        chosen = allowed & ((rank < self.mask_rate) | (rank == lowest))
        ordinary = self._ordinary[(other * len(self._ordinary)).astype(int)]
        changed = np.where(action < 0.9, ordinary, ids)
        changed = np.where(action < 0.8, self.config.mask_token_id, changed)
        targets = np.where(chosen, ids, self.ignore_id)
        return {**batch, "token_ids": np.where(chosen, changed, ids)}, targets

    # Data.

    def encode_examples(self, x, y=None):
        """Ids of texts: start + text + end, in several rows where it is long.

        Args:
            x: strings; or a dict of int arrays (B, T) as `call` takes it.
            y: must be left out, the targets are tokens of the text.

        Returns:
            dict of lists of lists of int: `token_ids`, and `segment_ids` where the
            model has segments.

        Raises:
            ValueError: `y` is given, or an array's row has no real token.
        """
        if y is not None:
            raise ValueError(
                f"{self.name} learns each text from itself: give strings without y."
            )
        if isinstance(x, dict):
            return self._unpadded(x)
        (texts,) = self._sides(x)
        return self._rows(self._encode(texts))

    def _rows(self, texts):
        """Features of lists of ids without start and end."""
        rows, around = [], len(self.template.single) - 1
        for ids in texts:
            room = max(1, self._limit - around if self._limit else len(ids))
            for first in range(0, max(1, len(ids)), room):
                rows.append(self.template.join([ids[first : first + room]]))
        return self._named_rows(rows)

    def _unpadded(self, inputs):
        """Features of the real tokens of arrays."""
        ids = np.asarray(inputs["token_ids"])
        mask = inputs.get("padding_mask")
        mask = ids != self.config.pad_token_id if mask is None else np.asarray(mask)
        if not mask.any(axis=1).all():
            raise ValueError(
                "Every row of token_ids needs a token that is not padding. Received: "
                f"none in row {int(mask.any(axis=1).argmin())}."
            )
        return {
            name: [row[real] for row, real in zip(np.asarray(array), mask.astype(bool))]
            for name, array in inputs.items()
            if name != "padding_mask"
        }

    def _is_raw(self, x, y=None):
        return super()._is_raw(x, y) or (y is None and isinstance(x, dict))

    def _features(self, x, y, *others):
        if all(isinstance(t, str) and not t for t in (x if is_text(x) else ["ids"])):
            raise ValueError(
                f"{self.name} needs a text that is not empty. Received: {len(x)} empty "
                "ones."
            )
        return super()._features(x, y, *others)

    def batches(self, features, *, seed=0, **options):
        """As of every task, with tokens masked; which, follows from the seed, too."""
        return self.mask_batches(super().batches(features, seed=seed, **options), seed)

    def mask_batches(self, batches, seed=0):
        """`kzoo.data.Batches` of ids as batches for `fit`, each masked by `masked`."""
        return batches.map(functools.partial(self._masked_batch, seed=seed))

    def _masked_batch(self, batch, index, seed):
        """The batch, masked, with targets at chosen places alone."""
        inputs, targets = self.masked(batch, index, seed)
        chosen = targets != self.ignore_id
        length = chosen.shape[1]
        most = min(shape_bucket(max(1, chosen.sum(axis=1).max())), length)
        places = np.argsort(~chosen, axis=1, kind="stable")[:, :most].astype("int32")
        targets = np.take_along_axis(targets, places, axis=1)
        return {**inputs, "masked_positions": places, "targets": targets}

    def _learned(self, batch, index):
        return self._masked_batch(batch, index, seed=0)

    def _compared(self, x, y):
        if y is None:
            raise ValueError(
                f"{self.name} has no targets: a pipeline gives (inputs, targets), as "
                "`masked` makes them of a batch of ids. Arrays and lists of strings "
                "need none."
            )
        return y

    # Predictions.

    def _text_inputs(self, x):
        return self._batch(self._encode_masks(x))

    def _predict_texts(self, x, **options):
        features = self._encode_masks(x)
        rows = self.run(features, **options)
        return [row[: len(ids)] for row, ids in zip(rows, features["token_ids"])]

    def _encode_masks(self, x):
        (texts,) = self._sides(x)
        rows = self.text_tokenizer.encode_with_masks(texts)
        longest = max(range(len(rows)), key=lambda i: len(rows[i]))
        room = self._limit and self._limit - len(self.template.single) + 1
        if room is not None and len(rows[longest]) > room:
            raise ValueError(
                f"{self.name} reads {room} tokens at once. Received: "
                f"{len(rows[longest])} in text {longest}. Shorten it."
            )
        return self._rows(rows)

    def fill(self, x, *, top_k=5, **options):
        """What may stand at the masks.

        Args:
            x: strings with the mask token's name, `<mask>`, in each.
            top_k: candidates of a mask.
            **options: `batch_size` and `verbose`, as in `predict`.

        Returns:
            For each text a list with, for each mask, a list of `Candidate`s, the most
            probable first.

        Raises:
            ValueError: a text without a mask, or one that is too long.
        """
        if not is_text(x):
            raise ValueError(
                f"{self.name}.fill reads a list of strings, one at least. Received: "
                f"{x!r:.80}."
            )
        check_count("top_k", top_k, most=self.stack.config.vocabulary_size)
        rows, results = self._encode_masks(x)["token_ids"], []
        for number, ids in enumerate(rows):
            if self.config.mask_token_id not in ids:
                name = self.tokenizer.tokens([self.config.mask_token_id])[0]
                raise ValueError(
                    f"Every text needs a mask, {name}. Received: {x[number]!r}."
                )
        for ids, logits in zip(rows, self.predict(x, **{"verbose": 0, **options})):
            places = np.flatnonzero(np.array(ids) == self.config.mask_token_id)
            results.append([self._candidates(logits[i], top_k) for i in places])
        return results

    def _candidates(self, logits, top_k):
        probabilities = softmax(logits.astype("float64"))
        best = np.argsort(-logits, kind="stable")[:top_k]
        return [
            Candidate(token, int(i), float(probabilities[i]))
            for token, i in zip(self._names(best), best)
        ]

    def _names(self, ids):
        """Pieces of ids; a model may have more ids than its tokenizer."""
        size = self.tokenizer.vocabulary_size
        return [self.tokenizer.tokens([i])[0] if i < size else f"<{i}>" for i in ids]

    def score(self, x, *, batch_size=32, seed=0):
        """Accuracy and perplexity of chosen tokens, the same ones every time.

        Args:
            x: strings, or a dict of int arrays.
            batch_size: rows of a batch; which tokens are chosen depends on it.
            seed: of the choice.

        Returns:
            dict of `accuracy` and `perplexity`, floats.
        """
        right, nats, count = self.guesses(x, batch_size=batch_size, seed=seed).sum(0)
        return {
            "accuracy": float(right / count),
            "perplexity": perplexity(nats / count),
        }

    def guesses(self, x, *, batch_size=32, seed=0):
        """What `score` is made of, for each row that the model reads at once.

        Args:
            x: as in `score`; so for the next two.
            batch_size: rows of a batch.
            seed: of the choice.

        Returns:
            float64 (N, 3): how many of the chosen tokens are the most probable, the sum
            of -log p of them all, and how many are chosen. In the batches' order.
        """
        x, found = self._checked_examples(x), []
        options = dict(batch_size=batch_size, shuffle=False, seed=seed)
        for batch in self._batches(x, None, **options):
            inputs, targets = self._inputs_and_targets(batch)
            places = inputs.pop("masked_positions")[..., None]
            logits = self.forward_function(list(inputs))(*inputs.values())
            logits = np.take_along_axis(logits, places, axis=1).astype("float64")
            if not np.isfinite(logits).all():
                self._explain_numbers("scored", "logits")
            counted = targets != self.ignore_id
            targets = np.where(counted, targets, 0)
            own = np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
            top = logits.max(axis=-1)
            nats = top + np.log(np.exp(logits - top[..., None]).sum(axis=-1)) - own
            right = logits.argmax(axis=-1) == targets
            rows = [np.where(counted, each, 0) for each in (right, nats, counted)]
            found.append(np.stack(rows, axis=-1).sum(axis=1, dtype="float64"))
        found = np.concatenate(found)
        return found[found[:, 2] > 0]  # without rows that fill a batch


def _random(seed, index, shape):
    """Numbers in [0, 1), float64, that follow from a seed and an index.

    From the raw bits: these numpy promises in every version, `random` it does not.
    """
    key = np.array([seed, _STREAM], np.uint64)
    bits = np.random.Philox(key=key, counter=[0, 0, 0, index])
    return (bits.random_raw(int(np.prod(shape))) >> 11).reshape(shape) / 2.0**53
