"""translate and generate: a line out for a line in."""

import gzip
import os
import re
import stat
import subprocess
import sys

import pytest

import kzoo
from kzoo.cli import app, texts
from kzoo.tasks import load_task

pytestmark = pytest.mark.usefixtures("eager")

FEW = ("--max-new-tokens", 6)


def test_translate_writes_what_generate_gives(run, translator):
    sources = ["abc", "fed cab"]
    expected = load_task(translator).generate(sources, max_new_tokens=6)
    result = run("translate", translator, *sources, *FEW)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == expected
    assert result.stderr == ""


def test_standard_input_is_read_and_empty_lines_stay(run, translator):
    alone = run("translate", translator, "abc", *FEW).stdout
    result = run("translate", translator, *FEW, input="abc\n\nabc\r\n")
    assert result.stdout == f"{alone}\n{alone}"
    assert run("translate", translator, "-", *FEW, input="abc").stdout == alone


def test_closed_standard_streams_are_said_or_done_without(translator):
    command = [sys.executable, "-m", "kzoo", "translate", str(translator)]
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *command], capture_output=True, text=True
    )
    assert closed.returncode == 2
    assert closed.stderr.startswith("Error: Give texts as arguments or --input: ")
    command += ["abc", *map(str, FEW)]
    lost = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command], capture_output=True, text=True
    )
    assert lost.returncode == 2
    assert lost.stderr.startswith("Error: Give --output a file: standard output is cl")
    silent = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *command], capture_output=True, text=True
    )
    expected = load_task(translator).generate(["abc"], max_new_tokens=6)
    assert (silent.returncode, silent.stdout.splitlines()) == (0, expected)


def keyboard(content):
    """A terminal where this is typed, bytes; a number of a file."""
    pty = pytest.importorskip("pty")  # not on Windows
    keys, terminal = pty.openpty()
    os.write(keys, content)
    return terminal


def typed(content, *arguments):
    """What a command answers at such a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "kzoo", *map(str, arguments)],
        stdin=keyboard(content),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},  # strict, as most locales are
    )


def test_a_line_that_is_typed_wrong_does_not_end_the_others(translator):
    content = b"abc\n\ncaf\xe9\nfed cab\n\x04"
    result = typed(content, "translate", translator, *FEW)
    expected = load_task(translator).generate(["abc", "fed cab"], max_new_tokens=6)
    assert (result.returncode, result.stdout.splitlines()) == (0, expected)
    assert "Ctrl-D ends" in result.stderr
    assert "Error: text 3, line 1: byte 0xe9 at offset 3 is not UTF-8" in result.stderr


def test_what_is_typed_goes_to_the_output(translator, tmp_path, monkeypatch, capsys):
    path = tmp_path / "out.txt"
    command = ["translate", str(translator), *map(str, FEW), "-o", str(path)]
    with open(keyboard(b"abc\n\nfed cab\n\x04")) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        app(command, standalone_mode=False)
    first, last = load_task(translator).generate(["abc", "fed cab"], max_new_tokens=6)
    assert path.read_text() == f"{first}\n\n{last}\n"
    said = capsys.readouterr()
    assert "Type a text and Enter; Ctrl-D ends." in said.err
    assert said.out == ""


def test_standard_input_stands_alone(run, refused, translator):
    assert "- is standard input, alone" in refused("translate", translator, "-", "abc")


def test_a_stream_is_of_one_result(refused, translator):
    said = refused("translate", translator, "--stream", "--n-best", 2, "abc")
    assert "none of --output, --scores, --beams and --n-best" in said


def test_several_results_are_of_beam_search(refused, translator):
    said = refused("translate", translator, "abc", "--n-best", 2, "--temperature", 0.8)
    assert "--n-best is of beam search: leave out --temperature." in said


def test_files_are_read_and_written(run, translator, tmp_path):
    source, target = tmp_path / "in.gz", tmp_path / "out.txt"
    source.write_bytes(gzip.compress(b"abc\ncab\n"))
    result = run("translate", translator, "-i", source, "-o", target, *FEW)
    assert result.stdout == ""
    expected = load_task(translator).generate(["abc", "cab"], max_new_tokens=6)
    assert target.read_text().splitlines() == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.gz", "out.txt"]


def test_a_file_of_results_is_packed_where_its_name_says(run, translator, tmp_path):
    target = tmp_path / "out.txt.GZ"
    run("translate", translator, "abc", "-o", target, *FEW)
    (expected,) = load_task(translator).generate(["abc"], max_new_tokens=6)
    assert gzip.decompress(target.read_bytes()).decode() == expected + "\n"


def test_a_result_is_one_line_whatever_a_model_writes():
    group = [("a\rb\r\nc\nd\te", -1.0)]
    assert texts._format(group, 1, True, 1) == ["-1.0000\ta b c d\te"]


def test_a_name_may_be_as_long_as_the_file_system_takes(run, translator, tmp_path):
    path = tmp_path / ("é" * 123 + "a.txt")  # of 251 bytes
    assert run("translate", translator, "the house", "-o", path, *FEW).exit_code == 0
    assert path.read_text() and [*tmp_path.iterdir()] == [path]


def test_a_pipe_and_a_link_stay_what_they_are(run, translator, tmp_path):
    pipe, real, link = (tmp_path / name for name in ("pipe", "real", "link"))
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    link.symlink_to(real)
    real.write_text("old")
    for path in (pipe, link):
        result = run("translate", translator, "a", "--output", path, *FEW)
        assert result.exit_code == 0, result.output
    assert stat.S_ISFIFO(pipe.stat().st_mode) and link.is_symlink()
    assert os.read(reader, 1000).decode() == real.read_text() != "old"
    os.close(reader)


def test_n_best_lines_have_the_text_s_number_score_and_result(run, translator):
    result = run("translate", translator, "abc", "cab", "--n-best", 2, "--scores", *FEW)
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "2"]
    texts, scores = load_task(translator).generate(
        ["abc", "cab"],
        max_new_tokens=6,
        beams=2,
        num_return_sequences=2,
        return_scores=True,
    )
    assert [row[2] for row in rows] == [text for group in texts for text in group]
    assert [float(row[1]) for row in rows] == pytest.approx(scores.ravel(), abs=1e-3)


def test_learned_positions_bound_what_is_asked_for_by_default(run, tmp_path):
    tokenizer = kzoo.FastTokenizer.train(["abc", "cab"], 20, algorithm="character")
    options = dict(positions="learned", max_sequence_length=9)
    for command, kind in (("translate", kzoo.Seq2SeqLM), ("generate", kzoo.CausalLM)):
        kind.from_size("tiny", tokenizer, **options).save_folder(tmp_path / command)
        result = run(command, tmp_path / command, "abc", "ca")
        assert result.exit_code == 0 and len(result.stdout.splitlines()) == 2


def test_generate_continues_the_prompt(run, writer):
    result = run("generate", writer, "abc", "de", *FEW)
    assert result.exit_code == 0
    first, second = result.stdout.splitlines()
    assert first.startswith("abc") and second.startswith("de")
    new = load_task(writer).generate(["abc"], max_new_tokens=6)[0]
    assert first == "abc" + new


@pytest.mark.parametrize(
    ("command", "model", "hint"),
    [
        ("translate", "writer", "kzoo generate"),
        ("generate", "translator", "kzoo translate"),
    ],
)
def test_the_other_kind_of_model_is_refused(refused, request, command, model, hint):
    assert hint in refused(command, request.getfixturevalue(model), "abc")


@pytest.mark.parametrize("command", ["translate", "generate"])
def test_a_model_that_writes_nothing_is_refused(refused, tokenizer, command, tmp_path):
    kzoo.TextClassifier.from_size(
        "tiny", tokenizer, num_classes=2, num_layers=1, hidden_dim=8
    ).save_folder(tmp_path)
    line = refused(command, tmp_path, "abc")
    assert "is a TextClassifier" in line and line.endswith("It writes no text.")


def test_what_cannot_be_read_is_refused(run, refused, translator, tmp_path):
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"abc\n\xff\n")
    assert "line 2: byte 0xff" in refused("translate", translator, "-i", bad)
    for content, said in (
        (b"abc\ncab\rfed\n", "line 2: expected lines that end at a line feed"),
        (b"abc\n\xef\xbb\xbfcab\n", "line 2: expected a byte order mark at most"),
        ("abc\ncab\n".encode("utf-16-le"), "line 1: expected text. Received: a NUL"),
    ):
        odd = tmp_path / "odd.txt"
        odd.write_bytes(content)
        assert f"{odd}, {said}" in refused("translate", translator, "-i", odd)
    damaged = tmp_path / "damaged.gz"
    content = gzip.compress(b"abc\ncab\n")
    damaged.write_bytes(content[:10] + b"\xff" * 5 + content[15:])
    assert f"{damaged} is not a whole gzip file" in refused(
        "translate", translator, "-i", damaged
    )
    (tmp_path / "empty.txt").write_text("\n")
    assert "has no text" in refused(
        "translate", translator, "-i", tmp_path / "empty.txt"
    )
    missing = tmp_path / "missing.txt"
    assert f"{missing}: No such file" in refused("translate", translator, "-i", missing)
    assert "not both" in refused("translate", translator, "abc", "-i", bad)
    assert "no folder" in refused(
        "translate", translator, "abc", "-o", tmp_path / "no" / "out.txt"
    )
    assert "is read" in refused("translate", translator, "-i", bad, "-o", bad)
    same = tmp_path / "no" / ".." / bad.name  # where nothing is, for want of "no"
    before = bad.read_bytes()
    assert "no folder" in refused("translate", translator, "-i", bad, "-o", same)
    assert bad.read_bytes() == before
    weights = translator / "model.safetensors"
    before = weights.read_bytes()
    message = refused("translate", translator, "a", "-o", weights)
    assert f"model.safetensors is a file of '{translator}'" in message
    assert weights.read_bytes() == before
    own = translator / "out.txt"  # of somebody who works in the folder
    for _ in range(2):
        assert run("translate", translator, "a", "-o", own).exit_code == 0
    assert bad.read_bytes() == b"abc\n\xff\n"


def test_a_folder_that_is_no_model_is_refused(refused, translator, tmp_path):
    assert "has no config.json" in refused("translate", tmp_path, "abc")
    (tmp_path / "training").mkdir()
    assert "not finished" in refused("translate", tmp_path, "abc")
    task = load_task(translator)
    task.save_folder(tmp_path)
    (tmp_path / kzoo.tasks.saving.WEIGHTS_FILE).write_bytes(b"no weights")
    assert "no valid safetensors file" in refused("translate", tmp_path, "abc")


@pytest.mark.parametrize("command", ["translate", "generate"])
def test_options_of_the_search_are_passed_on(run, translator, writer, command):
    folder = translator if command == "translate" else writer
    result = run(command, folder, "abc", "h", *FEW, "--constraint", "(fed|gg)h?")
    assert all(re.search("(fed|gg)h?$", line) for line in result.stdout.split("\n")[:2])
    given = ["--prefix", "cdef", "--stop", "de", "--ban", "a"]
    result = run(command, folder, "abc", *FEW, *given)
    assert result.stdout.strip().removeprefix("abc") == "c"
    drawn = ["--temperature", 1, "--top-k", 5, "--top-p", 0.9, "--min-p", 0.1]
    result = run(command, folder, "abc", *FEW, *drawn, "--seed", 3)
    task = load_task(folder)
    options = dict(temperature=1.0, top_k=5, top_p=0.9, min_p=0.1, seed=3)
    expected = task.generate(["abc"], max_new_tokens=6, **options)[0]
    assert result.stdout.strip().removeprefix("abc") == expected.strip()


@pytest.mark.parametrize("command", ["translate", "generate"])
def test_what_is_not_given_is_as_the_model_says(
    run, translator, writer, tmp_path, command
):
    task = load_task(translator if command == "translate" else writer)
    free = task.generate(["abc"], max_new_tokens=4, min_new_tokens=3, beams=3)[0]
    first = free.strip()[0]
    defaults = dict(beams=3, banned_tokens=[first], max_new_tokens=4)
    defaults |= dict(min_new_tokens=3, stop="g")
    task.search_defaults = defaults
    task.save_folder(tmp_path / "model")
    asked = run(command, tmp_path / "model", "abc", "cab")
    expected = task.generate(["abc", "cab"])
    for line, text in zip(asked.stdout.splitlines(), expected, strict=True):
        assert line.endswith(text.strip()) and first not in text and "g" not in text
    best = run(command, tmp_path / "model", "abc", "--n-best", 2, "--max-new-tokens", 6)
    texts = task.generate("abc", num_return_sequences=2, max_new_tokens=6)
    assert [
        line.split("\t")[1].removeprefix("abc") for line in best.stdout.split("\n")[:2]
    ] == texts
    streamed = run(command, tmp_path / "model", "abc", "--stream").stdout.strip()
    assert streamed.endswith(task.generate("abc", beams=1).strip())


@pytest.mark.parametrize("command", ["translate", "generate"])
def test_ids_beyond_the_tokenizer_write_nothing(run, tmp_path, command):
    tokenizer = kzoo.FastTokenizer.train(["abc"], 20, algorithm="character")
    kind = kzoo.Seq2SeqLM if command == "translate" else kzoo.CausalLM
    architecture = "encoder_decoder" if command == "translate" else "decoder"
    config = kzoo.ModelConfig.from_size("tiny", architecture, 500, num_layers=1)
    kind(config, tokenizer).save_folder(tmp_path / "padded")
    task = load_task(tmp_path / "padded")
    drawn = dict(temperature=1.0, seed=1, max_new_tokens=6)
    prompts = [[[5, 6]], "abc"]
    new, text = (task.generate(prompt, **drawn) for prompt in prompts)
    assert max(new[0]) >= tokenizer.vocabulary_size
    options = ["--temperature", 1, "--seed", 1, "--max-new-tokens", 6]
    for how in ([], ["--stream"]):
        result = run(command, tmp_path / "padded", "abc", *options, *how)
        assert result.exit_code == 0
        assert result.stdout.strip("\n") == ("abc" * (command == "generate")) + text


@pytest.mark.parametrize("command", ["translate", "generate"])
def test_a_stream_shows_the_same_text(run, refused, translator, writer, command):
    folder = translator if command == "translate" else writer
    for options in ([], ["--stop", "b"], ["--prefix", "bad"]):
        whole = run(command, folder, "abc", *FEW, *options).stdout
        assert run(command, folder, "abc", *FEW, *options, "--stream").stdout == whole
    message = "--stream shows one text's result"
    assert message in refused(command, folder, "abc", "h", "--stream")
    assert message in refused(command, folder, "abc", "--stream", "--scores")
