"""Processors against plain Python, on tensors and in onnxruntime; greedy and beams."""

import math

import keras
import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import kzoo
from kzoo import ops
from kzoo.exporters import ExportError, verify
from kzoo.ops.onnx_value import is_building
from tests import reference
from tests.chains import END, InOnnx, chain, reference_step, run
from tests.harness import op_by_op, small_task
from tests.strategies import few
from tests.words import TOKENIZER, causal, perturbed, seq2seq

SIZE, LIMIT = 8, 7
STARTS, PROMPT = [0, 5, 11, 17], [2, 3, 2, 4]
TABLE = chain(SIZE, seed=3)


def processed(scores, history, options):
    """float64 (V,): what the chain makes of one row's scores, in plain Python."""
    scores, made = scores.copy(), len(history) - 1
    penalty = options.get("repetition_penalty", 1.0)
    for token in set(history):
        scores[token] *= penalty if scores[token] < 0 else 1 / penalty
    size = options.get("no_repeat_ngram_size", 0)
    if size:
        last = tuple(history[len(history) - size + 1 :])
        for i in range(len(history) - size + 1):
            if tuple(history[i : i + size - 1]) == last:
                scores[history[i + size - 1]] = -np.inf
    ends = [END, *options.get("stop_token_ids", [])]
    if made < options.get("min_new_tokens", 0):
        scores[ends] = -np.inf
    scores[list(options.get("banned_token_ids", []))] = -np.inf
    if "automaton" in options:
        table = options["automaton"]
        state = followed(table, history[1:])
        targets = [-1] * SIZE if state < 0 else table[state]
        for token, target in enumerate(targets):
            early = target == len(table) and made < options.get("min_new_tokens", 0)
            if target < 0 or early:
                scores[token] = -np.inf
    forced = options.get("forced_token_ids", [[]])[0]
    if made < len(forced) and forced[made] >= 0:
        scores[:] = -np.inf
        scores[forced[made]] = 0.0  # certain
    if options.get("renormalize") and np.isfinite(scores).any():
        scores -= np.logaddexp.reduce(scores)
    return scores


def ends_with(token, history, options):
    if token in (END, *options.get("stop_token_ids", [])):
        return True
    if "automaton" not in options:
        return False
    table = options["automaton"]
    return followed(table, (*history[1:], token)) == len(table)


def followed(table, tokens):
    """The state after tokens; -1 after one that was forced though it is forbidden."""
    state = 0
    for token in tokens:
        state = table[state][token] if state >= 0 else -1
    return state


def greedy(start, first, options):
    """Tokens and the model's mean log p of them."""
    step, history, total = reference_step(TABLE, start), [first], 0.0
    while len(history) <= LIMIT:
        log_p = step(tuple(history))
        state = start
        for token in history:
            state = (7 * state + token + 1) % len(TABLE)
        logits = TABLE[state].astype("float64")
        scores = processed(logits, history, options)
        token = int(np.argmax(scores)) if np.isfinite(scores).any() else END
        total += log_p[token]
        ends = ends_with(token, history, options)
        history.append(token)
        if ends:
            break
    return tuple(history[1:]), total / (len(history) - 1)


@st.composite
def options(draw):
    """Options of all processors, each on or off."""
    token = st.integers(2, SIZE - 1)
    parts = {
        "repetition_penalty": st.sampled_from([0.7, 1.2, 2.0]),
        "no_repeat_ngram_size": st.integers(1, 3),
        "min_new_tokens": st.integers(1, 5),
        "renormalize": st.just(True),
        "banned_token_ids": st.lists(token, min_size=1, max_size=2, unique=True),
        "stop_token_ids": st.lists(token, min_size=1, max_size=2, unique=True),
        "forced_token_ids": st.lists(
            st.integers(-1, SIZE - 1), min_size=1, max_size=3
        ).map(lambda row: [row]),
        "automaton": st.integers(0, 99).map(
            lambda seed: np.random.default_rng(seed).integers(-1, 4, (3, SIZE)).tolist()
        ),
    }
    return {k: draw(v) for k, v in parts.items() if draw(st.booleans())}


def rows_of(found):
    sequences, scores = found
    return sequences[:, 0].tolist(), scores[:, 0]


def check_greedy(found, options):
    sequences, scores = rows_of(found)
    for row, (start, first) in enumerate(zip(STARTS, PROMPT, strict=True)):
        tokens, score = greedy(start, first, options)
        assert tuple(sequences[row][: len(tokens)]) == tokens
        assert not any(sequences[row][len(tokens) :])  # padding
        assert scores[row] == pytest.approx(score, abs=1e-4)


@settings(deadline=None, max_examples=few(40))
@given(options(), st.booleans())
def test_greedy_search_follows_every_processor(options, fixed):
    with ops.fixed_buffers(fixed or keras.backend.backend() == "jax"):
        found = run(TABLE, STARTS, PROMPT, max_new_tokens=LIMIT, beams=1, **options)
    check_greedy(found, options)


@pytest.fixture(scope="module")
def in_onnx(tmp_path_factory):
    return InOnnx(TABLE, tmp_path_factory.mktemp("chain") / "chain.onnx")


@settings(deadline=None, max_examples=60)
@given(options=options())
def test_one_graph_follows_every_processor(in_onnx, options):
    found = in_onnx(STARTS, PROMPT, max_new_tokens=LIMIT, beams=1, **options)
    check_greedy(found, options)


@settings(deadline=None, max_examples=few(40))
@given(options=options(), beams=st.integers(2, 4))
def test_beam_search_follows_every_processor(in_onnx, options, beams):
    given = dict(max_new_tokens=LIMIT, beams=beams, num_return_sequences=beams)
    found = in_onnx(STARTS, PROMPT, **given, **options)
    with ops.fixed_buffers(keras.backend.backend() == "jax"):
        same = run(TABLE, STARTS, PROMPT, **given, **options)
    np.testing.assert_allclose(found[1], same[1], rtol=1e-4)
    for row, (start, first) in enumerate(zip(STARTS, PROMPT, strict=True)):
        step = reference_step(TABLE, start)

        def scores(tokens, step=step):
            log_p = step(tokens)
            return processed(log_p, list(tokens), options)

        # Other ends than END are told apart by the reference as tokens of their own.
        best = beam_search(scores, first, beams, options)
        for number, (tokens, score) in enumerate(best):
            length = len(tokens)
            for sequences, values in (found, same):
                assert tuple(sequences[row, number, :length].tolist()) == tokens
                assert values[row, number] == pytest.approx(score, abs=1e-4)
        assert (found[1][row, len(best) :] < -1e29).all()


def without_ties(scores):
    """Other options are drawn where two are equal: either may come first."""
    if (np.diff(np.sort(scores)) < 1e-5).any():
        reject()


def beam_search(scores, first, beams, options):
    """[(tokens, score)], best first: as `reference.beam_search`, with any ends."""
    alive, finished = [((), 0.0)], []
    for length in range(1, LIMIT + 1):
        candidates = sorted(
            (-(total + value), beam, token)
            for beam, (tokens, total) in enumerate(alive)
            for token, value in enumerate(scores((first, *tokens)))
            if value > -np.inf
        )
        without_ties([negative for negative, *_ in candidates])
        survivors = []
        for rank, (negative, beam, token) in enumerate(candidates):
            tokens = (*alive[beam][0], token)
            if not ends_with(token, (first, *alive[beam][0]), options):
                survivors.append((tokens, -negative))
            elif rank < beams:
                finished.append((tokens, -negative / length))
                finished.sort(key=lambda pair: -pair[1])
                without_ties([score for _, score in finished])
                finished = finished[:beams]
        alive = survivors[:beams]  # of all, however many end
        if not alive or (len(finished) == beams and length < LIMIT):
            break
    else:
        finished += [(tokens, total / LIMIT) for tokens, total in alive]
    without_ties([score for _, score in finished])
    return sorted(finished, key=lambda pair: -pair[1])[:beams]


def test_the_reference_is_that_of_plain_beam_search():
    step = reference_step(TABLE, 5)
    expected = reference.beam_search(
        step, (3,), END, LIMIT, 3, alpha=1.0, early_stopping=True
    )
    found = beam_search(lambda tokens: step(tokens), 3, 3, {})
    assert found == [(h.tokens, pytest.approx(h.score)) for h in expected]


# In a task.


@pytest.fixture(scope="module", params=[causal, seq2seq])
def model(request):
    return perturbed(request.param())


PROMPTS = ["ab", "", "dcba", "a"]


def ids_of(model, **options):
    prompts = model.encode_prompts(PROMPTS)
    return model.generate(prompts, **{"max_new_tokens": 8, **options})


@pytest.mark.usefixtures("eager")
def test_prompts_count_as_repeated_in_decoders_alone():
    model = perturbed(causal())
    pad = model.config.pad_token_id
    given = dict(min_new_tokens=3, banned_tokens=[pad])
    prompts = model.encode_prompts(["ab", "", "a"])
    ids = model.generate(prompts, no_repeat_ngram_size=1, max_new_tokens=8, **given)
    for prompt, row in zip(prompts, ids, strict=True):
        assert not set(row) & set(prompt) and len(set(row)) == len(row) >= 3


@pytest.mark.usefixtures("eager")
def test_a_result_does_not_depend_on_the_batch(model):
    given = dict(repetition_penalty=1.4, no_repeat_ngram_size=2, min_new_tokens=2)
    together = ids_of(model, **given)
    prompts = model.encode_prompts(PROMPTS)
    alone = [model.generate([p], max_new_tokens=8, **given)[0] for p in prompts]
    assert together == alone


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "options", [{}, dict(beams=3, num_return_sequences=3), dict(temperature=2.0)]
)
def test_a_minimum_of_the_limit_gives_so_many_tokens(model, options):
    """As a ban of all that ends a result."""
    pad, stops = model.config.pad_token_id, [*range(1, 6)]
    given = dict(stop_tokens=stops, banned_tokens=[pad], return_scores=True, **options)
    found, scores = ids_of(model, min_new_tokens=8, **given)
    given["banned_tokens"] = [pad, *stops, TOKENIZER.end_token_id]
    expected, right = ids_of(model, **given)
    assert found == expected
    np.testing.assert_allclose(scores, right, rtol=1e-6)
    rows = sum(found, []) if "beams" in options else found
    assert {len(row) for row in rows} == {8}


@pytest.mark.usefixtures("eager")
def test_banned_tokens_never_come(model):
    banned = ["a", "c", 3]
    for options in ({}, dict(beams=3), dict(temperature=2.0)):
        ids = ids_of(model, banned_tokens=banned, min_new_tokens=4, **options)
        assert not {i for row in ids for i in row} & {*TOKENIZER.encode(["ac"])[0], 3}


@pytest.mark.usefixtures("eager")
def test_a_forced_prefix_begins_every_result(model):
    for options in ({}, dict(beams=3), dict(temperature=2.0)):
        given = dict(max_new_tokens=4, **options)
        texts = model.generate(PROMPTS, forced_prefix="cd", **given)
        assert all(text.startswith("cd") for text in texts)
        own = ["a", "bb", "c", "ddd"]
        texts = model.generate(PROMPTS, forced_prefix=own, batch_size=2, **given)
        assert all(map(str.startswith, texts, own))
        ids = ids_of(model, forced_tokens={1: 5}, min_new_tokens=2, **given)
        assert {row[1] for row in ids} == {5}
    for both in ({-1: 5, 1: 6}, {1: 6, -1: 5}):  # in either order
        ids = ids_of(model, forced_tokens=both, max_new_tokens=2)
        assert {row[1] for row in ids} == {5}


@pytest.mark.usefixtures("eager")
def test_stop_tokens_end_a_result_and_are_no_part_of_it(model):
    stop = TOKENIZER.encode(["a"])[0]
    ids = ids_of(model, stop_tokens=stop, forced_tokens={2: stop[0]})
    assert all(len(row) <= 2 and stop[0] not in row for row in ids)


B, C = TOKENIZER.encode(["bc"])[0]


def alternate(scores, context):
    """Only b at even steps, only c at odd ones."""
    wanted = ops.where(ops.equal(context.made % 2, 0), B, C)
    place = ops.expand_dims(ops.arange(ops.dim(scores, 1)), 0)
    return ops.where(ops.equal(place, wanted), scores, kzoo.generation.BANNED)


@pytest.mark.usefixtures("eager")
def test_a_user_adds_a_processor(model):
    for options in ({}, dict(beams=2), dict(temperature=1.0)):
        ids = ids_of(model, processors=[alternate], **options)
        assert ids == [[B, C] * 4] * len(PROMPTS)


@pytest.mark.parametrize(
    "format", ["onnx", pytest.param("tf_saved_model", marks=pytest.mark.tensorflow)]
)
def test_files_hold_the_processors_of_a_task(format, tmp_path, request):
    model = perturbed(seq2seq())
    with op_by_op():
        free = ids_of(model)
        model.processors = alternate
        assert ids_of(model) == [[B, C] * 4] * len(PROMPTS) != free
        # Of the banned.
        both = ids_of(model, processors=lambda scores, context: -scores)
    assert all(token not in row for row in both for token in (B, C))
    # What it verifies is that the file does the same.
    scored = dict(evaluate=(PROMPTS, PROMPTS)) if format == "onnx" else {}
    report = model.export(
        tmp_path / "model", format=format, functions="generate", **scored
    )
    if scored:
        assert report.metric["artifact"] == report.metric["model"]
    del model.processors
    with op_by_op():
        assert ids_of(model) == free
    request.getfixturevalue("greedy")  # one search that differs is enough
    with pytest.raises(ExportError, match="differ"):
        verify(tmp_path / "model", model)


def test_a_processor_that_no_file_can_hold_is_named(tmp_path):
    model = seq2seq()
    for wrong in (
        lambda scores, context: keras.ops.softmax(scores) if is_building() else scores,
        lambda scores, context: ops.concatenate([scores, scores], axis=1),
        lambda scores, context: ops.sum(scores),
        lambda scores, context: ops.argmax(scores),
        lambda scores, context: ops.cast(scores, "int32"),
        lambda scores: scores,
    ):
        model.processors = (wrong,)
        with pytest.raises(ValueError, match="The processor <function .* failed: "):
            model.export(tmp_path / "model", format="onnx", functions="generate")
        assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("eager")
def test_where_nothing_is_allowed_a_result_ends(model):
    every = list(range(TOKENIZER.vocabulary_size))
    for options in ({}, dict(temperature=1.0)):
        assert ids_of(model, banned_tokens=every, **options) == [[]] * len(PROMPTS)
    ids, scores = ids_of(model, banned_tokens=every, beams=2, return_scores=True)
    assert ids == [[]] * len(PROMPTS) and (scores == -np.inf).all()


@pytest.mark.usefixtures("eager")
def test_bans_hold_at_any_temperature():
    allowed = {5, 6}
    banned = [i for i in range(TOKENIZER.vocabulary_size) if i not in allowed]
    for temperature in (1e-30, 1.0, 1e30):
        ids = ids_of(causal(), banned_tokens=banned, temperature=temperature)
        assert {i for row in ids for i in row} <= allowed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            dict(top_p=0.0),
            "top_p must be a finite number, at least 1e-06 and at most 1.0. Rec",
        ),
        (dict(min_p=-0.1), "min_p must be"),
        (dict(top_k=-1), "top_k must be an integer, at least 0"),
        (dict(top_k=5), "top_k tell what tokens are drawn from: set temperature"),
        (dict(repetition_penalty=0.0), "repetition_penalty must be .* at least 1e-06"),
        (dict(no_repeat_ngram_size=1.5), "no_repeat_ngram_size must be an integer"),
        (dict(min_new_tokens=5), "min_new_tokens must be at most max_new_tokens"),
        (dict(banned_tokens=[99]), r"banned_tokens must be token ids in \[0, "),
        (dict(banned_tokens=["ab"]), "one token. Received: 'ab', which is 2 tokens"),
        (dict(stop_tokens=[-1]), "stop_tokens must be token ids"),
        (dict(forced_prefix="aaaaa"), "max_new_tokens=4 is less than the 5 tokens"),
        (dict(forced_prefix=["a", "b"]), "one for each of 1 prompts. Received: 2"),
        (dict(forced_prefix="a", forced_tokens={0: 5}), "Received: both"),
        (dict(forced_tokens={-2: 5}), "places, 0 the first"),
        (dict(forced_prefix="a", banned_tokens="a"), "forced and banned"),
        (dict(stop=""), "stop must be strings that are not empty"),
        (dict(stop=[3]), "stop must be strings"),
        (dict(stop=chr(0xD800)), "that UTF-8 can write. Received"),
        (dict(stop=5), "stop must be a string or several. Received: 5"),
        (dict(stop_tokens=5.0), "stop_tokens must be ids, or strings of one token. R"),
        (dict(banned_tokens={"a": 1}), "banned_tokens must be ids, or strings of one"),
        (dict(forced_prefix=5.5), "forced_prefix must be a string, ids, or one of the"),
        (dict(forced_prefix=[None]), "forced_prefix must be ids, or strings"),
        (dict(forced_tokens=[5]), "forced_tokens must be a dict from places"),
        (dict(forced_tokens={10**12: 5}), "max_new_tokens=4 is less than the 100000"),
        (dict(processors=["no"]), "processors must be functions"),
        (dict(constraint=3), "constraint must be a regular expression"),
        (dict(constraint="(a"), "no regular expression that can be followed"),
        (dict(constraint="xyz"), "No tokens of this tokenizer write"),
        (dict(constraint="ab", forced_prefix="b"), "forbids the forced tokens"),
        (dict(forced_prefix="ab", stop_tokens="a"), "nothing can be forced behind it"),
        (
            dict(forced_prefix=[5, TOKENIZER.end_token_id, 6]),
            "nothing can be forced behind it. Received",
        ),
        (dict(constraint="ab|ca", banned_tokens="a"), "banned_tokens leave no text"),
        (dict(constraint="ab", min_new_tokens=3), "min_new_tokens=3 is more than"),
        (dict(constraint="^ab"), "leave out . and"),
        (dict(forced_tokens={"0": 5}), "places, 0 the first"),
        (dict(length_penalty=-60), "length_penalty must be"),
        (dict(temperature=1e39), r"temperature must be .* at most 1e\+30"),
        (dict(repetition_penalty=float("inf")), "repetition_penalty must be a finite"),
        (dict(temperature=float("nan")), "temperature must be a finite number"),
        (dict(temperature=True), "temperature must be a finite number"),
        (dict(stream=True, beams=2), "stream gives tokens as they are chosen"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        causal().generate(["ab"], max_new_tokens=4, **options)


def test_an_unknown_option_is_named():
    with pytest.raises(TypeError, match="no option 'temprature'. Its options are"):
        causal().generate(["ab"], temprature=1.0)


@pytest.mark.usefixtures("eager")  # else TensorFlow says it, when it runs
def test_a_processor_of_other_rows_is_named():
    with pytest.raises(ValueError, match=r"failed: its result has the shape \(1, 8\)"):
        causal().generate(["ab", "b"], processors=lambda s, context: s[:1])


@pytest.mark.usefixtures("eager")
def test_numbers_of_numpy_and_ints_for_a_bool_are_options_too():
    model = causal()
    expected = model.generate(["ab"], max_new_tokens=4, beams=3, early_stopping=True)
    options = dict(beams=np.int64(3), early_stopping=1, max_new_tokens=np.int32(4))
    assert model.generate(["ab"], **options) == expected


@pytest.mark.usefixtures("eager")
def test_off_may_be_said_in_words():
    model = causal()
    off = dict(stop=None, stop_tokens=None, banned_tokens=None, processors=None)
    expected = model.generate(["ab"], max_new_tokens=4)
    assert model.generate(["ab"], max_new_tokens=4, **off) == expected
    one = model.generate(["ab"], max_new_tokens=4, processors=lambda s, context: s)
    assert one == expected


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("beams", [1, 2])
def test_a_constraint_stands_behind_forced_tokens_that_write_no_text(beams):
    model = perturbed(seq2seq())
    special, end = TOKENIZER.start_token_id, TOKENIZER.end_token_id
    options = dict(constraint="a(b|c)d", beams=beams, max_new_tokens=8)
    expected = {"abd", "acd"}
    forced = {0: special, 1: special, -1: end}
    for asked in (dict(forced_tokens=forced), dict(forced_prefix=[special, special])):
        assert {*model.generate(["abc", "cab"], **options, **asked)} <= expected
    # Where the limit cuts a result, what is forced there does not match.
    cut = dict(options, constraint="[abc]{20}", forced_tokens={-1: end})
    assert all(len(text) == 7 for text in model.generate(["abc", "cab"], **cut))
    model.search_defaults = {"forced_tokens": {0: special}}
    assert {*model.generate(["abc"], **options, min_new_tokens=4)} <= expected
    with pytest.raises(ValueError, match="min_new_tokens=5 is more than the constr"):
        model.generate(["abc"], **options, min_new_tokens=5)


@pytest.mark.usefixtures("eager")
def test_what_a_constraint_allows_without_banned_tokens_is_found():
    model = perturbed(causal())
    for options in ({}, dict(beams=2)):
        given = dict(constraint="ab|cb|cd", banned_tokens="b", **options)
        assert model.generate(["ab", "d"], max_new_tokens=6, **given) == ["cd", "cd"]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "options", [{}, dict(beams=3), dict(temperature=1.0), dict(stream=True)]
)
def test_weights_that_are_not_numbers_are_named(model, options):
    name, variable = next(iter(model.named_variables().items()))
    before = keras.ops.convert_to_numpy(variable)
    variable.assign(before * np.nan)
    try:
        with pytest.raises(ValueError, match=f"{name} holds NaN or infinity"):
            list(model.generate(["ab", "c"], max_new_tokens=4, **options))
    finally:
        variable.assign(before)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("options", [{}, dict(beams=2), dict(temperature=1.0)])
@pytest.mark.parametrize("from_step", [0, 2])
def test_a_processor_that_gives_nan_is_named(model, options, from_step):
    def lost(scores, context):
        return ops.where(context.made < from_step, scores, math.nan)

    options = {**options, "max_new_tokens": 4, "min_new_tokens": 3}
    with pytest.raises(ValueError, match="what processors made of them"):
        model.generate(["ab", "c"], processors=[lost], **options)
    if "beams" not in options:
        with pytest.raises(ValueError, match="what processors made of them"):
            list(model.generate(["ab"], processors=[lost], stream=True, **options))


@pytest.mark.parametrize("stops", [0, [0], np.array([0]), np.int64(0), (0,)])
def test_stop_tokens_of_a_model_are_kept_beside_those_given(stops):
    made = kzoo.SearchOptions.over({"stop_tokens": [7]}, {"stop_tokens": stops})
    assert list(made.stop_tokens) == [7, 0]
    alone = kzoo.SearchOptions.over({"stop_tokens": 7}, {"stop_tokens": stops})
    assert list(alone.stop_tokens) == [7, 0]


@pytest.mark.usefixtures("eager")
def test_what_is_forced_fits_beside_each_prompt():
    task = small_task(kzoo.CausalLM, positions="learned", max_sequence_length=16)
    prompts, forced = [[5] * 3, [5] * 14], [9, 10, 11, 12, 13, 14]
    with pytest.raises(ValueError, match="max_new_tokens=2 is less than the 6 tokens"):
        task.generate(prompts, forced_prefix=forced)
    (first, second) = task.generate(prompts, forced_prefix=[forced, forced[:2]])
    assert first[:6] == forced and second == forced[:2]


def test_a_mask_of_another_shape_is_named():
    model = causal()
    for mask in ([[1, 1, 1]], [1, 1], [[[1, 1]]]):
        inputs = {"token_ids": [[4, 5]], "padding_mask": mask}
        with pytest.raises(ValueError, match="padding_mask must have the shape of tok"):
            model.generate(inputs)
    with pytest.raises(ValueError, match="A file holds those processors that the ta"):
        model.search_inputs(processors=[lambda scores, context: scores])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda s, c: ops.slice_axis(s, 0, 1, axis=0),
            "the shape|another number of rows",
        ),
        (lambda s, c: ops.cast(s, "float16"), "is .*float16"),
        (lambda s, c: np.asarray(s)[:, :-1], "The processor .* failed"),
    ],
)
def test_scores_of_another_kind_are_refused_in_every_search(wrong, message, request):
    if "float16" in message:  # graphs know no number of rows, and no array
        request.getfixturevalue("eager")
    errors = ValueError
    if keras.backend.backend() == "tensorflow":  # where a batch has any size
        import tensorflow as tf

        errors = (ValueError, tf.errors.InvalidArgumentError)
    for options in ({}, dict(beams=2), dict(temperature=1.0)):
        with pytest.raises(errors, match=message):
            causal().generate(
                [[4, 5], [5], [6]], max_new_tokens=2, processors=[wrong], **options
            )


def test_a_list_of_processors_is_that_of_the_files():
    model = causal()
    model.processors = [lambda scores, context: scores]
    assert model.search_inputs("onnx", max_new_tokens=3)
