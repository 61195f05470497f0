"""Checkpoint files: what is read, what is refused, and what is written."""

import builtins
import collections
import contextlib
import io
import itertools
import json
import os
import pickle
import random
import re
import resource
import shutil
import struct
import tempfile
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save, save_file

from kzoo.checkpoints.files import open_tensors, save_tensors

BINS = Path(__file__).parents[1] / "golden" / "bins"
SINGLE, TORCH = "model.safetensors", "pytorch_model.bin"
INDEX = SINGLE + ".index.json"


def arrays():
    return {
        "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
        "a.bias": np.array([1.5, -2.0, 0.25], ml_dtypes.bfloat16),
        "steps": np.array(7),
        "mask": np.array([[True], [False]]),
        "none": np.zeros((0, 2), np.float16),
    }


def assert_same(tensors, expected):
    assert set(tensors) == set(expected)
    for name, array in expected.items():
        assert tensors.dtype(name) == array.dtype
        assert tensors.shape(name) == array.shape
        np.testing.assert_array_equal(tensors.read(name), array, strict=True)


def assert_holds(folder, expected):
    with open_tensors(folder) as tensors:
        assert_same(tensors, expected)


def names_in(folder):
    with open_tensors(folder) as tensors:
        return set(tensors)


def described(arrays):
    """Arrays as `save_tensors` takes them."""
    return [(n, a.shape, a.dtype, lambda a=a: a) for n, a in arrays.items()]


def safetensors_bytes(header, data=b""):
    """A file of this header, a dict or its text."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def sharded(folder):
    """Writes two shards and their index; returns what they hold."""
    save_file({"x": np.arange(3)}, folder / "model-00001-of-00002.safetensors")
    save_file({"y": np.ones((2, 2))}, folder / "model-00002-of-00002.safetensors")
    weight_map = {
        "x": "model-00001-of-00002.safetensors",
        "y": "model-00002-of-00002.safetensors",
    }
    write_index(folder, weight_map)
    return {"x": np.arange(3), "y": np.ones((2, 2))}


def write_index(folder, weight_map):
    content = {"metadata": {"total_size": 56}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(content))


# --- reading safetensors --------------------------------------------------------------


def test_tensors_are_those_of_the_file(tmp_path):
    save_file(arrays(), tmp_path / SINGLE, metadata={"format": "pt"})
    with open_tensors(tmp_path) as tensors:
        assert_same(tensors, arrays())
        assert sorted(tensors) == sorted(arrays())
        assert tensors.path("steps") == tmp_path / SINGLE
        assert "a.bias" in tensors and "b" not in tensors
        with pytest.raises(KeyError, match="No tensor 'b' among the 5"):
            tensors.read("b")


@pytest.mark.parametrize(
    ("code", "dtype"),
    [
        ("BF16", ml_dtypes.bfloat16),
        ("F8_E4M3", ml_dtypes.float8_e4m3fn),
        ("F8_E5M2", ml_dtypes.float8_e5m2),
        ("F8_E4M3FNUZ", ml_dtypes.float8_e4m3fnuz),
        ("F8_E5M2FNUZ", ml_dtypes.float8_e5m2fnuz),
        ("F8_E8M0", ml_dtypes.float8_e8m0fnu),
        ("U16", np.uint16),
        ("C64", np.complex64),
    ],
)
def test_every_dtype_that_numpy_can_hold_is_read(tmp_path, code, dtype):
    expected = np.array([1, 2, 0.5, 4]).astype(dtype)
    entry = {"dtype": code, "shape": [4], "data_offsets": [0, expected.nbytes]}
    content = safetensors_bytes({"t": entry}, expected.tobytes())
    (tmp_path / SINGLE).write_bytes(content)
    with open_tensors(tmp_path) as tensors:
        assert_same(tensors, {"t": expected})


def test_rows_of_a_tensor_can_be_read_alone(tmp_path):
    table = np.arange(40.0).reshape(10, 4)
    save_file({"table": table, "one": np.array(1)}, tmp_path / SINGLE)
    with open_tensors(tmp_path) as tensors:
        for start, stop in [(0, 3), (3, 7), (7, 100), (None, 2), (8, None), (5, 5)]:
            rows = tensors.read("table", start, stop)
            np.testing.assert_array_equal(rows, table[start:stop], strict=True)
        with pytest.raises(ValueError, match="'one' has no axis"):
            tensors.read("one", 0, 1)


def test_arrays_are_the_readers_own_and_outlive_the_files(tmp_path):
    save_file({"x": np.arange(3)}, tmp_path / SINGLE)
    tensors = open_tensors(tmp_path)
    x = tensors.read("x")
    x[:] = 5
    np.testing.assert_array_equal(tensors.read("x"), [0, 1, 2])
    tensors.close()
    np.testing.assert_array_equal(x, 5)
    with pytest.raises(ValueError, match=f"{SINGLE} was closed"):
        tensors.read("x")


def test_a_file_that_shrinks_while_it_is_open_is_an_error(tmp_path):
    save_file({"x": np.zeros(10_000)}, tmp_path / SINGLE)
    with open_tensors(tmp_path) as tensors:
        os.truncate(tmp_path / SINGLE, 1000)
        with pytest.raises(ValueError, match=f"{SINGLE} .*has changed"):
            tensors.read("x")


def test_reading_all_tensors_takes_no_memory_of_python(tmp_path):
    big = {f"x{i}": np.ones(2**19) for i in range(8)}  # 32 MiB in all
    save_file(big, tmp_path / SINGLE)
    del big
    tracemalloc.start()
    try:
        with open_tensors(tmp_path) as tensors:
            assert sum(tensors.read(name)[-1] for name in tensors) == 8
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


F32 = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "header too small"),
        (b"\2\0\0", "header too small"),
        (struct.pack("<Q", 10**10) + b"{}", "header too large"),
        (struct.pack("<Q", 10**7) + b"{}", "header length"),
        (safetensors_bytes(b"[]"), "JSON"),
        (safetensors_bytes(b"\xff\xff"), "UTF-8"),
        (safetensors_bytes({"a": F32}, bytes(3)), "a|cover"),
        (safetensors_bytes({"a": F32}, bytes(5)), "cover"),
        (safetensors_bytes({"a": F32 | {"dtype": "F99"}}, bytes(4)), "F99"),
        (safetensors_bytes({"a": F32 | {"shape": [2]}}, bytes(4)), "shape"),
        (safetensors_bytes({"a": F32 | {"shape": [-1]}}, bytes(4)), "-1"),
        (safetensors_bytes({"a": F32 | {"shape": [1.0]}}, bytes(4)), "1.0"),
        (safetensors_bytes({"a": F32 | {"shape": [2**62, 4]}}, bytes(4)), "overflow"),
        (
            safetensors_bytes(
                {"a": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}}
            ),
            "'a' is larger than an array",
        ),
        (
            safetensors_bytes(
                {"a": F32 | {"shape": [1] * 65}},
                bytes(4),
            ),
            "at most 64 axes.*65",
        ),
        (
            safetensors_bytes(
                {
                    "a": {
                        "dtype": "F32",
                        "shape": [0] + [2**62] * 100_000,  # a product for an hour
                        "data_offsets": [0, 0],
                    }
                }
            ),
            "at most 64 axes.*100001",
        ),
        (safetensors_bytes({"a": F32, "b": F32}, bytes(4)), "offset"),  # overlap
        (
            safetensors_bytes({"a": F32 | {"data_offsets": [4, 8]}}, bytes(8)),
            "offset",  # a hole
        ),
        (
            safetensors_bytes(b'{"a":%b,"a":%b}' % ((json.dumps(F32).encode(),) * 2))
            + bytes(4),
            r"twice: \['a'\]",
        ),
        (safetensors_bytes({"a": F32 | {"more": 1}}, bytes(4)), "'a' must have"),
        (
            safetensors_bytes({"a": F32 | {"dtype": "F4", "shape": [8]}}, bytes(4)),
            "'a' has a dtype without a numpy array.*'F4'",
        ),
    ],
)
def test_a_damaged_header_is_refused_before_anything_is_read(tmp_path, content, match):
    (tmp_path / SINGLE).write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=f"{SINGLE}.*({match})"):
            open_tensors(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 2**20 + 10 * len(content)
    finally:
        tracemalloc.stop()


def test_a_folder_without_weights_says_what_it_has(tmp_path):
    (tmp_path / "tf_model.h5").touch()
    with pytest.raises(FileNotFoundError, match="model.safetensors.*tf_model.h5"):
        open_tensors(tmp_path)
    with pytest.raises(FileNotFoundError, match="No folder .*nowhere"):
        open_tensors(tmp_path / "nowhere")


@pytest.mark.parametrize("name", [SINGLE, TORCH, INDEX])
def test_what_is_no_regular_file_is_not_opened(tmp_path, name):
    (tmp_path / "folder" / name).mkdir(parents=True)
    with pytest.raises(ValueError, match=f"{name} is no regular file"):
        open_tensors(tmp_path / "folder")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / name)  # opening it would wait for ever
    with pytest.raises(ValueError, match=f"{name} is no regular file"):
        open_tensors(tmp_path / "pipe")


# --- shards ---------------------------------------------------------------------------


def test_shards_are_one_mapping(tmp_path):
    expected = sharded(tmp_path)
    with open_tensors(tmp_path) as tensors:
        assert_same(tensors, expected)
        assert tensors.path("y").name == "model-00002-of-00002.safetensors"


def test_files_are_looked_for_in_order(tmp_path):
    shutil.copy(BINS / "layers.bin", tmp_path / TORCH)
    assert len(names_in(tmp_path)) == 7
    sharded(tmp_path)
    assert names_in(tmp_path) == {"x", "y"}
    save_file({"z": np.arange(2)}, tmp_path / SINGLE)
    assert names_in(tmp_path) == {"z"}


@pytest.mark.parametrize(
    "shard",
    [
        "../model.safetensors",
        "/etc/passwd",
        "a/../../model.safetensors",
        "..",
        ".",
        "",
        "C:\\model.safetensors",
        "model\0.safetensors",
        "\ud800.safetensors",
        7,
        None,
        ["model.safetensors"],
    ],
)
def test_an_index_names_only_files_beside_it(tmp_path, shard):
    write_index(tmp_path, {"x": shard})
    with pytest.raises(ValueError, match=f"{INDEX}.*beside it for 'x'. Received"):
        open_tensors(tmp_path)


def test_a_link_out_of_the_folder_is_refused(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    expected = sharded(folder)
    shard = folder / "model-00002-of-00002.safetensors"
    shard.rename(folder / "other")
    shard.symlink_to("other")
    assert_holds(folder, expected)
    (folder / "other").rename(tmp_path / "other")
    shard.unlink()
    shard.symlink_to("../other")
    with pytest.raises(ValueError, match="00002.* is a link that leaves its folder"):
        open_tensors(folder)


@pytest.mark.parametrize(
    ("weight_map", "error", "match"),
    [
        ({"x": 1, "y": 3}, FileNotFoundError, "00003.* is missing"),
        ({"x": 1}, None, None),  # the second shard is not asked for
        ({"x": 1, "y": 1}, ValueError, r"00001.*Missing: \['y'\]"),
        ({"y": 2, "z": 2, "x": 1}, ValueError, r"00002.*Missing: \['z'\]"),
        ({"a": 1, "y": 2}, ValueError, r"00001.*Not in the index: \['x'\]"),
        ({}, ValueError, "weight_map"),
    ],
)
def test_index_and_shards_must_agree(tmp_path, weight_map, error, match):
    sharded(tmp_path)
    name = "model-0000{}-of-00002.safetensors".format
    write_index(tmp_path, {tensor: name(i) for tensor, i in weight_map.items()})
    if error is None:
        assert names_in(tmp_path) == set(weight_map)
        return
    with pytest.raises(error, match=match):
        open_tensors(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    sharded(tmp_path)
    both = {"x": np.arange(3), "y": np.ones((2, 2))}
    save_file(both, tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(ValueError, match=r"00002.*Not in the index: \['x'\]"):
        open_tensors(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"weight_map": []}',
        '{"weight_map": {"x": NaN}}',
        '{"weight_map": {"x": "a.safetensors", "x": "b.safetensors"}}',
        '{"weight_map": {}, "weight_map": {"x": "a.safetensors"}}',
        '{"weight_map": {' + ",".join(['"x": "a", "y": "a"'] * 100_000) + "}}",
        "[" * 100_000,
        '{"weight_map": ' + "9" * 10_000 + "}",
        "\ufeff{}",
    ],
)
def test_a_damaged_index_is_refused(tmp_path, text):
    (tmp_path / INDEX).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=INDEX):
        open_tensors(tmp_path)


# --- PyTorch's files ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["state", "layers"])
def test_a_state_dict_is_what_torch_reads(tmp_path, name):
    shutil.copy(BINS / f"{name}.bin", tmp_path / TORCH)
    expected = json.loads((BINS / "expected.json").read_text())[name]
    with open_tensors(tmp_path) as tensors:
        assert list(tensors) == list(expected)
        for key, entry in expected.items():
            array = tensors.read(key)
            assert array.dtype.name == entry["dtype"]
            assert array.shape == tuple(entry["shape"])
            assert array.reshape(-1).tolist() == entry["values"]


def test_rows_of_a_view_can_be_read_alone(tmp_path):
    shutil.copy(BINS / "state.bin", tmp_path / TORCH)
    with open_tensors(tmp_path) as tensors:
        for name in ("transposed", "view", "expanded"):
            whole = tensors.read(name)
            np.testing.assert_array_equal(tensors.read(name, 1, 2), whole[1:2])


def test_shards_of_torch_files_are_read(tmp_path):
    for i, name in enumerate(["state", "layers"]):
        shutil.copy(BINS / f"{name}.bin", tmp_path / f"pytorch_model-{i}.bin")
    expected = json.loads((BINS / "expected.json").read_text())
    weight_map = {
        tensor: f"pytorch_model-{i}.bin"
        for i, name in enumerate(["state", "layers"])
        for tensor in expected[name]
    }
    (tmp_path / (TORCH + ".index.json")).write_text(
        json.dumps({"weight_map": weight_map})
    )
    assert names_in(tmp_path) == set(weight_map)


def test_the_format_before_the_zip_is_refused_with_the_way_to_convert_it(tmp_path):
    shutil.copy(BINS / "legacy.bin", tmp_path / TORCH)
    with pytest.raises(ValueError, match=r"bin is no file.*torch.save\(torch.load\("):
        open_tensors(tmp_path)


def test_a_whole_module_is_refused_by_the_name_of_its_class(tmp_path):
    shutil.copy(BINS / "module.bin", tmp_path / TORCH)
    match = "pytorch_model.bin.*'torch.nn.modules.container.Sequential'"
    with pytest.raises(ValueError, match=match):
        open_tensors(tmp_path)


def write_torch(folder, program, storages=None, compression=zipfile.ZIP_STORED):
    """A zip as torch.save writes it, of any pickle."""
    with zipfile.ZipFile(folder / TORCH, "w", compression) as archive:
        archive.writestr("archive/data.pkl", program)
        for key, content in (storages or {"0": bytes(16)}).items():
            archive.writestr(f"archive/data/{key}", content)
    return folder


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def integer(value):
    return b"J" + struct.pack("<i", value) if value < 2**31 else pickle_long(value)


def pickle_long(value):
    content = value.to_bytes(20, "little", signed=True)
    return b"\x8a" + bytes([len(content)]) + content


def word(module, name):
    return f"c{module}\n{name}\n".encode()


STORAGE = b"(" + text("storage") + word("torch", "FloatStorage")
STORAGE += text("0") + text("cpu") + integer(4) + b"tQ"
REBUILD = word("torch._utils", "_rebuild_tensor_v2")
HOOKS = word("collections", "OrderedDict") + b")R"


def tensor(offset=0, shape=(2, 2), strides=(2, 1), storage=STORAGE, hooks=HOOKS):
    """The opcodes of a float32 tensor over a storage of four numbers."""
    axes = [b"(" + b"".join(map(integer, a)) + b"t" for a in (shape, strides)]
    return (
        REBUILD
        + b"("
        + storage
        + integer(offset)
        + b"".join(axes)
        + b"\x89"
        + (hooks + b"tR")
    )


W = text("w")


def state_dict(value, key=W):
    """The opcodes of a dict with one item."""
    return b"\x80\x02}" + key + value + b"s."


def test_the_hand_made_tensor_of_these_tests_is_read(tmp_path):
    content = np.arange(4, dtype=np.float32)
    write_torch(tmp_path, state_dict(tensor()), {"0": content.tobytes()})
    assert_holds(tmp_path, {"w": content.reshape(2, 2)})


class Calls:
    """Pickles as a call of anything."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


CANARY = "kzoo_canary"


def harmful():
    """Pickles that would leave `os.environ[CANARY]` or a file behind, by their way."""
    code = f"import os; os.environ['{CANARY}'] = '1'"
    shell = f"touch {tempfile.gettempdir()}/{CANARY}"
    for protocol in range(6):
        yield f"system_{protocol}", pickle.dumps(Calls(os.system, shell), protocol)
        yield f"exec_{protocol}", pickle.dumps({"w": Calls(exec, code)}, protocol)
        yield f"eval_{protocol}", pickle.dumps({"w": Calls(eval, "1")}, protocol)
    call = text(code) + b"\x85R"
    yield "key", state_dict(tensor(), key=word("builtins", "exec") + call)
    yield "dotted", state_dict(word("collections", "OrderedDict.__init__") + b")R")
    yield "nested", state_dict(word("torch", "os.system") + text(shell) + b"\x85R")
    yield "nested_utils", state_dict(word("torch._utils", "sys.exit") + b")R")
    yield "space", state_dict(word("builtins exec", "x") + call)
    stack_global = text("builtins") + text("exec") + b"\x93" + call
    yield "stack_global", b"\x80\x04" + state_dict(stack_global)[2:]
    parts = text("o") + b"q\x00" + text("system") + b"q\x01" + b"h\x00h\x01\x93"
    yield "memo", state_dict(parts + text(shell) + b"\x85R")
    yield "inst", state_dict(b"(" + text(code) + b"ibuiltins\nexec\n")
    yield "obj", state_dict(b"(" + word("builtins", "exec") + text(code) + b"o")
    new = word("collections", "OrderedDict") + b")\x81"
    yield "newobj", state_dict(new)
    yield "newobj_ex", state_dict(word("collections", "OrderedDict") + b")}\x92")
    for size in (1, 2, 4):
        code_byte = bytes([0x81 + size.bit_length()])
        yield f"ext{size}", state_dict(code_byte + (1).to_bytes(size, "little"))
    yield "build_tensor", state_dict(tensor() + b"}" + text("a") + b"Nsb")
    setstate = b"}" + text("__setstate__") + word("builtins", "exec") + b"sb"
    yield "build_setstate", state_dict(REBUILD + setstate)
    yield "build_slots", state_dict(tensor() + b"N}\x86b")
    yield "build_word", state_dict(REBUILD + b"}b")
    yield "persid", state_dict(b"Pstorage\n")
    yield "reduce_text", state_dict(text("exec") + call)
    yield "reduce_tensor", state_dict(tensor() + b")R")
    yield "reduce_storage", state_dict(word("torch", "FloatStorage") + b")R")
    ordered = word("collections", "OrderedDict")
    yield "ordered_arguments", state_dict(ordered + text("x") + b"\x85R")
    yield "rebuild_nothing", state_dict(REBUILD + b")R")
    yield "rebuild_text", state_dict(REBUILD + text("x") + b"\x85R")
    yield "codecs", state_dict(word("_codecs", "encode") + b")R")
    yield "getattr", state_dict(word("builtins", "getattr") + b")R")
    yield (
        "with_state",
        state_dict(word("torch._utils", "_rebuild_parameter_with_state") + b")R"),
    )
    yield "frozenset", b"\x80\x04" + state_dict(b"(\x91")[2:]
    yield "bytes", state_dict(b"C\x01a")
    yield "buffer", b"\x80\x05" + state_dict(b"\x97")[2:]


HARMFUL = dict(harmful())


@pytest.mark.parametrize(("way", "program"), list(HARMFUL.items()), ids=list(HARMFUL))
def test_code_in_a_pickle_is_never_run(tmp_path, monkeypatch, way, program):
    def refuse(*_, **__):
        raise SystemExit("a pickle was run")

    monkeypatch.setattr(os, "system", refuse)
    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(pickle, "Unpickler", refuse)
    evaluated = []
    monkeypatch.setattr(builtins, "eval", evaluated.append)
    write_torch(tmp_path, program)
    with pytest.raises(ValueError, match=f"{TORCH}.*Nothing of it has been run"):
        open_tensors(tmp_path)
    assert not evaluated and CANARY not in os.environ
    assert not os.path.exists(os.path.join(tempfile.gettempdir(), CANARY))


def deep_tuple(levels):
    """A tuple that holds a tuple twice, and so on: 2 ** levels to hash or print."""
    return b")" + b"q\x00h\x00\x86" * levels


@pytest.mark.parametrize(
    ("program", "match"),
    [
        (b"", "cut off"),
        (b"\x80\x02}", "cut off"),
        (b"\x80\x02.", "not put"),
        (b"\x80\x02N.", "expected a dict"),
        (b"\x80\x02}" + b"N" + tensor() + b"s.", "expected a name"),
        (b"\x80\x02h\x00.", "not kept"),
        (b"\x80\x02q\x00.", "not put"),
        (b"\x80\x02t.", "not put"),
        (b"\x80\x02(q\x00.", "not put"),
        (b"\x80\x02}u.", "not put"),
        (b"\x80\x02}(" + text("w") + b"u.", "sets items"),
        (b"\x80\x02)" + text("w") + b"Ns.", "sets items"),
        (state_dict(integer(3)), "expected a tensor as 'w'"),
        (state_dict(b"}"), "expected a tensor as 'w'"),
        (b"\x80\x02}q\x00" + text("w") + b"h\x00s.", "expected a tensor as 'w'"),
        (b"\x80\x02}(" + (text("w") + tensor()) * 2 + b"u.", "'w' comes twice"),
        (state_dict(tensor(), key=deep_tuple(100)), "expected a name, received tuple"),
        (state_dict(tensor(), key=deep_tuple(5) + b"}0"), "uses POP"),
        (state_dict(tensor(shape=(2, 3))), "'w' should end within the 16 bytes"),
        (state_dict(tensor(offset=1)), "'w' should end within"),
        (state_dict(tensor(offset=2**70)), "no lengths"),
        (state_dict(tensor(offset=-1)), "no lengths"),
        (state_dict(tensor(shape=(-2, 2))), "no lengths"),
        (state_dict(tensor(strides=(-1, 1))), "no lengths"),
        (state_dict(tensor(shape=(2,))), "1 axes and 2 strides"),
        (state_dict(tensor(shape=(2**40, 1), strides=(0, 0))), "larger than its file"),
        (state_dict(tensor(shape=(2**62, 4), strides=(0, 0))), "larger than an array"),
        (state_dict(tensor(shape=(0, 2**62), strides=(0, 0))), "larger than an array"),
        (state_dict(tensor(shape=(1,) * 65, strides=(0,) * 65)), "at most 64 axes.*65"),
        (state_dict(tensor(hooks=b"}" + text("h") + b"Ns")), "other arguments"),
        (state_dict(tensor(hooks=HOOKS + b"}" + text("neg") + b"\x88s")), "other arg"),
        (state_dict(tensor(storage=text("0"))), "other arguments"),
        (state_dict(tensor(storage=text("0") + b"Q")), "expected a storage"),
        (state_dict(tensor(storage=STORAGE.replace(b"0", b"7", 1))), "'7' is not in"),
        (
            state_dict(tensor(storage=STORAGE.replace(integer(4), integer(5)))),
            "'0' should have 20 bytes, received 16",
        ),
        (
            state_dict(tensor(storage=STORAGE.replace(b"Float", b"QInt8"))),
            "torch.QInt8Storage",
        ),
    ],
)
def test_a_pickle_that_is_no_state_dict_is_refused(tmp_path, program, match):
    write_torch(tmp_path, program)
    with pytest.raises(ValueError, match=f"(?s){TORCH}.*{match}"):
        open_tensors(tmp_path)


def test_a_zip_that_inflates_is_refused(tmp_path):
    write_torch(tmp_path, bytes(10**7), compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match=f"{TORCH}.*not stored"):
        open_tensors(tmp_path)


@pytest.mark.parametrize(
    ("names", "match"),
    [
        (["../data.pkl"], "elsewhere"),
        (["/data.pkl"], "elsewhere"),
        (["a/data.pkl", "b/data/0"], "elsewhere"),
        (["a/data.pkl", "a/../data/0"], "elsewhere"),
        (["a/data.pkl", "a/data.pkl"], "twice"),
        (["a/data", "a/version"], "expected a data.pkl"),
        (["data.pkl"], "elsewhere"),
        ([], "no file that torch.save"),
    ],
)
def test_a_zip_of_other_members_is_refused(tmp_path, names, match):
    with zipfile.ZipFile(tmp_path / TORCH, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the member that comes twice
        for name in names:
            archive.writestr(name, state_dict(tensor()))
    with pytest.raises(ValueError, match=f"{TORCH}.*{match}"):
        open_tensors(tmp_path)


def test_members_that_share_bytes_are_refused(tmp_path):
    write_torch(tmp_path, state_dict(tensor()), {"0": bytes(16), "1": bytes(16)})
    content = bytearray((tmp_path / TORCH).read_bytes())
    first, second = (
        content.index(f"archive/data/{i}".encode(), content.index(b"PK\1\2")) - 46
        for i in (0, 1)
    )
    content[second + 42 : second + 46] = content[first + 42 : first + 46]
    (tmp_path / TORCH).write_bytes(content)
    with pytest.raises(ValueError, match=f"{TORCH}.*overlaps"):
        open_tensors(tmp_path)


def test_bytes_of_another_order_are_refused(tmp_path):
    write_torch(tmp_path, state_dict(tensor()))
    with zipfile.ZipFile(tmp_path / TORCH, "a") as archive:
        archive.writestr("archive/byteorder", "big")
    with pytest.raises(ValueError, match=f"{TORCH}.*order 'little'"):
        open_tensors(tmp_path)


# --- writing --------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [10**9, 60, 1], ids=["one", "some", "each"])
def test_what_is_written_is_read(tmp_path, limit):
    paths = save_tensors(tmp_path / "new" / "model", described(arrays()), limit)
    assert all(path.exists() for path in paths)
    assert sorted(path.parent for path in paths) == [tmp_path / "new" / "model"] * len(
        paths
    )
    with open_tensors(tmp_path / "new" / "model") as tensors:
        assert_same(tensors, arrays())


def test_one_file_has_the_librarys_bytes(tmp_path):
    expected = {"b": np.ones((2, 2), np.float32), "a": np.arange(3)}
    save_tensors(tmp_path, described(expected))
    from safetensors.numpy import load_file

    loaded = load_file(tmp_path / SINGLE)
    np.testing.assert_equal(loaded, expected)
    content = save(expected, metadata={"format": "pt"})
    assert len((tmp_path / SINGLE).read_bytes()) == len(content)


def test_shards_have_the_names_and_the_index_of_the_ecosystem(tmp_path):
    tensors = {f"w{i}": np.full(10, i, np.float32) for i in range(5)}
    save_tensors(tmp_path, described(tensors), max_shard_bytes=80)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
        "model.safetensors.index.json",
    ]
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"] == {"total_size": 200}
    assert index["weight_map"] == {
        f"w{i}": f"model-0000{i // 2 + 1}-of-00003.safetensors" for i in range(5)
    }


def test_a_model_of_other_shards_is_replaced_whole(tmp_path):
    (tmp_path / "config.json").touch()
    for limit in (1, 10**9, 60, 1, 100):
        save_tensors(tmp_path, described(arrays()), limit)
        with open_tensors(tmp_path) as tensors:
            assert_same(tensors, arrays())
            used = {tensors.path(name).name for name in tensors}
        found = {path.name for path in tmp_path.iterdir()} - {INDEX, "config.json"}
        assert found == used


def test_one_tensor_is_in_memory_at_a_time(tmp_path):
    size = 2**18
    tensors = [
        (f"w{i}", (size,), np.float32, lambda i=i: np.full(size, i, np.float32))
        for i in range(16)
    ]
    tracemalloc.start()
    try:
        save_tensors(tmp_path, iter(tensors), max_shard_bytes=12 * size)
        assert tracemalloc.get_traced_memory()[1] < 2 * 4 * size
    finally:
        tracemalloc.stop()


def failing():
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("limit", [10**9, 1], ids=["one", "shards"])
def test_a_failed_save_leaves_the_older_model(tmp_path, limit):
    older = {"old": np.arange(4)}
    for folder in (tmp_path / "one", tmp_path / "none"):
        if folder.name == "one":
            save_tensors(folder, described(older))
        before = sorted(folder.rglob("*"))
        tensors = [*described(arrays()), ("last", (3,), np.float32, failing)]
        with pytest.raises(OSError, match=f"No space left on device.*{folder.name}"):
            save_tensors(folder, tensors, limit)
        assert sorted(folder.rglob("*")) == before
    assert_holds(tmp_path / "one", older)
    assert not (tmp_path / "none").exists()


def test_a_full_disk_leaves_nothing(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match=str(tmp_path / "m")):
            save_tensors(tmp_path / "m", described({"w": np.zeros(1000)}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("old_limit", [10**9, 1])
@pytest.mark.parametrize("new_limit", [10**9, 1])
def test_a_kill_leaves_no_mixture_of_two_models(
    tmp_path, monkeypatch, old_limit, new_limit
):
    class Kill(BaseException):
        """Behind which nothing is tidied up."""

    older = {"old": np.arange(4), "older": np.ones(3)}
    newer = {"old": np.arange(4) + 1, "older": np.ones(3) + 1}
    replace, whole = Path.replace, 0
    for moves in itertools.count():
        folder = tmp_path / str(moves)
        save_tensors(folder, described(older), old_limit)
        calls, dead = itertools.count(), []

        def killed(path, target, calls=calls, moves=moves, dead=dead):
            if dead or next(calls) == moves:
                dead.append(path)
                raise Kill
            return replace(path, target)

        monkeypatch.setattr(Path, "replace", killed)
        with contextlib.suppress(Kill):
            save_tensors(folder, described(newer), new_limit)
        monkeypatch.setattr(Path, "replace", replace)
        with contextlib.suppress(OSError, ValueError):  # no model, which is said
            with open_tensors(folder) as tensors:
                is_old = np.asarray(tensors["old"])[0] == older["old"][0]
            assert_holds(folder, older if is_old else newer)
            whole += 1
        if not dead:
            break
    assert moves and whole


@pytest.mark.parametrize("old_limit", [10**9, 1])
@pytest.mark.parametrize("new_limit", [10**9, 1])
def test_an_install_that_fails_is_undone(tmp_path, monkeypatch, old_limit, new_limit):
    older = {"old": np.arange(4), "older": np.ones(3)}
    replace = Path.replace
    for failure in itertools.count():
        folder = tmp_path / str(failure)
        save_tensors(folder, described(older), old_limit)
        calls = itertools.count()

        def fail_once(path, target, calls=calls, failure=failure):
            if next(calls) == failure:
                raise OSError(5, "Input/output error")
            return replace(path, target)

        monkeypatch.setattr(Path, "replace", fail_once)
        try:
            save_tensors(folder, described(arrays()), new_limit)
        except OSError:
            assert_holds(folder, older)
            assert not [p for p in folder.iterdir() if p.name.startswith(".")]
        else:
            assert_holds(folder, arrays())
            break
        finally:
            monkeypatch.setattr(Path, "replace", replace)
    assert failure > 0


@pytest.mark.parametrize(
    ("tensors", "match"),
    [
        ([], "a tensor to save"),
        ([("w", (2,), "float32", lambda: np.zeros(3, np.float32))], r"'w'.*\(3,\)"),
        ([("w", (2,), "float32", lambda: np.zeros(2))], "'w'.*float64"),
        (described({"w": np.zeros(2)}) * 2, "'w' was given twice"),
        (described({"w": np.zeros(2, "S3")}), "no tensor 'w' of dtype"),
        (described({"w": np.zeros(2, ">f4")}), "no tensor 'w' of dtype >f4"),
        (described({"__metadata__": np.zeros(2)}), "__metadata__"),
    ],
)
def test_what_cannot_be_saved_is_said(tmp_path, tensors, match):
    with pytest.raises(ValueError, match=match):
        save_tensors(tmp_path / "m", tensors)
    assert not (tmp_path / "m").exists()
    with pytest.raises(ValueError, match="max_shard_bytes must be positive"):
        save_tensors(tmp_path / "m", tensors, max_shard_bytes=0)


# --- with torch and transformers, where they are installed ----------------------------


def test_live_state_dicts_equal_torchs(tmp_path):
    torch = pytest.importorskip("torch")
    draw = random.Random(0)
    dtypes = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]
    for trial in range(30):
        base = torch.arange(120).reshape(2, 3, 4, 5) - 60
        state = collections.OrderedDict()
        for i in range(8):
            tensor = base.to(draw.choice(dtypes)) if draw.random() < 0.7 else base
            axes = draw.sample(range(4), 4)
            tensor = tensor.permute(axes)
            for _ in range(draw.randrange(4)):
                if tensor.ndim:
                    tensor = tensor[draw.randrange(tensor.shape[0])]
            if tensor.ndim:
                tensor = tensor[draw.randrange(3) :: draw.randint(1, 2)]
            if draw.random() < 0.2:
                tensor = tensor.expand(2, *tensor.shape)
            state[f"w{i}"] = tensor
        torch.save(state, tmp_path / TORCH)
        loaded = torch.load(tmp_path / TORCH, weights_only=True)
        with open_tensors(tmp_path) as tensors:
            assert list(tensors) == list(loaded), trial
            for name, tensor in loaded.items():
                array = tensors.read(name)
                assert f"torch.{array.dtype.name}" == str(tensor.dtype)
                assert array.shape == tuple(tensor.shape)
                assert array.tolist() == tensor.tolist()


def test_live_safetensors_of_torch_reads_what_is_written(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    save_tensors(tmp_path, described(arrays()))
    loaded = load_file(tmp_path / SINGLE)
    assert loaded["a.bias"].dtype == torch.bfloat16
    for name, array in arrays().items():
        assert loaded[name].tolist() == array.tolist()
        assert tuple(loaded[name].shape) == array.shape


@pytest.mark.parametrize("limit", [10**9, 4000], ids=["one", "shards"])
def test_live_transformers_reads_and_is_read(tmp_path, limit):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")

    config = transformers.GPT2Config(
        vocab_size=11, n_positions=8, n_embd=8, n_layer=2, n_head=2
    )
    model = transformers.GPT2Model(config)
    state = {name: t.numpy() for name, t in model.state_dict().items()}
    save_tensors(tmp_path, described(state), limit)
    config.save_pretrained(tmp_path)
    loaded = transformers.GPT2Model.from_pretrained(tmp_path)
    for name, expected in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], expected)
    model.save_pretrained(tmp_path / "theirs", max_shard_size=limit)
    assert_holds(tmp_path / "theirs", state)


# --- fuzz -----------------------------------------------------------------------------

NUMBERS = [0, 1, 2, 3, 7, 2**31, 2**32, 2**62, 2**63, 2**64, 10**30, -1, "1e9", "null"]


@pytest.fixture
def memory():
    """A folder in memory where there is one: 10,000 files would wear a disk."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        yield Path(folder)


def mutate(content, draw, begin=0, end=None):
    """Changes bytes of `content[begin:end]` in one of several ways."""
    content = bytearray(content)
    end = len(content) if end is None else end
    way = draw.randrange(6)
    if way == 0:  # a bit
        content[draw.randrange(begin, end)] ^= 1 << draw.randrange(8)
    elif way == 1:  # some bytes
        for _ in range(draw.randint(1, 8)):
            content[draw.randrange(begin, end)] = draw.randrange(256)
    elif way == 2:  # a cut
        del content[draw.randrange(begin, end) :]
    elif way == 3:  # a piece less
        start = draw.randrange(begin, end)
        del content[start : start + draw.randint(1, 12)]
    elif way == 4:  # a piece twice
        start = draw.randrange(begin, end)
        piece = content[start : start + draw.randint(1, 40)]
        content[start:start] = piece
    else:  # a number of eight, four or two bytes
        size = draw.choice([2, 4, 8])
        start = draw.randrange(begin, max(begin + 1, end - size))
        number = draw.choice(
            [0, 1, 2**15, 2**16 - 1, 2**31, 2**63, draw.getrandbits(64)]
        )
        content[start : start + size] = (number % 2 ** (8 * size)).to_bytes(
            size, "little"
        )
    return bytes(content)


def mutate_json(content, draw):
    """Changes a JSON text: a number, a key that comes twice, or any bytes."""
    way = draw.randrange(4)
    if way == 0:
        found = list(re.finditer(rb"\d+", content))
        place = draw.choice(found)
        number = str(draw.choice(NUMBERS)).encode()
        return content[: place.start()] + number + content[place.end() :]
    if way == 1:
        items = list(re.finditer(rb'"[^"]*": ?("[^"]*"|\{[^{}]*\}|\[[^]]*\])', content))
        place = draw.choice(items)
        return content[: place.end()] + b"," + place[0] + content[place.end() :]
    if way == 2:
        names = [m[0] for m in re.finditer(rb'"[^"]*"', content)]
        first, second = draw.choice(names), draw.choice(names)
        return content.replace(first, second, draw.randint(1, 2))
    return mutate(content, draw)


def refused(folder, names=(SINGLE, TORCH, INDEX, "00001", "00002")):
    """Opens and reads all; returns the arrays, or None when it is refused."""
    try:
        with open_tensors(folder) as tensors:
            return {name: tensors.read(name) for name in tensors}
    except (ValueError, OSError) as error:
        assert str(folder) in str(error) and any(name in str(error) for name in names)
        return None


def test_fuzzed_files_take_little_memory(memory):
    draw = random.Random(5)
    original = {
        SINGLE: save(arrays(), metadata={"format": "pt"}),
        TORCH: (BINS / "state.bin").read_bytes(),
    }
    tracemalloc.start()
    try:
        for name, content in original.items():
            for _ in range(300):
                (memory / name).write_bytes(mutate(content, draw))
                refused(memory)
            (memory / name).unlink()
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def raw(array):
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).tobytes()


def test_fuzz_safetensors(memory):
    """What loads covers the data of the file, each byte once, and nothing else loads.

    A name or a dtype of the same size may have changed in the header: no reader can
    know. Data may have changed, too, which has no checksum.
    """
    draw = random.Random(1)
    original = save(arrays(), metadata={"format": "pt"})
    length = int.from_bytes(original[:8], "little")
    header, data = original[8 : 8 + length].rstrip(), original[8 + length :]
    loaded = 0
    for trial in range(10_000):
        if trial % 4 == 0:
            content = mutate(original, draw)
        elif trial % 4 == 1:
            content = mutate(original, draw, 0, 8 + length)
        else:
            content = safetensors_bytes(mutate_json(header, draw), data)
        (memory / SINGLE).write_bytes(content)
        found = refused(memory)
        if found is None:
            continue
        loaded += 1
        length = int.from_bytes(content[:8], "little")
        entries = json.loads(content[8 : 8 + length])
        entries.pop("__metadata__", None)
        assert set(found) == set(entries)
        places = sorted(found, key=lambda name: entries[name]["data_offsets"])
        assert b"".join(raw(found[name]) for name in places) == content[8 + length :]
        for name, array in found.items():
            assert array.shape == tuple(entries[name]["shape"])
    assert 100 < loaded < 5000


def test_fuzz_index(memory):
    """With an index, names are held twice, so what loads is what was written."""
    draw = random.Random(2)
    expected = sharded(memory)
    original = (memory / INDEX).read_bytes()
    loaded = 0
    for trial in range(5000):
        content = (mutate if trial % 3 == 0 else mutate_json)(original, draw)
        (memory / INDEX).write_bytes(content)
        found = refused(memory)
        if found is not None:
            loaded += 1
            np.testing.assert_equal(found, {k: expected[k] for k in found})
            if len(found) < 2:  # an entry less: that shard is not asked for
                assert b'"y"' not in content or b'"x"' not in content
    assert 10 < loaded < 3000


@pytest.mark.parametrize("name", ["state", "layers"])
def test_fuzz_torch_files(memory, name):
    """A zip has checksums, so whatever loads is exactly what was written."""
    draw = random.Random(3)
    original = (BINS / f"{name}.bin").read_bytes()
    (memory / TORCH).write_bytes(original)
    expected = refused(memory)
    directory = original.index(b"PK\1\2")
    loaded = 0
    for trial in range(3000):
        begin = directory if trial % 2 else 0
        (memory / TORCH).write_bytes(mutate(original, draw, begin))
        found = refused(memory)
        if found is not None:
            loaded += 1
            assert list(found) == list(expected)
            for key, array in found.items():
                assert array.dtype == expected[key].dtype
                assert array.shape == expected[key].shape
                assert raw(array) == raw(expected[key])
    assert 10 < loaded < 2000


def test_fuzz_pickles_with_right_checksums(memory):
    """Tensors stay in their storages, whatever the pickle says."""
    draw = random.Random(4)
    with zipfile.ZipFile(BINS / "state.bin") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    program = members["state/data.pkl"]
    loaded = 0
    for _ in range(2500):
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            for name, value in members.items():
                changed = name == "state/data.pkl"
                archive.writestr(name, mutate(program, draw) if changed else value)
        (memory / TORCH).write_bytes(content.getvalue())
        found = refused(memory)
        if found is not None:
            loaded += 1
            assert sum(array.nbytes for array in found.values()) < 2**20
            assert all(isinstance(key, str) for key in found)
    assert 10 < loaded < 1500
