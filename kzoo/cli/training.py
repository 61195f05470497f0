"""What `kzoo train` does with the data: a tokenizer, a model, its weights, a folder.

Imports Keras, so the command imports this module when it runs.
"""

import json
import shutil

import numpy as np

from kzoo.cli import settings
from kzoo.cli.console import INTERRUPTED, Failure, file_size, note, out
from kzoo.cli.epochs import EpochLines
from kzoo.config import SIZES, ModelConfig, load_config
from kzoo.data import bucketed_batches, packed_blocks
from kzoo.plots import training_curve
from kzoo.tasks import CausalLM, Seq2SeqLM
from kzoo.tokenizers import FastTokenizer, SentencePieceTokenizer, load_tokenizer
from kzoo.training import (
    Adam,
    CheckpointAverage,
    ResumableCheckpoint,
    TokenAccuracy,
    WarmupInverseSquareRoot,
)


def tokenizer(options, train_examples):
    """The given tokenizer, that of the training before, or a new one."""
    kind = options["tokenizer"] or ("bpe" if options["running"] else "unigram")
    if kind not in settings.TOKENIZERS:
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
        learned = SentencePieceTokenizer.train(texts, size, algorithm=algorithm)
    else:
        learned = FastTokenizer.train(texts, size, algorithm=kind)
    partial = folder.with_name("tokenizer.partial")
    shutil.rmtree(partial, ignore_errors=True)
    learned.save(partial)
    partial.rename(folder)
    return learned


def model(options, tokenizer):
    """A new model, compiled."""
    size, dropout = options["size"], options["dropout"]
    changes = {} if dropout is None else {"dropout": dropout}
    if size in SIZES:
        config = ModelConfig.from_size(
            size,
            settings.architecture(options["task"]),
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
    task = kind(config, tokenizer=tokenizer)
    rate = options["learning_rate"] or (1000 * config.decoder.hidden_dim) ** -0.5
    task.compile(
        optimizer=Adam(
            WarmupInverseSquareRoot.from_peak(rate, options["warmup"]),
            beta_2=0.98,
            epsilon=1e-9,
            global_clipnorm=1.0,
        ),
        label_smoothing=options["label_smoothing"],
        metrics=[TokenAccuracy(ignore_id=task.config.pad_token_id)],
    )
    return task


def fit(task, train_examples, held_out, options):
    """Trains to the last epoch; gives the history's rows, dicts."""
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
            _fit_running(task, train_examples, held_out, options, done, arguments)
        else:
            sides = None
            if held_out and options["task"] == "translation":
                sides = tuple(zip(*held_out, strict=True))
            elif held_out:
                sides = (held_out, None)
            task.fit(
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


def _fit_running(task, train_examples, held_out, options, done, arguments):
    """Trains on pieces of running text, each after a start token."""
    length = options["length"]
    learned = task.config.decoder
    if learned.positions == "learned" and length > learned.max_sequence_length:
        raise Failure(
            f"--length {length} is more than the config's max_sequence_length, "
            f"{learned.max_sequence_length}."
        )

    def batches(texts, shuffle):
        ids = task.tokenizer.encode(texts)[0]
        if len(ids) < length:
            raise Failure(
                f"The {'training' if shuffle else 'validation'} text has {len(ids)} "
                f"tokens, fewer than --length {length}. Give more text, a smaller "
                "--length, or --validation-share 0."
            )
        blocks = packed_blocks(ids, length)
        start = np.full((len(blocks), 1), task.config.start_token_id, np.int32)
        return bucketed_batches(
            {"token_ids": np.concatenate([start, blocks], axis=1)},
            batch_size=max(1, options["tokens_per_batch"] // length),
            multiple=1,
            pad_ids=task.config.pad_token_id,
            shuffle=shuffle,
            seed=options["seed"],
        )

    data = batches(train_examples, shuffle=True)
    validation = held_out and batches(held_out, shuffle=False)
    task.fit(
        task.pipeline(data, start=done * len(data)),
        steps_per_epoch=len(data),
        validation_data=validation and task.pipeline(validation, epochs=1),
        initial_epoch=done,
        shuffle=False,
        **arguments,
    )


def finish(task, rows, out_path):
    """Writes the folder and says what it is."""
    task.save_folder(out_path)
    training_curve(rows, title=str(out_path.name)).savefig(out_path / "curve.png")
    last = rows[-1]
    measures = [
        f"{name.replace('_', ' ')} {last[name]:.4f}"
        for name in ("loss", "val_loss", "val_token_accuracy")
        if name in last
    ]
    command = "translate" if type(task).__name__ == "Seq2SeqLM" else "generate"
    out.print(
        f"{out_path}: {last['epoch']} epochs, {', '.join(measures)}; weights "
        f"{file_size(out_path / 'model.safetensors')}, curve {out_path / 'curve.png'}",
        markup=False,
        soft_wrap=True,
    )
    note(f'Try it: kzoo {command} {out_path} "..."')
