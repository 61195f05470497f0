"""The tables of a recipe: what each key says, and what a table can refuse by itself."""

import dataclasses
import math
from typing import Any, Literal

from kzoo.config import DROPOUT_RATES, SIZES, ModelConfig
from kzoo.zoo.tables import RecipeError, at_least_one, check, positive, refuse

Format = Literal["parallel", "columns", "tagged", "text", "running"]
TokenizerKind = Literal["unigram", "bpe", "sentencepiece-bpe", "wordpiece", "character"]

_SAMPLED = ("unigram", "sentencepiece-bpe")
_PIECES = ("across_words", "max_piece_length")  # keys of these alone
# Keys of `Model` that are no fields of configs.
_WHOLE = ("size", "config", "preset")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Where examples are; in TOML a string, a list of strings, or a table.

    Args:
        files: one file or `"tfds:name"`, in TOML also as a string; or two parallel
            files, source first.
        split: of a data set of TensorFlow Datasets, or of a folder of files
            `<language>.<split>.txt`.
    """

    files: tuple[str, ...]
    split: str = "train"

    @staticmethod
    def from_plain(value):
        """See `kzoo.zoo.tables`."""
        table = value if isinstance(value, dict) else {"files": value}
        files = table.get("files")
        return {**table, "files": [files]} if isinstance(files, str) else table

    def to_plain(self):
        """Files alone, where the split is the default."""
        files = self.files[0] if len(self.files) == 1 else list(self.files)
        return files if self.split == "train" else dict(files=files, split=self.split)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HoldOut:
    """Parts of the training file that are not trained on, where there are no files.

    Args:
        validation: share that is for validation, in [0, 1).
        test: share that is for the test set `"test"`.
        by: `"hash"` of a text, so that equal texts are in one part; or `"end"`, the
            last examples, or the end of running text: the test set is the very last.
        side: which text is hashed, from 0, such as 0 for the source.
        at_most: the most examples of a share; by hash the number expected at most,
            from which the hashes of texts differ by its root or so.
        seed: another number gives other parts.
    """

    validation: float = 0.0
    test: float = 0.0
    by: Literal["hash", "end"] = "hash"
    side: int = 0
    at_most: int | None = None
    seed: int = 0

    def __post_init__(self):
        shares = self.validation, self.test
        if not (all(share >= 0 for share in shares) and sum(shares) < 1):  # nor NaN
            refuse(
                "[data.hold_out] validation, test",
                "shares of 0 or more that sum to less than 1",
                f"{self.validation} and {self.test}",
            )
        check(self, "[data.hold_out]", "at_most", "1 or more", at_least_one)
        check(self, "[data.hold_out]", "side", "0 or more", lambda x: x >= 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """The examples, and what is said of them.

    Args:
        format: `"parallel"`, two files whose lines n belong together; `"columns"` of a
            tab-separated file, texts first and target last; `"tagged"`, a word and its
            label a line; `"text"`, a text a line; `"running"`, a file is one text.
        train: a `Source`; so for the next, which may be left out.
        validation: shows how a training goes, and may choose the epoch.
        test: name to `Source`, for `kzoo evaluate` alone.
        hold_out: a `HoldOut`, instead of files.
        columns: numbers from 0, names of features, or the languages of a folder.
        extra_columns: rows of a file may have different numbers of columns.
        replace: what is replaced in every text, and by what.
        last_words: texts are cut to so many words at their end.
        languages: of the sides, such as `["en", "de"]`.
        name: of the data set; the next four are for its card.
        url: where it comes from.
        layout: what the files have of what is there, and how.
        licence: of the texts.
        research_only: whether they are for research alone.
    """

    format: Format
    train: Source
    validation: Source | None = None
    test: dict[str, Source] = dataclasses.field(default_factory=dict)
    hold_out: HoldOut | None = None
    columns: tuple[int | str, ...] | None = None
    extra_columns: bool = False
    replace: dict[str, str] = dataclasses.field(default_factory=dict)
    last_words: int | None = None
    languages: tuple[str, ...] = ()
    name: str = ""
    url: str = ""
    layout: str = ""
    licence: str = ""
    research_only: bool = False

    def __post_init__(self):
        check(self, "[data]", "last_words", "1 or more", at_least_one)
        held_out = self.hold_out or HoldOut()
        if held_out.validation and self.validation:
            refuse("[data] validation, hold_out.validation", "one of the two", "both")
        if held_out.test and "test" in self.test:
            refuse("[data] test.test, hold_out.test", "one of the two", "both")
        if "validation" in self.test and (self.validation or held_out.validation):
            refuse("[data] test.validation", "another name beside validation", "it")
        if "" in self.replace:
            refuse("[data] replace", "no empty text", self.replace)
        if self.is_running and self.hold_out and held_out.by != "end":
            refuse("[data.hold_out] by", '"end" with running text', repr(held_out.by))
        number = 2 if self.format == "parallel" else 1
        for key, source in (
            ("train", self.train),
            ("validation", self.validation),
            *((f"test.{name}", source) for name, source in self.test.items()),
        ):
            if source is not None and len(source.files) != number:
                refuse(
                    f"[data] {key}",
                    f"{number} file{'s' * (number > 1)} of format {self.format!r}",
                    list(source.files),
                )
        if self.columns and len(set(self.columns)) < len(self.columns):
            refuse("[data] columns", "different ones", list(self.columns))
        if self.columns and self.format in ("parallel", "running"):
            refuse("[data] columns", f"none with format {self.format!r}", self.columns)

    @property
    def is_running(self):
        """Whether a file is one text."""
        return self.format == "running"

    @property
    def files(self):
        """All files that are read, and names of data sets, which are none."""
        sources = self.train, self.validation, *self.test.values()
        return [file for source in sources if source for file in source.files]

    @property
    def tests(self):
        """Names of what `kzoo evaluate` can score, the test sets first."""
        held_out = self.hold_out or HoldOut()
        names = [*self.test, *(["test"] if held_out.test else [])]
        has_validation = self.validation or held_out.validation
        return [*names, *(["validation"] if has_validation else [])]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """What makes ids of texts, learned from the training texts.

    Args:
        kind: `"unigram"` and `"sentencepiece-bpe"` are `SentencePieceTokenizer`'s,
            the others `FastTokenizer`'s.
        vocabulary_size: the most tokens.
        lowercase: texts are lower-cased.
        across_words: a piece of a `SentencePieceTokenizer` may hold several words.
        max_piece_length: the most characters of such a tokenizer's pieces.
        folder: one that holds a tokenizer, instead of the five above.
        splits: every text comes in so many splits into pieces, the first of them the
            most probable and the others drawn (Kudo, 2018,
            https://arxiv.org/abs/1804.10959). An epoch is as long as with one. A folder
            keeps what was drawn; a training in another one draws, and ends, otherwise.
        alpha: how sharp those draws are, see `SentencePieceTokenizer.sampled`.
    """

    kind: TokenizerKind | None = None
    vocabulary_size: int | None = None
    lowercase: bool = False
    across_words: bool = False
    max_piece_length: int | None = None
    folder: str | None = None
    splits: int = 1
    alpha: float | None = None

    def __post_init__(self):
        learned = {"kind": self.kind, "vocabulary_size": self.vocabulary_size}
        given = [key for key, value in learned.items() if value is not None]
        pieces = [key for key in _PIECES if getattr(self, key)]
        if self.folder is not None and (given or self.lowercase or pieces):
            refuse("[tokenizer] folder", "no other key beside it", given + pieces)
        if self.lowercase and self.kind is None:
            refuse("[tokenizer] lowercase", "a kind, to be learned so", "none")
        if pieces and self.kind not in _SAMPLED:
            expected = f"a kind of {_SAMPLED}"
            refuse(f"[tokenizer] {', '.join(pieces)}", expected, self.kind)
        counts = "vocabulary_size max_piece_length"
        check(self, "[tokenizer]", counts, "1 or more", at_least_one)
        check(self, "[tokenizer]", "alpha", "0 or more", lambda x: 0 <= x < math.inf)
        if len(given) == 1:
            refuse("[tokenizer]", "kind and vocabulary_size together", given)
        if self.splits < 1 or (self.splits > 1) != (self.alpha is not None):
            refuse(
                "[tokenizer] splits, alpha",
                "splits above 1 together with alpha, or neither",
                f"splits={self.splits}, alpha={self.alpha}",
            )
        if self.splits > 1 and self.kind is not None and self.kind not in _SAMPLED:
            refuse("[tokenizer] splits", f"a kind of {_SAMPLED}", repr(self.kind))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """The model's config.

    Args:
        size: a key of `kzoo.config.SIZES`; or
        config: a whole `ModelConfig` as a table; or
        preset: what `from_preset` takes: training begins with its weights and its
            tokenizer. Of another task's it has the stacks, and a new head.
        fields: of `StackConfig` and `ModelConfig`, changed from the size, or in each
            stack of the config; of a preset the rates of dropout. In TOML they stand
            beside the size.
    """

    size: str | None = None
    config: dict[str, Any] | None = None
    preset: str | None = None
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)

    @staticmethod
    def from_plain(values):
        """See `kzoo.zoo.tables`."""
        if not isinstance(values, dict):
            return values
        own = {key: values[key] for key in _WHOLE if key in values}
        return {**own, "fields": {k: v for k, v in values.items() if k not in own}}

    def to_plain(self):
        """The fields beside what they change."""
        own = {key: getattr(self, key) for key in _WHOLE}
        return {k: v for k, v in own.items() if v is not None} | self.fields

    def __post_init__(self):
        own = dict(size=self.size, config=self.config, preset=self.preset)
        given = [name for name, value in own.items() if value is not None]
        if len(given) != 1:
            refuse("[model] size, config, preset", "one of the three", given or "none")
        if self.preset is not None and set(self.fields) - set(DROPOUT_RATES):
            expected = f"no field but {', '.join(DROPOUT_RATES)} beside it"
            refuse("[model] preset", expected, sorted(self.fields))
        if self.size is not None and "vocabulary_size" in self.fields:
            refuse("[model] vocabulary_size", "none: it is the [tokenizer]'s", "it")
        if self.size is not None and self.size not in SIZES:
            refuse("[model] size", f"one of {', '.join(SIZES)}", repr(self.size))

    def model_config(self, architecture, vocabulary_size):
        """The `ModelConfig`, with as many tokens where a size is named.

        Raises:
            RecipeError: a field that there is not, or a value that it does not take.
        """
        try:
            if self.config is None:
                return ModelConfig.from_size(
                    self.size, architecture, vocabulary_size, **self.fields
                )
            return ModelConfig.from_dict(self.config).replace_in_stacks(**self.fields)
        except (TypeError, ValueError) as error:
            raise RecipeError(f"[model] {error}") from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Arguments of `kzoo.training.Adam`, but the learning rate."""

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    weight_decay: float | None = None
    global_clipnorm: float | None = None
    layer_decay: float | None = None

    def __post_init__(self):
        for names, expected, fits in (
            ("beta_1 beta_2", "a rate in [0, 1)", lambda x: 0 <= x < 1),
            ("epsilon global_clipnorm", "a positive number", positive),
            ("weight_decay", "0 or more", lambda x: 0 <= x < math.inf),
            ("layer_decay", "a factor in (0, 1]", lambda x: 0 < x <= 1),
        ):
            check(self, "[training.optimizer]", names, expected, fits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """The learning rate.

    Args:
        peak: the largest rate.
        kind: `"cosine"` falls to `final` on half a cosine; `"inverse_square_root"` as
            the root of the step (Vaswani et al., 2017); `"constant"` does not.
        warmup_steps: updates during which it rises to the peak; or
        warmup_epochs: epochs.
        final: share of the peak that is left at the end.
        cycles: how many times it rises and falls, each as long as the other
            (Loshchilov and Hutter, 2017, section 3).
    """

    peak: float
    kind: Literal["cosine", "inverse_square_root", "constant"] = "cosine"
    warmup_steps: int | None = None
    warmup_epochs: int | None = None
    final: float = 0.0
    cycles: int = 1

    def __post_init__(self):
        for names, expected, fits in (
            ("peak", "a positive rate", positive),
            ("cycles", "1 or more", at_least_one),
            ("warmup_steps warmup_epochs", "0 or more", lambda x: x >= 0),
            ("final", "a share in [0, 1]", lambda x: 0 <= x <= 1),
        ):
            check(self, "[training.schedule]", names, expected, fits)
        both = [self.warmup_steps, self.warmup_epochs]
        if None not in both:
            refuse("[training.schedule] warmup_steps, warmup_epochs", "one", both)
        warms = bool(self.warmup_steps or self.warmup_epochs)
        if self.kind == "inverse_square_root" and not warms:
            refuse(
                "[training.schedule] warmup_steps",
                "a warm-up with kind 'inverse_square_root'",
                "none",
            )
        if self.kind == "constant" and warms:
            refuse("[training.schedule] kind", "no warm-up with 'constant'", both)
        if (self.final or self.cycles > 1) and self.kind != "cosine":
            refuse(
                "[training.schedule] final, cycles", "kind 'cosine'", repr(self.kind)
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Teacher:
    """A linear model of n-grams that a text classifier learns from, too.

    Args:
        mixed: how many texts of sentences of two others it is asked about.
        trust: its share in the targets of the training's own texts.
    """

    mixed: int = 0
    trust: float = 0.5

    def __post_init__(self):
        for name, expected, fits in (
            ("mixed", "0 or more", lambda x: x >= 0),
            ("trust", "a share in [0, 1]", lambda x: 0 <= x <= 1),
        ):
            check(self, "[training.teacher]", name, expected, fits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """How it is trained.

    Args:
        epochs: passes over the data.
        schedule: a `Schedule`.
        optimizer: an `Optimizer`.
        teacher: a `Teacher`, or none.
        batch_size: rows of a batch; or
        tokens_per_batch: padded tokens of it, target tokens where there is a decoder.
        length: tokens of a stretch of running text.
        steps: batches of an epoch of running text; by default as many as hold the text
            once.
        label_smoothing: of a cross-entropy.
        consistency: of two passes over each example, see `MaskedCrossEntropy`.
        score_range: the lowest and the highest score that an embedder learns from.
        word_dropout: share of the pieces that become unknown when they are read, so
            that the context is learned, too.
        embeddings: how the token table begins: `"tf_idf"`, random directions as long as
            a piece is rare, so that a mean of them is a bag of words; or as the config
            says.
        average: the weights are the mean of those of the last epochs, so many.
        best: they are those of the epoch with the best such measure, instead.
        score_validation: the task's `score` of the validation examples is a measure
            of every epoch: `"val_f1"` and so on.
        metrics: whether the task's metrics are computed beside the loss.
        precision: a dtype policy of Keras.
    """

    epochs: int
    schedule: Schedule
    optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
    teacher: Teacher | None = None
    batch_size: int | None = None
    tokens_per_batch: int | None = None
    length: int | None = None
    steps: int | None = None
    label_smoothing: float = 0.0
    consistency: float = 0.0
    score_range: tuple[float, ...] | None = None
    word_dropout: float = 0.0
    embeddings: Literal["tf_idf"] | None = None
    average: int = 1
    best: str | None = None
    score_validation: bool = False
    metrics: bool = True
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "float32"

    def __post_init__(self):
        counts = "epochs batch_size tokens_per_batch length steps average"
        check(self, "[training]", counts, "1 or more", at_least_one)
        sizes = [self.batch_size, self.tokens_per_batch]
        if sizes.count(None) != 1:
            refuse("[training] batch_size, tokens_per_batch", "one of the two", sizes)
        if self.epochs % self.schedule.cycles:
            refuse(
                "[training] epochs",
                f"a multiple of the schedule's {self.schedule.cycles} cycles",
                self.epochs,
            )
        if self.average > 1 and self.best:
            refuse("[training] average, best", "one of the two", "both")
        for names, expected, fits in (
            ("label_smoothing word_dropout", "a rate in [0, 1)", lambda x: 0 <= x < 1),
            ("consistency", "0 or more", lambda x: 0 <= x < math.inf),
        ):
            check(self, "[training]", names, expected, fits)
        given = self.score_range
        if given is not None and not (
            len(given) == 2 and all(map(math.isfinite, given))
        ):
            refuse("[training] score_range", "two finite numbers", list(given))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How it is scored.

    Args:
        options: of `generate` for a `seq2seq_lm`; `stride` for running text: how many
            tokens a window of `[training] length` is moved on, so that each has at
            least length - stride before it; else `batch_size`.
        measures: names of those that are reported; all of the task where it is empty.
        main: a test set and a measure, the figure that stands for the model.
        interval: two numbers between which it lies when the recipe is run again.
    """

    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    measures: tuple[str, ...] = ()
    main: tuple[str, ...] | None = None
    interval: tuple[float, ...] | None = None

    def __post_init__(self):
        if self.main is not None and len(self.main) != 2:
            refuse("[evaluation] main", "a test set and a measure", list(self.main))
        if self.main and self.measures and self.main[1] not in self.measures:
            refuse(
                "[evaluation] main", f"a measure of {self.measures}", repr(self.main[1])
            )
        if self.interval is not None and (
            self.main is None
            or len(self.interval) != 2
            or self.interval[0] > self.interval[1]
        ):
            refuse(
                "[evaluation] interval",
                "the lower and the upper end, of the main measure",
                list(self.interval),
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """A result to compare with.

    Args:
        score: the figure.
        what: of which system and measure.
        source: where it stands.
    """

    score: float
    what: str
    source: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Card:
    """What a card says and no file measures.

    Args:
        description: what the model is.
        intended_use: what it is for.
        limits: what it is not for.
        published: list of `Published`.
        examples: inputs that the card shows.
        options: of the verb that answers them, beside those of `Evaluation`.
    """

    description: str = ""
    intended_use: str = ""
    limits: str = ""
    published: tuple[Published, ...] = ()
    examples: tuple[Any, ...] = ()
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
