"""`verify` refuses what numbers do not show: names, defaults, and damaged files."""

import functools
import hashlib
import json
import sys

import keras
import numpy as np
import onnx
import onnxruntime
import pytest

import kzoo
from kzoo import ops
from kzoo.exporters import ExportError, answers_from, verify, weights
from kzoo.exporters.onnx import check_defaults, emit, head_of, names_of, opset_of
from kzoo.exporters.weights import check_onnx
from kzoo.generation import SEARCH_INPUTS
from kzoo.generation.search import Search
from kzoo.models import stack
from tests.harness import nodes, perturb, small_task
from tests.words import TOKENIZER, WORDS

TINY = dict(num_layers=1)
TEXTS = ["abc", "bca"]
pytestmark = pytest.mark.usefixtures("remembered")


def classifier(*labels, **changes):
    return small_task(kzoo.TextClassifier, labels=list(labels), **TINY | changes)


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("model.onnx", dict(format="onnx")),
        ("model", dict(format="onnx")),
        pytest.param("model", {}, marks=pytest.mark.tensorflow),
    ],
)
def test_classes_of_other_names_are_refused(tmp_path, path, options):
    classifier("neg", "pos").export(tmp_path / path, **options)
    assert verify(tmp_path / path, classifier("neg", "pos")).checks
    with pytest.raises(ExportError, match=r"labels=\['neg', 'pos'\], and .* has \['p"):
        verify(tmp_path / path, classifier("pos", "neg"))
    if options and path == "model":  # the file says it, too
        for name in ("config.json", "report.json"):
            (tmp_path / path / name).unlink()
        with pytest.raises(ExportError, match="forward.onnx is of a model with labels"):
            verify(tmp_path / path, classifier("pos", "neg"))


def test_what_cannot_be_read_in_a_file_is_named(tmp_path):
    model, path = classifier("a", "b"), tmp_path / "model.onnx"

    def damage(behind, place, value):
        content = bytearray(path.read_bytes())
        content[content.index(behind) + place] = value
        path.write_bytes(content)

    model.export(path, format="onnx")
    damage(b"first_norm", 5, 0xC1)
    with pytest.raises(ExportError, match=r"model.onnx: its metadata should"):
        verify(path, model)
    model.export(path, format="onnx", overwrite=True)
    head = onnx.load(path)
    for values in (head.graph.input, head.graph.output):
        axis = values[0].type.tensor_type.shape.dim[0]
        kept, axis.dim_param = axis.dim_param, "damage"
        onnx.save(head, path)
        damage(b"damage", 1, 0x9E)
        with pytest.raises(ExportError, match=r"should have names in UTF-8"):
            verify(path, model)
        axis.dim_param = kept
    model.export(path, format="onnx", external_data_threshold=0, overwrite=True)
    damage(b"length\x12", -4, 0x1A)  # the entry has another key
    with pytest.raises(ExportError, match=r"model.onnx: its .* cannot be read"):
        verify(path, model)


def test_another_task_is_refused(tmp_path):
    class Other(kzoo.TextClassifier):
        pass

    path = tmp_path / "model.onnx"
    classifier("a", "b").export(path, format="onnx")
    other = small_task(Other, labels=["a", "b"], **TINY)
    with pytest.raises(ExportError, match="task='TextClassifier', and .* has 'Other'"):
        verify(path, other)


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """A task with a tokenizer, and its folder of `forward`."""
    tokenizer = kzoo.FastTokenizer.train(TEXTS, 30, algorithm="character")
    model = kzoo.CausalLM.from_size("tiny", tokenizer, num_layers=1)
    path = tmp_path_factory.mktemp("writer") / "model"
    model.export(path, format="onnx", functions="forward")
    return model, path


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "{", "config.json was cut short, or is no config of kzoo"),
        ("config.json", "{}", "config.json was cut short, or is no config of kzoo"),
        ("tokenizer.json", "{}", r"should be the task's. Received: .*tokenizer.json"),
        ("tokenizer_config.json", "{", "Received: .*tokenizer_config.json is not JSON"),
    ],
)
def test_a_damaged_file_beside_the_model_is_refused(writer, name, content, message):
    model, path = writer
    kept = (path / name).read_bytes()
    try:
        (path / name).write_text(content)
        with pytest.raises(ExportError, match=message):
            verify(path, model)
    finally:
        (path / name).write_bytes(kept)
    assert verify(path, model).checks


def test_another_tokenizer_beside_the_model_is_refused(writer):
    model, path = writer
    names = ("tokenizer.json", "tokenizer_config.json")
    kept = {name: (path / name).read_bytes() for name in names}
    try:
        other = kzoo.FastTokenizer.train(["xyz"], 30, algorithm="character")
        other.save(path)
        with pytest.raises(ExportError, match=r"one that differs in \['model'\]"):
            verify(path, model)
    finally:
        for name, content in kept.items():
            (path / name).write_bytes(content)


@pytest.fixture(scope="module")
def generating(tmp_path_factory):
    """A task that searches, and its file."""
    model = small_task(kzoo.CausalLM, **TINY)
    path = tmp_path_factory.mktemp("generating") / "model.onnx"
    model.export(path, format="onnx", low_memory=True)
    return model, path


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_new_tokens", 5, "max_new_tokens should be 128 .* Received: 5"),
        ("early_stopping", False, "early_stopping should be True .* Received: False"),
        ("seed", 3, "seed should be 0 .* Received: 3"),
        ("length_penalty", 0.5, "length_penalty should be 1.0 .* Received: 0.5"),
        ("stop_token_ids", [7], r"stop_token_ids should be \[\] .* Received: \[7\]"),
        ("stop_token_ids", None, "stop_token_ids .* Received: "),
        ("tokens_between_joins", 1, "tokens_between_joins should be 256 .* Received"),
    ],
)
def test_a_wrong_default_is_refused(generating, tmp_path, name, value, message):
    model, path = generating
    changed = onnx.load(path)
    (tensor,) = (t for t in changed.graph.initializer if t.name == name)
    if value is None:
        changed.graph.initializer.remove(tensor)
        message = "stop_token_ids"
    else:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        value = np.array(value, dtype)
        tensor.CopyFrom(onnx.numpy_helper.from_array(value, name))
    onnx.save(changed, tmp_path / "model.onnx")
    with pytest.raises(ExportError, match=message):
        verify(tmp_path / "model.onnx", model)


def test_other_search_defaults_are_refused_by_the_input_s_name(generating):
    model, path = generating
    assert verify(path, model).checks
    model.search_defaults = {"stop_tokens": [7]}
    try:
        with pytest.raises(
            ExportError, match=r"stop_token_ids should be \[7\] .* \[\]"
        ):
            verify(path, model)
    finally:
        model.search_defaults = {}


def test_long_defaults_beside_the_file_are_read(tmp_path):
    model = small_task(kzoo.CausalLM, vocabulary_size=300, **TINY)
    model.search_defaults = {"stop_tokens": list(range(20, 220))}
    model.export(tmp_path / "model", format="onnx", functions="generate")
    file = tmp_path / "model" / "generate.onnx"
    (generate,) = (f for f in model.export_functions() if f.name == "generate")
    check_defaults(generate, file, head_of(file))
    model.search_defaults = {"stop_tokens": list(range(20, 221))}
    (generate,) = (f for f in model.export_functions() if f.name == "generate")
    with pytest.raises(ExportError, match="stop_token_ids should be"):
        check_defaults(generate, file, head_of(file))


def test_a_file_cut_short_is_named(generating, tmp_path):
    model, path = generating
    content, cut = path.read_bytes(), tmp_path / "cut.onnx"
    for length in (1, 10, len(content) // 2, len(content) - 1):
        cut.write_bytes(content[:length])
        with pytest.raises(ExportError, match="cut.onnx"):
            verify(cut, model)


def test_a_bit_that_changes_no_number_much_is_noticed(tmp_path):
    model, path = classifier("a", "b"), tmp_path / "model"
    report, file = model.export(path, format="onnx"), path / "weights.bin"
    content = file.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    assert report.sha256[file.name] == digest
    weights = model.named_variables()["encoder/token_embedding/embeddings"]
    row = np.asarray(keras.ops.convert_to_numpy(weights))[-1]
    at = content.index(row.tobytes())  # a little-endian float's lowest bits come first
    file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    with pytest.raises(ExportError, match="weights.bin was changed since it was exp"):
        verify(path, model)
    file.write_bytes(content)
    assert verify(path, model).checks


def test_a_folder_of_text_needs_no_report(tmp_path):
    tokenizer = kzoo.FastTokenizer.train(TEXTS, 30, algorithm="character")
    labels = dict(labels=["a", "b"], num_layers=1)
    model = kzoo.TextClassifier.from_size("tiny", tokenizer, **labels)
    options = dict(format="onnx", text=True, functions="forward")
    model.export(tmp_path / "model", **options)
    (tmp_path / "model" / "report.json").unlink()
    report = verify(tmp_path / "model", model)
    assert report.text and set(report.functions) == {"forward"}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (kzoo.CausalLM, {}),
        (kzoo.CausalLM, dict(positions="learned")),
        (kzoo.Seq2SeqLM, {}),
        (kzoo.TextClassifier, dict(num_classes=2, num_segments=2)),
    ],
)
def test_forward_says_that_a_batch_is_empty(tmp_path, kind, changes):
    model, path = small_task(kind, **TINY | changes), tmp_path / "model.onnx"
    model.export(path, format="onnx", functions="forward")
    session = onnxruntime.InferenceSession(path)
    names = [given.name for given in session.get_inputs()]
    feed = dict.fromkeys(names, np.ones((2, 4), "int64"))
    session.run(None, feed)
    for shape in ((0, 4), (2, 0)):
        empty = dict.fromkeys(names, np.ones(shape, "int64"))
        message = f"({'|'.join(names)}) must have one row at least and a place for one"
        with pytest.raises(Exception, match=message):
            session.run(None, empty)


@pytest.mark.tensorflow
def test_forward_of_a_saved_model_says_that_a_batch_is_empty(tmp_path):
    import tensorflow as tf

    model = classifier("a", "b")
    model.export(tmp_path / "model")
    forward = tf.saved_model.load(str(tmp_path / "model")).signatures["forward"]
    forward(token_ids=tf.ones((2, 4), "int32"))
    for shape in ((0, 4), (2, 0)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="must have one row"):
            forward(token_ids=tf.ones(shape, "int32"))


def test_the_config_says_the_names_of_classes(tmp_path):
    classifier("a", "b").export(tmp_path / "model", format="onnx")
    said = json.loads((tmp_path / "model" / "config.json").read_text())
    assert said["labels"] == ["a", "b"] and said["task"] == "TextClassifier"


@pytest.mark.parametrize("beside", [True, False])
def test_a_file_that_says_another_config_is_refused(tmp_path, beside):
    """In the file beside it, or in the model's metadata; not what training reads."""
    model = classifier("a", "b")
    path = tmp_path / "model"
    model.export(path, format="onnx")
    (path / "report.json").unlink()  # tells by sha256 that a file changed

    def write(**changes):
        file = path / ("config.json" if beside else "forward.onnx")
        if beside:
            said = json.loads(file.read_text())
            said["model"]["encoder"] |= changes
            file.write_text(json.dumps(said))
            return
        proto = onnx.load(file)
        (entry,) = [e for e in proto.metadata_props if e.key == "config"]
        said = json.loads(entry.value)
        said["encoder"] |= changes
        entry.value = json.dumps(said)
        onnx.save(proto, file)

    # What training alone reads, no position reads, and what says the same.
    same = dict(relative_max_distance=99, max_sequence_length=9, attention_bias=True)
    write(dropout=0.7, initializer_range=0.5, **same)
    verify(path, model)
    for name, value in (
        ("num_layers", 8),
        ("activation", "tanh"),
        ("feed_forward", "gated"),
        ("norm_epsilon", 0.1),
        ("sinusoidal_layout", "halves"),
        ("final_norm", False),
        ("first_norm", False),
        ("norm_bias", False),
        ("use_bias", False),
        ("attention_bias", False),
        ("attention_scale", 9.0),
        ("embedding_dim", 4),
    ):
        before = getattr(model.config.encoder, name)
        write(**{name: value})
        with pytest.raises(ExportError, match=f"encoder has {name}={value!r}, and"):
            verify(path, model)
        write(**{name: before})
    verify(path, model)
    write(num_layers=[])
    with pytest.raises(ExportError, match="its config is none of this version"):
        verify(path, model)


@pytest.fixture(scope="module")
def reading(tmp_path_factory):
    """From an algorithm to a classifier of such a tokenizer, and its file."""

    @functools.cache
    def exported(algorithm):
        texts = [*WORDS, "Café au lait", "2000 200 20"]
        lowercase = algorithm == "wordpiece"
        options = dict(algorithm=algorithm, lowercase=lowercase)
        own = kzoo.FastTokenizer.train(texts, 290, **options)
        model = kzoo.TextClassifier.from_size("tiny", own, num_classes=2, **TINY)
        path = tmp_path_factory.mktemp("reading") / "model.onnx"
        model.export(path, format="onnx", text=True)
        verify(path, model)
        return model, path

    return exported


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("algorithm", "attribute", "right", "wrong"),
    [
        ("bpe", "merges", b"\n2 00\n", b"\n~ ~\n"),
        ("bpe", "pattern", rb"\x{85}", rb"\x{86}"),
        ("wordpiece", "default_string", "一".encode(), b"z"),
        ("wordpiece", "values_strings", b"b", b"c"),
    ],
)
def test_another_tokenizer_in_the_graph_is_refused(
    reading, tmp_path, algorithm, attribute, right, wrong
):
    """Whatever no case reads: one merge, what stands for a letter."""
    model, file = reading(algorithm)
    path = tmp_path / "model.onnx"
    before, proto = file.read_bytes(), onnx.load(file)
    said = [
        a for node in nodes(proto.graph) for a in node.attribute if a.name == attribute
    ]
    for each in said:
        if right in each.strings:  # the last, of a letter that is in no text
            place = max(i for i, text in enumerate(each.strings) if text == right)
            each.strings[place] = wrong
        if right in each.s:
            each.s = each.s.replace(right, wrong)
    onnx.save(proto, path)
    assert path.read_bytes() != before
    with pytest.raises(ExportError, match="reads or writes text otherwise than"):
        verify(path, model)


def graphs_of(graph):
    """A graph and those inside of it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from graphs_of(attribute.g)


@pytest.fixture(scope="module")
def graphs():
    """What tests of this module have emitted, see `emitted_once`."""
    return {}


@pytest.fixture
def emitted_once(monkeypatch, graphs):
    """A task that stays as it is emits the same function once."""

    def emitted(function, *args, **options):
        key = (function.task, function.name)
        if key not in graphs:
            graphs[key] = emit(function, *args, **options)
        return graphs[key]

    monkeypatch.setattr("kzoo.exporters.onnx.emit", emitted)


@pytest.mark.usefixtures("emitted_once")
@pytest.mark.parametrize(
    "name", [name for name in SEARCH_INPUTS if name != "max_new_tokens"]
)
def test_a_file_that_ignores_an_option_is_refused(drawing, tmp_path, name):
    model, path = drawing
    proto = onnx.load(path)
    (default,) = [t for t in proto.graph.initializer if t.name == name]
    frozen = proto.graph.initializer.add()
    frozen.CopyFrom(default)
    frozen.name = "frozen"
    for graph in graphs_of(proto.graph):
        for node in graph.node:
            for i, each in enumerate(node.input):
                if each == name:
                    node.input[i] = "frozen"
    onnx.save(proto, tmp_path / "model.onnx")
    with pytest.raises(ExportError, match="differ|should have shape|must be"):
        verify(tmp_path / "model.onnx", model)


@pytest.fixture(scope="module", params=[kzoo.CausalLM, kzoo.Seq2SeqLM])
def drawing(request, tmp_path_factory):
    """A model and its file."""
    keras.utils.set_random_seed(0)
    model = small_task(request.param, **TINY)
    perturb(model.weights)
    path = tmp_path_factory.mktemp("drawing") / "model.onnx"
    model.export(path, format="onnx", functions="generate")
    return model, path


def mutants(proto):
    """Yields the kind of a change in `proto`, which is undone for the next."""
    for graph in graphs_of(proto.graph):
        for node in graph.node:
            kept = onnx.NodeProto()
            kept.CopyFrom(node)
            for i, attribute in enumerate(kept.attribute):
                if attribute.type == onnx.AttributeProto.INT:
                    node.attribute[i].i += 1
                    yield node.op_type, attribute.name
                    node.CopyFrom(kept)
            if len(node.input) > 1:
                node.input[0], node.input[1] = node.input[1], node.input[0]
                if node != kept:
                    yield node.op_type, "inputs"
                node.CopyFrom(kept)
        if len(graph.output) > 2 and graph != proto.graph:
            first, last = graph.output[1].name, graph.output[-1].name
            graph.output[1].name, graph.output[-1].name = last, first
            yield graph.name, "outputs"
            graph.output[1].name, graph.output[-1].name = first, last


def test_each_node_is_compared_with_what_the_task_emits(drawing, monkeypatch):
    """Of each kind of change the first and the last, which is in a loop."""
    model, path = drawing
    head = head_of(path)
    (function,) = [f for f in model.export_functions() if f.name == "generate"]
    graph = emit(function, names_of(model), opset_of(head))
    # Of the graph that stays as it is.
    monkeypatch.setattr(weights, "graph_proto", functools.cache(weights.graph_proto))
    assert check_onnx(path, head, graph, model, None) is True
    kinds = list(mutants(head))
    last = {kind: number for number, kind in enumerate(kinds)}
    first = {kind: kinds.index(kind) for kind in last}
    assert len(last) > 60
    for number, kind in enumerate(mutants(head)):
        if number not in (first[kind], last[kind]):
            continue
        with pytest.raises(ExportError, match="computes .* otherwise than"):
            check_onnx(path, head, graph, model, None)
            pytest.fail(str(kind))
    assert check_onnx(path, head, graph, model, None) is True


def test_a_change_that_no_case_notices_is_refused(tmp_path):
    """A bound of scores, which none of a small model reaches."""
    model = small_task(kzoo.CausalLM, head_soft_cap=1e6, **TINY)
    path = tmp_path / "model.onnx"
    model.export(path, format="onnx", functions="forward")
    proto = onnx.load(path)
    (tanh,) = [node for node in proto.graph.node if node.op_type == "Tanh"]
    tanh.op_type = "Identity"
    onnx.save(proto, path)
    with pytest.raises(ExportError, match="Expected: .*Tanh.* Received: .*Identity"):
        verify(path, model)


def test_a_large_integer_is_compared_as_it_is(generating, tmp_path):
    """float32 has not the lowest `seed` and its neighbours."""
    model, path = generating
    proto = onnx.load(path)
    lowest = [
        tensor
        for tensor in proto.graph.initializer
        if onnx.numpy_helper.to_array(tensor).tolist() == -(2**31)
    ]
    for tensor in lowest:
        value = np.int64(-(2**31) + 1)
        tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    onnx.save(proto, tmp_path / "model.onnx")
    assert len(lowest) == 1
    with pytest.raises(ExportError, match=f"stores {lowest[0].name} otherwise"):
        verify(tmp_path / "model.onnx", model)


def test_a_changed_file_is_refused_before_it_is_run(tmp_path, monkeypatch):
    """Some change may end the process that runs it."""
    model, path = classifier("a", "b"), tmp_path / "model"
    model.export(path, format="onnx")
    proto = onnx.load(path / "forward.onnx", load_external_data=False)
    proto.graph.node[0].doc_string = "changed"
    onnx.save(proto, path / "forward.onnx")
    module = sys.modules["kzoo.exporters.verify"]
    monkeypatch.setattr(module, "references", lambda *_: pytest.fail("it was run"))
    with pytest.raises(ExportError, match="forward.onnx was changed since it was exp"):
        verify(path, model)


def test_names_notes_and_orders_of_nodes_are_no_change(tmp_path):
    model = classifier("a", "b")
    path = tmp_path / "model.onnx"
    model.export(path, format="onnx")
    proto = onnx.load(path)
    for number, node in enumerate(proto.graph.node):
        node.name, node.doc_string = f"node_{number}", "read me"
        attributes = sorted(node.attribute, key=lambda a: a.name, reverse=True)
        del node.attribute[:]
        node.attribute.extend(attributes)
    onnx.save(proto, path)
    assert not [note for note in verify(path, model).notes if "other nodes" in note]


def test_every_function_of_little_memory_is_compared(tmp_path):
    model = small_task(kzoo.CausalLM, hidden_dim=64, intermediate_dim=256, **TINY)
    path = tmp_path / "model"
    model.export(path, format="onnx", low_memory=True)
    assert not [note for note in verify(path, model).notes if "other nodes" in note]


def test_an_optimised_file_and_one_of_another_version_are_left_to_the_cases(tmp_path):
    model = classifier("a", "b")
    path, said = tmp_path / "model.onnx", "model.onnx has other nodes than this version"
    model.export(path, format="onnx")
    assert said not in str(verify(path, model))
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    assert said.replace("model", "optimised") in str(
        verify(tmp_path / "optimised.onnx", model)
    )
    proto = onnx.load(path)
    for entry in proto.metadata_props:
        if entry.key == "kzoo_version":
            entry.value = "0.0.1"
    onnx.save(proto, path)
    assert said not in str(verify(path, model))  # the same nodes
    node = next(n for n in nodes(proto.graph) if n.op_type == "LayerNormalization")
    for attribute in node.attribute:
        if attribute.name == "epsilon":
            attribute.f *= 1.001
    onnx.save(proto, path)
    assert said in str(verify(path, model))


def test_a_file_that_says_an_unknown_mode_is_refused(tmp_path):
    model, path = classifier("a", "b"), tmp_path / "model.onnx"
    model.export(path, format="onnx")
    proto = onnx.load(path)
    onnx.helper.set_model_props(proto, {"quantize": "int3"})
    onnx.save(proto, path)
    with pytest.raises(ExportError, match="quantized as 'int3'. Expected one of"):
        verify(path, model)


@pytest.mark.parametrize("said", ["int8", "int8_weights"])
def test_a_file_that_says_another_mode_is_refused(tmp_path, said):
    """Though what it computes is within what that mode may be off."""
    model, path = small_task(kzoo.CausalLM, hidden_dim=64), tmp_path / "model.onnx"
    model.export(path, format="onnx", functions="forward", quantize="float16")
    proto = onnx.load(path)
    (entry,) = (each for each in proto.metadata_props if each.key == "quantize")
    entry.value = said
    onnx.save(proto, path)
    message = f"/float16, and says that it is quantized as {said!r}"
    with pytest.raises(ExportError, match=message):
        verify(path, model)


@pytest.mark.parametrize("inputs", [5, "a text", True])
def test_inputs_that_are_no_list_are_named(generating, inputs):
    model, path = generating
    message = f"Expected a list of inputs. Received: {inputs!r}"
    with pytest.raises(ValueError, match=message):
        verify(path, model, inputs=inputs)


def test_a_file_of_text_of_another_task_is_refused_as_such(tmp_path):
    """Not as one that this task has no text form of: its user named none."""
    model, path = classifier("a", "b", tokenizer=TOKENIZER), tmp_path / "model.onnx"
    model.export(path, format="onnx", text=True)
    other = small_task(kzoo.TokenClassifier, labels=["a", "b"], **TINY)
    with pytest.raises(ExportError, match="is of a model with task='TextClassifier'"):
        verify(path, other)


def test_a_file_that_says_nothing_of_its_model_is_told(tmp_path):
    model, path = classifier("a", "b"), tmp_path / "model.onnx"
    model.export(path, format="onnx")
    proto = onnx.load(path)
    metadata = [*proto.metadata_props]
    for kept, told in ((metadata, False), ([], True)):
        del proto.metadata_props[:]
        proto.metadata_props.extend(kept)
        onnx.save(proto, path)
        said = "model.onnx does not say of which labels and model and task it is"
        assert (said in str(verify(path, model))) == told
        assert "other nodes" not in str(verify(path, model))
    folder = tmp_path / "folder"  # whose config.json says it
    model.export(folder, format="onnx")
    assert "has no report.json" not in str(verify(folder, model))
    file = folder / "forward.onnx"
    onnx.save(onnx.load_model_from_string(path.read_bytes()), file)
    (folder / "report.json").unlink()
    said = str(verify(folder, model))
    assert "does not say" not in said
    assert "folder has no report.json with hashes: whether files were changed" in said
    (folder / "config.json").unlink()
    assert "forward.onnx does not say of which labels" in str(verify(folder, model))


def test_outputs_in_another_order_are_refused(tmp_path):
    model, path = small_task(kzoo.CausalLM, **TINY), tmp_path / "model.onnx"
    model.export(path, format="onnx")
    proto = onnx.load(path)
    outputs = [*proto.graph.output][::-1]
    del proto.graph.output[:]
    proto.graph.output.extend(outputs)
    onnx.save(proto, path)
    with pytest.raises(ExportError, match=r"\['sequences', 'scores'\] in this order"):
        verify(path, model)


@pytest.mark.parametrize(
    "options",
    [
        dict(format="onnx"),
        dict(format="onnx", quantize="float16"),
        dict(format="onnx", quantize="int8"),
        dict(format="onnx", quantize="int4"),
        pytest.param({}, marks=pytest.mark.tensorflow),
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_a_row_of_a_table_that_no_case_reads_is_compared(tmp_path, options):
    model = small_task(kzoo.TextClassifier, num_classes=2, vocabulary_size=3000, **TINY)
    perturb(model.weights)
    model.export(tmp_path / "model", **options)
    assert verify(tmp_path / "model", model).checks
    seen = {model.config.pad_token_id}
    for function in model.export_functions():
        for case in function.cases(np.random.default_rng(0)).values():
            seen |= set(np.unique(case["token_ids"]).tolist())
    table = model.named_variables()["encoder/token_embedding/embeddings"]
    rows = keras.ops.convert_to_numpy(table).copy()
    row = min(set(range(3000)) - seen)
    rows[row] *= -1
    table.assign(rows)
    with pytest.raises(ExportError, match="encoder/token_embedding/embeddings"):
        verify(tmp_path / "model", model)


@pytest.mark.parametrize(
    "options",
    [dict(format="onnx"), pytest.param({}, marks=pytest.mark.tensorflow)],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_a_weight_that_changes_no_answer_is_compared(tmp_path, options):
    model = small_task(kzoo.TextClassifier, num_classes=2, **TINY)
    name = "encoder/layer_0/self_attention/key/bias"  # which a softmax takes out
    bias = model.named_variables()[name]
    bias.assign(keras.ops.ones_like(bias))
    model.export(tmp_path / "model", **options)
    assert verify(tmp_path / "model", model).checks
    bias.assign(keras.ops.zeros_like(bias))  # as all other biases are
    with pytest.raises(ExportError, match=r"encoder/layer_0/self_attention"):
        verify(tmp_path / "model", model)


@pytest.mark.parametrize("kind", [kzoo.TextClassifier, kzoo.Seq2SeqLM, kzoo.CausalLM])
def test_far_distances_are_read(tmp_path, kind):
    options = dict(num_classes=2) if kind is kzoo.TextClassifier else {}
    model = small_task(kind, positions="relative", **options, **TINY)
    perturb(model.weights)
    model.export(tmp_path / "model.onnx", format="onnx", functions="forward")
    bias = next(v for n, v in model.named_variables().items() if "position_bias" in n)
    values = keras.ops.convert_to_numpy(bias).copy()
    values[-1] += 3.0
    bias.assign(values)
    with pytest.raises(ExportError, match="logits differs"):
        verify(tmp_path / "model.onnx", model)


def test_a_folder_may_be_named_like_a_file_and_hold_others(tmp_path):
    model = classifier("a", "b")
    model.export(tmp_path / "model", format="onnx")
    (tmp_path / "model" / "assets" / "pictures").mkdir(parents=True)
    assert verify((tmp_path / "model").rename(tmp_path / "model.onnx"), model).checks


@pytest.mark.tensorflow
@pytest.mark.usefixtures("quick")
def test_a_saved_model_whose_graph_changed_is_refused(tmp_path):
    """Its tokenizer's tables stand in it, and no case reads all of them."""
    model = kzoo.TextClassifier.from_size("tiny", TOKENIZER, num_classes=2, **TINY)
    model.export(tmp_path / "model", text=True)
    verify(tmp_path / "model", model)
    from tensorflow.core.protobuf import saved_model_pb2

    path = tmp_path / "model" / "saved_model.pb"
    proto = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    proto.meta_graphs[0].meta_info_def.tensorflow_version += "x"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ExportError, match="saved_model.pb was changed since"):
        verify(tmp_path / "model", model)


@pytest.mark.tensorflow
def test_a_saved_model_that_is_lost_is_named(tmp_path):
    model = classifier("neg", "pos")
    model.export(tmp_path / "model")
    (tmp_path / "model" / "saved_model.pb").unlink()
    with pytest.raises(ExportError, match="saved_model.pb was lost since it was expor"):
        verify(tmp_path / "model", model)


def test_a_saved_model_where_tensorflow_is_not_installed(tmp_path, monkeypatch):
    """It is run there, whatever Keras runs on."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    (tmp_path / "saved_model.pb").touch()
    with pytest.raises(ExportError, match="a SavedModel, which TensorFlow runs, and"):
        verify(tmp_path, classifier("neg", "pos"))


def test_a_file_that_is_lost_is_named(tmp_path):
    model = classifier("neg", "pos")
    model.export(tmp_path / "model", format="onnx")
    kept = (tmp_path / "model" / "config.json").rename(tmp_path / "kept")
    with pytest.raises(ExportError, match="config.json was lost since it was exported"):
        verify(tmp_path / "model", model)
    kept.rename(tmp_path / "model" / "config.json")
    report = tmp_path / "model" / "report.json"
    said = json.loads(report.read_text())
    for part, wrong in (("sha256", []), ("functions", 3), ("files", ["a"])):
        report.write_text(json.dumps(said | {part: wrong}))
        with pytest.raises(ExportError, match="or is no report of kzoo"):
            verify(tmp_path / "model", model)


def test_an_output_of_another_width_is_refused(tmp_path):
    model = classifier("neg", "pos")
    model.export(tmp_path / "model.onnx", format="onnx")
    proto = onnx.load(tmp_path / "model.onnx")
    (output,) = proto.graph.output
    for node in proto.graph.node:
        for i, name in enumerate(node.output):
            if name == output.name:
                node.output[i] = "narrow"
    proto.graph.node.append(
        onnx.helper.make_node("Cast", ["narrow"], [output.name], to=11)
    )
    output.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    onnx.save(proto, tmp_path / "model.onnx")
    with pytest.raises(ExportError, match="should be float32. Received: float64"):
        verify(tmp_path / "model.onnx", model)


@pytest.mark.parametrize("name", ["width", "batch", None])
def test_an_output_s_axis_of_another_name_is_refused(tmp_path, name):
    model, path = classifier("neg", "pos"), tmp_path / "model.onnx"
    model.export(path, format="onnx")
    proto = onnx.load(path)
    axis = proto.graph.output[0].type.tensor_type.shape.dim[1]
    axis.Clear()
    if name:
        axis.dim_param = name
    onnx.save(proto, path)
    with pytest.raises(ExportError, match=r"with axes \['batch', 2\]. Received: \['b"):
        verify(path, model)


def test_an_embedder_searches_by_its_file(tmp_path):
    model = kzoo.SentenceEmbedder.from_size("tiny", TOKENIZER, **TINY)
    model.export(tmp_path / "model.onnx", format="onnx")
    right = model.search(["ab"], ["ba", "ab"])
    sessions = {"forward": onnxruntime.InferenceSession(tmp_path / "model.onnx")}
    with answers_from(model, sessions):
        found = model.search(["ab"], ["ba", "ab"])
    assert [[i for i, _ in row] for row in found] == [[i for i, _ in r] for r in right]


def never_done(search, state, new):
    return {**new, "done": new["done"] & False}


def scored_again(search, state, new):
    made = ops.as_scalar(state["made"] + 1, "float32")
    return {**new, "ended_scores": new["scores"] / made**search.penalty}


def of_copies(search, state, new):
    return {**new, "seen": ops.take(new["seen"], ops.arange(search.rows) * 0, axis=0)}


@pytest.fixture(scope="module")
def searching():
    """From a kind to a task, whose answers are remembered."""
    return functools.cache(lambda kind: small_task(kind, **TINY))


@pytest.mark.parametrize(
    ("kind", "part", "change"),
    [
        (kzoo.CausalLM, "greedy", never_done),
        (kzoo.CausalLM, "greedy", scored_again),
        (kzoo.CausalLM, "beam", of_copies),
        (kzoo.Seq2SeqLM, "greedy", never_done),
        (kzoo.Seq2SeqLM, "greedy", scored_again),
        (kzoo.Seq2SeqLM, "beam", never_done),
        (kzoo.Seq2SeqLM, "beam", of_copies),
    ],
)
def test_a_search_that_another_one_is_emitted_for_is_refused(
    searching, tmp_path, monkeypatch, kind, part, change
):
    right = getattr(Search, part)

    def wrong(search, state, logits):
        new = right(search, state, logits)
        return change(search, state, new) if ops.is_onnx(logits) else new

    monkeypatch.setattr(Search, part, wrong)
    with pytest.raises(ExportError, match="differ|should have shape"):
        searching(kind).export(
            tmp_path / "model.onnx", format="onnx", functions=["generate"]
        )


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        (kzoo.TextClassifier, "forward"),
        (kzoo.CausalLM, "forward"),
        (kzoo.Seq2SeqLM, "generate"),
    ],
)
def test_positions_that_count_padding_are_refused(
    tmp_path, monkeypatch, kind, function
):
    right = stack._row_positions

    def wrong(index, mask):
        return right(index, None if ops.is_onnx(mask) else mask)

    monkeypatch.setattr(stack, "_row_positions", wrong)
    own = dict(labels=["a", "b"]) if kind is kzoo.TextClassifier else {}
    model = small_task(kind, positions="learned", **own, **TINY)
    with pytest.raises(ExportError, match="differ"):
        model.export(tmp_path / "out", format="onnx", functions=[function])
