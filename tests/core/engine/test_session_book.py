"""Which sessions are known, and who descends from whom."""

from __future__ import annotations

from tokenspeed.engine.messages import Terms
from tokenspeed.engine.requests import number_of
from tokenspeed.engine.session_book import MAX_SESSIONS, SessionBook


def book_of(*turns: tuple[str, str, str], owner: str = "a") -> SessionBook:
    book = SessionBook()
    for session, parent, root in turns:
        book.note(Terms(session=session, parent=parent, root=root, owner=owner))
    return book


def family(book: SessionBook, name: str, owner: str = "a") -> list[str]:
    return [session.name for session in book.family(owner, name)]


TREE = (("r", "", ""), ("c1", "r", "r"), ("c2", "r", "r"), ("g", "c1", "r"), ("x", "", ""))


def test_a_family_is_a_session_and_all_below_it_children_first() -> None:
    book = book_of(*TREE)
    found = family(book, "r")
    assert set(found) == {"r", "c1", "c2", "g"}
    assert found.index("g") < found.index("c1") < found.index("r")
    assert set(family(book, "c1")) == {"c1", "g"}
    assert family(book, "x") == ["x"]


def test_children_are_those_that_a_session_started() -> None:
    assert [child.name for child in book_of(*TREE).children("a", "r")] == ["c1", "c2"]


def test_who_tells_only_its_root_is_the_roots_child() -> None:
    book = book_of(("r", "", ""), ("c", "", "r"))
    found = book.find("a", "c")
    assert found is not None
    assert (found.parent, found.root) == ("r", "r")
    assert set(family(book, "r")) == {"c", "r"}


def test_a_grandchild_of_a_forgotten_parent_is_found_by_its_root() -> None:
    book = book_of(*TREE)
    book.forget("a", "c1")
    assert set(family(book, "r")) == {"r", "c2", "g"}


def test_parents_in_a_circle_end() -> None:
    book = book_of(("a", "b", "b"), ("b", "a", "a"))
    assert set(family(book, "a")) == {"a", "b"}


def test_names_are_their_owners() -> None:
    book = book_of(*TREE)
    book.note(Terms(session="c1", parent="r", root="r", owner="b"))
    assert book.find("b", "r") is None
    assert family(book, "c1", "b") == ["c1"]
    numbers = [found.number for owner in "ab" if (found := book.find(owner, "c1"))]
    assert numbers == [number_of("c1", owner="a"), number_of("c1", owner="b")]


def test_a_turn_without_a_session_is_nobodys() -> None:
    assert len(book_of(("", "", ""))) == 0


def test_the_sessions_without_a_turn_for_longest_are_forgotten() -> None:
    book = book_of(*((str(number), "", "") for number in range(MAX_SESSIONS)))
    book.note(Terms(session="0", owner="a"))
    book.note(Terms(session="new", owner="a"))
    assert len(book) == MAX_SESSIONS
    assert book.find("a", "0") is not None
    assert book.find("a", "1") is None
