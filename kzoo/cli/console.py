"""What the commands share: consoles, one-line errors, signals, progress, backends.

Results go to standard output; progress, notes and errors go to standard error, so that
a pipe gets results alone.
"""

import atexit
import contextlib
import ctypes
import errno
import functools
import os
import re
import shlex
import signal
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

ModelFolder = Annotated[
    str,
    typer.Argument(
        help="A preset (see `kzoo presets`), a folder that `kzoo train` wrote, one in "
        "Hugging Face's layout, or hf://owner/name.",
        show_default=False,
    ),
]

BAD_INPUT, FAILED, INTERRUPTED = 2, 1, 130

# M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD of mallopt(3), in bytes.
_KEPT = {-3: 2**30, -1: 2**31 - 1, -2: 2**26}

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


# The number of the signal that has told the process to end.
_told = None


class Failure(Exception):
    """Ends a command with one line.

    Args:
        message: what was expected, what came, and what to do.
        code: the exit status.
    """

    def __init__(self, message, code=BAD_INPUT):
        super().__init__(message)
        self.code = code


def one_line_errors(command):
    """Makes of a user's mistake one line and an exit status, instead of a traceback.

    kzoo raises `ValueError`s and `TypeError`s that say what to do. The same types from
    within another library are a bug of kzoo and keep their traceback, as everything
    does with `KZOO_TRACEBACK=1`.
    """

    @functools.wraps(command)
    def run(*args, **kwargs):
        formatted = warnings.formatwarning
        # Where in the source one comes from tells a user of commands nothing.
        warnings.formatwarning = lambda message, *_, **__: f"Warning: {message}\n"
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            _say("Interrupted.")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # The reader (`head`) has what it wants; Python would complain at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except Exception as error:
            raise typer.Exit(said(error)) from None
        finally:
            warnings.formatwarning = formatted

    return run


def said(error):
    """Writes a user's mistake as a line; called where an exception is handled.

    Returns:
        int, the exit status.

    Raises:
        Exception: the error, where it is a bug.
    """
    code = _exit_code(error)
    if code is None or os.environ.get("KZOO_TRACEBACK"):
        raise error
    _say(_message(error))
    return code


def _exit_code(error):
    """The status for a mistake of the user's, or `None` for a bug."""
    if isinstance(error, Failure):
        return error.code
    if _is_out_of_memory(error):
        return FAILED
    if isinstance(error, (OSError, ImportError, UnicodeEncodeError)):
        return BAD_INPUT
    if isinstance(error, (ValueError, TypeError)):
        trace = error.__traceback__
        while trace.tb_next:
            trace = trace.tb_next
        raised_in = Path(trace.tb_frame.f_code.co_filename).resolve()
        if Path(__file__).resolve().parents[1] in raised_in.parents:
            return BAD_INPUT
    return None


_OUT_OF_MEMORY = r"\bOOM\b|[Oo]ut of memory|can't allocate memory|RESOURCE_EXHAUSTED"


def _is_out_of_memory(error):
    """Whether Python or a backend had not enough memory, which each says its way."""
    if isinstance(error, MemoryError):
        return True
    kinds = ("ResourceExhaustedError", "OutOfMemoryError", "XlaRuntimeError")
    named = {each.__name__ for each in type(error).__mro__} & {*kinds, "RuntimeError"}
    # TensorFlow has the same class for a full disk.
    return bool(named) and bool(re.search(_OUT_OF_MEMORY, str(error)))


def _message(error):
    if _is_out_of_memory(error):
        return (
            "There is not enough memory. Give shorter texts, fewer beams, or a smaller "
            f"batch. ({' '.join(str(error).split())[:160]})"
        )
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}."
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"{error.strerror}, on standard output or a disk: make some there."
    if isinstance(error, UnicodeEncodeError):
        wrong = ascii(error.object[error.start : error.end])
        if error.encoding in ("utf-8", "utf_8"):  # half of a pair, as in odd file names
            return f"{wrong} is no character, and cannot be written."
        return (
            f"Standard output cannot write {wrong}, which {error.encoding!r} has not. "
            "Set PYTHONIOENCODING=utf-8."
        )
    if isinstance(error, ModuleNotFoundError) and error.name == "tensorflow":
        return (
            "TensorFlow is not installed. Install it, or choose another backend, such "
            "as KERAS_BACKEND=jax."
        )
    return " ".join(str(error).split())


def end_on_signals():
    """Has signals end the process by an exception, so that nothing stays half-written.

    One that is ignored, or handled by who runs the process, stays so.
    """
    own = {"SIGINT": signal.default_int_handler, "SIGTERM": signal.SIG_DFL}
    for name, former in {**own, "SIGHUP": signal.SIG_DFL}.items():
        kind = getattr(signal, name, None)  # Windows has no SIGHUP
        if kind and signal.getsignal(kind) is former:
            signal.signal(kind, _end)


def _end(number, frame):
    global _told
    _told = number
    check_signals()


def check_signals():
    """Raises anew what a signal raised: Keras swallows all while it reads a loss."""
    if _told == signal.SIGINT:
        raise KeyboardInterrupt
    if _told is not None:
        sys.exit(128 + _told)


def _leave():
    """Ends a process that a signal has ended before JAX ends itself.

    It may still compile, in threads that crash when what they work for is gone.
    """
    if _told is not None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(128 + _told)


def _say(message):
    err.print(Text.assemble(("Error: ", "bold red"), message), soft_wrap=True)


def print_table(table):
    """Prints a table, 80 wide at least: a narrower terminal wraps, and cuts nothing."""
    out.width = max(out.width, 80)
    out.print(table)


def note(message):
    """A line for the reader, not for a pipe."""
    err.print(Text(message, style="dim"), soft_wrap=True)


@contextlib.contextmanager
def progress(description, total=None):
    """A bar on standard error while the block runs; nothing where that is no terminal.

    Args:
        description: what is being done.
        total: steps; without it a spinner turns.

    Yields:
        function (steps=1) that moves the bar on.
    """
    check_signals()
    columns = [SpinnerColumn(), TextColumn("{task.description}")]
    if total is not None:
        columns += [BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    columns.append(TimeElapsedColumn())
    bar = Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
    with bar:
        task = bar.add_task(description, total=total)
        yield lambda steps=1: bar.advance(task, steps)


def load_keras(trains=False):
    """Imports Keras and its backend without the notices that those write.

    Args:
        trains: whether the process does, and so had better keep what memory it frees.
    """
    if trains:
        _keep_freed_memory()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # What Keras and TensorFlow warn of concerns programmers.
    warnings.filterwarnings("ignore", module=r"(keras|tensorflow|jax|grain)(\.|$)")
    with _python_s_stderr_only(), progress("Starting Keras"):
        import keras

    atexit.unregister(_leave)
    atexit.register(_leave)  # what is registered last runs first
    return keras


def _keep_freed_memory():
    """Has the C library (glibc) keep freed memory for the next training step.

    By default large tensors go back to the system, and on TensorFlow the page faults of
    the next step take as long as its arithmetic.
    """
    mallopt = (
        getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    )
    if mallopt is not None:
        for option, size in _KEPT.items():
            mallopt(option, size)


@contextlib.contextmanager
def _python_s_stderr_only():
    """Silences C++ that writes before its log level can be set, but not Python."""
    written_by = sys.stderr
    try:
        same = written_by.fileno() == 2
    except (AttributeError, OSError, ValueError):  # closed, or a test's own
        same = False
    if not same or "keras" in sys.modules or os.environ.get("KZOO_TRACEBACK"):
        yield
        return
    written_by.flush()
    kept = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    try:
        with open(os.dup(kept), "w", encoding=written_by.encoding) as sys.stderr:
            yield
    finally:
        sys.stderr = written_by
        os.dup2(kept, 2)
        os.close(kept)


def load_model(source, kind=None):
    """The task that a command is given.

    Args:
        source: the name of a preset; a folder of `kzoo train`, or in Hugging Face's
            layout; or hf://owner/name.
        kind: name of the class that the command needs.
    """
    from kzoo.zoo.registry import COMMANDS, TASKS, located

    folder = located(source)
    if not str(source).startswith("hf://"):
        check_trained(Path(folder))
    load_keras()
    from kzoo.zoo import from_preset

    with progress(f"Loading {source}"):
        task = from_preset(str(source))
    if kind and type(task).__name__ != kind:
        writers = {TASKS[name]: command for name, command in COMMANDS.items()}
        command = writers.get(type(task).__name__)
        raise Failure(
            f"{source} is a {type(task).__name__}, and this command needs a {kind}. "
            + (f"Use `kzoo {command}`." if command else "It writes no text.")
        )
    return task


def check_trained(folder):
    """Refuses a folder without a model, before Keras is loaded."""
    if not (folder / "config.json").is_file():
        training = (folder / "training").is_dir()
        raise Failure(
            f"{folder} has no config.json. "
            + (
                "Its training is not finished: run the same `kzoo train` again."
                if training
                else "Expected a folder that `kzoo train` wrote."
            )
        )


def quoted(path):
    """A path as a shell takes it for one argument, and a command for no option."""
    path = str(path)
    return shlex.quote(f"./{path}" if path.startswith("-") else path)


def file_size(path):
    """Bytes of a file or of all files in a folder, written for people."""
    path = Path(path)
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    size = sum(p.stat().st_size for p in files)
    units = ["B", "KB", "MB", "GB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        del units[0]
    return f"{size:.1f} {units[0]}" if 0 < size < 10 else f"{size:.0f} {units[0]}"


def help_text(text):
    """Joins the lines of a paragraph, which typer would break where the source does.

    Lines that begin with a space, such as examples, stay as they are.
    """
    lines = []
    for line in text.strip().split("\n"):
        prose = line and not line.startswith((" ", "["))
        if prose and lines and lines[-1] and not lines[-1].startswith((" ", "[")):
            lines[-1] += " " + line
        else:
            lines.append(line)
    return "\n".join(lines)
