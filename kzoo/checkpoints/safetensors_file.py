"""The safetensors format: a JSON header and the bytes of tensors without gaps.

Format: https://github.com/huggingface/safetensors#format. The `safetensors` library
checks a file; it has no reader of float8 for numpy, and it takes all tensors at once to
write, so offsets are read, and headers written, here.
"""

import collections
import json
import math
import os

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from kzoo.checkpoints.stored import StoredTensor

DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "C64": np.dtype(np.complex64),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_METADATA = "__metadata__"
_FIELDS = {"dtype", "shape", "data_offsets"}
_PREFIX = 8  # bytes that hold the header's length


def unique(pairs):
    """An `object_pairs_hook` of `json` that refuses a key that comes twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = collections.Counter(key for key, _ in pairs)
        twice = [key for key, count in counts.most_common(5) if count > 1]
        raise ValueError(f"these keys come twice: {twice}")
    return found


def read_places(file, path):
    """What a safetensors file holds: a dict from names to `StoredTensor`s.

    Raises:
        ValueError: the file is not one, or not whole; it is named.
    """
    try:
        # Lengths, offsets, holes, overlaps and the sizes of shapes are checked by this.
        with safe_open(path, framework="numpy"):
            pass
        file.seek(0)
        length = int.from_bytes(file.read(_PREFIX), "little")
        header = json.loads(file.read(length), object_pairs_hook=unique)
        header.pop(_METADATA, None)
        return {
            name: _place(file, path, name, entry, _PREFIX + length)
            for name, entry in header.items()
        }
    except (SafetensorError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no valid safetensors file: {error}") from error


def read_metadata(path):
    """The strings that a safetensors file holds beside its tensors, a dict."""
    with safe_open(path, framework="numpy") as file:
        return file.metadata() or {}


def _place(file, path, name, entry, begin):
    if set(entry) != _FIELDS:
        raise ValueError(
            f"tensor {name!r} must have {sorted(_FIELDS)}. Received: {sorted(entry)}"
        )
    if entry["dtype"] not in DTYPES:
        raise ValueError(
            f"tensor {name!r} has a dtype without a numpy array, one of {list(DTYPES)} "
            f"was expected. Received: {entry['dtype']!r}"
        )
    dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
    begin += entry["data_offsets"][0]
    return StoredTensor(file, path, name, dtype, shape, begin)


def write(path, tensors, metadata):
    """Writes a safetensors file, one tensor in memory at a time.

    Args:
        path: of the file.
        tensors: dict from names to (shape, dtype, function that gives the array).
        metadata: dict of strings.

    Raises:
        ValueError: an array is not what was said of it, or no file can hold it.
    """
    for name, (_, dtype, _) in tensors.items():
        if dtype not in _CODES or name == _METADATA:
            raise ValueError(
                f"safetensors holds no tensor {name!r} of dtype {dtype}. Expected one "
                f"of {sorted(map(str, _CODES))}, and not the name {_METADATA}."
            )
    # Large elements first, so that each begins at a multiple of its size.
    order = sorted(tensors, key=lambda name: -tensors[name][1].itemsize)
    header, end = {_METADATA: metadata}, 0
    for name in order:
        shape, dtype, _ = tensors[name]
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {
            "dtype": _CODES[dtype],
            "shape": shape,
            "data_offsets": (begin, end),
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _PREFIX)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(_PREFIX, "little") + text)
        for name in order:
            shape, dtype, give = tensors[name]
            array = np.asarray(give())
            if array.shape != shape or array.dtype != dtype:
                raise ValueError(
                    f"Tensor {name!r} should be {dtype} of shape {shape}. "
                    f"Received: {array.dtype} of shape {array.shape}."
                )
            # Bytes, because the buffers of Python know no bfloat16.
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
            del array
        file.flush()
        os.fsync(file.fileno())  # the data before the name that it will get
    with open(path, "rb") as file:
        read_places(file, path)
