"""PyTorch's files of a state dict, read without torch and without running any code.

What `torch.save` writes since version 1.6 is a zip of stored members: `data.pkl` says
names, shapes and strides, `data/<key>` is the bytes of one storage. A pickle is a
program that may call whatever it names. Here it runs on a machine that has values, and
a tensor's few words (`_CALLS`); it imports nothing and calls nothing else.

The file format: https://pytorch.org/docs/stable/notes/serialization.html. The opcodes:
Python's `pickletools`.
"""

import dataclasses
import pickle  # its opcodes; nothing is loaded with it
import pickletools
import struct
import zipfile

import ml_dtypes
import numpy as np

from kzoo.checkpoints.stored import StoredTensor

_LARGEST_PICKLE = 2**26  # bytes: names and shapes of some 200,000 tensors
_LOCAL_HEADER = struct.Struct("<26xHH")  # lengths of a member's name and extras
_MAGIC = b"PK\x03\x04"

_DTYPES = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
    "int64": np.int64,
    "int32": np.int32,
    "int16": np.int16,
    "int8": np.int8,
    "uint64": np.uint64,
    "uint32": np.uint32,
    "uint16": np.uint16,
    "uint8": np.uint8,
    "bool": np.bool_,
    "complex64": np.complex64,
    "complex128": np.complex128,
}
_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}
_CALLS = {
    "collections.OrderedDict",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
}


@dataclasses.dataclass(frozen=True)
class _Word:
    """What a pickle names: a call, a dtype, or a storage with its dtype, if typed."""

    name: str
    kind: str
    dtype: np.dtype | None = None


_WORDS = {
    **{name: _Word(name, "call") for name in _CALLS},
    **{
        f"torch.{name}": _Word(f"torch.{name}", "storage", np.dtype(_DTYPES[dtype]))
        for name, dtype in _STORAGES.items()
    },
    "torch.storage.UntypedStorage": _Word("torch.storage.UntypedStorage", "storage"),
    **{
        f"torch.{name}": _Word(f"torch.{name}", "dtype", np.dtype(dtype))
        for name, dtype in _DTYPES.items()
    },
}


@dataclasses.dataclass(frozen=True)
class _Storage:
    start: int  # bytes from the file's begin
    nbytes: int
    dtype: np.dtype | None


@dataclasses.dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    dtype: np.dtype
    offset: int  # in elements, as the strides
    shape: tuple
    strides: tuple


class _Mark:
    pass


def read_places(file, path):
    """What a file of `torch.save` holds: a dict from names to `StoredTensor`s.

    Raises:
        ValueError: the file is not one, is not whole, or holds more than a dict from
            names to tensors; it is named, and nothing of it has been run.
    """
    file.seek(0)
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ValueError(
            f"{path} is no file that torch.save writes since version 1.6. An older one "
            "can be converted with torch: "
            "torch.save(torch.load(path, weights_only=True), path)."
        )
    try:
        program, members = _read_zip(file)
        state = _Machine(members).run(program)
        return {
            name: _place(file, path, name, tensor) for name, tensor in state.items()
        }
    except (
        ValueError,
        OverflowError,  # of a date
        RuntimeError,  # an encrypted member
        NotImplementedError,  # of zipfile: a version or a method
        struct.error,
        zipfile.BadZipFile,
    ) as error:
        raise ValueError(
            f"{path} is no state dict of torch.save: {error}. Nothing of it has been "
            "run."
        ) from error


def _read_zip(file):
    """The pickle, and a dict from storages' keys to (start, bytes) in the file."""
    with zipfile.ZipFile(file) as archive:
        members = {info.filename: info for info in archive.infolist()}
        if len(members) != len(archive.infolist()):
            raise ValueError("a member of its zip comes twice")
        prefix = next(iter(members), "").split("/")[0] + "/"
        for name, info in members.items():
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                raise ValueError(f"member {name!r} of its zip is not stored as it is")
            if info.file_size != info.compress_size:
                raise ValueError(f"member {name!r} of its zip has two sizes")
            below = name.startswith(prefix) and not {"..", ""} & set(name.split("/"))
            if not below or info.header_offset < 0:
                raise ValueError(f"member {name!r} of its zip lies elsewhere")
        starts = {name: _start(file, info) for name, info in members.items()}
        # Members that share bytes would make a small file long to check.
        end = 0
        for name, info in sorted(members.items(), key=lambda x: x[1].header_offset):
            if info.header_offset < end:
                raise ValueError(f"member {name!r} of its zip overlaps another")
            end = starts[name] + info.file_size
        if end > archive.start_dir:
            raise ValueError("its zip is cut off")
        damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"member {damaged!r} of its zip has another checksum")
        program = members.get(prefix + "data.pkl")
        if program is None or program.file_size > _LARGEST_PICKLE:
            raise ValueError(
                f"expected a data.pkl of at most {_LARGEST_PICKLE} bytes in its zip, "
                f"received {getattr(program, 'file_size', 'none')}"
            )
        order = prefix + "byteorder"
        if order in members and members[order].file_size != len(b"little"):
            raise ValueError("its bytes are not in the order 'little'")
        begin = prefix + "data/"
        storages = {
            name.removeprefix(begin): (starts[name], info.file_size)
            for name, info in members.items()
            if name.startswith(begin)
        }
        return archive.read(program), storages


def _start(file, info):
    """Where a member's bytes begin."""
    file.seek(info.header_offset)
    name, extras = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    return info.header_offset + _LOCAL_HEADER.size + name + extras


class _Machine:
    """Runs the pickle of a state dict, and refuses every other by what it does."""

    def __init__(self, members):
        self._members = members
        self._stack = []
        self._memo = {}

    def run(self, program):
        """The dict of `_Tensor`s that the pickle makes."""
        self._program, self._at = program, 0
        while (opcode := self._take(1)) != pickle.STOP:
            self._step(opcode)
        state = self._pop()
        if not isinstance(state, dict):
            raise ValueError(
                f"expected a dict from names to tensors, received {_kind(state)}"
            )
        for name, value in state.items():
            if not isinstance(value, _Tensor):
                raise ValueError(f"expected a tensor as {name!r}, got {_kind(value)}")
        return state

    def _step(self, opcode):
        match opcode:
            case pickle.PROTO:
                self._take(1)
            case pickle.NONE:
                self._stack.append(None)
            case pickle.NEWTRUE | pickle.NEWFALSE:
                self._stack.append(opcode == pickle.NEWTRUE)
            case pickle.BININT:
                self._stack.append(int.from_bytes(self._take(4), "little", signed=True))
            case pickle.BININT1:
                self._stack.append(self._number(1))
            case pickle.BININT2:
                self._stack.append(self._number(2))
            case pickle.LONG1:
                content = self._take(self._number(1))
                self._stack.append(int.from_bytes(content, "little", signed=True))
            case pickle.BINUNICODE:
                self._stack.append(self._take(self._number(4)).decode())
            case pickle.EMPTY_DICT:
                self._stack.append({})
            case pickle.EMPTY_TUPLE:
                self._stack.append(())
            case pickle.MARK:
                self._stack.append(_Mark)
            case pickle.TUPLE:
                self._stack.append(tuple(self._pop_to_mark()))
            case pickle.TUPLE1 | pickle.TUPLE2 | pickle.TUPLE3:
                count = opcode[0] - pickle.TUPLE1[0] + 1
                items = [self._pop() for _ in range(count)]
                self._stack.append(tuple(reversed(items)))
            case pickle.SETITEM:
                value, key = self._pop(), self._pop()
                self._set([key, value])
            case pickle.SETITEMS:
                self._set(self._pop_to_mark())
            case pickle.BINPUT:
                self._memo[self._number(1)] = self._top()
            case pickle.LONG_BINPUT:
                self._memo[self._number(4)] = self._top()
            case pickle.BINGET:
                self._stack.append(self._kept(self._number(1)))
            case pickle.LONG_BINGET:
                self._stack.append(self._kept(self._number(4)))
            case pickle.GLOBAL:
                self._stack.append(_word(f"{self._line()}.{self._line()}"))
            case pickle.BINPERSID:
                self._stack.append(self._storage(self._pop()))
            case pickle.REDUCE:
                arguments, call = self._pop(), self._pop()
                self._stack.append(_call(call, arguments))
            case pickle.BUILD:
                # An OrderedDict's attributes: `_metadata`, versions of torch's layers.
                state = self._pop()
                if not isinstance(state, dict) or not isinstance(self._top(), dict):
                    raise ValueError(
                        f"its pickle gives a state, {_kind(state)}, to "
                        f"{_kind(self._top())}"
                    )
            case _:
                known = pickletools.code2op.get(opcode.decode("latin-1"))
                raise ValueError(
                    f"its pickle uses {known.name if known else opcode}, which no "
                    "state dict needs"
                )

    def _take(self, count):
        content = self._program[self._at : self._at + count]
        if len(content) < count:
            raise ValueError("its pickle is cut off")
        self._at += count
        return content

    def _number(self, size):
        return int.from_bytes(self._take(size), "little")

    def _line(self):
        end = self._program.find(b"\n", self._at)
        if end < 0:
            raise ValueError("its pickle is cut off")
        return self._take(end + 1 - self._at)[:-1].decode()

    def _kept(self, key):
        if key not in self._memo:
            raise ValueError("its pickle reads a value that it has not kept")
        return self._memo[key]

    def _top(self):
        if not self._stack or self._stack[-1] is _Mark:
            raise ValueError("its pickle takes a value that it has not put")
        return self._stack[-1]

    def _pop(self):
        value = self._top()
        self._stack.pop()
        return value

    def _pop_to_mark(self):
        items = []
        while self._stack and self._stack[-1] is not _Mark:
            items.append(self._stack.pop())
        if not self._stack:
            raise ValueError("its pickle takes values that it has not put")
        self._stack.pop()
        return items[::-1]

    def _set(self, items):
        target = self._top()
        if not isinstance(target, dict) or len(items) % 2:
            raise ValueError(f"its pickle sets items of {_kind(target)}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if _text(key) in target:
                raise ValueError(f"{key!r} comes twice")
            target[key] = value

    def _storage(self, identity):
        match identity:
            case ("storage", _Word(kind="storage") as word, str(key), str(), int(n)):
                pass
            case _:
                raise ValueError(f"expected a storage, received {_kind(identity)}")
        if key not in self._members:
            raise ValueError(f"storage {key!r} is not in its zip")
        start, nbytes = self._members[key]
        expected = n * (word.dtype.itemsize if word.dtype else 1)
        if nbytes != expected:
            raise ValueError(
                f"storage {key!r} should have {expected} bytes, received {nbytes}"
            )
        return _Storage(start, nbytes, word.dtype)


def _word(name):
    if name not in _WORDS:
        raise ValueError(f"its pickle names {name!r}, which no state dict needs")
    return _WORDS[name]


def _call(call, arguments):
    """What the words of a state dict make of their arguments."""
    name = call.name if isinstance(call, _Word) else None
    match name, arguments:
        case "collections.OrderedDict", ():
            return {}
        case "torch._utils._rebuild_parameter", (_Tensor() as data, bool(), dict()):
            return data
        case "torch._utils._rebuild_tensor_v2", (_Storage() as storage, *rest):
            if storage.dtype is not None and _plain(rest[3:], 2):
                return _tensor(storage, storage.dtype, *rest[:3])
        case "torch._utils._rebuild_tensor_v3", (_Storage() as storage, *rest):
            if len(rest) > 5 and _plain([*rest[3:5], *rest[6:]], 2):
                if isinstance(rest[5], _Word) and rest[5].kind == "dtype":
                    return _tensor(storage, rest[5].dtype, *rest[:3])
    raise ValueError(f"its pickle calls {name or _kind(call)} with other arguments")


def _plain(arguments, count):
    """Whether these are `requires_grad`, hooks and metadata of which nothing follows.

    Metadata says that a tensor is to be read as negated or conjugated.
    """
    match arguments:
        case [bool(), dict() as hooks, *metadata] if len(arguments) <= count + 1:
            return not hooks and all(m is None or m == {} for m in metadata)
    return False


def _tensor(storage, dtype, offset, shape, strides):
    numbers = [offset]
    for axes in (shape, strides):
        if not isinstance(axes, tuple):
            raise ValueError(f"expected a tensor's shape, received {_kind(axes)}")
        numbers += axes
    if any(type(n) is not int or not 0 <= n < 2**63 for n in numbers):
        raise ValueError("a tensor's shape, strides or offset are no lengths")
    if len(shape) != len(strides):
        raise ValueError(f"a tensor has {len(shape)} axes and {len(strides)} strides")
    return _Tensor(storage, dtype, offset, shape, strides)


def _place(file, path, name, tensor):
    size, storage = tensor.dtype.itemsize, tensor.storage
    strides = tuple(stride * size for stride in tensor.strides)
    start = tensor.offset * size
    place = StoredTensor(
        file, path, name, tensor.dtype, tensor.shape, storage.start + start, strides
    )
    # An empty view may begin anywhere.
    if place.span and start + place.span > storage.nbytes:
        raise ValueError(
            f"tensor {name!r} should end within the {storage.nbytes} bytes of its "
            f"storage, received {start + place.span}"
        )
    # Elements may share their bytes (`expand`), but a few bytes are no huge tensor.
    if place.nbytes > max(file.seek(0, 2), 2**20):
        raise ValueError(f"tensor {name!r} is larger than its file: {tensor.shape}")
    return place


def _text(value):
    if not isinstance(value, str):
        raise ValueError(f"expected a name, received {_kind(value)}")
    return value


def _kind(value):
    """A word for an error: a value itself may be nested without end."""
    return value.name if isinstance(value, _Word) else type(value).__name__.strip("_")
