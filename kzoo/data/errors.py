"""What is wrong with data."""


class DataError(ValueError):
    """Data that is missing or cannot be right; the message names where."""
