"""Windows hold everything, within their room, and own what they see best."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzoo.tasks.windows import windows

ROOM = st.shared(st.integers(1, 12), key="room")
LENGTHS = ROOM.flatmap(
    lambda room: st.lists(st.integers(1, room), min_size=1, max_size=30)
)


@given(ROOM, LENGTHS)
def test_every_unit_is_owned_once_by_a_window_that_has_room_for_it(room, lengths):
    found = windows(lengths, room)
    owned = [unit for _, own in found for unit in range(*own)]
    assert owned == list(range(len(lengths)))
    for (first, last), (begin, end) in found:
        assert first <= begin <= end <= last
        assert sum(lengths[first:last]) <= room
    if sum(lengths) <= room:
        assert len(found) == 1


@pytest.mark.parametrize(("count", "room"), [(20, 8), (21, 8), (50, 7), (9, 8)])
def test_a_unit_is_owned_where_it_stands_farthest_from_an_edge(count, room):
    def margin(span, unit):
        """Units of context on the poorer side; none is missed beyond the text."""
        first, last = span
        left = unit - first if first else count
        right = last - 1 - unit if last < count else count
        return min(left, right)

    found = windows([1] * count, room)
    for span, own in found:
        for unit in range(*own):
            best = max(margin(s, unit) for s, _ in found if s[0] <= unit < s[1])
            assert margin(span, unit) >= best - 1  # between two places of one middle
            assert margin(span, unit) >= min(room // 4 - 1, count)


def test_without_a_limit_there_is_one_window():
    assert windows([5] * 40, None) == [((0, 40), (0, 40))]
