"""How weights go from files to variables: what is read, how often, and what is held."""

import collections
import weakref

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import kzoo
from kzoo.checkpoints import engine
from kzoo.checkpoints.engine import check_sizes, tensors_of
from kzoo.checkpoints.files import TensorFiles, open_tensors
from kzoo.families import family_of
from kzoo.zoo.pretrained import TASKS
from tests.parity.parity_test import written
from tests.parity.rows import ROWS


class Variable:
    def __init__(self, shape):
        self.shape = shape


def fill(variable, write):
    write(np.empty(variable.shape, "float32"))


@pytest.fixture
def read(monkeypatch):
    """Of every read: the tensor's name, and how many arrays of others were held."""
    reads, held = [], []
    plain = TensorFiles.read

    def counted(self, name, start=None, stop=None):
        if not reads:
            held.clear()  # a model may stand on the arrays of before
        reads.append((name, sum(array() is not None for array in held)))
        array = plain(self, name, start, stop)
        held.append(weakref.ref(array))
        return array

    monkeypatch.setattr(TensorFiles, "read", counted)
    return reads


COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def t5(tmp_path, **changes):
    """T5's checkpoint with all copies of its table, and what its parts need."""
    written("t5", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    table = tensors["shared.weight"]
    tensors |= {name: table.copy() for name in (*COPIES, "lm_head.weight")} | changes
    save_file(tensors, path)
    return table


def shapes_of(folder):
    task = kzoo.from_preset(folder)
    return task.config, {
        path: tuple(variable.shape) for path, variable in task.named_variables().items()
    }


def test_copies_are_compared_in_one_pass_and_one_source_is_held_at_a_time(
    tmp_path, read
):
    t5(tmp_path)
    config, shapes = shapes_of(tmp_path)
    family, tied = family_of("t5"), "encoder/token_embedding/embeddings"
    assert config.tie_head and tied in shapes
    del read[:]
    with open_tensors(tmp_path) as tensors:
        assert not engine.has_own_head(family, "Seq2SeqLM", tensors, config)
        variables = {path: Variable(shape) for path, shape in shapes.items()}
        engine.load_weights(family, "Seq2SeqLM", variables, tensors, config, tied, fill)
    counted = collections.Counter(name for name, _ in read)
    # To compare the head, to compare the copies, and to be set.
    assert counted.pop("shared.weight") == 3
    assert set(counted.values()) == {1}
    compared = {*COPIES, "lm_head.weight"}
    assert {name for name, held in read if held} <= compared
    assert max(held for _, held in read) <= 2


@pytest.mark.parametrize("rows", [1, 7, 10_000])
def test_a_copy_that_differs_in_its_last_row_is_found(rows, tmp_path, monkeypatch):
    table = t5(tmp_path)
    monkeypatch.setattr(engine, "_STEP", rows * table[0].nbytes)
    other = table.copy()
    other[-1, -1] += 1
    config, _ = shapes_of(tmp_path)
    t5(tmp_path, **{COPIES[1]: other})
    with pytest.raises(ValueError, match=f"{COPIES[1]} differs from shared.weight"):
        shapes_of(tmp_path)
    t5(tmp_path, **{"lm_head.weight": np.ascontiguousarray(other)})
    assert not shapes_of(tmp_path)[0].tie_head


def sized(name, tmp_path, **changes):
    """Checks a row's checkpoint against its config with other values of keys."""
    _, described = written(name, tmp_path)
    keys = {**described["config"], **changes}
    family = family_of(keys["model_type"])
    with open_tensors(tmp_path) as tensors:
        task = TASKS[ROWS[name]["task"]]
        check_sizes(family, task, family.read_config(keys), tensors)


@pytest.mark.parametrize("name", ROWS)
def test_the_sizes_of_every_row_are_those_of_its_config(name, tmp_path):
    sized(name, tmp_path)


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        (
            "gpt2",
            {"vocab_size": 6_000_000},
            r"6000000 and embeddings of 32, transformer.wte.weight is of .*\(97, 32\)",
        ),
        ("gpt2", {"n_embd": 64}, "embeddings of 64, transformer.wte.weight"),
        ("gpt2", {"n_layer": 300}, "300 layers.*no transformer.h.299.attn.c_proj"),
        ("gpt2", {"n_layer": 1}, "only 1 layers.*has transformer.h.1.attn.c_proj"),
        ("t5", {"num_decoder_layers": 300}, "300 layers in the decoder.*block.299"),
        ("bart", {"encoder_layers": 1}, "only 1 layers in the encoder.*layers.1"),
        ("bert_masked_lm", {"vocab_size": 98}, "98.*word_embeddings"),
        ("albert_masked_lm", {"embedding_size": 3}, "embeddings of 3, albert.embed"),
    ],
)
def test_other_sizes_than_the_configs_are_refused(name, changes, named, tmp_path):
    with pytest.raises(ValueError, match=named):
        sized(name, tmp_path, **changes)


@pytest.mark.parametrize(
    "path",
    [
        "decoder/layer_0/self_attention/query/lora_kernel_a",
        "decoder/layer_0/adapter/kernel",
    ],
)
def test_a_variable_that_a_family_has_not_is_named_by_its_path(path, tmp_path):
    _, described = written("gpt2", tmp_path)
    family = family_of("gpt2")
    config = family.read_config(described["config"])
    with pytest.raises(ValueError, match=f"no row for {path}.*cannot be saved"):
        tensors_of(family, "CausalLM", {path: Variable((2, 2))}, config, None, "")


@pytest.mark.parametrize(
    ("name", "task", "options"),
    [
        ("opt", "token_classifier", {"num_classes": 2}),
        ("gemma2", "question_answering", {}),
        ("gemma3", "token_classifier", {"num_classes": 2}),
    ],
)
def test_a_head_that_a_family_has_not_is_new_when_it_is_loaded(
    name, task, options, tmp_path
):
    written(name, tmp_path)
    with pytest.warns(UserWarning, match="head/output/kernel.*are new"):
        made = kzoo.from_preset(tmp_path, task=task, **options)
    assert made.loaded.new == ("head/output/bias", "head/output/kernel")
    assert np.asarray(made.named_variables()["head/output/kernel"]).any()
    with pytest.raises(ValueError, match=f"no head of {type(made).__name__}"):
        kzoo.save_hf(made, tmp_path / "out")


def test_a_stack_is_found_under_the_prefix_of_another_head(tmp_path):
    written("llama_reader", tmp_path)  # there the stack is "transformer", not "model"
    reader = kzoo.from_preset(tmp_path)
    assert isinstance(reader, kzoo.QuestionAnswering)
    with pytest.warns(UserWarning, match="head/output/kernel.*are new"):
        tagger = kzoo.from_preset(tmp_path, task="token_classifier", num_classes=2)
    assert tagger.loaded.new == ("head/output/bias", "head/output/kernel")
    own = tagger.named_variables()
    for path, variable in reader.named_variables().items():
        if not path.startswith("head/"):
            np.testing.assert_array_equal(own[path], variable)
    kzoo.save_hf(tagger, tmp_path / "out")
    assert isinstance(kzoo.from_preset(tmp_path / "out"), kzoo.TokenClassifier)
