"""The tensors of a checkpoint folder, read one by one from mapped files, and written.

Nothing is handed out before everything has been checked: a file that is cut, changed or
made to harm is a `ValueError` that names it. What is written takes the place of what
stood there when it is whole, and not before.
"""

import contextlib
import json
import math
import re
import stat
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kzoo.checkpoints import safetensors_file, torch_file
from kzoo.files import beside, install

SAFETENSORS, TORCH = "model.safetensors", "pytorch_model.bin"
INDEX = ".index.json"
_LARGEST_INDEX = 100_000_000  # bytes; as safetensors limits its headers
# No separators, no "..", no hidden files: a shard lies beside its index.
_SHARD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WRITTEN = re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?")
_READ = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin(\.index\.json)?")


class TensorFiles(Mapping):
    """The tensors of a checkpoint, by name: a read-only mapping to arrays.

    A tensor is read when it is asked for, as an array over the mapped file: it takes
    memory as its elements are touched and while it is held. Writing to it changes
    neither the file nor what is read next. It stays valid after `close`.

    Use it as a context manager, or call `close`.
    """

    def __init__(self, places, files):
        self._places = places
        self._files = files

    def shape(self, name):
        """The shape of a tensor, a tuple."""
        return self._place(name).shape

    def dtype(self, name):
        """The numpy dtype of a tensor; bfloat16 and float8 are those of `ml_dtypes`."""
        return self._place(name).dtype

    def path(self, name):
        """The file that holds a tensor."""
        return self._place(name).path

    def read(self, name, start=None, stop=None):
        """A tensor as an array, or its rows `start:stop` along the first axis.

        Raises:
            KeyError: no tensor of this name.
            ValueError: rows of a tensor without axes, or the files have been closed.
        """
        return self._place(name).read(start, stop)

    def close(self):
        """Closes the files. Arrays that were read stay."""
        self._files.close()

    def _place(self, name):
        try:
            return self._places[name]
        except KeyError:
            raise KeyError(
                f"No tensor {name!r} among the {len(self._places)} of this checkpoint."
            ) from None

    def __getitem__(self, name):
        return self.read(name)

    def __contains__(self, name):
        return name in self._places

    def __iter__(self):
        return iter(self._places)

    def __len__(self):
        return len(self._places)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def open_tensors(folder):
    """Opens the weights of a checkpoint folder.

    The first of these that is there: `model.safetensors`,
    `model.safetensors.index.json` with its shards, `pytorch_model.bin`,
    `pytorch_model.bin.index.json` with its shards. All is checked, no tensor is read,
    and no code that a file may hold is run.

    Args:
        folder: where the files are.

    Returns:
        `TensorFiles`.

    Raises:
        FileNotFoundError: no such folder, no weights in it, or a shard is missing.
        ValueError: a file is damaged, of another format, or holds more than tensors;
            shards and their index differ; an index leads out of the folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"No folder {folder} with a {SAFETENSORS}.")
    for name in (SAFETENSORS, TORCH):
        if (folder / name).exists():
            return _open({folder / name: None})
        if (folder / (name + INDEX)).exists():
            return _open(_shards(folder, folder / (name + INDEX)))
    found = sorted(path.name for path in folder.iterdir())
    raise FileNotFoundError(
        f"No weights in {folder}. Expected: {SAFETENSORS} or {TORCH}, or one of them "
        f"with {INDEX} and shards. Received: {found[:20]}."
    )


def open_file(path):
    """Opens one safetensors file, like `open_tensors`."""
    return _open({Path(path): None})


def _open(expected):
    """Opens files; `expected` is the names of each, or None for whatever it holds."""
    places = {}
    with contextlib.ExitStack() as files:
        for path, names in expected.items():
            _check_regular(path)
            file = files.enter_context(open(path, "rb"))
            reader = torch_file if path.suffix == ".bin" else safetensors_file
            found = reader.read_places(file, path)
            if names is not None and set(found) != names:
                raise ValueError(
                    f"{path} does not hold what its index says. "
                    f"Missing: {sorted(names - set(found))[:5]}. "
                    f"Not in the index: {sorted(set(found) - names)[:5]}."
                )
            places |= found
        return TensorFiles(places, files.pop_all())


def _check_regular(path):
    mode = path.stat().st_mode  # a FileNotFoundError names the path
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} is no regular file.")


def _shards(folder, index):
    """From an index: a dict from the path of each shard to its tensors' names."""
    shards = {}
    for name, shard in read_index(index).items():
        shards.setdefault(folder / shard, set()).add(name)
    for path in shards:
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing, which {index} names.")
        _check_inside(folder, path)
    return shards


def read_index(path):
    """The index of shards: a dict from tensors to names of files beside the index.

    Raises:
        ValueError: it is no index, or a file would lie elsewhere.
    """
    _check_regular(path)
    if path.stat().st_size > _LARGEST_INDEX:
        raise ValueError(
            f"{path} is too large for an index: at most {_LARGEST_INDEX} bytes were "
            f"expected. Received: {path.stat().st_size}."
        )
    try:
        content = json.loads(
            path.read_text(encoding="utf-8"), object_pairs_hook=safetensors_file.unique
        )
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no valid JSON: {error}") from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(
            f"{path} must hold a 'weight_map', an object from tensors to their files. "
            f"Received: {str(weight_map)[:50]}."
        )
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
            raise ValueError(
                f"{path}: expected the name of a file beside it for {name!r}. "
                f"Received: {shard!r}."
            )
    return weight_map


def _check_inside(folder, path):
    """Refuses a link that leaves the folder, but for those of the hub's cache.

    The cache links `snapshots/<commit>/<file>` to `../../blobs/`, and that may be a
    link to a store that all repositories share.
    """
    folder, target = folder.resolve(), path.resolve()
    allowed = [folder]
    for parent in (folder, *folder.parents):
        if parent.parent.name == "snapshots":
            repository = parent.parent.parent
            allowed += [repository / "blobs", repository.parent / "blobs"]
    if not any(target.is_relative_to(root) for root in allowed):
        raise ValueError(
            f"{path} is a link that leaves its folder: expected a file in {folder}. "
            f"Received: {target}."
        )


def is_weights(name):
    """Whether `open_tensors` would read a file of this name, or its index names it."""
    return bool(_WRITTEN.fullmatch(name) or _READ.fullmatch(name))


def save_tensors(folder, tensors, max_shard_bytes=5 * 10**9):
    """Writes `model.safetensors`, or shards of it with an index.

    One tensor is in memory at a time. A safetensors model that stood in the folder is
    replaced when all is written, and stays as it was when anything fails.

    Args:
        folder: made where it is missing.
        tensors: iterable of (name, shape, dtype, function that gives the array).
        max_shard_bytes: a file with more is divided; a larger tensor gets its own.

    Returns:
        list of the paths that were written.

    Raises:
        ValueError: no tensors, a name that comes twice, a dtype that safetensors does
            not know, an array that is not what was said of it.
        OSError: the disk is full, or the like.
    """
    folder = Path(folder)
    metadata = {"format": "pt"}  # which transformers asks for
    shards, sizes = _split(tensors, max_shard_bytes)
    try:
        with beside(folder / SAFETENSORS) as partial:
            for name, shard in shards.items():
                safetensors_file.write(partial / name, shard, metadata)
            if len(shards) > 1:
                names = {tensor: name for name in shards for tensor in shards[name]}
                index = {
                    "metadata": {"total_size": sum(sizes.values())},
                    "weight_map": dict(sorted(names.items())),
                }
                text = json.dumps(index, indent=2) + "\n"
                (partial / (SAFETENSORS + INDEX)).write_text(text, encoding="utf-8")
            new = {path.name for path in partial.iterdir()}
            old = {p.name for p in folder.iterdir() if _WRITTEN.fullmatch(p.name)}
            install(partial, [folder / name for name in sorted(new | old)])
    except OSError as error:
        error.filename = error.filename or str(folder)  # a full disk's names none
        raise
    return [folder / name for name in sorted(new)]


def _split(tensors, max_shard_bytes):
    """Files to write, a dict of dicts as `safetensors_file.write` takes them."""
    if max_shard_bytes < 1:
        raise ValueError(
            f"max_shard_bytes must be positive. Received: {max_shard_bytes}."
        )
    shards, sizes, filled = [], {}, 0
    for name, shape, dtype, give in tensors:
        if name in sizes:
            raise ValueError(f"Tensor {name!r} was given twice.")
        shape, dtype = tuple(map(int, shape)), np.dtype(dtype)
        sizes[name] = math.prod(shape) * dtype.itemsize
        if not shards or filled + sizes[name] > max_shard_bytes and shards[-1]:
            shards.append({})
            filled = 0
        shards[-1][name] = (shape, dtype, give)
        filled += sizes[name]
    if not shards:
        raise ValueError("There must be a tensor to save. Received: none.")
    if len(shards) == 1:
        return {SAFETENSORS: shards[0]}, sizes
    stem, suffix = SAFETENSORS.split(".")
    return {
        f"{stem}-{i:05}-of-{len(shards):05}.{suffix}": shard
        for i, shard in enumerate(shards, start=1)
    }, sizes
