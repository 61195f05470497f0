"""`kzoo train`."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from kzoo.cli.console import (
    INTERRUPTED,
    Failure,
    file_size,
    help_text,
    load_keras,
    note,
    one_line_errors,
    out,
    progress,
)

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

_MODEL, _RUN = "Model", "Training"
_DATA = "Data"

TokenizerKind = Literal["unigram", "bpe", "sentencepiece-bpe", "wordpiece", "character"]
_KINDS = ("unigram", "bpe", "sentencepiece-bpe", "wordpiece", "character")

# Settings that a training may be continued with a new value of.
_MAY_CHANGE = ("epochs", "average")


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
            help=f"{', '.join(_KINDS)}, learned from DATA; or a folder with one.",
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
    _check(options)
    with progress("Reading the data"):
        train_examples, held_out = _read(options)
    settings = _settings(options, train_examples, held_out)
    _begin_or_resume(out_path, settings)

    keras = load_keras()
    keras.utils.set_random_seed(seed)
    keras.config.set_dtype_policy(precision)
    with progress("Learning the tokenizer"):
        learned = _tokenizer(options, train_examples)
    model = _model(options, learned)
    _compile(model, options)
    counted = f"{len(train_examples)} training and {len(held_out or ())} validation "
    counted += "texts" if running else "examples"
    note(
        f"{counted}, {learned.vocabulary_size} tokens, "
        f"{model.count_params():,} parameters"
    )
    rows = _fit(model, train_examples, held_out, options)
    _finish(model, rows, out_path)


def _check(options):
    """What can be refused before anything is read."""
    size, kind = options["size"], options["tokenizer"]
    from kzoo.config import SIZES, load_config

    if size not in SIZES:
        if not Path(size).is_file():
            raise Failure(
                f"--size: expected one of {', '.join(SIZES)}, or a JSON file of a "
                f"config. Received: {size!r}, which is no file."
            )
        config = load_config(size)
        expected = _architecture(options["task"])
        if config.architecture != expected:
            raise Failure(
                f"--task {options['task']} needs a config of architecture {expected}. "
                f"Received: {size}, {config.architecture}."
            )
    if kind and kind not in _KINDS and not Path(kind).is_dir():
        raise Failure(
            f"--tokenizer: expected one of {', '.join(_KINDS)}, or a folder that holds "
            f"a tokenizer. Received: {kind!r}."
        )
    given = [
        f"--{name.replace('_', '-')}"
        for name in ("validation", "validation_split", "validation_share")
        if options[name] not in (None, [])
    ]
    if len(given) > 1:
        raise Failure(f"Give one of {' and '.join(given)}, not both.")
    if options["running"] and options["task"] != "language-model":
        raise Failure("--running is for --task language-model. Received: translation.")
    if options["learning_rate"] is not None and not options["learning_rate"] > 0:
        raise Failure(
            f"--learning-rate must be positive. Received: {options['learning_rate']}."
        )
    out_path = options["out_path"]
    if out_path.exists() and not out_path.is_dir():
        raise Failure(f"--out {out_path} is a file. Give a new folder.")
    if out_path.is_dir() and any(out_path.iterdir()):
        if not _settings_path(out_path).is_file():
            raise Failure(
                f"--out {out_path} is not empty and has no training to go on with. "
                "Give a new folder."
            )


def _architecture(task):
    return "encoder_decoder" if task == "translation" else "decoder"


def _read(options):
    """Training examples, and validation examples or `None`."""
    from kzoo.cli import examples

    columns = examples.parse_columns(options["columns"])
    running, seed = options["running"], options["seed"]

    def read(sources, split):
        if options["task"] == "translation":
            return examples.read_pairs(sources, columns, split)
        return examples.read_texts(sources, columns, split, running)

    data = read(options["data"], options["split"])
    if options["validation"]:
        return data, read(options["validation"], options["split"])
    if options["validation_split"]:
        return data, read(options["data"], options["validation_split"])
    share = options["validation_share"]
    share = 0.05 if share is None else share
    if running:
        begin, end = examples.hold_out_end(data[0], share)
        return [begin], end and [end]
    return examples.hold_out(data, share, seed)


def _settings(options, train_examples, held_out):
    """What decides the weights; a training goes on with the same only."""
    from kzoo.cli.examples import fingerprint

    settings = {
        name: value
        for name, value in options.items()
        if name not in ("out_path", "validation", "data")
    }
    if Path(options["size"]).is_file():
        settings["size"] = json.loads(Path(options["size"]).read_text(encoding="utf-8"))
    # The texts themselves, so that a file may move but not change.
    settings["data"] = fingerprint(train_examples, held_out)
    return settings


def _settings_path(out_path):
    return out_path / "training" / "settings.json"


def _begin_or_resume(out_path, settings):
    """Writes the settings, or compares them with those of the training before."""
    path = _settings_path(out_path)
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        changed = [
            "the texts of DATA or of the validation"
            if name == "data"
            else f"--{name.replace('_', '-')} was {before.get(name)}, now {value}"
            for name, value in settings.items()
            if name not in _MAY_CHANGE and before.get(name) != value
        ]
        if changed:
            raise Failure(
                f"{out_path} has a training with other settings: {'; '.join(changed)}. "
                "Run it with the same settings to go on, or give another --out."
            )
        note(f"Going on with the training in {out_path}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def _tokenizer(options, train_examples):
    """The given tokenizer, that of the training before, or a new one."""
    import shutil

    from kzoo.tokenizers import (
        FastTokenizer,
        SentencePieceTokenizer,
        load_tokenizer,
    )

    kind = options["tokenizer"] or ("bpe" if options["running"] else "unigram")
    if kind not in _KINDS:
        return load_tokenizer(kind)
    folder = options["out_path"] / "training" / "tokenizer"
    if folder.is_dir():
        return load_tokenizer(folder)
    texts = [
        text
        for example in train_examples
        for text in ((example,) if isinstance(example, str) else example)
    ]
    size = options["vocabulary_size"]
    if kind in ("unigram", "sentencepiece-bpe"):
        algorithm = kind.removeprefix("sentencepiece-")
        tokenizer = SentencePieceTokenizer.train(texts, size, algorithm=algorithm)
    else:
        tokenizer = FastTokenizer.train(texts, size, algorithm=kind)
    partial = folder.with_name("tokenizer.partial")
    shutil.rmtree(partial, ignore_errors=True)
    tokenizer.save(partial)
    partial.rename(folder)
    return tokenizer


def _model(options, tokenizer):
    from kzoo.config import SIZES, ModelConfig, load_config
    from kzoo.tasks import CausalLM, Seq2SeqLM

    size, dropout = options["size"], options["dropout"]
    changes = {} if dropout is None else {"dropout": dropout}
    if size in SIZES:
        config = ModelConfig.from_size(
            size,
            _architecture(options["task"]),
            tokenizer.vocabulary_size,
            **changes,
        )
    else:
        config = load_config(size)
        config = config.replace(
            **{
                name: stack.replace(**changes)
                for name in ("encoder", "decoder")
                if (stack := getattr(config, name))
            }
        )
    kind = Seq2SeqLM if options["task"] == "translation" else CausalLM
    return kind(config, tokenizer=tokenizer)


def _compile(model, options):
    import keras

    from kzoo.training import TokenAccuracy, WarmupInverseSquareRoot

    width = model.config.decoder.hidden_dim
    rate = options["learning_rate"] or (1000 * width) ** -0.5
    model.compile(
        optimizer=keras.optimizers.Adam(
            WarmupInverseSquareRoot.from_peak(rate, options["warmup"]),
            beta_2=0.98,
            epsilon=1e-9,
            global_clipnorm=1.0,
        ),
        label_smoothing=options["label_smoothing"],
        metrics=[TokenAccuracy(ignore_id=model.config.pad_token_id)],
    )


def _fit(model, train_examples, held_out, options):
    """Trains to the last epoch; the history's rows."""
    from kzoo.cli.epochs import EpochLines
    from kzoo.training import CheckpointAverage, ResumableCheckpoint

    folder, epochs = options["out_path"] / "training", options["epochs"]
    history_path = options["out_path"] / "history.json"
    average = options["average"] or max(1, min(5, epochs // 4))
    lines = EpochLines(epochs, history_path)
    # The checkpoint is written last: what it has seen, the others have, too.
    checkpoint = ResumableCheckpoint(folder / "state.npz")
    callbacks = [lines, CheckpointAverage(folder / "epochs", average), checkpoint]
    done = checkpoint.saved_epoch()
    if done > epochs:
        raise Failure(
            f"{options['out_path']} was trained for {done} epochs. Give --epochs "
            f"{done} or more, or another --out. Received: --epochs {epochs}."
        )
    arguments = dict(epochs=epochs, callbacks=callbacks, verbose=0)
    try:
        if options["running"]:
            _fit_running(model, train_examples, held_out, options, done, arguments)
        else:
            sides = None
            if held_out and options["task"] == "translation":
                sides = tuple(zip(*held_out, strict=True))
            elif held_out:
                sides = (held_out, None)
            model.fit(
                train_examples,
                tokens_per_batch=options["tokens_per_batch"],
                validation_data=sides,
                seed=options["seed"],
                **arguments,
            )
    except KeyboardInterrupt:
        done = checkpoint.saved_epoch()
        raise Failure(
            f"Stopped after {done} whole epochs. The same command goes on from there"
            + (f"; with --epochs {done} it makes a model of them." if done else "."),
            INTERRUPTED,
        ) from None
    finally:
        lines.stop()
    return json.loads(history_path.read_text(encoding="utf-8"))


def _fit_running(model, train_examples, held_out, options, done, arguments):
    """Trains on pieces of running text, each after a start token."""
    import keras
    import numpy as np

    from kzoo.data import bucketed_batches, packed_blocks

    length = options["length"]
    learned = model.config.decoder
    if learned.positions == "learned" and length > learned.max_sequence_length:
        raise Failure(
            f"--length {length} is more than the config's max_sequence_length, "
            f"{learned.max_sequence_length}."
        )

    def batches(texts, shuffle):
        ids = model.tokenizer.encode(texts)[0]
        if len(ids) < length:
            raise Failure(
                f"The {'training' if shuffle else 'validation'} text has {len(ids)} "
                f"tokens, fewer than --length {length}. Give more text, a smaller "
                "--length, or --validation-share 0."
            )
        blocks = packed_blocks(ids, length)
        start = np.full((len(blocks), 1), model.config.start_token_id, np.int32)
        return bucketed_batches(
            {"token_ids": np.concatenate([start, blocks], axis=1)},
            batch_size=max(1, options["tokens_per_batch"] // length),
            multiple=1,
            pad_ids=model.config.pad_token_id,
            shuffle=shuffle,
            seed=options["seed"],
        )

    def pipeline(batches, **extent):
        on_tensorflow = keras.backend.backend() == "tensorflow"
        make = batches.to_tf_data if on_tensorflow else batches.to_grain
        return make(
            transform=lambda batch: (
                {"token_ids": batch["token_ids"][:, :-1]},
                batch["token_ids"][:, 1:],
            ),
            **extent,
        )

    data = batches(train_examples, shuffle=True)
    model.fit(
        pipeline(data, start=done * len(data)),
        steps_per_epoch=len(data),
        validation_data=held_out and pipeline(batches(held_out, False), epochs=1),
        initial_epoch=done,
        shuffle=False,
        **arguments,
    )


def _finish(model, rows, out_path):
    from kzoo.plots import training_curve

    model.save_folder(out_path)
    training_curve(rows, title=str(out_path.name)).savefig(out_path / "curve.png")
    last = rows[-1]
    measures = [
        f"{name.replace('_', ' ')} {last[name]:.4f}"
        for name in ("loss", "val_loss", "val_token_accuracy")
        if name in last
    ]
    command = "translate" if type(model).__name__ == "Seq2SeqLM" else "generate"
    out.print(
        f"{out_path}: {last['epoch']} epochs, {', '.join(measures)}; weights "
        f"{file_size(out_path / 'model.safetensors')}, curve {out_path / 'curve.png'}",
        markup=False,
        soft_wrap=True,
    )
    note(f'Try it: kzoo {command} {out_path} "..."')
