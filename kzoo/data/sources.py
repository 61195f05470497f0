r"""Texts and pairs of texts from files, folders and TensorFlow Datasets.

Everything is read strictly: what cannot be right, such as two files of different
length or an empty line, is a `DataError` that names the file and the line. Lines are
split at "\n" only, because `str.splitlines` also splits at characters that stand
inside sentences of real corpora (U+0085, U+2028, form feed) and so shifts two
parallel files against each other.
"""

import errno
import gzip
import itertools
import numbers
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from kzoo.arguments import check_count
from kzoo.data.errors import DataError
from kzoo.data.tfds import is_tfds, load_tfds

_GZIP_MAGIC = b"\x1f\x8b"


def load_pairs(
    source: str | Path | Sequence[str | Path],
    *,
    columns: Sequence[int] | Sequence[str] | None = None,
    split: str = "train",
    extra_columns: bool = False,
) -> list[tuple[str, str]]:
    """Pairs of texts: source and target sentence, or text and label.

    What `source` may be, and what `columns` then are:

    - `"pairs.tsv"`, a tab-separated file without header or quoting: two column numbers
      from 0; left out, the first two.
    - `("train.en", "train.de")`, two files whose lines n are a pair: none.
    - a folder of files `<language>.<split>.txt`, the layout of `tfds.TranslateFolder`:
      two languages.
    - `"tfds:name"`, a data set of TensorFlow Datasets: two features; left out, the
      data set's supervised keys.

    Every file may be gzip. White space at the ends of a text is dropped.

    Args:
        source: as above.
        columns: which two, source first, as above.
        split: of a folder or a TFDS data set; TFDS's slices, as in `"train[:10%]"`,
            are understood for the latter. Files have none.
        extra_columns: the rows of a tab-separated file may have different numbers of
            columns. Without it a row unlike the first is an error, since a tab inside
            a text shifts the columns after it.

    Returns:
        list of (source, target); numbers, such as TFDS labels, are written out.

    Raises:
        DataError: a missing file, different numbers of lines, an empty text, a wrong
            number of columns, bytes that are not UTF-8, a data set that is not there.
        ImportError: `tensorflow_datasets` or TensorFlow is not installed.
        ValueError: `columns` or `split` do not fit the kind of source.
    """
    if not isinstance(source, (str, os.PathLike)):
        check_no_split(source, split)
        return _read_parallel(source, columns)
    if not is_tfds(source) and os.path.isdir(source):
        languages = _check_columns(columns, str, "languages, as in ('en', 'de')")
        return _read_folder(Path(source), languages, split)
    return load_rows(source, columns=columns, split=split, extra_columns=extra_columns)


def load_rows(
    source: str | Path,
    *,
    columns: Sequence[int] | Sequence[str] | None = None,
    split: str = "train",
    extra_columns: bool = False,
    count: int = 2,
) -> list[tuple[str, ...]]:
    """Columns of a tab-separated file, or features of a TFDS data set; any number.

    Args:
        source: a file or `"tfds:name"`, as in `load_pairs`; so for the next three.
        columns: numbers from 0, or names of features, in the order of the result.
        split: of a TFDS data set.
        extra_columns: rows may have different numbers of columns.
        count: how many `columns` there have to be.

    Returns:
        list of tuples of str.

    Raises:
        DataError: as in `load_pairs`.
        ImportError: as in `load_pairs`.
        ValueError: `columns` or `split` do not fit the kind of source.
    """
    check_count("count", count)
    if is_tfds(source):
        keys = _check_columns(columns, str, "feature names of the data set", count)
        return load_tfds(source, split, keys)
    check_no_split(source, split)
    chosen = _check_columns(columns, numbers.Integral, "column numbers from 0", count)
    return _read_columns(Path(source), chosen or tuple(range(count)), extra_columns)


def load_texts(
    source: str | Path,
    *,
    column: int | str | None = None,
    split: str = "train",
    whole: bool = False,
    extra_columns: bool = False,
) -> list[str]:
    r"""Texts: the lines of a file, a column of one, or a feature of a TFDS data set.

    Args:
        source: a file, which may be gzip, or `"tfds:name"`.
        column: a number from 0 for a tab-separated file; a feature's name for TFDS,
            where `"text"` is taken when it is left out.
        split: of a TFDS data set.
        whole: the file is one text, with its white space and empty lines, as running
            text for a language model is. Rows of a TFDS data set are joined by "\n".
        extra_columns: as in `load_pairs`.

    Returns:
        list of texts; with `whole=True` of one.

    Raises:
        DataError: as in `load_pairs`.
        ImportError: as in `load_pairs`.
        ValueError: options that exclude one another, or do not fit the source.
    """
    if is_tfds(source):
        if not (column is None or isinstance(column, str)):
            raise ValueError(
                "For a TFDS data set column is a feature's name. "
                f"Received: column={column!r}."
            )
        rows = load_tfds(source, split, (column or "text",))
        texts = [text for (text,) in rows]
        return ["\n".join(texts)] if whole else texts
    path = Path(source)
    if os.path.isdir(path):
        raise DataError(
            f"{path} is a folder; load_texts reads a file. For a folder of "
            "<language>.<split>.txt files use load_pairs."
        )
    check_no_split(path, split)
    if whole and column is not None:
        raise ValueError(
            "whole=True reads the file as one text and excludes column. "
            f"Received: column={column!r}."
        )
    if whole:
        text = _read_text(path)
        if not text.strip():
            raise DataError(f"{path} is empty.")
        return [text]
    if column is not None:
        check_count("column", column, 0)
        return [text for (text,) in _read_columns(path, (column,), extra_columns)]
    return _read_lines(path, "Running text is read with whole=True.")


def load_tagged(
    source: str | Path, *, columns: tuple[int, int] = (0, 1)
) -> list[tuple[list[str], list[str]]]:
    """Sentences whose words have labels: a word a line, as CoNLL files have them.

    A line holds tab-separated columns, an empty line ends a sentence, and lines that
    begin with "# " are comments; a word "#" is followed by a tab. In CoNLL-U, which has
    ten columns, words in 1 and their parts of speech in 3, lines of word ranges ("3-4")
    and of empty nodes ("5.1") are left out.

    Args:
        source: a file, which may be gzip.
        columns: numbers from 0 of the word and its label.

    Returns:
        list of (words, labels).

    Raises:
        DataError: a missing file, too few columns, an empty word or label, a carriage
            return inside a line or a byte order mark before it, or no word at all.
        ValueError: `columns` are not two numbers.
    """
    columns = _check_columns(
        () if columns is None else columns, numbers.Integral, "column numbers from 0"
    )
    word_column, label_column = columns
    path = Path(source)
    sentences, words, labels = [], [], []
    lines = lines_of(_read_text(path), path)
    for number, line in enumerate(itertools.chain(lines, [""]), 1):
        if line.startswith("# ") or line == "#":
            continue
        if not line.strip():
            if words:
                sentences.append((words, labels))
            words, labels = [], []
            continue
        fields = line.split("\t")
        is_token = not re.fullmatch(r"\d+[-.]\d+", fields[0])
        if len(fields) == 10 and word_column and not is_token:
            continue  # CoNLL-U's ranges and empty nodes
        if len(fields) <= max(columns):
            raise DataError(
                f"{path}, line {number}: expected at least {max(columns) + 1} "
                f"tab-separated columns. Received: {len(fields)}."
            )
        word, label = fields[word_column].strip(), fields[label_column].strip()
        if not word or not label:
            raise DataError(
                f"{path}, line {number}: expected a word and a label. Received: "
                f"{word!r} and {label!r}."
            )
        words.append(word)
        labels.append(label)
    if not sentences:
        raise DataError(f"{path} has no words.")
    return sentences


def _check_columns(columns, kind, meaning, count=2):
    if columns is None:
        return None
    single = isinstance(columns, str) or not isinstance(columns, Iterable)
    columns = (columns,) if single else tuple(columns)
    fits = len(columns) == count and all(
        isinstance(column, kind) and not isinstance(column, bool) for column in columns
    )
    if not fits or (kind is numbers.Integral and min(columns) < 0):
        number = {1: "one", 2: "two"}.get(count, count)
        raise ValueError(f"columns must be {number} {meaning}. Received: {columns}.")
    return columns


def _read_parallel(paths, columns):
    given = list(paths) if isinstance(paths, Iterable) else [paths]
    if len(given) != 2 or isinstance(paths, bytes):
        raise ValueError(
            f"Expected one source or two parallel files. Received: {paths!r:.80}."
        )
    paths = [Path(path) for path in given]
    if columns is not None:
        raise ValueError(
            "columns has no meaning for two parallel files: the first is the source. "
            f"Received: columns={columns}."
        )
    sources, targets = texts = [_read_lines(path) for path in paths]
    for path, lines in zip(paths, texts, strict=True):
        is_table = path.name.lower().removesuffix(".gz").endswith(".tsv")
        if is_table and any("\t" in line for line in lines):
            raise ValueError(
                "Two files are parallel, a source or a target a line, and a .tsv with "
                f"tabs is a table of both. Give one. Received: {path} as one of two."
            )
    if len(sources) != len(targets):
        raise DataError(
            f"{paths[0]} has {len(sources)} lines and {paths[1]} has {len(targets)}: "
            f"line {min(len(sources), len(targets)) + 1} has no partner, and all "
            "before it may be shifted. Parallel files need the same number of lines."
        )
    return list(zip(sources, targets, strict=True))


def check_no_split(source, split):
    """Raises `ValueError` where a part is asked of files, which are read whole."""
    if split != "train":
        raise ValueError(
            "split is of a TFDS data set, or in load_pairs of a folder of "
            "<language>.<split>.txt files; other files are read whole. Received: "
            f"split={split!r} for {source}."
        )


def _read_folder(folder, languages, split):
    """`<language>.<split>.txt`, read by the rules here and without TensorFlow.

    `tfds.TranslateFolder` itself splits lines with `str.splitlines` and stops at any
    other file in the folder, such as a README.
    """
    found = {}
    for path in sorted(folder.iterdir()):
        parts = path.name.removesuffix(".gz").split(".")
        if len(parts) == 3 and parts[2] == "txt":
            if tuple(parts[:2]) in found:
                raise DataError(
                    f"{folder} has both {path.name.removesuffix('.gz')} and "
                    f"{path.name}. Remove one of them."
                )
            found[parts[0], parts[1]] = path
    if not found:
        raise DataError(
            f"{folder} has no files named <language>.<split>.txt, such as en.train.txt."
        )
    names = sorted({language for language, _ in found})
    if languages is None:
        raise ValueError(
            f"columns must be two languages of {folder}, source first; it has {names}."
        )
    for language in languages:
        if (language, split) not in found:
            raise DataError(
                f"{folder / f'{language}.{split}.txt'} does not exist. The folder has "
                f"{sorted(path.name for path in found.values())}."
            )
    return _read_parallel([found[language, split] for language in languages], None)


def _read_columns(path, columns, extra_columns):
    rows = []
    count = None
    needed = max(columns) + 1
    for number, line in enumerate(_read_lines(path, strip=False), 1):
        fields = line.split("\t")
        count = count or len(fields)
        if len(fields) < needed:
            raise DataError(
                f"{path}, line {number}: expected at least {needed} tab-separated "
                f"columns. Received: {len(fields)}."
            )
        if len(fields) != count and not extra_columns:
            raise DataError(
                f"{path}, line {number}: expected {count} tab-separated columns as in "
                f"line 1. Received: {len(fields)}. If columns may be missing at the "
                "end, say extra_columns, in Python or in the [data] of a recipe."
            )
        row = tuple(fields[column].strip() for column in columns)
        for column, text in zip(columns, row, strict=True):
            if not text:
                raise DataError(f"{path}, line {number}: column {column} is empty.")
        rows.append(row)
    return rows


def _read_lines(path, hint="", strip=True):
    """The lines of a file, none of them empty."""
    text = _read_text(path)
    if not text.strip():
        raise DataError(f"{path} is empty.")
    lines = []
    for number, line in enumerate(lines_of(text, path, strip), 1):
        if not line or line.isspace():
            raise DataError(f"{path}, line {number} is empty. {hint}".rstrip())
        lines.append(line)
    return lines


def lines_of(text, where, strip=False):
    """Yields the lines of a text, without what ends them.

    Args:
        text: the text.
        where: it comes from, for errors.
        strip: whether white space around a line goes, too.

    Raises:
        DataError: a line holds the end or the beginning of another.
    """
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        line = line.strip() if strip else line.removesuffix("\r")
        _check_line(line, where, number)
        yield line


def _check_line(line, path, number):
    if "\r" in line.strip():
        raise DataError(
            f"{path}, line {number}: expected lines that end at a line feed. "
            "Received: a carriage return inside one. Make it a line feed where a line "
            "ends (tr '\\r' '\\n'), or a space where it is of the text (tr '\\r' ' ')."
        )
    if line.startswith("\ufeff"):  # of the file's first line it is gone
        raise DataError(
            f"{path}, line {number}: expected a byte order mark at most at the "
            "beginning of the file. Received: one before this line, as files that are "
            "joined have it. Remove it, as sed 's/^\\xef\\xbb\\xbf//' does."
        )


def _read_text(path):
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist.") from None
    except (OSError, ValueError) as error:  # the latter of a name with a NUL
        why = getattr(error, "strerror", None) or error
        no_name = isinstance(error, ValueError) or error.errno == errno.ENAMETOOLONG
        hint = " Expected the name of a file." if no_name else ""
        raise DataError(f"{str(path)!r} cannot be read: {why}.{hint}") from error
    return decoded(content, path)


def decoded(content, where):
    """The text of a file's bytes, which may be gzip.

    Args:
        content: the bytes.
        where: they come from, for errors.

    Raises:
        DataError: damaged gzip, a NUL, or bytes that are not UTF-8.
    """
    if content.startswith(_GZIP_MAGIC):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{where} is not a whole gzip file: {error}.") from error
    if b"\0" in content:
        line = content.count(b"\n", 0, content.index(b"\0")) + 1
        raise DataError(
            f"{where}, line {line}: expected text. Received: a NUL, as UTF-16 has it, "
            "or what is no text. Convert it to UTF-8."
        )
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{where}, line {line}: byte {content[error.start]:#04x} at offset "
            f"{error.start} is not UTF-8. Convert it to UTF-8."
        ) from error
