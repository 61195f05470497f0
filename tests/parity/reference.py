"""What transformers computes for a row, with weights that follow from their names.

Run as a script it writes `tests/golden/families/`, from which `parity_test.py` works
without torch: `python -m tests.parity.reference [ROW ...]`, where torch 2.13.0 and
transformers are installed.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np

from tests.parity.rows import ROWS
from tests.parity.weights import weight

GOLDEN = Path(__file__).parents[1] / "golden" / "families"
LENGTHS, NEW_TOKENS = (9, 5, 1), 8


def model_of(row, dtype="float32"):
    """The model of transformers."""
    import tempfile

    import transformers
    from safetensors.numpy import load_file, save_file

    config = getattr(transformers, row["config_class"])(**row["config"])
    config._attn_implementation = "eager"
    kind = getattr(transformers, row["architecture"])
    with tempfile.TemporaryDirectory() as folder:
        # Through a file: some models have other names there than in memory.
        shapes, _ = stored(kind(config), folder)
        path = Path(folder) / "model.safetensors"
        original = load_file(path)
        if row.get("untied"):  # a head of its own, whatever the config says
            shapes["lm_head.weight"] = shapes["shared.weight"]
        tensors = {
            name: original[name]
            if re.fullmatch(row.get("constant", ""), name)
            else weight(name, tuple(shape))
            for name, shape in shapes.items()
        }
        save_file(tensors, path, {"format": "pt"})
        model, found = kind.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation="eager",
            output_loading_info=True,
        )
    if found["missing_keys"] or found["unexpected_keys"]:
        raise ValueError(f"{row['architecture']} was not loaded whole: {found}")
    for name, value in row.get("generation", {}).items():
        setattr(model.generation_config, name, value)
    return model.eval()


def batch(row, side):
    """int (B, T) ids and the mask of their padding, by a row's own numbers."""
    size, pad = row["config"]["vocab_size"], row["config"].get("pad_token_id", 0)
    low = 5 if size > 20 else 3
    rng = np.random.Generator(np.random.Philox(3))
    ids = rng.integers(low, size - 2, (len(LENGTHS), max(LENGTHS)))
    if row["task"] == "question_answering":
        ids[:, [3, 8]] = row["end"]  # of the question, and of the context
    if row.get("ended"):  # once, by the token whose state is read
        ids[np.arange(len(ids)), np.array(LENGTHS) - 1] = row["end"]
    mask = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    if side == "left":
        ids, mask = ids[:, ::-1], mask[:, ::-1]
    ids = np.where(ids == pad, pad + 1, ids)
    return np.where(mask, ids, pad), mask


def sides(row):
    """Where padding stands."""
    return ("right", "left") if row["left"] else ("right",)


def outputs(row, model, only=None):
    """Name -> array of what the model gives, by side: numbers, of its own dtype.

    `only` gives a row of the batch alone, without its padding.
    """
    import torch

    found = {}
    with torch.no_grad():
        for side in sides(row):
            ids, mask = batch(row, side)
            own = slice(None) if only is None else slice(only, only + 1)
            if only is not None:
                ids, mask = ids[own, mask[only]], mask[own, mask[only]]
            given = dict(
                input_ids=torch.from_numpy(ids),
                attention_mask=torch.from_numpy(mask.astype("int64")),
            )
            counted = row["task"] != "seq2seq_lm" and row.get("position_ids", True)
            if side == "left" and counted:
                places = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
                given["position_ids"] = torch.from_numpy(places)
            if row["task"] == "seq2seq_lm":
                given["decoder_input_ids"] = torch.from_numpy(targets(row, model)[own])
            result = model(**given, output_hidden_states=True)
            found |= {f"{side}_{k}": v for k, v in last_states(result).items()}
            kind = {"question_answering": "start_logits"}.get(row["task"], "logits")
            if row["task"] == "sentence_embedder":
                kind = "last_hidden_state"
            value = getattr(result, kind)
            if kind == "start_logits":
                value = torch.stack([value, result.end_logits], axis=1)
            found[side] = as_numpy(value)
    return found


def as_numpy(x):
    """A tensor as an array; bfloat16, which numpy has not, as float32."""
    import torch

    return (x.float() if x.dtype == torch.bfloat16 else x).numpy()


def generated(row, model):
    """Name -> array of what the model generates."""
    import torch

    if row["task"] not in ("causal_lm", "seq2seq_lm"):
        return {}
    found = {}
    side = "left" if row["task"] == "causal_lm" else "right"
    ids, mask = batch(row, side)
    first = ids.shape[1] if row["task"] == "causal_lm" else 1
    inputs = torch.from_numpy(ids)
    given = {"attention_mask": torch.from_numpy(mask.astype("int64"))}
    with torch.no_grad():
        for beams in (1, 3):
            made = model.generate(
                inputs,
                **given,
                max_new_tokens=NEW_TOKENS,
                min_new_tokens=0,
                do_sample=False,
                num_beams=beams,
                early_stopping=beams > 1,
                suppress_tokens=[model.config.pad_token_id],  # kzoo gives none
            ).numpy()
            found[f"beams_{beams}"] = made[:, first:]
        if "generation" in row:
            found["by_default"] = model.generate(inputs, **given).numpy()[:, first:]
    return found


def last_states(result):
    """Name -> the last hidden states of a stack, float (B, T, D).

    Those of a model without a head are its outputs, and not given again.
    """
    if "last_hidden_state" in result:
        return {}
    found = {"states": result.get("hidden_states")}
    if "encoder_last_hidden_state" in result:
        found = {
            "encoder": [result.encoder_last_hidden_state],
            "decoder": result.decoder_hidden_states,
        }
    return {name: as_numpy(states[-1]) for name, states in found.items()}


def targets(row, model):
    """The decoder's inputs of an encoder-decoder, int (B, T)."""
    rng = np.random.Generator(np.random.Philox(4))
    size = model.config.get_text_config(decoder=True).vocab_size
    size = getattr(model.config, "decoder_vocab_size", None) or size
    ids = rng.integers(5, size - 2, (len(LENGTHS), 6))
    ids[:, 0] = model.config.decoder_start_token_id
    return ids


def stored(model, folder=None):
    """Names and shapes of what a file of this model holds, and its configs."""
    import tempfile

    from safetensors import safe_open

    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(folder or scratch)
        path = Path(folder or scratch)
        with safe_open(path / "model.safetensors", "np") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}
        configs = {
            name: json.loads((path / f"{name}.json").read_text())
            for name in ("config", "generation_config")
            if (path / f"{name}.json").is_file()
        }
        return shapes, configs


def main(names):
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name in names or ROWS:
        row = ROWS[name]
        model = model_of(row)
        found = outputs(row, model) | generated(row, model)
        if row.get("bfloat16"):
            half = outputs(row, model_of(row, "bfloat16"))
            found |= {f"{side}_bfloat16": half[side] for side in sides(row)}
        shapes, configs = stored(model)
        for config in configs.values():
            config.pop("transformers_version", None)
        described = {**configs, "tensors": shapes}
        if row["task"] == "seq2seq_lm":
            found["targets"] = targets(row, model)
        np.savez_compressed(
            GOLDEN / f"{name}.npz", described=json.dumps(described), **found
        )
        print(name, (GOLDEN / f"{name}.npz").stat().st_size)


if __name__ == "__main__":
    main(sys.argv[1:])
