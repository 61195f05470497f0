"""Folders for onnxruntime-genai: names, files, and the tokens that it generates."""

import importlib.util
import json
import shutil

import keras
import numpy as np
import onnxruntime
import pytest
import tokenizers

import kzoo
from kzoo.exporters import ExportError, ExportReport, verify
from tests.harness import perturb, set_head_bias

SMALL = dict(num_layers=2, hidden_dim=16, intermediate_dim=32, num_heads=4)
TEXTS = ["the man rides a bike", "a dog runs", "Zwei Männer, 3 Hunde: don't!"]
GQA, WINDOW = dict(num_key_value_heads=2), dict(attention_window=4)
GENAI = importlib.util.find_spec("onnxruntime_genai") is not None
needs_genai = pytest.mark.skipif(not GENAI, reason="needs onnxruntime-genai")


def make(tokenizer=None, kind=kzoo.CausalLM, **changes):
    changes = SMALL | dict(tie_head=False) | changes
    if tokenizer is None:
        changes["vocabulary_size"] = 29
    model = kind.from_size("tiny", tokenizer, **changes)
    perturb(model.named_variables().values())
    return model


@pytest.fixture(scope="module")
def bytes_tokenizer():
    return kzoo.FastTokenizer.train(TEXTS, 280)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, bytes_tokenizer):
    """A model with grouped queries, its folder, and the report."""
    keras.utils.set_random_seed(0)
    model = make(bytes_tokenizer, positions="rotary", **GQA)
    path = tmp_path_factory.mktemp("genai") / "model"
    return model, path, model.export(path, format="genai")


def greedy_in_genai(path, prompts, count):
    """Rows padded on the right as genai's tokenizer pads them; new tokens alone."""
    import onnxruntime_genai

    model = onnxruntime_genai.Model(str(path))
    options = onnxruntime_genai.GeneratorParams(model)
    longest = max(map(len, prompts))
    options.set_search_options(max_length=longest + count, batch_size=len(prompts))
    generator = onnxruntime_genai.Generator(model, options)
    rows = [row + [0] * (longest - len(row)) for row in prompts]
    generator.append_tokens(np.array(rows, "int32"))
    while not generator.is_done():
        generator.generate_next_token()
    rows = [generator.get_sequence(i)[longest:].tolist() for i in range(len(prompts))]
    return [row[: row.index(2)] if 2 in row else row for row in rows]


@pytest.mark.parametrize(
    "changes",
    [
        dict(positions="none", **GQA),
        dict(positions="learned", max_sequence_length=20),
        dict(positions="rotary", max_sequence_length=5),
        dict(positions="sinusoidal", norm_position="post", **WINDOW),
        dict(positions="rotary", query_key_norm=True, norm="rms_norm", **WINDOW),
        dict(positions="relative", **GQA, **WINDOW),
        dict(positions="alibi", num_key_value_heads=1),
    ],
)
def test_every_kind_of_positions_runs(tmp_path, changes):
    """Padded on both sides; with a cache, and as Keras computes without one."""
    model = make(num_layers=1, **changes)
    report = model.export(tmp_path / "model", format="genai")
    assert set(report.functions) == {"model"}
    assert all(check["difference"] <= 1e-4 for check in report.checks)
    cases = [check["case"] for check in report.checks]
    assert {"batch 3, padded on the right, 1 more", "token by token, padded"} <= {
        *cases
    }
    equal = [check["case"] for check in report.checks if "tokens_equal" in check]
    runtimes = ["onnxruntime", "onnxruntime-genai"][: 1 + GENAI]
    assert equal == [f"greedy in {runtime}" for runtime in runtimes]


def test_portable_operators_run(tmp_path):
    model = make(positions="rotary", num_layers=1, **GQA)
    report = model.export(tmp_path / "model", format="genai", portable=True)
    assert report.opset == 18 and "Attention" not in report.operators["model"]


def test_names_dtypes_and_axes_are_those_of_the_ecosystem(folder):
    _, path, _ = folder
    session = onnxruntime.InferenceSession(path / "model.onnx")
    inputs = {i.name: (i.type, i.shape) for i in session.get_inputs()}
    past = ["batch", 2, "past_sequence", 4]
    assert inputs == {
        "input_ids": ("tensor(int64)", ["batch", "sequence"]),
        "attention_mask": ("tensor(int64)", ["batch", "total_sequence"]),
        "position_ids": ("tensor(int64)", ["batch", "sequence"]),
        "past_key_values.0.key": ("tensor(float)", past),
        "past_key_values.0.value": ("tensor(float)", past),
        "past_key_values.1.key": ("tensor(float)", past),
        "past_key_values.1.value": ("tensor(float)", past),
    }
    outputs = {o.name: (o.type, o.shape) for o in session.get_outputs()}
    present = ["batch", 2, "total_sequence", 4]
    names = ["present.0.key", "present.0.value", "present.1.key", "present.1.value"]
    vocabulary = folder[0].config.decoder.vocabulary_size
    assert outputs == {
        "logits": ("tensor(float)", ["batch", "sequence", vocabulary]),
        **{name: ("tensor(float)", present) for name in names},
    }


@pytest.mark.parametrize("length", [1, 3, 5])
def test_a_mask_of_another_length_than_cache_and_ids_is_named(folder, length):
    """One of length 1 would be that of all."""
    session = onnxruntime.InferenceSession(folder[1] / "model.onnx")
    past = {
        value.name: np.zeros((1, 2, 1, value.shape[3]), "float32")
        for value in session.get_inputs()
        if value.name.startswith("past")
    }
    feed = dict(input_ids=[[3, 4, 5]], position_ids=[[1, 2, 3]])
    feed |= dict(attention_mask=np.ones((1, length)))
    feed = {name: np.array(value, "int64") for name, value in feed.items()}
    with pytest.raises(Exception, match="attention_mask must be as long as the cache"):
        session.run(None, {**feed, **past})


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[1, 1, 1]], "attention_mask must have as many rows as input_ids"),
        ([[1, 2, 1], [1, 1, 1]], r"attention_mask must be in \[0, 2\)"),
        ([[1, 1, 1], [1, -1, 1]], r"attention_mask must be in \[0, 2\)"),
    ],
)
def test_a_mask_that_is_none_of_the_rows_is_named(folder, mask, message):
    """One row would be that of all, and a 2 would move the places behind it."""
    session = onnxruntime.InferenceSession(folder[1] / "model.onnx")
    past = {
        value.name: np.zeros((2, 2, 0, value.shape[3]), "float32")
        for value in session.get_inputs()
        if value.name.startswith("past")
    }
    feed = dict(input_ids=[[3, 4, 5]] * 2, position_ids=[[0, 1, 2]] * 2)
    feed = {
        n: np.array(x, "int64") for n, x in {**feed, "attention_mask": mask}.items()
    }
    with pytest.raises(Exception, match=message):
        session.run(None, {**feed, **past})


def test_the_configs_say_what_the_model_is(folder, bytes_tokenizer):
    _, path, report = folder
    assert {*report.files} == {
        "model.onnx",
        "weights.bin",
        "config.json",
        "genai_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    genai = json.loads((path / "genai_config.json").read_text())
    size = bytes_tokenizer.vocabulary_size
    ids = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)
    model = genai["model"]
    assert {name: model[name] for name in ids} == ids
    assert (model["vocab_size"], model["context_length"]) == (size, 512)
    decoder = model["decoder"]
    assert decoder["filename"] == "model.onnx"
    assert decoder["num_hidden_layers"] == decoder["num_key_value_heads"] == 2
    assert decoder["num_attention_heads"] == decoder["head_size"] == 4
    assert decoder["hidden_size"] == 16
    assert decoder["inputs"]["past_key_names"] == "past_key_values.%d.key"
    assert genai["search"]["past_present_share_buffer"] is False
    config = json.loads((path / "config.json").read_text())
    assert {name: config[name] for name in ids} == ids
    assert (config["vocab_size"], config["num_hidden_layers"]) == (size, 2)
    assert (config["num_key_value_heads"], config["head_dim"]) == (2, 4)
    assert kzoo.ModelConfig.from_dict(config["model"]) == folder[0].config


@needs_genai
def test_genai_generates_the_tokens_of_keras(folder):
    model, path, report = folder
    prompts = [[1, 30, 40, 50, 60, 70], [1, 99], [1, 8, 120, 77]]
    expected = model.generate(prompts, max_new_tokens=20)
    assert greedy_in_genai(path, prompts, 20) == expected
    assert len({token for row in expected for token in row}) > 9  # no mere repetition
    assert "onnxruntime-genai" in report.runtime


@needs_genai
def test_rows_that_end_early_are_equal_too(tmp_path):
    model = make(positions="alibi", head_bias=True, num_layers=1)
    set_head_bias(model, 2, 1.5)
    report = model.export(tmp_path / "model", format="genai")
    prompts = [[1, row, 3 + row] for row in range(3, 13)]
    expected = model.generate(prompts, max_new_tokens=12)
    assert greedy_in_genai(tmp_path / "model", prompts, 12) == expected
    assert len({len(row) for row in expected}) > 2
    assert report.checks[-1]["tokens_equal"]


@pytest.mark.usefixtures("eager")
def test_stop_tokens_end_what_genai_writes(tmp_path):
    """The tokens of `search_defaults`, as well as the end token."""
    model = make(num_layers=1, positions="none")
    (first,) = model.generate([[1, 7, 9]], max_new_tokens=3)
    model.search_defaults = {"stop_tokens": [first[0]], "min_new_tokens": 0}
    assert model.generate([[1, 7, 9]], max_new_tokens=3) == [[]]
    path = tmp_path / "model"
    report = model.export(path, format="genai")
    assert "not know the task's search_defaults {'min_new_tokens': 0}" in str(report)
    for name in ("genai_config.json", "config.json"):
        said = json.loads((path / name).read_text())
        said = said.get("model", {}) if name == "genai_config.json" else said
        assert said["eos_token_id"] == [2, first[0]]
    if GENAI:
        assert greedy_in_genai(path, [[1, 7, 9]], 3)[0] in ([], first[:1])
    assert verify(path, model).format == "genai"
    model.search_defaults = {}
    with pytest.raises(ExportError, match="eos_token_id should be 2,"):
        verify(path, model)


@needs_genai
def test_genai_s_tokenizer_gives_the_same_ids_and_texts(folder):
    import onnxruntime_genai

    model, path, _ = folder
    tokenizer = onnxruntime_genai.Tokenizer(onnxruntime_genai.Model(str(path)))
    for text in [*TEXTS, "  so\n\nmany   spaces ", "東京 🙂 naïve"]:
        (ids,) = model.tokenizer.encode([text])
        assert tokenizer.encode(text).tolist() == ids
        assert tokenizer.decode(ids) == model.tokenizer.decode([ids])[0]
        assert tokenizer.encode("<s>" + text).tolist() == [1, *ids]


def test_tokenizer_json_puts_the_start_token_before_the_text(folder):
    model, path, _ = folder
    tokenizer = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    assert tokenizer.encode(TEXTS[0]).ids == model.encode_prompts(TEXTS[:1])[0]


@pytest.mark.parametrize(
    "tokenizer",
    [
        kzoo.FastTokenizer.train(TEXTS, 60, algorithm="character"),
        kzoo.FastTokenizer.train(TEXTS, 280, lowercase=True),
        kzoo.SentencePieceTokenizer.train(TEXTS, 40),
    ],
)
def test_a_tokenizer_that_genai_misreads_is_left_out(tmp_path, tokenizer):
    report = ExportReport(str(tmp_path), "genai")
    model = make(tokenizer, num_layers=1)
    kzoo.exporters.genai.describe(model, tmp_path, report)
    files = {file.name for file in tmp_path.iterdir()}
    assert files == {"config.json", "genai_config.json"}
    assert "No tokenizer.json" in str(report)
    report.save(tmp_path / "report.json")
    saved = json.loads((tmp_path / "report.json").read_text())
    assert saved["notes"] == report.notes != []


@needs_genai
def test_a_tokenizer_with_other_ids_in_genai_is_left_out(
    tmp_path, bytes_tokenizer, monkeypatch
):
    class Other:
        def __init__(self, model):
            pass

        def encode(self, text):
            return np.array([5])

    monkeypatch.setattr("onnxruntime_genai.Tokenizer", Other)
    model = make(bytes_tokenizer, num_layers=1)
    report = model.export(tmp_path / "out", format="genai")
    assert not any("tokenizer" in name for name in report.files)
    assert "gives other ids than the task's tokenizer" in str(report)


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("genai", [pytest.param(True, marks=needs_genai), False])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", None),
        ("tokenizer_config.json", "{"),
        ("genai_config.json", "{"),
    ],
)
def test_damaged_files_are_refused_and_stay(
    folder, tmp_path, monkeypatch, genai, name, content
):
    """By what kzoo writes; and by what onnxruntime-genai makes of it."""
    model, path, _ = folder
    shutil.copytree(path, tmp_path / "out")
    if content is None:  # another tokenizer, which can be read
        said = json.loads((path / name).read_text())
        said["model"]["merges"] = said["model"]["merges"][:1]
        content = json.dumps(said)
    (tmp_path / "out" / name).write_text(content)
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    if genai:
        monkeypatch.setattr(kzoo.exporters.genai, "_check_files", lambda *_: None)
    elif GENAI:
        find = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name: None if name == "onnxruntime_genai" else find(name),
        )
    with pytest.raises(ExportError, match="tokenizer|genai_config"):
        verify(tmp_path / "out", model)
    after = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    assert after == before


@pytest.mark.parametrize(
    ("name", "keys", "value"),
    [
        ("genai_config.json", "model.bos_token_id", 5),
        ("genai_config.json", "model.pad_token_id", 5),
        ("genai_config.json", "model.eos_token_id", [2, 3]),
        ("genai_config.json", "model.context_length", 10**6),
        ("genai_config.json", "model.context_length", 0),
        ("genai_config.json", "model.decoder.inputs.input_ids", "ids"),
        ("genai_config.json", "search.max_length", 10**6),
        ("genai_config.json", "search.past_present_share_buffer", True),
        ("genai_config.json", "search", None),
        ("config.json", "vocab_size", 7),
        ("config.json", "eos_token_id", 3),
        ("config.json", "model.decoder.num_heads", 2),
        ("config.json", "model.start_token_id", 4),
        ("config.json", "model.start_token_id", "four"),
        ("config.json", "model.decoder", []),
    ],
)
def test_a_config_that_says_otherwise_is_refused(folder, tmp_path, name, keys, value):
    model, path, _ = folder
    shutil.copytree(path, tmp_path / "out")
    said = inner = json.loads((path / name).read_text())
    *outer, last = keys.split(".")
    for key in outer:
        inner = inner[key]
    inner[last] = value
    (tmp_path / "out" / name).write_text(json.dumps(said))
    with pytest.raises(ExportError, match=f"{name}.*{last}|{name} was cut short"):
        verify(tmp_path / "out", model)


def test_how_it_is_run_and_searched_is_the_user_s(folder, tmp_path):
    model, path, _ = folder
    shutil.copytree(path, tmp_path / "out")
    said = json.loads((path / "genai_config.json").read_text())
    said["model"]["decoder"]["session_options"]["intra_op_num_threads"] = 1
    said["search"] |= dict(top_k=3, do_sample=True, max_length=64)
    said["model"]["context_length"] = 128
    (tmp_path / "out" / "genai_config.json").write_text(json.dumps(said))
    assert verify(tmp_path / "out", model).format == "genai"


def test_without_the_package_the_report_says_so(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == "onnxruntime_genai" else find(name),
    )
    report = make(num_layers=1).export(tmp_path / "out", format="genai")
    assert "Not run in onnxruntime-genai" in str(report)
    assert report.checks[-1]["case"] == "greedy in onnxruntime"


def test_an_artifact_of_other_weights_is_refused(tmp_path):
    model = make(num_layers=1)
    model.export(tmp_path / "out", format="genai")
    assert verify(tmp_path / "out", model).format == "genai"
    perturb(model.named_variables().values(), seed=5)
    with pytest.raises(ExportError, match="differs"):
        verify(tmp_path / "out", model)


def test_wrong_tokens_are_refused(tmp_path, monkeypatch):
    """The graph is right, and what feeds it counts padding as real."""

    def inputs(ids, mask):
        return original(ids, np.ones_like(mask))

    original = kzoo.exporters.genai.model_inputs
    monkeypatch.setattr(kzoo.exporters.genai, "model_inputs", inputs)
    with pytest.raises(ExportError, match="token by token"):
        make(num_layers=1).export(tmp_path / "out", format="genai")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("other", ["alike", "worse"])
def test_a_token_may_be_another_where_the_two_tie(tmp_path, monkeypatch, other):
    model = make(num_layers=1, tie_head=True)
    decode, new = kzoo.exporters.genai._decode, 28

    def decoded(*arguments):
        tokens, logits = decode(*arguments)
        assert not (tokens == new).any()
        if other == "worse":  # at the end, where no logits follow from it
            return np.pad(tokens[:, :-1], ((0, 0), (0, 1)), constant_values=new), logits
        tokens[1:] = np.where(tokens[1:] == token, new, tokens[1:])
        return tokens, logits

    inputs = model._random_ids(np.random.default_rng(1), "token_ids", (3, 12), True)
    token = model.generate({"token_ids": inputs}, max_new_tokens=1)[1][0]
    table = model.named_variables()["decoder/token_embedding/embeddings"]
    rows = keras.ops.convert_to_numpy(table).copy()
    rows[new] = rows[token] * (1.0 if other == "alike" else 0.5)
    table.assign(rows)
    monkeypatch.setattr(kzoo.exporters.genai, "_decode", decoded)
    if other == "worse":
        with pytest.raises(ExportError, match="as Keras generates them"):
            model.export(tmp_path / "out", format="genai")
        return
    report = model.export(tmp_path / "out", format="genai")
    ties = {check["case"]: check.get("ties") for check in report.checks}
    assert ties["greedy in onnxruntime"] >= 1
    assert "ties between two tokens" in str(report)


def test_tokens_tie_within_the_rounding_of_the_best_alone():
    model = make(num_layers=1, head_bias=True)
    tied, prompt = kzoo.exporters.genai._are_tied, [5, 6, 7]

    def logits(tokens):
        return kzoo.exporters.genai._logits(model, prompt + tokens)[-1]

    def best(tokens):
        return int(logits(tokens).argmax())

    first, second = np.argsort(logits([]))[:-3:-1].tolist()
    right = [first, best([first])]
    behind = [second, best([second])]  # wrong, and then right
    last = [first, int(np.argsort(logits([first]))[-2])]  # the other way
    assert tied(model, prompt, right, 2, [2])
    assert tied(model, prompt, right, 4, [best(right)])
    assert not tied(model, prompt, right, 4, [best(right) - 1])
    for wrong in (behind, last):
        assert not tied(model, prompt, wrong, 2, [2])
    bias = keras.ops.convert_to_numpy(model.named_variables()["head/bias"]).copy()
    gap = float(logits([])[first] - logits([])[second])
    for away, right in ((1e-5, True), (1e-3, False)):
        set_head_bias(model, second, bias[second] + gap - away)
        behind[1] = best([second])
        assert tied(model, prompt, behind, 2, [2]) == right
    set_head_bias(model, 4, -1e9)  # as of a banned token
    assert not tied(model, prompt, behind, 2, [2])


def test_other_tasks_are_refused_by_name(tmp_path):
    translator = make(kind=kzoo.Seq2SeqLM, num_layers=1)
    with pytest.raises(ExportError, match="Received: Seq2SeqLM"):
        translator.export(tmp_path / "out", format="genai")
    masked = make(kind=kzoo.MaskedLM, num_layers=1, mask_token_id=4)
    with pytest.raises(ExportError, match="Received: MaskedLM"):
        masked.export(tmp_path / "out", format="genai")
    for options, message in (
        (dict(functions="generate"), "functions and text are no options"),
        (dict(external_data_threshold=9), "are options of format='onnx'"),
    ):
        with pytest.raises(ExportError, match=message):
            make(num_layers=1).export(tmp_path / "out", format="genai", **options)
    assert list(tmp_path.iterdir()) == []


def test_processors_are_refused_by_name(tmp_path):
    model = make()
    model.processors = (lambda scores, context: scores,)
    with pytest.raises(ExportError, match="knows no processors"):
        model.export(tmp_path / "g", format="genai")
    assert not (tmp_path / "g").exists()
