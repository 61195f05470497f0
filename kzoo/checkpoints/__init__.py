"""Checkpoints of the world: their files, their tables, and what reads and writes both.

`hub` finds a folder, `files` the tensors in it; neither runs code that a file holds.
`hf_config` relates keys and fields, `table` says what a family is, `engine` moves
weights.
"""
