"""Artifacts: what they hold, that they are verified, that failure leaves nothing."""

import collections
import dataclasses
import errno
import json
import pathlib
import subprocess
import sys

import keras
import numpy as np
import onnx
import onnxruntime
import pytest

import kzoo
from kzoo.exporters import ExportError, saved_model, verify
from kzoo.exporters import onnx as onnx_export
from kzoo.exporters.checks import compare, reference
from kzoo.exporters.onnx import MAXIMUM_OPSET, MINIMUM_OPSET, names_of, write
from kzoo.exporters.quantize import MODES, Matrices
from kzoo.exporters.report import ExportReport
from kzoo.layers import Dense
from kzoo.ops import onnx_file
from tests import harness
from tests.harness import perturb

MODERN = harness.MODERN | dict(num_key_value_heads=1, tie_head=False)


def make(kind=kzoo.Seq2SeqLM, **changes):
    return harness.small_task(kind, **changes)


@pytest.fixture(scope="module")
def model():
    """A translator that tests read."""
    return make()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """Its ONNX files."""
    path = tmp_path_factory.mktemp("folder") / "model"
    check(model.export(path, format="onnx"))
    return path


@pytest.fixture(scope="module")
def generating(folder):
    return onnxruntime.InferenceSession(folder / "generate.onnx")


def until_end(model, ids):
    """The ids before the end token; padding is among none of these."""
    end = model.config.end_token_id
    ids = ids[: ids.index(end)] if end in ids else ids
    return [i for i in ids if i != model.config.pad_token_id]


def check(report):
    functions = {"forward", "generate"}
    if report.format == "tf_saved_model":
        functions |= {"serving_default", "prefill", "step"}
    assert {c["function"] for c in report.checks} == set(report.functions) == functions
    assert all(c["difference"] <= 1e-4 for c in report.checks)
    generated = [c for c in report.checks if c["function"] == "generate"]
    assert all(c["tokens_equal"] for c in generated)


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (kzoo.CausalLM, dict(positions="learned", norm_position="post")),
        (kzoo.CausalLM, dict(positions="rotary", num_layers=1, **MODERN)),
        (kzoo.CausalLM, dict(positions="relative", activation="gelu", num_layers=1)),
        (kzoo.CausalLM, dict(positions="alibi", activation="gelu_tanh", num_layers=1)),
        (
            kzoo.CausalLM,
            dict(attention_window=3, windowed_layers=(0,), positions="rotary"),
        ),
        (
            kzoo.Seq2SeqLM,
            dict(positions="sinusoidal", num_key_value_heads=2, num_layers=1),
        ),
        (
            kzoo.Seq2SeqLM,
            dict(positions="relative", norm="rms_norm", head_scale=0.25, num_layers=1),
        ),
        (kzoo.Seq2SeqLM, dict(norm_position="post", head_bias=True)),
    ],
)
def test_onnx_gives_forward_and_generate(tmp_path, kind, changes):
    model, path = make(kind, **changes), tmp_path / "model"
    for portable in (False, True):
        report = model.export(path, format="onnx", portable=portable, overwrite=True)
        check(report)
        for name in ("forward", "generate"):
            file = onnx.load(path / f"{name}.onnx")
            onnx.checker.check_model(path / f"{name}.onnx", full_check=True)
            assert file.opset_import[0].version == (18 if portable else 23)
            assert [o.domain for o in file.opset_import] == [""]
        attentions = 1 if kind is kzoo.CausalLM else 3  # self, and cross in decoders
        attentions *= model.config.decoder.num_layers
        fused = report.operators["forward"].get("Attention", 0)
        assert fused == (0 if portable else attentions)


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("task", ["encoder", *MODES])
def test_inferred_shapes_are_those_that_a_file_tells(tmp_path, task, portable):
    if task == "encoder":
        model, changes = make(kzoo.TextClassifier, num_classes=3), {}
        functions = model.export_functions()
    else:
        model, changes = make(kzoo.CausalLM), dict(change=Matrices(task).quantize)
        functions = [*model.stepwise_functions(), *model.export_functions()]
    _, paths = write(
        functions,
        names_of(model),
        tmp_path / "model",
        opset=None,
        portable=portable,
        metadata={},
        **changes,
    )
    assert len(paths) == len(functions)
    for path in paths.values():
        onnx.checker.check_model(path, full_check=True)


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (kzoo.Seq2SeqLM, dict(positions="relative", activation="gelu")),
        (kzoo.CausalLM, dict(positions="rotary", **MODERN)),
    ],
)
def test_every_opset(tmp_path, kind, changes):
    model = make(kind, num_layers=1, **changes)
    for opset in range(MINIMUM_OPSET, MAXIMUM_OPSET + 1):
        path = tmp_path / str(opset)
        check(model.export(path, format="onnx", opset=opset))
        for file in path.glob("*.onnx"):
            onnx.checker.check_model(file)
            assert onnx.load(file).opset_import[0].version == opset


@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", [kzoo.CausalLM, kzoo.Seq2SeqLM])
def test_saved_model_gives_forward_and_generate(saved, kind):
    _, path, report = saved(kind)
    check(report)
    assert "fresh process" in report.runtime
    served = report.functions["serving_default"]["inputs"]
    assert all(dtype == "int32" for dtype, _ in served.values())
    # Without its options a search is quicker: none draws random numbers there.
    plain, whole = (operations(path, name) for name in ("serving_default", "generate"))
    assert whole["BitwiseXor"] and not plain["BitwiseXor"]
    assert plain.total() < whole.total() * 0.6


def operations(path, signature):
    """How often each operation is in what a signature of a SavedModel calls."""
    from tensorflow.core.protobuf import saved_model_pb2

    graph = saved_model_pb2.SavedModel.FromString(
        (path / "saved_model.pb").read_bytes()
    ).meta_graphs[0]
    functions = {f.signature.name: f.node_def for f in graph.graph_def.library.function}
    outputs = graph.signature_def[signature].outputs.values()
    names = {output.name.split(":")[0] for output in outputs}
    calls = [[node for node in graph.graph_def.node if node.name in names]]
    found = collections.Counter()
    while calls:
        for node in calls.pop():
            found[node.op] += 1
            for value in node.attr.values():
                if value.func.name:
                    calls.append(functions[value.func.name])
    return found


@pytest.mark.tensorflow
def test_a_saved_model_without_its_report_says_itself_what_it_offers(
    tmp_path, monkeypatch
):
    traced, trace = [], saved_model._concrete

    def counted(function):
        traced.append(function.name)
        return trace(function)

    monkeypatch.setattr(saved_model, "_concrete", counted)
    model = make(kzoo.CausalLM, num_layers=1, positions="none")
    path = tmp_path / "model"
    report = model.export(path, functions=["prefill", "forward"])
    assert traced == ["prefill", "forward"]  # which is serving_default, too
    (path / "report.json").unlink()
    again = verify(path, model)
    assert set(again.functions) == set(report.functions)
    assert sum(again.files.values()) == sum(report.files.values())
    (path / "saved_model.pb").write_bytes(b"no")
    with pytest.raises(ExportError, match="holds no whole SavedModel"):
        verify(path, model)


def check_ends(model, report):
    """That rows of the two plain searches ended at different steps, and are counted."""
    function = model.export_functions()[1]
    checks = {c["case"]: c for c in report.checks if c["function"] == "generate"}
    cases = function.cases(np.random.default_rng(0))
    for case in ("greedy, batch 3, padded", "3 beams, 2 best, padded"):
        sequences = reference(function, cases[case])["sequences"]
        rows = sequences.reshape(-1, sequences.shape[-1]).tolist()
        ended = [row for row in rows if function.end_token_id in row]
        assert len({row.index(function.end_token_id) for row in ended}) > 1
        assert (checks[case]["ended"], checks[case]["sequences"]) == (
            len(ended),
            len(rows),
        )
        assert f"tokens equal, {len(ended)}/{len(rows)} ended" in str(report)


def test_rows_that_end_at_different_steps_are_verified(tmp_path):
    model = make(
        kzoo.CausalLM,
        vocabulary_size=12,
        num_layers=1,
        tie_head=False,
        head_bias=True,
    )
    perturb(model.named_variables().values(), seed=1)
    harness.set_head_bias(model, model.config.end_token_id, 0.9)
    check_ends(model, model.export(tmp_path / "model", "onnx", functions="generate"))


@pytest.mark.tensorflow
def test_rows_of_a_saved_model_that_end_at_different_steps_are_verified(saved):
    model, _, report = saved(kzoo.CausalLM)
    check_ends(model, report)


def test_names_dtypes_axes_and_defaults(model, generating):
    session = generating
    (ids,) = session.get_inputs()
    assert (ids.name, ids.type) == ("encoder_token_ids", "tensor(int64)")
    assert ids.shape == ["batch", "sequence"]
    options = {i.name: i.type for i in session.get_overridable_initializers()}
    assert options == {
        "max_new_tokens": "tensor(int64)",
        "beams": "tensor(int64)",
        "num_return_sequences": "tensor(int64)",
        "length_penalty": "tensor(float)",
        "early_stopping": "tensor(bool)",
        "temperature": "tensor(float)",
        "top_k": "tensor(int64)",
        "top_p": "tensor(float)",
        "min_p": "tensor(float)",
        "seed": "tensor(int64)",
        "repetition_penalty": "tensor(float)",
        "renormalize": "tensor(bool)",
        "no_repeat_ngram_size": "tensor(int64)",
        "min_new_tokens": "tensor(int64)",
        "banned_token_ids": "tensor(int64)",
        "stop_token_ids": "tensor(int64)",
        "forced_token_ids": "tensor(int64)",
        "automaton": "tensor(int64)",
    }
    prompt = np.array([[5, 6, 7], [8, 9, 0]])
    sequences, scores = session.run(None, {"encoder_token_ids": prompt})
    assert sequences.shape[:2] == scores.shape == (2, 1)
    assert sequences.shape[2] <= 128
    exact = {"max_new_tokens": np.array(4), "min_new_tokens": np.array(4)}
    (exact, _) = session.run(None, {"encoder_token_ids": prompt, **exact})
    assert exact.shape == (2, 1, 4) and not (exact == model.config.end_token_id).any()
    expected = model.generate([[5, 6, 7], [8, 9]], max_new_tokens=11)
    (short, _) = session.run(
        None, {"encoder_token_ids": prompt, "max_new_tokens": np.array(11)}
    )
    assert [until_end(model, row[0]) for row in short.tolist()] == expected
    drawn = dict(temperature=1.5, seed=-3, max_new_tokens=11)
    expected = model.generate([[5, 6, 7], [8, 9]], **drawn)
    feed = {
        k: np.array(v, "f" if k == "temperature" else "i8") for k, v in drawn.items()
    }
    (tokens, _) = session.run(None, {"encoder_token_ids": prompt, **feed})
    assert [until_end(model, row[0]) for row in tokens.tolist()] == expected
    sequences, scores = session.run(
        None,
        {
            "encoder_token_ids": prompt,
            "max_new_tokens": np.array(6),
            "beams": np.array(4),
            "num_return_sequences": np.array(3),
        },
    )
    assert sequences.shape[:2] == scores.shape == (2, 3)
    assert (np.diff(scores, axis=1) <= 0).all()


@pytest.mark.usefixtures("remembered")
def test_weights_are_stored_once(tmp_path):
    sizes = dict(hidden_dim=128, intermediate_dim=512, num_layers=1)
    model = make(vocabulary_size=3000, **sizes)
    weights = sum(4 * np.prod(v.shape) for v in model.named_variables().values())
    report = model.export(tmp_path / "folder", format="onnx")
    models = sum(s for f, s in report.files.items() if f.endswith((".onnx", ".bin")))
    assert weights <= models <= 1.02 * weights + 300_000  # two graphs of nodes
    report = model.export(tmp_path / "one.onnx", format="onnx")
    assert weights <= sum(report.files.values()) <= 1.02 * weights + 150_000


def add_lora(model, rank=2):
    """Enables LoRA wherever it can be, with random values."""
    generator = np.random.default_rng(1)
    model.enable_lora(rank, "*")
    for name, variable in model.named_variables().items():
        if "/lora_" in name:
            variable.assign(generator.normal(size=variable.shape) * 0.2)


@pytest.mark.parametrize(
    ("kind", "changes", "options"),
    [
        (kzoo.Seq2SeqLM, {}, dict(format="onnx")),
        (kzoo.CausalLM, dict(positions="rotary", **MODERN), dict(format="onnx")),
        pytest.param(
            kzoo.Seq2SeqLM,
            {},
            dict(format="tf_saved_model", functions="forward"),
            marks=pytest.mark.tensorflow,
        ),
    ],
)
def test_lora_is_exported(tmp_path, kind, changes, options):
    model = make(kind, num_layers=1, **changes)
    forward = model.export_functions()[0]
    inputs = forward.cases(np.random.default_rng(0))["batch 1, length 5"]
    before = reference(forward, inputs)["logits"]
    add_lora(model)
    assert np.abs(reference(forward, inputs)["logits"] - before).max() > 0.1
    report = model.export(tmp_path / "model", **options)
    assert all(c["difference"] <= 1e-4 for c in report.checks)
    if options["format"] == "onnx":
        graph = onnx.load(tmp_path / "model" / "generate.onnx").graph
        shapes = [tuple(tensor.dims) for tensor in graph.initializer]
        assert shapes.count((29, 16)) == 1  # merged and stored once
        assert not any("lora" in tensor.name for tensor in graph.initializer)


@pytest.mark.usefixtures("remembered")
def test_large_weights_go_to_a_file_beside(tmp_path, model):
    path = tmp_path / "model.onnx"
    options = dict(functions="forward", external_data_threshold=10_000)
    report = model.export(path, format="onnx", **options)
    assert set(report.files) == {"model.onnx", "model.weights.bin"}
    assert report.files["model.onnx"] < 200_000
    assert verify(path, model).files == report.files
    with pytest.raises(ExportError, match="exists"):
        model.export(path, format="onnx")


def test_an_artifact_of_other_weights_is_refused(model, folder):
    check(verify(folder, model))
    other = make()
    perturb(other.named_variables().values(), seed=9)
    with pytest.raises(ExportError, match="differ"):
        verify(folder, other)


@pytest.mark.usefixtures("remembered")
def test_a_single_file_is_opened_once_to_be_verified(tmp_path, monkeypatch):
    path, opened = tmp_path / "model.onnx", []

    def open_session(path):
        opened.append(path)
        return original(path)

    original = kzoo.exporters.onnx_session.open_session
    monkeypatch.setattr(kzoo.exporters.onnx_session, "open_session", open_session)
    model = make(num_layers=1)
    for name in ("forward", "generate"):
        model.export(path, format="onnx", functions=name, overwrite=True)
        opened.clear()
        assert set(verify(path, model).functions) == {name}
        assert opened == [path]


def test_the_folder_describes_itself(tmp_path):
    tokenizer = kzoo.FastTokenizer.train(["abc", "bca"], 30, algorithm="character")
    model = kzoo.CausalLM.from_size("tiny", tokenizer, **harness.SMALL)
    report = model.export(tmp_path / "out", format="onnx")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert kzoo.ModelConfig.from_dict(config["model"]) == model.config
    loaded = kzoo.load_tokenizer(tmp_path / "out")
    assert loaded.encode(["cab"]) == tokenizer.encode(["cab"])
    saved = json.loads((tmp_path / "out" / "report.json").read_text())
    assert saved["checks"] == report.to_dict()["checks"]
    assert "tokens equal" in str(report)


@pytest.mark.usefixtures("remembered")
def test_what_stands_at_the_path_stays_until_a_better_one_is_verified(tmp_path, model):
    path = tmp_path / "model"
    path.mkdir()
    options = dict(format="onnx", functions="forward")
    with pytest.raises(ExportError, match="exists"):
        model.export(path, **options)
    model.export(path, overwrite=True, **options)  # an empty folder
    (path / "forward.onnx").write_text("old")
    with pytest.raises(ExportError, match="opset must be"):
        model.export(path, opset=99, overwrite=True, **options)
    assert (path / "forward.onnx").read_text() == "old"
    model.export(path, format="onnx", functions="prefill", overwrite=True)
    assert not (path / "forward.onnx").exists()
    assert (path / "prefill.onnx").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


@pytest.mark.parametrize(
    ("name", "also"),
    [
        ("mine.txt", None),
        ("model.safetensors", "report.json"),
        ("training/state", "saved_model.pb"),
        ("thesis.tex", "report.json"),
        ("report.json", None),
    ],
)
def test_only_an_artifact_is_overwritten(tmp_path, monkeypatch, model, name, also):
    mine = tmp_path / "model" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    if also:
        (tmp_path / "model" / also).write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ExportError, match="model is no folder of an artifact"):
        model.export(tmp_path / "model", format="onnx", overwrite=True)
    monkeypatch.chdir(tmp_path / "model")
    with pytest.raises(ExportError, match=r"name of a new folder. Received: \."):
        model.export(".", format="onnx", overwrite=True)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_replaces_no_file_and_a_file_no_folder(tmp_path, model):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "model.onnx").mkdir()
    (tmp_path / "other.weights.bin").mkdir()
    with pytest.raises(ExportError, match="file is no folder of an artifact"):
        model.export(tmp_path / "file", format="onnx", overwrite=True)
    for path, named in (("model.onnx", "model.onnx"), ("other.onnx", "weights.bin")):
        with pytest.raises(ExportError, match=f"{named} is a folder"):
            model.export(tmp_path / path, format="onnx", overwrite=True)
    assert (tmp_path / "file").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.usefixtures("remembered")
def test_a_file_that_holds_its_weights_takes_the_old_ones_away(
    tmp_path, monkeypatch, model
):
    path, options = tmp_path / "e.onnx", dict(format="onnx", functions="forward")
    model.export(path, external_data_threshold=1000, **options)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert len(before) == 2
    replace = pathlib.Path.replace

    def fail_on_the_old_weights(self, target):
        if self == tmp_path / "e.weights.bin":
            raise OSError(errno.EIO, "Input/output error")
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "replace", fail_on_the_old_weights)
        with pytest.raises(ExportError, match="Input/output error"):
            model.export(path, overwrite=True, **options)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
    model.export(path, overwrite=True, **options)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("exporter", "name"),
    [
        ("kzoo", "current"),
        ("kzoo", "a.onnx"),
        pytest.param("tf2onnx", "a.onnx", marks=pytest.mark.tensorflow),
    ],
)
@pytest.mark.parametrize("place", ["nowhere", "folder", "file", "link"])
def test_a_link_is_neither_replaced_nor_followed(
    tmp_path, model, exporter, name, place
):
    link = tmp_path / name
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("link")
    link.symlink_to(place)
    before = sorted(tmp_path.rglob("*"))
    for overwrite in (False, True):
        with pytest.raises(ExportError, match=f"{name} is a symbolic link. Name the"):
            model.export(link, format="onnx", exporter=exporter, overwrite=overwrite)
    assert sorted(tmp_path.rglob("*")) == before and link.is_symlink()
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "name, format, said",
    [
        ("a[1]/b", "tf_saved_model", r"as a pattern.* Received: .*a\[1\]"),
        (r"a\b", "tf_saved_model", r"as a pattern.* Received: .*a\\b"),
        ("a\udcff", "onnx", r"paths of UTF-8 alone. Received: '.*a\\udcff'"),
        ("a\udcff.onnx", "onnx", r"paths of UTF-8 alone. Received: '.*a\\udcff.onnx'"),
    ],
)
def test_a_name_that_a_runtime_cannot_read_is_refused(
    tmp_path, model, name, format, said
):
    with pytest.raises(ExportError, match=said):
        model.export(tmp_path / name, format=format)
    assert not list(tmp_path.iterdir())


def test_weights_beside_a_file_are_no_link(tmp_path, model):
    (tmp_path / "other").write_text("mine")
    (tmp_path / "a.weights.bin").symlink_to("other")
    with pytest.raises(ExportError, match="a.weights.bin is a symbolic link"):
        model.export(tmp_path / "a.onnx", format="onnx", overwrite=True)
    assert (tmp_path / "other").read_text() == "mine"


@pytest.mark.usefixtures("remembered")
def test_the_suffix_may_be_written_large(tmp_path, model):
    path = tmp_path / "replaced.ONNX"
    options = dict(functions="forward", external_data_threshold=1000)
    report = model.export(path, format="onnx", **options)
    assert set(report.files) == {"replaced.ONNX", "replaced.weights.bin"}
    assert {file.name for file in tmp_path.iterdir()} == set(report.files)
    verify(path, model)


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch, model):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(onnx_file, "write_model", full)
    with pytest.raises(ExportError, match="No space left"):
        model.export(tmp_path / "model", format="onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("format", "size"),  # which the weights do not fit into, or the graph
    [
        ("onnx", 20_000),
        pytest.param("tf_saved_model", 20_000, marks=pytest.mark.tensorflow),
        pytest.param("tf_saved_model", 90_000, marks=pytest.mark.tensorflow),
    ],
)
def test_no_file_may_grow_any_further(tmp_path, monkeypatch, model, format, size):
    """As on a full disk, down to the system call."""
    import resource

    if format == "tf_saved_model":
        saved_model._runner()  # or it would start under the limit
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a part of it would stay
    weights = 4 * sum(np.size(v) for v in model.named_variables().values())
    assert (weights > size) == (size == 20_000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = tmp_path / "new" / "model"
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with pytest.raises(ExportError) as error:
            model.export(path, format, functions="forward")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert f"Could not write {path}: " in str(error.value)
    assert "File too large. Nothing was left behind" in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch, model):
    def denied(prefix, dir):
        raise PermissionError(13, "Permission denied", f"{dir}/{prefix}xyz")

    monkeypatch.setattr("tempfile.mkdtemp", denied)
    with pytest.raises(ExportError, match=f"Permission denied: '{tmp_path}'"):
        model.export(tmp_path / "m", "onnx")


def test_a_name_that_no_file_can_have_is_refused(tmp_path, model):
    for path in (tmp_path / f"{'a' * 245}.onnx", tmp_path / ("a" * 256)):
        with pytest.raises(ExportError, match="too long.*Nothing was left behind"):
            model.export(path, "onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_artifact_is_not_kept(tmp_path, monkeypatch, model):
    from kzoo.ops import nn, onnx_graph

    def wrong(self, op_type, *inputs, epsilon=None, **kwargs):
        if op_type == "LayerNormalization":
            epsilon = 0.5
        extra = {} if epsilon is None else {"epsilon": epsilon}
        return original(self, op_type, *inputs, **extra, **kwargs)

    original = onnx_graph.OnnxGraph.node
    assert nn.layer_norm
    monkeypatch.setattr(onnx_graph.OnnxGraph, "node", wrong)
    with pytest.raises(ExportError, match="differs by"):
        model.export(tmp_path / "model", format="onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.tensorflow
def test_a_wrong_serving_default_is_refused(tmp_path, monkeypatch):
    def wrong(function):
        right = function.call
        if function.name == "serving_default":
            function = dataclasses.replace(
                function,
                call=lambda inputs: {k: v + 1 for k, v in right(inputs).items()},
            )
        return original(function)

    original = saved_model._concrete
    monkeypatch.setattr(saved_model, "_concrete", wrong)
    with pytest.raises(ExportError, match="serving_default, as generate: "):
        make(kzoo.CausalLM, num_layers=1).export(
            tmp_path / "model", functions="generate"
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.tensorflow
def test_a_process_that_hangs_is_ended_and_one_that_ended_replaced(
    tmp_path, monkeypatch
):
    runner = tmp_path / "runner.py"
    model, path = make(kzoo.CausalLM, num_layers=1), tmp_path / "model"
    monkeypatch.setattr(saved_model, "_RUNNER", runner)
    monkeypatch.setattr(saved_model, "_START", 1)
    monkeypatch.setattr(saved_model, "_REQUEST", 0.01)
    saved_model._end(saved_model._runner())
    saved_model._runner.cache_clear()
    # A fork keeps the pipe open, where both hang and where its parent has ended.
    for hangs in ("os.fork()\ntime.sleep(1000)", "os.fork() or time.sleep(1000)"):
        runner.write_text(f"import os, time\n{hangs}\n")
        with pytest.raises(
            ExportError, match="model in a fresh .* no answer in .* was ended"
        ):
            model.export(path, functions="forward")
        assert list(tmp_path.iterdir()) == [runner]
    monkeypatch.undo()
    saved_model._runner().kill()
    model.export(path, functions="forward")
    weights = path / "variables" / "variables.data-00000-of-00001"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ExportError, match="cannot run .*model in a fresh process: "):
        verify(path, model)


@pytest.mark.tensorflow
def test_a_fork_that_ends_leaves_its_parent_s_process_alone():
    code = """
import os, sys, time
from kzoo.exporters import saved_model
process = saved_model._runner()
if not os.fork():
    sys.exit()
os.wait()
time.sleep(0.1)
print(process.poll())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "None\n", run.stderr


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_a_mixed_precision_model_is_refused(tmp_path, policy):
    with pytest.raises(ExportError, match=f"computes in .'{policy}'"):
        make(dtype=policy).export(tmp_path / "model", format="onnx")
    assert list(tmp_path.iterdir()) == []


def test_adapters_of_mixed_precision_are_exported_as_the_error_says(tmp_path):
    model = make(kzoo.CausalLM, num_layers=1, dtype="mixed_bfloat16")
    model.enable_lora(2)
    perturb(model.weights)
    said = r"dtype='float32', call merge_lora\(\), load this one's weights into it"
    with pytest.raises(ExportError, match=said):
        model.export(tmp_path / "model", format="onnx")
    model.merge_lora()
    model.save_safetensors(tmp_path / "weights.safetensors")
    full = make(kzoo.CausalLM, num_layers=1)
    full.load_safetensors(tmp_path / "weights.safetensors")
    assert full.export(tmp_path / "m.onnx", format="onnx", functions="forward").checks


def test_weights_that_are_not_finite_are_refused(tmp_path):
    model = make()
    variable = model.encoder.blocks[1].feed_forward.intermediate.bias
    variable.assign(np.full(variable.shape, np.nan))
    with pytest.raises(ExportError, match="layer_1/feed_forward/intermediate/bias"):
        model.export(tmp_path / "model", format="onnx")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(format="tflite"), "format must be"),
        (dict(path="o.onnx"), "a path that ends in .onnx is a file's"),
        (dict(path="o.onnx", format="genai"), "a path that ends in .onnx is a file's"),
        (dict(format="onnx", opset=12), "opset must be"),
        (dict(format="onnx", opset="18"), "opset must be a whole number"),
        (dict(format="onnx", functions=["step"], low_memory=True), "is of `generate`"),
        (dict(format="onnx", external_data_threshold=-1), "threshold must be a number"),
        (dict(format="onnx", opset=23, portable=True), "portable=True"),
        (dict(format="onnx", functions=["train"]), "functions must be"),
        (dict(format="onnx", exporter="other"), "exporter must be"),
        (dict(format="onnx", input_signature={}), "of exporter='tf2onnx'"),
        (dict(exporter="tf2onnx", functions="forward"), "of exporter='kzoo'"),
        (dict(exporter="tf2onnx", portable=True), "of exporter='kzoo'"),
        (dict(exporter="tf2onnx", external_data_threshold=9), "of exporter='kzoo'"),
    ],
)
def test_bad_options_are_named(tmp_path, model, options, message):
    path = tmp_path / options.get("path", "model")
    options = {name: value for name, value in options.items() if name != "path"}
    with pytest.raises(ExportError, match=message):
        model.export(path, **options)
    assert list(tmp_path.iterdir()) == []


def test_another_keras_model_is_sent_to_tf2onnx(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(ExportError, match="tf2onnx"):
        kzoo.exporters.export(model, tmp_path / "model.onnx", "onnx")


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="no TensorFlow")
def test_a_saved_model_needs_tensorflow(tmp_path):
    with pytest.raises(ExportError, match="KERAS_BACKEND=tensorflow"):
        make().export(tmp_path / "model")


@pytest.mark.tensorflow
def test_a_task_takes_the_second_road_too(tmp_path):
    model = make(kzoo.CausalLM, positions="rotary", num_layers=1)
    path = tmp_path / "model.onnx"
    report = model.export(
        path,
        format="onnx",
        exporter="tf2onnx",
        input_signature={
            "token_ids": keras.InputSpec(shape=(None, None), dtype="int32")
        },
    )
    assert report.files == {"model.onnx": path.stat().st_size}
    assert report.checks and all(c["difference"] <= 1e-4 for c in report.checks)


@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", [kzoo.CausalLM, kzoo.Seq2SeqLM])
def test_the_second_road_knows_what_a_task_takes(tmp_path, kind):
    model, path = make(kind, num_layers=1), tmp_path / "model.onnx"
    options = dict(functions="forward", external_data_threshold=1000)
    model.export(path, format="onnx", **options)
    model.export(path, format="onnx", exporter="tf2onnx", overwrite=True)
    assert list(tmp_path.iterdir()) == [path]
    report = verify(path, model)
    assert {c["function"] for c in report.checks} == {"forward"}
    with pytest.raises(ExportError, match="inputs of your own go with"):
        verify(path, model, [[5, 6]])
    (forward, _) = model.export_functions()
    inputs = onnxruntime.InferenceSession(path).get_inputs()
    assert {i.name: tuple(i.shape) for i in inputs} == {
        a.name: a.axes for a in forward.arguments
    }
    perturb(model.named_variables().values(), seed=9)
    with pytest.raises(ExportError, match="differs"):
        verify(path, model)
    variable = model.trainable_variables[0]
    variable.assign(np.full(variable.shape, np.nan))
    with pytest.raises(ExportError, match="holds NaN or infinity"):
        model.export(tmp_path / "nan.onnx", format="onnx", exporter="tf2onnx")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("positions", ["sinusoidal", "relative"])
def test_two_graphs_share_one_file_of_weights_and_large_constants(tmp_path, positions):
    model = make(
        kzoo.CausalLM,
        positions=positions,
        num_layers=1,
        hidden_dim=256,
        relative_max_distance=400,
        head_scale=1 / 16,
    )
    check(model.export(tmp_path / "model", format="onnx"))


def test_an_artifact_with_right_scores_and_wrong_tokens_is_refused(model):
    function = model.export_functions()[1]
    inputs = function.cases(np.random.default_rng(0))["greedy, batch 3, padded"]
    got = reference(function, inputs)
    wrong = {**got, "sequences": got["sequences"][..., ::-1] + 1}
    compare(function, "case", got, got, ExportReport("here", "onnx"))
    with pytest.raises(ExportError, match="3 of 3 sequences differ"):
        compare(function, "case", wrong, got, ExportReport("here", "onnx"))


@pytest.mark.parametrize(("factor", "accepted"), [(1e-6, True), (1e-4, False)])
def test_the_tolerance_grows_with_the_values(factor, accepted):
    model = make(num_layers=1)
    model.decoder.final_norm.gamma.assign(model.decoder.final_norm.gamma * 1000)
    function = model.export_functions()[0]
    inputs = function.cases(np.random.default_rng(0))["batch 1, length 5"]
    expected = reference(function, inputs)
    logits = expected["logits"]
    assert np.abs(logits).max() > 1000  # where 1e-4 is less than a float's rounding
    got = {"logits": logits * np.float32(1 + factor)}
    report = ExportReport("here", "onnx")
    if accepted:
        compare(function, "case", got, expected, report)
    else:
        with pytest.raises(ExportError, match="logits differs"):
            compare(function, "case", got, expected, report)


def test_a_model_with_few_learned_positions_exports(tmp_path):
    model = make(positions="learned", max_sequence_length=8, num_layers=1)
    model.export(tmp_path / "model.onnx", format="onnx")


@pytest.mark.usefixtures("remembered")
def test_a_file_never_stands_without_its_weights(tmp_path, monkeypatch, model):
    weights = tmp_path / "model.weights.bin"
    weights.write_bytes(b"mine")
    options = dict(format="onnx", functions="forward", external_data_threshold=10_000)
    with pytest.raises(ExportError, match="weights.bin exists"):
        model.export(tmp_path / "model.onnx", **options)
    with pytest.raises(ExportError, match="is the weights of no model.onnx"):
        model.export(tmp_path / "model.onnx", overwrite=True, **options)
    (tmp_path / "model.onnx").write_bytes(b"mine, too")
    replace, failed = pathlib.Path.replace, []

    def fail_on_the_model(self, target):
        if self.name == "model.onnx" and target.parent == tmp_path and not failed:
            failed.append(target)
            raise OSError(errno.EIO, "Input/output error")
        return replace(self, target)

    monkeypatch.setattr(pathlib.Path, "replace", fail_on_the_model)
    with pytest.raises(ExportError, match="Input/output error"):
        model.export(tmp_path / "model.onnx", overwrite=True, **options)
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert left == {"model.weights.bin": b"mine", "model.onnx": b"mine, too"}


def test_weights_of_another_file_are_not_removed(tmp_path, model):
    """Of `model.onnx`, which holds its own, they would have gone with it."""
    weights, path = tmp_path / "model.weights.bin", tmp_path / "model.onnx"
    options = dict(format="onnx", functions="forward", overwrite=True)
    model.export(path, external_data_threshold=10_000, **options)
    model.export(path, **options)
    assert not weights.exists()
    weights.write_bytes(b"mine")
    with pytest.raises(ExportError, match="is the weights of no model.onnx"):
        model.export(path, **options)
    assert weights.read_bytes() == b"mine"


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("inside", ["art", "art/deep"])
def test_an_artifact_is_replaced_from_inside_it(tmp_path, monkeypatch, model, inside):
    """Whose place is relative to a folder that is moved meanwhile."""
    path = tmp_path / "art"
    options = dict(format="onnx", functions="forward", overwrite=True)
    model.export(path, **options)
    (tmp_path / inside).mkdir(exist_ok=True)
    (path / "forward.onnx").write_bytes(b"older")
    monkeypatch.chdir(tmp_path / inside)
    model.export("../" * inside.count("/") + "../art", **options)
    assert [found.name for found in tmp_path.iterdir()] == ["art"]
    verify(path, model)


def test_failure_removes_the_folders_it_made(tmp_path, monkeypatch, model):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(onnx_file, "write_model", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.export(tmp_path / "new" / "folder" / "model", format="onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("prefix", [(5,), (6,), (4, 5, 6, 7)])
def test_a_prefix_of_the_model_s_own_is_in_no_case_s_way(tmp_path, prefix):
    """Whatever tokens a case bans, and however few a case adds."""

    class Prefixed(kzoo.Seq2SeqLM):
        target_prefix = prefix

    model = make(Prefixed, num_layers=1)
    report = model.export(tmp_path / "model.onnx", format="onnx", functions="generate")
    assert report.checks


# Each gives a result without an error, unless the artifact refuses it.
OUT_OF_RANGE = [
    (dict(beams=0), "beams must be at least 1"),
    (dict(beams=4097), "beams must be at most 4096"),
    (dict(num_return_sequences=0), "num_return_sequences must be at least 1"),
    (dict(max_new_tokens=0), "max_new_tokens must be at least 1"),
    (dict(max_new_tokens=-1), "max_new_tokens must be at least 1"),
    (dict(length_penalty=float("nan")), "length_penalty must be at least -5"),
    (dict(length_penalty=99.0), "length_penalty must be at most 5"),
    (dict(temperature=-1.0), "temperature must be at least 0"),
    (dict(temperature=float("nan")), "temperature must be at least 0"),
    (dict(temperature=float("inf")), "temperature must be at most 1e\\+30"),
    (dict(temperature=1.0, beams=2), "temperature must be 0 with several beams"),
    (dict(top_k=-1), "top_k must be at least 0"),
    (dict(top_p=1.5), "top_p must be at most 1"),
    (dict(min_p=-0.5), "min_p must be at least 0"),
    (dict(repetition_penalty=0.0), "repetition_penalty must be at least"),
    (dict(no_repeat_ngram_size=-1), "no_repeat_ngram_size must be at least 0"),
    (dict(min_new_tokens=-1), "min_new_tokens must be at least 0"),
    (dict(num_return_sequences=3), "num_return_sequences must be at most beams"),
    (dict(encoder_token_ids=[[5, -1]]), r"encoder_token_ids must be in \[0, 29\)"),
    (dict(encoder_token_ids=[[5, 29]]), r"encoder_token_ids must be in \[0, 29\)"),
    (dict(encoder_token_ids=[[]]), "encoder_token_ids must have a place for one id"),
    (
        dict(encoder_token_ids=np.zeros((0, 3), int)),
        "encoder_token_ids must have a row for one prompt",
    ),
    (dict(banned_token_ids=[29]), r"banned_token_ids must be in \[0, 29\)"),
    (dict(stop_token_ids=[-1]), r"stop_token_ids must be in \[0, 29\)"),
    (dict(automaton=[[0] * 28 + [2]]), r"automaton must be in \[-1, states\]"),
    (dict(automaton=[[0] * 28 + [-2]]), r"automaton must be in \[-1, states\]"),
    (dict(forced_token_ids=[[29]]), r"forced_token_ids must be in \[-1, 29\)"),
    (dict(forced_token_ids=[[5], [6]]), "forced_token_ids must be 1 row, or one for"),
    (dict(forced_token_ids=[[5, 6, 7, 8]]), "forced_token_ids must be no longer than"),
    (
        dict(forced_token_ids=[[5, -1, 7]], banned_token_ids=[3, 7]),
        "forced_token_ids must be other ids than banned_token_ids",
    ),
    (dict(min_new_tokens=4), "min_new_tokens must be at most max_new_tokens"),
    (dict(top_k=5), "top_k must be 0 without a temperature"),
    (dict(top_p=0.5), "top_p must be 1 without a temperature"),
    (dict(min_p=0.5), "min_p must be 0 without a temperature"),
]


def test_a_report_cut_short_is_named(tmp_path):
    model = make(num_layers=1)
    model.export(tmp_path / "model", format="onnx", functions="forward")
    report = tmp_path / "model" / "report.json"
    report.write_bytes(report.read_bytes()[:50])
    with pytest.raises(ExportError, match=r"report.json was cut short"):
        verify(tmp_path / "model", model)


def test_an_artifact_refuses_more_than_the_learned_positions(tmp_path):
    model = make(
        kzoo.CausalLM, positions="learned", max_sequence_length=8, num_layers=1
    )
    model.export(tmp_path / "model.onnx", format="onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    feed = {"token_ids": np.array([[5, 6, 7, 8, 0], [0, 0, 0, 0, 5]])}
    fits = session.run(None, feed | {"max_new_tokens": np.array(4)})
    assert fits[0].shape[:2] == (2, 1)
    too_long = {"token_ids": np.full((1, 20), 5), "max_new_tokens": np.array(1)}
    for wrong in (feed | {"max_new_tokens": np.array(5)}, too_long):
        with pytest.raises(Exception, match="must fit into 8 positions"):
            session.run(None, wrong)


@pytest.mark.usefixtures("remembered")
def test_a_report_says_what_a_search_of_the_file_begins_without(tmp_path):
    model = make(kzoo.CausalLM, num_layers=1)
    model.search_defaults = {"stop_tokens": [5], "temperature": 0.5}
    for names, said in (("generate", True), ("forward", False)):
        path = tmp_path / f"{names}.onnx"
        report = str(model.export(path, format="onnx", functions=names))
        note = "not begin with the task's search_defaults {'temperature': 0.5}"
        assert (note in report and "search_inputs('onnx')" in report) == said
    assert model.search_inputs("onnx")["temperature"] == 0.5


@pytest.mark.tensorflow
def test_a_saved_model_refuses_the_largest_number_too(tmp_path, greedy):
    import tensorflow as tf

    model = make(
        kzoo.CausalLM, positions="learned", max_sequence_length=8, num_layers=1
    )
    model.export(tmp_path / "model", format="tf_saved_model", functions="generate")
    generate = tf.saved_model.load(tmp_path / "model").signatures["generate"]
    feed = model.search_inputs(max_new_tokens=2)
    feed["token_ids"] = np.array([[5]], "int32")
    for limit in (8, 2**31 - 1):
        given = feed | {"max_new_tokens": np.array(limit, "int32")}
        with pytest.raises(tf.errors.InvalidArgumentError, match="fit into 8 pos"):
            generate(**{name: tf.constant(value) for name, value in given.items()})


@pytest.mark.parametrize("kind", [kzoo.CausalLM, kzoo.Seq2SeqLM])
def test_every_function_says_how_many_ids_it_reads(tmp_path, kind):
    model = make(kind, positions="learned", max_sequence_length=8, num_layers=1)
    functions = [*model.stepwise_functions(), *model.export_functions()]
    options = dict(opset=None, portable=False, metadata={})
    _, paths = write(functions, names_of(model), tmp_path / "model", **options)
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    sessions = {
        n: onnxruntime.InferenceSession(path, quiet) for n, path in paths.items()
    }

    def run(function, **inputs):
        inputs = {name: np.array(x) for name, x in inputs.items()}
        return sessions[function].run(None, inputs)

    names, fits, more = model._signature(), [[5] * 8], [[5] * 9]
    run("forward", **dict.fromkeys(names, fits))
    for name in names:
        with pytest.raises(Exception, match=f"{name} must have at most 8 ids"):
            run("forward", **dict.fromkeys(names, fits) | {name: more})
    prompt = model.prompt_input
    logits, *cache = run("prefill", **{prompt: fits})
    with pytest.raises(Exception, match=f"{prompt} must have at most 8 ids"):
        run("prefill", **{prompt: more})
    if kind is kzoo.Seq2SeqLM:
        run("generate", **{prompt: fits}, max_new_tokens=2)
        with pytest.raises(Exception, match=f"{prompt} must have at most 8 ids"):
            run("generate", **{prompt: more}, max_new_tokens=2)
    else:  # padding takes no positions
        run("prefill", **{prompt: [[0] * 4 + [5] * 8]})
    places = 8 if kind is kzoo.CausalLM else 1
    step = [i.name for i in sessions["step"].get_inputs()][1:]
    for _ in range(8 - places):
        logits, *present = run("step", tokens=[5], **dict(zip(step, cache)))
        cache[: len(present)] = present
    with pytest.raises(Exception, match="tokens must be behind at most 7 others"):
        run("step", tokens=[5], **dict(zip(step, cache)))


def test_a_seed_of_a_file_is_an_int32(generating):
    feed = {"encoder_token_ids": np.array([[5, 6]]), "max_new_tokens": np.array(3)}
    feed |= {"temperature": np.array(1.0, "float32"), "seed": np.array(2**40)}
    with pytest.raises(Exception, match="seed must be at most 2147483647"):
        generating.run(None, feed)


@pytest.mark.parametrize(("options", "message"), OUT_OF_RANGE)
def test_an_artifact_refuses_options_out_of_range(generating, options, message):
    feed = {"encoder_token_ids": [[5, 6, 7]], "max_new_tokens": 3, **options}
    dtypes = {bool: "bool", float: "float32"}
    feed = {k: np.array(v, dtypes.get(type(v), "int64")) for k, v in feed.items()}
    with pytest.raises(Exception, match=f"(?s)Name:'{message}.*out of data bounds"):
        generating.run(None, feed)


def test_every_function_refuses_ids_that_are_none_of_the_model_s(tmp_path):
    names = ["forward", "prefill", "step"]
    model = make(kzoo.CausalLM, num_layers=1)
    model.export(tmp_path / "model", format="onnx", functions=names)
    forward, prefill, step = (
        onnxruntime.InferenceSession(tmp_path / "model" / f"{name}.onnx")
        for name in names
    )
    logits, *cache = prefill.run(None, {"token_ids": np.array([[5, 6]])})
    feed = dict(zip([i.name for i in step.get_inputs()][1:], cache, strict=True))
    for session, inputs in (
        (forward, {"token_ids": [[5, 1]]}),
        (prefill, {"token_ids": [[5, 1]]}),
        (step, {"tokens": [1], **feed}),
    ):
        (name, ids), *_ = inputs.items()
        session.run(None, {**inputs, name: np.array(ids)})
        for wrong in (-1, 29):
            with pytest.raises(Exception, match=rf"(?s){name} must be in \[0, 29\)"):
                session.run(None, {**inputs, name: np.array(ids) * 0 + wrong})


@pytest.mark.parametrize("beams", [1, 2])
def test_an_artifact_refuses_more_sequences_than_beams(generating, beams):
    session = generating
    feed = {"encoder_token_ids": np.array([[5, 6, 7]]), "max_new_tokens": np.array(3)}
    feed["beams"] = np.array(beams)
    for count in range(1, beams + 1):
        _, scores = session.run(None, feed | {"num_return_sequences": np.array(count)})
        assert scores.shape == (1, count)
    with pytest.raises(Exception, match="num_return_sequences must be at most beams"):
        session.run(None, feed | {"num_return_sequences": np.array(beams + 1)})


@pytest.mark.tensorflow
def test_a_saved_model_refuses_more_sequences_than_beams(saved):
    import tensorflow as tf

    model, path, _ = saved(kzoo.Seq2SeqLM)
    generate = tf.saved_model.load(str(path)).signatures["generate"]
    options = model.search_inputs(max_new_tokens=3, beams=2)
    del options["num_return_sequences"]
    tensors = {k: tf.convert_to_tensor(v) for k, v in options.items()}
    tensors["encoder_token_ids"] = tf.constant([[5, 6, 7]])
    kept = generate(**tensors, num_return_sequences=tf.constant(2))
    assert kept["scores"].shape == (1, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most beams"):
        generate(**tensors, num_return_sequences=tf.constant(3))
    tensors["num_return_sequences"] = tf.constant(1)
    for options, message in OUT_OF_RANGE:
        wrong = {k: tf.constant(v, tensors[k].dtype) for k, v in options.items()}
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            generate(**tensors | wrong)


class Foreign(kzoo.TextClassifier):
    """A task that computes with Keras's own ops."""

    def call(self, inputs, training=None):
        """The logits, in (-1, 1)."""
        return keras.ops.tanh(super().call(inputs, training))


class Softened(kzoo.TextClassifier):
    """A task with a layer of its own, whose activation kzoo.ops lacks."""

    def build(self, input_shape=None):
        """Makes the layer, too."""
        self.softened = Dense(2, activation="softplus", name="softened")
        self.softened.build((None, 2))
        super().build(input_shape)

    def call(self, inputs, training=None):
        """The logits, above 0."""
        return self.softened(super().call(inputs, training))


@pytest.mark.parametrize(
    "task, place", [(Foreign, "Foreign '"), (Softened, "Dense '.*softened'")]
)
def test_a_task_that_is_not_over_kzoo_ops_is_told_so(task, place, tmp_path):
    model = harness.small_task(task, num_classes=2)
    says = f"not of kzoo.ops.*exporter='tf2onnx'.*Received, in {place}"
    with pytest.raises(ExportError, match=says):
        model.export(tmp_path / "model.onnx", format="onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.tensorflow
def test_a_processor_with_a_variable_is_told_so(tmp_path):
    model, bias = (
        make(kzoo.CausalLM, num_layers=1),
        keras.Variable(np.zeros(29, "float32")),
    )
    model.processors = (lambda scores, context: scores + bias,)
    with pytest.raises(ExportError, match="make it a constant there"):
        model.export(tmp_path / "model", functions="generate")
    assert not list(tmp_path.iterdir())


def test_what_comes_into_being_meanwhile_stays(tmp_path, monkeypatch):
    model, path = (
        harness.small_task(kzoo.TextClassifier, num_classes=2),
        tmp_path / "model",
    )
    write = onnx_export.write

    def written(*args, **kwargs):
        path.mkdir()
        (path / "mine.txt").write_text("mine")
        return write(*args, **kwargs)

    monkeypatch.setattr(onnx_export, "write", written)
    with pytest.raises(ExportError, match="has come into being"):
        model.export(path, format="onnx")
    assert [file.name for file in path.iterdir()] == ["mine.txt"]


@pytest.mark.tensorflow
def test_a_threshold_of_none_is_refused_too(tmp_path):
    model = harness.small_task(kzoo.TextClassifier, num_classes=2)
    with pytest.raises(ExportError, match="external_data_threshold are options of"):
        model.export(tmp_path / "model", external_data_threshold=0)


@pytest.mark.parametrize(
    ("kind", "places"),
    [(kzoo.CausalLM, 2), (kzoo.CausalLM, 7), (kzoo.Seq2SeqLM, 3)],
)
def test_a_model_of_few_positions_is_exported(tmp_path, kind, places):
    model = make(kind, positions="learned", max_sequence_length=places)
    report = model.export(tmp_path / "model.onnx", format="onnx")
    assert {check["function"] for check in report.checks} == {"generate"}
