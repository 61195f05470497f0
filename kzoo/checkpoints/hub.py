"""Checkpoints by name: a local folder, or a repository of the Hugging Face Hub."""

import contextlib
from pathlib import Path

from huggingface_hub import constants, get_cached_repo_tree, parse_hf_uri
from huggingface_hub import snapshot_download as _download
from huggingface_hub.errors import (
    CachedRepoTreeNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HfUriError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from kzoo.checkpoints.files import INDEX, SAFETENSORS, TORCH, read_index

# Configs, tokenizers, chat templates and the indexes of shards.
PATTERNS = ("*.json", "*.txt", "*.model", "*.spm", "*.jinja")
_SCHEME = "hf://"


def local_folder(source, revision=None, token=None, patterns=PATTERNS, weights=True):
    """The folder of a checkpoint, downloaded where it is not there yet.

    Args:
        source: a local folder, which is returned as it is, or
            `hf://owner/name@revision`, with the revision (a branch, a tag or a commit)
            if one is wanted. A repository comes into the Hub's own cache, or out of it
            when `HF_HUB_OFFLINE=1` is set or nothing answers.
        revision: the same as in the address.
        token: for repositories that ask for one; by default the one of `HF_TOKEN` or
            `hf auth login`.
        patterns: which files of a repository are wanted beside its weights.
        weights: whether to get those: the safetensors files, and `pytorch_model.bin`
            only where there are none.

    Returns:
        `pathlib.Path` of the folder.

    Raises:
        FileNotFoundError: no such folder, repository or revision; or it is not in the
            cache and the Hub cannot be reached.
        PermissionError: the repository is gated, or the token is not accepted.
        ValueError: an address that is none.
    """
    if not str(source).startswith(_SCHEME):
        return _given_folder(source, revision)
    repository, revision = _parse(str(source), revision)

    def download(revision, patterns):
        return Path(
            _download(
                repository,
                revision=revision,
                token=token,
                allow_patterns=list(patterns),
            )
        )

    try:
        folder = download(revision, patterns)
        wanted = _weight_files(repository, folder) if weights else []
        if not all((folder / name).exists() for name in wanted):
            # Of the same commit, even if the branch has gone on in the meantime.
            download(folder.name, wanted)
        return folder
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise _explained(error, repository, revision) from error


def _explained(error, repository, revision):
    """What the Hub said, and what to do: the error to raise for its error."""
    # Where nothing is cached either, the answer is the cause of that error.
    answer = error if isinstance(error, HfHubHTTPError) else error.__cause__
    status = answer.response.status_code if isinstance(answer, HfHubHTTPError) else None
    page = f"{constants.ENDPOINT}/{repository}"
    token = "token=..., HF_TOKEN, or `hf auth login`"
    received = f"Received: {str(error).strip()}"
    if isinstance(error, GatedRepoError):
        return PermissionError(
            f"{repository} is gated. Accept its conditions at {page}, then give a "
            f"token: {token}. {received}"
        )
    if isinstance(error, RepositoryNotFoundError):
        return FileNotFoundError(
            f"There is no repository {repository} at {page}, or it is private: then "
            f"give a token that may read it: {token}. {received}"
        )
    if isinstance(error, RevisionNotFoundError):
        return FileNotFoundError(
            f"{repository} has no revision {revision!r}. Expected a branch, a tag or a "
            f"commit of {page}. {received}"
        )
    if status in (401, 403):
        return PermissionError(
            f"The Hub does not let this token read {repository}. Give another: "
            f"{token}. {received}"
        )
    return FileNotFoundError(
        f"{repository} is not, or not whole, in the cache {constants.HF_HUB_CACHE}, "
        "and the Hub was not asked or did not answer. Check the network, unset "
        f"HF_HUB_OFFLINE, or give a folder that has the files. {received}"
    )


def _given_folder(source, revision):
    folder = Path(source)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"Expected a folder that is there, or {_SCHEME}owner/name for a repository "
            f"of the Hugging Face Hub. Received: {str(source)!r}."
        )
    if revision is not None:
        raise ValueError(
            f"Only a repository ({_SCHEME}owner/name) has revisions, {folder} is a "
            f"folder. Received: revision={revision!r}."
        )
    return folder


def _parse(source, revision):
    """`hf://owner/name@revision` -> ("owner/name", revision or None)."""
    try:
        uri = parse_hf_uri(source)
    except HfUriError as error:
        raise ValueError(_expected(source)) from error
    if uri.type != "model" or uri.path_in_repo:
        raise ValueError(_expected(source))
    if None not in (revision, uri.revision) and revision != uri.revision:
        raise ValueError(
            f"Expected one revision. Received: {source} and revision={revision!r}."
        )
    return uri.id, revision or uri.revision


def _expected(source):
    return (
        f"Expected {_SCHEME}owner/name or {_SCHEME}owner/name@revision, a model "
        f"repository of the Hugging Face Hub. Received: {source!r}."
    )


def _weight_files(repository, folder):
    """Names of the weights that `open_tensors` takes first."""
    names = {path.name for path in folder.iterdir()}
    with contextlib.suppress(CachedRepoTreeNotFoundError):  # of an older cache
        tree = get_cached_repo_tree(repository, revision=folder.name)
        names |= {file.path for file in tree}
    for name in (SAFETENSORS, TORCH):
        if name in names:
            return [name]
        if name + INDEX in names:
            return sorted(set(read_index(folder / (name + INDEX)).values()))
    return []
