"""Search over a model's next-token logits: one code everywhere."""

from kzoo.generation.automaton import TokenAutomaton
from kzoo.generation.function import CompiledFunction, shape_bucket
from kzoo.generation.options import (
    RANGES,
    REQUIRED,
    SEARCH_INPUTS,
    SearchOptions,
    as_defaults,
)
from kzoo.generation.places import Place, Start
from kzoo.generation.processors import BANNED, Context
from kzoo.generation.search import IMPOSSIBLE, Search, search

__all__ = [
    "BANNED",
    "IMPOSSIBLE",
    "RANGES",
    "REQUIRED",
    "SEARCH_INPUTS",
    "CompiledFunction",
    "Context",
    "Place",
    "Search",
    "SearchOptions",
    "Start",
    "TokenAutomaton",
    "as_defaults",
    "search",
    "shape_bucket",
]
