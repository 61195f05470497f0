"""Splits by content, for corpora that come without one."""

import hashlib


def split_examples(examples, *, validation=0.1, test=0.1, seed=0):
    """Splits examples by a hash of their source side.

    Equal sources go to the same split whatever their targets are, so that no test
    sentence was trained on with another translation; and an example stays where it is
    when the corpus grows.

    Args:
        examples: strings, or tuples whose first item, a string, is the source.
        validation: expected share of the distinct sources, in [0, 1).
        test: likewise; the two sum to less than 1.
        seed: another number gives another split.

    Returns:
        dict of lists `"train"`, `"validation"`, `"test"`, each in the order of
        `examples`.

    Raises:
        ValueError: the shares leave nothing to train on.
    """
    if validation < 0 or test < 0 or validation + test >= 1:
        raise ValueError(
            "validation and test must be shares that sum to less than 1. "
            f"Received: validation={validation}, test={test}."
        )
    splits = {"train": [], "validation": [], "test": []}
    for example in examples:
        source = example if isinstance(example, str) else example[0]
        place = hash_fraction(f"{seed}\n{source}")
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
