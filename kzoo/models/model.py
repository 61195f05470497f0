"""What kzoo's models share: emitting, and weights files of another model refused."""

import contextlib
import json
import os
import zipfile
from pathlib import Path

import keras
import numpy as np

from kzoo.layers.base import Emits
from kzoo.models.jax_state import KeepsState
from kzoo.models.tensorflow_step import WaitsForData

_OWN = {"jax": (KeepsState,), "tensorflow": (WaitsForData,)}
_BASES = _OWN.get(keras.backend.backend(), ())


class Model(Emits, *_BASES, keras.Model):
    """Base of kzoo's models.

    Keras casts floats to the compute dtype before a call. Here they may be ids, of
    which half precision has few; states are cast by the layers that read them.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.autocast = False

    def _freeze_parts(self):
        """What `__init__` ends with: the parts of a model that is made frozen."""
        if not self.trainable:
            self.trainable = True  # TensorFlow sets no parts of what is False already
            self.trainable = False

    def compute_output_shape(self, input_shape=None, _=()):
        """Shapes of what `call` gives for ids of a shape, such as (B, T).

        Args:
            input_shape: of the first argument; of a task a dict, by input.
            _: a tuple of it, as Keras hands over what `build` was given.

        Raises:
            NotImplementedError: as Keras has it, where that is not all that is read.
        """
        if input_shape is None and len(_) == 1:
            (input_shape,) = _
        if not self.built:  # its parts would be, and not in its name scope
            self.build(input_shape)
        try:
            ids = keras.tree.map_shape_structure(
                lambda shape: keras.KerasTensor(shape, dtype="int32"), input_shape
            )
            outputs = self.compute_output_spec(ids)
        except (AttributeError, TypeError, ValueError) as error:
            raise NotImplementedError(
                f"{self.name} tells no output shape for {input_shape}: {error}"
            ) from error
        return keras.tree.map_structure(lambda output: output.shape, outputs)

    def compute_output_spec(self, *args, **kwargs):
        """What `call` gives, on request several."""
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def quantize(self, *_, **__):
        """Keras's; refused.

        Raises:
            ValueError: always; files of small weights are exported.
        """
        raise ValueError(
            f"{self.name}: kzoo's layers are not quantised in Keras. Export a task, "
            'with export(path, format="onnx", quantize="int8"), or "int4".'
        )

    def load_weights(self, filepath, skip_mismatch=False, **kwargs):
        """Reads what `save_weights` wrote, or the weights of a `.keras`, as Keras does.

        Raises:
            ValueError: the file is of another model, of which Keras would read what
                has a place; nothing is loaded.
        """
        if not skip_mismatch:
            self._check_weights_file(filepath, kwargs.get("objects_to_skip") or ())
        super().load_weights(filepath, skip_mismatch=skip_mismatch, **kwargs)

    def _check_weights_file(self, path, skipped=()):
        own = _weights_of(self) if self.built and os.path.isfile(path) else None
        found = None if own is None else _weights_in(path)
        if found is None:  # Keras says what is wrong, or cannot be asked
            return
        if skipped:
            left_out = own.keys() - _weights_of(self, skipped).keys()
            own, found = (
                {name: x for name, x in each.items() if name not in left_out}
                for each in (own, found)
            )
        problems = {
            # Adapters may be in one alone: they are merged, or begin anew.
            "Only in the file": set(filter(_is_numbered, found.keys() - own.keys())),
            "Only in the model": set(filter(_is_numbered, own.keys() - found.keys())),
            "Of other shapes": {
                name for name in own.keys() & found.keys() if own[name] != found[name]
            },
        }
        said = [
            f"{what}: {', '.join(sorted(names)[:3])}"
            + f" and {len(names) - 3} more" * (len(names) > 3)
            for what, names in problems.items()
            if names
        ]
        if said:
            raise ValueError(
                f"{path} is of another model than {self.name}. {'. '.join(said)}. Load "
                "it into one of the same config, or pass skip_mismatch=True to read "
                "what fits."
            )


def _weights_in(path):
    """Name to shape of the weights of a file, or `None` where Keras reads none."""
    import h5py

    found, path = {}, Path(path)

    def visit(name, entry):
        if isinstance(entry, h5py.Dataset) and _is_weight(name):
            found[name] = tuple(entry.shape)

    with contextlib.ExitStack() as stack:
        try:
            if path.suffix == ".keras":
                archive = stack.enter_context(zipfile.ZipFile(path))
                parts = [stack.enter_context(archive.open("model.weights.h5"))]
            elif path.name.endswith("weights.json"):
                shards = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
                names = {name for each in shards.values() for name in np.ravel(each)}
                parts = [path.parent / name for name in sorted(names)]
            else:
                parts = [path] if path.name.endswith("weights.h5") else []
        except (AttributeError, KeyError, TypeError, ValueError, zipfile.BadZipFile):
            return None
        for part in parts:
            stack.enter_context(h5py.File(part)).visititems(visit)
    return found if parts else None


def _weights_of(model, skipped=()):
    """Name to shape of what Keras would write of a model, or `None` if it is not known.

    But for layers that are `skipped`.

    Keras's own walk tells, which is no public function: a later Keras may have another.
    """
    try:
        from keras.src.saving.saving_lib import H5IOStore, _save_state
    except ImportError:
        return None
    found = {}

    class Group(dict):
        def __init__(self, path):
            self.path = path

        def __setitem__(self, name, value):
            name = f"{self.path}/vars/{name}".lstrip("/")
            if _is_weight(name):
                found[name] = tuple(value.shape)

    class Names(H5IOStore):
        """A store that holds no data."""

        def __init__(self):
            pass

        def __bool__(self):
            return True

        def make(self, path, metadata=None):
            return Group(path)

    try:
        _save_state(model, Names(), None, "", set(map(id, skipped)))
    except TypeError:  # it takes other arguments
        return None
    return found


def _is_weight(name):
    """Whether it is one of a layer, or of its adapters."""
    adapters = name.endswith(("/lora_a", "/lora_b"))
    return (adapters or _is_numbered(name)) and not name.startswith("optimizer/")


def _is_numbered(name):
    """Whether Keras numbered it, as a layer's own."""
    return name.rsplit("/", 1)[-1].isdigit()
