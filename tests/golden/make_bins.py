"""Writes what torch saves, and what torch reads in it: `bins/`, for files_test.py.

Run with torch 2.13: python tests/golden/make_bins.py
"""

import json
from collections import OrderedDict
from pathlib import Path

import torch

FOLDER = Path(__file__).parent / "bins"


def state():
    """Whatever a state dict may hold: views, shared storages, each kind of dtype."""
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6) / 8
    flags = torch.tensor([True, False, True])
    return OrderedDict(
        whole=base,
        transposed=base.T,
        view=base[1:3, ::2],
        row=base[3],
        expanded=torch.tensor([[1.5]]).expand(3, 2),
        parameter=torch.nn.Parameter(torch.tensor([0.25, -4.0])),
        number=torch.tensor(2.5),
        empty=torch.zeros(0, 3),
        empty_view=base[:, 6:, None][4:],
        half=torch.tensor([1.0, -0.5], dtype=torch.float16),
        brain=torch.tensor([[1.0], [-3.0]], dtype=torch.bfloat16),
        double=torch.tensor([1e-300], dtype=torch.float64),
        eight=torch.tensor([0.5, 2.0]).to(torch.float8_e4m3fn),
        long=torch.tensor([-(2**62), 7]),
        byte=torch.tensor([255], dtype=torch.uint8),
        short=torch.tensor([60_000], dtype=torch.uint16),
        flags=flags,
    )


def layers():
    """A module's own state dict carries `_metadata` as an attribute."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    return layers, layers.state_dict()


def main():
    FOLDER.mkdir(exist_ok=True)
    module, tensors = layers()
    torch.save(state(), FOLDER / "state.bin")
    torch.save(tensors, FOLDER / "layers.bin")
    torch.save(tensors, FOLDER / "legacy.bin", _use_new_zipfile_serialization=False)
    torch.save(module, FOLDER / "module.bin")
    expected = {}
    for name in ("state", "layers"):
        loaded = torch.load(FOLDER / f"{name}.bin", weights_only=True)
        expected[name] = {
            key: {
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": list(tensor.shape),
                "values": tensor.flatten().tolist(),
            }
            for key, tensor in loaded.items()
        }
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
