"""Automata accept what Python's re accepts, and generation never leaves them."""

import itertools
import re
import time

import numpy as np
import pytest

import kzoo
from kzoo.generation import TokenAutomaton, streaming
from kzoo.generation.automaton import _regex
from kzoo.generation.streaming import TextStream
from kzoo.tokenizers import FastTokenizer, SentencePieceTokenizer
from kzoo.tokenizers.pretrained import load_pretrained_tokenizer
from tests.golden import folders as golden
from tests.harness import op_by_op, set_head_bias
from tests.words import causal, perturbed, seq2seq

CORPUS = [
    "a bike, the blue bike",
    "zwei Fahrräder",
    "日本語 and é",
    "10:45 or 7:30",
] * 9
KINDS = {
    "character": lambda: FastTokenizer.train(CORPUS, 60, algorithm="character"),
    "bpe": lambda: FastTokenizer.train(CORPUS, 330, algorithm="bpe"),
    "wordpiece": lambda: FastTokenizer.train(CORPUS, 90, algorithm="wordpiece"),
    "unigram": lambda: SentencePieceTokenizer.train(CORPUS, 64),
    "bytes": lambda: SentencePieceTokenizer.train(
        CORPUS, 330, algorithm="bpe", byte_fallback=True
    ),
}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request):
    return KINDS[request.param]()


def walk(automaton, ids, end):
    """Whether the table accepts ids and then the end token; or stops before."""
    states, state = len(automaton.transitions), 0
    for count, token in enumerate([*ids, end]):
        state = automaton.transitions[state, token]
        if state < 0:
            return None
        if state == states:
            return count
    raise AssertionError("the end token must end a sequence")


def test_a_token_writes_its_bytes(tokenizer):
    first, later = tokenizer.token_bytes()
    for text in ["the blue bike", "zwei Fahrräder", "日本語", "é 10:45", "a, b", "Öl"]:
        ids = tokenizer.encode([text])[0]
        if tokenizer.unknown_token_id in ids:
            continue
        parts = [first[ids[0]], *(later[i] for i in ids[1:])]
        assert b"".join(parts).decode() == tokenizer.decode([ids])[0]
    assert first[tokenizer.end_token_id] is later[tokenizer.pad_token_id] is None


def test_random_tokens_write_their_bytes(tokenizer):
    check_random_tokens(tokenizer)


@pytest.mark.parametrize("name", ["marian", "llama_spm", "gpt2", "bert"])
def test_random_tokens_of_pretrained_tokenizers_do_so_too(name, tmp_path):
    tokenizer = golden_tokenizer(name, tmp_path)
    # An unknown token's mark has other spaces at the start and the end of a text, and a
    # decoder that finds a broken character in a run of bytes marks all of the run.
    check_random_tokens(tokenizer, {tokenizer.unknown_token_id}, broken=False)


def golden_tokenizer(name, folder):
    return load_pretrained_tokenizer(folder, golden.unpack(name, folder)["kind"])


def check_random_tokens(tokenizer, but=(), broken=True):
    first, later = tokenizer.token_bytes()
    generator = np.random.default_rng(0)
    silent = {i for i, text in enumerate(later) if text is None} | {*but}
    for _ in range(200):
        ids = generator.integers(0, tokenizer.vocabulary_size, 6).tolist()
        ids = [i for i in ids if i not in silent]
        while ids and not first[ids[0]]:  # a space alone, which the start drops
            ids = ids[1:]
        if not ids:
            continue
        parts = [first[ids[0]], *(later[i] for i in ids[1:])]
        expected = b"".join(parts).decode(errors="replace")
        if not broken and "\ufffd" in expected:
            continue
        # Libraries differ in how many marks a broken character gets.
        got = tokenizer.decode([ids])[0]
        assert re.sub("\ufffd+", "?", got) == re.sub("\ufffd+", "?", expected)


PATTERNS = {
    r"[0-9]{1,2}:[0-9]{2}": ["10:45", "7:30", "7:3", "107:30", "", "7:30 "],
    r"(the|a) (blue )?bike": ["the bike", "a blue bike", "the blue", "bike", "a bikea"],
    r"[a-zäöü ]*": ["", "a bike", "zwei", "10", "ab cd"],
    r"é|日本語": ["é", "日本語", "日本", "日本語é"],
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_texts_are_accepted_that_match(tokenizer, pattern):
    end = tokenizer.end_token_id
    try:
        automaton = TokenAutomaton.for_tokenizer(tokenizer, pattern)
    except ValueError as error:
        assert "No tokens of this tokenizer" in str(error)
        matching = [t for t in PATTERNS[pattern] if re.fullmatch(pattern, t)]
        assert tokenizer.decode(tokenizer.encode(matching)) != matching
        return
    for text in PATTERNS[pattern]:
        ids = tokenizer.encode([text])[0]
        written = tokenizer.decode([ids])[0]
        if written != text:  # unknown characters, or spaces that are dropped
            continue
        assert (walk(automaton, ids, end) == len(ids)) == bool(
            re.fullmatch(pattern, text)
        )


@pytest.mark.parametrize("name, marked", [("marian", True), ("bert", False)])
def test_the_mark_of_an_unknown_token_is_no_part_of_a_match(name, marked, tmp_path):
    # Marian's is " ⁇ ", of which the spaces depend on where it stands.
    tokenizer = golden_tokenizer(name, tmp_path)
    unknown = tokenizer.unknown_token_id
    automaton = TokenAutomaton.for_tokenizer(tokenizer, r"[^x]{1,9}")
    assert (automaton.transitions[:, unknown] < 0).all() == marked
    stopped = TokenAutomaton.for_tokenizer(tokenizer, stop="ab")
    assert (stopped.transitions[:, unknown] >= 0).all()


def drawn_pattern(random, depth):
    """A regular expression over few characters, of one to four bytes each."""
    kind = random.random()
    if not depth or kind < 0.3:
        parts = ["a", "b", "é", "😀", "[ab]", "[^a]", ".", r"\w", "ab", "[^é]"]
        return parts[random.integers(len(parts))]
    inner = [drawn_pattern(random, depth - 1) for _ in range(2)]
    if kind < 0.55:
        return "".join(inner)
    if kind < 0.75:
        return f"({'|'.join(inner)})"
    ends = ["*", "+", "?", "{2}", "{1,3}", "{0,2}", "*?", "+?", "??", "{1,2}?"]
    return f"(?:{inner[0]}){ends[random.integers(len(ends))]}"


def test_the_automaton_of_a_pattern_accepts_what_python_matches():
    random = np.random.default_rng(0)
    drawn = [drawn_pattern(random, 4) for _ in range(40)]
    tails = [
        "(ab)+",
        "a|ab|abb",
        "a(bé)?",
        "ab|ab é",
        ".*",
        r"\w+",
        "[a-z]+?",
        "",
        "é*",
    ]
    tails += ["(?x) a b # those", "(?i)AB?", r"a\$?", "[$^]|a", "(?:a|ab)(?:b|)"]
    texts = [
        "".join(text) for n in range(5) for text in itertools.product("abé😀", repeat=n)
    ]
    texts += ["a$", "^", "$", "\0", "ÿ¿", "\ufffd", "A", "ab é", "a b", "\n", "aB"]
    longest = max(len(text.encode()) for text in texts)
    data = np.full((len(texts), longest), -1)
    for row, text in zip(data, map(str.encode, texts), strict=True):
        row[: len(text)] = list(text)
    for pattern in [*drawn, *tails]:
        moves, accepting = _regex(pattern)
        state = np.zeros(len(texts), int)
        for values in data.T:
            runs = (values >= 0) & (state >= 0)
            state = np.where(runs, moves[state, values], state)
        found = (state >= 0) & accepting[state]
        matches = re.compile(pattern).fullmatch
        expected = [matches(text) is not None for text in texts]
        differ = np.flatnonzero(found != expected)
        assert not len(differ), (pattern, [texts[i] for i in differ[:5]])


def test_an_anchor_is_refused_wherever_it_stands():
    for pattern in ("^a", "a$", "(a$|b)", r"(\Aa|b)", r"a\z", "[$]$"):
        with pytest.raises(ValueError, match="The whole text must match: leave out"):
            _regex(pattern)
    for pattern in ("a)(b", "a)|(b", "(", "[b-a]", r"a\b"):
        with pytest.raises(ValueError, match="is no regular expression that can be"):
            _regex(pattern)


def test_bytes_of_pieces_are_what_the_decoder_writes(tmp_path):
    # Some write no space at the start of a text, also of a space's own byte.
    for name in ("llama_spm", "llama_prepend", "llama_metaspace"):
        (tmp_path / name).mkdir()
        tokenizer = golden_tokenizer(name, tmp_path / name)
        pieces = ["<0x20>", "<0x41>", "a", "<0x0A>", "▁man"]
        ids = [tokenizer.token_id(piece) for piece in pieces]
        automaton = TokenAutomaton.for_tokenizer(tokenizer, " [a-z]+")
        random = np.random.default_rng(0)
        for _ in range(100):
            row = random.choice(ids, random.integers(1, 5)).tolist()
            (text,) = tokenizer.decode([row])
            matched = walk(automaton, row, tokenizer.end_token_id) == len(row)
            assert matched == bool(re.fullmatch(" [a-z]+", text)), text


@pytest.mark.parametrize("stop", [(), ("!!",)])
def test_a_space_that_the_end_drops_ends_no_text(tmp_path, stop):
    """Marian's texts are without white space at their ends, whatever was written."""
    tokenizer = golden_tokenizer("marian", tmp_path)
    mark, bang, space, end = map(tokenizer.token_id, ("?", "!", "▁", "</s>"))
    assert tokenizer.decode([[mark, space, mark, space]]) == ["? ?"]
    pattern = r"[?]( ?[?])*!* ?"
    automaton = TokenAutomaton.for_tokenizer(tokenizer, pattern, stop=stop)
    for ids in ([mark], [mark, space, mark], [space, mark, mark]):
        assert walk(automaton, ids, end) == len(ids)
    for ids in ([mark, space], [mark, space, mark, space], [mark, mark, space]):
        assert walk(automaton, ids, end) is None
    # Nor would a first one end: it writes nothing, and may not be written for ever.
    assert walk(automaton, [space, space, mark], end) is None
    assert walk(automaton, [mark, space, mark, bang, bang], end) == (4 if stop else 5)
    with pytest.raises(ValueError, match="No tokens of this tokenizer write"):
        TokenAutomaton.for_tokenizer(tokenizer, "[?] ", stop=stop)


def test_a_pattern_without_spaces_has_no_more_states_for_their_ends(tmp_path):
    tokenizer = golden_tokenizer("marian", tmp_path)
    automaton = TokenAutomaton.for_tokenizer(tokenizer, "[a-z]{200}", (), 65_001)
    assert len(automaton.transitions) == 202  # one behind a first space


def test_no_state_is_a_dead_end(tokenizer):
    table = TokenAutomaton.for_tokenizer(tokenizer, r"(the|a) (blue )?bike").transitions
    assert (table >= 0).any(axis=1).all()
    random = np.random.default_rng(1)
    for _ in range(20):
        state, ids = 0, []
        while state < len(table) and len(ids) < 60:
            ids.append(int(random.choice(np.flatnonzero(table[state] >= 0))))
            state = table[state, ids[-1]]
        text = tokenizer.decode([ids[:-1]])[0]
        assert re.fullmatch(r"(the|a) (blue )?bike", text)


def test_a_stop_string_ends_with_the_token_that_completes_it(tokenizer):
    stops = ["bike", "e b", "\n\n"]
    automaton = TokenAutomaton.for_tokenizer(tokenizer, stop=stops)
    end = tokenizer.end_token_id
    for text in ["the blue bike, a", "a bik", "no", "the b", "bibike", ""]:
        ids = tokenizer.encode([text])[0]
        decode = [tokenizer.decode([ids[: n + 1]])[0] for n in range(len(ids))]
        hits = [n for n, t in enumerate(decode) if any(stop in t for stop in stops)]
        assert walk(automaton, ids, end) == (hits[0] if hits else len(ids))


def test_stop_strings_that_overlap_end_where_the_first_is_whole():
    tokenizer, random = KINDS["character"](), np.random.default_rng(0)
    for _ in range(60):
        lengths = random.integers(1, 7, random.integers(1, 4))
        stops = ["".join(random.choice(["a", "b"], length)) for length in lengths]
        automaton = TokenAutomaton.for_tokenizer(tokenizer, stop=stops)
        text = "".join(random.choice(["a", "b"], 30))
        ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
        (ids,) = tokenizer.encode([text])
        end = tokenizer.end_token_id
        assert walk(automaton, ids, end) == min(ends, default=len(ids) + 1) - 1


def test_a_long_stop_string_takes_time_in_proportion():
    tokenizer, stop = KINDS["character"](), "ab" * 1000 + "b"
    begin = time.perf_counter()
    automaton = TokenAutomaton.for_tokenizer(tokenizer, stop=stop)
    automaton.check_length(500)
    assert time.perf_counter() - begin < 10  # all pairs of its parts take minutes
    (ids,) = tokenizer.encode(["ab" + stop + "a"])
    assert walk(automaton, ids, tokenizer.end_token_id) == len(ids) - 2


def test_a_pattern_may_stop_early():
    tokenizer = KINDS["character"]()
    automaton = TokenAutomaton.for_tokenizer(tokenizer, "[a-e ]+", stop="ee")
    end = tokenizer.end_token_id
    (ids,) = tokenizer.encode(["bee"])
    assert walk(automaton, ids, end) == 2
    assert walk(automaton, ids[:2], end) == 2
    (ids,) = tokenizer.encode(["bik"])
    assert walk(automaton, ids, end) is None


def test_a_table_is_checked():
    for table, message in (
        ([[0, 2]], r"in \[-1, 1\].*Received: 0 to 2"),
        (np.zeros((0, 3), int), "Received: none"),
        ([[0.5]], "must be integers"),
        ([0, 1], "must be integers \\(states, vocabulary\\)"),
    ):
        with pytest.raises(ValueError, match=message):
            TokenAutomaton(np.array(table))
    with pytest.raises(ValueError, match="The automaton is of 3 tokens, the model of"):
        causal().generate(["a"], constraint=TokenAutomaton(np.zeros((1, 3), int)))


def test_a_stop_token_that_ends_already_goes_on_to_end():
    table = TokenAutomaton([[-1, -1, -1, 1], [-1, -1, 2, 1]])
    after = table.ending_with([2], end=1).transitions
    np.testing.assert_array_equal(after, table.transitions)


def test_a_pattern_of_open_brackets_is_looked_at_in_no_time():
    begin = time.perf_counter()
    with pytest.raises(ValueError, match="is no regular expression"):
        _regex("[" + r"[[[[\]" * 40)
    assert time.perf_counter() - begin < 10


def test_a_short_pattern_of_endless_work_is_ended(monkeypatch):
    monkeypatch.setattr("kzoo.generation.automaton._PATIENCE", 1)
    with pytest.raises(ValueError, match="is too large: 1 seconds, or the memory"):
        TokenAutomaton.for_tokenizer(KINDS["character"](), "(a|b)*a(a|b){25}")


def test_a_builder_that_breaks_is_no_fault_of_the_pattern(tmp_path, monkeypatch):
    broken = tmp_path / "runner.py"
    broken.write_text("raise OSError('broken')")
    monkeypatch.setattr("kzoo.generation.automaton._RUNNER", broken)
    with pytest.raises(RuntimeError, match="(?s)ended with 1: .*OSError: broken"):
        TokenAutomaton.for_tokenizer(KINDS["character"](), "[0-9]")


def test_a_table_that_would_be_too_large_is_refused(monkeypatch):
    monkeypatch.setattr("kzoo.generation.automaton._LARGEST", 1000)
    with pytest.raises(ValueError, match=r"Simplify the pattern: \\d and \\w"):
        TokenAutomaton.for_tokenizer(KINDS["character"](), r"\d{4}")
    with pytest.raises(ValueError, match="shorten stop strings"):
        TokenAutomaton.for_tokenizer(KINDS["character"](), stop="abcd")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="1000000 states .* shorten stop strings"):
        TokenAutomaton.for_tokenizer(KINDS["character"](), stop="a" * 1_000_000)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "outlines_core", None)
    with pytest.raises(ImportError, match=r"kzoo\[constrain\]"):
        TokenAutomaton.for_tokenizer(KINDS["character"](), "a")


# In tasks.

PROMPTS = ["ab", "dcba", "a"]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("make", [causal, seq2seq])
def test_results_match_the_pattern(make):
    model = perturbed(make())
    for options in ({}, dict(beams=3), dict(temperature=2.0, seed=4)):
        texts = model.generate(
            PROMPTS, constraint="(ab|cd){1,3}d?", max_new_tokens=8, **options
        )
        assert all(re.fullmatch("(ab|cd){1,3}d?", text) for text in texts)
    # All that matches may come, also behind a part that does.
    for pattern, text in (
        ("(ab)+", "ababab"), ("a|ab|abcd", "abcd"), ("a(bc)?d*", "abcdd")
    ):  # fmt: skip
        options = dict(constraint=pattern, forced_prefix=text, max_new_tokens=8)
        found = model.generate("a", **options)
        assert found.startswith(text) and re.fullmatch(pattern, found)
    few = model.generate(
        PROMPTS,
        constraint="ab|cd",
        beams=4,
        num_return_sequences=4,
        max_new_tokens=4,
    )
    assert all(sorted(texts) == ["ab", "cd"] for texts in few)  # there are no more


@pytest.mark.usefixtures("eager")
def test_results_of_two_models_in_one_match_the_pattern(tmp_path):
    tokenizer = golden_tokenizer("marian", tmp_path)
    model = kzoo.Seq2SeqLM.from_size("tiny", tokenizer, num_layers=1, dropout=0.0)
    for pattern in ("[a-z]( [a-z]){3}", "[a-z]{8}"):
        options = dict(max_new_tokens=12, temperature=1.0, seed=1, constraint=pattern)
        (text,) = model.generate(["the blue bike"], **options)
        assert re.fullmatch(pattern, text)


@pytest.mark.usefixtures("eager")
def test_stop_tokens_end_what_matches_a_pattern():
    model = perturbed(causal(head_bias=True))
    set_head_bias(model, 1, 60.0)  # a special token
    for options in (dict(stop_tokens=[1]), dict(stop_tokens=[1], stop="zz")):
        given = dict(max_new_tokens=8, **options)
        assert model.generate("ab", constraint="[ab]*", **given) == ""
        text = model.generate("ab", constraint="[ab]{3}", **given)
        assert re.fullmatch("[ab]{3}", text)
    forced = model.generate("ab", constraint="[ab]{3}", max_new_tokens=8)
    assert re.fullmatch("[ab]{3}", forced)  # not a stop token: forbidden
    # One that writes text stands nowhere else; the usual end may be banned.
    end = model.config.end_token_id
    for prompt in PROMPTS:
        for options in (
            dict(stop_tokens=["a"]),
            dict(stop_tokens=["d"], banned_tokens=[end]),
            dict(stop_tokens=["c"], beams=3),
        ):
            options |= dict(constraint="b{1,2}a*|cd", max_new_tokens=9)
            assert re.fullmatch("b{1,2}a*|cd", model.generate(prompt, **options))
    with pytest.raises(ValueError, match="stop_tokens leave no text .* 1 of them"):
        model.generate("ab", constraint="aa", stop_tokens=["a"])


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("make", [causal, seq2seq])
def test_a_stop_string_and_a_banned_end(make):
    model = perturbed(make())
    size, decode = model.tokenizer.vocabulary_size, model.tokenizer.decode
    special = [i for i in range(size) if len(decode([[i]])[0]) != 1]
    assert model.config.end_token_id in special
    options = dict(banned_tokens=special, max_new_tokens=6)
    plain = model.generate("ab", **options)
    assert len(plain) == 6
    for never in ("#", "xyz"):  # none of the tokenizer's tokens write them
        assert model.generate("ab", stop=never, **options) == plain
    stopped = model.generate("ab", stop=plain[3:5], **options)
    assert stopped == plain[: plain.index(plain[3:5])]
    options["banned_tokens"].append("a")
    assert "a" not in model.generate("ab", stop="a", **options)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("make", [causal, seq2seq])
def test_results_end_before_a_stop_string(make):
    model = perturbed(make())
    options = dict(forced_prefix="bcda", max_new_tokens=12)
    assert model.generate(PROMPTS, stop="cd", **options) == ["b"] * 3
    assert model.generate("ab", stop=["da", "x"], **options) == "bc"
    options = dict(max_new_tokens=12, min_new_tokens=11, banned_tokens=[0, 1, 3])
    free = model.generate("ab", stop="never there", **options)
    assert free and free == model.generate("ab", **options)
    with pytest.raises(ValueError, match="the model has no tokenizer"):
        make(tokenizer=None).generate([[3]], stop="a")


def runner(format, path):
    """Inputs -> sequences, by the file's own runtime."""
    if format == "onnx":
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3
        session = onnxruntime.InferenceSession(path / "generate.onnx", settings)

        def run(feed):
            ids = feed["encoder_token_ids"].astype("int64")
            return session.run(["sequences"], {**feed, "encoder_token_ids": ids})[0]

        return run

    import tensorflow as tf

    generate = tf.saved_model.load(path).signatures["generate"]

    def run(feed):
        feed = {name: tf.constant(value) for name, value in feed.items()}
        return generate(**feed)["sequences"].numpy()

    return run


@pytest.fixture(scope="module")
def said():
    """A task, ids of prompts, and what it makes of them with three sets of options."""
    model = perturbed(seq2seq())
    ids, made = model.encode_prompts(PROMPTS), []
    for options in (
        dict(constraint="(ab|cd){1,3}d?", beams=3),
        dict(stop=["b"], temperature=1.5, seed=2, top_k=5),
        dict(forced_prefix=["a", "bb", "c"], stop_tokens=["d"])
        | dict(repetition_penalty=1.5, no_repeat_ngram_size=2, banned_tokens=[3]),
    ):
        options["max_new_tokens"] = 9
        with op_by_op():
            made.append((options, model.generate(ids, **options)))
    return model, ids, made


@pytest.mark.usefixtures("greedy")  # the test's own searches are the claim
@pytest.mark.parametrize(
    "format", ["onnx", pytest.param("tf_saved_model", marks=pytest.mark.tensorflow)]
)
def test_a_file_follows_what_the_task_says(format, said, tmp_path):
    model, ids, made = said
    model.export(tmp_path / "model", format=format, functions="generate")
    prompts = model._prompt_batch(ids)[0][: len(ids)]  # copies fill a batch
    run = runner(format, tmp_path / "model")
    for options, expected in made:
        given = model.search_inputs(format, **options)
        found = run({"encoder_token_ids": prompts, **given})
        ends = {model.config.end_token_id, *given.get("stop_token_ids", ())}
        got = [model._trimmed(row[0].tolist(), ends) for row in found]
        assert got == expected


# Streams.


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("make", [causal, seq2seq])
def test_a_stream_gives_what_generate_gives(make):
    model = perturbed(make())
    free, drawn = dict(forced_prefix="ab"), dict(temperature=3.0, banned_tokens=[0])
    for options in (free, drawn, dict(stop="dd", forced_prefix="bcdda")):
        options["max_new_tokens"] = 5
        pieces = list(model.generate("dab", stream=True, **options))
        assert "".join(pieces) == model.generate("dab", **options)
        assert pieces and all(pieces)
        steps = list(model.generate(PROMPTS, stream=True, **options))
        texts = ["".join(pieces) for pieces in zip(*steps, strict=True)]
        assert texts == model.generate(PROMPTS, **options) and any(texts)
        ids = model.encode_prompts(PROMPTS)
        steps = list(model.generate(ids, stream=True, **options))
        rows = [sum(parts, []) for parts in zip(*steps, strict=True)]
        assert rows == model.generate(ids, **options)


def test_pieces_end_with_whole_characters(tokenizer):
    texts = ["the blue bike", "zwei Fahrräder 日本語", "é", ""]
    for ids in tokenizer.encode(texts):
        stream = TextStream(lambda ids: tokenizer.decode([ids])[0])
        pieces = [stream.push([i], n == len(ids) - 1) for n, i in enumerate(ids)]
        assert "".join(pieces) == (tokenizer.decode([ids])[0] if ids else "")
        assert "\ufffd" not in "".join(pieces)


@pytest.mark.parametrize("seed", range(4))
def test_a_stream_of_any_tokens_is_their_text(tokenizer, seed, monkeypatch):
    monkeypatch.setattr(streaming, "_WINDOW", 3)  # many that begin anywhere
    random = np.random.default_rng(seed)
    words = "the blue bike, Fahrräder 日本語 and é   10:45 ".split(" ")
    text = " ".join(random.choice(words, 40))
    drawn = random.integers(0, tokenizer.vocabulary_size, 60).tolist()
    drawn = [i for i in drawn if i != tokenizer.end_token_id]  # a text ends there
    for ids in (tokenizer.encode([text])[0], drawn):
        whole = tokenizer.decode([ids])[0]
        stream = TextStream(lambda ids: tokenizer.decode([ids])[0])
        pieces = [stream.push([i], n == len(ids) - 1) for n, i in enumerate(ids)]
        assert "".join(pieces) == whole
        stops = [whole[i : i + 9] for i in (20, len(whole) // 2)]
        stream = TextStream(lambda ids: tokenizer.decode([ids])[0], stops)
        pieces = [stream.push([i], n == len(ids) - 1) for n, i in enumerate(ids)]
        assert "".join(pieces) == whole[: min(map(whole.find, stops))]


def test_a_stream_decodes_as_many_tokens_in_a_late_step_as_in_an_early_one(tokenizer):
    sizes, ids = [], tokenizer.encode([" ".join(CORPUS)])[0] * 3

    def decode(ids):
        sizes.append(len(ids))
        return tokenizer.decode([ids])[0]

    stream = TextStream(decode)
    for i in ids:
        stream.push([i])
    assert len(ids) > 200 and max(sizes) <= 80
    stream.push([], last=True)
    assert sizes[-1] == len(ids) and "".join(stream.pieces) == decode(ids)


def test_what_may_begin_a_stop_string_waits():
    stream = TextStream("".join, ["END", "D!"])
    assert [stream.push([c]) for c in "aENxEN"] == ["a", "", "", "ENx", "", ""]
    assert stream.push(["D"]) == "" and stream.push([], last=True) == ""
    stream = TextStream("".join, ["END"])
    assert stream.push(["xEN"]) == "x" and stream.push([], last=True) == "EN"


def test_a_character_that_the_limit_cuts_takes_none_back(tmp_path):
    tokenizer = golden_tokenizer("llama_spm", tmp_path)
    ids = tokenizer.encode(["a😀😀"])[0]

    def decode(ids):
        return tokenizer.decode([ids])[0]

    for size in (1, 2, 3):
        cut = ids[:-size]
        assert decode(cut).count("\ufffd") > 1  # the first one is lost, too
        stream = TextStream(decode)
        pieces = [stream.push([i]) for i in cut[:-1]]
        pieces.append(stream.push(cut[-1:], last=True))
        assert "".join(pieces) == "a😀" + "\ufffd" * (4 - size)


@pytest.mark.parametrize("name", ["llama_spm", "llama_prepend", "llama_metaspace"])
def test_bytes_that_are_no_character_take_none_back_either(name, tmp_path):
    tokenizer = golden_tokenizer(name, tmp_path)

    def decode(ids):
        return tokenizer.decode([ids])[0]

    pieces = "a <0x0A> <0xF0> ▁man ▁man <0xC3> <0xA9> <0xA9> a".split()
    ids = [tokenizer.token_id(piece) for piece in pieces]
    written = b"a\n\xf0 man man\xc3\xa9\xa9a"
    assert decode(ids) != written.decode(errors="replace")  # a line and é are lost
    # The last is so long that its start is not decoded again.
    for count in (9, 8, 180):
        now = (ids * 20)[:count]
        stream = TextStream(decode)
        found = [stream.push([i]) for i in now[:-1]]
        found.append(stream.push(now[-1:], last=True))
        expected = written * 20 if count == 180 else written[: len(written) - 9 + count]
        assert "".join(found) == expected.decode(errors="replace")


def test_a_decoder_that_takes_text_back_cannot_stream():
    words = ["do", " n", "'t", " go"]
    stream = TextStream(
        lambda ids: "".join(words[i] for i in ids).replace(" n't", "n't")
    )
    assert [stream.push([0]), stream.push([1])] == ["do", " n"]
    with pytest.raises(ValueError, match="Such a tokenizer cannot stream"):
        stream.push([2, 3], last=True)


def test_a_stream_is_lazy():
    model = perturbed(causal(positions="rotary"))
    pieces = model.generate("a", stream=True, max_new_tokens=100_000)
    assert next(pieces)


def random_table(seed, states=5, size=3):
    """Sparse enough that the states behind free places go in circles, or end."""
    random = np.random.default_rng(seed)
    table = random.integers(0, states + 1, (states, size))
    return np.where(random.random(table.shape) < 0.4, table, -1)


@pytest.mark.parametrize("seed", range(8))
def test_forced_prefixes_are_refused_as_one_that_tries_all(seed):
    """What is forced behind free places, too; what is free behind it does not count."""
    automaton = TokenAutomaton(random_table(seed))
    size, random = automaton.transitions.shape[1], np.random.default_rng(seed)

    def allowed(row):
        """Whether a sequence goes on at each place until all that do have ended."""
        states = [0]  # of every sequence that still runs
        for place, token in enumerate(row):
            if not states or (row[place:] < 0).all():
                break
            tokens = range(size) if token < 0 else [token]
            states = [automaton.transitions[s, t] for s in states for t in tokens]
            if max(states) < 0:
                return False
            states = [s for s in states if 0 <= s < len(automaton.transitions)]
        return True

    for _ in range(40):
        row = random.integers(-1, size, 6) * (random.random(6) < 0.5)
        row = np.where(random.random(6) < 0.6, -1, row)
        try:
            automaton.check_prefixes([row])
            found = True
        except ValueError:
            found = False
        assert found == allowed(row), row


def test_free_places_of_a_large_table_are_looked_at_once():
    random = np.random.default_rng(0)
    automaton = TokenAutomaton(random.integers(-1, 61, (60, 20_000)))
    rows = np.full((20, 128), -1)
    rows[:, 100] = 5
    started = time.process_time()
    automaton.check_prefixes(rows)
    automaton.check_prefixes(np.full((20, 128), -1))
    assert time.process_time() - started < 1.0
