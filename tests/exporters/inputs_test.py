"""`verify` on the user's own inputs: what only they show, and what cannot be read."""

import json
import sys
from concurrent.futures import Future

import keras
import numpy as np
import pytest

import kzoo
from kzoo.exporters import (
    ExportError,
    checks,
    inputs,
    verify,
)
from kzoo.exporters.report import OWN, ExportReport, joined
from tests.harness import perturb

SMALL = dict(num_layers=1, hidden_dim=16, intermediate_dim=32, num_heads=4)
pytestmark = pytest.mark.usefixtures("remembered")
# So many that most rows of the embedding are in no case of an export.
CHARACTERS = [chr(0x4E00 + i) for i in range(900)]


@pytest.fixture(scope="module")
def tokenizer():
    return kzoo.FastTokenizer.train(["".join(CHARACTERS)], 1000, algorithm="character")


def make(kind, tokenizer=None, **changes):
    changes = dict(SMALL, tie_head=False) | changes
    if tokenizer is None:
        changes.setdefault("vocabulary_size", 29)
    model = kind.from_size("tiny", tokenizer, **changes)
    perturb(model.named_variables().values())
    return model


def rare_character(model, tokenizer):
    """One whose id no case of an export reads."""
    used = {tokenizer.unknown_token_id}
    functions = model.export_functions()
    for function in functions:
        for case in function.cases(np.random.default_rng(0)).values():
            # What is banned is not read; where all but one is, that one is.
            banned = set(np.ravel(case.get("banned_token_ids", ())).tolist())
            left = {*range(tokenizer.vocabulary_size)} - banned
            used |= left if len(left) == 1 else set()
            for name, ids in case.items():
                if name != "banned_token_ids" and np.asarray(ids).dtype.kind == "i":
                    used.update(np.ravel(ids).tolist())
    for character in CHARACTERS[3:]:
        (ids,) = tokenizer.encode([character])
        if len(ids) == 1 and ids[0] not in used:
            return character, ids[0]
    raise AssertionError("every character is in a case")


def change_row(model, row):
    """Another embedding of one token."""
    (table,) = (
        variable
        for name, variable in model.named_variables().items()
        if name.endswith("token_embedding/embeddings")
    )
    values = keras.ops.convert_to_numpy(table).copy()
    values[row] = -values[row]
    table.assign(values)


ONNX = dict(format="onnx")
SAVED_MODEL = pytest.param(
    kzoo.CausalLM, dict(functions="forward"), marks=pytest.mark.tensorflow
)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (kzoo.CausalLM, dict(format="genai")),
        (kzoo.CausalLM, dict(ONNX, functions=["prefill", "step"])),
        (kzoo.CausalLM, dict(ONNX, functions="forward", quantize="int8")),
        (kzoo.Seq2SeqLM, dict(ONNX, functions="generate")),
        (kzoo.SentenceEmbedder, dict(ONNX, text=True)),
        (kzoo.PairScorer, ONNX),
        SAVED_MODEL,
    ],
)
def test_the_user_s_inputs_show_a_row_that_changed(
    tmp_path, monkeypatch, tokenizer, kind, options
):
    monkeypatch.setattr(sys.modules["kzoo.exporters.verify"], "_NEW_TOKENS", 4)
    model, path = make(kind, tokenizer), tmp_path / "model"
    model.export(path, **options)
    rare, row = rare_character(model, tokenizer)
    common, pair = "".join(CHARACTERS[:3]), kind is kzoo.PairScorer
    own = {
        "line 1": (common, common) if pair else common,
        "line 7": (common, common + rare) if pair else common + rare,
    }
    report = verify(path, model, own)
    counted = [check for check in report.checks if "rows" in check]
    functions = set(report.functions) - {"forward_pairs", "serving_default"}
    assert {check["function"] for check in counted} == functions
    assert all(check["rows"] == 2 for check in counted)
    assert "2 own inputs" in str(report)
    change_row(model, row)
    with pytest.raises(ExportError, match=r"token_embedding/embeddings"):
        verify(path, model)  # which no case reads
    with pytest.raises(ExportError) as error:
        verify(path, model, own)
    message = str(error.value)
    assert f"line 7, {common!r}"[:12] in message and rare in message
    assert "line 1," not in message
    if "quantize" not in options:
        assert "Keras gives" in message or "tokens should be" in message
        assert "own inputs" in message


def test_a_difference_is_told_with_both_numbers_and_the_tolerance(tmp_path):
    model, path = make(kzoo.TextRegressor), tmp_path / "model.onnx"
    model.export(path, format="onnx")
    own = [[1, 5, 6, 2], [1, 7, 2]]
    assert verify(path, model, own).checks[-1]["rows"] == 2
    (function,) = model.export_functions()
    batch = inputs.batches(model, own, [function], False, 0)[0][0]
    before = checks.reference(function, batch.inputs_of(function))
    got = {name: values.copy() for name, values in before.items()}
    got["logits"][0, 0] += 0.5
    with pytest.raises(ExportError) as error:
        report = ExportReport("here", "onnx")
        checks.compare(function, "own inputs", got, before, report, batch.names)
    right, wrong = (f"{float(x['logits'][0, 0]):.7g}" for x in (before, got))
    message = str(error.value)
    assert "logits differs by 0.5 from Keras, more than 0.0001." in message
    assert f"{batch.names[0]}, place 0: Keras gives {right}, the artifact {wrong}." in (
        message
    )


@pytest.mark.parametrize(
    ("place", "change", "right"),
    [(0, 1e-5, True), (0, 1e-3, False), (3, 64.0, True), (3, 1e6, False)],
)
def test_the_logit_of_a_banned_token_widens_no_tolerance(place, change, right):
    (function,) = make(kzoo.TextRegressor).export_functions()
    expected = {"logits": np.array([[1.0, 2.0, -3.0, -1e9, -1e30]], "float32")}
    got = {"logits": expected["logits"].copy()}
    got["logits"][0, place] += change
    report = ExportReport("here", "onnx")
    if right:
        checks.compare(function, "own inputs", got, expected, report)
        assert report.checks[0]["difference"] < report.checks[0]["tolerance"] == 1e-4
        return
    with pytest.raises(ExportError, match=f"place {place}: Keras gives"):
        checks.compare(function, "own inputs", got, expected, report)
    with pytest.raises(ExportError, match="place 4: Keras gives .*nan"):
        got["logits"][0, 4] = np.nan
        checks.compare(function, "own inputs", got, expected, report)


def tie(model, token, other):
    """Makes two tokens as likely as each other, everywhere."""
    kernel = keras.ops.convert_to_numpy(model.head.kernel).copy()
    kernel[:, other] = kernel[:, token]
    model.head.kernel.assign(kernel)


def verified(function, given, got):
    """The report of an artifact that gives `got` for some inputs."""
    report, expected = ExportReport("model", "onnx"), Future()
    expected.set_result(checks.reference(function, given))
    rows = ("a", "b", "c")
    checks.verify([checks.Case(function, OWN, given, expected, rows)], [got], report)
    return report


@pytest.mark.parametrize("kind", [kzoo.CausalLM, kzoo.Seq2SeqLM])
def test_a_tie_between_two_tokens_is_no_difference(kind):
    model = make(kind, positions="rotary")
    function = model.export_functions()[-1]
    given = {model.prompt_input: np.array([[5, 6], [7, 8], [9, 3]], "int32")}
    given["max_new_tokens"] = 4
    chosen = checks.reference(function, given)["sequences"][:, 0, 0]
    first, other = int(chosen[1]), 28
    tie(model, first, other)

    def answer(row, token):
        forced = np.full((3, 1), -1, "int32")
        forced[row] = token
        return checks.reference(function, given | {"forced_token_ids": forced})

    assert "ties" not in verified(function, given, answer(1, first)).checks[0]
    report = verified(function, given, answer(1, other))
    assert report.checks[0]["ties"] == 1 and "1 ties between two" in str(report)
    with pytest.raises(ExportError, match="1 of 3 sequences differ .* b, place"):
        verified(function, given, answer(1, 4))
    wrong = answer(1, other)
    wrong["sequences"][1, 0, -1] = 4  # behind the tie
    with pytest.raises(ExportError, match="1 of 3 sequences differ .* b, place"):
        verified(function, given, wrong)


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("kind", [kzoo.CausalLM, kzoo.Seq2SeqLM])
def test_two_sequences_of_a_beam_search_that_tie_may_change_places(kind, limit):
    model = make(kind, positions="rotary")
    function = model.export_functions()[-1]
    given = {model.prompt_input: np.array([[5, 6], [7, 8], [9, 3]], "int32")}
    given |= dict(max_new_tokens=limit, beams=4, num_return_sequences=4)
    given["length_penalty"] = 0.6
    lasts = checks.reference(function, given)["sequences"][1, :, -1].tolist()
    special = {function.end_token_id, function.pad_token_id}
    last = next(token for token in lasts if token not in special)
    other = next(token for token in range(5, 29) if token != last)
    tie(model, last, other)
    expected = checks.reference(function, given)
    assert "ties" not in verified(function, given, expected).checks[0]
    found = expected["sequences"]
    assert {last, other} <= set(found[1, :, -1].tolist())
    swapped = found.copy()  # of the last tokens, both ways
    swapped[..., -1][found[..., -1] == last] = other
    swapped[..., -1][found[..., -1] == other] = last
    differ = int((swapped != found).any(axis=-1).sum())
    assert differ >= 2
    check = verified(function, given, {**expected, "sequences": swapped}).checks[0]
    assert check["ties"] == differ and check["tokens_equal"]

    def refused(sequences):
        with pytest.raises(ExportError, match="sequences differ from Keras"):
            verified(function, given, {**expected, "sequences": sequences})

    wrong = swapped.copy()
    wrong[1, 0, -1] = next(t for t in range(5, 29) if t not in (last, other))
    refused(wrong)
    twice = found.copy()
    twice[..., -1][found[..., -1] == other] = last
    refused(twice)
    if kind is kzoo.Seq2SeqLM and limit == 3:
        ended = (swapped[..., :-1] == function.end_token_id).any(axis=-1)
        assert ended.any()
        behind = swapped.copy()
        behind[..., -1][ended] = last
        refused(behind)


def test_inputs_that_are_compared_apart_are_reported_together(tmp_path, monkeypatch):
    model, path = make(kzoo.CausalLM), tmp_path / "model"
    model.export(path, format="onnx", functions="forward")
    monkeypatch.setattr(inputs, "_ROWS", 2)
    own = [[1] + [5] * length for length in (1, 1, 2, 3, 3, 4, 9)]
    made, _ = inputs.batches(model, own, model.export_functions(), False, 4)
    assert [len(batch.names) for batch in made] == [2, 2, 2, 1]
    assert sorted(n for batch in made for n in batch.names) == [
        f"input {i}" for i in range(7)
    ]
    assert len(inputs.together(made)) == 1
    monkeypatch.setattr(inputs, "_AT_ONCE", 1)
    assert len(inputs.together(made)) == 4
    report = verify(path, model, own)
    assert [c["case"] for c in report.checks if "rows" in c] == ["7 own inputs"]


def test_a_joined_report_has_the_largest_difference_and_all_rows():
    reports = [ExportReport("here", "onnx") for _ in range(2)]
    for report, difference, rows in zip(reports, (1e-6, 3e-6), (2, 6)):
        report.differences = {"forward": {"logits": {"model": difference}}}
        report.token_agreement = difference
        report.checks = [
            dict(function="forward", case="batch 1", difference=0.0),
            dict(
                function="forward",
                case="own inputs",
                difference=difference,
                rows=rows,
                token_agreement=rows / 8,
                tokens_equal=rows == 6,
            ),
        ]
    first, own = joined(reports).checks
    assert first["case"] == "batch 1"
    assert (own["case"], own["difference"]) == ("8 own inputs", 3e-6)
    assert own["token_agreement"] == (2 * 2 / 8 + 6 * 6 / 8) / 8
    assert not own["tokens_equal"]
    assert reports[0].differences["forward"]["logits"]["model"] == 3e-6
    assert reports[0].token_agreement == pytest.approx((2 * 1e-6 + 6 * 3e-6) / 8)


def test_a_report_is_json_where_a_metric_is_not_defined(tmp_path):
    report = ExportReport("here", "onnx", metric={"model": {"spearman": float("nan")}})
    report.save(tmp_path / "report.json")
    text = (tmp_path / "report.json").read_text(encoding="utf-8")
    read = json.loads(text, parse_constant=pytest.fail)  # NaN is not JSON
    assert read["metric"] == {"model": {"spearman": None}}


def batches_of(model, own, text=False, new_tokens=16):
    return inputs.batches(model, own, model.export_functions(), text, new_tokens)


def test_new_tokens_are_as_many_as_learned_positions_leave(tokenizer):
    model = make(kzoo.CausalLM, positions="learned", max_sequence_length=12)
    for length, room in ((2, 10), (11, 1)):
        ((batch,), _) = batches_of(model, [[5] * length])
        assert batch.new_tokens == room
    with pytest.raises(ValueError, match="input 1: The decoder has 12 learned pos"):
        batches_of(model, [[5], [5] * 12])


def test_what_the_model_cuts_is_cut_and_said(tokenizer):
    model = make(
        kzoo.SentenceEmbedder, tokenizer, positions="learned", max_sequence_length=8
    )
    ((batch,), notes) = batches_of(model, [CHARACTERS[0] * 20])
    assert batch.columns["token_ids"].shape == (1, 8)
    assert notes == ["Inputs longer than the model reads were cut as it cuts them."]


@pytest.mark.parametrize(
    ("kind", "own", "message"),
    [
        (kzoo.CausalLM, [], "inputs, one at least. Received: none"),
        (kzoo.CausalLM, [[5], [5, 29]], r"input 1: token_ids must be in \[0, 29\).*29"),
        (kzoo.CausalLM, [[5], [-1]], r"input 1: token_ids must be in .*Received: -1"),
        (kzoo.CausalLM, [[]], "input 0: token_ids must be a list of integers, one at"),
        (kzoo.CausalLM, [[0.5]], "must be a list of integers"),
        (kzoo.CausalLM, [7], "must be a list of integers"),
        (kzoo.CausalLM, [[[5], [5, 6]]], "0: token_ids must be a list of integers"),
        (kzoo.PairScorer, [7], "token_ids must be a list of integers"),
        (kzoo.Seq2SeqLM, [[5, -1]], "0: encoder_token_ids must be in .*Received: -1"),
        (kzoo.Seq2SeqLM, [[5, 29]], "encoder_token_ids must be in .*Received: 29"),
        (kzoo.Seq2SeqLM, [7], "encoder_token_ids must be a list .*Received: 7"),
        (kzoo.Seq2SeqLM, [[5, 2**70]], "encoder_token_ids must be a list of integers"),
        (kzoo.Seq2SeqLM, [[5, 0.5]], "encoder_token_ids must be a list of integers"),
        (kzoo.CausalLM, ["a"], "input 0: .* has no tokenizer"),
        (kzoo.CausalLM, [{"ids": [1]}], r"reads ids for \['token_ids'\]. Received"),
        (kzoo.CausalLM, [("a", "b")], "continues a text"),
        (kzoo.Seq2SeqLM, [("a", "b", "c")], "a source, or a source and a target"),
    ],
)
def test_what_cannot_be_read_is_named(kind, own, message):
    with pytest.raises(ValueError, match=message):
        batches_of(make(kind), own)


def test_segments_are_as_many_as_tokens():
    model = make(kzoo.PairScorer, num_segments=2)
    ((batch,), _) = batches_of(model, [[5, 6]])
    assert batch.columns["segment_ids"].tolist() == [[0, 0]]
    with pytest.raises(ValueError, match="as many as token_ids, 1. Received: 2"):
        batches_of(model, [{"token_ids": [5], "segment_ids": [0, 1]}])
    with pytest.raises(ValueError, match="token_ids must be a list .*Received: 7"):
        batches_of(model, [7])


def test_text_goes_where_the_artifact_takes_text(tokenizer):
    model = make(kzoo.SentenceEmbedder, tokenizer)
    with pytest.raises(ValueError, match="The artifact takes text"):
        batches_of(model, [[5]], text=True)
    with pytest.raises(ExportError, match="0, 'ab' gives .'text'., .* takes .'token_"):
        batches_of(model, ["ab", "a", "abc"], text=True)  # those of ids
