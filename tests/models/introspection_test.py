"""The recorder gives a model's weights, and saliency its gradients, unchanged."""

from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest

import kzoo
from kzoo.config import ModelConfig, StackConfig
from kzoo.layers import Attention
from kzoo.models import Decoder, Encoder, EncoderDecoder
from tests.harness import difference, padding, perturb, to_numpy
from tests.reference import Reference

WIDTH = 16


def stack(**changes):
    return StackConfig(
        **{
            "vocabulary_size": 23,
            "num_layers": 2,
            "hidden_dim": WIDTH,
            "num_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_dim": 24,
            **changes,
        }
    )


CONFIG = ModelConfig(
    encoder=stack(),
    decoder=stack(causal=True, cross_attention=True),
    share_embeddings=True,
)
SOURCE = np.array([[4, 9, 2, 7, 1], [3, 5, 8, 0, 0]], "int32")
SOURCE_MASK = padding([5, 3], 5)
# No token of the source: the two stacks share a table.
WRITTEN = np.array([[11, 12, 13, 14], [15, 16, 17, 18]], "int32")


@pytest.fixture(scope="module")
def model():
    model = EncoderDecoder(CONFIG)
    model.build()
    perturb(model.weights)
    return model


def reference_of(model, **changed):
    weights = {
        w.path.removeprefix(f"{model.name}/"): to_numpy(w.value) for w in model.weights
    }
    return Reference(CONFIG, {**weights, **changed})


def states(model, **options):
    return model(
        SOURCE, decoder_token_ids=WRITTEN, encoder_padding_mask=SOURCE_MASK, **options
    )


# ------------------------------------------------------------------- the recorder


def test_recorded_weights_equal_the_reference_under_their_paths(model):
    with kzoo.AttentionRecorder(model) as recorder:
        states(model)
    expected = reference_of(model).attention_weights(WRITTEN, None, SOURCE, SOURCE_MASK)
    assert list(recorder.weights) == [
        "encoder/layer_0/self_attention",
        "encoder/layer_1/self_attention",
        "decoder/layer_0/self_attention",
        "decoder/layer_0/cross_attention",
        "decoder/layer_1/self_attention",
        "decoder/layer_1/cross_attention",
    ]
    assert set(recorder.weights) == set(expected)
    for path, weights in recorder.weights.items():
        assert weights.dtype == np.float32
        assert difference(weights, expected[path]) <= 1e-6, path


def test_maps_are_layers_in_order_chosen_by_parts_of_their_paths(model):
    with kzoo.AttentionRecorder(model) as recorder:
        states(model)
    for parts, shape in {
        ("encoder",): (2, 4, 5, 5),
        ("decoder", "self_attention"): (2, 4, 4, 4),
        ("cross_attention",): (2, 4, 4, 5),
    }.items():
        first, second = recorder.maps(*parts)
        assert first.shape == second.shape == shape
    assert len(recorder.maps()) == 6
    path = "decoder/layer_1/cross_attention"
    np.testing.assert_array_equal(
        recorder.maps("cross_attention")[1], recorder.weights[path]
    )
    with pytest.raises(ValueError, match="'encoder' and 'cross_attention'.*Recorded"):
        recorder.maps("encoder", "cross_attention")


def test_a_stack_alone_is_recorded_as_it_returns_its_weights():
    decoder = Decoder(stack(causal=True))
    decoder.build()
    perturb(decoder.weights)
    plain = decoder(WRITTEN)
    with kzoo.AttentionRecorder(decoder) as recorder:
        recorded = decoder(WRITTEN)
        _, weights = decoder(WRITTEN, return_weights=True)
    np.testing.assert_array_equal(to_numpy(recorded), to_numpy(plain))
    assert list(recorder.weights) == [
        "layer_0/self_attention",
        "layer_1/self_attention",
    ]
    for got, expected in zip(recorder.maps(), weights["self_attention"], strict=True):
        np.testing.assert_array_equal(got, to_numpy(expected))


def test_a_cache_is_returned_beside_what_is_recorded():
    decoder = Decoder(stack(causal=True))
    expected, _ = decoder(WRITTEN, cache=decoder.empty_cache(2, 4))
    with kzoo.AttentionRecorder(decoder) as recorder:
        got, cache = decoder(WRITTEN, cache=decoder.empty_cache(2, 4))
    np.testing.assert_array_equal(to_numpy(got), to_numpy(expected))
    assert len(cache) == len(recorder.maps()) == 2


def test_the_last_call_counts():
    encoder = Encoder(stack())
    with kzoo.AttentionRecorder(encoder) as recorder:
        encoder(SOURCE)
        first = recorder.weights
        encoder(WRITTEN)
    assert first["layer_0/self_attention"].shape == (2, 4, 5, 5)
    assert recorder.weights["layer_0/self_attention"].shape == (2, 4, 4, 4)
    assert list(recorder.weights) == list(first)


def test_half_precision_is_recorded_as_float32():
    encoder = Encoder(stack(), dtype="mixed_bfloat16")
    with kzoo.AttentionRecorder(encoder) as recorder:
        encoder(SOURCE)
    assert {w.dtype for w in recorder.maps()} == {np.dtype("float32")}


@keras.saving.register_keras_serializable("tests")
class Own(keras.Model):
    """A user's model: an attention layer with a name of its own, not built yet."""

    def __init__(self):
        super().__init__(name="own")
        self.look = Attention(8, 2, name="look")
        self.classify = keras.layers.Dense(3)

    def call(self, x):
        return self.classify(self.look(x)[:, 0])


def test_a_model_of_the_users_own_is_recorded_even_while_it_is_built():
    own, x = Own(), np.random.default_rng(0).normal(size=(1, 3, 8)).astype("float32")
    with kzoo.AttentionRecorder(own) as recorder:
        own(x)
    (weights,) = recorder.maps("look")
    assert weights.shape == (1, 2, 3, 3)
    np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=1e-6)


def attentions(model):
    return [x for x in model._flatten_layers() if isinstance(x, Attention)]


def test_calls_are_restored_even_after_an_error(model):
    expected = to_numpy(states(model))
    with pytest.raises(ZeroDivisionError):
        with kzoo.AttentionRecorder(model) as recorder:
            states(model)
            assert all("call" in layer.__dict__ for layer in attentions(model))
            raise ZeroDivisionError
    assert not any("call" in layer.__dict__ for layer in attentions(model))
    assert len(recorder.weights) == 6, "what was recorded stays"
    np.testing.assert_array_equal(to_numpy(states(model)), expected)


def test_recorders_nest(model):
    with kzoo.AttentionRecorder(model) as outer:
        with kzoo.AttentionRecorder(model.decoder) as inner:
            states(model)
        states(model)
    for path, weights in inner.weights.items():
        np.testing.assert_array_equal(weights, outer.weights[f"decoder/{path}"])
    assert len(inner.weights) == 4 and len(outer.weights) == 6
    assert not any("call" in layer.__dict__ for layer in attentions(model))


def test_calls_of_another_thread_are_not_recorded(model):
    with ThreadPoolExecutor(1) as pool, kzoo.AttentionRecorder(model) as recorder:
        states(model)
        kept = recorder.weights
        pool.submit(model.encoder, SOURCE[:1]).result()
        for path, weights in recorder.weights.items():
            np.testing.assert_array_equal(weights, kept[path])


def test_calls_of_another_thread_are_not_explained(model):
    expected = to_numpy(states(model))
    with ThreadPoolExecutor(1) as pool:

        def target(output):
            there = pool.submit(states, model).result()
            np.testing.assert_array_equal(to_numpy(there), expected)
            return keras.ops.sum(output, axis=(1, 2))

        options = dict(decoder_token_ids=WRITTEN, encoder_padding_mask=SOURCE_MASK)
        kzoo.token_saliency(model, SOURCE, target, **options)


def test_a_recorder_starts_anew_but_not_twice_at_once(model):
    recorder = kzoo.AttentionRecorder(model)
    with recorder:
        states(model)
        with pytest.raises(RuntimeError, match="records already"):
            recorder.__enter__()
    with recorder:
        model.encoder(SOURCE)
    assert len(recorder.weights) == 2


def test_a_call_in_a_graph_is_refused_and_leaves_the_model_as_it_was():
    encoder = Encoder(stack())
    encoder.build()

    def compiled(ids):
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            return tf.function(encoder)(ids)
        if keras.backend.backend() == "jax":
            import jax

            return jax.jit(lambda ids: encoder(ids))(ids)
        return pytest.skip("eager, but for the shapes below")

    with pytest.raises(RuntimeError, match="layer_0/self_attention was called in a gr"):
        with kzoo.AttentionRecorder(encoder):
            compiled(SOURCE)
    compiled(SOURCE)


def test_shapes_are_never_recorded_as_values():
    encoder = Encoder(stack())
    encoder.build()
    with kzoo.AttentionRecorder(encoder) as recorder:
        try:
            encoder(keras.KerasTensor((2, 5), "int32"))
        except RuntimeError as error:
            assert "called in a graph" in str(error)
    with pytest.raises(RuntimeError, match="No attention was recorded"):
        recorder.maps()


def test_predict_is_refused_where_it_compiles():
    encoder = Encoder(stack())
    encoder.build()
    with kzoo.AttentionRecorder(encoder) as recorder:
        if keras.backend.backend() == "torch":  # predict is eager
            encoder.predict(SOURCE, verbose=0)
            assert len(recorder.weights) == 2
        else:
            with pytest.raises(RuntimeError, match="not fit, predict, generate"):
                encoder.predict(SOURCE, verbose=0)


def test_weights_that_were_not_recorded_are_an_error(model):
    recorder = kzoo.AttentionRecorder(model)
    with pytest.raises(RuntimeError, match="No attention was recorded. Call the model"):
        recorder.maps()
    with pytest.raises(ValueError, match="needs a model with kzoo.layers.Attention"):
        with kzoo.AttentionRecorder(keras.layers.Dense(2)):
            pass


# -------------------------------------------------------------------- the saliency


def by_differences(model, ids, score):
    """Central differences in float64: each token's row of the table times 1 +- h.

    Every id stands once in `ids`, so that its row is the token's embedding alone.
    """
    path, step = "encoder/token_embedding/embeddings", 1e-5
    table = reference_of(model).weights[path]
    found = np.zeros(ids.shape)
    for b, t in np.ndindex(*ids.shape):
        values = []
        for sign in (1, -1):
            changed = table.copy()
            changed[ids[b, t]] *= 1 + sign * step
            values.append(score(reference_of(model, **{path: changed}))[b])
        found[b, t] = (values[0] - values[1]) / (2 * step)
    return found


def of_encoder(place, unit):
    return lambda reference: reference.encode(SOURCE, SOURCE_MASK)[:, place, unit]


def of_decoder(places, units):
    def score(reference):
        memory = reference.encode(SOURCE, SOURCE_MASK)
        hidden = reference.decode(WRITTEN, None, memory, SOURCE_MASK)
        return hidden[np.arange(len(hidden)), places, units]

    return score


def test_saliency_of_an_encoder_equals_finite_differences(model):
    encoder = model.encoder
    got = kzoo.token_saliency(
        encoder, SOURCE, target=5, position=1, padding_mask=SOURCE_MASK
    )
    expected = by_differences(model, SOURCE[:, :3], of_encoder(1, 5))
    assert got.shape == (2, 5) and got.dtype == np.float32
    assert difference(got[:, :3], expected) <= 1e-5
    np.testing.assert_array_equal(got[1, 3:], 0.0)  # padding says nothing


@pytest.mark.parametrize(("at", "ids"), [("encoder", SOURCE), ("decoder", WRITTEN)])
def test_saliency_of_both_sides_of_a_shared_table_equals_finite_differences(
    model, at, ids
):
    ids = ids[:, :3]
    got = kzoo.token_saliency(
        model,
        SOURCE,
        [2, 7],
        position=-1,
        at=at,
        decoder_token_ids=WRITTEN,
        encoder_padding_mask=SOURCE_MASK,
    )
    expected = by_differences(model, ids, of_decoder(3, [2, 7]))
    assert difference(got[:, :3], expected) <= 1e-5


class Classifier(keras.Model):
    """The first token's state as scores; or a number; or a dict."""

    def __init__(self, encoder, form):
        super().__init__()
        self.encoder, self.form = encoder, form

    def call(self, ids):
        states = self.encoder(ids)[:, 0]
        forms = {"scores": states, "number": states[:, 4], "dict": {"a": states}}
        return forms[self.form]


def test_the_largest_score_is_explained_by_default(model):
    classifier = Classifier(model.encoder, "scores")
    best = to_numpy(classifier(SOURCE)).argmax(-1)
    np.testing.assert_array_equal(
        kzoo.token_saliency(classifier, SOURCE),
        kzoo.token_saliency(classifier, SOURCE, best),
    )
    other = kzoo.token_saliency(classifier, SOURCE, (best + 1) % WIDTH)
    assert np.abs(other - kzoo.token_saliency(classifier, SOURCE)).max() > 1e-3


def test_a_number_and_a_function_of_the_output_are_explained(model):
    expected = kzoo.token_saliency(Classifier(model.encoder, "scores"), SOURCE, 4)
    number = kzoo.token_saliency(Classifier(model.encoder, "number"), SOURCE)
    function = kzoo.token_saliency(
        Classifier(model.encoder, "dict"), SOURCE, lambda outputs: outputs["a"][:, 4]
    )
    np.testing.assert_allclose(number, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(function, expected, rtol=1e-5, atol=1e-6)


def test_an_embedding_of_the_users_own_is_explained():
    own = keras.Sequential([keras.layers.Embedding(9, 4), keras.layers.Dense(1)])
    ids = np.array([[3, 7, 8]])
    got = kzoo.token_saliency(own, ids, 0, position=1, at=own.layers[0])
    table, kernel = to_numpy(own.layers[0].embeddings), to_numpy(own.layers[1].kernel)
    # Each place is its own: only place 1 speaks, with table[7] . kernel.
    expected = [[0.0, float(table[7] @ kernel[:, 0]), 0.0]]
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_saliency_leaves_the_model_as_it_was(model):
    encoder = model.encoder
    before = to_numpy(encoder(SOURCE))
    with pytest.raises(ValueError):
        kzoo.token_saliency(encoder, SOURCE, target=WIDTH, position=0)
    kzoo.token_saliency(encoder, SOURCE, position=0)
    assert "call" not in encoder.token_embedding.__dict__
    np.testing.assert_array_equal(to_numpy(encoder(SOURCE)), before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(position=None), r"shape \(2, 5, 16\), scores at every place: say which"),
        (dict(position=5), "position must be an int, or 2.*of -5 to 4. Received: 5"),
        (dict(target=16), "target must be an int.*of -16 to 15. Received: 16"),
        (dict(target=[1, 2, 3]), "target must be an int, or 2"),
        (dict(target=0.5), "target must be an int"),
        (dict(at="decoder"), "at must be 'encoder' here"),
        (dict(at=keras.layers.Embedding(3, 2)), "was not called"),
        (dict(model=keras.layers.Dense(2)), "Received: 0 stacks"),
    ],
)
def test_what_cannot_be_explained_is_refused(model, change, message):
    arguments = dict(model=model.encoder, inputs=SOURCE, target=1, position=1)
    with pytest.raises(ValueError, match=message):
        kzoo.token_saliency(**arguments | change)


def test_outputs_without_a_choice_are_refused(model):
    scores = Classifier(model.encoder, "scores")
    with pytest.raises(ValueError, match="no places. Received: position=1"):
        kzoo.token_saliency(scores, SOURCE, position=1)
    with pytest.raises(ValueError, match="leave target out"):
        kzoo.token_saliency(Classifier(model.encoder, "number"), SOURCE, 1)
    with pytest.raises(ValueError, match="give target=function.*'a'"):
        kzoo.token_saliency(Classifier(model.encoder, "dict"), SOURCE)
