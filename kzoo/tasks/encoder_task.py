"""What tasks share that understand text: one sequence of one or two texts.

Shapes: B examples, T tokens, D hidden_dim, C numbers of a prediction.
"""

import warnings
from typing import get_args

import keras
import numpy as np

from kzoo import ops
from kzoo.arguments import check_choice, check_count
from kzoo.generation import shape_bucket
from kzoo.layers.base import make_initializer
from kzoo.layers.heads import PredictionHead
from kzoo.layers.shift_right import ShiftRight
from kzoo.tasks.exported import Exports
from kzoo.tasks.forms import is_text, known_ints, number_of
from kzoo.tasks.text_data import LearnsText
from kzoo.tokenizers import Template
from kzoo.training import MaskedCrossEntropy

# Texts that are made ids of at a time, and pairs of tokens that may attend to each
# other in a batch of predictions: 64 MiB of scores a head.
_TEXTS, _PAIRS = 2048, 2**24


# What both stacks of an encoder-decoder have in common where they read the same ids.
_ALIKE = ("vocabulary_size", "positions", "max_sequence_length", "num_segments")


class EncoderTask(LearnsText, Exports):
    """The states of `token_ids`; a subclass adds a head.

    Of an encoder-decoder they are the decoder's: it reads the text once more, a token
    later, so that the state of a token has seen the whole text through the encoder, and
    what is before the token (Lewis et al., 2020, https://arxiv.org/abs/1910.13461,
    section 3).

    A text is read as start + text + end, a pair as start + first + end + second + end,
    with segment 1 after the first end, as BERT reads them (Devlin et al., 2019); or as
    the tokenizer's `conventions.template` says.

    Args:
        config: a `ModelConfig`; a decoder alone sees the past only.
        tokenizer: for strings.
        max_length: longer texts are cut to so many tokens, of a pair the longer one
            first; start and end stay. `None` means as many as the model has learned
            positions, or no limit.

    Raises:
        ValueError: `max_length` is too small or beyond the learned positions; or the
            two stacks cannot read the same ids.
    """

    architectures = ("encoder", "decoder")
    numeric_targets = True
    texts_per_example = (1, 2)
    needs_targets = True
    num_classes = None  # of a classifier
    own_options = ("max_length",)

    def __init__(self, config, tokenizer=None, max_length=None, **kwargs):
        super().__init__(config, tokenizer=tokenizer, **kwargs)
        self._delay = None
        if config.architecture == "encoder_decoder":
            for field in _ALIKE:
                both = [getattr(s.config, field) for s in (self.encoder, self.decoder)]
                if both[0] != both[1]:
                    raise ValueError(
                        f"{type(self).__name__} reads the same ids in both stacks, so "
                        f"they must have one {field}. Received: {both[0]} and {both[1]}"
                        "."
                    )
            self._delay = ShiftRight(self.config.start_token_id)
        rows = self.stack.config.max_sequence_length
        learned = self.stack.config.positions == "learned"
        if max_length is not None:
            check_count("max_length", max_length, least=3)
            max_length = int(max_length)
            if learned and max_length > rows:
                raise ValueError(
                    "max_length must be no more than the learned positions. Received: "
                    f"max_length={max_length}, max_sequence_length={rows}."
                )
        self.max_length = max_length
        self._limit = max_length or (rows if learned else None)

    @property
    def sees_the_past_alone(self):
        """Whether a token's state follows from it and those before it alone."""
        return self.encoder is None and self.config.decoder.causal

    def _check_pooling(self, pooling, kinds):
        """Refuses what is none of `kinds`, a `Literal`.

        And warns where a text's vector would be that of its first token, alone.
        """
        check_choice("pooling", pooling, get_args(kinds))
        if pooling == "cls" and self.sees_the_past_alone:
            warnings.warn(
                f"pooling='cls' reads the first token, and in the causal stack of "
                f"{self.name} that sees no more of a text. Give pooling='last'.",
                stacklevel=4,
            )

    def _signature(self):
        if self.stack.config.num_segments > 1:  # of one segment all have the same
            return ("token_ids", "segment_ids")
        return ("token_ids",)

    def states(self, inputs, training=None):
        """The last states, and where they are real.

        Args:
            inputs: dict of `token_ids` int (B, T); optionally `padding_mask` bool
                (B, T), by default where the id is not padding, and `segment_ids` int
                (B, T) where the model has segments.
            training: whether dropout is applied.

        Returns:
            float (B, T, D), bool (B, T).
        """
        optional = ["padding_mask", *self._signature()[1:]]
        self._check_keys(inputs, ["token_ids"], optional)
        ids = inputs["token_ids"]
        mask = self._padding_mask(ids, ops.as_bool(inputs.get("padding_mask")))
        segments = inputs.get("segment_ids")
        given = dict(padding_mask=mask, training=training)
        if segments is not None:
            given["segment_ids"] = segments
        if self._delay is None:
            return self.stack(ids, **given), mask
        memory = self.encoder(ids, **given)
        # The start token stands at the first real place, wherever padding is.
        first = ops.full((ops.dim(ids, 0), 1), False, "bool")
        follows = ops.slice_axis(ops.concatenate([first, mask], 1), None, -1, 1)
        delayed = ops.where(follows, self._delay(ids), self.config.start_token_id)
        given |= dict(memory=memory, memory_padding_mask=mask)
        return self.decoder(delayed, **given), mask

    # Text.

    @property
    def own_template(self):
        """As BERT has it; of an encoder-decoder, whose sources have no start, as T5."""
        start, end = [self.config.start_token_id], [self.config.end_token_id]
        start = start if self._delay is None else []
        return Template.of(start, end, end, segments=(0, 1))

    def encode_texts(self, x):
        """Ids of texts, or of pairs of texts.

        Args:
            x: strings, or pairs of strings.

        Returns:
            dict of `token_ids`, and `segment_ids` where the model has segments: lists
            of int32 (T,).
        """
        rows, cut = [], 0
        for parts in zip(*map(self._ids, self._sides(x))):
            parts, was_cut = self._fitted(list(parts))
            cut += was_cut
            ids, segments = self.template.join(parts)
            if not ids:  # an empty text, and nothing around it
                ids, segments = [self.config.start_token_id], [0]
            rows.append((np.array(ids, "int32"), np.array(segments, "int32")))
        if cut and self.max_length is None:
            warnings.warn(
                f"{cut} of {len(x)} examples were cut to the learned positions, "
                f"{self._limit} tokens. A model with a larger max_sequence_length "
                "keeps them; max_length=... says that this is what you want.",
                stacklevel=2,
            )
        return self._named_rows(rows)

    def _named_rows(self, rows):
        """Features of (ids, segments) a row; segments where the model has some."""
        features = {"token_ids": [ids for ids, _ in rows]}
        if "segment_ids" in self._signature():
            features["segment_ids"] = [segments for _, segments in rows]
        return features

    def text_rows(self, example):
        """Ids of a text or a pair, see `export_rows`; several rows of windows."""
        features = self.encode_examples([example])
        return [dict(zip(features, row)) for row in zip(*features.values())]

    def _ids(self, texts):
        """Ids of each text, some texts at a time: a list takes ten times an array."""
        for first in range(0, len(texts), _TEXTS):
            yield from self._encode(texts[first : first + _TEXTS])

    def _sides(self, x):
        """The texts of all examples: one list, or two of pairs.

        Raises:
            ValueError: an example has another number of texts than the first, or one
                that the task does not read.
        """
        x = x.tolist() if isinstance(x, np.ndarray) else list(x)
        pairs = bool(x) and isinstance(x[0], (list, tuple))
        for i, example in enumerate(x):
            several = isinstance(example, (list, tuple))
            texts = 2 if several and len(example) == 2 else 1 - several
            if texts not in self.texts_per_example or several != pairs:
                kinds = {1: "texts", 2: "pairs of texts"}
                raise ValueError(
                    f"{self.name} reads "
                    f"{' or '.join(kinds[n] for n in self.texts_per_example)}, all "
                    f"examples alike. Received: {example!r} as example {i}."
                )
        return list(zip(*x)) if pairs else [x]

    def _fitted(self, parts):
        """Lists of ids that have room beside start and ends; and whether any was cut.

        The longer part gives way until both are of one length.
        """
        around = sum(map(len, self.template.around(len(parts))))
        room = None if self._limit is None else self._limit - around
        if room is None or sum(map(len, parts)) <= room:
            return parts, False
        if room < 0:
            raise ValueError(
                f"{self.name} reads {self._limit} tokens, and {around} stand around "
                f"{len(parts)} texts. Give a max_length of more than {around}."
            )
        if len(parts) == 1:
            return [parts[0][:room]], True
        first, second = map(len, parts)
        first = min(first, max(room - second, room - room // 2))
        return [parts[0][:first], parts[1][: room - first]], True

    def _check_targets(self, x, y):
        """Raises `ValueError` unless there are examples, and a target for each."""
        size = number_of(x)
        if not size:
            raise ValueError(
                f"{self.name} needs a list of examples, one at least. Received: {x!r}."
            )
        if y is None or len(y) != size:
            raise ValueError(
                f"{self.name} needs a target for each of {size} examples. Received: "
                f"{'none, as where validation_data is a list' if y is None else len(y)}"
                ". Give x and y, or a tuple of them."
            )

    def _targets_beside(self, x, y, weights):
        y = super()._targets_beside(x, y, weights)
        learns = self.needs_targets and getattr(self, "loss", None) is not None
        if y is None and learns and isinstance(x, (dict, np.ndarray)):
            self._check_targets(x, y)
        own = self.num_classes and isinstance(self.loss, MaskedCrossEntropy)
        array = known_ints(y) if own else None  # distributions are of floats
        if array is not None:
            axes = "batch", *self.output_axes["logits"][:-1]
            if array.ndim != len(axes) and array.shape[len(axes) :] != (1,):
                raise ValueError(
                    f"Targets of {self.name} are classes, int ({', '.join(axes)}), or "
                    "distributions, floats with one for each class. Received: "
                    f"{array.dtype} of shape {array.shape}."
                )
            others = np.setdiff1d(array, [self.ignore_id, *range(self.num_classes)])
            if others.size:  # whose loss would be NaN
                raise ValueError(
                    f"Targets of {self.name} are classes in [0, {self.num_classes}), "
                    f"or {self.ignore_id} for none. Received: {others[:5].tolist()}. "
                    f"Write {self.ignore_id} in their place, or compile a loss that "
                    "ignores them."
                )
        return y

    def _features(self, x, y, *others):
        if self.needs_targets:
            self._check_targets(x, y)
        return super()._features(x, y, *others)

    def _inputs_and_targets(self, batch):
        batch = dict(batch)
        targets = batch.pop("targets", None)
        return batch, targets

    def _pad_ids(self, features):
        pads = super()._pad_ids(features)
        known = {"segment_ids": 0, "targets": self.ignore_id}
        return {name: known.get(name, pad) for name, pad in pads.items()}

    # Predictions.

    def predict(self, x, *, batch_size=32, verbose="auto", **kwargs):
        """Keras's `predict`, also on strings.

        Args:
            x: strings or pairs, or what Keras's `predict` takes.
            batch_size: rows of a batch, fewer where texts are very long; strings of
                like length share one.
            verbose: of Keras; 0 shows no bar.
            **kwargs: of Keras's `predict`, for anything but strings.

        Returns:
            What `call` gives, a row an example, as a numpy array; of strings whose
            results differ in length a list of arrays, as the task's class says. A
            `predict_step` of a subclass counts where a string is a row of the results.
        """
        x = self._checked_examples(x)
        if is_text(x) and self._has_own_step():
            x = self._text_inputs(x)
        if not is_text(x):
            return super().predict(x, batch_size=batch_size, verbose=verbose, **kwargs)
        if kwargs:
            raise TypeError(
                f"{self.name} reads texts with batch_size and verbose alone. Received: "
                f"{sorted(kwargs)}."
            )
        return self._predict_texts(x, batch_size=batch_size, verbose=verbose)

    def _has_own_step(self):
        """Whether Keras's `predict` of a batch of strings is a subclass's own."""
        kind = type(self)
        a_row_each = kind._predict_texts is EncoderTask._predict_texts
        return a_row_each and kind.predict_step is not keras.Model.predict_step

    def _predict_texts(self, x, **options):
        return np.stack(self.run(self.encode_texts(x), **options))

    def run(self, features, *, batch_size=32, verbose=0):
        """What `call` gives for each example, computed in batches of like lengths.

        Args:
            features: dict of `token_ids` and what else `call` reads, lists of lists of
                int of any lengths.
            batch_size: rows of a batch, fewer where they are very long.
            verbose: whether a bar shows.

        Returns:
            A list of what `call` gives for each example: numpy arrays (...).

        Raises:
            ValueError: numbers among these are not finite; it says why.
        """
        check_count("batch_size", batch_size)
        rows = features["token_ids"]
        function = self.forward_function(list(features))
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
        results = [None] * len(rows)
        bar = keras.utils.Progbar(len(rows)) if verbose else None
        while order:
            most = _PAIRS // len(rows[order[0]]) ** 2
            size = max(1, min(batch_size, most))
            chosen, order = order[:size], order[size:]
            for i, result in zip(chosen, function(*self._run_batch(features, chosen))):
                results[i] = result
            if bar:
                bar.add(len(chosen))
        if not all(np.isfinite(result).all() for result in results):
            self._explain_numbers("predicted", "outputs")
        return results

    def forward_function(self, names):
        """`call`, compiled: of int (B, T) arrays, the inputs of these names."""
        return self.compiled_function(
            ("forward", *names),
            lambda *arrays: self(dict(zip(names, arrays)), training=False),
            [((None, None), "int32")] * len(names),
        )

    def _run_batch(self, features, chosen):
        """int32 (B, T) arrays of some examples, as large as compiled shapes are."""
        from kzoo.data import padded_batch

        longest = max(len(features["token_ids"][i]) for i in chosen)
        length = shape_bucket(longest)
        if self.stack.config.positions == "learned":
            length = min(length, self.stack.config.max_sequence_length)
        filling = [chosen[-1]] * (shape_bucket(len(chosen)) - len(chosen))
        pads = self._pad_ids(features)
        return [
            padded_batch([rows[i] for i in chosen + filling], length, pad_id=pads[name])
            for name, rows in features.items()
        ]


class PredictionTask(EncoderTask):
    """An `EncoderTask` with a `PredictionHead`; a subclass says what it reads.

    A subclass calls `self.build()` when all its layers are made.

    Args:
        config: as in `EncoderTask`; so for `tokenizer` and `max_length`.
        units: how many numbers the head gives.
        tokenizer: for strings.
        hidden_activation: of an inner layer of the head, or `None` for none.
        head_dropout: rate on what the head's last layer reads.
        max_length: in tokens.
        hidden_bias: the inner layer has a bias.
        hidden_norm: the stack's norm stands behind the inner layer (ModernBERT, Warner
            et al., 2024, https://arxiv.org/abs/2412.13663, and its code).
        head_use_bias: the head's last layer has a bias.
    """

    architectures = ("encoder", "decoder", "encoder_decoder")
    own_options = (
        "hidden_activation",
        "head_dropout",
        "hidden_bias",
        "hidden_norm",
        "head_use_bias",
    )

    def __init__(
        self,
        config,
        units,
        tokenizer=None,
        hidden_activation=None,
        head_dropout=0.1,
        max_length=None,
        hidden_bias=True,
        hidden_norm=False,
        head_use_bias=True,
        **kwargs,
    ):
        super().__init__(config, tokenizer=tokenizer, max_length=max_length, **kwargs)
        self.hidden_activation, self.head_dropout = hidden_activation, head_dropout
        self.hidden_bias, self.hidden_norm = hidden_bias, hidden_norm
        self.head_use_bias = head_use_bias
        self.head = PredictionHead(
            units,
            self.stack.config.hidden_dim,
            hidden_activation,
            head_dropout,
            make_initializer(self.stack.config),
            hidden_bias,
            self.stack.config if hidden_norm else None,
            head_use_bias,
            dtype=self.dtype_policy,
            name="head",
        )


def softmax(logits):
    """Probabilities over the last axis: float (..., C), a numpy array."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)
