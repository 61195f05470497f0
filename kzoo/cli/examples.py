"""The data arguments of `kzoo train`: what they name, read and held out."""

import hashlib
from pathlib import Path

from kzoo.cli.console import Failure
from kzoo.data import DataError, load_pairs, load_texts, split_examples

# Enough to see whether a training generalises.
_MOST_HELD_OUT = 2000


def read(options):
    """Reads what the options of `kzoo train` name.

    Returns:
        list of training examples, and one of validation examples or `None`.
    """
    columns = parse_columns(options["columns"])
    running, seed = options["running"], options["seed"]

    def load(sources, split):
        if options["task"] == "translation":
            return read_pairs(sources, columns, split)
        return read_texts(sources, columns, split, running)

    data = load(options["data"], options["split"])
    if options["validation"]:
        return data, load(options["validation"], options["split"])
    if options["validation_split"]:
        return data, load(options["data"], options["validation_split"])
    share = options["validation_share"]
    share = 0.05 if share is None else share
    if running:
        begin, end = hold_out_end(data[0], share)
        return [begin], end and [end]
    return hold_out(data, share, seed)


def parse_columns(columns):
    """`"0,1"` to (0, 1), `"en,de"` to ("en", "de"), `None` to `None`."""
    if columns is None:
        return None
    parts = [part.strip() for part in columns.split(",")]
    if not all(parts):
        raise Failure(
            "--columns: expected numbers from 0 or names, such as 0,1 or en,de. "
            f"Received: {columns!r}."
        )
    return tuple(int(part) if part.isdigit() else part for part in parts)


def read_pairs(sources, columns, split):
    """Pairs of texts of one data argument, or of two parallel files."""
    if len(sources) > 2:
        raise Failure(
            "Expected one data set or file, or two parallel files. "
            f"Received: {len(sources)}: {', '.join(sources)}."
        )
    if len(sources) == 2:
        return load_pairs(tuple(sources), columns=columns)
    return _with_hint(sources[0], load_pairs, columns=columns, split=split)


def read_texts(sources, columns, split, running):
    """Texts of one data argument."""
    if len(sources) != 1:
        raise Failure(
            "A language model learns from one file or data set. "
            f"Received: {len(sources)}: {', '.join(sources)}."
        )
    if columns is not None and len(columns) != 1:
        raise Failure(
            "--columns: a language model reads one column. "
            f"Received: {','.join(map(str, columns))}."
        )
    column = columns[0] if columns else None
    return _with_hint(sources[0], load_texts, column=column, split=split, whole=running)


def _with_hint(source, load, **options):
    try:
        return load(source, **options)
    except DataError as error:
        path = Path(source)
        if source.startswith("tfds:") or path.exists() or path.suffix:
            raise
        raise Failure(
            f"{error} For a data set of TensorFlow Datasets write tfds:{source}."
        ) from error


def hold_out(examples, share, seed):
    """(training, validation) examples; a share of 0 holds out nothing."""
    if not share:
        return examples, None
    share = min(share, _MOST_HELD_OUT / len(examples))
    parts = split_examples(examples, validation=share, test=0.0, seed=seed)
    if not parts["train"] or not parts["validation"]:
        raise Failure(
            f"{len(examples)} examples are too few to hold out {share:.0%} of them. "
            "Give --validation FILE, or --validation-share 0 for none."
        )
    return parts["train"], parts["validation"]


def hold_out_end(text, share):
    """Splits running text near its end, between two lines where there are lines."""
    if not share:
        return text, None
    cut = int(len(text) * (1 - share))
    cut = text.rfind("\n", 0, cut) + 1 or cut
    return text[:cut], text[cut:]


def fingerprint(*examples):
    """A short digest of all texts, to notice that data changed."""
    digest = hashlib.blake2b(digest_size=8)
    for part in examples:
        for example in part or ():
            for text in (example,) if isinstance(example, str) else example:
                digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
        digest.update(b"\1")
    return digest.hexdigest()
