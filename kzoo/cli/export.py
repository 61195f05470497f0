"""`kzoo export`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from kzoo.cli import reports
from kzoo.cli.console import Failure, ModelFolder, load_model
from kzoo.files import refuse_link, settled

HELP = """
Export a model as ONNX or SavedModel, and prove that the files are right.

The files hold the forward pass and the whole generate loop; --functions prefill and
step hand the cache from call to call, for a server that streams. They are reloaded in
their own runtime and compared with the model at several shapes; when anything is off,
nothing is left behind and the exit status is 1.

[bold]Examples[/bold]

  kzoo export translator --format onnx --out translator.onnx
  kzoo export translator --format tf_saved_model --out saved_model
  kzoo export translator --format onnx --out small --quantize int8
  kzoo export translator --format onnx --out text_to_text --text
  kzoo export translator --format onnx --out small_text --text --quantize int8
  kzoo export translator --format onnx --out old_runtime --portable --report report.json
  kzoo export writer --format genai --out writer_genai
  kzoo export writer --out stream --functions prefill --functions step
  kzoo export writer --out forward.onnx --functions forward
"""


def export(
    model: ModelFolder,
    out_path: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="A new folder; for ONNX also a file.onnx.",
            show_default=False,
        ),
    ],
    format: Annotated[
        Literal["onnx", "tf_saved_model", "genai"],
        typer.Option(
            help="What to write; genai is a folder for onnxruntime-genai, of a model "
            "that continues text."
        ),
    ] = "onnx",
    functions: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="What the files offer: forward, generate, prefill or step; once each. "
            "With --text also forward_pairs, of a task that reads one text or two. "
            "Left out, all; but of ONNX of ids forward and generate, and in a single "
            "file generate, or forward where there is none.",
        ),
    ] = None,
    opset: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="ONNX operator set; left out, the one that runs fastest."
        ),
    ] = None,
    portable: Annotated[
        bool,
        typer.Option("--portable", help="ONNX of operators that older runtimes know."),
    ] = False,
    quantize: Annotated[
        Literal["int8", "int8_weights", "int4", "float16"] | None,
        typer.Option(
            help="Make the weights of an ONNX file smaller; int8 is the fastest.",
        ),
    ] = None,
    external_data_threshold: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            min=0,
            help="Weights of a single ONNX file that are more than this are kept in a "
            "file beside it; left out, 2 GB, protobuf's limit.",
        ),
    ] = None,
    exporter: Annotated[
        Literal["kzoo", "tf2onnx"],
        typer.Option(
            help="tf2onnx is for models with layers of your own; it writes one file, "
            "the forward pass."
        ),
    ] = "kzoo",
    text: Annotated[
        bool,
        typer.Option(
            "--text",
            help="Text in and out: the tokenizer is in the graph. Needs kzoo\\[text].",
        ),
    ] = False,
    low_memory: Annotated[
        bool,
        typer.Option(
            "--low-memory",
            help="ONNX that holds weights once where it generates; slower where a few "
            "texts or beams run at a time, and of small models.",
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what is at --out.")
    ] = False,
    report: reports.Report = None,
):
    """Runs the command."""
    refuse_link(out_path, Failure)
    if out_path.exists() and not overwrite:
        raise Failure(f"{out_path} exists. Give another --out, or --overwrite.")
    reports.check_path(report, out_path, model)
    report = report and settled(report)  # the current folder may be what is replaced
    onnx = format != "tf_saved_model"
    if (
        not onnx
        and (opset is not None or portable)
        or format != "onnx"
        and (exporter != "kzoo" or external_data_threshold is not None)
    ):
        raise Failure(
            "--opset, --portable, --exporter and --external-data-threshold are of "
            f"--format onnx. Received: --format {format}."
        )
    if quantize and (format != "onnx" or exporter != "kzoo"):
        raise Failure(
            "--quantize is of --format onnx and --exporter kzoo. "
            f"Received: --format {format}, --exporter {exporter}."
        )
    if low_memory and (format != "onnx" or exporter != "kzoo" or quantize):
        raise Failure(
            "--low-memory is of --format onnx and --exporter kzoo, without --quantize. "
            f"Received: --format {format}, --exporter {exporter}, "
            f"--quantize {quantize}."
        )
    task = load_model(model)
    _check(task, functions, opset if exporter == "kzoo" else None, portable, text)
    options = dict(format=format, overwrite=overwrite)
    options |= dict(text=True) if text else {}
    options |= dict(functions=functions) if functions else {}
    if external_data_threshold is not None:
        options |= dict(external_data_threshold=external_data_threshold)
    if onnx:
        options |= dict(opset=opset, portable=portable)
        options |= dict(quantize=quantize) if quantize else {}
        options |= dict(low_memory=True) if low_memory else {}
        # The native exporter is not asked for by name, so that its errors are its own.
        options |= {} if exporter == "kzoo" else dict(exporter=exporter)
    description = f"Exporting and verifying {out_path}"
    reports.show(reports.run(description, task.export, out_path, **options), report)


def _check(task, functions, opset, portable, text):
    """Refuses what no export of the model can have."""
    from kzoo.exporters.onnx import MAXIMUM_OPSET, MINIMUM_OPSET, PORTABLE_OPSET

    steps = getattr(task, "stepwise_functions", list)()
    known = [function.name for function in (*steps, *task.export_functions())]
    # Those of text are others, which the export itself knows.
    if not text and not {*(functions or ())} <= {*known}:
        raise Failure(
            f"--functions: expected names of {known}. Received: {', '.join(functions)}."
        )
    largest = PORTABLE_OPSET if portable else MAXIMUM_OPSET
    if opset is not None and not MINIMUM_OPSET <= opset <= largest:
        raise Failure(
            f"--opset: expected a number from {MINIMUM_OPSET} to {largest}"
            f"{' with --portable' * portable}. Received: {opset}."
        )
