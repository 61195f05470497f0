"""`generate` of the tasks: prompts of any lengths, one trace, clear errors."""

import contextlib
import functools
import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest

import kzoo
from kzoo.generation import CompiledFunction
from tests.harness import op_by_op, perturb, to_numpy

VOCABULARY = 23
PROMPTS = [[5, 6, 7, 8], [9], [4, 3, 4, 3, 4, 3, 5]]


def make(kind, **changes):
    options = dict(num_layers=1, hidden_dim=16, intermediate_dim=32, num_heads=4)
    options |= dict(vocabulary_size=VOCABULARY)
    model = kind.from_size("tiny", **{**options, **changes})
    perturb(model.named_variables().values())
    return model


# One that tests only read: what it has traced for one of them serves all.
made = functools.cache(make)


def greedy(model, ids, found, count):
    """What the full forward of a whole sequence has for `found`, to the end token."""
    config = model.config
    if config.encoder:
        target = [[config.start_token_id, *found]]
        inputs = {"encoder_token_ids": [ids], "decoder_token_ids": target}
    else:
        inputs = {"token_ids": [[*ids, *found]]}
    inputs = {name: np.array(rows, "int32") for name, rows in inputs.items()}
    if not config.encoder:
        inputs["padding_mask"] = np.ones_like(inputs["token_ids"], bool)
    logits = keras.ops.convert_to_numpy(model(inputs))[0, -len(found) - 1 :]
    tokens = logits.argmax(axis=-1).tolist()[:count]
    ends = config.end_token_id in tokens
    return tokens[: tokens.index(config.end_token_id)] if ends else tokens


@pytest.mark.parametrize(
    "positions", ["none", "learned", "sinusoidal", "rotary", "relative", "alibi"]
)
def test_causal_generation_of_ragged_prompts_equals_the_full_forward(positions):
    model = make(
        kzoo.CausalLM, num_layers=2, positions=positions, num_key_value_heads=2
    )
    expected = model.generate(PROMPTS, max_new_tokens=6)
    for ids, found in zip(PROMPTS, expected, strict=True):
        assert found == greedy(model, ids, found, 6)
    left = np.array([[0] * (7 - len(p)) + p for p in PROMPTS])
    right = np.array([p + [0] * (7 - len(p)) for p in PROMPTS])
    assert model.generate(left, max_new_tokens=6) == expected
    assert model.generate(right, max_new_tokens=6) == expected
    masked = {"token_ids": right, "padding_mask": right != 0}
    assert model.generate(masked, max_new_tokens=6, batch_size=2) == expected


def test_seq2seq_generation_of_ragged_sources_equals_the_full_forward():
    model = made(kzoo.Seq2SeqLM, num_layers=2)
    together = model.generate(PROMPTS, max_new_tokens=6)
    for ids, found in zip(PROMPTS, together, strict=True):
        assert found == greedy(model, ids, found, 6)


@pytest.mark.parametrize("kind", [kzoo.CausalLM, kzoo.Seq2SeqLM])
def test_beams_do_not_mix_the_rows_of_a_batch(kind):
    model = made(kind, num_layers=2)
    options = dict(max_new_tokens=5, beams=3, num_return_sequences=2)
    together, scores = model.generate(PROMPTS, return_scores=True, **options)
    for row, prompt in enumerate(PROMPTS):
        alone, score = model.generate([prompt], return_scores=True, **options)
        assert together[row] == alone[0]
        np.testing.assert_allclose(scores[row], score[0], atol=1e-4)


def test_beam_scores_are_the_log_probabilities_of_the_sequences():
    model = made(kzoo.Seq2SeqLM, num_layers=2)
    options = dict(max_new_tokens=4, beams=3, num_return_sequences=2)
    found, scores = model.generate(
        [PROMPTS[0]], length_penalty=0.0, return_scores=True, **options
    )
    ids = [*found[0][0], model.config.end_token_id][:4]
    inputs = {
        "encoder_token_ids": np.array([PROMPTS[0]], "int32"),
        "decoder_token_ids": np.array([[model.config.start_token_id, *ids[:-1]]]),
    }
    logits = keras.ops.convert_to_numpy(model(inputs))[0].astype("float64")
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    assert scores[0, 0] == pytest.approx(log_p[range(len(ids)), ids].sum(), abs=1e-4)


def test_a_second_call_of_the_same_bucket_traces_nothing():
    model = make(kzoo.Seq2SeqLM)

    def traces():
        return sum(f.traces for f in model._compiled_functions.functions.values())

    model.generate([[5, 6, 7]], max_new_tokens=4)
    first = traces()
    model.generate([[8, 9, 4]], max_new_tokens=4)
    model.generate([[8, 9, 5, 6]], max_new_tokens=4)  # the bucket of 3 and 4 is one
    assert first == traces() == 1
    if keras.backend.backend() == "tensorflow":
        model.generate(PROMPTS * 3, max_new_tokens=7)
        assert traces() == 1  # one graph for every shape


def test_generation_follows_lora():
    model = make(kzoo.CausalLM)
    before = model.generate([[5, 6]], max_new_tokens=8, return_scores=True)
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Dense):
            layer.enable_lora(2)
            layer.lora_kernel_b.assign(layer.lora_kernel_b + 0.5)
    after = model.generate([[5, 6]], max_new_tokens=8, return_scores=True)
    assert after[0][0] == greedy(model, [5, 6], after[0][0], 8)
    assert abs(after[1][0] / before[1][0] - 1) > 0.01


@pytest.mark.parametrize("kind", [kzoo.CausalLM, kzoo.Seq2SeqLM])
def test_padding_is_no_token_wherever_it_stands(kind):
    model = made(kind)
    want, score = model.generate([[5, 7, 8]], max_new_tokens=4, return_scores=True)
    for row in ([5, 0, 7, 8], [0, 5, 7, 0, 8, 0]):
        for prompt in ([row], np.array([row]), {model.prompt_input: [row]}):
            got = model.generate(prompt, max_new_tokens=4, return_scores=True)
            assert got[0] == want
            np.testing.assert_allclose(got[1], score, rtol=1e-5)


def test_padding_inside_is_none_of_the_tokens_of_any_dtype():
    """-1, which stands for it, is 255 in a uint8."""
    model = make(kzoo.CausalLM, vocabulary_size=300)
    ids = np.array([[5, 0, 6, 7]])
    wanted = model.generate(ids, max_new_tokens=4, return_scores=True)
    for dtype in ("uint8", "uint16", "uint64", "int8"):
        found = model.generate(ids.astype(dtype), max_new_tokens=4, return_scores=True)
        assert found[0] == wanted[0]
        np.testing.assert_array_equal(found[1], wanted[1])


@pytest.mark.parametrize("positions", ["rotary", "relative", "alibi", "learned"])
def test_a_source_with_padding_inside_is_read_as_a_call_reads_it(positions):
    model = make(kzoo.Seq2SeqLM, positions=positions)
    ids = [5, 0, 0, 7, 8, 0, 6]
    found = [
        model.generate(row, max_new_tokens=6)[0]
        for row in ([ids], [[0, *ids, 0]], {"encoder_token_ids": [ids]}, [ids, [5]])
    ]
    assert found == [greedy(model, ids, found[0], 6)] * 4


@pytest.mark.usefixtures("eager")
def test_only_sequences_that_exist_are_returned():
    model = make(kzoo.Seq2SeqLM)
    options = dict(max_new_tokens=1, beams=30, num_return_sequences=30)
    found, scores = model.generate([[5, 6, 7]], return_scores=True, **options)
    assert len(found[0]) == VOCABULARY  # one token each
    assert np.isfinite(scores[0, :VOCABULARY]).all()
    assert (scores[0, VOCABULARY:] == -np.inf).all()


@pytest.mark.parametrize("length", [8, 9, 10])
def test_a_prompt_may_fill_the_learned_positions(length):
    model = made(kzoo.Seq2SeqLM, positions="learned", max_sequence_length=10)
    ids = [3 + i % 5 for i in range(length)]
    found = model.generate([ids], max_new_tokens=4)[0]
    assert found == greedy(model, ids, found, 4)


def test_generation_follows_new_weights():
    model = make(kzoo.CausalLM, tie_head=False)
    before = model.generate([[5, 6]], max_new_tokens=8)
    perturb(model.named_variables().values(), seed=3)
    after = model.generate([[5, 6]], max_new_tokens=8)
    assert after == [greedy(model, [5, 6], after[0], 8)] != before


def test_an_empty_prompt_starts_from_the_start_token():
    model = made(kzoo.CausalLM)
    start = model.config.start_token_id
    expected = model.generate([[start]], max_new_tokens=5)
    assert model.generate([[]], max_new_tokens=5) == expected
    assert model.generate([[], [4, 5, 6]], max_new_tokens=5)[:1] == expected


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("kind", "batch_size", "options"),
    [
        # Buckets of 2 rows and of 1; and one of 4, of which one is a copy.
        (kzoo.CausalLM, 2, dict(temperature=1.5, top_p=0.9, min_new_tokens=3)),
        (kzoo.Seq2SeqLM, 32, dict(beams=3, num_return_sequences=2)),
    ],
)
def test_what_xla_compiles_gives_the_same(kind, batch_size, options):
    model = made(kind)
    options = dict(max_new_tokens=5, length_penalty=0.5, return_scores=True, **options)
    with op_by_op():
        expected, scores = model.generate(PROMPTS, **options)
        likeliest = model.generate(PROMPTS, max_new_tokens=6)
    options |= dict(batch_size=batch_size, jit_compile=True)
    rows, found = model.generate(PROMPTS, **options)
    assert rows == expected
    np.testing.assert_allclose(found, scores, rtol=1e-5, atol=1e-5)
    steps = model.generate(PROMPTS, stream=True, jit_compile=True, max_new_tokens=6)
    rows = [sum(parts, []) for parts in zip(*steps, strict=True)]
    assert rows == likeliest


@pytest.mark.parametrize("kind", [kzoo.CausalLM, kzoo.Seq2SeqLM])
def test_a_loop_of_ones_own_gives_the_greedy_tokens(kind):
    model = made(kind)
    ids = np.array([p + [0] * (7 - len(p)) for p in PROMPTS], "int32")
    logits, layers, kept = model.prefill({model.prompt_input: ids})
    found = []
    for _ in range(5):
        tokens = keras.ops.cast(keras.ops.argmax(logits, axis=-1), "int32")
        found.append(to_numpy(tokens))
        logits, layers = model.resume(tokens, layers, kept)
    assert layers[0][0].shape[2] == 5 + (8 if kind is kzoo.CausalLM else 1)
    rows = np.stack(found, axis=1).tolist()
    ends = model.config.end_token_id, model.config.pad_token_id
    rows = [list(itertools.takewhile(lambda t: t not in ends, row)) for row in rows]
    assert rows == model.generate(PROMPTS, max_new_tokens=5)


def test_rows_that_fill_a_bucket_are_copies():
    model, forced = made(kzoo.CausalLM), np.arange(3, 9, dtype="int32")[:, None]
    with kzoo.ops.fixed_buffers():
        ids, mask, numbers, rows = model._search_batch(
            [[5], [6], [7]], [3, 4, 5], {"forced_token_ids": forced}
        )
    for x in (ids, mask, numbers, rows):
        assert len(x) == 4 and np.array_equal(x[2], x[3])


def test_the_functions_used_last_are_kept(monkeypatch):
    monkeypatch.setattr("kzoo.tasks.task._KEPT", 2)
    model = make(kzoo.CausalLM)
    first, second, third = (
        lambda key=key: model.compiled_function(key, lambda x: x, None)
        for key in range(3)
    )
    kept, dropped = first(), second()
    assert first() is kept
    third()
    assert first() is kept and second() is not dropped


def test_threads_that_ask_at_once_get_one_function(monkeypatch):
    class Slow(CompiledFunction):
        def __init__(self, *arguments):
            time.sleep(0.05)
            super().__init__(*arguments)

    monkeypatch.setattr("kzoo.tasks.task.CompiledFunction", Slow)
    model = make(kzoo.CausalLM)
    with ThreadPoolExecutor(4) as pool:
        made = [
            pool.submit(model.compiled_function, key, lambda x: x, None)
            for key in (1, 1, 1, 1)
        ]
    assert len({id(each.result()) for each in made}) == 1


@pytest.mark.usefixtures("eager")
def test_strings_in_strings_out():
    tokenizer = kzoo.FastTokenizer.train(["abcabc", "bca"], 30, algorithm="character")
    model = kzoo.Seq2SeqLM.from_size("tiny", tokenizer, num_layers=1)
    assert isinstance(model.generate("abc", max_new_tokens=3, beams=2), str)
    several = model.generate(["abc", "b", ""], max_new_tokens=3, beams=2)
    assert len(several) == 3 and all(isinstance(text, str) for text in several)
    best = model.generate(["abc"], max_new_tokens=3, beams=2, num_return_sequences=2)
    assert len(best[0]) == 2


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([], {}, "at least one prompt. Received: none"),
        (None, {}, "expects a string, a list of strings, or rows .* Received: None"),
        (5, {}, "such as .* Received: 5"),
        (b"text", {}, "a list of strings.* Received: b'text'"),
        (np.array("ab"), {}, r"a list of strings.* Received: array\('ab'"),
        ({"token_ids": np.array(5)}, {}, r"rows of integer ids .*: array\(5\)"),
        (
            {"token_ids": [[5, 6]], "padding_mask": np.array([[0.0, -1e9]])},
            {},
            "padding_mask must be .* Received: .*1000000000.* give mask == 0",
        ),
        ([5, 6], {}, "rows of integer ids .* Received: 5 as row 0"),
        ([[5], [[5], [5, 6]]], {}, "Received: .* as row 1"),
        ([[5], "text"], {}, "Received: 'text' as row 1"),
        ({"token_ids": None}, {}, "rows of integer ids .* Received: None"),
        ([[5]], {"progress": 3}, "progress must be a function of the number of rows"),
        ([[5]], {"jit_compile": "auto"}, "True or False"),
        ([[5]], {"stream": True, "progress": print}, "progress=None"),
        ([[5] * 8], {"max_length": 8}, "prompt, too, here 8 tokens: .* Received: 8"),
        ([[5]], {"max_new_tokens": 0}, "max_new_tokens must be"),
        ([[5]], {"max_new_tokens": 2**32 + 3}, "at least 1 and at most 2147483647"),
        ([[5]], {"max_length": 2**31}, "max_length must be .* at most 2147483647"),
        ([[5]], {"beams": 4097}, "beams must be .* at most 4096"),
        ([[5]], {"beams": 0}, "beams must be"),
        ([[5]], {"beams": 2, "num_return_sequences": 3}, "at most beams"),
        ([[VOCABULARY]], {}, "must be in"),
        ([[-1]], {}, "must be in"),
        ([[5, -1, 6]], {}, "must be in .* Received: -1"),
        ([[0.5]], {}, "integer ids"),
        (["text"], {}, "no tokenizer"),
        ({"ids": [[1]]}, {}, "reads token_ids.*the keys .'ids'"),
        ({"token_ids": [[1]], "mask": [[1]]}, {}, "the keys .'mask', 'token_ids'"),
        (
            [[5]],
            {"length_penalty": float("nan")},
            "length_penalty must be a finite number",
        ),
        ([[5]], {"length_penalty": "1"}, "length_penalty must be a finite number"),
        ([[5]], {"early_stopping": "never"}, "early_stopping must be True or False"),
    ],
)
def test_bad_input_is_named(prompts, options, message):
    model = made(kzoo.CausalLM)
    with pytest.raises(ValueError, match=message):
        model.generate(prompts, **options)


def test_prompts_may_come_one_by_one():
    tokenizer = kzoo.FastTokenizer.train(["abcabc", "bca"], 30, algorithm="character")
    model = kzoo.CausalLM.from_size("tiny", tokenizer, num_layers=1)
    texts = ["abc", "b"]
    expected = model.generate(texts, max_new_tokens=3)
    for given in (iter(texts), (text for text in texts), dict.fromkeys(texts).keys()):
        assert model.generate(given, max_new_tokens=3) == expected
    rows = model.encode_prompts(texts)
    expected = model.generate(rows, max_new_tokens=3)
    assert model.generate(iter(rows), max_new_tokens=3) == expected
    mask = [[True] * len(row) for row in rows]  # of different lengths
    for kind in (bool, int, float):
        kinds = [list(map(kind, row)) for row in mask]
        given = {"token_ids": rows, "padding_mask": kinds}
        assert model.generate(given, max_new_tokens=3) == expected


def test_more_tokens_than_learned_positions_are_refused():
    model = make(kzoo.CausalLM, positions="learned", max_sequence_length=8)
    with pytest.raises(ValueError, match="8 learned positions"):
        model.generate([[3, 4, 5]], max_new_tokens=6)
    with pytest.raises(ValueError, match="a prompt of 8 tokens, no. 1, and max_new_"):
        model.generate([[3], [3] * 8])


def test_a_long_prompt_leaves_its_neighbours_their_tokens():
    model = make(kzoo.CausalLM, positions="learned", max_sequence_length=12)
    prompts = [[5, 6], [5] * 9, [7], [4, 3] * 5]
    banned = {"banned_tokens": [model.config.end_token_id]}
    for defaults, expected in (
        (banned, [10, 3, 11, 2]),
        # All have what the longest leaves of so long a sequence.
        (banned | {"max_length": 9}, [1, 1, 1, 1]),
    ):
        model.search_defaults = defaults
        together = model.generate(prompts)
        assert [len(ids) for ids in together] == expected
        if defaults is banned:
            assert together == [model.generate([prompt])[0] for prompt in prompts]
        streamed = [[], [], [], []]
        for step in model.generate(prompts, stream=True):
            for row, ids in zip(streamed, step, strict=True):
                row += ids
        assert streamed == [ids[: min(expected)] for ids in together]


def test_a_file_s_inputs_do_not_know_the_prompt():
    model = made(kzoo.CausalLM)
    with pytest.raises(ValueError, match="give max_new_tokens. Received: max_length=7"):
        model.search_inputs("onnx", max_length=7)
    with pytest.raises(ValueError, match="'onnx' or 'tf_saved_model'.*'ONNX'"):
        model.search_inputs("ONNX")


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("options", [{}, {"beams": 2}, {"stream": True}])
def test_what_overflows_is_no_empty_result(options):
    model = make(kzoo.CausalLM)
    table = model.decoder.token_embedding.embeddings
    table.assign(np.full(table.shape, 3e38, "float32"))
    with pytest.raises(
        ValueError, match="NaN or infinite, though all weights are finite"
    ):
        list(model.generate([[5, 6]], max_new_tokens=3, **options))


WAYS = [
    dict(jit_compile=jit, **options)
    for options in ({}, {"beams": 2}, {"stream": True}, {"temperature": 1.0})
    for jit in (False, True)
    if not (jit and keras.backend.backend() == "torch")
]


@pytest.fixture(scope="module")
def with_bias():
    """One model of any bias of its head: what has been traced serves all numbers."""
    keras.utils.set_random_seed(0)
    model = make(kzoo.CausalLM, head_bias=True)

    def of(number):
        bias = np.zeros(model.head.bias.shape, "float32")
        bias[7] = number
        model.head.bias.assign(bias)
        return model

    return of


def found_by(model, **options):
    """A few tokens; a graph where nothing is asked for, or XLA's."""
    graph = not options or options.get("jit_compile")
    way = contextlib.nullcontext if graph else op_by_op
    with way():
        return list(model.generate([[5, 6]], max_new_tokens=4, **options))


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_one_number_that_is_lost_is_no_result(with_bias, options, number):
    with pytest.raises(ValueError, match="head/bias"):
        found_by(with_bias(number), **options)


@pytest.mark.parametrize("number", [2e38, -1e30, -np.inf])
def test_a_number_that_is_only_large_is_one(with_bias, number):
    model = with_bias(number)
    expected, _ = found_by(model, return_scores=True)
    assert all((7 in ids) == (number > 0) for ids in expected)
    for options in WAYS:
        if "temperature" not in options:
            found = found_by(model, **options)
            if "stream" in options:
                found = [[token for (step,) in found for token in step]]
            if "beams" not in options or number > 0:
                assert found == expected


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("return_scores", [False, True])
def test_what_is_forced_though_it_is_impossible_is_no_result(with_bias, return_scores):
    model = with_bias(-np.inf)
    with pytest.raises(ValueError, match="head/bias"):
        model.generate(
            [[5, 6]], max_new_tokens=3, forced_prefix=[7], return_scores=return_scores
        )


def test_no_beam_is_lost_without_a_word():
    model = make(kzoo.CausalLM, tie_head=False)
    table = model.decoder.token_embedding.embeddings
    values = keras.ops.convert_to_numpy(table)
    options = dict(max_new_tokens=5, beams=3, num_return_sequences=3)
    expected = model.generate([[5, 6]], **options)
    kept = 0
    for row in range(7, VOCABULARY):
        broken = values.copy()
        broken[row] = np.nan
        table.assign(broken)
        try:
            assert model.generate([[5, 6]], **options) == expected
            kept += 1
        except ValueError as error:
            assert "token_embedding/embeddings" in str(error)
    assert 0 < kept < VOCABULARY - 7


@pytest.mark.usefixtures("eager")
def test_ids_beyond_the_tokenizer_write_nothing():
    tokenizer = kzoo.FastTokenizer.train(["abcabc", "bca"], 30, algorithm="character")
    size = tokenizer.vocabulary_size
    model = kzoo.CausalLM.from_size(
        "tiny", tokenizer, vocabulary_size=size + 20, num_layers=1
    )
    own = tokenizer.encode_targets(["b"])[0]
    options = dict(forced_prefix=[size + 7, *own, size + 19], max_new_tokens=3)
    assert model.generate(["ab"], **options) == ["b"]
    assert "".join(model.generate("ab", stream=True, **options)) == "b"


@pytest.mark.parametrize("flag", ["stream", "return_scores", "jit_compile"])
def test_flags_are_no_words(flag):
    with pytest.raises(ValueError, match=f"{flag} must be True or False. Rec.*'no'"):
        make(kzoo.CausalLM).generate(PROMPTS, **{flag: "no"})


class OwnCall(kzoo.CausalLM):
    def call(self, inputs, training=None):
        return -super().call(inputs, training=training)


class OwnStep(OwnCall):
    def step(self, *args):
        logits, cache = super().step(*args)
        return -logits, cache


@pytest.mark.usefixtures("eager")
def test_a_call_of_ones_own_that_no_search_asks_is_a_warning(tmp_path):
    model = make(OwnCall)
    with pytest.warns(UserWarning, match="OwnCall.call is not asked by a search"):
        model.generate([[4]], max_new_tokens=2)
    with pytest.warns(UserWarning, match="OwnCall.call is not asked by a search"):
        model.export(tmp_path / "a.onnx", format="onnx", functions="prefill")
    model = make(OwnStep)  # which warns of nothing, and is right
    (found,) = model.generate([[4, 5]], max_new_tokens=4)
    assert found == greedy(model, [4, 5], found, 4)
    with pytest.warns(UserWarning, match="OwnStep.step is not in what onnxruntime-gen"):
        model.genai_function()
