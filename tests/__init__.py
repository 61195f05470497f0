"""The tests. A package, so that they can import `tests.reference`."""
