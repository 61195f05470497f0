"""Weights from a checkpoint's tensors to a model's variables, and back, one by one."""

import dataclasses
import functools
import re

import ml_dtypes
import numpy as np

from kzoo.checkpoints.rows import Raw
from kzoo.checkpoints.stored import copy, parts

_STEP = 2**24  # bytes of a tensor that are compared at once
_HIDDEN = ("head/hidden", "head/norm")  # what heads have before their last layer


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What became of a checkpoint's tensors and a model's variables.

    Args:
        family: its `model_type`; `None` for a folder of kzoo's own.
        new: paths of variables that the checkpoint has not: a head that has yet to
            learn.
        unused: names of tensors that the task does not need, such as another head's.
        said: what its files say that kzoo has in other words, to be written back:
            `"config"` and `"generation"`, dicts of keys; `"as"`, what kzoo made of it.
    """

    family: str | None
    new: tuple[str, ...]
    unused: tuple[str, ...]
    said: dict = dataclasses.field(default_factory=dict)


def has_own_head(family, task, tensors, config):
    """Whether a head is stored that differs from the token table.

    Args:
        family: a `Family`.
        task: the name of the task's class.
        tensors: `kzoo.checkpoints.files.TensorFiles`.
        config: the `ModelConfig`.
    """
    stack = "encoder" if config.share_embeddings else config.architecture
    path = f"{stack}/token_embedding/embeddings"
    prefix = family.stored_prefix(tensors)
    (table,), heads = family.sources(task, config, {path: ()}, path, prefix)
    tables = [name for name in table.names if name in tensors]
    own = [name for name in heads if name in tensors]
    return bool(tables and own and _different(tensors, tables[0], own))


def check_sizes(family, task, config, tensors):
    """Checks what a config says of sizes, before a model of these sizes is built.

    Args:
        family: a `Family`.
        task: the name of the task's class.
        config: the `ModelConfig`.
        tensors: `kzoo.checkpoints.files.TensorFiles`.

    Raises:
        ValueError: a table of tokens has another vocabulary or width than the config
            says, or there are fewer or more layers; both are named.
    """

    def stored(path):
        """The tensor of a path, or the name that it would have, and whether it is."""
        (source, *_), _ = family.sources(task, config, {path: ()}, None, prefix)
        found = [name for name in source.names if name in tensors]
        return (found or source.names)[0], bool(found)

    prefix = family.stored_prefix(tensors)
    for stack in family.stacks:
        own = getattr(config, stack)
        if stack == family.stacks[0] or not config.share_embeddings:
            name, known = stored(f"{stack}/token_embedding/embeddings")
            expected = (own.vocabulary_size, own.embedding_dim or own.hidden_dim)
            if known and tensors.shape(name) != expected:
                raise ValueError(
                    f"The config has a vocabulary of {expected[0]} and embeddings of "
                    f"{expected[1]}, {name} is of shape {tensors.shape(name)}."
                )
        count = own.layer_groups or own.num_layers
        output = "self_attention/output/kernel"
        last, known = stored(f"{stack}/layer_{count - 1}/{output}")
        if not known:
            raise ValueError(
                f"The config has {count} layers in the {stack}, but the checkpoint "
                f"has no {last}."
            )
        further, known = stored(f"{stack}/layer_{count}/{output}")
        if known:
            raise ValueError(
                f"The config has only {count} layers in the {stack}, but the "
                f"checkpoint has {further}."
            )


def load_weights(
    family,
    task,
    variables,
    tensors,
    config,
    tied,
    fill,
    new_head=False,
    other_head=None,
):
    """Sets all variables from tensors; nothing is set before all fits.

    Args:
        family: a `Family`.
        task: the name of the task's class.
        variables: by path; each has a `shape`.
        tensors: `kzoo.checkpoints.files.TensorFiles`.
        config: the `ModelConfig`.
        tied: the path of the table that is the head, too, or `None`. Of a family that
            is `tied_by_file` it is what `has_own_head` says: a stored head is not
            compared again.
        fill: function of a variable and of one that writes its values into an array,
            see `kzoo.layers.blank.fill`.
        new_head: whether a head of another size than the checkpoint's is a new one.
        other_head: the `Head` that the checkpoint was trained with where it is not the
            task's: tensors of its last layer are not for the task's.

    Returns:
        A `LoadReport`.

    Raises:
        ValueError: variables without a tensor, tensors without a meaning, other shapes
            or no floating-point numbers; all are named.
    """
    shapes = {path: tuple(variable.shape) for path, variable in variables.items()}
    new = [
        path
        for path in shapes
        if path.startswith("head/") and not family.has_row(task, path)
    ]
    shapes = {path: shape for path, shape in shapes.items() if path not in new}
    prefix = family.stored_prefix(tensors)
    try:
        sources, duplicates = family.sources(task, config, shapes, tied, prefix)
    except KeyError as error:
        raise ValueError(f"{error.args[0]} No checkpoint of it has it.") from None
    # A head that is not tied has two biases, of which transformers trains one.
    dead = set(duplicates.values()) if tied is None else set()
    missing, wrong, used, copies = [], [], set(), {}
    planned, zeros = [], []
    for source in sources:
        present = [name for name in source.names if name in tensors]
        own = [shapes[path] for path in source.paths]
        if other_head and _is_last(source, other_head):
            new += source.paths
            continue
        if not present and isinstance(source.row, Raw) and source.row.or_zeros:
            zeros += source.paths
            continue
        if not present:
            for path in source.paths:
                (new if path.startswith("head/") else missing).append(path)
            continue
        others = [name for name in present[1:] if name not in dead]
        used |= {present[0], *others}
        copies.setdefault(present[0], []).extend(others)
        if tensors.shape(present[0]) != source.shape(own):
            if new_head and source.paths[0].startswith("head/"):
                new += source.paths
                continue
            wrong.append(
                f"{present[0]}: {tensors.shape(present[0])}, expected "
                f"{source.shape(own)} for {', '.join(source.paths)}"
            )
        elif "float" not in tensors.dtype(present[0]).name:
            wrong.append(
                f"{present[0]}: {tensors.dtype(present[0])}, expected numbers of a "
                "floating-point dtype"
            )
        planned.append((source, present[0], own))
    for name, other in duplicates.items():
        if name in tensors:
            used.add(name)
            if other in tensors and not (family.tied_by_file or other in dead):
                copies.setdefault(other, []).append(name)
    unused = [name for name in tensors if name not in used]
    unknown = [name for name in unused if not family.known(name)]
    wrong += [
        f"{name} differs from {other}, which should be the same (of a head of its own "
        'config.json says "tie_word_embeddings": false)'
        for other, names in copies.items()
        for name in _different(tensors, other, names)
    ]
    wrong += [
        f"{name}: {tensors.shape(name)} of {tensors.dtype(name)}, expected the numbers "
        f"that {make.__name__} gives for {config.decoder.hidden_dim} columns"
        for name in unused
        for pattern, make in family.computed.items()
        if re.fullmatch(pattern, name)
        and not _is_computed(tensors, name, make, config.decoder.hidden_dim)
    ]
    if missing or wrong or unknown:
        raise ValueError(
            f"The checkpoint does not fit model_type={family.model_type!r}. "
            f"Variables without a tensor: {sorted(missing)}. Tensors that kzoo does "
            f"not know: {sorted(unknown)}. Other shapes, dtypes or values: "
            f"{sorted(wrong)}."
        )
    for source, name, own in planned:
        arrays = source.split(tensors.read(name), own, _heads(config, source))
        for path, array in zip(source.paths, arrays, strict=True):
            fill(variables[path], functools.partial(copy, array))
        del array, arrays  # before the next one is read
    for path in zeros:
        fill(variables[path], lambda array: array.fill(0))
    return LoadReport(family.model_type, tuple(sorted(new)), tuple(sorted(unused)))


def tensors_of(family, task, variables, config, tied, prefix):
    """A model's weights as `save_tensors` takes them, under the checkpoint's names.

    Args:
        family: a `Family`.
        task: the name of the task's class.
        variables: functions that give numpy arrays, with `shape` and `dtype`, by path.
        config: the `ModelConfig`.
        tied: the path of the table that is the head, too, or `None`.
        prefix: what the stacks' names begin with.

    Returns:
        A list of (name, shape, dtype, function that gives the array).

    Raises:
        ValueError: the family has no name for a weight.
    """
    shapes = {path: tuple(variable.shape) for path, variable in variables.items()}
    try:
        sources, _ = family.sources(task, config, shapes, tied, prefix)
    except KeyError as error:
        raise ValueError(
            f"{error.args[0]} It cannot be saved as this family."
        ) from None
    tensors = []
    for source in sources:
        own = [shapes[path] for path in source.paths]

        def array(source=source):
            arrays = [variables[path].read() for path in source.paths]
            return source.join(arrays, _heads(config, source))

        dtype = variables[source.paths[0]].dtype
        tensors.append((source.names[0], source.shape(own), dtype, array))
    return tensors


def _is_last(source, head):
    """Whether variables are of a head's last layer, under the names of another's."""
    if not source.paths[0].startswith("head/"):
        return False
    rows = [row for path, row in head.modules.items() if not path.startswith(_HIDDEN)]
    rows = [row[0] if isinstance(row, tuple) else row for row in rows]
    return source.row in rows and not source.paths[0].startswith(_HIDDEN)


def _heads(config, source):
    stack = source.paths[0].split("/")[0]
    return (getattr(config, stack, None) or config.decoder or config.encoder).num_heads


def _is_computed(tensors, name, make, width):
    """Whether a table is what a function gives for its shape, in its own precision."""
    shape, dtype = tensors.shape(name), tensors.dtype(name)
    if len(shape) != 2 or shape[1] != width or "float" not in dtype.name:
        return False
    # A unit of the last place below 1, at least that of the float32 of libraries.
    unit = max(float(ml_dtypes.finfo(dtype).eps), 1e-6)
    return np.allclose(tensors.read(name).astype("float64"), make(shape), 0, unit)


def _different(tensors, name, others):
    """Which of some tensors differ from one that is read once, some rows at a time."""
    shape = tensors.shape(name)
    different = [other for other in others if tensors.shape(other) != shape]
    alike = [other for other in others if other not in different]
    if not alike:
        return different
    for rows in parts(shape, tensors.dtype(name).itemsize, _STEP):
        array = tensors.read(name, rows.start, rows.stop)
        for other in list(alike):
            if not np.array_equal(array, tensors.read(other, rows.start, rows.stop)):
                alike.remove(other)
                different.append(other)
    return different
