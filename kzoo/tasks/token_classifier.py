"""A label for each word: parts of speech, named entities."""

import keras
import numpy as np

from kzoo.tasks.encoder_task import PredictionTask, softmax
from kzoo.tasks.forms import as_list, is_text
from kzoo.tasks.text_classifier import check_labels, encode_labels
from kzoo.tasks.windows import windows
from kzoo.tokenizers.texts import describe
from kzoo.training.scores import entity_scores


@keras.saving.register_keras_serializable("kzoo")
class TokenClassifier(PredictionTask):
    """The label of each word of a sentence.

    A sentence is a list of words, or a string that is split at white space. It is read
    as start + the pieces of the words as they are in context + end, and the first piece
    of a word gives its label; the other pieces have the target -1, which the loss
    leaves out (Devlin et al., 2019, https://arxiv.org/abs/1810.04805, section 5.3).

    Where the model has learned positions, or with `max_length`, a longer sentence is
    read in windows that overlap by half. A word is learned once and labelled once, in
    the window where it stands farther from the edge, so that none is lost. Of a word
    that is longer than a window only the first pieces are read. Of sentences `predict`
    gives a list of logits, float (words, C) each.

    Args:
        config: a `ModelConfig`.
        labels: names of the labels; or
        num_classes: how many there are, when they have no names.
        tokenizer: for strings.
        hidden_activation: of an inner layer of the head, or `None` for none.
        head_dropout: rate on what the head's last layer reads.
        max_length: the most tokens of a window, start and end among them.
        **kwargs: `hidden_bias` and `hidden_norm`, see `PredictionTask`.

    Raises:
        ValueError: neither or both of `labels` and `num_classes`, or fewer than two.

    Example:
        >>> tagger = kzoo.TokenClassifier.from_size(
        ...     "mini", tokenizer, labels=["O", "B-PER", "I-PER"], positions="rotary")
        >>> tagger.compile()
        >>> tagger.fit([["Ada", "Lovelace", "wrote"], ...],
        ...     [["B-PER", "I-PER", "O"], ...], epochs=10)
        >>> tagger.tag(["Grace Hopper spoke"])
        [['B-PER', 'I-PER', 'O']]
        >>> tagger.score(test_sentences, test_labels)
        {'accuracy': 0.98, 'precision': 0.82, 'recall': 0.8, 'f1': 0.81}
    """

    one_example = (["a"], [[0]])
    numeric_targets = False

    def __init__(
        self,
        config,
        labels=None,
        num_classes=None,
        tokenizer=None,
        hidden_activation=None,
        head_dropout=0.1,
        max_length=None,
        **kwargs,
    ):
        own_labels, count = check_labels(labels, num_classes)
        own = (hidden_activation, head_dropout, max_length)
        super().__init__(config, count, tokenizer, *own, **kwargs)
        if self._limit is not None and self._limit < 3:
            raise ValueError(
                "The learned positions must hold start, a token and end: at least 3. "
                f"Received: {self._limit}."
            )
        self.labels, self.num_classes = own_labels, count
        self.build()

    @property
    def options(self):
        """What the task was given beside config and tokenizer."""
        return {
            **super().options,
            "labels": self.labels,
            "num_classes": None if self.labels else self.num_classes,
        }

    @property
    def output_axes(self):
        """Logits of the labels at every token."""
        return {"logits": ("sequence", self.num_classes)}

    def call(self, inputs, training=None):
        """float (B, T, C); `inputs` as `states` takes them."""
        states, _ = self.states(inputs, training)
        return self.head(states, training=training)

    # Words.

    def encode_examples(self, x, y=None):
        """Ids of sentences, and the target of each id.

        Args:
            x: lists of words; or strings, split at white space.
            y: a label for each word: lists of names or ints, or strings of names, split
                at white space; or `None`.

        Returns:
            dict of lists of lists of int: `token_ids`; `targets` where `y` is given, -1
            but at the first piece of a word; and `segment_ids` where the model has
            segments. A sentence of several windows has as many rows.

        Raises:
            TypeError: a sentence or a word is missing.
            ValueError: a sentence without words, another number of labels than words,
                or an unknown label; the sentence is named.
        """
        sentences = split_words(x)
        features, owned = self._encode_sentences(sentences)
        if y is not None:
            self._check_targets(x, y)
            targets = [
                self._encode_labels(number, sentence, labels)
                for number, (sentence, labels) in enumerate(zip(sentences, y))
            ]
            rows = [[self.ignore_id] * len(row) for row in features["token_ids"]]
            for row, (sentence, words, places) in zip(rows, owned, strict=True):
                for word, place in zip(words, places, strict=True):
                    row[place] = targets[sentence][word]
            features["targets"] = rows
        return features

    def _examples_of_rows(self, x, y):
        _, owned = self._encode_sentences(split_words(x))
        return [number for number, *_ in owned]

    def _encode_labels(self, number, words, labels):
        labels = labels.split() if isinstance(labels, str) else labels
        if not hasattr(labels, "__len__"):
            raise ValueError(
                "A sentence's labels are a list, or a string of them with spaces in "
                f"between. Received: {labels!r} for sentence {number}."
            )
        if len(labels) != len(words):
            raise ValueError(
                f"Every word needs a label. Received: {len(words)} words and "
                f"{len(labels)} labels in sentence {number}, {shortened(words)}."
            )
        where = f"sentence {number}, word"
        return encode_labels(labels, self.labels, self.num_classes, where)

    def _encode_sentences(self, sentences):
        """Features, and for each row (sentence, its words, their first places)."""
        tokenizer = self.text_tokenizer
        empty = [number for number, words in enumerate(sentences) if not words]
        if empty:
            raise ValueError(
                f"{self.name} reads sentences of at least one word. Received: none in "
                f"sentence {empty[0]}."
            )
        (before, behind), rows, owned = self.template.around(), [], []
        around = len(before) + len(behind)
        room = None if self._limit is None else self._limit - around
        for number, pieces in enumerate(tokenizer.encode_words(sentences)):
            self._in_table(pieces)
            pieces = [piece[:room] for piece in pieces]
            for (first, last), (begin, end) in windows(
                [len(piece) for piece in pieces], room
            ):
                row, places = [*before], {}
                for word in range(first, last):
                    places[word] = len(row)
                    row += pieces[word]
                rows.append([*row, *behind])
                words = range(begin, end)
                owned.append((number, words, [places[word] for word in words]))
        return self._named_rows([(row, [0] * len(row)) for row in rows]), owned

    # Predictions.

    def _predict_texts(self, x, **options):
        sentences = split_words(x)
        features, owned = self._encode_sentences(sentences)
        rows = self.run(features, **options)
        results = [[] for _ in sentences]
        for row, (sentence, _, places) in zip(rows, owned, strict=True):
            results[sentence].append(row[places])
        return [np.concatenate(parts) for parts in results]

    def tag(self, x, *, return_probabilities=False, **options):
        """The most probable label of each word.

        Args:
            x: lists of words, or strings, which are split at white space. One sentence
                goes into a list of its own, `[["The", "dog", "sleeps"]]`: of a plain
                list of words each is a sentence.
            return_probabilities: whether those of all labels are returned, too.
            **options: of `predict`.

        Returns:
            A list of labels (ints where they have no names) for each sentence; with
            `return_probabilities` a pair with a list of float32 (words, C).
        """
        x = as_list(x)
        if not is_text(x):
            raise ValueError(
                f"{self.name}.tag reads sentences: lists of words, or strings. For "
                f"token ids use predict. Received: {type(x).__name__}."
            )
        logits = self.predict(x, **{"verbose": 0, **options})
        best = [row.argmax(axis=-1).tolist() for row in logits]
        if self.labels:
            best = [[self.labels[i] for i in row] for row in best]
        if not return_probabilities:
            return best
        return best, [softmax(row.astype("float32")) for row in logits]

    def score(self, x, y, **options):
        """Accuracy of the words; for BIO labels also of the entities, by seqeval.

        Args:
            x: lists of words, or strings.
            y: a label for each word.
            **options: of `predict`.

        Returns:
            dict of floats: `accuracy`; and where the labels are "O" and names that
            begin with "B-" and "I-" also `precision`, `recall` and `f1`, see
            `kzoo.training.scores.entity_scores`.
        """
        sentences = split_words(x)
        self._check_targets(x, y)
        expected = [
            self._encode_labels(number, words, labels)
            for number, (words, labels) in enumerate(zip(sentences, y))
        ]
        logits = self.predict(sentences, **{"verbose": 0, **options})
        got = [row.argmax(axis=-1).tolist() for row in logits]
        right = np.concatenate(expected) == np.concatenate(got)
        scores = {"accuracy": float(right.mean())}
        if self.labels and all(label[:2] in ("O", "B-", "I-") for label in self.labels):
            names = [
                [[self.labels[i] for i in row] for row in rows]
                for rows in (expected, got)
            ]
            scores |= entity_scores(*names)
        return scores


def split_words(sentences):
    """The words of each sentence: a list of them, or a string split at white space.

    Raises:
        TypeError: a sentence or a word is neither, as one that is missing.
    """
    found = []
    for index, sentence in enumerate(sentences):
        words = sentence.split() if isinstance(sentence, str) else sentence
        listed = hasattr(words, "__iter__")
        words = list(words) if listed else [words]
        for place, word in enumerate(words):
            if not isinstance(word, str):
                where = f"as word {place} of the sentence " if listed else ""
                raise TypeError(
                    "Expected sentences, each a list of words or a string. "
                    f"Received: {describe(word)} {where}at index {index}."
                )
        found.append(words)
    return found


def shortened(value, length=60):
    """How an error shows a value."""
    text = repr(value)
    return text if len(text) <= length else text[: length - 3] + "..."
