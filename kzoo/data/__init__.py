"""Texts from files and TFDS, splits, and batches of few shapes for `fit`.

No Keras and no TensorFlow is imported here; grain, TFDS and `tf.data` are imported by
the functions that use them.
"""

from kzoo.data.batches import (
    BatchReport,
    BucketedBatches,
    RandomStretches,
    open_tf_data,
)
from kzoo.data.batching import are_vectors, bucketed_batches
from kzoo.data.buckets import choose_buckets
from kzoo.data.dates import LANGUAGES, date_pairs, write_date
from kzoo.data.errors import DataError
from kzoo.data.padding import packed_blocks, padded_batch
from kzoo.data.sources import (
    load_pairs,
    load_rows,
    load_tagged,
    load_texts,
)
from kzoo.data.splits import split_examples

__all__ = [
    "LANGUAGES",
    "BatchReport",
    "BucketedBatches",
    "DataError",
    "RandomStretches",
    "are_vectors",
    "bucketed_batches",
    "choose_buckets",
    "date_pairs",
    "load_pairs",
    "load_rows",
    "load_tagged",
    "load_texts",
    "open_tf_data",
    "packed_blocks",
    "padded_batch",
    "split_examples",
    "write_date",
]
