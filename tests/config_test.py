"""Configs: what is possible round-trips, what is impossible cannot be built."""

import dataclasses
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kzoo.config import SIZES, ModelConfig, RopeScaling, StackConfig, load_config
from tests.strategies import model_configs, model_fields, stack_configs, stack_fields


def stack(**changes):
    return StackConfig(**{"vocabulary_size": 10, **changes})


def decoder(**changes):
    return stack(causal=True, **changes)


@given(st.data())
@settings(max_examples=1)
def test_the_strategies_draw_every_field(data):
    drawn = stack_fields(data.draw, causal=False, cross_attention=False)
    assert set(drawn) == {field.name for field in dataclasses.fields(StackConfig)}
    drawn = model_fields(data.draw)
    assert set(drawn) == {field.name for field in dataclasses.fields(ModelConfig)}


@given(stack_configs())
def test_a_stack_config_survives_json(config):
    assert StackConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@given(model_configs())
def test_a_model_config_survives_json(config):
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    stacks = (config.encoder is not None, config.decoder is not None)
    assert (
        config.architecture
        == {
            (True, False): "encoder",
            (False, True): "decoder",
            (True, True): "encoder_decoder",
        }[stacks]
    )


def test_defaults_are_filled_in_from_other_fields():
    config = stack(hidden_dim=48, num_heads=6)
    assert (config.num_key_value_heads, config.head_dim) == (6, 8)
    assert config.attention_scale == 8**-0.5
    assert config.final_norm
    assert not stack(norm_position="post").final_norm
    assert stack(norm_position="post", final_norm=True).final_norm
    assert stack(similarity="dot").attention_scale == 1.0
    assert stack(similarity="general", attention_scale=1).attention_scale == 1.0


def test_a_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        stack().hidden_dim = 3


def test_replace_validates_again():
    assert stack().replace(num_layers=3).num_layers == 3
    with pytest.raises(ValueError, match="num_layers must be positive"):
        stack().replace(num_layers=0)


POSITIVE = [
    "vocabulary_size",
    "num_layers",
    "hidden_dim",
    "num_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_dim",
    "max_sequence_length",
    "relative_max_distance",
    "rope_max_wavelength",
    "norm_epsilon",
    "initializer_range",
]


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("name", POSITIVE)
def test_sizes_must_be_positive(name, value):
    with pytest.raises(ValueError, match=f"{name} must be positive.*{value}"):
        stack(**{name: value})


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize(
    "name", ["embedding_scale", "attention_scale", "norm_epsilon", "dropout"]
)
def test_numbers_are_finite(name, value):
    with pytest.raises(ValueError, match=f"{name} must be.*{value}"):
        stack(**{name: value})


@pytest.mark.parametrize("value", [-0.1, 1.0])
@pytest.mark.parametrize(
    "name", ["dropout", "attention_dropout", "feed_forward_dropout"]
)
def test_rates_are_below_one(name, value):
    with pytest.raises(
        ValueError, match=rf"{name} must be a rate in \[0, 1\).*{value}"
    ):
        stack(**{name: value})


@pytest.mark.parametrize(
    "name",
    [
        "positions",
        "norm",
        "norm_position",
        "feed_forward",
        "activation",
        "similarity",
    ],
)
def test_an_unknown_choice_names_the_known(name):
    with pytest.raises(ValueError, match=f"StackConfig.{name} must be one of .*'odd'"):
        stack(**{name: "odd"})


@pytest.mark.parametrize(
    "name, value",
    [
        ("num_layers", "6"),
        ("num_layers", 6.0),
        ("num_layers", True),
        ("dropout", "0.1"),
        ("use_bias", 1),
        ("final_norm", 0),
        ("head_dim", 8.0),
        ("positions", ["rotary"]),
    ],
)
def test_a_value_of_another_type_is_refused(name, value):
    with pytest.raises(ValueError, match=f"StackConfig.{name} must be"):
        stack(**{name: value})


def test_an_integer_is_a_float():
    assert stack(embedding_scale=2, dropout=0).embedding_scale == 2


IMPOSSIBLE_STACKS = [
    (dict(hidden_dim=10, num_heads=4), "hidden_dim=10, num_heads=4"),
    (
        dict(num_heads=4, num_key_value_heads=3),
        "num_heads=4, num_key_value_heads=3",
    ),
    (dict(num_heads=2, num_key_value_heads=4), "num_heads=2, num_key_value_heads=4"),
    (dict(positions="rotary", head_dim=5), "positions='rotary'.*head_dim=5"),
    (
        dict(positions="sinusoidal", hidden_dim=9, num_heads=3),
        "positions='sinusoidal'.*hidden_dim=9",
    ),
    (
        dict(positions="rotary", similarity="additive"),
        "positions='rotary'.*similarity='additive'",
    ),
    (dict(rotary_dim=2), "rotary_dim=2, positions='sinusoidal'"),
    (
        dict(positions="rotary", head_dim=6, rotary_dim=8),
        "rotary_dim=8, head_dim=6",
    ),
    (dict(positions="rotary", rotary_dim=3), "rotary_dim=3, head_dim=64"),
    (dict(positions="rotary", rotary_dim=0), "rotary_dim=0, head_dim=64"),
    (
        dict(similarity="dot", attention_scale=0.1),
        "attention_scale=0.1, similarity='dot'",
    ),
    (dict(attention_window=0), "attention_window must be at least 1.*0"),
    (dict(attention_window=2**31), "attention_window must be .* below 2"),
    (dict(num_segments=-1), "num_segments must be 0 .*-1"),
    (
        dict(norm="std_norm", hidden_dim=1, num_heads=1, positions="none"),
        "norm='std_norm' needs hidden_dim.*hidden_dim=1",
    ),
    (
        dict(norm="std_norm", head_dim=1, query_key_norm=True),
        "norm='std_norm' needs head_dim.*head_dim=1",
    ),
    (dict(relative_buckets=7), r"relative_buckets must be even.*causal=False.*7"),
    (dict(relative_buckets=2), r"relative_buckets.* at least 4.*causal=False.*2"),
    (
        dict(relative_buckets=0, causal=True),
        r"relative_buckets.* at least 2.*causal=True.*0",
    ),
    (
        dict(relative_buckets=32, relative_max_distance=8),
        "relative_max_distance must exceed.* 8 with relative_buckets=32.*8",
    ),
    (
        dict(relative_buckets=32, relative_max_distance=16, causal=True),
        "relative_max_distance must exceed.* 16 with relative_buckets=32.*16",
    ),
]


@pytest.mark.parametrize("fields, message", IMPOSSIBLE_STACKS)
def test_an_impossible_stack_names_both_fields(fields, message):
    with pytest.raises(ValueError, match=message):
        stack(**fields)


def test_the_neighbours_of_the_impossible_are_possible():
    stack(hidden_dim=10, num_heads=4, head_dim=3)
    stack(num_heads=4, num_key_value_heads=1)
    stack(positions="alibi", head_dim=5)
    stack(positions="rotary", head_dim=5, rotary_dim=4)
    stack(positions="rotary", similarity="dot")
    stack(norm="std_norm", head_dim=1)
    stack(positions="learned", hidden_dim=9, num_heads=3)
    stack(relative_buckets=4, relative_max_distance=2)
    decoder(relative_buckets=2, relative_max_distance=2)
    stack(relative_buckets=32, relative_max_distance=9)


IMPOSSIBLE_MODELS = [
    (dict(), "needs an encoder, a decoder, or both"),
    (dict(encoder=decoder()), "encoder must have causal=False.*causal=True"),
    (
        dict(encoder=stack(cross_attention=True)),
        "encoder must have.*cross_attention=False.*cross_attention=True",
    ),
    (dict(decoder=stack()), "decoder must have causal=True"),
    (
        dict(decoder=decoder(cross_attention=True)),
        "cross_attention must be True exactly when an encoder.*encoder=None",
    ),
    (
        dict(encoder=stack(), decoder=decoder()),
        "cross_attention must be True exactly.*cross_attention=False, encoder=given",
    ),
    (
        dict(encoder=stack(), share_embeddings=True),
        "share_embeddings=True needs an encoder and a decoder",
    ),
    (
        dict(
            encoder=stack(),
            decoder=decoder(vocabulary_size=11, cross_attention=True),
            share_embeddings=True,
        ),
        "share_embeddings=True needs equal vocabulary_size.*encoder 10, decoder 11",
    ),
    (
        dict(
            encoder=stack(hidden_dim=64),
            decoder=decoder(cross_attention=True),
            share_embeddings=True,
        ),
        "share_embeddings=True needs equal embedding_width.*encoder 64, decoder 512",
    ),
    (
        dict(decoder=decoder(), end_token_id=10),
        r"end_token_id must be in \[0, 10\).*10",
    ),
    (
        dict(decoder=decoder(), start_token_id=-1),
        r"start_token_id must be in \[0, 10\).*-1",
    ),
    (
        dict(decoder=decoder(), pad_token_id=2),
        "pad_token_id and end_token_id must differ.*2 twice",
    ),
    (
        dict(decoder=decoder(), mask_token_id=10),
        r"mask_token_id must be in \[0, 10\).*10",
    ),
    (
        dict(encoder=stack(), pad_token_id=3, mask_token_id=3),
        "pad_token_id and mask_token_id must differ.*3 twice",
    ),
    (dict(decoder={"causal": True}), "ModelConfig.decoder must be .*StackConfig"),
]


@pytest.mark.parametrize("fields, message", IMPOSSIBLE_MODELS)
def test_an_impossible_model_names_both_fields(fields, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(**fields)


def test_an_unknown_field_is_named_with_the_known():
    with pytest.raises(ValueError, match=r"no field \['hiden'\].*'hidden_dim'"):
        StackConfig.from_dict({"vocabulary_size": 3, "hiden": 4})
    values = {"decoder": decoder().to_dict(), "tied": True}
    with pytest.raises(ValueError, match=r"ModelConfig has no field \['tied'\]"):
        ModelConfig.from_dict(values)


def test_base_is_the_base_size_of_the_paper():
    config = ModelConfig.from_size("base", "encoder_decoder", 37_000)
    for side in (config.encoder, config.decoder):
        assert (side.num_layers, side.hidden_dim, side.num_heads) == (6, 512, 8)
        assert (side.head_dim, side.intermediate_dim) == (64, 2048)
        assert side.vocabulary_size == 37_000
        assert side.embedding_scale == 512**0.5
        assert (side.positions, side.dropout) == ("sinusoidal", 0.1)
    assert config.share_embeddings and config.tie_head
    assert config.decoder.causal and config.decoder.cross_attention
    assert not config.encoder.causal and not config.encoder.cross_attention


@pytest.mark.parametrize("architecture", ["encoder", "decoder", "encoder_decoder"])
@pytest.mark.parametrize("size", SIZES)
def test_every_size_makes_every_architecture(size, architecture):
    config = ModelConfig.from_size(size, architecture, 50)
    assert config.architecture == architecture
    assert (config.decoder or config.encoder).hidden_dim == SIZES[size]["hidden_dim"]


def test_from_size_takes_fields_of_both_configs():
    config = ModelConfig.from_size(
        "tiny", "encoder_decoder", 50, positions="alibi", dropout=0.0, head_bias=True
    )
    assert config.encoder.positions == config.decoder.positions == "alibi"
    assert config.head_bias
    other = stack(hidden_dim=64, vocabulary_size=20)
    config = ModelConfig.from_size(
        "tiny", "encoder_decoder", 50, encoder=other, share_embeddings=False
    )
    assert config.encoder == other and config.decoder.vocabulary_size == 50


def test_from_size_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="Unknown size 'large'.*'base'"):
        ModelConfig.from_size("large", "decoder", 50)
    with pytest.raises(ValueError, match="Unknown architecture 'prefix'.*'decoder'"):
        ModelConfig.from_size("tiny", "prefix", 50)
    with pytest.raises(
        ValueError, match=r"has a field \['depth'\].*'share_embed.*'num_"
    ):
        ModelConfig.from_size("tiny", "decoder", 50, depth=3)


def test_load_config_reads_what_to_dict_gave(tmp_path):
    config = ModelConfig.from_size("mini", "encoder_decoder", 50)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_dict()))
    assert load_config(path) == load_config(str(path)) == config


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"{", "Expecting property name"),
        (b"\xff{}", "utf-8"),
        (b"[1]", "expects a dict"),
        (b'{"decoder": {"causal": true}}', "vocabulary_size"),
        (b'{"decodr": null}', "decodr"),
        (b'{"decoder": [1]}', "ModelConfig.decoder"),
        (b"{}", "needs an encoder, a decoder, or both"),
    ],
)
def test_a_file_that_is_no_config_is_named(tmp_path, content, reason):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"config.json is not a kzoo config.*{reason}"):
        load_config(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.json"):
        load_config(tmp_path / "nowhere.json")


def test_what_follows_from_other_fields_follows_from_the_new_ones():
    config = stack(hidden_dim=64, num_heads=8)
    assert config.replace(head_dim=16).attention_scale == 16**-0.5
    more = config.replace(num_heads=16)
    assert (more.num_key_value_heads, more.head_dim) == (16, 4)
    assert more.replace(num_heads=4).num_key_value_heads == 4
    assert config.replace(hidden_dim=128) == stack(hidden_dim=128, num_heads=8)
    assert not config.replace(norm_position="post").final_norm
    given = stack(hidden_dim=64, num_heads=8, head_dim=32, num_key_value_heads=2)
    kept = given.replace(num_heads=4)
    assert (kept.head_dim, kept.num_key_value_heads) == (32, 2)
    read = StackConfig.from_dict(config.to_dict())  # where nothing is left out
    for changes in (dict(num_heads=16), dict(hidden_dim=128), dict(head_dim=16)):
        assert read.replace(**changes) == config.replace(**changes)
    yarn = RopeScaling(kind="yarn", factor=4.0, original_length=64)
    assert yarn.replace(factor=32.0).attention_factor == pytest.approx(
        0.1 * math.log(32) + 1
    )


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("decoder", dict(causal=False)),
        ("decoder", dict(cross_attention=True)),
        ("encoder_decoder", dict(cross_attention=False)),
    ],
)
def test_what_an_architecture_says_cannot_be_said_otherwise(architecture, changes):
    with pytest.raises(ValueError, match="of the decoder follows from architecture="):
        ModelConfig.from_size("tiny", architecture, 10, **changes)


def test_padding_and_end_are_in_both_tables():
    encoder = StackConfig(vocabulary_size=4)
    decoder = StackConfig(vocabulary_size=20, causal=True, cross_attention=True)
    for name in ("pad_token_id", "end_token_id"):
        with pytest.raises(ValueError, match=rf"{name} must be in \[0, 4\)"):
            ModelConfig(encoder=encoder, decoder=decoder, **{name: 5})
    assert ModelConfig(encoder=encoder, decoder=decoder, start_token_id=5)


@pytest.mark.parametrize("width", [-64, None, 0])
def test_a_width_that_is_none_is_named(width):
    with pytest.raises(ValueError, match="hidden_dim"):
        ModelConfig.from_size("tiny", "decoder", 10, hidden_dim=width)
