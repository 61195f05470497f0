"""Which rows of a test `--rows` leaves."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture
def conftest(request):
    path = Path(__file__).with_name("conftest.py")
    return request.config.pluginmanager.get_plugin(str(path))


class Item:
    """What is collected: a row of a test, with marks."""

    def __init__(self, nodeid, *marks):
        self.nodeid, self.marks = nodeid, set(marks)

    def get_closest_marker(self, name):
        return name in self.marks

    def add_marker(self, mark):
        self.marks.add(mark.name)


def left(conftest, items, rows):
    """The ids that stay; pytest is told of all others."""
    told = []
    hook = SimpleNamespace(pytest_deselected=lambda items: told.extend(items))
    config = SimpleNamespace(getoption={"--rows": rows}.get, hook=hook)
    kept = list(items)
    conftest.pytest_collection_modifyitems(config, kept)
    assert sorted(map(id, kept + told)) == sorted(map(id, items))
    return [item.nodeid for item in kept]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_every_test_keeps_rows_that_are_spread_over_all(conftest, count):
    tests = {f"test_{n}": [(n, row) for row in range(n)] for n in range(1, 200)}
    chosen = conftest.spread(tests, count)
    assert len(set(chosen)) == len(chosen)
    assert Counter(n for n, _ in chosen) == {n: min(n, count) for n in range(1, 200)}
    for n in range(count, 200):
        rows = sorted(row for m, row in chosen if m == n)
        gaps = {(b - a) % n for a, b in zip(rows, rows[1:] + rows[:1])} or {0}
        assert max(gaps) - min(gaps) <= 1
    firsts = [rows[0] / n for n, *rows in conftest.spread(tests, 1) if n > 10]
    assert min(firsts) < 0.1 and max(firsts) > 0.9


def test_every_process_chooses_the_same_rows(conftest):
    # By zlib.crc32: 1,564,985,826 and 3,293,485,144.
    tests = {name: range(1000) for name in ("test_a", "test_b")}
    assert conftest.spread(tests, 2) == [826, 326, 144, 644]


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_no_row_that_is_skipped_stands_for_a_test(conftest, backend, monkeypatch):
    monkeypatch.setattr(conftest, "BACKEND", backend)
    items = [Item(f"x::test_a[{n}]", *["tensorflow"] * (n != 7)) for n in range(9)]
    items += [Item("x::test_b"), Item("x::test_c", "skip")]
    kept = left(conftest, items, 1)
    skipped = [f"x::test_a[{n}]" for n in range(9) if n != 7]
    assert set(kept) == {"x::test_a[7]", "x::test_b", "x::test_c", *skipped}


def test_rows_are_left_alone_unless_told_and_one_is_the_least(conftest):
    items = [Item(f"x::test_a[{n}]") for n in range(9)]
    assert len(left(conftest, items, None)) == 9
    assert len(left(conftest, items, 4)) == 4
    with pytest.raises(pytest.UsageError, match="1 or more. Received: 0"):
        left(conftest, items, 0)
