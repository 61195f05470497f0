"""Pretrained models: from a folder or a repository to a task, and back."""

from kzoo.zoo.pretrained import from_preset, save_hf

__all__ = ["from_preset", "save_hf"]
