"""The error of every export."""


class ExportError(RuntimeError):
    """An export cannot be made, or its file differs from the model.

    The message says what to do. No file is left behind.
    """
