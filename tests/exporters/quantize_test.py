"""Quantised artifacts: the bytes, their size, what they compute, what is refused."""

import json
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import onnx
import onnxruntime
import pytest

import kzoo
from kzoo.exporters import ExportError, agreement, answers_from, quantize, verify
from kzoo.exporters.onnx import emit, names_of
from tests.harness import nodes, perturb

MODES = ["float16", "int8", "int8_weights", "int4"]
# No width is a multiple of the blocks of 32 and 128, but 192.
SIZE = dict(num_layers=1, hidden_dim=48, intermediate_dim=192, num_heads=4)
TABLE = "encoder/token_embedding/embeddings"
KERNEL = "encoder/layer_0/feed_forward/output/kernel"


def make(kind=kzoo.Seq2SeqLM, vocabulary_size=70, **changes):
    model = kind.from_size(
        "tiny", **SIZE | dict(vocabulary_size=vocabulary_size) | changes
    )
    perturb(model.named_variables().values())
    return model


def classifier(**changes):
    return make(kzoo.TextClassifier, num_classes=3, positions="learned", **changes)


def initializers(path):
    """The arrays of a file, those beside it among them."""
    graph = onnx.load(path).graph
    return {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}


def by_hand(stored, name, mode):
    """What the operators' definitions make of the bytes, one number at a time."""
    values = stored[f"{name}/{mode}"]
    if mode == "float16":
        return values.astype("float32")
    scales = stored[f"{name}/{mode}_scale"]
    if mode == "int8":  # a scale an output: a row of the table, a column of a kernel
        columns = name != TABLE
        return np.array(
            [
                [float(v) * scales[j if columns else i] for j, v in enumerate(row)]
                for i, row in enumerate(values)
            ]
        )
    rows = []
    for blocks, factors in zip(values, scales):
        row = []
        for block, factor in zip(blocks, factors):
            for byte in map(int, block):
                if mode == "int4":
                    row += [(byte % 16 - 8) * factor, (byte // 16 - 8) * factor]
                else:
                    row.append((byte - 128) * factor)
        rows.append(row)
    return np.array(rows)


@pytest.mark.usefixtures("quick", "remembered")
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (kzoo.Seq2SeqLM, {}),
        (kzoo.CausalLM, dict(positions="rotary", tie_head=False, use_bias=False)),
    ],
)
def test_forward_and_generate_of_every_mode(tmp_path, kind, changes):
    model = make(kind, **changes)
    for mode in MODES:
        path, standard = tmp_path / mode, mode in ("float16", "int8")
        report = model.export(path, format="onnx", quantize=mode)
        assert {c["function"] for c in report.checks} == {"forward", "generate"}
        assert report.quantize == mode
        assert report.differences["forward"]["logits"]["model"] > 0
        assert 0.5 <= report.token_agreement <= 1
        assert set(report.latency["generate"]) == {"float32", mode}
        assert json.loads((path / "report.json").read_text()) == report.to_dict()
        assert "of the tokens are the model's" in str(report)
        for name in ("forward", "generate"):
            onnx.checker.check_model(path / f"{name}.onnx")
            found = [n.op_type for n in nodes(onnx.load(path / f"{name}.onnx").graph)]
            assert ("Gemm" in found) == (mode == "float16")  # the head's, too
            assert found.count("MatMulNBits") == (
                0 if standard else report.operators[name]["MatMulNBits"]
            )
        assert report.domains == ([] if standard else ["com.microsoft"])


@pytest.mark.parametrize("mode", MODES)
def test_the_bytes_are_the_weights_rounded(tmp_path, quick, mode):
    model = make()
    model.export(tmp_path / "m", format="onnx", quantize=mode, functions="forward")
    stored = initializers(tmp_path / "m" / "forward.onnx")
    for name, by_rows in ((TABLE, True), (KERNEL, False)):
        assert name not in stored
        exact = np.array(model.named_variables()[name].numpy())
        found = by_hand(stored, name, mode)
        if mode in ("int8_weights", "int4"):  # rows are outputs, padded to a block
            exact = exact if by_rows else exact.T
            assert not found[:, exact.shape[1] :].any()
            found = found[:, : exact.shape[1]]
        largest = {"float16": 2**-11, "int8": 0.5 / 64, "int8_weights": 0.5 / 127}
        step = np.abs(exact).max() * largest.get(mode, 0.5 / 7)
        assert np.abs(found - exact).max() <= step * 1.001
        assert np.abs(found - exact).mean() > step / 100  # nothing was kept as it is
    small = [n for n in stored if n.endswith(("bias", "gamma", "beta"))]
    assert small and all(stored[name].dtype == np.float32 for name in small)


@pytest.mark.parametrize("mode", MODES)
def test_columns_of_the_smallest_numbers_are_taken(tmp_path, quick, mode):
    model = classifier()
    name = next(n for n in model.named_variables() if n.endswith("output/kernel"))
    variable = model.named_variables()[name]
    kernel = np.array(variable)
    kernel[:, 0], kernel[:, 1] = 2e-43, 3e-38
    variable.assign(kernel)
    report = model.export(tmp_path / "model.onnx", format="onnx", quantize=mode)
    assert report.checks


@pytest.mark.parametrize("mode", ["int8_weights", "int4"])
def test_bits_stay_bits_in_the_file(tmp_path, quick, mode):
    model = make(vocabulary_size=900, hidden_dim=128, intermediate_dim=512)
    options = dict(format="onnx", functions="forward")
    report = model.export(tmp_path / "m", quantize=mode, **options)
    stored = initializers(tmp_path / "m" / "forward.onnx")
    bits, block = {"int8_weights": (8, 128), "int4": (4, 32)}[mode]
    table = stored[f"{TABLE}/{mode}"]
    assert table.dtype == np.uint8
    assert table.shape == (900, 128 // block, block * bits // 8)
    assert len(np.unique(table)) > 200  # both halves of a byte are used
    kernel = stored["decoder/layer_0/feed_forward/output/kernel/" + mode]
    assert kernel.shape == (128, 512 // block, block * bits // 8)
    matrices = sum(
        int(np.prod(v.shape)) for v in model.weights if len(v.shape) == 2
    )  # the tied table is one of them, and stored once
    expected = matrices * (bits / 8 + 4 / block)
    assert expected <= report.weight_bytes <= expected + 60_000
    weights = sum(4 * int(np.prod(v.shape)) for v in model.weights)
    assert weights <= report.float32_weight_bytes <= weights + 60_000
    assert (tmp_path / "m" / "weights.bin").stat().st_size <= expected + 300_000


def test_int8_is_made_of_standard_operators_that_onnxruntime_fuses(tmp_path, quick):
    path, fused = tmp_path / "m.onnx", tmp_path / "fused.onnx"
    make(kzoo.CausalLM).export(path, format="onnx", quantize="int8")
    model = onnx.load(path)
    assert [o.domain for o in model.opset_import] == [""]
    (loop,) = [n for n in model.graph.node if n.op_type == "Loop"]
    products = [n for n in nodes(loop.attribute[0].g) if n.op_type == "MatMulInteger"]
    assert len(products) == 5  # query+key+value, output, two, the head
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(fused)
    onnxruntime.InferenceSession(path, options)
    (loop,) = [n for n in onnx.load(fused).graph.node if n.op_type == "Loop"]
    found = [n.op_type for n in nodes(loop.attribute[0].g)]
    assert "MatMulInteger" not in found
    assert found.count("DynamicQuantizeMatMul") == 5


@pytest.mark.parametrize("opset", [17, 23])
def test_int8_rounds_each_token_by_itself_in_a_gated_network(tmp_path, quick, opset):
    path = tmp_path / "m.onnx"
    model = classifier(feed_forward="gated")
    inputs = {"token_ids": np.arange(18).reshape(2, 9) + 4}
    model.export(path, format="onnx", quantize="int8", opset=opset)
    file = onnx.load(path)
    by_name = {name: n for n in file.graph.node for name in n.output}
    (product,) = [
        n
        for n in file.graph.node
        if n.op_type == "MatMulInteger" and n.input[1] == f"{KERNEL}/int8"
    ]
    rounding = by_name[product.input[0]]
    while rounding.op_type != "Div":
        rounding = by_name[rounding.input[0]]
    after = [n for n in file.graph.node if product.output[0] in n.input]
    while len(after) == 1 and after[0].op_type != "Add":
        product = after[0]
        after = [n for n in file.graph.node if product.output[0] in n.input]
    ends = [rounding.input[0], product.output[0]]
    for name in ends:
        file.graph.output.append(onnx.ValueInfoProto(name=name))
    session = onnxruntime.InferenceSession(file.SerializeToString())
    x, y = session.run(ends, {k: v.astype("int64") for k, v in inputs.items()})
    assert x.shape == (18, 192) and y.shape == (18, 48)

    scale = np.abs(x).max(axis=-1, keepdims=True) / 127
    expected = np.round(x / scale) * scale @ by_hand(initializers(path), KERNEL, "int8")
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    assert verify(path, model).quantize == "int8"


@pytest.mark.parametrize("mode", MODES)
def test_an_encoder_task_and_its_metric(tmp_path, quick, mode):
    tokenizer = kzoo.FastTokenizer.train(["abcdefgh"], 30, algorithm="character")
    model = classifier(tokenizer=tokenizer)
    generator = np.random.default_rng(0)
    x = ["".join(generator.choice(list("abcdefgh"), 9)) for _ in range(24)]
    y = np.array(model.classify(x))
    y[:6] = (y[:6] + 1) % 3
    path = tmp_path / "m.onnx"
    report = model.export(path, format="onnx", quantize=mode, evaluate=(x, y))
    assert report.metric["model"]["accuracy"] == pytest.approx(0.75)
    assert abs(report.metric["artifact"]["accuracy"] - 0.75) <= 0.3
    assert str(report.metric["artifact"]) in str(report)
    assert report.token_agreement is None
    stored = initializers(path)
    assert stored["encoder/position_embedding/embeddings"].dtype == np.float32
    assert verify(path, model).quantize == mode


def translator():
    tokenizer = kzoo.FastTokenizer.train(["abc", "bca"], 30, algorithm="character")
    model = kzoo.Seq2SeqLM.from_size("tiny", tokenizer, **SIZE)
    perturb(model.named_variables().values())
    return model


@pytest.fixture(scope="module")
def sessions(tmp_path_factory):
    """The functions of its artifact."""
    path = tmp_path_factory.mktemp("translator") / "m"
    translator().export(path, format="onnx")
    return {
        name: onnxruntime.InferenceSession(path / f"{name}.onnx")
        for name in ("forward", "generate")
    }


def test_a_task_answers_from_an_artifact(sessions):
    model = translator()
    texts, options = ["ab", "cabac", "b"], dict(beams=2, max_new_tokens=4)
    tokens = model.generate(texts, **options)
    energy, score = model.energy(texts, texts), model.score(texts, texts, **options)
    with answers_from(model, sessions) as answering:
        assert answering is model
        assert model.generate(texts, **options) == tokens
        assert model.score(texts, texts, **options) == score
        np.testing.assert_allclose(model.energy(texts, texts), energy, atol=1e-3)
    assert not {"call", "search", "compiled_function"} & set(vars(model))
    perturb(model.named_variables().values(), seed=5)
    own = model.energy(texts, texts)
    with answers_from(model, sessions):  # the artifact's weights, not the model's
        np.testing.assert_allclose(model.energy(texts, texts), energy, atol=1e-3)
        assert not model.run_eagerly  # what another thread compiles stays so
        with ThreadPoolExecutor(1) as pool:  # another thread asks the model
            there = pool.submit(model.energy, texts, texts).result()
        np.testing.assert_allclose(there, own, atol=1e-5)
    assert np.abs(model.energy(texts, texts) - energy).max() > 0.1
    with answers_from(model, {"forward": sessions["forward"]}):
        with pytest.raises(ExportError, match="asked for 'generate'"):
            model.generate(texts)


@pytest.mark.tensorflow
def test_a_task_of_a_strategy_answers_from_an_artifact(tmp_path):
    """Its steps run in threads of the strategy."""
    import tensorflow as tf

    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = make(kzoo.TextClassifier, num_classes=3)
    inputs = {"token_ids": np.array([[1, 5, 6, 2]])}
    expected = model.predict(inputs, verbose=0)
    model.export(tmp_path / "model.onnx", format="onnx")
    perturb(model.named_variables().values(), seed=5)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    with answers_from(model, {"forward": session}):
        found = model.predict(inputs, verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(model.predict(inputs, verbose=0) - expected).max() > 1e-2


def test_an_artifact_answers_in_batches_as_keras_does(sessions):
    model = translator()
    texts = ["ab", "cabac", "b", "", "ca"]
    drawn = dict(temperature=40.0, seed=3, min_new_tokens=5)
    forced = dict(forced_prefix=["a", "bc", "", "ca", "b"])
    for options in (drawn, forced, drawn | forced):
        options |= dict(max_new_tokens=6, return_scores=True)
        whole, numbers = model.generate(texts, **options)
        assert len(set(whole)) > 3
        with answers_from(model, sessions):
            for size in (2, 5):
                got, scores = model.generate(texts, batch_size=size, **options)
                assert got == whole
                np.testing.assert_allclose(scores, numbers, atol=1e-3)


@pytest.mark.parametrize("name", ["PairScorer", "QuestionAnswering", "TextClassifier"])
def test_outputs_of_an_artifact_are_what_call_gives(name):
    kind = getattr(kzoo, name)
    given = dict(num_classes=3) if name == "TextClassifier" else {}
    model = make(kind, **given)
    inputs = {"token_ids": np.array([[1, 5, 6, 2, 7, 8, 2, 0]])}
    expected = keras.ops.convert_to_numpy(model(inputs))
    outputs = model.from_named_outputs(model.named_outputs(inputs))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(outputs), expected, atol=1e-4)


def scale_too_large(values, scales, mode):
    return values, scales * np.float32(1.2)


def one_scale_too_large(values, scales, mode):
    scales = scales.copy()
    scales[-1] *= 1.2
    return values, scales


def zero_point_off(values, scales, mode):
    return (values + 1).astype(values.dtype), scales


def rows_reversed(values, scales, mode):
    return values[::-1], scales[::-1]


@pytest.mark.parametrize(
    "broken", [scale_too_large, one_scale_too_large, zero_point_off, rows_reversed]
)
@pytest.mark.parametrize("mode", ["int8", "int8_weights", "int4"])
def test_a_broken_quantiser_is_caught(tmp_path, monkeypatch, quick, mode, broken):
    right = quantize.quantize_rows
    monkeypatch.setattr(
        quantize, "quantize_rows", lambda rows, mode: broken(*right(rows, mode), mode)
    )
    with pytest.raises(ExportError, match="steps, more than by rounding"):
        classifier().export(tmp_path / "m", format="onnx", quantize=mode)
    assert list(tmp_path.iterdir()) == []


ATTENTION = "encoder/layer_0/self_attention/output"


def halve_a_scale(graph, mode):
    name = f"{ATTENTION}/kernel/{mode}_scale"
    dtype, shape, read = graph.initializers[name]
    graph.initializers[name] = dtype, shape, lambda: read() * 0.5


def reverse_a_kernel(graph, mode):
    name = f"{ATTENTION}/kernel/{mode}"
    dtype, shape, read = graph.initializers[name]
    graph.initializers[name] = dtype, shape, lambda: read()[::-1].copy()


def take_another_bias(graph, mode):
    right, wrong = f"{ATTENTION}/bias", "encoder/layer_0/self_attention_norm/gamma"
    for _, inputs, _, _ in graph.nodes:
        inputs[:] = [wrong if name == right else name for name in inputs]


@pytest.mark.parametrize("mode", ["int8", "int8_weights", "int4"])
@pytest.mark.parametrize("breaks", [halve_a_scale, reverse_a_kernel, take_another_bias])
def test_a_broken_graph_is_caught(tmp_path, monkeypatch, quick, mode, breaks):
    right = quantize.Matrices.quantize

    def broken(self, graph):
        right(self, graph)
        breaks(graph, mode)

    monkeypatch.setattr(quantize.Matrices, "quantize", broken)
    with pytest.raises(ExportError, match="of its spread from a float32 file"):
        classifier().export(tmp_path / "m", format="onnx", quantize=mode)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("quick", "remembered")
def test_a_broken_loop_is_caught(tmp_path, monkeypatch):
    right = quantize.Matrices.quantize

    def broken(self, graph):
        right(self, graph)
        name = f"decoder/layer_0/feed_forward/output/kernel/{self.mode}_scale"
        dtype, shape, read = graph.initializers[name]
        graph.initializers[name] = dtype, shape, lambda: read() * 0.5

    model = make(kzoo.CausalLM)
    for mode in ("int8", "int4"):
        options = dict(format="onnx", quantize=mode)
        model.export(tmp_path / f"{mode}.onnx", **options)
        with monkeypatch.context() as patch:
            patch.setattr(quantize.Matrices, "quantize", broken)
            with pytest.raises(ExportError, match="a float32 file with the same wei"):
                model.export(tmp_path / "broken.onnx", **options)


def test_the_logit_of_a_banned_token_is_no_part_of_the_spread():
    numbers = np.random.default_rng(0).normal(size=(2, 1000))
    right = np.append(numbers[0], [-1e9, -1e30])
    for noise in (0.1, 1.0):
        got = right + np.append(noise * numbers[1], [64.0, 0.0])
        assert agreement.difference([got], [right]) == pytest.approx(noise, rel=0.05)
    for wrong in ([0.0, -1e30], [1e9, -1e30], [np.nan, -1e30], [-1e9, 0.0]):
        got = np.append(numbers[0], wrong)
        assert agreement.difference([got], [right]) == np.inf


@pytest.mark.parametrize("mode", MODES)
def test_an_artifact_is_verified_again(tmp_path, quick, mode):
    model, path = make(kzoo.CausalLM), tmp_path / "m"
    options = dict(format="onnx", functions="forward", quantize=mode)
    model.export(path, **options)
    assert verify(path, model).quantize == mode
    (path / "report.json").unlink()
    assert verify(path, model).quantize == mode
    perturb(model.named_variables().values(), seed=9)
    with pytest.raises(ExportError, match="differ"):
        verify(path, model)


@pytest.mark.usefixtures("quick", "greedy")
def test_a_model_without_large_matrices_stays_as_it_is(tmp_path):
    sizes = dict(vocabulary_size=20, hidden_dim=16, intermediate_dim=24)
    model = make(kzoo.CausalLM, **sizes)
    for mode in MODES:
        path = tmp_path / f"{mode}.onnx"
        report = model.export(path, format="onnx", quantize=mode)
        assert report.weight_bytes == report.float32_weight_bytes
        assert f"{mode} changed nothing: no matrix is so large" in str(report)
        assert report.token_agreement == 1.0
        stored = initializers(path).values()
        assert not {a.dtype.name for a in stored} & {"float16", "int8", "uint8"}


@pytest.mark.usefixtures("quick")
def test_a_matrix_that_blocks_would_make_larger_stays_as_it_is(tmp_path):
    """Of rows of 24 numbers a block of 128 holds more than 4 bytes each."""
    sizes = dict(vocabulary_size=101, hidden_dim=24, intermediate_dim=64, num_heads=3)
    model, options = make(kzoo.CausalLM, **sizes), dict(format="onnx")
    options |= dict(functions="forward", quantize="int8_weights")
    report = model.export(tmp_path / "model.onnx", **options)
    assert report.weight_bytes < report.float32_weight_bytes
    stored = initializers(tmp_path / "model.onnx")
    assert [n for n in stored if n.endswith("int8_weights")] == [
        f"decoder/layer_{i}/feed_forward/output/kernel/int8_weights"
        for i in range(model.config.decoder.num_layers)
    ]


@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_older_operator_sets_and_lora(tmp_path, quick, mode):
    model = make(kzoo.CausalLM)
    model.enable_lora(2, "*")
    options = dict(format="onnx", functions="forward", quantize=mode)
    report = model.export(tmp_path / "m", portable=True, **options)
    assert report.opset == 18
    assert report.weight_bytes < report.float32_weight_bytes / 2
    assert "changed nothing" not in str(report)
    assert ("needs onnxruntime" in str(report)) == (mode == "int4")


def test_tables_of_positions_stay_and_tables_of_tokens_do_not():
    model = make(kzoo.CausalLM, positions="learned", tie_head=False)
    graph = emit(model.export_functions()[0], names_of(model), 23)
    before = graph.initializers["decoder/position_embedding/embeddings"]
    matrices = quantize.Matrices("int4")
    matrices.quantize(graph)
    assert graph.initializers["decoder/position_embedding/embeddings"] == before
    assert "decoder/token_embedding/embeddings" in matrices.found
    assert all(m.by_rows == n.endswith("embeddings") for n, m in matrices.found.items())


def test_weights_that_float16_does_not_hold_are_refused(tmp_path):
    model = classifier()
    model.named_variables()[KERNEL].assign(np.full((192, 48), 1e5))
    with pytest.raises(ExportError, match="above 65504"):
        model.export(tmp_path / "m", format="onnx", quantize="float16")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(format="onnx", quantize="int3"), "quantize must be None or one of"),
        (dict(format="tf_saved_model", quantize="int8"), "of format='onnx'"),
        (dict(format="tf_saved_model", evaluate=([], [])), "of format='onnx'"),
        (dict(format="onnx", evaluate=3), "a tuple of the arguments.*Received: 3"),
        (dict(format="onnx", evaluate=(["a"],)), "score.*missing a required argument"),
        (dict(format="onnx", exporter="tf2onnx", quantize="int8"), "exporter='kzoo'"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, options, message):
    with pytest.raises(ExportError, match=message):
        make().export(tmp_path / "m", **options)


def test_a_task_that_keras_quantised_is_refused(tmp_path, monkeypatch):
    model = make(kzoo.CausalLM)
    # Which Keras calls for each kernel, and takes as long as the tests before left.
    monkeypatch.setattr("gc.collect", lambda *_: 0)
    model.decoder.blocks[0].feed_forward.intermediate.quantize("int8", type_check=False)
    with pytest.raises(
        ExportError, match="(?s)was quantised by Keras.*quantize='int8'"
    ):
        model.export(tmp_path / "m", format="onnx", quantize="int8")


@pytest.mark.parametrize("mode", ["int8", "int8_weights"])
def test_codes_that_all_are_a_step_off_are_refused(tmp_path, mode):
    """As by another zero point; of rounding only some are, those between two."""
    model, path = classifier(), tmp_path / "model.onnx"
    model.export(path, format="onnx", quantize=mode)
    proto = onnx.load(path)
    kinds = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
    tables = [t for t in proto.graph.initializer if t.data_type in kinds]
    for count, message in ((1, None), (None, "stores .* otherwise than")):
        for table in tables:
            codes = onnx.numpy_helper.to_array(table).copy()
            if codes.size < 100:  # zero points
                continue
            middle = codes.ravel()[:count] < np.iinfo(codes.dtype).max
            codes.ravel()[:count][middle] += 1
            table.CopyFrom(onnx.numpy_helper.from_array(codes, table.name))
        onnx.save(proto, path)
        if not message:
            verify(path, model)
            continue
        with pytest.raises(ExportError, match=message):
            verify(path, model)


@pytest.mark.parametrize(
    ("mode", "change"),
    [
        ("int4", lambda x: x ^ 15),
        ("int4", lambda x: (x & 0xF0) | (16 - (x & 15)) & 15),
        ("int8_weights", lambda x: np.where(x < 128, x + 17, x - 17)),
    ],
)
def test_steps_in_a_row_that_no_case_reads_are_refused(tmp_path, mode, change):
    keras.utils.set_random_seed(0)
    model = kzoo.CausalLM.from_size(
        "tiny", vocabulary_size=3000, num_layers=1, tie_head=False
    )
    path = tmp_path / "model.onnx"
    model.export(path, format="onnx", functions="forward", quantize=mode)
    verify(path, model)
    proto = onnx.load(path)
    tables = [
        t
        for t in proto.graph.initializer
        if t.data_type == onnx.TensorProto.UINT8
        and t.name.startswith("decoder/token_embedding")
    ]
    assert tables
    for table in tables:
        array = onnx.numpy_helper.to_array(table).copy()
        assert len(array) == 3000
        array[2500] = change(array[2500])
        table.CopyFrom(onnx.numpy_helper.from_array(array.astype("uint8"), table.name))
    onnx.save(proto, path)
    with pytest.raises(ExportError, match="stores .* otherwise than"):
        verify(path, model)
