"""Search over a model's next-token logits: greedy and beam, one code everywhere."""

from kzoo.generation.function import CompiledFunction, shape_bucket
from kzoo.generation.search import IMPOSSIBLE, search

__all__ = ["IMPOSSIBLE", "CompiledFunction", "search", "shape_bucket"]
