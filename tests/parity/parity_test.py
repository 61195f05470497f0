"""Every family computes what transformers does: a row a family and head.

The numbers of transformers are in `tests/golden/families/`, the weights follow from
their names; so this needs neither torch nor a network.
"""

import contextlib
import itertools
import json
import re

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import kzoo
from kzoo.families import family_of
from kzoo.layers.base import bare_calls
from kzoo.models.stack import Encoder, Stack
from tests.harness import to_numpy
from tests.parity.reference import GOLDEN, NEW_TOKENS, batch, sides
from tests.parity.rows import ROWS
from tests.parity.weights import sines, weight
from tests.strategies import few_of

pytestmark = pytest.mark.usefixtures("eager")

TOLERANCE = 1e-5


def first_rows():
    """model_type -> the name of its first row."""
    found = {}
    for name in ROWS:
        with np.load(GOLDEN / f"{name}.npz") as file:
            config = json.loads(str(file["described"]))["config"]
        found.setdefault(config["model_type"], name)
    return found


FIRST = first_rows()


def written(name, folder):
    """A checkpoint's folder of a row, and what transformers computes from it."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        golden = dict(file)
    described = json.loads(str(golden["described"]))
    constant = ROWS[name].get("constant", "")
    tensors = {
        n: sines(s) if re.fullmatch(constant, n) else weight(n, tuple(s))
        for n, s in described["tensors"].items()
    }
    save_file(tensors, folder / "model.safetensors")
    for config in {"config", "generation_config"} & set(described):
        (folder / f"{config}.json").write_text(json.dumps(described[config]))
    return golden, described


def ids_and_mask(row, side):
    """int32 (B, T) ids and the mask of their padding."""
    ids, mask = batch(row, side)
    return ids.astype("int32"), np.array(mask)


def logits(task, row, golden, side):
    """kzoo's numbers where transformers' are, and where they count, bool (B, T)."""
    ids, mask = ids_and_mask(row, side)
    if row["task"] == "seq2seq_lm":
        own = golden["targets"].astype("int32")
        inputs = {"encoder_token_ids": ids, "decoder_token_ids": own}
        return task({**inputs, "encoder_padding_mask": mask}), np.ones(own.shape, bool)
    inputs = {"token_ids": ids, "padding_mask": mask}
    if row["task"] == "sentence_embedder":
        return task.states(inputs)[0], mask
    return task(inputs), mask


@contextlib.contextmanager
def kept_states():
    """The last states that stacks give inside, by the kind of the stack."""
    call, found = Stack.__call__, {}

    def kept(self, *args, **kwargs):
        states = call(self, *args, **kwargs)
        found["encoder" if isinstance(self, Encoder) else "decoder"] = states
        return states

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Stack, "__call__", kept)
        yield found


def last_states(kept, row, golden, side):
    """Name, what the stack gave, float (N, D) without padding, and theirs."""
    if row["task"] == "sentence_embedder":  # its outputs, which `logits` compares
        return
    _, mask = ids_and_mask(row, side)
    assert kept and (len(kept) == 2) == (f"{side}_encoder" in golden)
    for stack, states in kept.items():
        name = stack if len(kept) == 2 else "states"
        own, theirs = to_numpy(states), golden[f"{side}_{name}"]
        if row["task"] != "seq2seq_lm" or stack == "encoder":
            own, theirs = own[mask], theirs[mask]
        yield name, own, theirs


def contexts(ids, end):
    """Behind the first end token and before the second, bool (B, T)."""
    found = np.zeros(ids.shape, bool)
    for row, inside in zip(ids, found):
        first, last, *_ = [*np.flatnonzero(row == end), len(row), len(row)]
        inside[first + 1 : last] = True
    return found


def difference(a, b):
    """The largest difference over the largest number."""
    return np.abs(a - b).max() / max(1.0, np.abs(b).max())


def check_logits(task, row, golden, tolerances=None):
    """Compares with `golden`; `tolerances` names arrays in which more is allowed."""

    def check(own, theirs, name):
        allowed = max(TOLERANCE, (tolerances or {}).get(name, 0.0))
        assert difference(own, theirs) <= allowed, name

    for side in sides(row):
        with kept_states() as kept:
            own, mask = logits(task, row, golden, side)
        own, theirs = to_numpy(own), golden[side]
        if row["task"] == "question_answering":
            own, theirs = own.swapaxes(1, 2), theirs.swapaxes(1, 2)
            mask &= contexts(batch(row, side)[0], row["end"])
            assert (own[~mask] < -1e4).all()  # kzoo answers from the context alone
        if own.ndim == 3:
            own, theirs = own[mask], theirs[mask]
        check(own, theirs, side)
        for stack, own, theirs in last_states(kept, row, golden, side):
            check(own, theirs, f"{side}_{stack}")


@pytest.fixture(scope="module", params=ROWS)
def checkpoint(request, tmp_path_factory):
    """A row's name, its folder and task, and what transformers computes."""
    name, folder = request.param, tmp_path_factory.mktemp("checkpoint")
    golden, described = written(name, folder)
    row = ROWS[name]
    task = kzoo.from_preset(folder, task=row["task"], **row.get("options", {}))
    return name, folder, task, golden, described


@pytest.mark.usefixtures("eager")
def test_logits_and_tokens_equal_those_of_transformers(checkpoint):
    name, _, task, golden, described = checkpoint
    row = ROWS[name]
    assert not task.loaded.new
    check_logits(task, row, golden)
    given = dict(max_new_tokens=NEW_TOKENS, min_new_tokens=0, early_stopping=True)
    given |= dict(temperature=0.0, banned_tokens=[task.config.pad_token_id])
    if name not in few_of(ROWS):
        return  # compiling a search takes long
    made = {
        beams: generated(task, row, beams=beams, **given)
        for beams in ((1, 3) if name in FIRST.values() else (1,))
        if f"beams_{beams}" in golden
    }
    for beams, rows in made.items():
        assert rows == without_end(golden[f"beams_{beams}"], described)
    if "generation" in row:  # what the checkpoint says about searches
        by_default = generated(task, row)
        assert by_default == without_end(golden["by_default"], described)
        assert by_default != made[1]


def generated(task, row, **options):
    ids, mask = batch(row, "left" if row["task"] == "causal_lm" else "right")
    prompts = [list(map(int, r[m])) for r, m in zip(ids, mask)]
    with bare_calls():  # of what Keras does around a layer, logits tell
        return task.generate(prompts, **options)


def without_end(rows, described):
    """Rows of transformers up to what ends them there."""
    config = described["config"]
    ends = described.get("generation_config", {}).get("eos_token_id")
    ends = config["eos_token_id"] if ends is None else ends
    ends = {*(ends if isinstance(ends, list) else [ends]), config["pad_token_id"]}
    return [
        list(itertools.takewhile(lambda i: i not in ends, r)) for r in rows.tolist()
    ]


def test_a_context_that_is_masked_too_much_is_no_parity(tmp_path):
    name = "bert_question_answering"
    row = ROWS[name]
    golden, _ = written(name, tmp_path)
    task = kzoo.from_preset(tmp_path, task=row["task"])
    check_logits(task, row, golden)

    class OnePlace:
        def __call__(self, inputs):
            own = to_numpy(task(inputs))
            own[:, :, np.arange(own.shape[2]) != own[0, 0].argmax()] = -1e30
            return own

    with pytest.raises(AssertionError):
        check_logits(OnePlace(), row, golden)


def test_what_is_saved_back_is_what_was_loaded(checkpoint):
    name, folder, task, _, described = checkpoint
    assert kzoo.save_hf(task, folder / "back") == described["config"]["model_type"]
    original = load_file(folder / "model.safetensors")
    back = load_file(folder / "back" / "model.safetensors")
    kept = {k: a for k, a in original.items() if k not in task.loaded.unused}
    assert set(back) == set(kept)
    for path, array in back.items():
        np.testing.assert_array_equal(array, kept[path], path)
    keys = json.loads((folder / "back" / "config.json").read_text())
    family = family_of(keys["model_type"])
    if not family.tied_by_file:  # else the config alone does not say all
        assert family.read_config(keys) == family.read_config(described["config"])
    if family.tied_by_file or name in FIRST.values():
        again = kzoo.from_preset(folder / "back", task=ROWS[name]["task"])
        assert again.config == task.config
        assert_same_weights(again, task)
        if "generation" in ROWS[name]:
            assert again.search_defaults == task.search_defaults


def test_what_kzoo_saves_for_itself_is_what_was_loaded(checkpoint):
    name, folder, task, _, _ = checkpoint
    if name not in FIRST.values():
        return
    task.save_folder(folder / "own")
    again = kzoo.from_preset(folder / "own")
    assert type(again) is type(task) and again.config == task.config
    assert_same_weights(again, task)


def assert_same_weights(task, other):
    own, theirs = task.named_variables(), other.named_variables()
    assert set(own) == set(theirs)
    for path, variable in own.items():
        np.testing.assert_array_equal(to_numpy(variable), to_numpy(theirs[path]), path)


def test_a_head_that_a_family_has_not_is_refused_and_nothing_is_written(tmp_path):
    written("bert_text_classifier", tmp_path)
    task = kzoo.from_preset(tmp_path)
    other = kzoo.TextClassifier(task.config, num_classes=3, pooling="mean")
    with pytest.raises(ValueError, match="pooling='cls'. Received: 'mean'"):
        kzoo.save_hf(other, tmp_path / "out", "bert")
    assert not (tmp_path / "out").exists()


def test_another_number_of_classes_makes_a_new_head_and_says_so(tmp_path):
    written("bert_text_classifier", tmp_path)
    with pytest.warns(UserWarning, match="head/output/bias.*have to be trained"):
        task = kzoo.from_preset(tmp_path, num_classes=7)
    assert task.loaded.new == ("head/output/bias", "head/output/kernel")
    assert task.num_classes == 7


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_the_head_of_another_task_is_not_taken_for_this_ones(family, tmp_path):
    written(f"{family}_token_classifier", tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    count = len(stored["classifier.bias"])
    with pytest.warns(UserWarning, match="head/output/bias.*have to be trained"):
        task = kzoo.from_preset(
            tmp_path, task="text_classifier", labels=[f"l{i}" for i in range(count)]
        )
    assert {"head/output/bias", "head/output/kernel"} <= set(task.loaded.new)
    assert {"classifier.bias", "classifier.weight"} <= set(task.loaded.unused)
    kernel = to_numpy(task.named_variables()["head/output/kernel"])
    assert np.abs(kernel - stored["classifier.weight"].T).max() > 1e-3
    # What heads of this family have before it is one module.
    assert ("head/hidden/kernel" in task.loaded.new) == (family == "bert")


@pytest.mark.parametrize("task", ["text_regressor", "pair_scorer"])
def test_a_classifier_becomes_a_task_of_one_number_with_a_new_head(task, tmp_path):
    written("bert_text_classifier", tmp_path)
    with pytest.warns(UserWarning, match="head/output/bias.*have to be trained"):
        made = kzoo.from_preset(tmp_path, task=task)
    assert made.loaded.new == ("head/output/bias", "head/output/kernel")


def test_a_multi_label_head_is_replaced_where_labels_are_given(tmp_path):
    _, described = written("bert_text_classifier", tmp_path)
    config = {**described["config"], "problem_type": "multi_label_classification"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="For a new head give labels="):
        kzoo.from_preset(tmp_path)
    for count in (2, len(config["id2label"])):
        labels = [f"l{i}" for i in range(count)]
        with pytest.warns(UserWarning, match="head/output/bias.*have to be trained"):
            task = kzoo.from_preset(tmp_path, labels=labels)
        assert task.loaded.new == ("head/output/bias", "head/output/kernel")
        assert task.labels == labels


def test_a_class_that_kzoo_has_no_head_for_is_not_taken_for_another(tmp_path):
    _, described = written("mbart", tmp_path)
    config = {**described["config"]}
    config["architectures"] = ["MBartForSequenceClassification"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["classification_head.dense.bias"] = np.zeros(4, "float32")
    save_file(tensors, tmp_path / "model.safetensors")
    expected = "MBartForSequenceClassification.*MBartForConditionalGeneration.*task="
    with pytest.raises(ValueError, match=expected):
        kzoo.from_preset(tmp_path)
    task = kzoo.from_preset(tmp_path, task="seq2seq_lm")
    assert type(task) is kzoo.Seq2SeqLM
    assert task.loaded.unused == ("classification_head.dense.bias",)


def test_a_tied_table_is_one_under_another_head_and_in_its_folders(tmp_path):
    written("t5_classifier", tmp_path)
    task = kzoo.from_preset(tmp_path)
    assert task.config.tie_head
    task.save_folder(tmp_path / "own")
    kzoo.save_hf(task, tmp_path / "back")
    for folder in ("own", "back"):
        again = kzoo.from_preset(tmp_path / folder, task="seq2seq_lm")
        assert again.config.tie_head and not again.loaded.new


@pytest.mark.parametrize("labels", [["a", "b", "c"], {"0": "a", "2": "b"}])
def test_labels_that_do_not_name_all_places_are_refused(labels, tmp_path):
    _, described = written("bert_text_classifier", tmp_path)
    config = {**described["config"], "id2label": labels}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="id2label must name 0 to"):
        kzoo.from_preset(tmp_path)


def test_a_relatives_class_names_the_same_task(tmp_path):
    _, described = written("bert_text_classifier", tmp_path)
    config = {**described["config"], "architectures": ["MyForSequenceClassification"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert type(kzoo.from_preset(tmp_path)) is kzoo.TextClassifier


def test_logits_without_a_stored_bias_have_none_and_nothing_is_new(tmp_path):
    written("bart", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["final_logits_bias"]
    save_file(tensors, tmp_path / "model.safetensors")
    task = kzoo.from_preset(tmp_path)
    assert not task.loaded.new
    assert not to_numpy(task.named_variables()["head/bias"]).any()


def test_a_head_that_the_checkpoint_lacks_is_new_and_said_so(tmp_path):
    written("bert_masked_lm", tmp_path)
    with pytest.warns(UserWarning, match="head/output"):
        task = kzoo.from_preset(tmp_path, task="token_classifier", num_classes=4)
    assert task.loaded.new == ("head/output/bias", "head/output/kernel")
    assert "cls.predictions.bias" in task.loaded.unused


def test_every_tensor_and_every_variable_is_accounted_for_by_name(tmp_path):
    written("gpt2", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    ones = np.ones(3, "float32")
    missing = {k: v for k, v in tensors.items() if k != "transformer.h.1.ln_2.bias"}
    odd = {**tensors, "transformer.h.0.attn.gate": ones}
    shaped = {**tensors, "transformer.ln_f.bias": ones}
    for changed, named in (
        (missing, "decoder/layer_1/feed_forward_norm/beta"),
        (odd, "transformer.h.0.attn.gate"),
        (shaped, r"transformer.ln_f.bias: \(3,\), expected \(32,\)"),
    ):
        save_file(changed, tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match=named):
            kzoo.from_preset(tmp_path)


@pytest.mark.parametrize("name", ["bert_masked_lm", "albert_text_classifier"])
def test_norms_of_the_first_code_are_read_under_their_names(name, tmp_path):
    golden, _ = written(name, tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)

    def older(name):
        module, leaf = name.rsplit(".", 1)
        old = {"weight": "gamma", "bias": "beta"}[leaf]
        return f"{module}.{old}" if module.endswith("LayerNorm") else name

    save_file({older(name): array for name, array in tensors.items()}, path)
    task = kzoo.from_preset(tmp_path)
    assert not task.loaded.new
    check_logits(task, ROWS[name], golden)
    kzoo.save_hf(task, tmp_path / "back")
    assert set(load_file(tmp_path / "back" / "model.safetensors")) <= set(tensors)


def test_a_tied_head_that_differs_from_its_table_is_no_tied_head(tmp_path):
    written("gpt2", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    table = tensors["transformer.wte.weight"]
    same = {**tensors, "lm_head.weight": table.copy()}
    save_file(same, tmp_path / "model.safetensors")
    assert kzoo.from_preset(tmp_path).config.tie_head
    save_file({**same, "lm_head.weight": table + 1}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="lm_head.weight differs"):
        kzoo.from_preset(tmp_path)
