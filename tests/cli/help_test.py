"""The command says what it can do, at once."""

import os
import shlex
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import kzoo
from kzoo.cli import app, console

COMMANDS = [
    "demo",
    "presets",
    "train",
    "evaluate",
    "translate",
    "generate",
    "export",
    "verify",
]


def test_help_imports_neither_keras_nor_numpy():
    code = (
        "import sys, kzoo.cli\n"
        "heavy = {'keras', 'tensorflow', 'jax', 'numpy', 'matplotlib', 'onnx'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_lists_every_command(run):
    result = run("--help")
    assert result.exit_code == 0
    assert [c.name for c in app.registered_commands] == COMMANDS
    for name in COMMANDS:
        assert f" {name} " in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_examples(run, command):
    output = run(command, "--help").output
    assert "Examples" in output
    assert output.count(f"kzoo {command} ") >= 2


def test_the_version_is_the_package_s(run):
    assert run("--version").output == f"kzoo {kzoo.__version__}\n"


def test_the_module_runs_where_the_script_is_not_installed():
    result = subprocess.run(
        [sys.executable, "-m", "kzoo", "translate", "nowhere", "x"],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Error: nowhere is not a folder.")
    assert "Traceback" not in result.stderr


_WRITES = (
    "from kzoo import cli\n"
    "@cli.app.command()\n"
    "@cli.console.one_line_errors\n"
    "def speak():\n"
    "    cli.console.out.print('za\\u017c')\n"
    "cli.main()"
)


@pytest.mark.parametrize(
    ("encoding", "code", "out", "err"),
    [
        (None, 0, "zaż\n", ""),
        ("latin-1", 2, "", "Error: Standard output cannot write '\\u017c', which "),
    ],
)
def test_results_are_utf_8_in_every_locale(encoding, code, out, err):
    env = dict(os.environ, LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    env |= {"PYTHONIOENCODING": encoding} if encoding else {}
    command = [sys.executable, "-c", _WRITES, "speak"]
    result = subprocess.run(command, env=env, capture_output=True, check=False)
    assert result.stdout.decode() == out
    assert result.stderr.decode().startswith(err) and bool(err) == bool(result.stderr)
    assert result.returncode == code


# Whatever runs the tests may have ignored them.
_AS_ALWAYS = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_process_that_is_told_to_end_leaves_nothing(tmp_path, name):
    kind = signal.Signals[name]
    code = (
        f"{_AS_ALWAYS}import os, pathlib, time\n"
        "from kzoo import cli, files\n"
        "@cli.app.command()\n"
        "def held(path: pathlib.Path):\n"
        "    with files.beside(path) as partial:\n"
        "        (partial / 'weights').write_bytes(b'half')\n"
        f"        os.kill(os.getpid(), signal.{name})\n"
        "        time.sleep(60)\n"
        "cli.main()"
    )
    path = tmp_path / "made" / "model"
    command = [sys.executable, "-c", code, "held", path]
    assert subprocess.run(command, check=False).returncode == 128 + kind
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "said"), [("SIGINT", "Error: Interrupted.\n"), ("SIGTERM", "")]
)
def test_a_signal_that_a_library_swallows_ends_the_process_at_the_next_step(name, said):
    code = (
        f"{_AS_ALWAYS}from kzoo import cli\n"
        "@cli.app.command()\n"
        "@cli.console.one_line_errors\n"
        "def swallowed():\n"
        "    try:\n"
        f"        signal.raise_signal(signal.{name})\n"
        "    except:\n"
        "        cli.console.check_signals()\n"
        "cli.main()"
    )
    command = [sys.executable, "-c", code, "swallowed"]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert (result.returncode, result.stderr) == (128 + signal.Signals[name], said)


def test_a_signal_that_is_ignored_stays_so():
    """As under `nohup`-like wrappers that end what they run by other means."""
    code = (
        "import signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "from kzoo import cli\n"
        "@cli.app.command()\n"
        "def raised():\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "cli.main()"
    )
    subprocess.run([sys.executable, "-c", code, "raised"], check=True)


def test_a_closed_output_is_no_traceback():
    command = f"{sys.executable} -m kzoo presets >&-"
    result = subprocess.run(command, shell=True, capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="of Linux")
@pytest.mark.parametrize("arguments", ["--help", "train --help", "presets", ""])
def test_an_output_that_takes_nothing_is_no_traceback(arguments):
    command = f"{sys.executable} -m kzoo {arguments} >/dev/full"
    result = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr == (
        "Error: No space left on device, on standard output or a disk: make some there."
        "\n"
    )


@pytest.mark.parametrize("name", ["plain", "-m", "--out", "two words", "-a b"])
def test_a_recommended_path_is_one_argument_and_no_option(name):
    (word,) = shlex.split(console.quoted(Path(name)))
    assert not word.startswith("-") and Path(word) == Path(name)


def _raises(error):
    @console.one_line_errors
    def command():
        raise error

    return command


def test_a_bug_in_a_library_keeps_its_traceback():
    @console.one_line_errors
    def command():
        int("x")  # as deep in another library: raised in no file of kzoo's

    with pytest.raises(ValueError, match="invalid literal"):
        command()


class ResourceExhaustedError(Exception):
    """Named as TensorFlow's."""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no"),
        ResourceExhaustedError("OOM when allocating"),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_too_little_memory_is_one_line(capsys, error):
    with pytest.raises(Exception) as caught:
        _raises(error)()
    assert caught.value.exit_code == 1
    assert "There is not enough memory. Give shorter texts" in capsys.readouterr().err


def test_a_full_disk_of_tensorflow_s_is_no_lack_of_memory():
    error = ResourceExhaustedError("/dev/full; No space left on device")
    with pytest.raises(ResourceExhaustedError):
        _raises(error)()


def test_a_warning_is_a_line_while_a_command_runs():
    given = "it is long", UserWarning, "text_data.py", 401
    before, during = warnings.formatwarning(*given), []

    @console.one_line_errors
    def command():
        during.append(warnings.formatwarning(*given))

    command()
    assert during == ["Warning: it is long\n"]
    assert warnings.formatwarning(*given) == before != during[0]


def test_a_mistake_that_kzoo_finds_is_one_line(capsys):
    @console.one_line_errors
    def command():
        kzoo.config.StackConfig(vocabulary_size=-1)

    with pytest.raises(Exception) as caught:
        command()
    assert caught.value.exit_code == 2
    assert "vocabulary_size must be positive" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (console.Failure("a\nb", 1), 1, "Error: a b"),
        (OSError(28, "No space left on device", "x"), 2, "x: No space left on device."),
        (KeyboardInterrupt(), 130, "Interrupted."),
        (ModuleNotFoundError("no", name="tensorflow"), 2, "KERAS_BACKEND=jax"),
    ],
)
def test_errors_have_a_line_and_a_status(capsys, error, code, line):
    with pytest.raises(Exception) as caught:
        _raises(error)()
    assert caught.value.exit_code == code
    written = capsys.readouterr().err
    assert line in written and written.count("\n") == 1


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1234, "1.2 KB"), (56_700_000, "57 MB")],
)
def test_sizes_are_written_for_people(tmp_path, size, text):
    (tmp_path / "a").write_bytes(b"")
    with open(tmp_path / "b", "wb") as file:
        file.truncate(size)
    assert console.file_size(tmp_path) == text
