"""LoRA and frozen weights: what trains, what a file keeps, and what is merged."""

import json

import keras
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import kzoo
from kzoo.tasks import load_model, load_task
from kzoo.training import Adam, ResumableCheckpoint
from tests.harness import perturb, to_numpy
from tests.words import EAGER, TOKENIZER, WORDS, causal

LABELS = ["short", "long"]
TARGETS = [LABELS[len(word) > 2] for word in WORDS]
QUERY, VALUE = (f"encoder/layer_0/self_attention/{n}" for n in ("query", "value"))


def classifier(kind=kzoo.TextClassifier, **changes):
    config = kzoo.ModelConfig.from_size(
        "tiny",
        "encoder",
        TOKENIZER.vocabulary_size,
        **{
            "num_layers": 1,
            "hidden_dim": 16,
            "intermediate_dim": 32,
            "dropout": 0.0,
            **changes,
        },
    )
    options = dict(tokenizer=TOKENIZER, head_dropout=0.0, name="classifier")
    return kind(config, LABELS, **options)


def values(task):
    named = task.named_variables().items()
    return {n: np.array(keras.ops.convert_to_numpy(v)) for n, v in named}


def randomize(task):
    """Adapters as if trained: a fresh B is zero."""
    rng = np.random.default_rng(3)
    for name, variable in task.named_variables().items():
        if "/lora_" in name:
            variable.assign(0.3 * rng.normal(size=variable.shape))
    return task


def trained(task):
    return {n for n, v in task.named_variables().items() if v.trainable}


def fit(task, epochs=1):
    keras.utils.set_random_seed(0)  # of the order of the examples
    task.fit(WORDS, TARGETS, epochs=epochs, verbose=0)


def logits(task):
    ids = np.array([[1, 5, 6, 7, 2], [1, 7, 5, 2, 0]], "int32")
    return np.array(keras.ops.convert_to_numpy(task({"token_ids": ids})))


def test_adapters_change_nothing_until_they_train():
    task = classifier(num_layers=2)
    before = logits(task)
    paths = task.enable_lora(2)
    assert paths == [
        f"encoder/layer_{i}/self_attention/{name}"
        for i in range(2)
        for name in ("query", "value")
    ]
    np.testing.assert_array_equal(logits(task), before)
    adapters = {f"{path}/lora_kernel_{end}" for path in paths for end in "ab"}
    head = {name for name in task.named_variables() if name.startswith("head/")}
    assert trained(task) == adapters | head
    count = sum(int(np.prod(v.shape)) for v in task.trainable_weights)
    assert count == 4 * 2 * (16 * 2) + sum(values(task)[n].size for n in head)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_only_adapters_and_head_move(policy):
    keras.config.set_dtype_policy(policy)
    task = classifier()
    task.enable_lora(2)
    task.compile(Adam(0.01), run_eagerly=EAGER)
    before = values(task)
    fit(task)
    after = values(task)
    moved = {name for name in before if (before[name] != after[name]).any()}
    assert moved == trained(task)
    inner = getattr(task.optimizer, "inner_optimizer", task.optimizer)
    assert len(inner._momentums) == len(trained(task))


@pytest.mark.parametrize("when", ["before", "after compile", "after fit"])
def test_the_optimizer_sees_adapters_whenever_they_come(when):
    task = classifier()
    options = dict(run_eagerly=EAGER and when != "after fit")
    if when != "before":
        task.compile(Adam(0.02, beta_2=0.9), **options)
    if when == "after fit":
        fit(task)
        assert task.predict(WORDS[:2]) is not None
    task.enable_lora(2, also_train=())
    if when == "before":
        task.compile(Adam(0.02, beta_2=0.9), **options)
    before, answers = values(task), task.predict(WORDS[:4])
    fit(task)
    after = values(task)
    assert {n for n in before if (before[n] != after[n]).any()} == trained(task)
    assert task.optimizer.beta_2 == 0.9
    assert (task.predict(WORDS[:4]) != answers).any()


class Halving(keras.optimizers.schedules.LearningRateSchedule):
    """Not registered with Keras."""

    def __call__(self, step):
        return 0.1 * 0.5 ** keras.ops.cast(step, "float32")

    def get_config(self):
        return {}


class Stubborn(keras.optimizers.SGD):
    """Its config does not make another."""

    def __init__(self, needed, **options):
        super().__init__(**options)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.parametrize("rate", [Halving(), lambda: 0.01])
def test_a_rate_need_not_be_registered(policy, rate):
    keras.config.set_dtype_policy(policy)
    task = classifier()
    task.compile(Adam(rate, beta_2=0.9), run_eagerly=EAGER)
    fit(task)
    task.freeze("encoder")
    before = values(task)
    fit(task)
    after = values(task)
    assert {n for n in before if (before[n] != after[n]).any()} == trained(task)
    assert not any(name.startswith("encoder/") for name in trained(task))
    inner = getattr(task.optimizer, "inner_optimizer", task.optimizer)
    assert inner._learning_rate is rate and inner.beta_2 == 0.9


def test_an_optimizer_that_cannot_be_made_anew_needs_compile():
    task = classifier()
    task.compile(Stubborn("this", learning_rate=0.1), run_eagerly=EAGER)
    fit(task)
    with pytest.warns(UserWarning, match=r"call compile\(\) again.*needed"):
        task.enable_lora(2, also_train=())
    before = values(task)
    with pytest.raises(ValueError, match="compile"):
        fit(task)
    task.compile(Stubborn("this", learning_rate=0.1), run_eagerly=EAGER)
    fit(task)
    after = values(task)
    assert {n for n in before if (before[n] != after[n]).any()} <= trained(task)


@keras.saving.register_keras_serializable("kzoo.tests")
class Normed(kzoo.TextClassifier):
    """With a layer of its own between pooling and head."""

    def build(self, *_):
        if not self.built:
            self.own = keras.layers.BatchNormalization(name="own")
            self.own.build((None, self.stack.config.hidden_dim))
        super().build()

    def call(self, inputs, training=None):
        pooled = self.pool(*self.states(inputs, training))
        return self.head(self.own(pooled, training=training), training=training)


def test_a_layer_of_one_s_own_is_frozen_saved_and_loaded(tmp_path):
    task, other = (classifier(Normed) for _ in "ab")
    task.compile(Adam(0.02), run_eagerly=EAGER)
    fit(task)
    statistics = {"own/moving_mean", "own/moving_variance"}
    assert statistics | {"own/gamma", "own/beta"} <= set(values(task))
    assert not task.fine_tuning_config()  # what never trains is not frozen
    assert "own/gamma" in task.freeze("own") and not task.own.gamma.trainable
    assert not statistics & set(task.unfreeze())
    before = values(task)
    fit(task)
    after = values(task)
    assert not statistics & trained(task)
    assert all((before[name] != after[name]).any() for name in statistics)
    task.enable_lora(2, also_train="own")
    assert {"own/gamma", "own/beta"} <= trained(task)
    task.merge_lora()
    assert not task.own.moving_mean.trainable
    task.freeze("encoder")
    fit(task)
    task.save(tmp_path / "task.keras")
    task.save_safetensors(tmp_path / "task.safetensors")
    other.load_safetensors(tmp_path / "task.safetensors")
    for loaded in (kzoo.load_model(tmp_path / "task.keras"), other):
        np.testing.assert_allclose(logits(loaded), logits(task), atol=1e-6)
    assert kzoo.load_model(tmp_path / "task.keras").fine_tuning_config() == (
        task.fine_tuning_config()
    )


def test_layers_come_in_build_and_names_are_one_s_own():
    class Late(kzoo.TextClassifier):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.losses_seen = [keras.metrics.Mean(name="own")]
            self.extra = keras.layers.Dense(3)

    with pytest.raises(ValueError, match=r"Make and build layers.*in build\(\)"):
        classifier(Late)

    class Twins(kzoo.TextClassifier):
        def build(self, *_):
            if not self.built:
                self.one, self.two = (keras.layers.Dense(3, name="gate") for _ in "ab")
                self.one.build((None, 3))
                self.two.build((None, 3))
            super().build()

    with pytest.raises(ValueError, match="two weights named gate/kernel"):
        classifier(Twins).named_variables()


def test_a_second_call_adds_layers_and_keeps_what_trains():
    task = classifier(num_layers=2)
    task.enable_lora(2, "encoder/layer_0/*query")
    first = trained(task)
    task.unfreeze("*final_norm")
    added = task.enable_lora(3, ["encoder/layer_1", "*token_embedding"], alpha=6)
    assert "encoder/layer_1/feed_forward/output" in added
    assert "encoder/token_embedding" in added and QUERY not in added
    now = trained(task)
    assert first < now and "encoder/layer_1/self_attention/key/kernel" not in now
    assert {name for name in now - first if "/lora_" not in name} == {
        f"encoder/final_norm/{name}" for name in ("gamma", "beta")
    }
    assert values(task)["encoder/token_embedding/lora_embeddings_b"].shape == (3, 16)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((2, "*/qeury"), r"No layer .*Received: '\*/qeury'. Near: .*layer_\*/.*query"),
        ((0,), "rank must be an integer of at least 1. Received: 0"),
        ((True,), "rank must be an integer of at least 1. Received: True"),
        ((2, "*query", "16"), "alpha must be a finite number.* Received: '16'"),
        ((2, "*query", True), "alpha must be a finite number.* Received: True"),
        ((2, "*query", np.nan), "alpha must be a finite number.* Received: nan"),
        ((2, "*query", np.inf), "alpha must be a finite number.* Received: inf"),
        ((2, "encoder", None, "haed/*"), "No weight .*Received: 'haed"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(arguments, said):
    task = classifier()
    before = trained(task)
    with pytest.raises(ValueError, match=said):
        task.enable_lora(*arguments)
    assert trained(task) == before == set(task.named_variables())


def test_an_alpha_of_numpy_is_saved(tmp_path):
    task = classifier()
    task.enable_lora(2, alpha=np.float32(6))
    task.save_lora(tmp_path / "adapters.safetensors")
    other = classifier()
    other.load_lora(tmp_path / "adapters.safetensors")
    assert other.encoder.blocks[0].self_attention.query.lora_alpha == 6


def test_a_layer_is_as_it_was_while_it_is_saved():
    task = classifier()
    task.enable_lora(2, "*query")
    perturb(task.named_variables().values())
    layer = task.encoder.blocks[0].self_attention.query
    x = np.ones((1, layer.kernel.shape[0]), "float32")
    expected = to_numpy(layer(x))

    class Store(dict):
        def __setitem__(self, name, value):
            super().__setitem__(name, to_numpy(value))
            np.testing.assert_array_equal(to_numpy(layer(x)), expected)

    store = Store()
    layer.save_own_variables(store)
    matrix, a, b = map(to_numpy, layer.lora_variables())
    for name, value in {"0": matrix, "lora_a": a, "lora_b": b}.items():
        np.testing.assert_array_equal(store[name], value)


def test_a_layer_has_adapters_once():
    task = classifier(num_layers=2)
    task.enable_lora(2, "*query")
    before = trained(task)
    with pytest.raises(ValueError, match=rf"has LoRA already at \['{QUERY}', .*merge"):
        task.enable_lora(2, "*")
    assert trained(task) == before
    with pytest.raises(ValueError, match=r"has no LoRA. Call enable_lora\(\) first"):
        classifier().merge_lora()


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_merging_gives_the_sum_to_the_last_bit(policy):
    keras.config.set_dtype_policy(policy)
    task = classifier()
    task.enable_lora(2, ["*attention", "*token_embedding"], alpha=3)
    randomize(task)
    layer = task.encoder.blocks[0].self_attention.query
    numbers = values(task)
    want = numbers[f"{QUERY}/kernel"] + 1.5 * (
        numbers[f"{QUERY}/lora_kernel_a"] @ numbers[f"{QUERY}/lora_kernel_b"]
    )
    kernels, before = keras.ops.convert_to_numpy(layer.kernel), logits(task)
    assert len(task.merge_lora()) == 5
    merged = values(task)[f"{QUERY}/kernel"]
    np.testing.assert_allclose(merged, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(merged.astype(kernels.dtype), kernels)
    if policy == "float32":
        np.testing.assert_array_equal(logits(task), before)
    assert set(task.named_variables()) == set(classifier().named_variables())
    assert trained(task) == set(task.named_variables())
    task.enable_lora(4, "*attention/query")  # again, as on any task
    task.compile(run_eagerly=EAGER)
    fit(task)


def test_adapters_alone_make_another_base_the_same_model(tmp_path):
    base, task = classifier(), classifier()
    task.set_weights(base.get_weights())
    task.compile(Adam(0.05), run_eagerly=EAGER)
    task.enable_lora(2, alpha=5)
    fit(task)
    path = tmp_path / "new" / "adapters.safetensors"
    task.save_lora(path)
    assert set(load_file(path)) == trained(task)
    with safe_open(path, "numpy") as file:
        described = json.loads(file.metadata()["kzoo_lora"])
    assert described[QUERY] == {"rank": 2, "alpha": 5} and len(described) == 2

    base.load_lora(path)
    np.testing.assert_array_equal(logits(base), logits(task))
    assert trained(base) == trained(task)
    randomize(base)
    base.load_lora(path)  # and over adapters that are there
    np.testing.assert_array_equal(logits(base), logits(task))


def test_adapters_that_do_not_fit_are_all_named_and_nothing_changes(tmp_path):
    path = tmp_path / "a.safetensors"
    task = classifier(num_layers=2)
    task.enable_lora(2)
    task.save_lora(path)
    arrays = load_file(path)
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()

    other = classifier(hidden_dim=32)
    before = values(other)
    with pytest.raises(ValueError) as raised:
        other.load_lora(path)
    said = str(raised.value)
    assert "encoder/layer_1/self_attention/value/lora_kernel_b" in said
    assert f"{QUERY}/lora_kernel_a: (16, 2), expected (32, 2)" in said
    assert set(values(other)) == set(before) and trained(other) == set(before)

    del arrays[f"{VALUE}/lora_kernel_a"]
    save_file(arrays, tmp_path / "less.safetensors", metadata)
    with pytest.raises(ValueError, match=rf"Missing: \['{VALUE}/lora_kernel_a'\]"):
        classifier(num_layers=2).load_lora(tmp_path / "less.safetensors")
    save_file(arrays, tmp_path / "bare.safetensors")
    with pytest.raises(ValueError, match="holds no adapters of kzoo"):
        classifier().load_lora(tmp_path / "bare.safetensors")
    more = classifier(num_layers=2)
    more.enable_lora(3, "*query")
    with pytest.raises(ValueError, match=r"lora_kernel_a: \(16, 2\), expected \(16, 3"):
        more.load_lora(path)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_folder_and_a_keras_file_load_back_as_they_were(tmp_path, policy):
    keras.config.set_dtype_policy(policy)
    task = classifier()
    task.freeze("*token_embedding")
    task.enable_lora(2, ["*query", "*token_embedding"], alpha=3)
    task.compile(Adam(0.01), run_eagerly=EAGER)
    fit(task)
    task.save(tmp_path / "task.keras")
    task.save_folder(tmp_path / "folder")
    from_file = load_model(tmp_path / "task.keras")
    for other in (from_file, load_task(tmp_path / "folder")):
        assert trained(other) == trained(task)
        mine, theirs = values(task), values(other)
        assert list(mine) == list(theirs)
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name])
        np.testing.assert_array_equal(logits(other), logits(task))
    fit(task)
    fit(from_file)
    for name, value in values(task).items():
        np.testing.assert_allclose(values(from_file)[name], value, atol=1e-6)


@pytest.mark.parametrize(
    "changes", [dict(alpha="x"), dict(alpha=[1]), dict(alpha=True), dict(rank=0)]
)
def test_a_folder_whose_adapters_have_no_numbers_is_refused(tmp_path, changes):
    task = classifier()
    task.enable_lora(2)
    task.save_folder(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["fine_tuning"]["lora"][QUERY].update(changes)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"{[*changes][0]} must be a"):
        load_task(tmp_path)


@pytest.mark.parametrize("adapted", [False, True])
def test_tasks_that_start_from_one_encoder_train_apart(adapted):
    source = classifier()
    if adapted:
        source.enable_lora(2)
    before, tasks = values(randomize(source)), [classifier(), classifier()]
    for task in tasks:
        task.load_encoder(source)
    for task in tasks:
        start = values(task)
        task.compile(run_eagerly=EAGER)
        fit(task)
        moved = [
            name for name, value in values(task).items() if (value != start[name]).any()
        ]
        assert "encoder/token_embedding/embeddings" in moved
        for name, value in values(source).items():
            np.testing.assert_array_equal(value, before[name])


def test_weights_of_adapters_are_merged_where_there_are_none(tmp_path):
    path = tmp_path / "task.weights.h5"
    task, plain = classifier(), classifier()
    task.enable_lora(2, ["*query", "*token_embedding"], alpha=3)
    randomize(task).save_weights(path)
    plain.load_weights(path)
    np.testing.assert_allclose(logits(plain), logits(task), atol=1e-5)
    again = classifier()
    again.load_encoder(task)
    for name, value in values(again).items():
        if name.startswith("encoder/"):
            np.testing.assert_allclose(value, values(plain)[name], atol=1e-6)

    # A file without adapters starts them anew, where Keras makes them zero for good.
    plain.save_weights(path)
    task.load_weights(path)
    np.testing.assert_allclose(logits(task), logits(plain), atol=1e-6)
    numbers = values(task)
    assert (numbers[f"{QUERY}/lora_kernel_a"] != 0).all()
    assert (numbers[f"{QUERY}/lora_kernel_b"] == 0).all()


@pytest.mark.usefixtures("greedy")  # how it searches is in no weight
@pytest.mark.parametrize(
    "options",
    [
        dict(format="onnx"),
        dict(format="onnx", quantize="int8"),
        pytest.param(dict(format="tf_saved_model"), marks=pytest.mark.tensorflow),
    ],
    ids=str,
)
def test_exports_are_merged_and_the_task_is_not(tmp_path, options):
    task = causal()
    task.enable_lora(2, "*", alpha=3)
    before = values(randomize(task))
    report = task.export(tmp_path / "model", **options)  # compares with the adapters
    assert {check["function"] for check in report.checks} >= {"forward", "generate"}
    size = sum(4 * array.size for name, array in before.items() if "/lora_" not in name)
    assert report.weight_bytes <= 1.05 * size
    assert trained(task) == {name for name in before if "/lora_" in name}
    for name, value in values(task).items():
        np.testing.assert_array_equal(value, before[name])


def test_frozen_weights_stay_to_the_bit_and_have_no_slots():
    task = classifier(num_layers=2)
    task.compile(Adam(0.05))
    fit(task)
    chosen = task.freeze("encoder/*embedding", "encoder/layer_[0-0]", "*final_norm")
    assert "encoder/layer_0/feed_forward/output/bias" in chosen
    assert "encoder/layer_1/feed_forward/output/bias" not in chosen
    before = values(task)
    fit(task)
    after = values(task)
    assert {n for n in before if (before[n] == after[n]).all()} == set(chosen)
    assert len(task.optimizer._momentums) == len(before) - len(chosen)

    # Keras's own view agrees, on every level.
    assert not task.encoder.blocks[0].trainable and task.encoder.blocks[1].trainable
    assert not task.encoder.blocks[0].trainable_weights
    lines = []
    task.summary(print_fn=lambda line, **_: lines.append(line))
    count = sum(before[name].size for name in chosen)
    said = next(line for line in lines if "Non-trainable params" in line)
    assert f" {count:,} " in said

    task.unfreeze("encoder/layer_0/*/bias")
    moving = {n for n in chosen if "layer_0" in n and n.endswith("/bias")}
    assert trained(task) == set(before) - set(chosen) | moving
    task.unfreeze()
    assert trained(task) == set(before)
    assert task.freeze() == list(before) and not task.trainable_weights
    with pytest.raises(ValueError, match=r"No weight .*Received: 'decoder/\*'. Near"):
        task.unfreeze("decoder/*")


def test_a_matrix_with_adapters_never_trains():
    task = classifier()
    task.enable_lora(2)
    task.unfreeze()
    assert f"{QUERY}/kernel" not in trained(task) and f"{QUERY}/bias" in trained(task)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_four_batches_count_as_one_of_four_times_the_rows(policy):
    keras.config.set_dtype_policy(policy)
    rows = [row for row in WORDS if len(row) == 3][:32]  # equally many targets a batch
    answers = [LABELS["a" in row] for row in rows]

    def train(batch_size, **options):
        keras.utils.set_random_seed(0)
        task = classifier(num_layers=2)
        task.enable_lora(2, "*")
        start = values(randomize(task))
        eager = EAGER and not options  # what counts as one is a graph
        options |= dict(layer_decay=0.9, global_clipnorm=0.3, epsilon=1e-3)
        task.compile(Adam(0.1, **options), run_eagerly=eager)
        options = dict(batch_size=batch_size, shuffle=False, epochs=2, verbose=0)
        task.fit(rows, answers, **options)
        return start, values(task)

    start, small = train(4, gradient_accumulation_steps=4)
    _, large = train(16)
    moved = max(np.abs(large[name] - start[name]).max() for name in start)
    assert moved > 0.1
    for name in large:
        close = 1e-4 if policy == "float32" else 0.05
        np.testing.assert_allclose(small[name], large[name], atol=close)


@pytest.mark.parametrize("lora", [False, True])
def test_a_training_killed_between_two_steps_goes_on_as_it_was(tmp_path, lora):
    """An epoch is 3 batches, a step 2: gradients wait when the file is written."""

    def train(epochs, path):
        keras.utils.set_random_seed(0)
        task = classifier()
        if lora:
            task.enable_lora(2)
        task.freeze("*embedding")
        optimizer = Adam(0.01, gradient_accumulation_steps=2, layer_decay=0.5)
        task.compile(optimizer, run_eagerly=EAGER and not lora)
        callbacks = [ResumableCheckpoint(path)]
        options = dict(batch_size=16, epochs=epochs, callbacks=callbacks, verbose=0)
        task.fit(WORDS[:48], TARGETS[:48], **options)
        return task

    whole = values(train(2, tmp_path / "whole.npz"))
    waiting = train(1, tmp_path / "half.npz").optimizer._accumulated_gradients
    assert any(np.any(keras.ops.convert_to_numpy(v)) for v in waiting)
    resumed = values(train(2, tmp_path / "half.npz"))
    for name in whole:
        np.testing.assert_array_equal(whole[name], resumed[name])


def test_weights_are_loaded_while_adapters_train(tmp_path):
    """As Keras's BackupAndRestore does, where a training was stopped."""

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    def train(folder, *others):
        keras.utils.set_random_seed(0)
        task = classifier()
        task.enable_lora(2)
        task.compile(Adam(1e-2), run_eagerly=EAGER)
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / folder))
        options = dict(shuffle=False, callbacks=[backup, *others], verbose=0)
        task.fit(WORDS, TARGETS, epochs=3, **options)
        return values(task)

    whole = train("whole")
    with pytest.raises(KeyboardInterrupt):
        train("stopped", Stop())
    resumed = train("stopped")
    for name in whole:
        np.testing.assert_allclose(resumed[name], whole[name], atol=1e-6)


def test_adapters_of_another_rank_are_refused_whole(tmp_path):
    tasks = []
    for rank in (2, 4):
        tasks.append(classifier())
        tasks[-1].enable_lora(rank)
    before = values(randomize(tasks[1]))
    randomize(tasks[0]).save(tmp_path / "task.keras")
    with pytest.raises(ValueError, match="Of other shapes: .*/lora_[ab]"):
        tasks[1].load_weights(tmp_path / "task.keras")
    for name, value in values(tasks[1]).items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize("road", ["load_lora", "load_weights"])
def test_adapters_of_another_alpha_count_in_what_is_compiled(tmp_path, road):
    ids = {"token_ids": np.array([[1, 5, 6, 7, 2], [1, 7, 5, 2, 0]], "int32")}

    def made(alpha):
        keras.utils.set_random_seed(0)
        task = classifier()
        task.enable_lora(2, "*", alpha=alpha)
        return randomize(task)

    one, other = made(1), made(20)
    other.run_eagerly = EAGER  # the other is what has no graph of before
    before = one.predict(WORDS[:4]), one.predict(ids, verbose=0)
    path = tmp_path / ("a.safetensors" if road == "load_lora" else "a.weights.h5")
    getattr(other, road.replace("load", "save"))(path)
    getattr(one, road)(path)
    for mine, theirs, old in zip(
        (one.predict(WORDS[:4]), one.predict(ids, verbose=0)),
        (other.predict(WORDS[:4]), other.predict(ids, verbose=0)),
        before,
    ):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
        assert np.abs(mine - old).max() > 0.1


def test_what_an_export_scored_goes_on_with_the_adapters(tmp_path):
    task = classifier()
    task.enable_lora(2, "*")
    randomize(task)
    texts, ids = WORDS[:4], {"token_ids": np.array([[1, 5, 6, 2]], "int32")}
    evaluate = task.encode_text(texts)[0], LABELS * 2
    report = task.export(tmp_path / "model.onnx", format="onnx", evaluate=evaluate)
    assert report.metric["model"] == report.metric["artifact"]
    before = task.predict(texts), task.predict(ids, verbose=0)
    for name, variable in task.named_variables().items():
        if name.endswith("_b"):
            variable.assign(3.0 * variable.value)
    for old, new in zip(before, (task.predict(texts), task.predict(ids, verbose=0))):
        assert np.abs(old - new).max() > 0.05
