"""Folders and hf:// addresses, over a cache laid out as huggingface_hub does it."""

import fnmatch
import json

import httpx2
import numpy as np
import pytest
from huggingface_hub import constants
from huggingface_hub.utils import _http
from safetensors.numpy import save_file

from kzoo.checkpoints import hub
from kzoo.checkpoints.files import open_tensors

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and a huggingface_hub that does not ask the network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def add_repository(cache, files, listed=None, store=None):
    """Puts `owner/name` into the cache, as a download of its branch main leaves it.

    `listed` are the files that the cache knows of; `store` is where large files lie
    when all repositories share them.
    """
    repository = cache / "models--owner--name"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for i, (name, write) in enumerate(files.items()):
        blob = repository / "blobs" / f"{i:040x}"
        if store:
            store.mkdir(exist_ok=True)
            write(store / str(i))
            blob.symlink_to(f"../../{store.name}/{i}")
        else:
            write(blob)
        (snapshot / name).symlink_to(f"../../blobs/{blob.name}")
    if listed is not None:
        (repository / "trees").mkdir()
        entry = {"size": 1, "blob_id": "0" * 40}
        tree = {"format_version": 1, "files": {name: entry for name in listed}}
        (repository / "trees" / f"{COMMIT}.json").write_text(json.dumps(tree))
    return snapshot


def weights(path):
    save_file({"w": np.arange(3)}, path)


def empty_json(path):
    path.write_text("{}")


def test_a_local_folder_is_itself(tmp_path):
    assert hub.local_folder(tmp_path) == tmp_path
    assert hub.local_folder(str(tmp_path)) == tmp_path
    with pytest.raises(ValueError, match="revision='main'"):
        hub.local_folder(tmp_path, revision="main")


@pytest.mark.parametrize("address", ["", "@main", f"@{COMMIT}"])
@pytest.mark.parametrize("shared", [False, True], ids=["own_blobs", "shared_blobs"])
def test_a_repository_comes_out_of_the_cache_offline(cache, address, shared):
    files = {"config.json": empty_json, "model.safetensors": weights}
    snapshot = add_repository(cache, files, store=cache / "blobs" if shared else None)
    folder = hub.local_folder(f"hf://owner/name{address}")
    assert folder == snapshot
    with open_tensors(folder) as tensors:
        np.testing.assert_array_equal(tensors["w"], [0, 1, 2])


def test_shards_of_the_cache_are_links_out_of_the_folder_that_are_allowed(cache):
    index = {"weight_map": {"w": "model-00001-of-00001.safetensors"}}
    files = {
        "model.safetensors.index.json": lambda path: path.write_text(json.dumps(index)),
        "model-00001-of-00001.safetensors": weights,
    }
    add_repository(cache, files, store=cache / "blobs")
    with open_tensors(hub.local_folder("hf://owner/name")) as tensors:
        np.testing.assert_array_equal(tensors["w"], [0, 1, 2])


def test_the_revision_may_stand_in_the_address_or_beside_it(cache):
    snapshot = add_repository(cache, {"model.safetensors": weights})
    assert hub.local_folder("hf://owner/name@main", revision="main") == snapshot
    with pytest.raises(ValueError, match="one revision.*revision='v1'"):
        hub.local_folder("hf://owner/name@main", revision="v1")


def test_what_is_not_in_the_cache_is_said_with_the_ways_to_get_it(cache):
    with pytest.raises(FileNotFoundError, match="owner/name.*cache.*HF_HUB_OFFLINE"):
        hub.local_folder("hf://owner/name")


def test_a_repository_that_is_not_whole_is_no_checkpoint(cache):
    listed = ["config.json", "model.safetensors", "pytorch_model.bin"]
    add_repository(cache, {"config.json": empty_json}, listed)
    with pytest.raises(FileNotFoundError, match="owner/name is not, or not whole"):
        hub.local_folder("hf://owner/name")
    assert hub.local_folder("hf://owner/name", weights=False).is_dir()


@pytest.mark.parametrize(
    "address",
    [
        "hf://",
        "hf://name",
        "hf://owner/",
        "hf://owner/name@",
        "hf://owner/name/file",
        "hf://datasets/owner/name",
        "hf://owner/na me",
        "hf://../..",
    ],
)
def test_a_malformed_address_is_refused_with_the_form_of_a_right_one(cache, address):
    with pytest.raises(ValueError, match="Expected hf://owner/name or .*Received: 'hf"):
        hub.local_folder(address)


def test_a_name_that_is_no_folder_may_have_lacked_the_scheme(tmp_path):
    with pytest.raises(FileNotFoundError, match="folder.*hf://owner/name"):
        hub.local_folder("owner/name")


class Hub:
    """Stands for the download: notes what is asked for, and lays out those files."""

    def __init__(self, folder, files):
        self.folder, self.files, self.asked = folder, files, []

    def download(self, repository, *, revision, token, allow_patterns, **_):
        self.asked.append((repository, revision, token))
        for name in self.files:
            if any(fnmatch.fnmatch(name, pattern) for pattern in allow_patterns):
                (self.folder / name).write_text(self.files[name])
        return str(self.folder)

    def tree(self, repository, revision):
        class File:
            def __init__(self, path):
                self.path = path

        return [File(name) for name in self.files]


INDEX = '{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["model.safetensors", "pytorch_model.bin"], {"model.safetensors"}),
        (["pytorch_model.bin", "tf_model.h5"], {"pytorch_model.bin"}),
        (
            ["model.safetensors.index.json", "model-1.safetensors"]
            + ["model-2.safetensors", "consolidated.safetensors", "pytorch_model.bin"],
            {"model.safetensors.index.json", "model-1.safetensors"}
            | {"model-2.safetensors"},
        ),
    ],
)
def test_only_one_set_of_weights_is_downloaded(tmp_path, monkeypatch, files, expected):
    folder = tmp_path / COMMIT
    folder.mkdir()
    fake = Hub(folder, {name: INDEX for name in [*files, "config.json", "vocab.txt"]})
    monkeypatch.setattr(hub, "_download", fake.download)
    monkeypatch.setattr(hub, "get_cached_repo_tree", fake.tree)
    hub.local_folder("hf://owner/name@v1", token="secret")
    found = {path.name for path in folder.iterdir()}
    assert found == expected | {"config.json", "vocab.txt"}
    # The weights are of the commit that the config was of.
    assert [ask[1] for ask in fake.asked] == ["v1", COMMIT]
    assert {ask[2] for ask in fake.asked} == {"secret"}


@pytest.fixture
def answer(cache, monkeypatch):
    """A function that says what every request is answered, and an empty cache."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def set_answer(function):
        client = httpx2.Client(transport=httpx2.MockTransport(function))
        monkeypatch.setattr(_http, "_GLOBAL_CLIENT", client)

    return set_answer


@pytest.mark.parametrize(
    ("status", "code", "error", "match"),
    [
        (404, "RepoNotFound", FileNotFoundError, "no repository owner/name.*private"),
        (401, "RepoNotFound", FileNotFoundError, "no repository owner/name.*token"),
        (404, "RevisionNotFound", FileNotFoundError, "no revision 'v9'"),
        (401, "GatedRepo", PermissionError, "gated.*conditions.*token"),
        (403, "GatedRepo", PermissionError, "gated.*conditions.*token"),
        (403, None, PermissionError, "not let this token read owner/name"),
        (500, None, FileNotFoundError, "owner/name.*did not answer.*500"),
    ],
)
def test_what_the_hub_refuses_is_said(answer, status, code, error, match):
    headers = {"X-Error-Code": code} if code else {}
    answer(lambda _: httpx2.Response(status, headers=headers))
    with pytest.raises(error, match=f"(?s){match}"):
        hub.local_folder("hf://owner/name", revision="v9")


def test_without_a_network_the_cache_answers(cache, answer):
    def fail(request):
        raise httpx2.ConnectError("no route")

    answer(fail)
    with pytest.raises(FileNotFoundError, match="did not answer"):
        hub.local_folder("hf://owner/name")
    snapshot = add_repository(cache, {"model.safetensors": weights})
    assert hub.local_folder("hf://owner/name") == snapshot
