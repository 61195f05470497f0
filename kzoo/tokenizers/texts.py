"""Texts that users give: how they are checked, shown in errors, and trimmed."""

# Spaces and marks without width, which SentencePiece reads as white space, too.
_ZERO_WIDTH = "\u200b\u200e\u200f\ufeff"


def check_texts(texts, caller) -> list[str]:
    """The texts as a list of `str` that all have a UTF-8 form.

    Raises:
        TypeError: not a sequence of `str`.
        ValueError: a lone surrogate; the text's index is named.
    """
    if isinstance(texts, (str, bytes)) or not hasattr(texts, "__iter__"):
        raise TypeError(
            f"{caller} expects a list of strings; wrap a single one in a list. "
            f"Received: {describe(texts)}."
        )
    texts = list(texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(
                f"{caller} expects a list of strings. "
                f"Received: {describe(text)} at index {index}."
            )
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{caller}: the text at index {index} has no UTF-8 form (a lone "
                f"surrogate at character {error.start}). Decode the source with "
                "errors='replace'."
            ) from error
    return texts


def trimmed(text, start, end):
    """The part of `text[start:end]` without white space at its ends."""
    while start < end and _is_space(text[start]):
        start += 1
    while start < end and _is_space(text[end - 1]):
        end -= 1
    return start, end


def _is_space(character):
    return character.isspace() or character in _ZERO_WIDTH


def describe(value):
    """A value and its type, in few characters, for an error."""
    shown = repr(value)
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    return f"{shown} of type {type(value).__name__}"
