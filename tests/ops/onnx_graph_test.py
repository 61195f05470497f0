"""What a graph knows of lengths, what it computes when, and what it leaves out."""

import collections

import keras
import numpy as np
import onnxruntime
import pytest

from kzoo import ops
from kzoo.ops.onnx_file import write_model
from kzoo.ops.onnx_graph import DEFAULT_OPSET, OnnxGraph
from kzoo.ops.onnx_value import current_graph
from tests.harness import to_numpy


def emitted(build, shapes, opset=DEFAULT_OPSET):
    """The graph of a function of values; float32, but int64 where there is no axis."""
    graph = OnnxGraph(opset)
    with graph.building():
        values = {
            name: graph.input(
                name,
                shape,
                "float32" if shape else "int64",
                axes=[size or f"{name}_{axis}" for axis, size in enumerate(shape)],
            )
            for name, shape in shapes.items()
        }
        for number, value in enumerate(keras.tree.flatten(build(**values))):
            graph.output(value, f"output_{number}", axes=(None,) * value.ndim)
    graph.prune()
    return graph


def run(graph, path, **arrays):
    """What onnxruntime computes; a warning on the way would be an error of ours."""
    write_model(graph, path, metadata={})
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options).run(None, arrays)


def operators(graph):
    return collections.Counter(node[0] for node in graph.live_nodes())


def subgraph(graph, op_type, name):
    """The subgraph of the only node of a type."""
    (node,) = (node for node in graph.live_nodes() if node[0] == op_type)
    return node[3][name]


def floats(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


@pytest.mark.parametrize("length", [6000, 6007, 40], ids=["parts", "prime", "short"])
@pytest.mark.parametrize("k", [1, 3, 8, 40])
def test_top_k_prefers_the_first_of_equals(length, k, tmp_path):
    # Few values, so that every boundary is a tie.
    x = np.random.default_rng(k).integers(-2, 3, (5, length)).astype("float32")
    x[1], x[2, -1], x[3, ::97] = 0, 7, 5
    graph = emitted(lambda x: [ops.top_k(x, k), ops.argmax(x)], {"x": (None, length)})
    values, indices, largest = run(graph, tmp_path / "model.onnx", x=x)
    order = np.argsort(-x, axis=-1, kind="stable")[:, :k]
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis=-1))
    np.testing.assert_array_equal(largest, np.argmax(x, axis=-1))


def test_top_k_takes_any_k_at_run_time(tmp_path):
    x = np.random.default_rng(0).integers(0, 50, (2, 1280)).astype("float32")
    graph = emitted(ops.top_k, {"x": (None, 1280), "k": ()})
    for k in (1, 9, 11, 1280):  # there are 10 parts
        _, indices = run(graph, tmp_path / "model.onnx", x=x, k=np.array(k))
        order = np.argsort(-x, axis=-1, kind="stable")[:, :k]
        np.testing.assert_array_equal(indices, order)


def test_lengths_are_known_through_reshapes():
    def build(x):
        batch, length, width = ops.shape(x)
        count = batch * length
        rows = ops.reshape(x, (count, width))
        assert isinstance(x.shape[1], str) and rows.shape[1] == 8
        assert ops.reshape(rows, (batch, -1, width)).shape == x.shape
        assert ops.reshape(rows, (batch, length, 2, -1)).shape == (*x.shape[:2], 2, 4)
        assert ops.reshape(x, (-1, 8)).shape == (None, 8)  # no scalar has that length
        one = ops.reshape(x, (count, 1, width))
        assert ops.reshape(one, (-1, width)).shape == rows.shape
        return rows

    emitted(build, {"x": (None, None, 8)})


def test_a_chain_of_dense_layers_stays_with_matrices(tmp_path):
    first, second = floats(8, 16), floats(16, 8, seed=1)
    bias, gamma = floats(16, seed=2), floats(8, seed=3)

    def build(x):
        y = ops.layer_norm(x, gamma, np.zeros_like(gamma), 1e-5)
        y = ops.relu(ops.linear(y, first, bias))
        return x + ops.linear(y * 2.0, second)

    graph = emitted(build, {"x": (None, None, 8)})
    found = operators(graph)
    assert (found["Gemm"], found["Reshape"]) == (2, 2)
    x = floats(2, 5, 8)
    norm = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    inner = np.maximum(norm * gamma @ first + bias, 0) * 2
    (got,) = run(graph, tmp_path / "model.onnx", x=x)
    np.testing.assert_allclose(got, x + inner @ second, atol=1e-4)


def test_a_loop_knows_the_lengths_that_it_keeps(tmp_path):
    seen = []

    def build(x, count):
        def body(state):
            kept, grown = state["kept"], state["grown"]
            seen.append((kept.shape, grown.shape))
            rows = ops.full((ops.dim(kept, 0), 1), 1.0, "float32")
            return {"kept": kept * 2.0, "grown": ops.append(grown, rows, 0, axis=1)}

        grown = ops.buffer((ops.dim(x, 0), 0), 1, None, "float32")
        state = {"kept": x, "grown": grown}
        state = ops.while_loop(
            lambda state: ops.dim(state["grown"], 1) < 9, body, state, count
        )
        assert state["kept"].shape == x.shape
        return state["grown"], state["kept"]

    graph = emitted(build, {"x": (None, 3), "count": ()})
    (batch, width), grown = seen[-1]
    assert isinstance(batch, str) and width == 3
    assert grown[0] == batch and not isinstance(grown[1], int)
    # Nothing but the growing length is asked for inside.
    assert operators(subgraph(graph, "Loop", "body"))["Shape"] == 1
    x = floats(2, 3)
    for count, made in ((4, 4), (20, 9), (0, 0)):
        path = tmp_path / "model.onnx"
        grown, kept = run(graph, path, x=x, count=np.array(count))
        assert grown.shape == (2, made)
        np.testing.assert_array_equal(kept, x * 2.0**made)


def test_a_state_is_told_by_its_keys_and_not_by_their_order(tmp_path):
    """At every depth: branches and bodies may make the parts in another order."""

    def build(x, count):
        def body(state):
            a, (b, n) = state["inner"]["a"], state["inner"]["b"]
            other = {"b": (b * 3.0, n + 1), "a": a + b}
            return ops.cond(
                n > 1,
                lambda: {"inner": other},
                lambda: {"inner": {"a": a + 1.0, "b": (b, n + 1)}},
            )

        start = {"inner": {"b": (x * 2.0, ops.as_scalar(0)), "a": x}}
        state = ops.while_loop(
            lambda state: state["inner"]["b"][1] < 9, body, start, count
        )
        return state["inner"]["a"], state["inner"]["b"][0]

    graph, x = emitted(build, {"x": (None,), "count": ()}), floats(3)
    got = run(graph, tmp_path / "m.onnx", x=x, count=np.array(4))
    a, b = x + 2.0, x * 2.0
    for _ in range(2):
        a, b = a + b, b * 3.0
    for found, expected, eager in zip(got, (a, b), build(x, 4)):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        np.testing.assert_allclose(to_numpy(eager), expected, rtol=1e-6)


def test_lengths_are_computed_before_loops_and_branches():
    def build(x, count):
        def body(state):
            def branch():
                batch, width = ops.shape(state["x"])
                return ops.reshape(state["x"] + 1.0, (batch * width,))

            flat = ops.cond(
                count > 2, branch, lambda: ops.reshape(state["x"], (-1,)) * 1.0
            )
            return {"x": ops.reshape(flat, ops.shape(state["x"]))}

        return ops.while_loop(lambda state: count > 0, body, {"x": x}, count)["x"]

    body = subgraph(emitted(build, {"x": (None, None), "count": ()}), "Loop", "body")
    for inner in (body, subgraph(body, "If", "then_branch")):
        assert not operators(inner) & collections.Counter(["Shape", "Concat", "Mul"])


def test_what_one_branch_alone_reads_is_computed_in_it(tmp_path):
    def build(x, count):
        def body(state):
            n = state["n"]
            one, both, after = n - 5, n + 2, ops.maximum(n, 1)

            def branch():
                deep = ops.cond(n > 3, lambda: after * 2, lambda: n * 0)
                return state["x"] * ops.cast(one + both + deep, "float32")

            new = ops.cond(
                n > 1, branch, lambda: state["x"] - ops.cast(both, "float32")
            )
            return {"x": new, "n": n + 1}

        start = {"x": x, "n": ops.as_scalar(0)}
        return ops.while_loop(lambda state: state["n"] < 9, body, start, count)["x"]

    graph = emitted(build, {"x": (None,), "count": ()})
    graph.sink()
    body = subgraph(graph, "Loop", "body")
    assert not operators(body) & collections.Counter(["Sub", "Max", "Mul"])
    assert operators(body)["Add"] == 2  # what both branches read, and the next n
    branch = subgraph(body, "If", "then_branch")
    assert operators(branch)["Sub"] == 1 and not operators(branch)["Max"]
    (got,) = run(graph, tmp_path / "m.onnx", x=floats(3), count=np.array(6))
    expected = floats(3)
    for n in range(6):
        factor = (n - 5) + (n + 2) + (2 * max(n, 1) if n > 3 else 0)
        expected = expected * factor if n > 1 else expected - (n + 2)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("opset", [18, DEFAULT_OPSET])
@pytest.mark.parametrize("earlier", [None, 0, 2, 5])
def test_queries_side_by_side_see_what_the_mask_says(opset, biased, earlier, tmp_path):
    def attend(query, key, value, keys, values, seen, bias=None, earlier=earlier):
        cache = keys, values
        if earlier is not None:
            before, behind = (
                [ops.slice_axis(x, *bounds, axis=2) for x in cache]
                for bounds in ((None, earlier), (earlier, None))
            )
            cache = ops.transpose(before[0], (0, 1, 3, 2)), before[1], *behind
        output, cache = ops.attention(
            query,
            key,
            value,
            seen > 0.5,
            bias,
            num_heads=4,
            num_key_value_heads=2,
            scale=0.5,
            cache=cache,
        )[:2]
        if earlier is not None:
            cache = [
                ops.concatenate([x, y], axis=2)
                for x, y in zip(before, cache, strict=True)
            ]
        return output, cache

    shapes = {
        **{"query": (None, None, 16), "key": (None, None, 8), "value": (None, None, 8)},
        **dict.fromkeys(("keys", "values"), (None, 2, None, 4)),
        "seen": (None, 1, None, None),
        **({"bias": (1, 4, None, None)} if biased else {}),
    }
    graph = emitted(attend, shapes, opset)
    generator = np.random.default_rng(0)
    seen = (generator.random((2, 1, 3, 8)) < 0.5).astype("float32")
    seen[0, 0, 1] = 0.0  # a query that sees nothing gives zeros
    arrays = {
        "query": floats(2, 3, 16),
        "key": floats(2, 3, 8, seed=1),
        "value": floats(2, 3, 8, seed=2),
        "keys": floats(2, 2, 5, 4, seed=3),
        "values": floats(2, 2, 5, 4, seed=4),
        "seen": seen,
        "bias": floats(1, 4, 3, 8, seed=5),
    }
    if not biased:
        del arrays["bias"]
    got = run(graph, tmp_path / "model.onnx", **arrays)
    with ops.fixed_buffers(False):  # on JAX, too
        tensors = {n: keras.ops.convert_to_tensor(x) for n, x in arrays.items()}
        expected = attend(**tensors, earlier=None)
        parts = attend(**tensors)
    for one, other in zip(*map(keras.tree.flatten, (parts, expected)), strict=True):
        one, other = map(keras.ops.convert_to_numpy, (one, other))
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert not got[0][0, 1].any() and got[0][0, 0].any()
    for one, other in zip(got, keras.tree.flatten(expected), strict=True):
        other = keras.ops.convert_to_numpy(other)
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_what_is_not_used_is_not_stored():
    def build(x):
        _ = x + floats(4)
        return x * 2.0

    assert len(emitted(build, {"x": (None, 4)}).initializers) == 1


def test_a_node_may_be_of_another_operator_set(tmp_path):
    import onnx

    def build(x):
        def gelu():
            options = dict(domain="com.microsoft", alpha=1.0)
            return current_graph().node("QuickGelu", x, **options)

        return ops.cond(ops.all(x > -100.0), gelu, lambda: x)

    x = floats(2, 3)
    (got,) = run(emitted(build, {"x": (2, 3)}), tmp_path / "m.onnx", x=x)
    np.testing.assert_allclose(got, x / (1 + np.exp(-x)), atol=1e-6)
    imported = onnx.load(tmp_path / "m.onnx").opset_import
    assert {o.domain for o in imported} == {"", "com.microsoft"}


def test_panels_of_a_square_matrix_tell_its_directions_apart(tmp_path):
    matrix = keras.Variable(floats(40, 40))
    graph = OnnxGraph(DEFAULT_OPSET, low_memory=True)
    with graph.building():
        x = graph.input("x", (None, 40), "float32")
        graph.output(ops.linear(x, matrix), "one")
        graph.output(ops.linear_transposed(x, matrix), "other")
        ids = graph.input("ids", (None, None), "int64")
        graph.output(ops.embedding(ids, matrix), "rows")
    x, ids = floats(3, 40, seed=1), np.array([[0, 39, 7], [31, 32, 33]])
    one, other, rows = run(graph, tmp_path / "m.onnx", x=x, ids=ids)
    array = keras.ops.convert_to_numpy(matrix)
    np.testing.assert_allclose(one, x @ array, atol=1e-5)
    np.testing.assert_allclose(other, x @ array.T, atol=1e-5)
    assert (rows == array[ids]).all()
