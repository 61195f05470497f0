"""What sentence-transformers says beside a model, and sequence classifiers of a number.

The files are as that library writes them; its own code is not needed.
"""

import json

import numpy as np
import pytest

import kzoo
from kzoo.checkpoints.hf_config import Unsupported
from tests.harness import to_numpy
from tests.parity.parity_test import written

KINDS = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "last": "pooling_mode_lasttoken",
}
IDS = np.array([[5, 6, 7, 8], [9, 10, 0, 0]], "int32")


def embedder(folder, pooling, modules=("Transformer", "Pooling", "Normalize"), **more):
    """A checkpoint's folder as sentence-transformers has it."""
    written("bert_model", folder)
    paths = ["" if i == 0 else f"{i}_{kind}" for i, kind in enumerate(modules)]
    listed = [
        dict(idx=i, name=str(i), path=path, type=f"sentence_transformers.models.{kind}")
        for i, (kind, path) in enumerate(zip(modules, paths))
    ]
    files = {"modules.json": listed, "1_Pooling/config.json": pooling, **more}
    for path in paths:
        (folder / path).mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_pooling_and_what_follows_are_read_and_written_back(kind, normalize, tmp_path):
    switches = {name: own == kind for own, name in KINDS.items()}
    embedder(
        tmp_path,
        {"word_embedding_dimension": 32, **switches},
        ("Transformer", "Pooling", "Normalize")[: 3 if normalize else 2],
        **{"sentence_bert_config.json": {"max_seq_length": 20, "do_lower_case": False}},
    )
    task = kzoo.from_preset(tmp_path)
    assert isinstance(task, kzoo.SentenceEmbedder)
    assert task.options == dict(pooling=kind, normalize=normalize, max_length=20)
    kzoo.save_hf(task, tmp_path / "back")
    for name in ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json"):
        kept, given = (
            json.loads((folder / name).read_text())
            for folder in (tmp_path / "back", tmp_path)
        )
        assert kept == given, name
    again = kzoo.from_preset(tmp_path / "back")
    assert again.options == task.options
    own, kept = (to_numpy(t({"token_ids": IDS})) for t in (task, again))
    np.testing.assert_array_equal(own, kept)
    states, mask = (to_numpy(x) for x in task.states({"token_ids": IDS}))
    for row, real, vector in zip(states, mask, own):
        row = row[real].astype("float64")
        expected = dict(mean=row.mean(0), cls=row[0], max=row.max(0), last=row[-1])
        length = np.linalg.norm(expected[kind]) if normalize else 1.0
        np.testing.assert_allclose(vector, expected[kind] / length, atol=1e-6)


def test_newer_files_name_the_pooling(tmp_path):
    embedder(tmp_path, {"embedding_dimension": 32, "pooling_mode": "lasttoken"})
    assert kzoo.from_preset(tmp_path).pooling == "last"


def test_more_tokens_than_learned_positions_are_cut(tmp_path):
    length = {"sentence_bert_config.json": {"max_seq_length": 512}}
    embedder(tmp_path, {"pooling_mode": "mean"}, **length)
    assert kzoo.from_preset(tmp_path).max_length == 40


def test_arguments_win_over_files(tmp_path):
    embedder(tmp_path, {"pooling_mode": "cls"})
    task = kzoo.from_preset(tmp_path, pooling="max", normalize=False)
    assert (task.pooling, task.normalize) == ("max", False)
    with pytest.warns(UserWarning, match="head"):  # which reads none of these files
        task = kzoo.from_preset(tmp_path, task="text_classifier", num_classes=2)
    assert task.pooling == "cls" and task.max_length is None


@pytest.mark.parametrize(
    "pooling, modules, files, named",
    [
        ({"pooling_mode": "weightedmean"}, None, {}, "weightedmean"),
        (
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            None,
            {},
            "pooling_mode_cls_token",
        ),
        (
            {"pooling_mode": "mean"},
            ("Transformer", "Pooling", "Dense", "Normalize"),
            {},
            "Dense",
        ),
        (
            {"pooling_mode": "mean"},
            None,
            {
                "config_sentence_transformers.json": {
                    "prompts": {"query": "query: "},
                    "default_prompt_name": "query",
                }
            },
            "default_prompt_name",
        ),
        (
            {"pooling_mode": "mean"},
            None,
            {"sentence_bert_config.json": {"do_lower_case": True}},
            "do_lower_case",
        ),
        (
            {"pooling_mode_mean_tokens": True, "include_prompt": False},
            None,
            {"config_sentence_transformers.json": {"prompts": {"query": "query: "}}},
            "include_prompt=False.*'query'",
        ),
    ],
)
def test_what_kzoo_has_not_is_refused_by_name(pooling, modules, files, named, tmp_path):
    given = {} if modules is None else {"modules": modules}
    embedder(tmp_path, pooling, **given, **files)
    with pytest.raises(Unsupported, match=named):
        kzoo.from_preset(tmp_path)


@pytest.mark.parametrize(
    "place, path",
    [
        (0, "0_Transformer"),
        (0, "../evil"),
        (1, "../evil"),
        (1, "/evil"),
        (2, "2_Normalize/../../evil"),
    ],
)
def test_modules_in_other_places_are_refused_by_name(place, path, tmp_path):
    (tmp_path / "model").mkdir()
    embedder(tmp_path / "model", {"pooling_mode": "mean"})
    listed = tmp_path / "model" / "modules.json"
    modules = json.loads(listed.read_text())
    modules[place]["path"] = path
    listed.write_text(json.dumps(modules))
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "config.json").write_text('{"pooling_mode": "cls"}')
    with pytest.raises(Unsupported, match=f"in '{path}'"):
        kzoo.from_preset(tmp_path / "model")


@pytest.mark.parametrize(
    "name, content",
    [
        ("modules.json", ["Transformer", "Pooling"]),
        ("modules.json", [{"path": ""}]),
        ("modules.json", [{"type": "models.Transformer", "path": None}]),
        ("modules.json", {"Transformer": ""}),
        ("1_Pooling/config.json", ["mean"]),
        ("config_sentence_transformers.json", [1]),
        ("sentence_bert_config.json", [512]),
    ],
)
def test_malformed_files_are_errors_that_name_them(name, content, tmp_path):
    embedder(tmp_path, {"pooling_mode": "mean"}, **{name: content})
    with pytest.raises(ValueError, match=f"{name} must hold"):
        kzoo.from_preset(tmp_path)


def test_prompts_without_a_text_are_no_part_of_an_average(tmp_path):
    said = {"prompts": {"query": "", "document": ""}}
    files = {"config_sentence_transformers.json": said}
    embedder(tmp_path, {"pooling_mode": "mean", "include_prompt": False}, **files)
    assert kzoo.from_preset(tmp_path).pooling == "mean"


def test_prompts_and_similarity_are_kept(tmp_path):
    said = {"prompts": {"query": "query: "}, "similarity_fn_name": "dot"}
    name = "config_sentence_transformers.json"
    more = {"default_prompt_name": None, "__version__": {"pytorch": "2.0"}}
    embedder(tmp_path, {"pooling_mode": "mean"}, **{name: {**said, **more}})
    task = kzoo.from_preset(tmp_path)
    kzoo.save_hf(task, tmp_path / "back")
    assert json.loads((tmp_path / "back" / name).read_text()) == said
    task.save_folder(tmp_path / "own")
    assert kzoo.from_preset(tmp_path / "own").settings == said


def classifier_of_a_number(folder, **keys):
    """A folder of a sequence classifier with one number."""
    written("bert_text_regressor", folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.pop("problem_type", None)
    path.write_text(json.dumps({**config, **keys}))


SIGMOID = "torch.nn.modules.activation.Sigmoid"
IDENTITY = "torch.nn.modules.linear.Identity"


@pytest.mark.parametrize(
    "keys, kind, activation",
    [
        ({}, "TextRegressor", None),
        ({"problem_type": "regression"}, "TextRegressor", None),
        ({"sbert_ce_default_activation_function": IDENTITY}, "PairScorer", None),
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, "PairScorer", None),
        (
            {"sentence_transformers": {"activation_fn": SIGMOID}},
            "PairScorer",
            "sigmoid",
        ),
    ],
)
def test_a_classifier_of_one_number_is_what_its_config_says(
    keys, kind, activation, tmp_path
):
    classifier_of_a_number(tmp_path, **keys)
    task = kzoo.from_preset(tmp_path)
    assert type(task).__name__ == kind and not task.loaded.new
    assert getattr(task, "output_activation", None) == activation
    kzoo.save_hf(task, tmp_path / "back")
    kept = json.loads((tmp_path / "back" / "config.json").read_text())
    assert kept["id2label"] == {"0": "LABEL_0"}
    assert kept["architectures"] == ["BertForSequenceClassification"]
    regresses = kept.get("problem_type") == "regression"
    assert regresses == (kind == "TextRegressor")
    again = kzoo.from_preset(tmp_path / "back")
    assert type(again) is type(task) and again.options == task.options
    np.testing.assert_array_equal(
        *(to_numpy(t({"token_ids": IDS})) for t in (task, again))
    )


def test_scores_of_a_cross_encoder_are_probabilities_unless_it_says_more(tmp_path):
    # As sentence-transformers reads a model of one number.
    classifier_of_a_number(tmp_path)
    task = kzoo.from_preset(tmp_path, task="pair_scorer")
    assert task.output_activation == "sigmoid"
    task = kzoo.from_preset(tmp_path, task="pair_scorer", output_activation=None)
    assert task.output_activation is None
    other = {"sentence_transformers": {"activation_fn": "torch.nn.Tanh"}}
    classifier_of_a_number(tmp_path, **other)
    with pytest.raises(Unsupported, match="torch.nn.Tanh"):
        kzoo.from_preset(tmp_path)


@pytest.mark.parametrize("kind", ["multi_label_classification", "regression"])
def test_several_numbers_of_a_text_are_no_classes(kind, tmp_path):
    written("bert_text_classifier", tmp_path)
    path = tmp_path / "config.json"
    config = {**json.loads(path.read_text()), "problem_type": kind}
    path.write_text(json.dumps(config))
    with pytest.raises(Unsupported, match=kind):
        kzoo.from_preset(tmp_path)
