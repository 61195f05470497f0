"""Files are made beside their place and moved there when all is well."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

_LONGEST = 240  # bytes of a name beside which "." and ".partial" have room


@contextlib.contextmanager
def replacing(path):
    """A place beside a file; what is written there takes the file's place in the end.

    When that fails, the file is as it was, and nothing is left beside it. A link stays
    one, to a file with the new content; a device or a pipe is written to as it is.
    """
    if path.exists() and not path.is_file():
        with _naming(path):
            yield path
        return
    _refuse_missing(path.parent, path)
    whole = Path(os.path.realpath(path))
    if whole.is_symlink():  # links that lead to one another
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    name = os.fsencode(whole.name)
    if len(name) > _LONGEST:
        name = hashlib.sha256(name).hexdigest().encode()
    partial = whole.with_name(f".{os.fsdecode(name)}.partial")
    try:
        with _naming(path, str(partial)):
            yield partial
            partial.replace(whole)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def _naming(path, *others):
    """Errors name the file where they name none, as a full disk's, or one of others."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename in (None, *others):
            error.filename = str(path)
        raise


def make_folder(folder):
    """Makes a folder and those that it is in, where they are not there yet.

    Raises:
        FileNotFoundError: ".." follows one that is not there. Nothing was found at such
            a path, and when that folder is made, it may lead to what stands elsewhere.
    """
    for path in (folder, *folder.parents):
        if path.name == os.pardir:
            _refuse_missing(path, path)
    folder.mkdir(parents=True, exist_ok=True)


def make_writable(folder):
    """Makes a folder as `make_folder`, and a file in it, to be told at once if not.

    Raises:
        OSError: no file can be made there; it names the folder.
    """
    make_folder(folder)
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        error.filename = str(folder)
        raise


def _refuse_missing(folder, named):
    if not folder.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(named))


def write_text(path, text):
    """Writes text as UTF-8, wholly or not at all."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


def write_json(path, content):
    """Writes JSON for people, wholly or not at all."""
    text = json.dumps(content, indent=2, ensure_ascii=False, default=_plain)
    write_text(path, text + "\n")


def sha256(path):
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain(value):
    """A number of numpy's as JSON has it."""
    if getattr(value, "shape", None) == ():
        return value.item()
    raise TypeError(f"JSON has no {type(value).__name__}. Received: {value!r}.")


def _keep(path, name):
    """Gives a file a second name; or a copy, on disks that have no links."""
    try:
        name.hardlink_to(path)
    except OSError:
        shutil.copy2(path, name)


# What `beside` makes begins so.
_PARTIAL = ".kzoo."


def remove_partial(folder):
    """Removes what a kill left in a folder, where nothing else is being written now."""
    for left in folder.glob(f"{_PARTIAL}*"):
        shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def beside(path):
    """A folder next to `path`, on the same disk, that is gone in the end.

    Parent folders that were missing are made, and stay only when all went well. An
    error names a file where it would have been in the end.
    """
    missing = [p for p in (path.parent, *path.parent.parents) if not p.exists()]
    make_folder(path.parent)
    try:
        partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=settled(path).parent))
    except OSError as error:
        error.filename = str(path.parent)
        raise
    try:
        yield partial
    except BaseException as error:
        if isinstance(error, OSError) and error.filename:
            error.filename = str(error.filename).replace(str(partial), str(path.parent))
        shutil.rmtree(partial, ignore_errors=True)
        for folder in missing:
            with contextlib.suppress(OSError):  # another export uses it by now
                folder.rmdir()
        raise
    shutil.rmtree(partial, ignore_errors=True)


def settled(path):
    """The path from the root: the same place also when the current folder is moved."""
    return Path(os.path.realpath(path.parent)) / path.name


def refuse_link(path, error):
    """Raises `error` where a path is a symbolic link, whose place `install` takes."""
    if path.is_symlink():
        raise error(
            f"{path} is a symbolic link. Name the place it leads to, "
            f"{os.path.realpath(path)}, or remove the link."
        )


def _is_read_first(path):
    name = path.name.lower()
    return name == "config.json" or name.endswith((".onnx", ".index.json"))


def install(partial, targets):
    """Moves what was made in `partial` to the targets and empties the others, or none.

    A file that others are read by comes last, and an older one goes first, so that even
    a kill leaves none beside files of another model; meanwhile a reader finds none.
    What stood there before waits in `partial` until all has been moved.
    """
    targets = [settled(path) for path in targets]  # one may hold the current folder
    made = [path for path in targets if (partial / path.name).exists()]
    parts = [path for path in targets if not _is_read_first(path)]
    aside = []
    if any(path in made or path.exists() for path in parts):
        aside = [path for path in targets if _is_read_first(path) and path.exists()]
    waiting = Path(tempfile.mkdtemp(dir=partial))
    kept = [path for path in made if path.is_file() and path not in aside]
    for path in kept:  # its name is never missing
        _keep(path, waiting / path.name)
    moved = []
    try:
        for path in aside:
            moved.append((path, True))
            path.replace(waiting / path.name)
        for path in sorted(targets, key=lambda p: (_is_read_first(p), p not in made)):
            moved.append((path, path.exists()))
            if path not in kept and path.exists():
                path.replace(waiting / path.name)
            if path in made:
                (partial / path.name).replace(path)
    except BaseException:
        for path, stood in reversed(moved):
            file = partial / path.name
            if path in made and path.exists() and not file.exists():
                path.replace(file)
            if stood and (waiting / path.name).exists():
                (waiting / path.name).replace(path)
        raise
