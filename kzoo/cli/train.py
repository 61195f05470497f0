"""`kzoo train`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from kzoo.cli import settings
from kzoo.cli.console import help_text, load_keras, note, one_line_errors, progress

HELP = help_text("""
Train a translator or a language model on your texts.

DATA is one of: a tab-separated file; two parallel files, source first; a folder of
files <language>.<split>.txt; a text file, for a language model; tfds:NAME, a data set
of TensorFlow Datasets. Files may be .gz.

The model's folder is --out. Training that was stopped, however, goes on when the same
command is run again; with a larger --epochs it goes on for longer.

[bold]Examples[/bold]

  kzoo train pairs.tsv --out translator
  kzoo train train.en.gz train.de.gz --out en-de --epochs 30 --dropout 0.3
    --validation val.en.gz --validation val.de.gz --vocabulary-size 6000
  kzoo train tfds:ted_hrlr_translate/pt_to_en --out pt-en
    --validation-split validation
  kzoo train sentences.txt --task language-model --out writer
  kzoo train book.txt --task language-model --running --out writer
""")

_DATA, _MODEL, _RUN = "Data", "Model", "Training"  # panels of --help
_TOKENIZERS = ", ".join(settings.TOKENIZERS)


@one_line_errors
def train(
    data: Annotated[
        list[str],
        typer.Argument(metavar="DATA", help="See above.", show_default=False),
    ],
    out_path: Annotated[
        Path,
        typer.Option("--out", "-o", help="The model's folder.", show_default=False),
    ],
    task: Annotated[
        Literal["translation", "language-model"],
        typer.Option(metavar="TASK", help="translation, or language-model."),
    ] = "translation",
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Which columns (0,1), languages (en,de) or features of DATA, source "
            "first.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    split: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Of a folder or a TFDS data set.",
            rich_help_panel=_DATA,
        ),
    ] = "train",
    validation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DATA",
            help="Data as DATA; twice for two parallel files.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    validation_split: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Instead: a split of the same folder or data set.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    validation_share: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Instead: a share of DATA that is held out; 0 for none.",
            min=0.0,
            max=0.5,
            show_default="0.05, at most 2000 examples",
            rich_help_panel=_DATA,
        ),
    ] = None,
    running: Annotated[
        bool,
        typer.Option(
            "--running",
            help="The file is one running text, cut into pieces of --length tokens.",
            rich_help_panel=_DATA,
        ),
    ] = False,
    length: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Tokens a piece of --running.",
            min=2,
            rich_help_panel=_DATA,
        ),
    ] = 256,
    size: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="tiny, mini, small, base or big; or a kzoo.ModelConfig in JSON.",
            rich_help_panel=_MODEL,
        ),
    ] = "mini",
    tokenizer: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help=f"{_TOKENIZERS}, learned from DATA; or a folder with one.",
            show_default="unigram; bpe for --running",
            rich_help_panel=_MODEL,
        ),
    ] = "",
    vocabulary_size: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="The most tokens of the tokenizer.",
            min=5,
            rich_help_panel=_MODEL,
        ),
    ] = 8000,
    dropout: Annotated[
        float | None,
        typer.Option(
            metavar="RATE",
            help="Share of units.",
            min=0.0,
            max=0.99,
            show_default="0.1, or the file's",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    precision: Annotated[
        Literal["float32", "mixed_bfloat16", "mixed_float16"],
        typer.Option(
            metavar="TYPE",
            help="float32, mixed_bfloat16 or mixed_float16; weights are float32.",
            rich_help_panel=_MODEL,
        ),
    ] = "float32",
    epochs: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Passes over DATA.", rich_help_panel=_RUN
        ),
    ] = 20,
    tokens_per_batch: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Target tokens of a batch, padding counted.",
            rich_help_panel=_RUN,
        ),
    ] = 4096,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            metavar="RATE",
            help="The largest, after the warm-up; then it falls as 1/sqrt(step).",
            show_default="(1000 * width) ** -0.5",
            rich_help_panel=_RUN,
        ),
    ] = None,
    warmup: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Steps of the warm-up.", rich_help_panel=_RUN
        ),
    ] = 1000,
    label_smoothing: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            min=0.0,
            max=0.99,
            help="Of the loss.",
            rich_help_panel=_RUN,
        ),
    ] = 0.1,
    average: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="The model is the mean of its last N epochs.",
            show_default="a quarter of --epochs, at most 5",
            rich_help_panel=_RUN,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=2**32 - 1,
            help="Of weights, order and dropout.",
            rich_help_panel=_RUN,
        ),
    ] = 0,
):
    """Runs the command."""
    options = dict(locals())
    settings.check(options)
    from kzoo.cli import examples

    with progress("Reading the data"):
        train_examples, held_out = examples.read(options)
    settings.begin_or_resume(out_path, settings.of(options, train_examples, held_out))

    keras = load_keras()
    from kzoo.cli import training

    keras.utils.set_random_seed(seed)
    keras.config.set_dtype_policy(precision)
    with progress("Learning the tokenizer"):
        learned = training.tokenizer(options, train_examples)
    model = training.model(options, learned)
    counted = f"{len(train_examples)} training and {len(held_out or ())} validation "
    counted += "texts" if running else "examples"
    note(
        f"{counted}, {learned.vocabulary_size} tokens, "
        f"{model.count_params():,} parameters"
    )
    rows = training.fit(model, train_examples, held_out, options)
    training.finish(model, rows, out_path)
