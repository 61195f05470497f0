"""Recipes: how a model is trained and scored, as data that a TOML file holds.

    name = "multi30k-en-de"           # of the preset
    title = "..."                     # one line
    task = "seq2seq_lm"               # a key of FORMATS
    seed = 1                          # of weights, dropout and order

    [data]                            # `Data`
    format = "parallel"               # what a file holds, see FORMATS
    train = ["train.en.gz", "train.de.gz"]    # a `Source`
    validation = ["val.en.gz", "val.de.gz"]
    [data.test]
    test_2016_flickr = ["test_2016_flickr.en.gz", "test_2016_flickr.de.gz"]

    [tokenizer]                       # `Tokenizer`
    [model]                           # `Model`: size, and fields of its configs
    [task_options]                    # arguments of the task's class, such as labels
    [training]                        # `Training`
    [training.optimizer]              # `Optimizer`
    [training.schedule]               # `Schedule`
    [evaluation]                      # `Evaluation`
    [card]                            # `Card`

The tables are the dataclasses of `kzoo.zoo.recipe_tables`, whose docstrings say each
key; what is left out has their defaults. Files are relative to a folder that is given
with the recipe, or `"tfds:name"`. A key that is not known, a value of another type, and
options that contradict one another are refused with the file and the key.
`kzoo.zoo.training` and `kzoo.zoo.evaluation` read recipes.
"""

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from kzoo.arguments import is_integer
from kzoo.files import write_text
from kzoo.generation.options import SearchOptions
from kzoo.zoo.recipe_tables import Card, Data, Evaluation, Model, Tokenizer, Training
from kzoo.zoo.registry import RECIPE, SHIPPED
from kzoo.zoo.tables import RecipeError, from_table, refuse, to_table

# What each task learns from, the default first.
FORMATS = {
    "causal_lm": ("text", "running"),
    "masked_lm": ("text", "running"),
    "pair_scorer": ("columns",),
    "sentence_embedder": ("columns",),
    "seq2seq_lm": ("parallel", "columns"),
    "text_classifier": ("columns",),
    "text_regressor": ("columns",),
    "token_classifier": ("tagged",),
}
# How many columns of a file each reads: texts, and the target behind them.
_COLUMNS = {
    "causal_lm": (1,),
    "masked_lm": (1,),
    "pair_scorer": (3,),
    "sentence_embedder": (3,),
    "seq2seq_lm": (2,),
    "text_classifier": (2, 3),
    "text_regressor": (2, 3),
    "token_classifier": (2,),
}
_ARCHITECTURES = {"seq2seq_lm": "encoder_decoder", "causal_lm": "decoder"}
# Tasks whose targets are numbers.
NUMBERS = ("pair_scorer", "sentence_embedder", "text_regressor")
# Options of the verb that answers a test set, but those that give something else.
_OPTIONS = {
    "causal_lm": ("batch_size",),
    "masked_lm": ("batch_size", "seed"),
    "seq2seq_lm": tuple(
        {field.name for field in dataclasses.fields(SearchOptions)}
        - {"num_return_sequences", "processors"}
        | {"batch_size", "jit_compile"}
    ),
}
# What `kzoo evaluate` measures of each task; the last two of texts as they are.
OF_THE_TEXT = ("bits_per_character", "word_perplexity")
MEASURES = {
    "causal_lm": ("loss", "perplexity", *OF_THE_TEXT),
    "masked_lm": ("accuracy", "perplexity"),
    "pair_scorer": ("spearman", "pearson"),
    "sentence_embedder": ("spearman", "pearson"),
    "seq2seq_lm": ("bleu", "chrf", "bleu_lowercased"),
    "text_classifier": ("accuracy", "macro_f1"),
    "text_regressor": ("spearman", "pearson"),
    "token_classifier": ("accuracy", "precision", "recall", "f1"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training and what follows it; see the module's docstring.

    Args:
        name: of the preset.
        task: a key of `FORMATS`.
        data: a `Data`; so for the others, which are the tables of the file.
        model: a `Model`.
        training: a `Training`.
        tokenizer: a `Tokenizer`; it may be left out where the model is a preset.
        task_options: arguments of the task's class. Labels that are left out are those
            of the training examples, sorted.
        evaluation: an `Evaluation`.
        card: a `Card`.
        title: one line.
        seed: in [0, 2**32).

    Raises:
        RecipeError: tables that contradict one another.
    """

    name: str
    task: str
    data: Data
    model: Model
    training: Training
    tokenizer: Tokenizer = dataclasses.field(default_factory=Tokenizer)
    task_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    evaluation: Evaluation = dataclasses.field(default_factory=Evaluation)
    card: Card = dataclasses.field(default_factory=Card)
    title: str = ""
    seed: int = 0

    def __post_init__(self):
        if self.task not in FORMATS:
            refuse("task", f"one of {', '.join(FORMATS)}", repr(self.task))
        if self.data.format not in FORMATS[self.task]:
            refuse(
                "[data] format",
                f"{' or '.join(FORMATS[self.task])} for task {self.task!r}",
                repr(self.data.format),
            )
        self._check_columns()
        if not 0 <= self.seed < 2**32:
            refuse("seed", "a number in [0, 2**32)", self.seed)
        self._check_training()
        self._check_evaluation()
        self._check_model()

    def _check_columns(self):
        columns, numbers = self._columns, _COLUMNS[self.task]
        if columns and len(columns) not in numbers:
            refuse(
                "[data] columns",
                f"{' or '.join(map(str, numbers))} for task {self.task!r}, the texts "
                "first",
                list(columns),
            )

    def _check_training(self):
        training, running = self.training, self.data.is_running
        if (training.length is not None) != running:
            refuse("[training] length", "running text, which needs it", training.length)
        reads = self.task not in ("causal_lm", "masked_lm")
        embeds = self.task == "sentence_embedder"
        for key, value, fits, expected in (
            ("steps", training.steps, running, "running text"),
            ("score_range", training.score_range, embeds, "an embedder"),
            ("word_dropout", training.word_dropout, reads, "a task that reads texts"),
            (
                "consistency",
                training.consistency,
                self.task not in NUMBERS and not running,
                "examples with ids or classes as targets",
            ),
            (
                "teacher",
                training.teacher,
                self.task == "text_classifier" and len(self._columns) == 2,
                "a classifier of single texts",
            ),
            ("score_validation", training.score_validation, not running, "examples"),
            (
                "embeddings",
                training.embeddings,
                self.architecture == "encoder",
                "a task with an encoder alone",
            ),
        ):
            if value and not fits:
                refuse(f"[training] {key}", f"{expected}, to be given", value)
        if training.score_range is not None and training.label_smoothing:
            both = "[training] score_range, label_smoothing"
            refuse(both, "one of the two: there is no cross-entropy", "both")
        if self.data.format in ("running", "tagged"):
            for key in ("replace", "last_words"):
                if getattr(self.data, key):
                    refuse(f"[data] {key}", "a format of texts", self.data.format)
        needs = training.score_validation or (training.best or "").startswith("val_")
        if needs and "validation" not in self.data.tests:
            refuse("[data] validation", "some, to choose by", "none")
        if training.teacher and self.tokenizer.splits > 1:
            refuse("[training] teacher, [tokenizer] splits", "one of the two", "both")

    def _check_evaluation(self):
        main = self.evaluation.main
        if main and main[0] not in self.data.tests:
            refuse(
                "[evaluation] main", f"a test set of {self.data.tests}", repr(main[0])
            )
        measures = {*self.evaluation.measures, *(main or ())[1:]}
        if not measures <= {*MEASURES[self.task]}:
            refuse(
                "[evaluation] measures, main",
                f"measures of {list(MEASURES[self.task])} for task {self.task!r}",
                sorted(measures - {*MEASURES[self.task]}),
            )
        known = list(_OPTIONS.get(self.task, ("batch_size",)))
        known += ["stride"] if self.data.is_running and self.task == "causal_lm" else []
        others = self.evaluation.options.keys() - {*known}
        if others:
            refuse("[evaluation.options]", f"some of {sorted(known)}", sorted(others))
        options = dict(self.evaluation.options)
        options.pop("jit_compile", None)
        rows = options.pop("batch_size", 1)
        if not is_integer(rows) or rows < 1:
            refuse("[evaluation.options] batch_size", "1 or more", repr(rows))
        stride = options.pop("stride", 1)
        length = self.training.length
        if not is_integer(stride) or not 1 <= stride <= (length or 1):
            expected = f"a number in [1, {length}], the length of a window"
            refuse("[evaluation.options] stride", expected, repr(stride))
        try:
            SearchOptions(**options)
        except ValueError as error:
            raise RecipeError(f"[evaluation.options] {error}") from error

    def _check_model(self):
        tokenizer, training = self.tokenizer, self.training
        own = [k for k in ("kind", "folder") if getattr(tokenizer, k) is not None]
        if (self.model.preset is None) != bool(own):
            refuse(
                "[tokenizer] kind, folder",
                "one of them, or a [model] preset, which has its own",
                "both" if own else "neither",
            )
        if self.model.preset is not None:
            if training.embeddings:
                refuse("[training] embeddings", "no preset, which has its own", "both")
            return
        config = self.model_config(tokenizer.vocabulary_size or 1000)
        stack = config.decoder or config.encoder
        limit = stack.max_sequence_length
        if stack.positions == "learned" and (training.length or 0) > limit:
            refuse(
                "[training] length",
                f"no more than the learned positions, max_sequence_length={limit}",
                training.length,
            )

    @property
    def _columns(self):
        """Numbers or names of the columns that are read, or `None`."""
        default = (0, 1) if self.data.format == "columns" else None
        return self.data.columns or default

    @property
    def architecture(self):
        """Of the config: which stacks the task has."""
        return _ARCHITECTURES.get(self.task, "encoder")

    def model_config(self, vocabulary_size):
        """The `ModelConfig` for so many tokens.

        Raises:
            RecipeError: a field that there is not, or another architecture.
        """
        config = self.model.model_config(self.architecture, vocabulary_size)
        if config.architecture != self.architecture:
            refuse(
                "[model] config",
                f"architecture {self.architecture} for task {self.task!r}",
                config.architecture,
            )
        return config

    @classmethod
    def from_dict(cls, values):
        """The recipe of nested dicts, as TOML gives them.

        Raises:
            RecipeError: an unknown key, a wrong type or a contradiction, with the key.
        """
        return from_table(cls, values, "")

    @classmethod
    def load(cls, path):
        """The recipe of a TOML file.

        Raises:
            FileNotFoundError: there is none.
            RecipeError: not TOML, or no recipe; the file and the key are named.
        """
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
            return cls.from_dict(tomllib.loads(text))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RecipeError(f"{path} is not TOML: {error}.") from error
        except RecipeError as error:
            raise RecipeError(f"{path}: {error}") from error

    def to_dict(self):
        """Nested dicts of what is not a default; `from_dict` gives an equal recipe."""
        return to_table(self)

    def save(self, path):
        """Writes the recipe as TOML, beside and then there."""
        write_text(Path(path), tomli_w.dumps(self.to_dict()))


def shipped():
    """Name to path of the recipes that kzoo brings along, sorted by name."""
    paths = sorted(SHIPPED.glob(f"*/{RECIPE}"))
    return {path.parent.name: path for path in paths}
