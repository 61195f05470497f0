"""An ONNX graph while it is being built.

Nodes are kept as plain tuples and turned into protobuf when the file is written, so
that `kzoo.ops` needs no `onnx` to run on tensors. Weights stay in their variables
until then and are streamed to disk one by one: a file is never held in memory.

Integers are int64 throughout, ONNX's own index type.
"""

import contextlib
import hashlib

import numpy as np

from kzoo.ops.onnx_value import (
    OnnxValue,
    broadcast_shape,
    current_graph,
    emitting_into,
    is_building,
    onnx_dtype,
    static,
)

DEFAULT_OPSET = 23  # fused Attention, RotaryEmbedding and RMSNormalization
PORTABLE_OPSET = 18  # the newest one that older runtimes have
MINIMUM_OPSET = 17  # LayerNormalization

PANEL = 32  # columns: of 8 to 1536, those that were read the fastest by one row


def saves_memory():
    """Whether a graph is being built that shall need little memory where it runs."""
    return is_building() and current_graph().root.low_memory


def file_option(name, default):
    """An integer scalar that whoever runs the file may set, `default` otherwise."""
    return current_graph().root.input(name, (), "int64", default=default)


# What makes shapes out of lengths; none of it can fail.
_OF_LENGTHS = {"Add", "Sub", "Mul", "Min", "Max", "Range", "Unsqueeze", "Concat"}


class OnnxGraph:
    """A graph, or with `parent` the body of a `Loop` or a branch of an `If`.

    Args:
        opset: of the default domain.
        names: a dict from `id(variable)` to the initialiser's name.
        parent: the enclosing graph; its values may be used here.
        loop: this is the body of a `Loop`: what does not change in it is computed
            before it.
        low_memory: it is for a runtime that has little, see `saves_memory`.
    """

    def __init__(
        self,
        opset=DEFAULT_OPSET,
        names=None,
        parent=None,
        loop=False,
        low_memory=False,
    ):
        self.parent, self.loop = parent, loop
        self.depth = parent.depth + 1 if parent else 0
        self.root = parent.root if parent else self
        self.nodes, self.inputs, self.outputs = [], [], []
        self._own = set()  # names that a node of this graph gives
        self._cache = {}  # nodes that give the same value wherever they are asked for
        if not parent:
            self.opset, self.names = opset, names or {}
            self.low_memory = low_memory
            self.lengths = {}  # name of a scalar in some shape -> the scalar
            self.factors = {}  # name of a product of lengths -> what it is made of
            self.told = {}  # name -> the value whose shape the file tells; see `tell`
            self.initializers = {}  # name -> (dtype, shape, function returning bytes)
            self._count = 0

    @contextlib.contextmanager
    def building(self):
        """Ops inside the `with` block emit into this graph."""
        with emitting_into(self):
            yield self

    def subgraph(self, loop=False):
        """A graph nested in this one."""
        return OnnxGraph(parent=self, loop=loop)

    def fresh(self, stem):
        """A name that nothing else in the model has."""
        self.root._count += 1
        return f"{stem}_{self.root._count}"

    def input(self, name, shape, dtype, axes=None, default=None):
        """Adds a graph input; `axes` names its free axes.

        With a default it may be left out. ONNX says so by an initialiser of its name,
        and onnxruntime warns of each that it is no constant, unless
        `SessionOptions.log_severity_level` is 3.
        """
        value = OnnxValue(name, shape, onnx_dtype(dtype), self)
        if default is not None:
            array = np.asarray(default, value.dtype)
            self.stored(name, array.shape, value.dtype, array.copy)
        self.inputs.append((value, axes or [static(size) for size in shape]))
        for axis in range(value.ndim):
            self.length(value, axis)  # what comes of it knows its shape
        return value

    def output(self, value, name=None, axes=None):
        """Adds a graph output, called `name` when it is given.

        An input, a value of the outer graph or a value that is an output already goes
        through an `Identity`, as ONNX demands.
        """
        if name or value.name not in self._own:
            renamed = OnnxValue(
                name or self.fresh("Identity"), value.shape, value.dtype, self
            )
            self.nodes.append(("Identity", [value.name], [renamed.name], {}))
            value = renamed
        self._own.discard(value.name)
        self.outputs.append((value, axes or [static(size) for size in value.shape]))
        return value

    def node(
        self,
        op_type,
        *inputs,
        shape=None,
        dtype=None,
        stem=None,
        **attributes,
    ):
        """Emits a node and returns its output, or a list of them.

        Args:
            op_type: of the default domain, or of that given as `domain`.
            *inputs: OnnxValues, variables, arrays, numbers, or `None` for "absent".
            shape: of the output; that of the first input by default.
            dtype: likewise. A list has the node give as many outputs, also of one; then
                there is a list of shapes, too.
            stem: what the node's name begins with, which runtimes' errors tell;
                `op_type` by default.
            **attributes: of the node; an `OnnxGraph` is a subgraph.
        """
        values = [None if x is None else self.lift(x) for x in inputs]
        while values and values[-1] is None:
            values.pop()
        home = self._home(op_type, values, attributes)
        several = isinstance(dtype, list)
        if not several:
            shape = [values[0].shape if shape is None else shape]
            dtype = [dtype or values[0].dtype]
        names = [self.fresh(stem or op_type) for _ in dtype]
        home.nodes.append(
            (op_type, ["" if v is None else v.name for v in values], names, attributes)
        )
        home._own.update(names)
        results = [
            OnnxValue(name, home.known(s), d, home)
            for name, s, d in zip(names, shape, dtype, strict=True)
        ]
        if "domain" in attributes:  # ONNX does not know what it gives
            for result in results:
                self.tell(result)
        return results if several else results[0]

    def _home(self, op_type, values, attributes):
        """The graph to emit into: before the loops in which no input changes.

        Lengths are computed before branches, too.
        """
        home = self
        if subgraphs(attributes):
            return home  # these may read what belongs to this one
        values = [value for value in values if value is not None]
        deepest = max((value.graph.depth for value in values), default=0)
        lengths = op_type in _OF_LENGTHS and all(
            value.dtype == "int64" and value.ndim < 2 for value in values
        )
        while home.depth > deepest and (home.loop or lengths):
            home = home.parent
        return home

    def binary(self, op_type, left, right, dtype=None):
        """Emits an elementwise node that broadcasts; numbers take the other's dtype.

        Raises:
            TypeError: the dtypes differ, or a number does not fit the other's.
        """
        given = left, right
        common = left.dtype if isinstance(left, OnnxValue) else right.dtype
        left, right = (self.lift(x, common) for x in given)
        if left.dtype != right.dtype:
            raise TypeError(
                f"{op_type} needs one dtype: use ops.cast. "
                f"Received: {left!r} and {right!r}."
            )
        shape = broadcast_shape(left.shape, right.shape)
        result = self.elementwise(
            op_type, left, right, shape=shape, dtype=dtype or left.dtype
        )
        if op_type == "Mul" and shape == () and common == "int64":
            self.root.factors[result.name] = [self.symbol(x) for x in given]
        return result

    def elementwise(self, op_type, *values, **options):
        """Emits an elementwise node; see `node`.

        Operands that are known as matrices of their rows, (..., D) as (rows, D), give
        a result that is: `kzoo.ops.nn` then goes on with it. The form that is not used
        is not written.
        """
        result = self.node(op_type, *values, **options)
        rows = [
            value if value.ndim < 2 else
            self.seen(("rows", value.name)) if value.shape == result.shape else None
            for value in values
        ]  # fmt: skip
        known = all(value is not None for value in rows)
        if result.ndim > 2 and None not in result.shape and known:
            shape = next(value.shape for value in rows if value.ndim == 2)
            twin = self.node(op_type, *rows, **{**options, "shape": shape})
            self.remember(("rows", result.name), twin)
        return result

    def once(self, key, make):
        """The value that `make()` emits, emitted once and shared where it is seen."""
        value = self.seen(key)
        return self.remember(key, make()) if value is None else value

    def seen(self, key):
        """The value remembered under a key, or `None`."""
        graph = self
        while graph:
            if key in graph._cache:
                return graph._cache[key]
            graph = graph.parent
        return None

    def remember(self, key, value):
        """Makes `value` what `seen` and `once` give for the key, where it is seen."""
        value.graph._cache[key] = value
        return value

    def length(self, x, axis):
        """The length of an axis: an int where it is known, else an integer scalar."""
        axis %= x.ndim
        size = x.shape[axis]
        if isinstance(size, int):
            return size
        if size is not None:
            return self.root.lengths[size]
        size = x.graph.node(
            "Shape", x, shape=(1,), dtype="int64", start=axis, end=axis + 1
        )
        size = x.graph.node("Squeeze", size, shape=())
        x.shape = (*x.shape[:axis], self.symbol(size), *x.shape[axis + 1 :])
        return size

    def symbol(self, size):
        """What stands for a length in a shape: an int, or the name of the scalar."""
        if isinstance(size, OnnxValue):
            self.root.lengths[size.name] = size
            return size.name
        return int(size)

    def tell(self, value):
        """Has the file tell a value's dtype, and what is known of its shape.

        ONNX's own inference does not see constants of the outer graph, such as the
        shapes that a loop reshapes to, and takes what it does not know for 0 lengths.
        """
        self.root.told[value.name] = value

    def known(self, shape):
        """What of a shape has a meaning in this graph; `None` for the rest."""
        lengths = self.root.lengths
        return tuple(
            None if size in lengths and lengths[size].graph.depth > self.depth else size
            for size in shape
        )

    def lift(self, x, dtype=None):
        """`x` as an OnnxValue: variables become weights, arrays constants."""
        if isinstance(x, OnnxValue):
            return x
        if is_variable(x):
            return self.weight(x)
        return self.constant(x, dtype)

    def constant(self, x, dtype=None):
        """A constant, stored once a model however often it is used."""
        array = to_numpy(x)
        fitting = {"b": "b", "i": "iu", "f": "iuf"}
        if dtype and array.dtype.kind not in fitting[np.dtype(dtype).kind]:
            raise TypeError(f"{x!r} would not stay itself as {dtype}: use ops.cast.")
        if dtype is None:  # a Python float is float64, which nothing in kzoo wants
            dtype = "float32" if array.dtype == np.float64 else array.dtype
        dtype = onnx_dtype(dtype)
        array = np.ascontiguousarray(array, dtype)
        array = array.reshape(np.shape(x))  # ascontiguousarray makes scalars 1-D
        digest = hashlib.sha256(array.tobytes()).hexdigest()
        key = ("constant", array.dtype.str, array.shape, digest)
        root = self.root
        if key not in root._cache:
            # Named by its content: graphs that share a file of weights agree on it.
            name = f"constant_{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}"
            root.initializers[name] = (array.dtype.name, array.shape, lambda: array)
            root._cache[key] = OnnxValue(name, array.shape, array.dtype.name, root)
        return root._cache[key]

    def weight(self, variable):
        """The initialiser that holds a variable, under the variable's path."""
        return self.stored(
            self.root.names.get(id(variable), variable.path),
            variable.shape,
            variable.dtype,
            lambda: variable,
        )

    def concatenated(self, variables):
        """One initialiser with kernels or biases side by side along the last axis.

        With LoRA a layer's kernel is no variable but the sum of some: a constant.
        """
        if not all(map(is_variable, variables)):
            parts = [to_numpy(variable) for variable in variables]
            return self.constant(np.concatenate(parts, axis=-1))
        paths = [self.root.names.get(id(v), v.path) for v in variables]
        stem = paths[0].rsplit("/", 2)[0]
        parts = "+".join(path.split("/")[-2] for path in paths)
        shape = (*variables[0].shape[:-1], sum(v.shape[-1] for v in variables))
        return self.stored(
            f"{stem}/{parts}/{paths[0].rsplit('/', 1)[-1]}",
            shape,
            variables[0].dtype,
            lambda: np.concatenate([to_numpy(v) for v in variables], axis=-1),
        )

    def panels(self, matrix, transposed=False):
        """A weight (D, E) as panels, (E / 32 rounded up, D, 32), where memory is saved.

        Runtimes read panels as fast as what they pack, and do not pack them: each is
        held once, as it is stored. What the last one has beyond column E is 0.

        Args:
            matrix: an `OnnxValue`; that of a weight (E, D) where `transposed`.
            transposed: whether it is.

        Returns:
            The weight that the file then holds; `None` where it holds the matrix.
        """
        if not self.root.low_memory or matrix.name not in self.root.initializers:
            return None
        dtype, shape, read = self.root.initializers[matrix.name]
        rows, columns = shape[::-1] if transposed else shape
        count = -(-columns // PANEL)

        def read_panels():
            array = to_numpy(read())
            array = array.T if transposed else array
            array = np.pad(array, ((0, 0), (0, count * PANEL - columns)))
            return array.reshape(rows, count, PANEL).transpose(1, 0, 2)

        name = f"{matrix.name}_{'row_' if transposed else ''}panels"
        return self.stored(name, (count, rows, PANEL), dtype, read_panels)

    def stored(self, name, shape, dtype, read):
        """The initialiser called `name`; `read()` is called when a file is written."""
        if name not in self.root.initializers:
            self.root.initializers[name] = (dtype, tuple(shape), read)
        return OnnxValue(name, shape, dtype, self.root)

    def prune(self):
        """Forgets the initialisers that neither a node nor the caller reads."""
        needed = self.free_names() | {value.name for value, _ in self.inputs}
        self.initializers = {k: v for k, v in self.initializers.items() if k in needed}
        # A constant that was forgotten is made anew when it is asked for.
        self._cache = {
            key: value
            for key, value in self._cache.items()
            if key[0] != "constant" or value.name in self.initializers
        }

    def live_nodes(self):
        """The nodes whose results are used, in order."""
        return self._used()[0]

    def free_names(self):
        """Names that this graph's nodes read, those of outer graphs among them."""
        return self._used()[1]

    def _used(self):
        needed = {value.name for value, _ in self.outputs}
        kept, names = [], set()
        for node in reversed(self.nodes):
            _, inputs, outputs, attributes = node
            if needed.isdisjoint(outputs):
                continue
            kept.append(node)
            read = set(inputs).union(*(g.free_names() for g in subgraphs(attributes)))
            needed |= read
            names |= read
        return kept[::-1], names

    def sink(self):
        """Moves each node that one branch of an `If` alone reads into that branch.

        Not in the outermost graph, which runs once. It comes last: values still name
        the graph that they were made in.
        """
        readers, kept = {value.name: {self} for value, _ in self.outputs}, []
        for node in reversed(self.live_nodes()):
            op_type, inputs, outputs, attributes = node
            users = set().union(*(readers.get(name, ()) for name in outputs))
            home = users.pop() if self.parent and len(users) == 1 else self
            if home is self:
                kept.append(node)
            else:
                home.nodes.insert(0, node)
            for name in inputs:
                readers.setdefault(name, set()).add(home)
            for inner in subgraphs(attributes):
                reader = inner if home is self and op_type == "If" else home
                for name in inner.free_names():
                    readers.setdefault(name, set()).add(reader)
        self.nodes = kept[::-1]
        for *_, attributes in self.nodes:
            for inner in subgraphs(attributes):
                inner.sink()

    def every_node(self):
        """As `live_nodes`, those of subgraphs among them."""
        for node in self.live_nodes():
            yield node
            for inner in subgraphs(node[3]):
                yield from inner.every_node()

    def domains(self):
        """The operator sets beside the default one that the nodes are of."""
        return {node[3].get("domain", "") for node in self.every_node()} - {""}


def subgraphs(attributes):
    """Those among a node's attributes: the body of a loop, the branches of an `If`."""
    return [value for value in attributes.values() if isinstance(value, OnnxGraph)]


def is_variable(x):
    """Whether `x` is a Keras variable, not a value computed from some."""
    return hasattr(x, "path") and hasattr(x, "assign")


def to_numpy(x):
    """The array behind a variable, a tensor, an array or a number."""
    # Keras's function copies a variable once more.
    if isinstance(x, (np.ndarray, np.generic, int, float)) or is_variable(x):
        return np.asarray(x)
    import keras

    return keras.ops.convert_to_numpy(x)
