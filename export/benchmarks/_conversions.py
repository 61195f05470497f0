"""A folder that kzoo saved as CTranslate2's and as transformers' model: same weights.

For pre-norm encoder-decoders with sinusoidal positions, layer norm, ReLU and one
shared, tied table scaled by sqrt(D); and for BERT's form as transformers' BertModel.
Needs neither kzoo nor TensorFlow.
"""

import json
from pathlib import Path

import numpy as np


def read(folder):
    """The config (a dict) and the weights by path (numpy) of a saved kzoo model.

    Raises:
        ValueError: the model is not of the form that the other two are built for.
    """
    config, weights = _saved(folder)
    for stack in (config["encoder"], config["decoder"]):
        _check_form(
            {**stack, **{k: config[k] for k in ("share_embeddings", "tie_head")}},
            norm_position="pre", norm="layer_norm", positions="sinusoidal",
            activation="relu", feed_forward="plain", embedding_norm=False,
            final_norm=True, use_bias=True, share_embeddings=True, tie_head=True,
            embedding_scale=stack["hidden_dim"] ** 0.5,
        )  # fmt: skip
    return config, weights


def _saved(folder):
    """The config (a dict) and the weights by path (numpy) of a saved kzoo model."""
    from safetensors.numpy import load_file

    folder = Path(folder)
    config = json.loads((folder / "config.json").read_text())["model"]
    return config, load_file(folder / "model.safetensors")


def _check_form(stack, **wanted):
    """Raises `ValueError` where a stack is not of the benchmark's form."""
    other = {k: stack[k] for k, v in wanted.items() if stack[k] != v}
    if other:
        raise ValueError(f"The model is not of the benchmark's form: {other}.")


def sinusoids(length, width):
    """The paper's table, sine and cosine interleaved; float32 (length, width)."""
    pair = np.arange(width) // 2
    angles = np.arange(length)[:, None] * 10_000.0 ** (-2.0 * pair / width)
    return np.sin(angles + np.arange(width) % 2 * np.pi / 2).astype("float32")


def to_ctranslate2(folder, output, positions=512):
    """Writes a CTranslate2 model; token id i is the token "i"."""
    from ctranslate2 import specs

    config, weights = read(folder)
    encoder, decoder = config["encoder"], config["decoder"]
    spec = specs.TransformerSpec(
        specs.TransformerEncoderSpec(encoder["num_layers"], encoder["num_heads"]),
        specs.TransformerDecoderSpec(decoder["num_layers"], decoder["num_heads"]),
    )

    def linear(target, *paths):
        """One product for several kernels, as CTranslate2 stores them."""
        kernels = [weights[f"{path}/kernel"] for path in paths]
        target.weight = np.concatenate(kernels, axis=1).T.copy()
        target.bias = np.concatenate([weights[f"{path}/bias"] for path in paths])

    def norm(target, path):
        target.gamma, target.beta = weights[f"{path}/gamma"], weights[f"{path}/beta"]

    table = weights["encoder/token_embedding/embeddings"]
    for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        embeddings = stack.embeddings
        (embeddings[0] if isinstance(embeddings, list) else embeddings).weight = table
        stack.position_encodings.encodings = sinusoids(positions, table.shape[1])
        norm(stack.layer_norm, f"{name}/final_norm")
        for i, layer in enumerate(stack.layer):
            path = f"{name}/layer_{i}"
            own = f"{path}/self_attention"
            norm(layer.self_attention.layer_norm, f"{own}_norm")
            linear(
                layer.self_attention.linear[0],
                *(f"{own}/{part}" for part in ("query", "key", "value")),
            )
            linear(layer.self_attention.linear[1], f"{own}/output")
            if name == "decoder":
                cross = f"{path}/cross_attention"
                norm(layer.attention.layer_norm, f"{cross}_norm")
                linear(layer.attention.linear[0], f"{cross}/query")
                linear(layer.attention.linear[1], f"{cross}/key", f"{cross}/value")
                linear(layer.attention.linear[2], f"{cross}/output")
            norm(layer.ffn.layer_norm, f"{path}/feed_forward_norm")
            linear(layer.ffn.linear_0, f"{path}/feed_forward/intermediate")
            linear(layer.ffn.linear_1, f"{path}/feed_forward/output")
    spec.decoder.projection.weight = table
    tokens = [str(i) for i in range(table.shape[0])]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.unk_token = str(config["pad_token_id"])
    spec.config.bos_token = str(config["start_token_id"])
    spec.config.eos_token = str(config["end_token_id"])
    spec.config.decoder_start_token = str(config["start_token_id"])
    spec.config.layer_norm_epsilon = encoder["norm_epsilon"]
    Path(output).mkdir(exist_ok=True)
    spec.validate()
    spec.optimize(quantization=None)
    spec.save(str(output))


def to_transformers(folder, positions=512):
    """An `M2M100ForConditionalGeneration`: pre-norm, sinusoidal, scaled and tied."""
    import torch
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    config, weights = read(folder)
    encoder, decoder = config["encoder"], config["decoder"]
    sizes = {
        f"{side}_{theirs}": stack[ours]
        for side, stack in (("encoder", encoder), ("decoder", decoder))
        for theirs, ours in (
            ("layers", "num_layers"), ("attention_heads", "num_heads"),
            ("ffn_dim", "intermediate_dim"),
        )
    }  # fmt: skip
    model = M2M100ForConditionalGeneration(
        M2M100Config(
            vocab_size=encoder["vocabulary_size"],
            d_model=encoder["hidden_dim"],
            activation_function="relu",
            scale_embedding=True,
            max_position_embeddings=positions,
            pad_token_id=config["pad_token_id"],
            bos_token_id=config["start_token_id"],
            eos_token_id=config["end_token_id"],
            decoder_start_token_id=config["start_token_id"],
            **sizes,
        )
    ).eval()
    names = {
        "query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"
    }  # fmt: skip
    state = {"model.shared.weight": weights["encoder/token_embedding/embeddings"]}
    for path, value in weights.items():
        stack, *middle, last = path.split("/")
        if middle[0] == "token_embedding":
            continue
        suffix = {"kernel": "weight", "gamma": "weight"}.get(last, "bias")
        value = value.T if last == "kernel" else value
        if middle[0] == "final_norm":
            where = "layer_norm"
        else:
            where = middle[0].replace("layer_", "layers.") + "."
            where += {
                "self_attention": "self_attn." + names.get(middle[-1], ""),
                "cross_attention": "encoder_attn." + names.get(middle[-1], ""),
                "feed_forward": {"intermediate": "fc1"}.get(middle[-1], "fc2"),
                "self_attention_norm": "self_attn_layer_norm",
                "cross_attention_norm": "encoder_attn_layer_norm",
                "feed_forward_norm": "final_layer_norm",
            }[middle[1]]
        state[f"model.{stack}.{where}.{suffix}"] = value
    tied = {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight",
            "lm_head.weight"}  # fmt: skip
    _load_state(model, state, tied)
    model.tie_weights()
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = encoder["norm_epsilon"]
    table = torch.from_numpy(sinusoids(positions, encoder["hidden_dim"]))
    for stack in (model.model.encoder, model.model.decoder):
        # Its row 0 is position `padding_idx`, which real tokens count from.
        first = stack.embed_positions.padding_idx + 1
        stack.embed_positions.weights[first : first + positions] = table[
            : len(stack.embed_positions.weights) - first
        ]
    return model


def to_bert(folder, attention):
    """A `BertModel`: post-norm, learned positions, two segments, exact gelu.

    Args:
        folder: of a saved kzoo task with one encoder.
        attention: transformers' `attn_implementation`.
    """
    from transformers import BertConfig, BertModel

    config, weights = _saved(folder)
    stack = config["encoder"]
    _check_form(
        stack, norm_position="post", norm="layer_norm", positions="learned",
        activation="gelu", feed_forward="plain", embedding_norm=True,
        final_norm=False, use_bias=True, num_segments=2, embedding_scale=1.0,
    )  # fmt: skip
    model = BertModel(
        BertConfig(
            vocab_size=stack["vocabulary_size"],
            hidden_size=stack["hidden_dim"],
            num_hidden_layers=stack["num_layers"],
            num_attention_heads=stack["num_heads"],
            intermediate_size=stack["intermediate_dim"],
            max_position_embeddings=stack["max_sequence_length"],
            layer_norm_eps=stack["norm_epsilon"],
            attn_implementation=attention,
        ),
        add_pooling_layer=False,
    ).eval()
    names = {
        "token_embedding": "word_embeddings",
        "position_embedding": "position_embeddings",
        "segment_embedding": "token_type_embeddings",
        "embedding_norm": "LayerNorm",
        "self_attention/query": "attention.self.query",
        "self_attention/key": "attention.self.key",
        "self_attention/value": "attention.self.value",
        "self_attention/output": "attention.output.dense",
        "self_attention_norm": "attention.output.LayerNorm",
        "feed_forward/intermediate": "intermediate.dense",
        "feed_forward/output": "output.dense",
        "feed_forward_norm": "output.LayerNorm",
    }
    state = {}
    for path, value in weights.items():
        _, *middle, last = path.split("/")
        where = "embeddings"
        if middle[0].startswith("layer_"):
            where = "encoder." + middle.pop(0).replace("layer_", "layer.")
        suffix = "bias" if last in ("beta", "bias") else "weight"
        value = value.T if last == "kernel" else value
        state[f"{where}.{names['/'.join(middle)]}.{suffix}"] = value
    _load_state(model, state)
    return model


def _load_state(model, state, may_miss=()):
    """Loads numpy arrays into a torch module, all of them and into all that it has.

    Raises:
        ValueError: a weight is missing, apart from `may_miss`, or is one too many.
    """
    import torch

    state = {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in state.items()}
    problems = model.load_state_dict(state, strict=False)
    if problems.unexpected_keys or set(problems.missing_keys) - set(may_miss):
        raise ValueError(f"Weights do not fit transformers' model: {problems}.")
