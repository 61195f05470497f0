"""Replaces the matrices of an emitted ONNX graph by smaller ones.

A matrix is a stored weight that a product reads, or the table of a token embedding. It
is quantised while it is written, a few rows at a time, and stored once: a table that is
the head, too, serves both. What is small stays as it is: norms, biases, positions.

| mode | in the file | computes |
|---|---|---|
| float16 | float16 | in float32; the cast is done once, when the file is loaded |
| int8 | int8, one scale a row | in integers: activations are quantised on the way |
| int8_weights | 8 bits, one scale a block of 128 | `MatMulNBits` |
| int4 | 4 bits, two in a byte, one scale a block of 32 | `MatMulNBits` |

Activations of int8 have one scale a tensor, and one a token where they are products of
two, as those between the layers of a gated feed-forward network.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from kzoo.exporters.errors import ExportError
from kzoo.ops.onnx_graph import subgraphs, to_numpy

SMALLEST = 1024  # elements; a smaller matrix saves nothing
_ELEMENTS = 2**22  # that are quantised at a time

# Bits and elements that share a scale; what `MatMulNBits` calls so.
_BLOCKS = {"int8_weights": (8, 128), "int4": (4, 32)}
_PRODUCTS = ("Gemm", "MatMul")
MODES = ("float16", "int8", *_BLOCKS)

# Of "int8". CPUs without VNNI add two products of 8 bits in 16; with 7 bits for the
# weight there is no overflow: 2 * 255 * 64 < 2**15. (onnxruntime: `reduce_range`.)
_LARGEST = 64

# Products of activations have peaks, which leave few steps for a batch's other tokens
# (Yang et al., 2024, https://arxiv.org/abs/2405.14428).
_GATED, _OF_PRODUCTS = "feed_forward/gate+intermediate/", "feed_forward/output/"

# Half a step, and what the division by a step in float32 adds to it.
LARGEST_ROUNDING = 0.501


@dataclasses.dataclass(frozen=True)
class Matrix:
    """A matrix that is stored in another form.

    Args:
        name: of the initialiser that it was.
        mode: one of `MODES`.
        shape: of the initialiser.
        by_rows: whether the products' outputs, or the tokens, are its rows: (N, K); its
            columns else, (K, N).
        read: gives the initialiser.
        by_token: whether what it multiplies gets a scale a token, for `"int8"`.
    """

    name: str
    mode: str
    shape: tuple
    by_rows: bool
    read: Callable
    by_token: bool

    @property
    def size(self):
        """N and K."""
        return self.shape if self.by_rows else self.shape[::-1]

    def stored(self):
        """The initialisers that it becomes: name to (dtype, shape, read)."""
        (outputs, width), mode = self.size, self.mode
        if mode == "float16":
            return {self.values: ("float16", self.shape, self._halves)}
        if mode == "int8":
            values, scales = ("int8", self.shape), (outputs,)
        else:
            bits, block = _BLOCKS[mode]
            blocks = -(-width // block)
            values = "uint8", (outputs, blocks, block * bits // 8)
            scales = outputs, blocks
        return {
            self.values: (*values, lambda: self._quantized(0)),
            self.scales: ("float32", scales, lambda: self._quantized(1)),
        }

    @property
    def stored_bytes(self):
        """Of what it becomes, in bytes."""
        return sum(
            np.dtype(dtype).itemsize * np.prod(shape)
            for dtype, shape, _ in self.stored().values()
        )

    @property
    def values(self):
        """The name of the quantised weight."""
        return f"{self.name}/{self.mode}"

    @property
    def scales(self):
        """The name of its scales."""
        return f"{self.name}/{self.mode}_scale"

    def restored(self):
        """The matrix as the operators read it, which is `read()` but for rounding.

        Raises:
            ExportError: a weight is off by more than half a step.
        """
        exact = to_numpy(self.read())
        stored = [np.asarray(to_numpy(read())) for *_, read in self.stored().values()]
        if self.mode == "float16":
            steps = np.spacing(np.abs(stored[0])).astype("float32")
            found = stored[0].astype("float32")
        else:
            found, steps = dequantize(*stored, self.mode, self.shape, self.by_rows)
        off = float(np.max(np.abs(found - exact) / steps, initial=0.0))
        if not off <= LARGEST_ROUNDING:
            raise ExportError(
                f"{self.name} as {self.mode} is off by {off:.3g} steps, more than by "
                "rounding. The artifact was not kept; please report this."
            )
        return found

    def _halves(self):
        with np.errstate(over="ignore"):
            halves = to_numpy(self.read()).astype("float16")
        if not np.isfinite(halves).all():
            raise ExportError(
                f"{self.name} has weights above 65504, which float16 does not hold. "
                "Use another quantize."
            )
        return halves

    def _quantized(self, which):
        """The values (0) or the scales (1)."""
        rows = to_numpy(self.read())
        rows = rows if self.by_rows else rows.T
        count = max(1, _ELEMENTS // max(1, rows.shape[1]))
        parts = [
            quantize_rows(np.ascontiguousarray(rows[i : i + count]), self.mode)[which]
            for i in range(0, len(rows), count)
        ]
        result = np.concatenate(parts)
        transposed = which == 0 and self.mode == "int8" and not self.by_rows
        return result.T if transposed else result


def quantize_rows(rows, mode):
    """Symmetric quantisation of rows.

    Args:
        rows: float32 (N, K).
        mode: `"int8"`, `"int8_weights"` or `"int4"`.

    Returns:
        For `"int8"` int8 (N, K) and float32 (N,); else uint8 (N, blocks, bytes of a
        block), of two 4-bit numbers the first in the lower half, and float32
        (N, blocks), as `MatMulNBits` reads them.
    """
    if mode == "int8":
        scales = _scales(rows, _LARGEST)
        return np.rint(rows / scales[:, None]).astype("int8"), scales
    bits, block = _BLOCKS[mode]
    middle = 2 ** (bits - 1)
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % block)))
    rows = rows.reshape(len(rows), -1, block)
    scales = _scales(rows, middle - 1)
    values = (np.rint(rows / scales[..., None]) + middle).astype("uint8")
    if bits == 4:
        values = values[..., 0::2] | values[..., 1::2] << 4
    return values, scales


def _scales(rows, largest):
    """What makes the largest number of the last axis `largest`; 1 where all are 0.

    So it is where they are so small that float32 has no normal number for a step.
    """
    scales = np.abs(rows).max(axis=-1) / np.float32(largest)
    return np.where(scales >= np.finfo("float32").tiny, scales, 1).astype("float32")


def dequantize(values, scales, mode, shape, by_rows):
    """A matrix of what is stored, by the definition of the operators that read it.

    Args:
        values: as in the file; so for the next.
        scales: of the rows, or of their blocks.
        mode: one of `MODES`, but for float16.
        shape: of the matrix.
        by_rows: see `Matrix`.

    Returns:
        float32 of the shape, and the step of each element, likewise.
    """
    if mode == "int8":
        steps = np.broadcast_to(scales[:, None] if by_rows else scales, shape)
        return values.astype("float32") * steps, steps
    bits, block = _BLOCKS[mode]
    count, width = shape if by_rows else shape[::-1]
    if bits == 4:
        values = np.stack([values & 15, values >> 4], axis=-1)
    numbers = values.reshape(count, -1).astype("float32") - 2.0 ** (bits - 1)
    steps = np.repeat(scales, block, axis=1)
    found, steps = (numbers * steps)[:, :width], steps[:, :width]
    return (found, steps) if by_rows else (found.T, steps.T)


class Matrices:
    """The matrices of an artifact, whose graphs are changed one by one.

    Args:
        mode: one of `MODES`, or `None`, which changes nothing.
    """

    def __init__(self, mode):
        self.mode, self.found = mode, {}
        self.metadata = {"quantize": mode} if mode else {}

    def quantize(self, graph):
        """Replaces the matrices of a graph, in place."""
        if not self.mode:
            return
        matrices = _find(graph, self.mode)
        self.found |= matrices
        rewrite = _Pass(graph, matrices, self.mode)
        for matrix in matrices.values():
            graph.initializers.update(matrix.stored())
            if self.mode == "float16":  # the name goes on: its readers stay as they are
                del graph.initializers[matrix.name]
                rewrite.once(matrix.name, "Cast", [matrix.values], to=1)
        if self.mode != "float16":
            rewrite.replace(graph)
        graph.nodes[:0] = rewrite.before.values()
        graph.prune()

    def restore(self, graph, round_activations=False):
        """Has a graph that is not quantised hold what rounding leaves, in place.

        Args:
            graph: the outermost `OnnxGraph`.
            round_activations: whether what the matrices multiply gets 8 bits, too.
        """
        for name, matrix in self.found.items():
            if name in graph.initializers:
                dtype, shape, _ = graph.initializers[name]
                graph.initializers[name] = dtype, shape, matrix.restored
        if round_activations:
            self._round_activations(graph)

    def _round_activations(self, graph):
        nodes, graph.nodes = graph.live_nodes(), []
        for op_type, inputs, outputs, attributes in nodes:
            if op_type in _PRODUCTS and inputs[1] in self.found:
                by_token = self.found[inputs[1]].by_token
                numbers, scale, zero = _round_to_8_bits(graph, inputs[0], by_token)
                if by_token:  # `DequantizeLinear` takes no scale a row of two axes
                    centred = [_add(graph, "Cast", [i], to=1) for i in (numbers, zero)]
                    rounded = _add(graph, "Mul", [_add(graph, "Sub", centred), scale])
                else:
                    rounded = _add(graph, "DequantizeLinear", [numbers, scale, zero])
                inputs = [rounded, *inputs[1:]]
            for inner in subgraphs(attributes):
                self._round_activations(inner)
            graph.nodes.append((op_type, inputs, outputs, attributes))


def _round_to_8_bits(graph, x, by_token):
    """Adds nodes that give activations 8 bits.

    Args:
        graph: the one that gets the nodes.
        x: the name of the activations, float32 (..., K).
        by_token: a scale for each K of them, of symmetrical numbers; else one for all.

    Returns:
        The names of uint8 (..., K), float32 (..., 1) or (), and the uint8 () that is 0.
    """
    if not by_token:
        outputs = [graph.fresh(f"Quantized{i}") for i in range(3)]
        graph.nodes.append(("DynamicQuantizeLinear", [x], outputs, {}))
        return outputs
    node = functools.partial(_add, graph)
    names = [graph.constant(np.float32(i)).name for i in (1e-30, 1 / 127, 128)]
    least, step, middle = names
    if graph.root.opset < 18:
        largest = node("ReduceMax", [node("Abs", [x])], axes=[-1])
    else:
        axes = graph.constant(np.array([-1])).name
        largest = node("ReduceMax", [node("Abs", [x]), axes])
    scale = node("Mul", [node("Max", [largest, least]), step])
    numbers = node("Add", [node("Round", [node("Div", [x, scale])]), middle])
    return node("Cast", [numbers], to=2), scale, graph.constant(np.uint8(128)).name


def _add(graph, op_type, inputs, **attributes):
    name = graph.fresh(op_type)
    graph.nodes.append((op_type, inputs, [name], attributes))
    return name


def _find(graph, mode):
    """The matrices of a graph, by name."""
    layouts = {}  # name -> whether each use is by rows
    for op_type, inputs, _, attributes in graph.every_node():
        if op_type in _PRODUCTS:
            name, by_rows = inputs[1], bool(attributes.get("transB"))
        elif op_type == "Gather" and not attributes.get("axis"):
            name, by_rows = inputs[0], True
        else:
            continue
        layouts.setdefault(name, {}).setdefault(by_rows, set()).add(op_type)
    found = {}
    for name, uses in layouts.items():
        dtype, shape, read = graph.initializers.get(name, ("", (), None))
        large = dtype == "float32" and len(shape) == 2 and np.prod(shape) >= SMALLEST
        table = name.endswith("token_embedding/embeddings")
        if large and len(uses) == 1 and (table or set(*uses.values()) != {"Gather"}):
            gate = name.replace(_OF_PRODUCTS, _GATED)
            by_token = gate != name and gate in layouts
            matrix = Matrix(name, mode, tuple(shape), *uses, read, by_token)
            if matrix.stored_bytes < 4 * np.prod(shape):  # blocks may be half empty
                found[name] = matrix
    return found


class _Pass:
    """Rewrites the nodes that read a matrix.

    Args:
        graph: the outermost graph.
        matrices: name to `Matrix`.
        mode: of them.

    Attributes:
        before: name to the node that makes it, of what no input changes; runtimes
            compute it when they load.
    """

    def __init__(self, graph, matrices, mode):
        self.root, self.matrices, self.mode = graph, matrices, mode
        self.before = {}

    def replace(self, graph):
        """Rewrites a graph and its subgraphs."""
        nodes, graph.nodes = graph.live_nodes(), []
        activations = {}  # name -> its 8-bit form, for all products that read it
        for node in nodes:
            op_type, inputs, outputs, attributes = node
            for inner in subgraphs(attributes):
                self.replace(inner)
            if op_type == "Gather" and inputs[0] in self.matrices:
                self._gather(graph, self.matrices[inputs[0]], inputs[1], outputs)
            elif op_type in _PRODUCTS and inputs[1] in self.matrices:
                x, name, bias = (*inputs, "")[:3]
                matrix = self.matrices[name]
                if self.mode == "int8":
                    self._integers(graph, matrix, x, bias, outputs, activations)
                else:
                    self._blocks(graph, matrix, x, bias, outputs)
            else:
                graph.nodes.append(node)

    def _blocks(self, graph, matrix, x, bias, outputs):
        bits, block = _BLOCKS[self.mode]
        count, width = matrix.size
        inputs = [x, matrix.values, matrix.scales] + (["", "", bias] if bias else [])
        # Level 4, 8-bit activations in blocks, is the one that onnxruntime has fast
        # kernels for; with 8 bits and level 0 a product takes a hundred times as long.
        options = dict(K=width, N=count, bits=bits, block_size=block, accuracy_level=4)
        options["domain"] = "com.microsoft"
        graph.nodes.append(("MatMulNBits", inputs, outputs, options))

    def _integers(self, graph, matrix, x, bias, outputs, activations):
        """The standard's operators; onnxruntime fuses them to one, in loops, too."""
        node = functools.partial(_add, graph)
        if x not in activations:
            activations[x] = _round_to_8_bits(graph, x, matrix.by_token)
        numbers, scale, zero = activations[x]
        values = matrix.values
        if matrix.by_rows:
            name = f"{values}/transposed"
            values = self.once(name, "Transpose", [values], perm=[1, 0])
        product = node("MatMulInteger", [numbers, values, zero])
        product = node("Cast", [product], to=1)
        factors = [product, node("Mul", [scale, matrix.scales])]
        if matrix.by_token:
            # In another order: onnxruntime 1.32 fuses the usual one to an operator that
            # reads the scale of the first token alone.
            factors = [node("Mul", [product, matrix.scales]), scale]
        if not bias:
            graph.nodes.append(("Mul", factors, outputs, {}))
            return
        graph.nodes.append(("Add", [node("Mul", factors), bias], outputs, {}))

    def _gather(self, graph, matrix, ids, outputs):
        """Rows of a table: float32 (..., K)."""
        node = functools.partial(_add, graph)
        if self.mode == "int8":
            axes = self.root.constant(np.array([-1])).name
            rows = node("Cast", [node("Gather", [matrix.values, ids], axis=0)], to=1)
            scales = node("Gather", [matrix.scales, ids], axis=0)
            scales = node("Unsqueeze", [scales, axes])
            graph.nodes.append(("Mul", [rows, scales], outputs, {}))
            return
        (bits, block), (count, width) = _BLOCKS[self.mode], matrix.shape
        shape = self.root.constant(np.array([count, -1])).name
        table = self.once(f"{matrix.values}/table", "Reshape", [matrix.values, shape])
        options = dict(gather_axis=0, quantize_axis=1, block_size=block, bits=bits)
        options["domain"] = "com.microsoft"
        inputs = [table, ids, matrix.scales]
        if width % block == 0:
            graph.nodes.append(("GatherBlockQuantized", inputs, outputs, options))
            return
        rows = node("GatherBlockQuantized", inputs, **options)
        ends = [self.root.constant(np.array([i])).name for i in (0, width, -1)]
        graph.nodes.append(("Slice", [rows, *ends], outputs, {}))

    def once(self, name, op_type, inputs, **attributes):
        """The name of what is made of a weight alone."""
        self.before[name] = op_type, inputs, [name], attributes
        return name
