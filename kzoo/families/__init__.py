"""The families of checkpoints, a file each: data for `kzoo.checkpoints`, no code.

A family says how the keys of its `config.json` become a `ModelConfig`, and under which
names its weights are stored.
"""

import importlib

# model_type -> the module that has it, in its `FAMILIES`.
MODULES = {
    "albert": "albert",
    "bart": "bart",
    "bert": "bert",
    "distilbert": "distilbert",
    "electra": "electra",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "gpt2": "gpt2",
    "gpt_neox": "gpt_neox",
    "llama": "llama",
    "m2m_100": "m2m_100",
    "marian": "marian",
    "mbart": "mbart",
    "mistral": "mistral",
    "modernbert": "modernbert",
    "mt5": "mt5",
    "opt": "opt",
    "pegasus": "pegasus",
    "phi3": "phi3",
    "qwen2": "qwen",
    "qwen3": "qwen",
    "roberta": "roberta",
    "t5": "t5",
    "xlm-roberta": "roberta",
}


def family_of(model_type):
    """The `Family` of a `config.json`'s `model_type`.

    Raises:
        ValueError: an unknown one; the known ones are listed.
    """
    if not isinstance(model_type, str) or model_type not in MODULES:
        raise ValueError(
            f"model_type={model_type!r} is not supported. Supported: {sorted(MODULES)}."
        )
    module = importlib.import_module(f"kzoo.families.{MODULES[model_type]}")
    return module.FAMILIES[model_type]
