"""Rows of clients: who gets which, who is refused, and who is there; whatever engine names the nodes."""

from __future__ import annotations

import pytest

from fedpals.engine.roster import Introduction, Roster
from fedpals.labels.private import noisy_counts


def roster(*introductions: Introduction) -> Roster[str]:
    """A roster of sites a, b, c, …, all connected."""
    sites = dict(zip("abcdef", introductions, strict=False))
    full = Roster[str](3)
    full.connected(sites)
    full.hear(sites)
    full.settle()
    return full


ONE, TWO = Introduction([30, 10, 0], 1), Introduction([0, 20, 20], 2)


def test_new_rows_are_ordered_by_number_then_by_node() -> None:
    full = roster(TWO, Introduction([1, 1, 1]), ONE, Introduction([2, 2, 2]))
    assert [member.node for member in full.members] == ["c", "a", "b", "d"]
    assert full.present.tolist() == [0, 1, 2, 3]


def test_rows_do_not_depend_on_who_answers_first_until_they_are_settled() -> None:
    full = Roster[str](3)
    full.connected("abc")
    full.hear({"a": TWO})
    full.hear({"b": ONE})
    full.settle()
    full.hear({"c": Introduction([1, 1, 1], 0)})
    full.settle()
    assert [member.number for member in full.members] == [1, 2, 0]
    assert full.present.tolist() == [0, 1, 2]


def test_a_client_under_another_name_takes_its_row_once_the_old_one_is_gone() -> None:
    full = roster(ONE, TWO)
    full.connected(["a", "b", "new"])
    full.hear({"new": ONE})
    assert "number 1 belongs to node a, which is connected" in full.refused["new"]
    assert full.connected(["a", "b", "new"]) == [], "not asked again as long as that is so"
    assert full.connected(["b", "new"]) == ["new"]
    full.hear({"new": ONE})
    assert [member.node for member in full.members] == ["new", "b"]
    assert not full.refused


def test_a_silent_node_is_not_present_and_can_be_replaced() -> None:
    full = roster(ONE, TWO)
    full.silent = {"a"}
    assert full.present.tolist() == [1]
    full.hear({"new": ONE})
    assert full.present.tolist() == [0, 1]
    full.silent = set()
    full.hear({"a": ONE})
    assert "number 1 belongs to node new" in full.refused["a"]


@pytest.mark.parametrize("impostor", [Introduction([30, 11, 0], 1), Introduction([30, 10, 0], 1, epsilon=1.0)])
def test_a_row_is_not_taken_over(impostor: Introduction) -> None:
    full = roster(ONE, TWO)
    full.connected(["b", "new"])
    full.hear({"new": impostor})
    assert full.members[0].node == "a"
    assert full.present.tolist() == [1]
    assert set(full.refused) == {"new"}


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_fresh_noise_does_not_lock_a_client_out_and_does_not_let_another_in(epsilon: float) -> None:
    counts = [400, 100, 0]
    for seed in range(200):
        first, again = noisy_counts([counts, counts], epsilon, seed).tolist()
        full = roster(Introduction(first, 1, epsilon=epsilon), TWO)
        kept = full.members[0].counts
        full.connected(["b", "new"])
        full.hear({"new": Introduction(again, 1, epsilon=epsilon)})
        assert full.members[0].node == "new"
        assert full.members[0].counts == kept, "the first counts stay in use"
        full.connected(["b", "other"])
        full.hear({"other": Introduction([2000, 9, 9], 1, epsilon=epsilon)})
        assert full.members[0].node == "new"
        assert "no noise turns into these" in full.refused["other"]


def test_a_refused_node_may_try_again_after_it_was_away() -> None:
    full = roster(ONE, Introduction([1, 2]))
    assert full.connected(["a", "b"]) == []
    full.connected(["a"])
    assert full.connected(["a", "b"]) == ["b"]


def judging(*held_out: int, cap: int | None = None) -> Roster[str]:
    """Sites a, b, c, … that train on 100 samples each."""
    sites = {site: Introduction([60, 40, 0], i, n) for i, (site, n) in enumerate(zip("abcdef", held_out, strict=False))}
    full = Roster[str](3, cap)
    full.connected(sites)
    full.hear(sites)
    full.settle()
    return full


@pytest.mark.parametrize(
    ("held_out", "cap", "claims"),
    [
        ((50, 10, 10), None, []),
        ((90, 0, 0), None, []),
        ((90, 4, 4), None, ["0 claims to hold 90 samples out, all 2 others together 8:"]),
        ((101, 50, 0), None, ["0 claims to hold 101 samples out, more than the 100 that it trains on:"]),
        ((5000, 10, 0), None, ["0 claims to hold 5000 samples out, more than the 100 that it trains on and all 1 oth"]),
        ((5000, 10, 1), 1000, ["0 claims to hold 5000 samples out, more than max_samples=1000: it is not asked to"]),
    ],
)
def test_who_claims_to_hold_too_much_out_is_named(
    held_out: tuple[int, ...], cap: int | None, claims: list[str]
) -> None:
    full = judging(*held_out, cap=cap)
    found = full.claims("abc", str)
    assert len(found) == len(claims)
    assert all(line.startswith(claim) for line, claim in zip(found, claims, strict=True))
    assert full.holders([0, 1, 2]) == [i for i, n in enumerate(held_out) if 0 < n <= (cap or n)]
    assert all("all " in line for line in full.claims("", str)), "what is no comparison with others is said once"


def test_giants_do_not_hide_each_other() -> None:
    claims = (9, 10**12, 8, 10**12, 7)
    sites = {f"site {i}": Introduction([n, 0, 0], i) for i, n in enumerate(claims)}
    full = Roster[str](3)
    full.connected(sites)
    full.hear(sites)
    full.settle()
    assert [line.split(":")[0] for line in full.claims(sites, str)] == [
        f"{row} claims {10**12} samples, all 3 others together 24" for row in (1, 3)
    ]


def test_one_client_does_not_decide_how_many_labels_there_are() -> None:
    sites = {"liar": Introduction([1] * 7, 0), "b": Introduction([5, 5, 1], 1), "c": Introduction([4, 4, 4], 2)}
    full = Roster[str](None)
    full.connected(sites)
    full.hear(sites)
    assert full.refused == {"liar": "7 label counts instead of 3"}
    full.connected([*sites, "d"])
    full.hear({"d": Introduction([1, 1, 1], -5)})
    assert "its number is -5; give every node a partition-id from 0" in full.refused["d"]
