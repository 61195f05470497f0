"""`low_memory=True`: the same search in a file that needs little memory."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import kzoo
from kzoo import ops
from kzoo.exporters import ExportError
from kzoo.exporters.onnx_session import open_session
from tests.harness import MODERN, nodes, perturb
from tests.harness import small_task as make

SEARCHES = [
    {},
    dict(max_new_tokens=1),
    dict(beams=3, num_return_sequences=2, length_penalty=0.6),
    dict(temperature=0.9, top_k=7, seed=5),
    dict(repetition_penalty=1.3, no_repeat_ngram_size=2, banned_tokens=[5]),
    dict(stop_tokens=[6, 7, 8], min_new_tokens=3),
    dict(beams=2, early_stopping=False, forced_prefix=[9, 10]),
    dict(forced_tokens={2: 11}),
]
WITHOUT_LIMIT = dict(forced_prefix=[9, 2], max_new_tokens=2**31 - 1)  # 2 is the end

LOW = dict(format="onnx", low_memory=True)
GENERATE = dict(functions="generate")


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize(
    ("kind", "portable", "changes"),
    [
        (kzoo.CausalLM, True, dict(positions="learned", num_layers=1)),
        (kzoo.CausalLM, False, dict(positions="rotary", tie_head=False, **MODERN)),
        (
            kzoo.CausalLM,
            False,
            dict(positions="alibi", attention_window=3, num_layers=1),
        ),
        (
            kzoo.CausalLM,
            False,
            dict(positions="rotary", attention_soft_cap=2.0, num_layers=1),
        ),
        (kzoo.Seq2SeqLM, False, dict(similarity="general", num_key_value_heads=1)),
        (kzoo.Seq2SeqLM, True, dict(positions="relative", num_layers=1)),
        (kzoo.Seq2SeqLM, False, dict(head_bias=True, num_layers=1)),
    ],
)
def test_it_searches_as_the_other_file_does(tmp_path, kind, changes, portable):
    model = make(kind, **changes)
    name, bounded = model.prompt_input, model.config.decoder.positions == "learned"
    for path, options in (("low", LOW), ("other", dict(format="onnx"))):
        model.export(tmp_path / path, portable=portable, **GENERATE, **options)
    low, other = (
        open_session(tmp_path / path / "generate.onnx", prepacked=True)
        for path in ("low", "other")
    )
    for ids in (
        [[5, 6, 7, 8], [0, 0, 9, 10], [11, 12, 0, 0], [13, 0, 0, 0]],
        [[4]],
        [[0, 0]],
    ):
        for options in SEARCHES if bounded else (*SEARCHES, WITHOUT_LIMIT):
            feed = model.search_inputs("onnx", **{"max_new_tokens": 7, **options})
            feed[name] = np.array(ids)
            often = {**feed, "tokens_between_joins": np.array(3)}
            sequences, scores = low.run(["sequences", "scores"], often)
            expected, values = other.run(["sequences", "scores"], feed)
            assert (sequences == expected).all()
            np.testing.assert_allclose(scores, values, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [kzoo.CausalLM, kzoo.Seq2SeqLM])
def test_matrices_are_stored_once_as_panels_which_are_read_as_they_are(tmp_path, kind):
    model = make(kind, 70, positions="rotary", num_layers=1)
    model.export(tmp_path / "model", **LOW)
    graphs = [
        onnx.load(tmp_path / "model" / f"{name}.onnx").graph
        for name in ("generate", "forward")
    ]
    variables = model.named_variables()
    for graph in graphs:
        stored = {x.name: onnx.numpy_helper.to_array(x) for x in graph.initializer}
        floats = {n: x for n, x in stored.items() if x.dtype == np.float32}
        panels = {name for name, x in floats.items() if x.ndim == 3}
        assert not [name for name, x in floats.items() if x.ndim == 2]
        assert panels == {n for n in stored if n.endswith("_panels")} and panels
        # No other node reads them, or the runtime would make another form of one.
        readers = {
            node.op_type for node in nodes(graph) if not panels.isdisjoint(node.input)
        }
        assert readers == {"MatMul", "Reshape"}
        (table,) = (x for name, x in floats.items() if "token_embedding" in name)
        embeddings = next(v for n, v in variables.items() if "token_embedding" in n)
        columns = np.concatenate(list(table), axis=-1)
        assert table.shape == (3, model.config.decoder.hidden_dim, 32)
        assert (columns[:, :70].T == np.asarray(embeddings)).all()
        assert (columns[:, 70:] == 0).all()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A file whose table of 40 rows is stored in panels of 32."""
    path = tmp_path_factory.mktemp("small") / "model.onnx"
    make(kzoo.CausalLM, 40, num_layers=1).export(path, **LOW)
    return path


def test_ids_beyond_the_table_are_refused_where_panels_have_room(small):
    session = open_session(small, prepacked=True)
    for wrong in (40, 63, 64, -1):
        with pytest.raises(Exception, match=r"token_ids must be in \[0, 40\)"):
            session.run(None, {"token_ids": np.array([[5, wrong]])})


def test_verification_joins_the_cache(tmp_path, monkeypatch):
    """Its cases are shorter than what a file decodes between two joins."""
    model = make(kzoo.CausalLM, positions="rotary", num_layers=1)
    model.export(tmp_path / "model", **LOW, **GENERATE)

    def in_front(earlier, cache):
        pairs = zip(ops.earlier_cache(cache), earlier, (3, 2), strict=True)
        return tuple(ops.concatenate([a, b], axis=axis) for a, b, axis in pairs)

    monkeypatch.setattr("kzoo.ops.joined_cache", in_front)
    with pytest.raises(ExportError, match="differ"):
        model.export(tmp_path / "wrong", **LOW, **GENERATE)


def test_an_iteration_has_a_token_at_least(small):
    session = open_session(small)
    for count in (0, -1):
        feed = dict(token_ids=np.array([[5]]), tokens_between_joins=np.array(count))
        with pytest.raises(Exception, match="tokens_between_joins must be at least 1"):
            session.run(None, feed)


def test_adapters_and_text_may_be_in_such_a_file(tmp_path, quick):
    tokenizer = kzoo.FastTokenizer.train(["abcabc", "bca cab"], 270, algorithm="bpe")
    sizes = dict(tokenizer=tokenizer, num_layers=1)
    model = make(kzoo.CausalLM, tokenizer.vocabulary_size, **sizes)
    report = model.export(tmp_path / "text.onnx", text=True, **LOW)
    assert {check["function"] for check in report.checks} == {"generate"}
    model.enable_lora(rank=2)
    perturb(model.named_variables().values())
    model.export(tmp_path / "lora.onnx", **LOW)  # which compares it with the model
    with pytest.raises(ExportError, match="low_memory is of `generate`"):
        model.export(tmp_path / "steps", functions=["prefill", "step"], **LOW)


@pytest.mark.parametrize(
    "options",
    [
        dict(format="genai"),
        dict(format="tf_saved_model"),
        dict(format="onnx", quantize="int8"),
        dict(format="onnx", exporter="tf2onnx"),
    ],
)
def test_other_forms_have_no_such_option(tmp_path, options):
    with pytest.raises(ExportError, match="low_memory is an option of format='onnx'"):
        make(kzoo.CausalLM).export(tmp_path / "x", low_memory=True, **options)
    assert list(tmp_path.iterdir()) == []


MEASURE = """
import json, sys
import numpy as np
import onnxruntime

def status(name):
    text = open("/proc/self/status").read()
    return int(text.split(name + ":")[1].split()[0]) * 1024

before = status("VmRSS")
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.log_severity_level = 1, 3
session = onnxruntime.InferenceSession(sys.argv[1], options)
count = np.array(int(sys.argv[2]))
feed = {"token_ids": np.arange(200)[None] + 4, "max_new_tokens": count}
session.run(["sequences"], feed)
print(json.dumps(status("VmHWM") - before))
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="needs Linux, to measure memory"
)
@pytest.mark.usefixtures("greedy")
def test_it_needs_little_more_than_weights_and_cache(tmp_path):
    def exported(model, name, **options):
        path = tmp_path / name
        return path, model.export(path, "onnx", **GENERATE, **options).weight_bytes

    def needed(path, count):
        command = [sys.executable, "-c", MEASURE, path, str(count)]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        return json.loads(found.stdout)

    sizes = dict(hidden_dim=512, intermediate_dim=4096)
    large = make(kzoo.CausalLM, 400, positions="rotary", num_layers=5, **sizes)
    file, weights = exported(large, "low.onnx", low_memory=True)
    usual, _ = exported(large, "usual.onnx")
    sizes = dict(hidden_dim=16, intermediate_dim=128)
    narrow = make(kzoo.CausalLM, 400, positions="rotary", num_layers=5, **sizes)
    parts, _ = exported(narrow, "narrow.onnx", low_memory=True)
    assert weights > 1e8
    for count in (270, 100):  # the first joins the cache once
        runtime = needed(parts, count)  # its own, for the same graph
        low = needed(file, count)
        cache = (200 + count) * 2 * 5 * 512 * 4
        assert low - runtime < 1.2 * (weights + cache)
    assert low + 0.7 * weights < needed(usual, 10)
