"""What every stack does: masks, dropout, gradients, paths, initial weights, saving."""

import re

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kzoo.config import ModelConfig, StackConfig
from kzoo.layers.base import Embedding
from kzoo.layers.heads import LanguageModelHead
from kzoo.models import Decoder, Encoder, EncoderDecoder
from tests.harness import (
    Transformer,
    difference,
    gradients,
    padding,
    perturb,
    random_ids,
    to_numpy,
)
from tests.strategies import few, model_configs

POSITIONS = ["none", "learned", "sinusoidal", "rotary", "relative", "alibi"]


def stack(**changes):
    return StackConfig(
        **{
            "vocabulary_size": 23,
            "num_layers": 2,
            "hidden_dim": 16,
            "num_heads": 4,
            "intermediate_dim": 24,
            **changes,
        }
    )


def encoder_decoder(model=None, **changes):
    return ModelConfig(
        encoder=stack(**changes),
        decoder=stack(causal=True, cross_attention=True, **changes),
        **(model or {}),
    )


# Padding.


@given(model_configs(), st.sampled_from(["right", "left"]), st.data())
@settings(max_examples=few(8), deadline=None)
def test_padding_changes_no_row(config, side, data):
    """Neither what stands in padding, nor how much there is, nor other rows."""
    transformer = Transformer(config)
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=2, max_size=2)) + [5]
    width = 7
    vocabulary = (config.decoder or config.encoder).vocabulary_size
    ids = random_ids(config.decoder or config.encoder, (3, width))
    mask = padding(lengths, width, side)
    both = config.architecture == "encoder_decoder"
    source = random_ids(config.encoder, (3, width), 1) if both else None
    source_mask = padding([5, *lengths[:2]], width, side) if both else None

    def states(ids, mask, source, source_mask):
        return to_numpy(transformer.states(ids, mask, source, source_mask))

    expected = states(ids, mask, source, source_mask)
    assert np.isfinite(expected).all()
    scale = np.abs(expected).max()

    # Other tokens in the padding.
    others = np.where(mask, ids, (ids + 1) % vocabulary)
    other_source = (
        np.where(source_mask, source, (source + 1) % vocabulary) if both else None
    )
    got = states(others, mask, other_source, source_mask)
    np.testing.assert_allclose(got[mask], expected[mask], atol=1e-5 * scale)

    # Less padding, for all arrays: no row is longer than 5.
    kept = slice(None, 5) if side == "right" else slice(-5, None)
    short = [
        None if a is None else a[:, kept] for a in (ids, mask, source, source_mask)
    ]
    got = states(*short)
    np.testing.assert_allclose(
        got[short[1]], expected[:, kept][short[1]], atol=1e-5 * scale
    )

    # A row alone.
    alone = [None if a is None else a[2:] for a in (ids, mask, source, source_mask)]
    got = states(*alone)
    np.testing.assert_allclose(got[alone[1]], expected[2:][alone[1]], atol=1e-5 * scale)


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_decoder_does_not_see_the_future(positions):
    decoder = Transformer(
        ModelConfig(decoder=stack(causal=True, positions=positions))
    ).decoder
    ids = random_ids(decoder.config, (1, 6))
    changed = ids.copy()
    changed[0, 4] += 1
    before, after = to_numpy(decoder(ids)), to_numpy(decoder(changed))
    np.testing.assert_array_equal(before[0, :4], after[0, :4])
    assert (before[0, 4:] != after[0, 4:]).any(axis=-1).all()


def change_of_a_token_when_two_others_swap(positions):
    encoder = Transformer(
        ModelConfig(encoder=stack(positions=positions, relative_buckets=8))
    ).encoder
    before = to_numpy(encoder(np.array([[3, 4, 5, 6, 7]], "int32")))
    after = to_numpy(encoder(np.array([[4, 3, 5, 6, 7]], "int32")))
    return difference(after[0, 2], before[0, 2])


@pytest.mark.parametrize("positions", POSITIONS[1:])
def test_positions_tell_the_order(positions):
    assert change_of_a_token_when_two_others_swap(positions) > 1e-3


def test_without_positions_the_order_is_unknown():
    assert change_of_a_token_when_two_others_swap("none") <= 1e-6


# Gradients.


@pytest.mark.parametrize(
    ("tie_head", "changes"),
    [
        (True, dict(positions="learned", activation="gelu")),
        (False, dict(positions="relative", norm="std_norm", query_key_norm=True)),
        (False, dict(similarity="additive_tanh", num_segments=2)),
    ],
)
def test_gradients_reach_every_variable(tie_head, changes):
    config = encoder_decoder(
        dict(head_bias=True, tie_head=tie_head),
        feed_forward="gated",
        embedding_norm=True,
        **changes,
    )
    transformer = Transformer(config)
    ids, source = random_ids(config.decoder, (2, 5)), random_ids(config.encoder, (2, 4))
    direction = np.random.default_rng(0).normal(size=(2, 5, 23))
    direction = keras.ops.convert_to_tensor(direction, "float32")

    def loss():
        logits = transformer.head(transformer.states(ids, source=source))
        return keras.ops.sum(logits * direction)

    for variable, gradient in zip(
        transformer.variables, gradients(transformer.variables, loss), strict=True
    ):
        assert gradient is not None, variable.path
        assert np.isfinite(gradient).all(), variable.path
        plain = not changes.keys() & {"query_key_norm", "similarity"}
        last = "attention/key/bias" if plain else "key_norm/beta"
        if variable.path.endswith(last):
            # It adds the same to all scores of a query, which softmax takes away.
            assert np.abs(gradient).max() < 1e-4, variable.path
        else:
            assert np.abs(gradient).max() > 1e-4, variable.path


def test_gradients_of_fully_masked_rows_are_finite():
    config = encoder_decoder()
    transformer = Transformer(config)
    ids, mask = random_ids(config.decoder, (2, 3)), padding([0, 3], 3)
    source, source_mask = random_ids(config.encoder, (2, 3)), padding([3, 0], 3)

    def loss():
        return keras.ops.sum(transformer.states(ids, mask, source, source_mask) ** 2)

    for gradient in gradients(transformer.variables[1:3], loss):
        assert np.isfinite(gradient).all()


# Dropout.


def test_dropout_is_active_only_while_training():
    config = stack(dropout=0.3, attention_dropout=0.2, feed_forward_dropout=0.1)
    encoder = Encoder(config)
    ids = random_ids(config, (2, 5))
    still = to_numpy(encoder(ids))
    np.testing.assert_array_equal(to_numpy(encoder(ids, training=False)), still)
    first = to_numpy(encoder(ids, training=True))
    second = to_numpy(encoder(ids, training=True))
    assert (first != still).any() and (first != second).any()
    np.testing.assert_array_equal(to_numpy(encoder(ids)), still)


def test_without_rates_training_changes_nothing():
    encoder = Encoder(stack(dropout=0.0))
    ids = random_ids(encoder.config, (2, 5))
    np.testing.assert_array_equal(
        to_numpy(encoder(ids, training=True)), to_numpy(encoder(ids))
    )


def test_dropout_rates_are_those_of_the_config():
    config = stack(dropout=0.3, attention_dropout=0.2, feed_forward_dropout=0.1)
    encoder = Encoder(config)
    assert encoder.embedding_dropout.rate == 0.3
    for block in encoder.blocks:
        assert block.residual_dropout.rate == 0.3
        assert block.self_attention.weights_dropout.rate == 0.2
        assert block.feed_forward.inner_dropout.rate == 0.1


def test_dropout_hits_the_embedding():
    # Blocks that add nothing leave the embedding, all ones, as the output.
    config = stack(positions="none", final_norm=False, dropout=0.25)
    encoder = Encoder(config)
    encoder.build()
    for variable in encoder.weights:
        variable.assign(keras.ops.zeros(variable.shape))
    encoder.token_embedding.embeddings.assign(np.ones((23, 16), "float32"))
    got = to_numpy(encoder(np.ones((40, 50), "int32"), training=True))
    np.testing.assert_allclose(np.unique(got), [0.0, 1 / 0.75], rtol=1e-6)
    assert abs((got == 0).mean() - 0.25) < 0.02


# Variables.


def test_variable_paths_of_a_small_encoder_decoder():
    config = ModelConfig(
        encoder=stack(num_layers=1, positions="learned", embedding_norm=True),
        decoder=stack(
            num_layers=1,
            positions="relative",
            causal=True,
            cross_attention=True,
            norm="rms_norm",
            feed_forward="gated",
            use_bias=False,
        ),
        tie_head=False,
        head_bias=True,
    )
    assert {path: w.shape for path, w in Transformer(config).weights.items()} == {
        "encoder/token_embedding/embeddings": (23, 16),
        "encoder/position_embedding/embeddings": (512, 16),
        "encoder/embedding_norm/gamma": (16,),
        "encoder/embedding_norm/beta": (16,),
        "encoder/layer_0/self_attention/query/kernel": (16, 16),
        "encoder/layer_0/self_attention/query/bias": (16,),
        "encoder/layer_0/self_attention/key/kernel": (16, 16),
        "encoder/layer_0/self_attention/key/bias": (16,),
        "encoder/layer_0/self_attention/value/kernel": (16, 16),
        "encoder/layer_0/self_attention/value/bias": (16,),
        "encoder/layer_0/self_attention/output/kernel": (16, 16),
        "encoder/layer_0/self_attention/output/bias": (16,),
        "encoder/layer_0/self_attention_norm/gamma": (16,),
        "encoder/layer_0/self_attention_norm/beta": (16,),
        "encoder/layer_0/feed_forward/intermediate/kernel": (16, 24),
        "encoder/layer_0/feed_forward/intermediate/bias": (24,),
        "encoder/layer_0/feed_forward/output/kernel": (24, 16),
        "encoder/layer_0/feed_forward/output/bias": (16,),
        "encoder/layer_0/feed_forward_norm/gamma": (16,),
        "encoder/layer_0/feed_forward_norm/beta": (16,),
        "encoder/final_norm/gamma": (16,),
        "encoder/final_norm/beta": (16,),
        "decoder/token_embedding/embeddings": (23, 16),
        "decoder/position_bias/embeddings": (32, 4),
        "decoder/layer_0/self_attention/query/kernel": (16, 16),
        "decoder/layer_0/self_attention/key/kernel": (16, 16),
        "decoder/layer_0/self_attention/value/kernel": (16, 16),
        "decoder/layer_0/self_attention/output/kernel": (16, 16),
        "decoder/layer_0/self_attention_norm/scale": (16,),
        "decoder/layer_0/cross_attention/query/kernel": (16, 16),
        "decoder/layer_0/cross_attention/key/kernel": (16, 16),
        "decoder/layer_0/cross_attention/value/kernel": (16, 16),
        "decoder/layer_0/cross_attention/output/kernel": (16, 16),
        "decoder/layer_0/cross_attention_norm/scale": (16,),
        "decoder/layer_0/feed_forward/intermediate/kernel": (16, 24),
        "decoder/layer_0/feed_forward/gate/kernel": (16, 24),
        "decoder/layer_0/feed_forward/output/kernel": (24, 16),
        "decoder/layer_0/feed_forward_norm/scale": (16,),
        "decoder/final_norm/scale": (16,),
        "head/kernel": (16, 23),
        "head/bias": (23,),
    }


def test_variable_paths_of_the_options():
    config = ModelConfig(
        encoder=stack(num_layers=1, num_segments=2),
        decoder=stack(
            num_layers=1,
            norm="std_norm",
            query_key_norm=True,
            similarity="additive_tanh",
            num_key_value_heads=2,
            attention_bias=False,
            causal=True,
            cross_attention=True,
        ),
    )
    weights = {path: w.shape for path, w in Transformer(config).weights.items()}
    assert weights["encoder/segment_embedding/embeddings"] == (2, 16)
    for name in ("self_attention", "cross_attention"):
        prefix = f"decoder/layer_0/{name}/"
        found = {p.removeprefix(prefix): s for p, s in weights.items() if prefix in p}
        assert found == {
            "query/kernel": (16, 16),
            "key/kernel": (16, 8),
            "value/kernel": (16, 8),
            "output/kernel": (16, 16),
            "output/bias": (16,),
            "query_norm/gamma": (4,),
            "query_norm/beta": (4,),
            "key_norm/gamma": (4,),
            "key_norm/beta": (4,),
            "similarity/query_kernel": (4, 4, 4),
            "similarity/key_kernel": (4, 4, 4),
            "similarity/vector": (4, 4, 1),
        }


def test_kernels_have_the_shapes_of_heads_and_of_the_memory():
    config = ModelConfig(
        encoder=stack(hidden_dim=20),
        decoder=stack(
            causal=True, cross_attention=True, num_key_value_heads=2, head_dim=6
        ),
    )
    weights = Transformer(config).weights
    cross = "decoder/layer_1/cross_attention"
    assert weights[f"{cross}/query/kernel"].shape == (16, 24)
    assert weights[f"{cross}/key/kernel"].shape == (20, 12)
    assert weights[f"{cross}/value/kernel"].shape == (20, 12)
    assert weights[f"{cross}/output/kernel"].shape == (24, 16)


def test_a_shared_table_is_one_variable():
    config = encoder_decoder(dict(share_embeddings=True))
    transformer = Transformer(config)
    tables = [path for path in transformer.weights if "token_embedding" in path]
    assert tables == ["encoder/token_embedding/embeddings"]
    assert transformer.decoder.token_embedding is transformer.encoder.token_embedding


# Initial weights.


def initial_weights(**changes):
    encoder = Encoder(
        stack(
            num_layers=2,
            hidden_dim=96,
            intermediate_dim=160,
            positions="learned",
            feed_forward="gated",
            **changes,
        ),
        name="encoder",
    )
    encoder.build()
    return {w.path: to_numpy(w.value) for w in encoder.weights}


def test_xavier_is_uniform_by_fan_in_and_fan_out():
    """Glorot and Bengio (2010), equation 16."""
    for path, value in initial_weights().items():
        if not path.endswith("kernel"):
            continue
        limit = np.sqrt(6 / sum(value.shape))
        assert 0.99 * limit < np.abs(value).max() <= limit, path
        assert value.std() == pytest.approx(limit / np.sqrt(3), rel=0.03), path
        assert abs(value.mean()) < 0.03 * limit, path


@pytest.mark.skipif(
    keras.backend.backend() == "torch",
    reason="Keras 3.15 on torch truncates at 2, not at 2 standard deviations",
)
def test_truncated_normal_ends_at_two_deviations():
    weights = initial_weights(initializer="truncated_normal", initializer_range=0.05)
    for path, value in weights.items():
        if not path.endswith(("kernel", "embeddings")):
            continue
        assert np.abs(value).max() <= 0.1, path
        # The standard deviation of a normal distribution cut at 2 is 0.8796 of it.
        assert value.std() == pytest.approx(0.05 * 0.8796, rel=0.06), path


@pytest.mark.parametrize("initializer", ["xavier", "truncated_normal"])
def test_norms_start_as_identity_biases_at_zero_kernels_differ(initializer):
    weights = initial_weights(initializer=initializer)
    kernels = []
    for path, value in weights.items():
        if path.endswith("gamma"):
            assert (value == 1).all()
        elif path.endswith(("beta", "bias")):
            assert (value == 0).all()
        else:
            kernels.append(value.ravel()[:5])
    assert len(np.unique(np.stack(kernels), axis=0)) == len(kernels)


# Serialisation and precision.


@pytest.mark.parametrize("kind", ["encoder", "decoder", "encoder_decoder"])
def test_models_survive_a_keras_file(tmp_path, kind):
    config = encoder_decoder(dict(share_embeddings=True), positions="relative")
    ids, source = random_ids(config.decoder, (2, 5)), random_ids(config.encoder, (2, 4))
    model, inputs = {
        "encoder": (Encoder(config.encoder), (ids,)),
        "decoder": (Decoder(config.decoder.replace(cross_attention=False)), (ids,)),
        "encoder_decoder": (EncoderDecoder(config), (source, ids)),
    }[kind]
    model.build()
    perturb(model.weights)
    expected = to_numpy(model(*inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.config == model.config
    assert [w.path for w in loaded.weights] == [w.path for w in model.weights]
    np.testing.assert_array_equal(to_numpy(loaded(*inputs)), expected)
    model.save_weights(tmp_path / "model.weights.h5")
    other = type(model)(model.config)
    other.build()
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(to_numpy(other(*inputs)), expected)


def of_memory(ids, memory):
    return Decoder(
        stack(causal=True, cross_attention=True, positions="none"), memory_dim=8
    )(ids, memory=memory)


def of_a_shared_table(ids, memory):
    encoder = Encoder(stack(positions="none"), name="first")
    config = stack(causal=True, cross_attention=True, positions="none")
    decoder = Decoder(config, token_embedding=encoder.token_embedding)
    head = LanguageModelHead(23, 16, tied_to=encoder.token_embedding)
    return head(decoder(ids, memory=encoder(ids)))


def of_a_table_that_no_stack_owns(ids, memory):
    table = Embedding(23, 16)
    first, second = (
        Encoder(stack(positions="none"), token_embedding=table) for _ in range(2)
    )
    return first(ids), second(ids)


@pytest.mark.parametrize(
    "outputs", [of_memory, of_a_shared_table, of_a_table_that_no_stack_owns]
)
def test_stacks_of_a_functional_model_survive_its_file(tmp_path, outputs):
    """With the width of what they read, and the table that they share, once."""
    ids = keras.Input((None,), dtype="int32")
    memory = keras.Input((None, 8))
    model = keras.Model([ids, memory], outputs(ids, memory))
    perturb(model.weights)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    inputs = [np.array([[1, 2, 3]], "int32"), np.ones((1, 2, 8), "float32")]
    expected, got = (keras.tree.flatten(m(inputs)) for m in (model, loaded))
    for values in zip(got, expected, strict=True):
        np.testing.assert_array_equal(*map(to_numpy, values))
    shapes = [sorted(tuple(w.shape) for w in m.weights) for m in (loaded, model)]
    assert shapes[0] == shapes[1]
    paths = {w.path for w in loaded.weights}
    if outputs is of_a_shared_table:
        assert "first/token_embedding/embeddings" in paths


def test_a_stack_is_rebuilt_from_its_config():
    """One of an older file, too, which had neither memory_dim nor the table."""
    model = Encoder(stack())
    config = model.get_config()
    older = {k: config[k] for k in ("name", "trainable", "dtype", "config")}
    for each in (Encoder.from_config(config), Encoder.from_config(older)):
        each.build()
        assert each.token_embedding.built and not each.shares_embedding
        assert each.get_config() == config


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_mixed_precision_is_finite_and_close(dtype, positions):
    config = stack(positions=positions, causal=True, norm="rms_norm")
    exact = Decoder(config)
    exact.build()
    perturb(exact.weights)
    mixed = Decoder(config, dtype=f"mixed_{dtype}")
    mixed.build()
    mixed.set_weights(exact.get_weights())
    assert {w.dtype for w in mixed.weights} == {"float32"}
    ids, mask = random_ids(config, (2, 6)), padding([0, 5], 6)
    got = mixed(ids, padding_mask=mask)
    assert keras.backend.standardize_dtype(got.dtype) == dtype
    got, expected = to_numpy(got), to_numpy(exact(ids, padding_mask=mask))
    assert np.isfinite(got).all()
    assert difference(got[mask], expected[mask]) <= 0.05


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_ids_that_come_as_floats_are_not_rounded(dtype):
    """Half precision has whole numbers up to 256 or 2,048, vocabularies have more."""
    config = encoder_decoder(vocabulary_size=3000, num_segments=600)
    model = EncoderDecoder(config, dtype=dtype)
    ids = np.array([[257, 2049, 2999], [301, 303, 2051]], "int32")
    expected = to_numpy(model(ids, ids))
    np.testing.assert_array_equal(
        to_numpy(model(*2 * [ids.astype("float32")])), expected
    )
    assert np.abs(expected - to_numpy(model(ids - 1, ids))).max() > 0.01
    segments = ids % 600
    expected = to_numpy(model.encoder(ids, segment_ids=segments))
    floats = [x.astype("float32") for x in (ids, segments)]
    given = to_numpy(model.encoder(floats[0], segment_ids=floats[1]))
    np.testing.assert_array_equal(given, expected)


def test_configs_of_another_kind_are_refused():
    with pytest.raises(ValueError, match="causal=False.*Received: causal=True"):
        Encoder(stack(causal=True))
    with pytest.raises(ValueError, match="causal=True"):
        Decoder(stack())
    with pytest.raises(ValueError, match="encoder and a decoder.*Received: encoder"):
        EncoderDecoder(ModelConfig(encoder=stack()))


def test_memory_goes_with_cross_attention():
    ids, memory = np.ones((2, 4), "int32"), np.zeros((2, 3, 16), "float32")
    reads = Decoder(stack(causal=True, cross_attention=True))
    with pytest.raises(ValueError, match="must be called with memory"):
        reads(ids)
    with pytest.raises(ValueError, match="must be called without memory"):
        Decoder(stack(causal=True))(ids, memory=memory)


def test_a_stack_reads_each_sentence_of_a_document():
    model = Encoder(stack())
    assert model.compute_output_shape((6, 7)) == (6, 7, model.config.hidden_dim)
    inputs = keras.Input((3, 7), dtype="int32")
    document = keras.Model(inputs, keras.layers.TimeDistributed(model)(inputs))
    ids = random_ids(model.config, (2, 3, 7))
    found, expected = document(ids), model(ids.reshape(6, 7))
    np.testing.assert_allclose(
        to_numpy(found).reshape(6, 7, -1), to_numpy(expected), atol=1e-5
    )
    states, weights = model(keras.Input((7,), dtype="int32"), return_weights=True)
    assert states.shape[1:] == (7, model.config.hidden_dim)
    assert weights["self_attention"][0].shape[2:] == (7, 7)


def test_a_summary_passes_over_shapes_that_are_not_known():
    """Also of a model of one's own that builds its parts as Keras advises."""

    class Document(keras.Model):
        def __init__(self, part):
            super().__init__()
            self.part = part

        def build(self, input_shape):
            self.part.build(input_shape)

        def call(self, ids):
            return self.part(ids)

    decoder = Decoder(stack(causal=True, cross_attention=True), memory_dim=16)
    both = EncoderDecoder(ModelConfig.from_size("tiny", "encoder_decoder", 23))
    for part in (Encoder(stack()), decoder, both):
        model, lines = Document(part), []
        model.build((None, 7))
        model.summary(print_fn=lines.append)
        said = next(line for line in "".join(lines).split("\n") if part.name in line)
        assert ("?" in said) == (part in (decoder, both))
    for part in (decoder, both):
        with pytest.raises(NotImplementedError, match=f"{part.name} tells no output"):
            part.compute_output_shape((2, 7))
    for wrong in [(2, 7), (2, 5)], {"token_ids": (2, 7)}:
        with pytest.raises(NotImplementedError, match="tells no output shape for"):
            Encoder(stack()).compute_output_shape(wrong)


@pytest.mark.tensorflow
def test_ragged_ids_and_those_of_unknown_rank_are_refused():
    import tensorflow as tf

    model = Encoder(stack())
    with pytest.raises(ValueError, match="padded. Received: a ragged tensor; its to_t"):
        model(tf.ragged.constant([[1, 2], [3]]))
    traced = tf.function(model, input_signature=[tf.TensorSpec(None, tf.int32)])
    with pytest.raises(ValueError, match=r"\(batch, tokens\). Received: shape <unkno"):
        traced(np.ones((2, 4), "int32"))


def test_ids_masks_and_segments_of_another_shape_are_refused():
    model = Encoder(stack(num_segments=2))
    ids = np.ones((2, 4), "int32")
    for shape in ((4,), (1, 2, 4)):
        with pytest.raises(
            ValueError, match=r"token_ids must have the axes \(batch, t"
        ):
            model(np.ones(shape, "int32"))
    for shape in ((2, 3), (2, 1), (3, 4), (4,), (2, 1, 4)):
        received = re.escape(f"keys 4). Received: shape {shape}")
        with pytest.raises(
            ValueError, match=f"padding_mask must .*batch 2.*{received}"
        ):
            model(ids, padding_mask=np.ones(shape, bool))
    for shape in ((2, 3), (3, 4), (4,)):
        with pytest.raises(ValueError, match="segment_ids must have the axes"):
            model(ids, segment_ids=np.ones(shape, "int32"))
    row = np.array([[True, True, True, False]])
    segments = np.ones((1, 1), "int32")
    np.testing.assert_array_equal(
        to_numpy(model(ids, padding_mask=row, segment_ids=segments)),
        to_numpy(model(ids, padding_mask=row[[0, 0]], segment_ids=ids)),
    )
    # 0 and 1 are a mask; floats may be one that is added, which means the opposite.
    np.testing.assert_array_equal(
        to_numpy(model(ids, padding_mask=row[[0, 0]].astype("int64"))),
        to_numpy(model(ids, padding_mask=row[[0, 0]])),
    )
    for name, shape in (("padding_mask", (2, 4)), ("attention_mask", (2, 1, 4, 4))):
        with pytest.raises(ValueError, match="bool, or 0 and 1 .*give mask == 0, of"):
            model(ids, **{name: np.zeros(shape, "float32")})
    for shape in ((None,), (4,)):  # what is symbolic is unknown, and fits
        inputs = [keras.Input(shape, dtype=dtype) for dtype in ("int32", "bool")]
        Encoder(stack(positions="none"))(inputs[0], padding_mask=inputs[1])


def test_few_learned_positions_take_inputs_of_unknown_length():
    encoder = Encoder(stack(positions="learned", max_sequence_length=6))
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, encoder(ids))
    assert model.output_shape == (None, None, 16)
    np.testing.assert_allclose(
        to_numpy(model(np.ones((2, 6), "int32"))),
        to_numpy(encoder(np.ones((2, 6), "int32"))),
        rtol=1e-5,
        atol=1e-6,
    )
    with pytest.raises(ValueError, match="6 learned positions.*length 7"):
        model(np.ones((2, 7), "int32"))
    if keras.backend.backend() != "torch":  # which cannot tell it from one of Keras's
        with pytest.raises(ValueError, match="6 learned positions.*length 7"):
            encoder(keras.Input((7,), dtype="int32"))


@pytest.mark.parametrize("kind", ["encoder", "encoder_decoder"])
def test_a_frozen_model_in_another_is_frozen_where_that_is_read(tmp_path, kind):
    config = ModelConfig.from_size("tiny", kind, 9, num_layers=1)
    if kind == "encoder":
        frozen, inputs = Encoder(config.encoder), [keras.Input((None,), dtype="int32")]
    else:
        inputs = [keras.Input((None,), dtype="int32") for _ in range(2)]
        frozen = EncoderDecoder(config)
    frozen.trainable = False
    model = keras.Model(inputs, keras.layers.Dense(2)(frozen(*inputs)))
    model.save(tmp_path / "model.keras")
    for made in (
        model,
        keras.models.clone_model(model),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert len(made.weights) == len(model.weights) > 2
        assert len(made.trainable_weights) == 2
        made.get_layer(frozen.name).trainable = True
        assert len(made.trainable_weights) == len(model.weights)


def test_a_frozen_model_leaves_the_table_of_another_as_it_is():
    config = ModelConfig.from_size("tiny", "encoder_decoder", 9, num_layers=1)
    encoder = Encoder(config.encoder)
    encoder.build()
    table = encoder.token_embedding
    decoder = Decoder(config.decoder, token_embedding=table, trainable=False)
    decoder.build()
    assert not decoder.trainable_weights
    assert len(encoder.trainable_weights) == len(encoder.weights)
    assert not any(v.trainable for v in decoder.blocks[0].weights)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_a_head_tied_to_a_table_of_both_stacks_loads(tmp_path, share, side):
    config = ModelConfig.from_size(
        "tiny", "encoder_decoder", 20, share_embeddings=share, num_layers=1
    )
    stacks = EncoderDecoder(config)
    ids = [keras.Input((None,), dtype="int32") for _ in range(2)]
    table = getattr(stacks, side).token_embedding
    states = stacks(*ids)
    model = keras.Model(ids, LanguageModelHead(20, 64, tied_to=table)(states))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert [v.path for v in loaded.weights] == [v.path for v in model.weights]
    inputs = [np.array([[3, 4, 5]]), np.array([[1, 2]])]
    found = loaded.predict(inputs, verbose=0)
    np.testing.assert_array_equal(found, model.predict(inputs, verbose=0))
    edited = {**stacks.get_config(), "config": config.replace_in_stacks(
        vocabulary_size=9).to_dict()}  # fmt: skip
    assert EncoderDecoder.from_config(edited).encoder.config.vocabulary_size == 9


def test_a_stack_says_which_config_it_needs():
    config = ModelConfig.from_size("tiny", "encoder", 9)
    with pytest.raises(
        TypeError, match="must be a StackConfig, such as config.encoder"
    ):
        Encoder(config)
    with pytest.raises(
        ValueError, match="needs a ModelConfig .* Received: StackConfig"
    ):
        EncoderDecoder(config.encoder)


@pytest.mark.tensorflow
def test_a_stack_that_xla_compiles_is_fitted():
    """An optimizer that is not built yet makes its variables in the step."""
    config = StackConfig(
        vocabulary_size=20, num_layers=1, hidden_dim=8, intermediate_dim=8, num_heads=2
    )
    model = Encoder(config)
    model.compile("sgd", "mse", jit_compile=True)
    ids, targets = np.ones((4, 5), "int32"), np.ones((4, 5, 8), "float32")
    history = model.fit(ids, targets, epochs=2, verbose=0).history
    assert history["loss"][1] < history["loss"][0]
