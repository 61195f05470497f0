"""A small translator and a small language model in folders, and a runner."""

import keras
import pytest
from typer.testing import CliRunner

import kzoo
from kzoo.cli import app

ALPHABET = "abcdefgh "


def _config(architecture):
    return kzoo.ModelConfig.from_size(
        "tiny",
        architecture,
        len(ALPHABET) + 4,
        num_layers=1,
        hidden_dim=16,
        num_heads=2,
        intermediate_dim=32,
    )


@pytest.fixture(scope="session")
def tokenizer():
    return kzoo.FastTokenizer.train([ALPHABET], 100, algorithm="character")


@pytest.fixture(scope="session")
def translator(tmp_path_factory, tokenizer):
    keras.utils.set_random_seed(0)  # of a model that says more than spaces
    folder = tmp_path_factory.mktemp("models") / "translator"
    kzoo.Seq2SeqLM(_config("encoder_decoder"), tokenizer).save_folder(folder)
    return folder


@pytest.fixture(scope="session")
def writer(tmp_path_factory, tokenizer):
    keras.utils.set_random_seed(0)
    folder = tmp_path_factory.mktemp("models") / "writer"
    kzoo.CausalLM(_config("decoder"), tokenizer).save_folder(folder)
    return folder


@pytest.fixture
def run():
    """Runs `kzoo` in this process: function (*arguments, input=None)."""

    def run(*arguments, input=None):
        result = CliRunner().invoke(app, [str(a) for a in arguments], input=input)
        unexpected = result.exception
        if unexpected is not None and not isinstance(unexpected, SystemExit):
            raise unexpected
        return result

    return run


@pytest.fixture
def refused(run):
    """Runs `kzoo`, expects one clear line and status 2, and gives the line."""

    def refused(*arguments, code=2):
        result = run(*arguments)
        assert result.exit_code == code, result.output
        (line,) = result.stderr.strip().split("\n")
        assert line.startswith("Error: ")
        assert result.stdout == ""
        return line

    return refused
