"""Splits by content, for corpora that come without one."""

import hashlib

from kzoo.arguments import check_count


def split_examples(examples, *, validation=0.1, test=0.1, seed=0, side=0):
    """Splits examples by a hash of one side, by default their source.

    Examples that are equal on that side go to the same split whatever the other is, so
    that no test sentence was trained on with another translation; and an example stays
    where it is when the corpus grows.

    Args:
        examples: strings, or tuples whose item `side` is a string.
        validation: expected share of the distinct texts, in [0, 1).
        test: likewise; the two sum to less than 1.
        seed: another number gives another split.
        side: the number of the item that is hashed, from 0.

    Returns:
        dict of lists `"train"`, `"validation"`, `"test"`, each in the order of
        `examples`.

    Raises:
        ValueError: the shares leave nothing to train on, `side` is no number of an
            item, or an example has no such side; its number is named, from 0.
    """
    check_count("side", side, 0)
    if not (validation >= 0 and test >= 0 and validation + test < 1):  # nor NaN
        raise ValueError(
            "validation and test must be shares that sum to less than 1. "
            f"Received: validation={validation}, test={test}."
        )
    splits = {"train": [], "validation": [], "test": []}
    for number, example in enumerate(examples):
        try:
            text = example if isinstance(example, str) else example[side]
        except (IndexError, KeyError, TypeError):
            text = None
        if not isinstance(text, str):
            raise ValueError(
                f"Example {number} should have a string as side {side}. "
                f"Received: {example!r}."
            )
        place = hash_fraction(f"{seed}\n{text}")
        if place < test:
            name = "test"
        elif place < test + validation:
            name = "validation"
        else:
            name = "train"
        splits[name].append(example)
    return splits


def hash_fraction(text):
    """A number in [0, 1) that depends on the text alone, in every process."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "big") / 2**64
