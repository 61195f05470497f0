"""Texts of TensorFlow Datasets, which are downloaded where they are not prepared."""

import difflib
import os
import socket
import urllib.request

from kzoo.data.errors import DataError

_TFDS = "tfds:"


def is_tfds(source):
    """Whether a source is a data set of TensorFlow Datasets."""
    return isinstance(source, str) and source.startswith(_TFDS)


def load_tfds(source, split, keys=None):
    """Rows of a TensorFlow data set, downloaded and prepared when it is not yet.

    Args:
        source: "tfds:" and a name as `tfds.load` takes it, such as
            `"tfds:ted_hrlr_translate/pt_to_en"`.
        split: as `tfds.load` takes it, such as `"train[:90%]"`.
        keys: names of the features; `None` means the supervised keys.

    Returns:
        list of tuples of `str`, in the data set's order.

    Raises:
        DataError: no such data set, split or feature; not prepared and offline; or
            an empty or undecodable text, or a feature that is no text or number.
        ImportError: `tensorflow_datasets` or TensorFlow is not installed.
    """
    name = source.removeprefix(_TFDS)
    try:
        import tensorflow  # noqa: F401 (TFDS reads TFRecords with it)
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ImportError(
            f"Reading 'tfds:{name}' needs TensorFlow Datasets: "
            "pip install tensorflow tensorflow-datasets."
        ) from error
    try:
        # TFDS itself looks at the variable only when it is imported.
        builder = tfds.builder(name, data_dir=os.environ.get("TFDS_DATA_DIR"))
    except tfds.core.DatasetNotFoundError:
        known = sorted({*tfds.list_builders()})  # which has some twice
        close = difflib.get_close_matches(name.split("/")[0], known)
        hint = f" Did you mean one of {close}?" if close else ""
        raise DataError(f"TFDS has no data set {name!r}.{hint}") from None
    except (ValueError, TypeError, AssertionError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"TFDS has no data set {name!r}. Expected name, name/config or "
            f"name/config:version. {reason}"
        ) from error
    if not builder.is_prepared():
        _prepare(builder, name)
    keys = keys or builder.info.supervised_keys
    features = sorted(builder.info.features)
    if not keys or any(key not in features for key in keys):
        raise DataError(
            f"tfds:{name}: choose columns among its features {features}. "
            f"Received: {keys}."
        )
    try:
        if split is None or isinstance(split, (list, tuple, dict)):  # several data sets
            raise ValueError
        dataset = builder.as_dataset(split=split, shuffle_files=False)
    except ValueError as error:
        raise DataError(
            f"tfds:{name} has no split {split!r}, or no row of it; it has "
            f"{sorted(builder.info.splits)}. Several are joined by '+'."
        ) from error
    where = f"tfds:{name}, split {split}"
    return [
        tuple(_tfds_text(row[key], f"{where}, row {number}, {key}") for key in keys)
        for number, row in enumerate(tfds.as_numpy(dataset), 1)
    ]


def _prepare(builder, name):
    remedy = (
        f"Run tfds.load({name!r}) where there is a network, copy the folder, and set "
        "TFDS_DATA_DIR to its parent."
    )
    # TFDS retries an unreachable host for minutes, so look first. A proxy may serve a
    # machine that resolves no names.
    if not urllib.request.getproxies():
        try:
            socket.create_connection(("storage.googleapis.com", 443), 5).close()
        except OSError as error:
            raise DataError(
                f"tfds:{name} is not prepared in {builder.data_dir}, and this machine "
                f"is offline ({error}). {remedy}"
            ) from error
    try:
        builder.download_and_prepare()
    except OSError as error:  # requests' errors are
        raise DataError(f"tfds:{name} could not be downloaded: {error} {remedy}") from (
            error
        )


def _tfds_text(value, where):
    if not isinstance(value, (bytes, str)):
        shape = getattr(value, "shape", None)
        if shape != ():
            raise DataError(
                f"{where}: expected a text or a number. Received: "
                f"{type(value).__name__} of shape {shape}. Choose another feature."
            )
        return str(value)
    try:
        text = (value.decode("utf-8") if isinstance(value, bytes) else value).strip()
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 at byte {error.start}.") from error
    if not text:
        raise DataError(f"{where}: the text is empty.")
    return text
