"""Search over a model's next-token logits: greedy and beam, one code everywhere."""

from kzoo.generation.function import CompiledFunction, shape_bucket
from kzoo.generation.search import beam_search, greedy_search, search

__all__ = [
    "CompiledFunction",
    "beam_search",
    "greedy_search",
    "search",
    "shape_bucket",
]
