"""Rematerialisation under `keras.RematScope`: blocks, with everything they take.

Keras's own way would not do: it makes every layer inside every other one compute again,
hands options such as `causal` to JAX as arrays, knows no gradient of keyword arguments
on TensorFlow (of the encoder's output, of a bias), and draws dropout anew.
"""

import math

import keras


def is_rematerialized(layer, args, kwargs):
    """Whether a layer made in a `keras.RematScope` computes twice: only in training."""
    scope = layer._remat_mode
    if not kwargs.get("training"):
        return False
    if scope.mode == "list_of_layers":
        return layer.name in scope.layer_names
    if not layer.rematerializes or scope.mode not in ("full", "larger_than"):
        return False
    size = math.prod(length or 1 for length in args[0].shape)
    return scope.mode == "full" or size > scope.output_size_threshold


def rematerialized(layer, call):
    """`call` of a layer, which keeps its arguments alone and computes again for these.

    Args:
        layer: whose seeds are drawn once.
        call: of tensors and options, to a structure of tensors.

    Returns:
        A function like `call`.
    """
    generators = [getattr(x, "seed_generator", None) for x in layer._flatten_layers()]
    seeds = [generator.state for generator in generators if generator is not None]

    def read_seeds():
        return [keras.ops.copy(seed) for seed in seeds]

    def set_seeds(states):
        for seed, state in zip(seeds, states, strict=True):
            seed.assign(state)

    def run(*args, **kwargs):
        leaves = keras.tree.flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if _is_float(leaf)]
        states, structure = read_seeds(), []

        def function(*floats):
            """Of floats alone: TensorFlow adds a zero to each, JAX traces each."""
            given, now = list(leaves), read_seeds()
            for place, value in zip(places, floats, strict=True):
                given[place] = value
            set_seeds(states)
            again, options = keras.tree.pack_sequence_as((args, kwargs), given)
            result = call(*again, **options)
            drawn = read_seeds()
            set_seeds(now)
            structure[:] = [result]
            return [*keras.tree.flatten(result), *drawn]

        results = keras.remat(function)(*[leaves[place] for place in places])
        end = len(results) - len(seeds)
        set_seeds(results[end:])
        return keras.tree.pack_sequence_as(structure[0], results[:end])

    return run


def _is_float(leaf):
    return keras.ops.is_tensor(leaf) and keras.backend.is_float_dtype(
        keras.backend.standardize_dtype(leaf.dtype)
    )
