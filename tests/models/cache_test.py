"""Decoding with a cache equals the full forward pass, within 1e-5."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kzoo import ops
from kzoo.config import ModelConfig, StackConfig
from kzoo.models import Decoder
from tests import harness
from tests.harness import difference, padding, random_ids, to_numpy
from tests.strategies import few, stack_configs

# Building takes longer than running, and these tests change no weight.
Transformer = functools.cache(harness.Transformer)

TOLERANCE = 1e-5
LENGTH, CAPACITY = 7, 9
POSITIONS = ["none", "learned", "sinusoidal", "rotary", "relative", "alibi"]
HEADS = {"multi_head": 4, "grouped_query": 2, "multi_query": 1}
CHUNKS = {"single_steps": [1] * 7, "prefill_then_steps": [4, 1, 1, 1], "two": [3, 4]}


def stack(**changes):
    return StackConfig(
        **{
            "vocabulary_size": 23,
            "num_layers": 2,
            "hidden_dim": 32,
            "num_heads": 4,
            "intermediate_dim": 48,
            "relative_buckets": 8,
            "relative_max_distance": 6,
            **changes,
        }
    )


def decoder_only(**changes):
    return ModelConfig(decoder=stack(causal=True, **changes))


def encoder_decoder(**changes):
    return ModelConfig(
        encoder=stack(), decoder=stack(causal=True, cross_attention=True, **changes)
    )


def in_chunks(decoder, ids, chunks, fixed, mask=None, **options):
    """The states of `ids`, read in pieces through a cache."""
    with ops.fixed_buffers(fixed):
        cache = decoder.empty_cache(len(ids), CAPACITY)
        states, index = [], 0
        for size in chunks:
            stop = index + size
            now = None
            if mask is not None:
                # What is not written yet counts as real: causality hides it.
                rest = np.ones((len(mask), CAPACITY - stop), bool)
                now = mask[:, :stop]
                now = np.concatenate([now, rest], axis=1) if fixed else now
            state, cache = decoder(
                ids[:, index:stop],
                padding_mask=now,
                cache=cache,
                index=index,
                **options,
            )
            states.append(to_numpy(state))
            index = stop
        assert cache[0][0].shape[2] == (CAPACITY if fixed else LENGTH)
    return np.concatenate(states, axis=1)


@pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_cached_decoding_equals_full_forward(positions, fixed):
    transformer = Transformer(decoder_only(positions=positions))
    ids = random_ids(transformer.config.decoder, (2, LENGTH))
    full = to_numpy(transformer.decoder(ids))
    got = in_chunks(transformer.decoder, ids, [4, 1, 1, 1], fixed)
    assert difference(got, full) <= TOLERANCE


@pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("heads", HEADS)
def test_any_chunks_and_heads_equal_full_forward(heads, chunks, fixed):
    config = decoder_only(num_key_value_heads=HEADS[heads], positions="rotary")
    transformer = Transformer(config)
    ids = random_ids(config.decoder, (2, LENGTH))
    full = to_numpy(transformer.decoder(ids))
    got = in_chunks(transformer.decoder, ids, CHUNKS[chunks], fixed)
    assert difference(got, full) <= TOLERANCE


@pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_padded_prompts_equal_full_forward(positions, side, fixed):
    check_padded_prompts("multi_head", positions, side, fixed)


@pytest.mark.parametrize("heads", ["grouped_query", "multi_query"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_left_padded_prompts_equal_full_forward_with_fewer_heads(positions, heads):
    check_padded_prompts(heads, positions, "left", fixed=not ops.buffers_grow())


def check_padded_prompts(heads, positions, side, fixed):
    config = decoder_only(positions=positions, num_key_value_heads=HEADS[heads])
    transformer = Transformer(config)
    ids = random_ids(config.decoder, (3, LENGTH))
    mask = padding([7, 4, 1], LENGTH, side)  # the last prompt is all padding at first
    full = to_numpy(transformer.decoder(ids, padding_mask=mask))
    got = in_chunks(transformer.decoder, ids, [4, 1, 1, 1], fixed, mask)
    assert np.isfinite(got).all()
    assert difference(got[mask], full[mask]) <= TOLERANCE


OPTIONS = {
    "window": dict(attention_window=2),
    "window_rotary": dict(attention_window=3, positions="rotary", rotary_dim=4),
    "window_relative": dict(attention_window=3, positions="relative"),
    "query_key_norm": dict(query_key_norm=True, positions="rotary"),
    "general": dict(similarity="general", num_key_value_heads=2),
    "additive_tanh": dict(similarity="additive_tanh", num_key_value_heads=2),
}


@pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
@pytest.mark.parametrize("option", OPTIONS)
def test_options_equal_full_forward(option, fixed):
    transformer = Transformer(decoder_only(**OPTIONS[option]))
    ids = random_ids(transformer.config.decoder, (3, LENGTH))
    for side in ("left", "right"):
        mask = padding([7, 4, 1], LENGTH, side)
        full = to_numpy(transformer.decoder(ids, padding_mask=mask))
        got = in_chunks(transformer.decoder, ids, [4, 2, 1], fixed, mask)
        assert difference(got[mask], full[mask]) <= TOLERANCE


@pytest.mark.tensorflow  # JAX compiles anew for every config: minutes
@given(stack_configs(causal=True), st.booleans(), st.sampled_from(["left", "right"]))
@settings(max_examples=few(10), deadline=None, derandomize=True)
def test_any_config_equals_full_forward(config, fixed, side):
    transformer = Transformer(ModelConfig(decoder=config))
    ids, mask = random_ids(config, (2, LENGTH)), padding([7, 4], LENGTH, side)
    full = to_numpy(transformer.decoder(ids, padding_mask=mask))
    got = in_chunks(transformer.decoder, ids, [5, 1, 1], fixed, mask)
    assert difference(got[mask], full[mask]) <= TOLERANCE


def test_a_decoder_that_was_not_called_projects_memory():
    config = encoder_decoder().decoder
    decoder = Decoder(config, memory_dim=16)
    ids, memory = random_ids(config, (3, LENGTH)), np.ones((3, 6, 16), "float32")
    projected = decoder.project_memory(memory)
    expected = to_numpy(decoder(ids, memory=memory))
    assert difference(to_numpy(decoder(ids, projected=projected)), expected) <= 1e-6
    assert {w.path.split("/")[0] for w in decoder.weights} == {decoder.name}


@pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
@pytest.mark.parametrize("heads", HEADS)
def test_projected_memory_equals_memory(heads, fixed):
    config = encoder_decoder(num_key_value_heads=HEADS[heads])
    transformer = Transformer(config)
    decoder = transformer.decoder
    ids, mask = random_ids(config.decoder, (3, LENGTH)), padding([6, 2, 1], 6)
    source = random_ids(config.encoder, (3, 6))
    memory = transformer.encoder(source, padding_mask=mask)
    full = to_numpy(decoder(ids, memory=memory, memory_padding_mask=mask))
    projected = decoder.project_memory(memory)
    options = dict(projected=projected, memory_padding_mask=mask)
    assert difference(to_numpy(decoder(ids, **options)), full) <= TOLERANCE
    got = in_chunks(decoder, ids, [3, 1, 1, 1, 1], fixed, **options)
    assert difference(got, full) <= TOLERANCE


BEAMS, PROMPT, PARENTS = 3, 3, [[0, 0, 1], [2, 0, 2], [1, 1, 0]]
SHARED = {
    **{positions: dict(positions=positions) for positions in POSITIONS},
    **OPTIONS,
    "grouped_query": dict(num_key_value_heads=2, positions="rotary"),
    "grouped_norm": dict(
        num_key_value_heads=2, query_key_norm=True, similarity="additive_tanh"
    ),
    "window_of_one_layer": dict(
        attention_window=2, windowed_layers=(0,), positions="rotary"
    ),
    "soft_cap": dict(attention_soft_cap=2.0, positions="relative"),
}


@functools.cache
def sharing(option):
    """A model, its inputs, and what each step has for its beams' sequences as rows."""
    transformer = Transformer(encoder_decoder(**SHARED[option]))
    config, decoder, steps = transformer.config, transformer.decoder, len(PARENTS)
    prompt = random_ids(config.decoder, (2, PROMPT))
    tokens = random_ids(config.decoder, (2, steps * BEAMS))
    pads = np.array([0, 1])  # places of padding before each prompt
    real = np.arange(PROMPT) >= pads[:, None]
    source, source_mask = random_ids(config.encoder, (2, 6)), padding([6, 2], 6)
    memory = transformer.encoder(source, padding_mask=source_mask)
    options = dict(memory_padding_mask=source_mask)
    options["projected"] = decoder.project_memory(memory)
    # The entries of each beam's sequence, step by step.
    paths, every = [[] for _ in range(BEAMS)], []
    for step, parents in enumerate(PARENTS):
        filled = PROMPT + step * BEAMS
        paths = [[*paths[p], filled + i] for i, p in enumerate(parents)]
        every.append(paths)
    # All of all steps at once, those of the first beam first; what comes later than
    # a step is hidden from it.
    own = [tokens[:, np.array(path) - PROMPT] for paths in every for path in paths]
    own = [np.pad(each, [(0, 0), (0, steps - each.shape[1])]) for each in own]
    own = np.concatenate(own)
    full = decoder(
        np.concatenate([np.tile(prompt, (steps * BEAMS, 1)), own], axis=1),
        padding_mask=np.concatenate(
            [np.tile(real, (steps * BEAMS, 1)), np.ones_like(own, bool)], axis=1
        ),
        memory=ops.concatenate([memory] * (steps * BEAMS), axis=0),
        memory_padding_mask=np.tile(source_mask, (steps * BEAMS, 1)),
    )
    full = to_numpy(full).reshape(steps, BEAMS, 2, PROMPT + steps, -1)
    expected = [full[step, :, :, PROMPT + step] for step in range(steps)]
    return decoder, (prompt, tokens, pads, real), options, every, expected


@pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
@pytest.mark.parametrize("option", SHARED)
def test_beams_that_share_a_cache_equal_rows_of_their_own(option, fixed):
    decoder, given, options, every, expected = sharing(option)
    prompt, tokens, pads, real = given
    steps = len(PARENTS)
    entries = PROMPT + steps * BEAMS
    order = np.r_[:PROMPT, PROMPT + np.repeat(np.arange(steps), BEAMS)].astype("int32")
    with ops.fixed_buffers(fixed):
        rest = np.ones((2, entries - PROMPT), bool)
        _, cache = decoder(
            prompt,
            padding_mask=np.concatenate([real, rest], axis=1) if fixed else real,
            cache=decoder.empty_cache(2, entries),
            **options,
        )
        for step, paths in enumerate(every):
            filled, index = PROMPT + step * BEAMS, PROMPT + step
            count = entries if fixed else filled + BEAMS
            seen = np.zeros((2, 1, BEAMS, count), bool)
            seen[..., :PROMPT] = real[:, None, None]
            for beam, path in enumerate(paths):
                seen[:, :, beam, path] = True
            states, cache = decoder(
                tokens[:, filled - PROMPT : filled - PROMPT + BEAMS],
                attention_mask=seen,
                places=(np.full(BEAMS, index, "int32"), order[:count]),
                positions=(index - pads[:, None]).astype("int32"),
                cache=cache,
                index=filled,
                **options,
            )
            for got, each in zip(
                to_numpy(states).swapaxes(0, 1), expected[step], strict=True
            ):
                assert difference(got, each) <= TOLERANCE


def test_positions_follow_from_places():
    decoder = Transformer(decoder_only(positions="learned")).decoder
    ids = random_ids(decoder.config, (2, LENGTH))
    causal = np.tril(np.ones((LENGTH, LENGTH), bool))[None, None]
    there = np.arange(LENGTH, dtype="int32")
    given = dict(attention_mask=causal.astype("int32"), places=(there, there))
    assert difference(to_numpy(decoder(ids, **given)), to_numpy(decoder(ids))) == 0
    back = dict(given, places=(there[::-1].copy(),) * 2)
    assert difference(to_numpy(decoder(ids, **back)), to_numpy(decoder(ids))) > 0.1


def test_masks_and_places_of_another_form_are_refused():
    config = decoder_only(attention_window=2, positions="learned").decoder
    decoder = Transformer(ModelConfig(decoder=config)).decoder
    ids = random_ids(config, (4, LENGTH))
    mask, there = np.ones((4, LENGTH, LENGTH), bool), np.zeros((4, LENGTH), "int32")
    for wrong, message in (
        (dict(attention_mask=mask), "attention_mask must have the axes"),
        (dict(attention_mask=mask[:, None], padding_mask=mask[:, 0]), "one of the two"),
        (dict(places=there[:2]), "places must be a pair"),
        (dict(places=(there, there[None])), "places must be a pair"),
    ):
        with pytest.raises(ValueError, match=message):
            decoder(ids, **wrong)
    short = Transformer(decoder_only(positions="learned", max_sequence_length=5))
    with pytest.raises(ValueError, match="5 learned positions"):
        short.decoder(ids, attention_mask=np.ones((1, 1, LENGTH, LENGTH), bool))


def test_an_index_that_a_growing_cache_contradicts_is_refused():
    decoder = Transformer(decoder_only()).decoder
    ids = random_ids(decoder.config, (2, LENGTH))
    with ops.fixed_buffers(False):
        _, cache = decoder(ids[:, :4], cache=decoder.empty_cache(2, LENGTH))
        for wrong in ({}, {"index": 3}, {"index": 5}):
            with pytest.raises(ValueError, match="holds, here 4. Received: index="):
                decoder(ids[:, 4:], cache=cache, **wrong)
        states, _ = decoder(ids[:, 4:], cache=cache, index=4)
    full = to_numpy(decoder(ids))[:, 4:]
    assert difference(to_numpy(states), full) <= TOLERANCE


@pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
def test_a_mask_counts_the_tokens_in_the_cache(fixed):
    decoder = Transformer(decoder_only()).decoder
    ids = random_ids(decoder.config, (2, LENGTH))
    with ops.fixed_buffers(fixed):
        _, cache = decoder(ids[:, :4], cache=decoder.empty_cache(2, CAPACITY))
        with pytest.raises(ValueError, match=r"keys \d+\). Received: shape \(2, 3\)"):
            mask = np.ones((2, LENGTH - 4), bool)
            decoder(ids[:, 4:], padding_mask=mask, cache=cache, index=4)


def test_a_source_of_nothing_but_padding_equals_full_forward():
    config = encoder_decoder()
    transformer = Transformer(config)
    ids, mask = random_ids(config.decoder, (2, LENGTH)), padding([4, 0], 4)
    source = random_ids(config.encoder, (2, 4))
    full = to_numpy(transformer.states(ids, source=source, source_mask=mask))
    assert np.isfinite(full).all()
    memory = transformer.encoder(source, padding_mask=mask)
    got = in_chunks(
        transformer.decoder,
        ids,
        [1] * LENGTH,
        fixed=False,
        memory=memory,
        memory_padding_mask=mask,
    )
    assert difference(got, full) <= TOLERANCE


def test_a_sequence_beyond_the_learned_positions_is_refused():
    transformer = Transformer(decoder_only(positions="learned", max_sequence_length=6))
    ids = random_ids(transformer.config.decoder, (1, LENGTH))
    with pytest.raises(ValueError, match="6 learned positions.*length 7"):
        transformer.decoder(ids)
    with pytest.raises(ValueError, match="6 learned positions.*length 7"):
        in_chunks(transformer.decoder, ids, [6, 1], fixed=False)
