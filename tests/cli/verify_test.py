"""`kzoo verify --input`: the user's own texts and ids, told by their lines."""

import gzip
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

import kzoo
from kzoo.cli.inputs import read
from kzoo.data import DataError
from kzoo.tasks import load_task

CHARACTERS = [chr(0x4E00 + i) for i in range(900)]


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """A model whose embedding has rows that no case of an export reads; its file."""
    folder = tmp_path_factory.mktemp("verify")
    tokenizer = kzoo.FastTokenizer.train(
        ["".join(CHARACTERS)], 1000, algorithm="character"
    )
    task = kzoo.CausalLM.from_size(
        "tiny",
        tokenizer,
        num_layers=1,
        hidden_dim=16,
        num_heads=2,
        intermediate_dim=32,
        tie_head=False,
    )
    task.save_folder(folder / "writer")
    task.export(folder / "forward.onnx", format="onnx", functions="forward")
    return folder / "writer", folder / "forward.onnx"


def test_a_row_that_changed_in_the_file_is_found_by_a_line(
    run, refused, writer, tmp_path
):
    folder, artifact = writer
    task, lines = load_task(folder), tmp_path / "lines.txt.gz"
    (forward, _) = task.export_functions()
    cases = forward.cases(np.random.default_rng(0)).values()
    used = {i for case in cases for ids in case.values() for i in ids.ravel().tolist()}
    row, rare = next(
        (ids[0], character)
        for character, ids in zip(CHARACTERS[2:], task.tokenizer.encode(CHARACTERS[2:]))
        if len(ids) == 1 and ids[0] not in used | {task.tokenizer.unknown_token_id}
    )
    common = "".join(CHARACTERS[:2])
    lines.write_bytes(gzip.compress(f"{common}\n\n{common}{rare}\n".encode()))
    result = run("verify", artifact, "--against", folder, "--input", lines)
    assert result.exit_code == 0, result.output
    assert "2 own inputs" in result.stdout
    assert "1 empty lines are no input" in result.stderr

    model = onnx.load(artifact)
    (table,) = (
        t
        for t in model.graph.initializer
        if t.name.endswith("token_embedding/embeddings")
    )
    values = onnx.numpy_helper.to_array(table).copy()
    values[row] = -values[row]
    table.CopyFrom(onnx.numpy_helper.from_array(values, table.name))
    changed = tmp_path / "changed.onnx"
    onnx.save(model, changed)
    result = run("verify", changed, "--against", folder)  # no case reads it
    assert result.exit_code == 1 and "token_embedding/embeddings" in result.stderr
    arguments = ("verify", changed, "--against", folder, "--input", lines)
    result = run(*arguments)
    assert result.exit_code == 1
    line = result.stderr.strip().split("\n")[-1]
    assert f"{lines}, line 3, '{common}{rare}'" in line
    assert "more than 0.0001" in line and "Keras gives" in line


def test_a_bad_file_ends_the_command(refused, writer, tmp_path):
    folder, artifact = writer
    bad = tmp_path / "bad.jsonl"
    bad.write_text("[5, 6]\n[5, 100000]\n")
    arguments = ("verify", artifact, "--against", folder, "--input")
    assert f"{bad}, line 2: token_ids must be in [0, " in refused(*arguments, bad)
    assert "missing.txt: No such file" in refused(*arguments, tmp_path / "missing.txt")


READS_TEXTS = SimpleNamespace(texts_per_example=(1, 2), encoder=None)
READS_PAIRS = SimpleNamespace(texts_per_example=(2,), encoder=None)
WRITES = SimpleNamespace(encoder=None)
PAIRS = {"line 1": ("a", "b"), "line 2": ("c", "d")}
IDS = {"example 1": [1], "example 2": {"x": [2]}}


@pytest.mark.parametrize(
    ("name", "content", "task", "expected"),
    [
        ("a.txt", "a b\n\n c\n", WRITES, {"line 1": "a b", "line 3": " c"}),
        ("a.tsv", "a\tb\n", WRITES, {"line 1": "a\tb"}),
        ("a.tsv", "a\tb\nc\td\n", READS_TEXTS, PAIRS),
        ("a.txt", "a\tb\n", READS_TEXTS, {"line 1": "a\tb"}),
        ("a.txt", "a\tb\n", READS_PAIRS, {"line 1": ("a", "b")}),
        ("a.jsonl", '[1, 2]\n\n"t"\n', WRITES, {"line 1": [1, 2], "line 3": "t"}),
        ("a.json", '[[1],\n {"x": [2]}]', WRITES, IDS),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_what_a_file_holds(tmp_path, name, content, task, expected, zipped):
    path = tmp_path / (name + ".gz" * zipped)
    content = content.encode()
    path.write_bytes(gzip.compress(content) if zipped else content)
    found = read(path, task)
    assert found == {f"{path}, {key}": value for key, value in expected.items()}


def test_arrays_are_read_by_rows(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, token_ids=[[1, 2], [3, 4]], segment_ids=[[0, 0], [0, 1]])
    found = read(path, WRITES)
    assert list(found) == [f"{path}, row 1", f"{path}, row 2"]
    row = {name: ids.tolist() for name, ids in found[f"{path}, row 2"].items()}
    assert row == {"token_ids": [3, 4], "segment_ids": [0, 1]}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"a\n\xff\n", "line 2: byte 0xff"),
        ("a.txt", b" \n", "has no text"),
        ("a.tsv", b"a\tb\nc\n", "line 2: expected at least 2 tab-separated"),
        ("a.tsv", b"a\tb\n\nc\td\n", "line 2 is empty"),
        ("a.jsonl", b"[1]\n[2\n", r"line 2 is not JSON: .*column 3"),
        ("a.jsonl", b"\n", "is empty"),
        ("a.json", b"[1,\n2", "a.json is not JSON: .* line 2 column 2"),
        ("a.json", b"{}", "expected a list of examples. Received: dict"),
        ("a.json", b"[]", "is empty"),
        ("a.json", b"[" * 100_000, "a.json is nested too deeply"),
        ("a.jsonl", b"[1]\n" + b"[" * 100_000, "line 2 is nested too deeply"),
        ("a.jsonl", b"[1]\n[1" + b"0" * 5000 + b"]", "line 2 holds .* too many digits"),
        ("a.npz", b"no", "is no .npz file of numpy"),
    ],
)
def test_what_cannot_be_right_is_told_by_its_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    kind = DataError if "no text" not in message else Exception
    with pytest.raises(kind, match=message):
        read(path, READS_TEXTS)


def test_arrays_of_other_shapes_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    for arrays in (dict(a=[1, 2]), dict(a=[[1]], b=[[1], [2]]), {}):
        np.savez(path, **{name: np.array(x) for name, x in arrays.items()})
        with pytest.raises(DataError, match="expected arrays of ids"):
            read(path, WRITES)
    np.save(tmp_path / "a.npy", np.zeros(3))
    (tmp_path / "a.npy").rename(path)
    with pytest.raises(DataError, match="is no .npz file"):
        read(path, WRITES)
