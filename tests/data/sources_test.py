"""Claims about readers: what they give, and what they refuse by file and line."""

import gzip
import os
import re
import socket
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from kzoo.data import DataError, load_pairs, load_rows, load_tagged, load_texts

SHARED = Path(__file__).parents[2] / ".." / "shared"
needs_corpora = pytest.mark.skipif(
    not (SHARED / "data").exists(), reason="the corpora are not here"
)
needs_tfds_data = pytest.mark.skipif(
    not (SHARED / "tfds").exists(), reason="the prepared TFDS data sets are not here"
)


def write(path, content):
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.tsv.gz"])
def test_tab_separated_columns_are_chosen_by_number(tmp_path, name):
    path = write(tmp_path / name, "one\teins\tun\ntwo\tzwei\tdeux\n")
    assert load_pairs(path) == [("one", "eins"), ("two", "zwei")]
    assert load_pairs(str(path), columns=(2, 0)) == [("un", "one"), ("deux", "two")]
    assert load_texts(path, column=1) == ["eins", "zwei"]


def test_two_files_are_joined_line_by_line(tmp_path):
    english = write(tmp_path / "a.en.gz", "one\ntwo")
    german = write(tmp_path / "a.de", "eins \r\nzwei\r\n")
    assert load_pairs((english, german)) == [("one", "eins"), ("two", "zwei")]


def test_lines_end_at_line_feeds_only(tmp_path):
    odd = "a\u0085b\u2028c\x0cd\x1ee\ufefff"
    path = write(tmp_path / "texts", f"{odd}\nsecond\n")
    assert load_texts(path) == [odd, "second"]


@pytest.mark.parametrize(
    ("content", "received"),
    [("a\rb\nc\n", "a carriage return ins"), ("a\n\ufeffb\n", "one before this")],
)
def test_a_line_that_holds_another_s_end_or_beginning_is_named(
    tmp_path, content, received
):
    path = write(tmp_path / "texts", content)
    number = 1 + content.startswith("a\n")
    message = f"texts, line {number}: expected .* Received: {received}"
    with pytest.raises(DataError, match=message):
        load_texts(path)
    with pytest.raises(DataError, match=message):
        load_pairs((path, path))
    assert load_texts(path, whole=True) == [content]


def test_a_byte_order_mark_is_no_text(tmp_path):
    path = write(tmp_path / "texts", "\ufeffone\ntwo\n")
    assert load_texts(path) == ["one", "two"]


def test_a_whole_file_is_kept_as_it_is(tmp_path):
    text = "First:\n\n  spaces \r\n"
    assert load_texts(write(tmp_path / "t.gz", text), whole=True) == [text]


def test_a_folder_has_a_file_a_language_and_split(tmp_path):
    write(tmp_path / "en.train.txt", "one\ntwo\n")
    write(tmp_path / "de.train.txt", "eins\nzwei\n")
    write(tmp_path / "en.test.txt", "three\n")
    write(tmp_path / "de.test.txt", "drei\n")
    expected = [("eins", "one"), ("zwei", "two")]
    assert load_pairs(tmp_path, columns=("de", "en")) == expected
    assert load_pairs(tmp_path, columns=("en", "de"), split="test") == [
        ("three", "drei")
    ]
    write(tmp_path / "README.md", "not data")
    assert load_pairs(tmp_path, columns=("de", "en")) == expected
    with pytest.raises(DataError, match=r"fr\.train\.txt does not exist.*de\.test"):
        load_pairs(tmp_path, columns=("en", "fr"))
    with pytest.raises(ValueError, match=r"two languages.*\['de', 'en'\]"):
        load_pairs(tmp_path)


@pytest.mark.tensorflow
def test_a_folder_reads_as_translate_folder_of_tfds_reads_it(tmp_path):
    import tensorflow_datasets as tfds

    write(tmp_path / "en.train.txt", "one\ntwo\n")
    write(tmp_path / "de.train.txt", "eins\nzwei\n")
    builder = tfds.folder_dataset.TranslateFolder(str(tmp_path))
    theirs = [
        (row["en"].decode(), row["de"].decode())
        for row in tfds.as_numpy(builder.as_dataset(split="train"))
    ]
    assert load_pairs(tmp_path, columns=("en", "de")) == theirs


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tb\nc\n", "f.tsv, line 2: expected at least 2 .*Received: 1"),
        ("a\tb\nc\td\te\n", "f.tsv, line 2: expected 2 .*line 1. Received: 3"),
        ("a\tb\n\t\nc\td\n", "f.tsv, line 2 is empty"),
        ("a\tb\nc\t \n", "f.tsv, line 2: column 1 is empty"),
        ("a\tb\n\n", "f.tsv, line 2 is empty"),
        ("", "f.tsv is empty"),
        ("\n", "f.tsv is empty"),
        (b"a\tb\nc\t\xe4\n", "f.tsv, line 2: byte 0xe4 at offset 6 is not UTF-8"),
        ("a\tb\nc\td\n".encode("utf-16-le"), "f.tsv, line 1: .* Received: a NUL"),
        ("a\tb\nc\td\n".encode("utf-16"), "f.tsv, line 1: .* Received: a NUL"),
        ("a\tb\nc\0\td\n", "f.tsv, line 2: expected text. Received: a NUL"),
        (b"\x1f\x8bnot gzip", "f.tsv is not a whole gzip file"),
        (gzip.compress(b"a\tb\n" * 99, mtime=0)[:-9], "f.tsv is not a whole gzip file"),
        ("a\tb\rc\td\r", "f.tsv, line 1: expected lines that end at a line feed"),
        ("a\tb\rc\td\n", "f.tsv, line 1: expected lines that end at a line feed"),
        ("a\tb\r\nc\rd\te\n", "f.tsv, line 2: .* Received: a carriage return ins"),
        ("\ufeffa\tb\n\ufeffc\td\n", "f.tsv, line 2: .*a byte order mark at most"),
    ],
)
def test_a_bad_tab_separated_file_is_named_with_its_line(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        load_pairs(write(tmp_path / "f.tsv", content))


@pytest.mark.parametrize("content", ["a\tb\r\n", "a\tb\r", "a\tb\r\na\tb\r\n"])
def test_a_carriage_return_at_a_line_s_end_is_no_text(tmp_path, content):
    assert set(load_pairs(write(tmp_path / "f.tsv", content))) == {("a", "b")}


def test_a_file_and_its_gzip_side_by_side_are_refused(tmp_path):
    for name in ("en.train.txt", "de.train.txt", "de.train.txt.gz"):
        write(tmp_path / name, "text\n")
    with pytest.raises(DataError, match=r"both de\.train\.txt and de\.train\.txt\.gz"):
        load_pairs(tmp_path, columns=("en", "de"))


def test_ragged_rows_are_read_when_asked_for(tmp_path):
    path = write(tmp_path / "f.tsv", "a\tb\nc\td\te\n")
    assert load_pairs(path, extra_columns=True) == [("a", "b"), ("c", "d")]


def test_files_of_different_length_name_both_and_the_first_lone_line(tmp_path):
    a, b = write(tmp_path / "a", "1\n2\n3\n"), write(tmp_path / "b", "1\n2\n")
    with pytest.raises(DataError, match="a has 3 lines and .*b has 2: line 3 has no"):
        load_pairs((a, b))


def test_an_empty_line_and_a_missing_file_are_named(tmp_path):
    path = write(tmp_path / "texts", "one\n  \ntwo\n")
    with pytest.raises(DataError, match="texts, line 2 is empty.*whole=True"):
        load_texts(path)
    for read in (load_pairs, load_texts):
        with pytest.raises(DataError, match="absent.txt does not exist"):
            read(tmp_path / "absent.txt")
    with pytest.raises(DataError, match="is a folder"):
        load_texts(tmp_path)
    with pytest.raises(DataError, match="no files named"):
        load_pairs(tmp_path, columns=("en", "de"))


def test_options_that_do_not_fit_the_source_are_refused(tmp_path):
    path = write(tmp_path / "f.tsv", "a\tb\n")
    for columns in [("a", "b"), (0,), (0, -1), (0, True), "01", 1, ()]:
        with pytest.raises(ValueError, match="columns must be two column numbers"):
            load_pairs(path, columns=columns)
    with pytest.raises(ValueError, match="no meaning for two parallel files"):
        load_pairs((path, path), columns=(0, 1))
    with pytest.raises(ValueError, match=r"two parallel files. Received: \("):
        load_pairs((path, path, path))
    with pytest.raises(ValueError, match="excludes column"):
        load_texts(path, column=0, whole=True)
    for column in ("b", 1.0, -1):
        with pytest.raises(ValueError, match="column must be an integer of at least 0"):
            load_texts(path, column=column)
    assert load_texts(path, column=np.int64(1)) == ["b"]
    for read in (
        lambda: load_texts(path, split="test"),
        lambda: load_rows(path, split="test"),
        lambda: load_pairs(path, split="test"),
        lambda: load_pairs((path, path), split="test"),
    ):
        with pytest.raises(ValueError, match="read whole. Received: split='test' for"):
            read()
    with pytest.raises(ValueError, match="count must be an integer"):
        load_rows(path, count=0)
    for source in (None, b"ab", 7):
        with pytest.raises(ValueError, match="two parallel files. Received: "):
            load_pairs(source)
    english, german = write(tmp_path / "a.en", "one"), write(tmp_path / "a.de", "eins")
    assert load_pairs(path for path in (english, german)) == [("one", "eins")]


def test_two_tables_are_no_parallel_files(tmp_path):
    """Each line would be a text, its tabs, too."""
    column = write(tmp_path / "b.tsv", "one\ntwo")
    assert load_pairs([column, column]) == [("one", "one"), ("two", "two")]
    table = write(tmp_path / "a.TSV", "one\teins\ntwo\tzwei")
    with pytest.raises(ValueError, match="Give one. Received: .*a.TSV as one of two"):
        load_pairs([column, table])


@needs_corpora
def test_real_parallel_files_have_their_published_sizes():
    folder = SHARED / "data" / "multi30k"
    sizes = {"train": 29_000, "val": 1_014, "test_2016_flickr": 1_000}
    for split, size in sizes.items():
        pairs = load_pairs((folder / f"{split}.en.gz", folder / f"{split}.de.gz"))
        assert len(pairs) == size
    assert len(load_pairs(SHARED / "data" / "spa_eng" / "spa.txt.gz")) == 118_964
    path = SHARED / "data" / "stsb" / "sts-train.tsv.gz"
    assert len(load_pairs(path, columns=(5, 6), extra_columns=True)) == 5_749
    with pytest.raises(DataError, match=r"sts-train.tsv.gz, line 5553: expected 7"):
        load_pairs(path, columns=(5, 6))
    (text,) = load_texts(
        SHARED / "data" / "tinyshakespeare" / "input.txt.gz", whole=True
    )
    assert len(text) == 1_115_394


@needs_tfds_data
@pytest.mark.tensorflow
def test_prepared_tfds_data_sets_are_read(monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(SHARED / "tfds"))
    pairs = load_pairs("tfds:imdb_reviews", split="test[:4]")
    assert len(pairs) == 4
    assert {label for _, label in pairs} <= {"0", "1"}
    assert load_pairs(
        "tfds:imdb_reviews", columns=("label", "text"), split="test[:4]"
    ) == [(label, text) for text, label in pairs]
    texts = load_texts("tfds:imdb_reviews", split="test[:4]")
    assert texts == [text for text, _ in pairs]
    (text,) = load_texts("tfds:tiny_shakespeare", whole=True)
    assert len(text) > 1_000_000
    with pytest.raises(DataError, match="no split 'dev', or no row of it; it has"):
        load_pairs("tfds:imdb_reviews", split="dev")
    with pytest.raises(DataError, match="no split None"):
        load_pairs("tfds:imdb_reviews", split=None)
    for several in (["train", "test"], {"a": "train"}):
        with pytest.raises(DataError, match=r"no split .*Several are joined by '\+'"):
            load_pairs("tfds:imdb_reviews", split=several)
    with pytest.raises(DataError, match=r"no row of it"):
        load_pairs("tfds:imdb_reviews", split="train[:0]")
    with pytest.raises(DataError, match=r"among its features \['label', 'text'\]"):
        load_pairs("tfds:imdb_reviews", columns=("text", "stars"))


@pytest.mark.tensorflow
def test_an_unknown_tfds_data_set_is_named_with_its_like():
    with pytest.raises(
        DataError, match=r"'imdb_review'\. .*one of \['imdb_reviews'\]\?"
    ):
        load_pairs("tfds:imdb_review")


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ted_hrlr_translate/nope", "BuilderConfig nope not found"),
        ("ted_hrlr_translate:9.9.9", "only: 1.0.0"),
        ("", "no data set ''. Expected name, name/config"),
        ("mnist/x=3", "unexpected keyword argument 'x'"),
    ],
)
def test_a_wrong_config_or_version_of_tfds_is_named(name, message):
    with pytest.raises(DataError, match=message):
        load_pairs(f"tfds:{name}")


@pytest.mark.tensorflow
def test_a_tfds_feature_that_is_no_text_is_named_with_its_shape(monkeypatch):
    import tensorflow as tf
    import tensorflow_datasets as tfds

    row = {"image": tf.zeros((28, 28, 1)), "label": tf.constant(3), "text": " a "}
    builder = SimpleNamespace(
        is_prepared=lambda: True,
        info=SimpleNamespace(supervised_keys=("image", "label"), features=row),
        as_dataset=lambda **options: tf.data.Dataset.from_tensors(row),
    )
    monkeypatch.setattr(tfds, "builder", lambda name, data_dir: builder)
    assert load_pairs("tfds:mnist", columns=("text", "label")) == [("a", "3")]
    with pytest.raises(DataError, match=r"row 1, image: .*shape \(28, 28, 1\)"):
        load_pairs("tfds:mnist")


@pytest.mark.tensorflow
def test_an_unprepared_tfds_data_set_offline_is_an_error_at_once(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))

    def refuse(address, timeout):
        raise OSError("no network")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(DataError, match="offline.*TFDS_DATA_DIR") as caught:
        load_pairs("tfds:ted_hrlr_translate/pt_to_en")
    assert re.search(str(tmp_path), str(caught.value))


def test_tfds_missing_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorflow_datasets", None)
    with pytest.raises(ImportError, match="pip install tensorflow tensorflow-datasets"):
        load_pairs("tfds:imdb_reviews")


# Words with labels.


@pytest.mark.parametrize("name", ["tags.tsv", "tags.tsv.gz"])
def test_words_have_labels_and_empty_lines_end_sentences(tmp_path, name):
    text = "# a comment\nA\tDET\tDT\r\ndog\tNOUN\tNN\n\n\n#\tSYM\t#\n1\tNUM\tCD"
    path = write(tmp_path / name, text)
    expected = [(["A", "dog"], ["DET", "NOUN"]), (["#", "1"], ["SYM", "NUM"])]
    assert load_tagged(path) == expected
    for columns in ((0, 2), (column for column in (0, 2))):
        assert load_tagged(str(path), columns=columns)[1] == (["#", "1"], ["#", "CD"])


def test_conllu_is_read_without_ranges_and_empty_nodes(tmp_path):
    def line(number, word, tag):
        return "\t".join([number, word, word.lower(), tag, *"_" * 6]) + "\n"

    rows = [("1-2", "don't", "_"), ("1", "do", "AUX"), ("2", "n't", "PART")]
    rows += [("2.1", "go", "VERB"), ("3", "stop", "VERB")]
    text = "# text = don't stop\n" + "".join(line(*row) for row in rows)
    path = write(tmp_path / "a.conllu", text)
    expected = [(["do", "n't", "stop"], ["AUX", "PART", "VERB"])]
    assert load_tagged(path, columns=(1, 3)) == expected
    lemmas = [len(words) for words, _ in load_tagged(path, columns=(2, 3))]
    assert lemmas == [len(words) for words, _ in expected]


def test_tagged_words_are_read_strictly(tmp_path):
    path = write(tmp_path / "t.tsv", "a\tX\n\nb\n")
    for columns in (None, (0,), (0, "b")):
        with pytest.raises(ValueError, match="columns must be two column numbers"):
            load_tagged(path, columns=columns)
    with pytest.raises(DataError, match=r"t.tsv, line 3: expected at least 2 .*: 1"):
        load_tagged(path)
    path = write(tmp_path / "t.tsv", "a\tX\nb\t \n")
    with pytest.raises(DataError, match="line 2: expected a word and a label.*'b'"):
        load_tagged(path)
    with pytest.raises(DataError, match="has no words"):
        load_tagged(write(tmp_path / "e.tsv", "# nothing\n\n"))
    with pytest.raises(DataError, match="nowhere.tsv does not exist"):
        load_tagged(tmp_path / "nowhere.tsv")
    for load in (load_pairs, load_texts, load_tagged):  # texts for a file
        for name, why in (("a" * 300, "too long"), ("a\0b", "null byte")):
            with pytest.raises(DataError, match=f"{why}. Expected the name of a file"):
                load(name)
    with pytest.raises(DataError, match="line 1: .*a carriage return inside one"):
        load_tagged(write(tmp_path / "mac.tsv", b"a\tX\rb\tY\r\rc\tZ\r"))
    with pytest.raises(DataError, match="line 3: .*a byte order mark at most"):
        load_tagged(write(tmp_path / "cat.tsv", "a\tX\n\n\ufeffb\tY\n"))
    with pytest.raises(ValueError, match="two column numbers"):
        load_tagged(path, columns=("word", "tag"))


@needs_corpora
def test_the_tagged_corpora_are_whole():
    # Sentences and words as the READMEs of UD and UNER count them.
    for folder, split, sentences, words in (
        ("ud_ewt", "train", 12544, 204577),
        ("ud_ewt", "test", 2077, 25094),
        ("uner_ewt", "dev", 2001, 25149),
    ):
        rows = load_tagged(SHARED / "data" / folder / f"{split}.tsv.gz")
        assert len(rows) == sentences
        assert sum(len(each) for each, _ in rows) == words
        assert all(len(each) == len(labels) for each, labels in rows)


def test_any_number_of_columns_is_read_in_the_order_asked_for(tmp_path):
    path = tmp_path / "scored.tsv"
    path.write_text("x\t4.5\ta b\tc\nx\t0\td\te\n")
    rows = load_rows(path, columns=(2, 3, 1), count=3)
    assert rows == [("a b", "c", "4.5"), ("d", "e", "0")]
    with pytest.raises(ValueError, match="columns must be 3 column numbers"):
        load_rows(path, columns=(2, 3), count=3)
