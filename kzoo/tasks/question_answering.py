"""Extractive question answering: the part of a context that answers a question."""

import numbers
import warnings
from collections.abc import Mapping
from typing import NamedTuple

import keras
import numpy as np

from kzoo import ops
from kzoo.arguments import check_count
from kzoo.tasks.encoder_task import PredictionTask
from kzoo.tasks.forms import is_text
from kzoo.tasks.windows import windows
from kzoo.training.scores import answer_scores

_ANSWERS = "text", "answer_start"  # keys of SQuAD's `answers`


class Answer(NamedTuple):
    """A part of a context.

    Args:
        text: exactly `context[start : start + len(text)]`.
        start: its first character.
        score: the probability of its first token times that of its last, each among
            all tokens of the context that are not white space alone.
    """

    text: str
    start: int
    score: float


@keras.saving.register_keras_serializable("kzoo")
class QuestionAnswering(PredictionTask):
    """The answer to a question, as a part of a context that holds it.

    A question and its context are read as start + question + end + context + end, and
    every token of the context gets two logits: of being the answer's first and its last
    token (Devlin et al., 2019, https://arxiv.org/abs/1810.04805, section 4.2). Every
    question has an answer, as in SQuAD 1.1.

    Where the model has learned positions, or with `max_length`, a longer context is
    read in windows that overlap by half. In training, windows that do not hold the
    whole answer are left out; in prediction a token has the logits of the window where
    it stands farther from the edge. Of pairs of strings `predict` gives a list of
    logits, float (2, tokens of the context).

    Args:
        config: a `ModelConfig`.
        tokenizer: for strings.
        hidden_activation: of an inner layer of the head, or `None` for none.
        head_dropout: rate on what the head's last layer reads.
        max_length: the most tokens of a window, question and all.
        **kwargs: `hidden_bias` and `hidden_norm`, see `PredictionTask`.

    Example:
        >>> reader = kzoo.QuestionAnswering.from_size("mini", tokenizer, num_segments=2)
        >>> reader.compile()
        >>> context = "The Nile is 6650 km long."
        >>> pair = ("How long is the Nile?", context)
        >>> reader.fit([pair, ...], [("6650 km", 12), ...])
        >>> reader.answer([pair])
        [Answer(text='6650 km', start=12, score=0.93)]
        >>> reader.score(test_pairs, test_answers)
        {'exact_match': 0.71, 'f1': 0.8}
    """

    one_example = ([("a", "a")], [("a", 0)])
    texts_per_example = (2,)
    output_axes = {"start_logits": ("sequence",), "end_logits": ("sequence",)}

    def __init__(
        self,
        config,
        tokenizer=None,
        hidden_activation=None,
        head_dropout=0.1,
        max_length=None,
        **kwargs,
    ):
        own = (hidden_activation, head_dropout, max_length)
        super().__init__(config, 2, tokenizer, *own, **kwargs)
        if self._limit is not None and self._limit < 8:
            raise ValueError(
                "max_length, or the learned positions, must be at least 8, to hold a "
                f"question and a part of its context. Received: {self._limit}."
            )
        self.build()

    def default_loss(self, label_smoothing):
        """Cross-entropy of the first and the last token."""
        if label_smoothing:
            raise ValueError(
                f"label_smoothing gives every token a share, and {self.name} has tokens"
                " that cannot be the answer: those of the question. Received: "
                f"label_smoothing={label_smoothing}."
            )
        return super().default_loss(0.0)

    def call(self, inputs, training=None):
        """Logits of being the answer's first and last token.

        Args:
            inputs: as `states` takes them; rows are start + question + end + context +
                end, and padding on either side.
            training: whether dropout is applied.

        Returns:
            float (B, 2, T); very low outside the context.
        """
        states, mask = self.states(inputs, training)
        logits = ops.transpose(self.head(states, training=training), (0, 2, 1))
        is_end = ops.equal(inputs["token_ids"], self.config.end_token_id)
        ends = ops.cumsum(ops.cast(is_end, "int32"), axis=1)
        # The start token may be the same as the end token, as GPT-2 has it, and two
        # may stand between texts, as RoBERTa has it.
        start, between, _ = self.template.around(2)
        before = [*start, *between].count(self.config.end_token_id)
        context = ops.expand_dims(ops.equal(ends, before) & ~is_end & mask, 1)
        dtype = keras.backend.standardize_dtype(logits.dtype)
        lowest = -6e4 if dtype == "float16" else -1e30
        return ops.where(context, logits, lowest)

    @property
    def template(self):
        """What stands around a pair, with an end token between."""
        found = super().template
        ended = found.pair and self.config.end_token_id in found.around(2)[1]
        return found if ended else self.own_template

    def named_outputs(self, inputs):
        """What an artifact's `forward` gives: float (B, T) each."""
        logits = ops.split(self(inputs, training=False), 2, axis=1)
        shape = ops.shape(inputs["token_ids"])
        return {
            name: ops.reshape(part, shape)
            for name, part in zip(self.output_axes, logits, strict=True)
        }

    def from_named_outputs(self, outputs):
        """Logits of starts and ends, one above the other."""
        return keras.ops.stack([outputs[name] for name in self.output_axes], axis=1)

    # Text.

    def encode_examples(self, x, y=None):
        """Ids of questions with their contexts, and where the answers are.

        Args:
            x: pairs (question, context) of strings.
            y: pairs (answer, its first character in the context), or SQuAD's `answers`,
                dicts of lists `text` and `answer_start`, of which the first counts; or
                `None`.

        Returns:
            dict of lists: `token_ids`, `first` and `last` (places of the answer's
            tokens) where `y` is given, and `segment_ids` where the model has segments.
            With `y` a row for each window that holds the answer, else for each window.

        Raises:
            ValueError: a context without tokens, or an answer that is not where it is
                said to be; the example is named.
        """
        return self._numbered_rows(x, y)[0]

    def _examples_of_rows(self, x, y):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # which `encode_examples` has given
            return self._numbered_rows(x, y)[1]

    def _numbered_rows(self, x, y):
        features, owned, offsets = self._encode_pairs(x)
        if y is None:
            return features, [number for number, *_ in owned]
        self._check_targets(x, y)
        spans = [
            self._answer_tokens(number, context, answer, offsets[number])
            for number, ((_, context), answer) in enumerate(zip(x, y))
        ]
        kept, found = {name: [] for name in [*features, "first", "last"]}, []
        for row, (number, (begin, end), _, place) in enumerate(owned):
            first, last = spans[number]
            if begin <= first and last < end:
                found.append(number)
                for name, rows in features.items():
                    kept[name].append(rows[row])
                kept["first"].append(place + first - begin)
                kept["last"].append(place + last - begin)
        lost = len(spans) - len(set(found))
        if lost == len(spans):
            raise ValueError(
                f"No window of {self._limit} tokens holds a whole answer. Raise "
                f"max_length. Received: {lost} examples."
            )
        if lost:
            warnings.warn(
                f"{lost} of {len(spans)} answers are longer than a window of "
                f"{self._limit} tokens holds, and were left out.",
                stacklevel=3,
            )
        return kept, found

    def _answer_tokens(self, number, context, answer, offsets):
        """The first and the last token that hold a character of the answer."""
        text, start = self._checked_answer(number, answer)
        stop = start + len(text)
        if not text or start < 0 or context[start:stop] != text:
            raise ValueError(
                f"An answer must be context[start : start + len(answer)]. Received: "
                f"{text!r} at {start} of example {number}, where the context has "
                f"{context[max(0, start) : stop]!r}."
            )
        held = [i for i, (a, b) in enumerate(offsets) if a < stop and b > start]
        if not held:
            raise ValueError(
                f"The answer {text!r} of example {number} is in no token: the tokenizer"
                " drops its characters."
            )
        return held[0], held[-1]

    def _checked_answer(self, number, answer):
        if isinstance(answer, Mapping):  # SQuAD's, which may have several: the first
            columns = [np.ravel(answer.get(k, ())).tolist() for k in _ANSWERS]
            answer = [column[0] if column else None for column in columns]
        fits = isinstance(answer, (tuple, list)) and len(answer) == 2
        kinds = str, numbers.Real
        if not fits or not all(map(isinstance, answer, kinds)) or answer[1] % 1:
            raise ValueError(
                "The target of a question is (answer, its first character), or a dict "
                f"of lists {' and '.join(_ANSWERS)}, and every question has one. "
                f"Received: {answer!r} for example {number}."
            )
        return answer[0], int(answer[1])

    def _encode_pairs(self, x):
        """Features; for each row what it holds; and the offsets of each context.

        A row is (example, its tokens of the context, those it owns, its first place).
        """
        questions, contexts = self._sides(x)
        around, rows, owned = self.template.around(2), [], []
        asked = self._encode(questions)
        read, offsets = self.text_tokenizer.encode_with_offsets(contexts)
        for number, (question, context) in enumerate(zip(asked, read)):
            if all(start == end for start, end in offsets[number]):
                raise ValueError(
                    "A context needs at least one token that is not white space. "
                    f"Received: {contexts[number]!r} for example {number}."
                )
            room = self._limit and self._limit - sum(map(len, around))
            if room is not None:
                # Of a very long question the end goes: half a window is the context's.
                question = question[: max(room // 2, room - len(context))]
                room -= len(question)
            before = sum(map(len, (*around[:2], question)))
            for (first, last), own in windows([1] * len(context), room):
                rows.append(self.template.join([question, context[first:last]]))
                owned.append((number, (first, last), own, before))
        return self._named_rows(rows), owned, offsets

    def _inputs_and_targets(self, batch):
        batch = dict(batch)
        places = [batch.pop(name, None) for name in ("first", "last")]
        return batch, None if places[0] is None else np.stack(places, axis=1)

    def _pad_ids(self, features):
        pads = super()._pad_ids(features)
        return {name: -1 if name in ("first", "last") else pads[name] for name in pads}

    # Predictions.

    def _predict_texts(self, x, **options):
        return self._predict_contexts(x, **options)[0]

    def _predict_contexts(self, x, batch_size=32, verbose=0):
        """Logits of each context's tokens, and their offsets."""
        features, owned, offsets = self._encode_pairs(x)
        rows = self.run(features, batch_size=batch_size, verbose=verbose)
        parts = [[] for _ in offsets]
        for row, (number, (first, _), (begin, end), place) in zip(rows, owned):
            parts[number].append(row[:, place + begin - first : place + end - first])
        return [np.concatenate(each, axis=1) for each in parts], offsets

    def answer(self, x, *, max_answer_length=30, **options):
        """The most probable answer to each question.

        Args:
            x: pairs (question, context) of strings.
            max_answer_length: in tokens.
            **options: `batch_size` and `verbose`, as in `predict`.

        Returns:
            A list of `Answer`: text, start and score.
        """
        check_count("max_answer_length", max_answer_length)
        if not is_text(x):
            raise ValueError(
                f"{self.name}.answer reads pairs of strings. For token ids use "
                f"predict. Received: {type(x).__name__}."
            )
        answers = []
        for (_, context), logits, offsets in zip(
            x, *self._predict_contexts(x, **options), strict=True
        ):
            # White space alone may be a token, but begins and ends no answer.
            held = [start < end for start, end in offsets]
            logits = np.where(held, logits, -np.inf)
            first, last, score = best_span(logits, max_answer_length)
            start, stop = offsets[first][0], offsets[last][1]
            answers.append(Answer(context[start:stop], start, score))
        return answers

    def score(self, x, y, **options):
        """Exact match and token F1, as SQuAD's script has them.

        Args:
            x: pairs (question, context) of strings.
            y: for each an answer, (answer, first character), or a list of several,
                of which the best match counts; or a dict with `text`, as SQuAD's
                `answers` are.
            **options: of `answer`.

        Returns:
            dict of `exact_match` and `f1`, floats in [0, 1].
        """
        self._check_targets(x, y)
        expected = [_texts(answers, number) for number, answers in enumerate(y)]
        if not all(expected):
            raise ValueError(
                "Every question needs an answer to compare with. Received: none for "
                f"example {expected.index([])}."
            )
        predicted = [answer.text for answer in self.answer(x, **options)]
        return answer_scores(expected, predicted)

    # Exports.

    def _forward_cases(self, generator):
        cases = super()._forward_cases(generator)
        for inputs in cases.values():  # a question of no token, for a context to be
            inputs["token_ids"][:, 1:2] = self.config.end_token_id
        return cases


def best_span(logits, max_length):
    """The most probable span: its first and last token, and its probability.

    Args:
        logits: float (2, T), of a token being the first and the last.
        max_length: the most tokens of a span.

    Returns:
        int, int, float; the earliest and shortest of equally probable ones.
    """
    logits = np.asarray(logits, "float64")
    # The largest goes first: beside it the logarithm of the sum would be lost.
    logits = logits - logits.max(axis=1, keepdims=True)
    first, last = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    length = len(first)
    totals = np.full((length, min(max_length, length)), -np.inf)
    for more in range(totals.shape[1]):
        totals[: length - more, more] = first[: length - more] + last[more:]
    start, more = np.unravel_index(totals.argmax(), totals.shape)
    return int(start), int(start + more), float(np.exp(totals[start, more]))


def _plain(value):
    return value.tolist() if isinstance(value, np.ndarray) else value


def _texts(answers, number):
    """The texts of an answer, or of several, to the question of this number."""
    answers = _plain(answers)
    if isinstance(answers, str):
        return [answers]
    if isinstance(answers, Mapping) and "text" in answers:  # and "answer_start"
        return _texts(answers["text"], number)
    if isinstance(answers, (list, tuple)):
        if len(answers) == 2 and isinstance(_plain(answers[1]), numbers.Real):
            answers = answers[:1]  # (answer, first character)
        return [text for answer in answers for text in _texts(answer, number)]
    raise ValueError(
        "An answer to compare with is a text, (text, its first character), a dict with "
        f"text, or a list of them. Received: {answers!r} for example {number}."
    )
