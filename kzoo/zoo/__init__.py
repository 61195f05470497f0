"""Pretrained models: from a name, a folder or a repository to a task, and back.

Names load when first used: what kzoo ships can be listed without Keras.
"""

import importlib

_EXPORTS = {
    "from_preset": "kzoo.zoo.pretrained",
    "list_presets": "kzoo.zoo.registry",
    "save_hf": "kzoo.zoo.hf_saving",
    "save_preset": "kzoo.zoo.saving",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name):
    if name not in _EXPORTS:
        raise AttributeError(f"kzoo.zoo has no attribute {name!r}. It has {__all__}.")
    return getattr(importlib.import_module(_EXPORTS[name]), name)
