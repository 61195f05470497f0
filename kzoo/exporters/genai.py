"""A folder that onnxruntime-genai runs: the files, and the proof that it does."""

import importlib.util
import json
from pathlib import Path

import keras
import numpy as np

from kzoo.exporters import checks
from kzoo.exporters.errors import ANOTHER, ExportError
from kzoo.exporters.onnx_session import open_session, runner
from kzoo.exporters.report import OWN
from kzoo.exporters.tolerances import largest_difference
from kzoo.files import write_json
from kzoo.generation.streaming import before_end

CONFIG = "genai_config.json"
MODEL = "model.onnx"
# Keys that a user may set lower.
_LIMITS = ("model.context_length", "search.max_length")

# What a tokenizer is tried on.
SAMPLES = (
    "Once upon a time, there were 3 bears.",
    "  two  spaces,\n\na new line\tand a tab ",
    "Zwei Männer – don't they'll say: «oui»? 12345 東京 🙂",
)


def function_of(task):
    """The function that `format="genai"` writes.

    Raises:
        ExportError: onnxruntime-genai runs no such task.
    """
    if not hasattr(task, "genai_function"):
        raise ExportError(
            "format='genai' is for a CausalLM: onnxruntime-genai runs decoders, and "
            "none of kzoo's other architectures. "
            f"Received: {type(task).__name__}. Export format='onnx', whose "
            "functions='prefill' and 'step' serve token by token, too."
        )
    if task.own_processors:
        raise ExportError(
            "onnxruntime-genai searches by itself and knows no processors. Received: "
            f"{task.name}.processors={task.processors!r}. Take them from the task, or "
            "export format='onnx', whose `generate` holds them."
        )
    return task.genai_function()


def model_inputs(ids, mask):
    """The inputs of a step beside the cache.

    Args:
        ids: int (B, T).
        mask: bool (B, S), which of the S positions so far are real; these T come last.

    Returns:
        dict of int32 arrays.
    """
    counted = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    positions = np.where(mask, counted, 0)[:, -ids.shape[1] :]
    return {
        "input_ids": ids,
        "attention_mask": mask.astype("int32"),
        "position_ids": positions.astype("int32"),
    }


def ends_of(task):
    """The ids that end what is generated: the end token, then the task's stops."""
    stops = task._own_inputs().get("stop_token_ids", ())
    return list(dict.fromkeys([task.config.end_token_id, *map(int, stops)]))


def describe(task, folder, report):
    """Writes what stands beside the model: both configs, and the tokenizer.

    Args:
        task: a `CausalLM`.
        folder: of the model.
        report: gets a note of what is left out.
    """
    folder = Path(folder)
    for name, content in _configs(task).items():
        write_json(folder / name, content)
    if task.tokenizer is None:
        report.notes.append("The task has no tokenizer, so the folder has none.")
        return
    described = _tokenizer_files(task)
    if described is None:
        report.notes.append(
            "No tokenizer.json: onnxruntime-genai reads byte-level byte-pair encodings "
            f"of kzoo, not {task.tokenizer!r}. Give it ids."
        )
        return
    for name, content in described.items():
        write_json(folder / name, content)


def _configs(task):
    """Name to content of the files that tell what the model is."""
    config, stack, ends = task.config, task.config.decoder, ends_of(task)
    special = {
        "bos_token_id": config.start_token_id,
        "eos_token_id": ends if len(ends) > 1 else ends[0],
        "pad_token_id": config.pad_token_id,
    }
    inputs = {name: name for name in ("input_ids", "attention_mask", "position_ids")}
    kinds = ("key", "value")
    inputs |= {f"past_{kind}_names": f"past_key_values.%d.{kind}" for kind in kinds}
    outputs = {f"present_{kind}_names": f"present.%d.{kind}" for kind in kinds}
    decoder = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": MODEL,
        "head_size": stack.head_dim,
        "hidden_size": stack.hidden_dim,
        "num_attention_heads": stack.num_heads,
        "num_hidden_layers": stack.num_layers,
        "num_key_value_heads": stack.num_key_value_heads,
        "inputs": inputs,
        "outputs": {"logits": "logits", **outputs},
    }
    limit = stack.max_sequence_length
    model = {
        "type": "decoder",
        **special,
        "vocab_size": stack.vocabulary_size,
        "context_length": limit,
        "decoder": decoder,
    }
    # The cache is concatenated; a shared buffer is for onnxruntime's own operators.
    search = {
        "do_sample": False,
        "max_length": limit,
        "past_present_share_buffer": False,
    }
    return {
        CONFIG: {"model": model, "search": search},
        "config.json": {
            "task": type(task).__name__,
            "model": config.to_dict(),
            # What other tools call these.
            "model_type": "kzoo",
            "vocab_size": stack.vocabulary_size,
            "hidden_size": stack.hidden_dim,
            "intermediate_size": stack.intermediate_dim,
            "num_hidden_layers": stack.num_layers,
            "num_attention_heads": stack.num_heads,
            "num_key_value_heads": stack.num_key_value_heads,
            "head_dim": stack.head_dim,
            "max_position_embeddings": limit,
            **special,
        },
    }


def _tokenizer_files(task):
    """Name to content of the files that make `task.tokenizer`, or `None`."""
    if task.tokenizer.file_name != "tokenizer.json":
        return None
    model = json.loads(task.tokenizer.get_config()["model"])
    pre_tokenizer = model["pre_tokenizer"] or {}
    if (
        model["model"]["type"] != "BPE"
        or model["normalizer"] is not None
        or pre_tokenizer.get("type") != "ByteLevel"
    ):
        return None
    start, end, pad = (
        task.tokenizer.tokens([token_id])[0]
        for token_id in (
            task.config.start_token_id,
            task.config.end_token_id,
            task.config.pad_token_id,
        )
    )
    before, _ = task.prompt_specials
    names = dict(zip(before, task.tokenizer.tokens(before)))
    model["post_processor"] = task.template.of(before, between=()).processor(names)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(before),
        "bos_token": start,
        "eos_token": end,
        "pad_token": pad,
        "clean_up_tokenization_spaces": False,
        "model_max_length": task.config.decoder.max_sequence_length,
    }
    if task.tokenizer.original_pad_token_id != task.config.pad_token_id:
        del config["pad_token"]  # a name for a byte, which texts may have, too
    return {"tokenizer.json": model, "tokenizer_config.json": config}


def verify(task, folder, report, own=(), new=False):
    """Generates step by step in onnxruntime and in onnxruntime-genai, as Keras does.

    The logits are compared with those of the task without a cache, too.

    Args:
        task: a `CausalLM`.
        folder: of the model and its files.
        report: gets the checks.
        own: `Batch`es of the user's inputs, which are prompts, too.
        new: whether the folder is just being made. Then the files of a tokenizer that
            onnxruntime-genai reads otherwise are removed, and a note says so.

    Raises:
        ExportError: a token or a logit differs, or what ends the text; or an id of the
            tokenizer, but in a new folder.
    """
    configs = _configs(task)
    # The user's: how it is run and searched.
    del configs[CONFIG]["model"]["decoder"]["session_options"]
    del configs[CONFIG]["search"]["do_sample"]
    del configs["config.json"]["model"]  # which `exporters.verify` compares
    for name, content in configs.items():
        _check_config(Path(folder) / name, content, report)
    limit = task.config.decoder.max_sequence_length  # of genai's, for all positions
    if limit < 2:
        raise ExportError(
            "onnxruntime-genai continues prompts, so that max_sequence_length must be "
            f"2 or more. Received: {limit}."
        )
    length = min(12, limit // 2)
    ids = task._random_ids(np.random.default_rng(1), "token_ids", (3, length), "behind")
    _verify(task, Path(folder), report, ids, min(task.room(8), limit - length))
    _check_tokenizer(task, Path(folder), report, new)
    for batch in own:
        ids = batch.columns["token_ids"]
        _verify(task, Path(folder), report, ids, batch.new_tokens, batch.names)


def _check_config(file, right, report):
    """Raises `ExportError` where a config says otherwise than `describe` writes.

    What others wrote beside it is theirs.
    """
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(said, dict):
            raise ValueError(f"a {type(said).__name__}")
    except (OSError, ValueError) as error:
        raise ExportError(
            f"{file} should be what kzoo writes, a JSON object. Received: {error}. "
            "Export the model again."
        ) from error
    pairs = [("", said, right)]
    while pairs:
        path, found, expected = pairs.pop()
        if isinstance(found, dict) and isinstance(expected, dict):
            pairs += [
                (f"{path}.{name}".strip("."), found.get(name), value)
                for name, value in expected.items()
            ]
        elif path in _LIMITS and isinstance(found, int) and 0 < found < expected:
            continue
        elif found != expected:
            raise ExportError(
                f"{report.path}, {file.name}: {path} should be {expected!r}, as the "
                f"task has it. Received: {found!r}. Export it again."
            )


def _verify(task, folder, report, ids, steps, rows=None):
    """As `verify`, from int (B, T) prompts padded on the right."""
    ends = ends_of(task)
    (generate,) = (f for f in task.export_functions() if f.name == "generate")
    inputs = {"token_ids": ids, "max_new_tokens": steps}
    sequences = checks.reference(generate, inputs)["sequences"][:, 0]
    expected = [before_end(row, ends)[:steps] for row in sequences.tolist()]
    mask = ids != task.config.pad_token_id

    tokens, logits = _decode(task, folder, ids, mask, steps)
    prompts = [row[real].tolist() for row, real in zip(ids, mask)]
    whole = [prompt + row.tolist() for prompt, row in zip(prompts, tokens)]
    without_cache = [_logits(task, row[:-1])[-steps:] for row in whole]
    checks.compare(
        task.genai_function(),
        f"{OWN}, token by token" if rows else "token by token, padded",
        {"logits": logits},
        {"logits": np.stack(without_cache)},
        report,
        rows,
    )

    def check_tokens(case, found):
        # Without what ends them, which genai does not always give.
        found = [before_end(row, ends)[:steps] for row in found]
        ties = 0
        for number, (got, right) in enumerate(zip(found, expected, strict=True)):
            if got == right:
                continue
            if not _are_tied(task, prompts[number], got, steps, ends):
                raise ExportError(
                    f"{report.path}, model, {case}, "
                    f"{rows[number] if rows else f'row {number}'}: the tokens should "
                    f"be {right}, as Keras generates them. Received: {got}."
                )
            ties += 1
        check = {"function": "model", "case": case, "difference": 0.0}
        check |= {"tokens_equal": True, "sequences": len(expected)}
        check["ended"] = sum(len(row) < steps for row in expected)
        if ties:
            check["ties"] = ties
        if ties or not rows:  # of the user's the logits' check says how many
            report.checks.append(check)

    check_tokens("greedy in onnxruntime", tokens.tolist())
    if importlib.util.find_spec("onnxruntime_genai") is None:
        report.notes.append(
            "Not run in onnxruntime-genai, which is not installed: pip install "
            "'kzoo[genai]'."
        )
        return
    import onnxruntime_genai

    if not rows:
        report.runtime += f", onnxruntime-genai {onnxruntime_genai.__version__}"
    try:
        model = onnxruntime_genai.Model(str(folder))
        options = onnxruntime_genai.GeneratorParams(model)
        options.set_search_options(
            batch_size=len(ids), max_length=ids.shape[1] + steps, do_sample=False
        )
        generator = onnxruntime_genai.Generator(model, options)
        generator.append_tokens(ids)
        while not generator.is_done():
            generator.generate_next_token()
        found = [generator.get_sequence(i)[ids.shape[1] :] for i in range(len(ids))]
    except Exception as error:  # it raises what C++ throws, RuntimeError or else
        raise ExportError(f"onnxruntime-genai cannot run {folder}: {error}") from error
    check_tokens("greedy in onnxruntime-genai", [row.tolist() for row in found])


def _decode(task, folder, ids, mask, steps):
    """Greedy search with the cache: tokens int (B, L), logits float (B, L, V)."""
    function, tokens, logits = task.genai_function(), [], []
    run = runner(function, open_session(folder / MODEL))
    past = [argument for argument in function.arguments if len(argument.axes) == 4]
    present = list(function.outputs)[1:]
    shape = [len(ids), past[0].axes[1], 0, past[0].axes[3]]
    cache = [np.zeros(shape, "float32") for _ in past]
    last = mask.sum(axis=1) - 1
    for _ in range(steps):
        names = (argument.name for argument in past)
        outputs = run({**model_inputs(ids, mask), **dict(zip(names, cache))})
        logits.append(outputs["logits"][np.arange(len(ids)), last])
        ids = logits[-1].argmax(axis=-1)[:, None].astype("int32")
        tokens.append(ids)
        mask = np.concatenate([mask, np.ones_like(ids, bool)], axis=1)
        cache = [outputs[name] for name in present]
        last = 0
    return np.concatenate(tokens, axis=1), np.stack(logits, axis=1)


def _logits(task, row):
    """Keras's logits at every position of a row of ids, float (T, V)."""
    ids = keras.ops.convert_to_tensor([row], "int32")
    # Generated ids are real, even those that stand for padding.
    mask = keras.ops.ones_like(ids, "bool")
    logits = task({"token_ids": ids, "padding_mask": mask}, training=False)
    return keras.ops.convert_to_numpy(logits)[0]


def _are_tied(task, prompt, tokens, steps, ends):
    """Whether each token is as good as Keras's best one behind those before it.

    `tokens` are without what ends them, if they are fewer than `steps`.
    """
    logits = _logits(task, (prompt + tokens)[: len(prompt) + steps - 1])
    logits = logits[len(prompt) - 1 :]
    taken = [row[token] for row, token in zip(logits, tokens)]
    if len(tokens) < steps:
        taken.append(logits[-1][ends].max())
    best = logits.max(axis=-1)  # others, such as those of banned tokens, may be huge
    allowed = 2 * largest_difference("float32", np.abs(best))
    return bool((best - taken <= allowed).all())


def _check_tokenizer(task, folder, report, new):
    """Raises `ExportError` where onnxruntime-genai gives other ids; see `verify`."""
    if task.tokenizer is None or not (folder / "tokenizer.json").is_file():
        return
    if not new:
        _check_files(task, folder)
    if importlib.util.find_spec("onnxruntime_genai") is None:
        return
    import onnxruntime_genai

    try:
        tokenizer = onnxruntime_genai.Tokenizer(onnxruntime_genai.Model(str(folder)))
        found = [tokenizer.encode(text).tolist() for text in SAMPLES]
    except Exception as error:  # it raises what C++ throws, RuntimeError or else
        raise ExportError(
            f"onnxruntime-genai cannot read {folder / 'tokenizer.json'}: {error}. "
            "Export the model again."
        ) from error
    expected = task.tokenizer.encode(SAMPLES)
    for text, got, right in zip(SAMPLES, found, expected, strict=True):
        if got == right:
            continue
        if not new:
            raise ExportError(
                f"{report.path}, tokenizer.json: for {text!r} the ids should be "
                f"{right}, which the task's tokenizer gives. Received from "
                f"onnxruntime-genai: {got}. Export the model again."
            )
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).unlink()
        report.notes.append(
            "No tokenizer.json: onnxruntime-genai gives other ids than the task's "
            f"tokenizer, for {text!r} {got} and not {right}. Give it ids."
        )
        return


def _check_files(task, folder):
    """Raises `ExportError` where a tokenizer's file is not what `describe` writes."""
    import tokenizers

    def read(text):  # as the installed version would write it
        return json.loads(tokenizers.Tokenizer.from_str(text).to_str())

    for name, content in (_tokenizer_files(task) or {}).items():
        file, parse = folder / name, read if name == "tokenizer.json" else json.loads
        try:
            same = parse(file.read_text(encoding="utf-8")) == parse(json.dumps(content))
        except Exception as error:  # tokenizers raises no other class
            raise ExportError(
                f"{file} cannot be read: {error}. Export the model again."
            ) from error
        if not same:
            raise ExportError(
                f"{file} should be what the tokenizer of {task.name} gives, and is "
                f"not. {ANOTHER}"
            )
