"""What kzoo adds to Keras's LoRA: files that keep it, and merging."""

import contextlib
import contextvars

import keras
import numpy as np

_merged = contextvars.ContextVar("merged_lora", default=None)


def merged_variables(named):
    """Variables by name; inside `lora_merged` with sums and without adapters."""
    replaced = _merged.get() or {}
    named = {name: replaced.get(id(v), v) for name, v in named.items()}
    return {name: v for name, v in named.items() if v is not None}


def merged_matrices():
    """The sums that layers read inside `lora_merged`, a list of variables."""
    return [v for v in (_merged.get() or {}).values() if v is not None]


def alpha_of(layer):
    """The number of a layer's adapters that is no variable, or `None`."""
    return layer.lora_alpha if has_lora(layer) else None


def has_lora(layer):
    """Whether a layer is one of kzoo's with adapters."""
    return isinstance(layer, LoRA) and layer.lora_enabled


@contextlib.contextmanager
def lora_merged(model):
    """Inside, a model's layers read one matrix where they have that and adapters.

    Nothing of the layers changes, and another thread sees them as they are.
    """
    replaced = {}
    for layer in model._flatten_layers():
        if has_lora(layer) and not layer.quantization_mode:
            matrix, *adapters = layer.lora_variables()
            replaced[id(matrix)] = keras.Variable(
                layer.lora_sum(), dtype=matrix.dtype, name=matrix.name
            )
            replaced |= {id(adapter): None for adapter in adapters}
    token = _merged.set(replaced)
    try:
        yield
    finally:
        _merged.reset(token)


class LoRA:
    """Mixin of Keras's `Dense` and `Embedding`, whose `enable_lora` adds adapters.

    Paper: Hu et al., 2021, https://arxiv.org/abs/2106.09685. Keras's files hold the sum
    of matrix and adapters, and after reading one all adapters are zero, from where they
    never move. These files hold the three; a layer without adapters reads their sum.
    """

    adapted: str  # the matrix, "kernel" or "embeddings"

    @property
    def merged(self):
        """The one matrix, inside `lora_merged`; elsewhere `None`."""
        matrix = getattr(self, f"_{self.adapted}", None)
        return (_merged.get() or {}).get(id(matrix))

    def lora_variables(self):
        """The matrix (D, E) and its adapters (D, R) and (R, E)."""
        name = self.adapted
        names = (f"_{name}", f"lora_{name}_a", f"lora_{name}_b")
        return [getattr(self, each) for each in names]

    def lora_sum(self):
        """`matrix + alpha / rank * a @ b`, in the dtype of the matrix."""
        matrix, a, b = self.lora_variables()
        scale = self.lora_alpha / self.lora_rank
        total = keras.ops.add(matrix, scale * keras.ops.matmul(a, b))
        return keras.ops.cast(total, matrix.dtype)

    def merge_lora(self):
        """Makes the matrix the sum, and removes the adapters.

        Raises:
            ValueError: there are none.
        """
        if not self.lora_enabled:
            raise ValueError(f"{self.name} has no adapters to merge.")
        matrix, *adapters = self.lora_variables()
        matrix.assign(self.lora_sum())
        # Functions that TensorFlow has traced go on adding them.
        adapters[1].assign(keras.ops.zeros(adapters[1].shape, adapters[1].dtype))
        matrix.trainable = True
        for adapter, end in zip(adapters, "ab", strict=True):
            self._untrack_variable(adapter)
            setattr(self, f"lora_{self.adapted}_{end}", None)
        self.lora_enabled, self.lora_rank, self.lora_alpha = False, None, None

    def save_own_variables(self, store):
        """Keras's hook: the matrix as it is, and the adapters beside it."""
        if not self.lora_enabled or self.quantization_mode:
            super().save_own_variables(store)
            return
        own = {}
        # The sum, in the matrix's place: one more for a moment, and the layer is as it
        # was for who asks it meanwhile.
        super().save_own_variables(own)
        own["0"], own["lora_a"], own["lora_b"] = self.lora_variables()
        for name, value in own.items():
            store[name] = value
        store["lora_alpha"] = np.array(self.lora_alpha, "float32")

    def load_own_variables(self, store):
        """Keras's hook: what `save_own_variables` wrote, of this layer or of Keras's.

        Without adapters in the file those of the layer start anew.
        """
        values = {key: store[key] for key in store.keys()}  # noqa: SIM118  not a dict
        a, b, alpha = (values.pop(f"lora_{name}", None) for name in ("a", "b", "alpha"))
        if not self.lora_enabled:
            if a is not None:
                scale = np.array(alpha) / a.shape[1]
                values["0"] = np.array(values["0"]) + scale * (np.array(a) @ b)
            super().load_own_variables(values)
            return
        _, own_a, own_b = self.lora_variables()
        if a is None:
            a = keras.ops.convert_to_numpy(own_a)
        elif np.array(alpha) != np.float32(self.lora_alpha):
            self.lora_alpha = float(np.array(alpha))
        super().load_own_variables(values)  # sets both adapters to zero
        own_a.assign(a)
        if b is not None:
            own_b.assign(b)
