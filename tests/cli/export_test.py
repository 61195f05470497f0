"""export and verify: a status that scripts can rely on."""

import json

import pytest

from kzoo.tasks import load_task


@pytest.fixture(scope="module")
def artifact(translator, tmp_path_factory):
    from typer.testing import CliRunner

    from kzoo.cli import app

    folder = tmp_path_factory.mktemp("export")
    path, report = folder / "onnx", folder / "report.json"
    arguments = ["export", translator, "--format", "onnx", "--out", path]
    result = CliRunner().invoke(app, [*map(str, arguments), "--report", str(report)])
    assert result.exit_code == 0, result.output
    assert "onnx at" in result.stdout and "forward" in result.stdout
    assert json.loads(report.read_text())["format"] == "onnx"
    return path


def test_an_export_is_verified_against_its_model(run, artifact, translator):
    result = run("verify", artifact, "--against", translator)
    assert result.exit_code == 0, result.output
    assert "tokens equal" in result.stdout


def test_verify_fails_on_another_model(refused, artifact, translator, tmp_path):
    task = load_task(translator)
    for variable in task.trainable_variables:
        variable.assign(variable * 1.5)
    task.save_folder(tmp_path / "other")
    refused("verify", artifact, "--against", tmp_path / "other", code=1)


def test_text_is_passed_on(refused, translator, tmp_path):
    arguments = ("export", translator, "--out", tmp_path / "x", "--text", "--portable")
    assert "text=True needs ONNX opset 20" in refused(*arguments, code=1)


def test_what_stands_at_the_path_stays(refused, translator, tmp_path):
    path = tmp_path / "file.onnx"
    path.write_text("mine")
    assert "--overwrite" in refused("export", translator, "--out", path)
    assert path.read_text() == "mine"


def test_the_model_s_own_folder_is_never_overwritten(refused, translator):
    before = {file: file.read_bytes() for file in translator.iterdir()}
    line = refused("export", translator, "--out", translator, "--overwrite", code=1)
    assert f"{translator} is no folder of an artifact" in line
    assert {file: file.read_bytes() for file in translator.iterdir()} == before


def test_a_file_may_need_little_memory(run, writer, tmp_path):
    path = tmp_path / "low"
    result = run("export", writer, "--out", path, "--format", "onnx", "--low-memory")
    assert result.exit_code == 0, result.output
    assert "_panels" in (path / "generate.onnx").read_bytes().decode("latin-1")
    result = run("verify", path, "--against", writer)
    assert "0.00 MB" not in result.stdout and result.exit_code == 0


@pytest.mark.tensorflow
@pytest.mark.parametrize("model", ["translator", "writer"])
def test_tf2onnx_writes_the_forward_pass(run, refused, request, model, tmp_path):
    path = tmp_path / "model.onnx"
    arguments = ("export", request.getfixturevalue(model), "--out", path)
    arguments += ("--exporter", "tf2onnx")
    assert "of exporter='kzoo'" in refused(*arguments, "--portable", code=1)
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert "forward" in result.stdout and path.stat().st_size > 1000


def test_bad_input_is_refused(refused, artifact, translator, tmp_path):
    missing = tmp_path / "missing"
    assert "does not exist" in refused("verify", missing, "--against", translator)
    assert "is not a folder" in refused("verify", artifact, "--against", missing)
    assert "of --format onnx" in refused(
        *("export", translator, "--out", missing),
        *("--format", "tf_saved_model", "--portable"),
    )
    assert "no folder" in refused(
        "export", translator, "--out", missing, "--report", missing / "r.json"
    )
    opset = ("export", translator, "--out", missing, "--opset")
    assert "--opset: expected a number from 17 to 24" in refused(*opset, 3)
    assert "to 18 with --portable. Received: 20" in refused(*opset, 20, "--portable")
    assert "holds no model" in refused("verify", translator, "--against", translator)
    assert "holds no model" in refused("verify", __file__, "--against", translator)
    assert not missing.exists()


def test_a_report_that_cannot_be_is_refused_first(
    refused, translator, tmp_path, monkeypatch
):
    out = ("export", translator, "--out", tmp_path / "out")
    said = f"--report {tmp_path}: expected a file. Received: a folder."
    assert said in refused(*out, "--report", tmp_path)
    (tmp_path / "link.json").symlink_to(tmp_path / "gone" / "r.json")
    said = f"link.json: there is no folder {tmp_path / 'gone'}."
    assert said in refused(*out, "--report", tmp_path / "link.json")
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    said = f"r.json: {tmp_path} cannot be written to."
    assert said in refused(*out, "--report", tmp_path / "r.json")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["nowhere", "folder"])
def test_a_link_is_no_free_place(refused, writer, tmp_path, place):
    link = tmp_path / "link"
    (tmp_path / "folder").mkdir()
    link.symlink_to(tmp_path / place)
    for overwrite in ((), ("--overwrite",)):
        said = refused("export", writer, "--out", link, *overwrite)
        assert f"is a symbolic link. Name the place it leads to, {tmp_path}" in said
    assert link.is_symlink() and not [*(tmp_path / "folder").iterdir()]


def test_an_empty_file_is_told_by_a_line(run, refused, writer, tmp_path):
    folder = tmp_path / "folder"
    assert run("export", writer, "--out", folder).exit_code == 0
    (folder / "generate.onnx").write_bytes(b"")
    line = refused("verify", folder, "--against", writer, code=1)
    assert "generate.onnx" in line


def test_help_names_the_extra(run):
    assert "kzoo[text]" in run("export", "--help").stdout


def test_a_report_never_takes_the_place_of_what_it_is_about(
    run, refused, writer, tmp_path
):
    path = tmp_path / "model.onnx"
    taken = "is the artifact's own"
    assert taken in refused("export", writer, "--out", path, "--report", path)
    assert not path.exists()
    assert run("export", writer, "--out", path).exit_code == 0
    content, against = path.read_bytes(), ("verify", path, "--against", writer)
    folder = tmp_path / "folder"
    folder.mkdir()
    again = ("export", writer, "--out", folder, "--overwrite")
    assert taken in refused(*again, "--report", folder / "step.onnx")
    for report in (path, path.with_suffix(".weights.bin")):
        assert taken in refused(*against, "--report", report)
    assert path.read_bytes() == content


def test_a_report_is_written_where_the_current_folder_is_replaced(
    run, writer, tmp_path, monkeypatch
):
    command = ("export", writer, "--functions", "forward", "--overwrite", "--out")
    path = tmp_path / "art"
    assert run(*command, path).exit_code == 0
    monkeypatch.chdir(path)
    result = run(*command, "../art", "--report", "../report.json")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "report.json").read_text())["checks"]
    assert (path / "forward.onnx").exists()


def test_functions_are_chosen_by_name(run, refused, writer, tmp_path):
    path, wanted = tmp_path / "stream", ("--functions", "prefill")
    result = run("export", writer, "--out", path, *wanted, "--functions", "step")
    assert result.exit_code == 0, result.output
    files = {file.name for file in path.iterdir()}
    assert {"prefill.onnx", "step.onnx"} <= files and "generate.onnx" not in files
    result = run("verify", path, "--against", writer)
    assert result.exit_code == 0 and "step" in result.stdout
    other = ("export", writer, "--out", tmp_path / "other")
    line = refused(*other, "--functions", "step", "--functions", "train")
    assert "names of ['prefill', 'step', 'forward', 'generate']. Received: step" in line


def test_weights_beyond_a_threshold_stand_beside_the_file(
    run, refused, writer, tmp_path
):
    more = ("--functions", "forward", "--external-data-threshold", 1000)
    result = run("export", writer, "--out", tmp_path / "f.onnx", *more)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "f.weights.bin").stat().st_size > 1000
    other = ("export", writer, "--out", tmp_path / "other", *more)
    line = refused(*other, "--format", "tf_saved_model")
    assert "--external-data-threshold are of --format onnx" in line


def test_a_folder_for_genai(run, refused, translator, writer, tmp_path):
    folder, arguments = tmp_path / "genai", ("--format", "genai")
    result = run("export", writer, "--out", folder, *arguments)
    assert result.exit_code == 0, result.output
    assert "past_key_values.0.key" in result.stdout
    assert (folder / "genai_config.json").is_file()
    result = run("verify", folder, "--against", writer)
    assert result.exit_code == 0 and "greedy in onnxruntime" in result.stdout
    out = ("--out", tmp_path / "other", *arguments)
    assert "Seq2SeqLM" in refused("export", translator, *out, code=1)
    assert "--exporter" in refused("export", writer, *out, "--exporter", "tf2onnx")


def test_a_quantised_export_is_verified_by_its_own_word(
    run, refused, translator, tmp_path
):
    path, report = tmp_path / "small", tmp_path / "report.json"
    arguments = ("export", translator, "--out", path, "--quantize", "int8")
    assert "--quantize is of" in refused(*arguments, "--format", "tf_saved_model")
    assert "--quantize is of" in refused(*arguments, "--exporter", "tf2onnx")
    assert "--low-memory is of" in refused(*arguments, "--low-memory")
    result = run(*arguments, "--report", report)
    assert result.exit_code == 0, result.output
    assert "int8: weights" in result.stdout
    assert json.loads(report.read_text())["quantize"] == "int8"
    result = run("verify", path, "--against", translator)
    assert result.exit_code == 0, result.output
    assert "of the tokens are the model's" in result.stdout


def test_no_file_of_the_model_and_none_that_is_read_is_replaced(
    run, refused, writer, tmp_path
):
    path, texts = tmp_path / "model.onnx", tmp_path / "texts.txt"
    config = (writer / "config.json").read_bytes()
    texts.write_text("abc")
    export = ("export", writer, "--out", path)
    assert f"is a file of '{writer}'" in refused(
        *export, "--report", writer / "config.json"
    )
    assert not path.exists() and run(*export).exit_code == 0
    against = ("verify", path, "--against", writer)
    assert "is a file of" in refused(*against, "--report", writer / "config.json")
    assert "texts.txt is read" in refused(*against, "-i", texts, "--report", texts)
    score = ("evaluate", writer, "--recipe", texts)
    weights = writer / "model.safetensors"
    assert "is a file of" in refused(*score, "--out", weights)
    assert "is read" in refused(*score, "--out", texts)
    assert (writer / "config.json").read_bytes() == config
    assert texts.read_text() == "abc"
    fresh = tmp_path / "report.json"
    for _ in range(2):  # its own it replaces
        assert run(*against, "--report", fresh).exit_code == 0
