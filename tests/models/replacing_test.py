"""A method is replaced for the thread that asked for it, and for no other."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kzoo.models.replacing import replaced


class Thing:
    def call(self, x, *, more=0):
        return [x + more]


def doubled(method):
    return lambda x, **options: method(2 * x, **options)


def marked(method):
    return lambda x, **options: [*method(x, **options), "marked"]


def elsewhere(function, *arguments):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


def test_another_thread_calls_the_method_as_it_is():
    thing = Thing()
    with replaced(thing, "call", doubled):
        assert thing.call(3, more=1) == [7]
        assert elsewhere(thing.call, 3) == [3]
    assert thing.call(3) == [3] and not vars(thing)


def test_replacements_nest_and_the_same_one_counts_twice():
    thing = Thing()
    with replaced(thing, "call", doubled), replaced(thing, "call", marked):
        with replaced(thing, "call", doubled):
            assert thing.call(3) == [12, "marked"]
        assert thing.call(3) == [6, "marked"]
    assert not vars(thing)


def test_a_replacement_may_be_of_all_threads():
    thing = Thing()
    with replaced(thing, "call", doubled, everywhere=True):
        with replaced(thing, "call", marked):
            assert thing.call(3) == [6, "marked"]
            assert elsewhere(thing.call, 3) == [6]
    assert thing.call(3) == [3] and not vars(thing)


def test_one_that_leaves_while_another_calls_changes_nothing_for_it():
    thing = Thing()
    outer = replaced(thing, "call", doubled)

    def leaves(method):
        elsewhere(other.__exit__, None, None, None)
        return method

    other = replaced(thing, "call", marked)
    elsewhere(other.__enter__)
    with outer, replaced(thing, "call", leaves), replaced(thing, "call", doubled):
        assert thing.call(3) == [12]
    assert thing.call(3) == [3] and not vars(thing)


def test_what_stood_in_its_place_before_is_back_even_after_an_error():
    thing = Thing()
    thing.call = own = marked(thing.call)
    with pytest.raises(ZeroDivisionError), replaced(thing, "call", doubled):
        assert thing.call(3) == [6, "marked"]
        raise ZeroDivisionError
    assert vars(thing) == {"call": own}


def test_the_last_of_two_threads_that_overlap_takes_everything_away():
    thing, turn = Thing(), threading.Barrier(2, timeout=30)

    def first():
        with replaced(thing, "call", doubled):
            turn.wait()  # both are inside
            found = thing.call(3)
        turn.wait()  # this one has left
        return found, thing.call(3)

    def second():
        with replaced(thing, "call", marked):
            turn.wait()
            turn.wait()
            return thing.call(3)

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.submit(first), pool.submit(second)
        assert one.result() == ([6], [3])
        assert other.result() == [3, "marked"]
    assert not vars(thing)
