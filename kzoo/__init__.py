"""A transformer zoo for Keras 3.

The names below load when first used: `import kzoo` imports no Keras, so that a
backend can still be chosen (`KERAS_BACKEND`) and a script starts fast.
"""

import importlib

__version__ = "0.1.0"

# Public name -> the module that has it.
_EXPORTS = {
    "AttentionRecorder": "kzoo.models",
    "CausalLM": "kzoo.tasks",
    "Decoder": "kzoo.models",
    "Encoder": "kzoo.models",
    "EncoderDecoder": "kzoo.models",
    "FastTokenizer": "kzoo.tokenizers",
    "MaskedLM": "kzoo.tasks",
    "ModelConfig": "kzoo.config",
    "PairScorer": "kzoo.tasks",
    "QuestionAnswering": "kzoo.tasks",
    "SearchOptions": "kzoo.generation",
    "SentenceEmbedder": "kzoo.tasks",
    "SentencePieceTokenizer": "kzoo.tokenizers",
    "Seq2SeqLM": "kzoo.tasks",
    "StackConfig": "kzoo.config",
    "TextClassifier": "kzoo.tasks",
    "TextRegressor": "kzoo.tasks",
    "TokenAutomaton": "kzoo.generation",
    "TokenClassifier": "kzoo.tasks",
    "from_preset": "kzoo.zoo",
    "list_presets": "kzoo.zoo",
    "load_model": "kzoo.tasks",
    "load_task": "kzoo.tasks",
    "load_tokenizer": "kzoo.tokenizers",
    "save_hf": "kzoo.zoo",
    "save_preset": "kzoo.zoo",
    "token_saliency": "kzoo.models",
}

_SUBMODULES = {
    "checkpoints",
    "config",
    "data",
    "exporters",
    "families",
    "generation",
    "layers",
    "models",
    "ops",
    "plots",
    "tasks",
    "tokenizers",
    "training",
    "zoo",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name):
    if name in _EXPORTS:
        value = getattr(importlib.import_module(_EXPORTS[name]), name)
    elif name in _SUBMODULES:
        value = importlib.import_module(f"kzoo.{name}")
    else:
        raise AttributeError(
            f"kzoo has no attribute {name!r}. Public names: {', '.join(__all__)}; "
            f"modules: {', '.join(sorted(_SUBMODULES))}."
        )
    globals()[name] = value  # the next use is a plain lookup
    return value


def __dir__():
    return sorted({*globals(), *_EXPORTS, *_SUBMODULES})
