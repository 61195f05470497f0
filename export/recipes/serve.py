"""An HTTP service of a file that takes text, in onnxruntime alone: no Keras, no kzoo.

    kzoo export multi30k-en-de --out translator --text
    pip install "kzoo[serve,text]"
    python export/recipes/serve.py translator --port 8000
    curl localhost:8000/generate -H "Content-Type: application/json" \
      -d '{"text": ["Two dogs play in the snow."], "beams": 4, "max_new_tokens": 40}'

Each .onnx file of the folder is an address, its inputs are the keys of the JSON, and
its outputs those of the answer; what the file has a default for may be left out.
`GET /` says all of them. A wrong input has an answer with status 422 that names it;
so has one that would keep the service busy, or need much memory, which grows with the
square of a text's length: see `--most-new-tokens`, `--most-beams`, `--most-texts`,
`--most-work`, which is for their product, and `--most-input`.
Status 500 says that the file gives no number for an input.
"""

import argparse
import math
import reprlib
from pathlib import Path

try:
    import fastapi
    import numpy as np
    import onnxruntime
    import onnxruntime_extensions
    import uvicorn
except ImportError as error:
    raise SystemExit(f"{error}: pip install 'kzoo[serve,text]' brings it.") from error

USUAL = {"max_new_tokens": 128, "beams": 1}  # kzoo's defaults, where nothing is asked

# What numpy calls a type of the file's, and what of JSON it is.
TYPES = {
    "tensor(string)": (object, str, "strings"),
    "tensor(int64)": ("int64", int, "whole numbers"),
    "tensor(int32)": ("int32", int, "whole numbers"),
    "tensor(float)": ("float32", (int, float), "numbers"),
    "tensor(bool)": ("bool", bool, "true or false"),
}


class Function:
    """A file that answers JSON by JSON.

    Args:
        path: of the .onnx file.
        threads: of onnxruntime; 0 for one a core.
        most: dict from inputs to the largest number that may be asked for; the file's
            defaults hold where nothing is.
        most_texts: how many rows a needed input may have.
        most_input: how many characters all needed inputs may have, or ids, the texts of
            one counted as long as its longest.
        most_work: how many tokens may be generated, in all beams of all rows; where
            nothing is asked, as in `USUAL`.
    """

    def __init__(
        self,
        path,
        threads=0,
        most=None,
        most_texts=math.inf,
        most_input=math.inf,
        most_work=math.inf,
    ):
        self.most, self.most_texts, self.most_input = most or {}, most_texts, most_input
        self.most_work = most_work
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.needed = {node.name: node for node in self.session.get_inputs()}
        defaults = self.session.get_overridable_initializers()
        self.inputs = self.needed | {node.name: node for node in defaults}
        self.outputs = [node.name for node in self.session.get_outputs()]

    def described(self):
        """What is asked and answered, for `GET /`."""
        return {
            "inputs": {name: node.type for name, node in self.inputs.items()},
            "needed": list(self.needed),
            "outputs": self.outputs,
        }

    def answer(self, given):
        """The outputs as lists.

        Args:
            given: dict of inputs; a string stands for a batch of one.

        Raises:
            ValueError: an input is unknown, missing or of another kind, or the file
                refuses it.
            ArithmeticError: the file has no number for an answer.
        """
        unknown, missing = sorted({*given} - {*self.inputs}), {*self.needed} - {*given}
        if unknown or missing:
            raise ValueError(
                f"Expected {list(self.needed)}, and of {sorted(self.inputs)} what is "
                f"to be changed. Unknown: {unknown}; missing: {sorted(missing)}."
            )
        feed = {name: self._array(name, value) for name, value in given.items()}
        for name in self.most.keys() & feed.keys():
            if feed[name] > self.most[name]:
                raise ValueError(
                    f"{name} must be at most {self.most[name]} here. Received: "
                    f"{feed[name]}."
                )
        needed = [feed[name] for name in self.needed]
        rows = max((len(x) for x in needed if x.ndim), default=0)
        size = sum(map(_size, needed))
        in_words = "characters or ids, all rows as the longest"
        for received, most, of in (
            (rows, self.most_texts, "rows"),
            (size, self.most_input, in_words),
        ):
            if received > most:
                raise ValueError(
                    f"{list(self.needed)} must have at most {most} {of}. "
                    f"Received: {received}."
                )
        if USUAL.keys() <= self.inputs.keys():
            asked = {name: int(feed.get(name, USUAL[name])) for name in USUAL}
            work = rows * math.prod(asked.values())
            if work > self.most_work:
                raise ValueError(
                    f"At most {self.most_work} tokens are generated here, in all beams "
                    f"of all texts. Received: {rows} texts, {asked}, which are {work}."
                )
        texts = {k: len(v) for k, v in feed.items() if v.dtype == object}
        if len(set(texts.values())) > 1:
            raise ValueError(f"Texts must be as many everywhere. Received: {texts}.")
        try:
            found = self.session.run(None, feed)
        except Exception as error:  # onnxruntime's errors share no base
            raise ValueError(f"The file refuses the input: {error}") from error
        return {
            name: _plain(name, x) for name, x in zip(self.outputs, found, strict=True)
        }

    def _array(self, name, value):
        node = self.inputs[name]
        dtype, kind, words = TYPES[node.type]
        if isinstance(value, str) and kind is str:
            value = [value]
        try:
            # JSON's true is no number, though Python's is.
            right = all(
                isinstance(each, kind) and isinstance(each, bool) == (kind is bool)
                for each in _leaves(value)
            )
            array = np.array(value, dtype) if right else np.array(None)
            lists = kind is str and any(isinstance(each, list) for each in array.flat)
        except (OverflowError, RecursionError, RuntimeError, ValueError) as error:
            raise ValueError(
                f"{name}: {error}. Received: {reprlib.repr(value)}"
            ) from error
        if not right:
            raise ValueError(f"{name} must be {words}. Received: {reprlib.repr(value)}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"{name} must be finite. Received: {reprlib.repr(value)}")
        if lists or array.ndim != len(node.shape):
            raise ValueError(
                f"{name} must be {words} with the axes {node.shape}, all rows equally "
                f"long. Received: {reprlib.repr(value)}"
            )
        return array


def _size(array):
    """How many numbers an array has, or characters, filled to the longest text."""
    if array.dtype != object:
        return array.size
    return array.size * max(map(len, array.flat), default=0)


def _plain(name, array):
    """An output as lists; JSON has no infinity and no NaN, and the latter no answer."""
    if array.dtype.kind != "f":
        return array.tolist()
    if np.isnan(array).any():
        raise ArithmeticError(
            f"The file's {name} is NaN with this input, as where numbers overflow."
        )
    numbers = array.astype("float64")
    return np.where(np.isinf(numbers), np.sign(numbers) * 1e30, numbers).tolist()


def _leaves(value):
    """What is in nested lists."""
    if isinstance(value, list):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def service(
    folder,
    threads=0,
    most_new_tokens=1024,
    most_beams=32,
    most_texts=64,
    most_input=10_000,
    most_work=16_384,
):
    """The application of a folder's files, or of one file.

    Args:
        folder: of the files.
        threads: of onnxruntime, for each file; 0 for one a core.
        most_new_tokens: that one request may ask for.
        most_beams: likewise.
        most_texts: likewise.
        most_input: characters of its needed inputs, or ids, see `Function`.
        most_work: tokens in all beams of all texts, likewise.

    Raises:
        FileNotFoundError: there is no .onnx file.
    """
    folder = Path(folder)
    files = [folder] if folder.is_file() else sorted(folder.glob("*.onnx"))
    if not files:
        raise FileNotFoundError(
            f"{folder} has no .onnx file. Expected what `kzoo export --text` wrote."
        )
    most = {"max_new_tokens": most_new_tokens, "beams": most_beams}
    limits = most, most_texts, most_input, most_work
    functions = {path.stem: Function(path, threads, *limits) for path in files}
    app = fastapi.FastAPI(title=folder.name)

    @app.get("/")
    def described():
        return {name: function.described() for name, function in functions.items()}

    @app.post("/{name}")
    def answer(name: str, given: dict):
        if name not in functions:
            raise fastapi.HTTPException(404, f"Expected one of {sorted(functions)}.")
        try:
            return functions[name].answer(given)
        except ValueError as error:
            raise fastapi.HTTPException(422, str(error)) from error
        except ArithmeticError as error:
            raise fastapi.HTTPException(500, str(error)) from error

    return app


def main():
    """Serves until it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", help="what `kzoo export --text` wrote, or one file")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=0, help="0: one a core")
    parser.add_argument("--most-new-tokens", type=int, default=1024, help="a request")
    parser.add_argument("--most-beams", type=int, default=32, help="a request")
    parser.add_argument("--most-texts", type=int, default=64, help="a request")
    parser.add_argument(
        "--most-input",
        type=int,
        default=10_000,
        help="characters or ids of a request, its texts as long as the longest",
    )
    parser.add_argument(
        "--most-work",
        type=int,
        default=16_384,
        help="tokens that a request generates, in all beams of all its texts",
    )
    asked = parser.parse_args()
    most = ("most_new_tokens", "most_beams", "most_texts", "most_input", "most_work")
    for name, least in (("threads", 0), *((name, 1) for name in most)):
        if getattr(asked, name) < least:
            option = f"--{name.replace('_', '-')}"
            received = getattr(asked, name)
            parser.error(f"{option} must be at least {least}. Received: {received}.")
    if not 0 <= asked.port < 2**16:
        parser.error(f"--port must be in [0, {2**16}). Received: {asked.port}.")
    limits = {name: getattr(asked, name) for name in most}
    try:
        app = service(asked.folder, asked.threads, **limits)
    except Exception as error:  # onnxruntime's errors share no base
        parser.error(f"{asked.folder} cannot be served: {error}")
    uvicorn.run(app, host=asked.host, port=asked.port)


if __name__ == "__main__":
    main()
