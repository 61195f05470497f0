"""Names, dtypes and axes of what a Keras model takes and gives."""

import copy
import inspect
import re

import keras

from kzoo.exporters.errors import ExportError

INPUT_DTYPES = ("bool", "int32", "int64", "float32", "float64")


def _leaves(structure, path=()):
    """Yields (path, leaf) of dicts, lists and tuples, in their own order."""
    if isinstance(structure, dict):
        for key, value in structure.items():
            yield from _leaves(value, (*path, str(key)))
    elif isinstance(structure, list | tuple):
        for i, value in enumerate(structure):
            yield from _leaves(value, (*path, str(i)))
    elif structure is not None:
        yield path, structure


def _rebuild(structure, values):
    """The structure with its leaves taken from the iterator `values`."""
    if isinstance(structure, dict):
        return {key: _rebuild(value, values) for key, value in structure.items()}
    if isinstance(structure, list | tuple):
        items = [_rebuild(value, values) for value in structure]
        return tuple(items) if isinstance(structure, tuple) else items
    return None if structure is None else next(values)


class Signature:
    """What goes into the model and comes out of it, by name.

    Args:
        model: a built `keras.Model`.
        given: `input_signature` of `convert`; so for the next.
        axes: names of axes.

    Attributes:
        axes: the names that were given.
        names: of the inputs, in order.
        shapes: of each input, an int or an axis name for each axis.
        dtypes: of each input.
    """

    def __init__(self, model, given, axes):
        if not isinstance(model, keras.Model):
            raise ExportError(
                f"Expected a keras.Model. Received: {type(model).__name__}"
            )
        if not model.built:
            raise ExportError(
                f"Model '{model.name}' was never built: it has no weights to export. "
                "Call it once on a batch, or load its weights, and export again."
            )
        self.model = model
        self.structure, self.positional = _structure(model, given)
        flat = list(_leaves(self.structure))
        if not flat:
            raise ExportError(f"The signature has no inputs. Received: {given!r}")
        names = [_input_name(p, spec, i) for i, (p, spec) in enumerate(flat)]
        if len(set(names)) < len(names):
            raise ExportError(f"Input names must be distinct. Received: {names}")
        self.names = names
        self.dtypes, self.shapes = [], []
        self.axes = axes or {}
        if set(self.axes) - set(names):
            raise ExportError(
                f"axes names unknown inputs {sorted(set(self.axes) - set(names))}. "
                f"The inputs are {names}."
            )
        for name, (_, spec) in zip(names, flat):
            dtype, shape = _dtype_and_shape(name, spec)
            self.dtypes.append(dtype)
            self.shapes.append(
                tuple(
                    _axis_name(name, i, len(shape), self.axes) if size is None else size
                    for i, size in enumerate(shape)
                )
            )

    def renamed(self, axes):
        """The signature with other names of some axes, `{input: {axis: name}}`."""
        other = copy.copy(self)
        other.shapes = [
            tuple(axes.get(name, {}).get(i, size) for i, size in enumerate(shape))
            for name, shape in zip(self.names, self.shapes)
        ]
        return other

    def specs(self):
        """`tf.TensorSpec` of each input."""
        import tensorflow as tf

        return [
            tf.TensorSpec(
                [None if isinstance(size, str) else size for size in shape],
                dtype,
                name=f"kzoo_input_{i}",
            )
            for i, (shape, dtype) in enumerate(zip(self.shapes, self.dtypes))
        ]

    def call(self, tensors):
        """Calls the model; gives its outputs as a dict."""
        arguments = _rebuild(self.structure, iter(tensors))
        if self.positional == "first":
            outputs = self.model(arguments, training=False)
        elif self.positional == "keywords":
            outputs = self.model(**arguments, training=False)
        else:
            outputs = self.model(*arguments, training=False)
        flat = list(_leaves(outputs))
        return dict(zip(self._output_names(flat), (leaf for _, leaf in flat)))

    def _output_names(self, flat):
        numbered = [f"output_{i}" for i in range(len(flat))]
        keys = ["_".join(path) for path, _ in flat]
        if isinstance(self.model, keras.Sequential) or not flat:
            return numbered
        if all(path and not path[0].isdigit() for path, _ in flat):  # a dict
            names = keys
        elif hasattr(self.model, "_inputs_struct"):  # functional
            given = {
                layer.name
                for layer in self.model.layers
                if not _is_numbered_name(layer)
            }
            names = [
                name if name in given else number
                for name, number in zip(self.model.output_names, numbered)
            ]
        else:
            return numbered
        distinct = len(set(names)) == len(flat) and not set(names) & set(self.names)
        return names if distinct else numbered


def _is_numbered_name(layer):
    """Whether Keras made the name up: it counts, and changes from run to run."""
    stem = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(layer).__name__).lower()
    return re.sub(r"_\d+$", "", layer.name).replace("_", "") == stem.replace("_", "")


def _structure(model, given):
    """The structure of specs, and how the model takes it."""
    own = None
    if isinstance(model, keras.Sequential):
        own = model.inputs[0] if model.inputs else None
    elif hasattr(model, "_inputs_struct"):  # functional; Keras's exporters read it too
        own = model._inputs_struct
    if given is None:
        if own is not None:
            return own, "first"
        specs = model.input_spec
        if specs is None or any(
            getattr(spec, "shape", None) is None or spec.dtype is None
            for _, spec in _leaves(specs)
        ):
            raise ExportError(
                f"Model '{model.name}' is a subclass of keras.Model: Keras records "
                "neither the dtypes nor the free axes of its inputs. Pass "
                "input_signature, say "
                '{"token_ids": keras.InputSpec(shape=(None, None), dtype="int32")}.'
            )
        given = specs
    if own is not None:
        return _fitted_to(model, own, given), "first"
    parameters = [
        p.name
        for p in inspect.signature(model.call).parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        and p.name not in ("training", "mask")
    ]
    if isinstance(given, dict):
        return given, "keywords" if set(given) <= set(parameters) else "first"
    if isinstance(given, list | tuple):
        if len(given) == 1 or len(parameters) >= len(given):
            return given, "arguments"
    return given, "first"


def _fitted_to(model, own, given):
    """The given specs in the structure of a functional model's inputs."""
    wanted, received = list(_leaves(own)), list(_leaves(given))
    keys = {path[-1] for path, _ in received if path}
    by_name = dict((path[-1], spec) for path, spec in received if path)
    names = [path[-1] if path and path[-1] in keys else x.name for path, x in wanted]
    if isinstance(given, dict) and set(names) == set(by_name):
        received = [((), _named(by_name[name], name)) for name in names]
    elif len(wanted) != len(received) or isinstance(given, dict):
        raise ExportError(
            f"Model '{model.name}' has the inputs {[x.name for _, x in wanted]}. "
            f"Received: input_signature={given!r}"
        )
    return _rebuild(own, iter([spec for _, spec in received]))


def _named(spec, name):
    dtype, shape = _dtype_and_shape(name, spec)
    return keras.InputSpec(shape=shape, dtype=dtype, name=name)


def _input_name(path, spec, i):
    """The key of the dict, the name of the spec, or a number."""
    keys = [part for part in path if not part.isdigit()]
    if keys:
        return "_".join(keys if len(keys) == len(path) else path)
    name = getattr(spec, "name", None)
    if not name or re.fullmatch(r"keras_tensor(_\d+)?|input_layer(_\d+)?", name):
        return f"input_{i}"
    return name


def _dtype_and_shape(name, spec):
    shape, dtype = getattr(spec, "shape", None), getattr(spec, "dtype", None)
    if shape is None or dtype is None or getattr(shape, "rank", 0) is None:
        raise ExportError(
            f"Input '{name}' needs a shape, None for free axes, and a dtype. "
            f"Received: {spec!r}"
        )
    dtype = keras.backend.standardize_dtype(dtype)
    if dtype not in INPUT_DTYPES:
        hint = (
            " Tokenize before the model."
            if dtype == "string"
            else " Export a float32 model."
        )
        raise ExportError(
            f"Input '{name}' must have one of the dtypes {', '.join(INPUT_DTYPES)}. "
            f"Received: {dtype}.{hint}"
        )
    return dtype, tuple(None if size is None else int(size) for size in shape)


def _axis_name(name, axis, rank, axes):
    if axis in axes.get(name, {}):
        return axes[name][axis]
    if axis == 0:
        return "batch"
    if axis == 1 and rank <= 3:
        side = re.match(r"(encoder|decoder)_", name)
        return f"{side[1]}_sequence" if side else "sequence"
    return f"{name}_axis_{axis}"
