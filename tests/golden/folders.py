"""Reads what make_tokenizers.py wrote."""

import functools
import json
import zipfile
from pathlib import Path

ARCHIVE = Path(__file__).with_name("tokenizers.zip")


@functools.cache
def _files():
    with zipfile.ZipFile(ARCHIVE) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def names():
    """Of the tokenizers."""
    return sorted({name.split("/")[0] for name in _files()})


def content(name, file):
    """Bytes of a tokenizer's file."""
    return _files()[f"{name}/{file}"]


def unpack(name, folder):
    """Writes a tokenizer's files; gives what transformers does with them."""
    for path, content in _files().items():
        owner, file = path.split("/")
        if owner != name or file == "cases.json":
            continue
        if file.endswith(".same"):
            file, content = file.removesuffix(".same"), _files()[content.decode()]
        (folder / file).write_bytes(content)
    return json.loads(_files()[f"{name}/cases.json"])
