"""Distribution of the tests to workers."""

from support.scheduling import scopes_of


def test_tests_of_a_file_stay_together() -> None:
    assert scopes_of(["a.py::one", "a.py::two[x::y]", "b.py::one"]) == {
        "a.py::one": "a.py",
        "a.py::two[x::y]": "a.py",
        "b.py::one": "b.py",
    }


def test_tests_moved_away_from_their_file_are_given_one_by_one() -> None:
    """Those that measure come last, and each worker waits for its turn."""
    scopes = scopes_of(["a.py::one", "b.py::one", "a.py::measures", "a.py::measures too"])

    assert [scopes[f"a.py::{name}"] for name in ("one", "measures", "measures too")] == [
        "a.py",
        "a.py::measures",
        "a.py::measures too",
    ]
