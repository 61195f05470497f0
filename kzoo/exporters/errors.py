"""The error of every export."""

# What to do where an artifact is of another model.
ANOTHER = "Verify it against the model that it was exported from, or export this one."


class ExportError(RuntimeError):
    """An export cannot be made, or its file differs from the model.

    The message says what to do. No file is left behind.
    """
