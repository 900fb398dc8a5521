"""pass@k and maj@k against all subsets, paired tests against closed forms, and what folding repeated rows changes."""

from __future__ import annotations

import time
from itertools import combinations
from math import comb
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qed.evaluation import votes
from qed.evaluation.estimators import compute_maj_at_k, compute_pass_at_k, list_budgets
from qed.evaluation.intervals import compute_mcnemar_p
from qed.evaluation.paired import compare_paired, compute_difference
from qed.evaluation.summary import average_tasks, summarize
from qed.evaluation.votes import Vote, cluster_votes, vote_majority

SAID = st.lists(st.sampled_from(["1", "2", "3", "4", None]), min_size=1, max_size=8)


def rows(*problems: tuple[str, str], gold: str = "1") -> list[dict[str, Any]]:
    """Answers to problems, each a name and its answers as digits; the gold is 1."""
    return [
        {"group_id": name, "sample_id": number, "gold": gold, "correct": said == gold, "extracted": said}
        for name, answers in problems
        for number, said in enumerate(answers)
    ]


@given(st.integers(1, 9), st.data())
def test_pass_at_k_is_the_mean_over_all_subsets(count: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(0, count))
    k = data.draw(st.integers(1, count))
    answers = [place < right for place in range(count)]
    assert compute_pass_at_k(count, right, k) == pytest.approx(fmean(map(any, combinations(answers, k))))


@settings(deadline=None)
@given(SAID, st.data())
def test_maj_at_k_is_the_mean_over_all_subsets(said: list[str | None], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(said)))
    expected = []
    for drawn in combinations(said, k):
        votes = {each: drawn.count(each) for each in drawn if each is not None}
        leading = [each for each, count in votes.items() if count == max(votes.values())]
        expected.append(("1" in leading) / max(1, len(leading)))
    assert vote_majority([Vote(each, each == "1") for each in said], k) == pytest.approx(fmean(expected))


def test_a_vote_by_hand() -> None:
    assert compute_maj_at_k([2, 2], [True, False], 0, 4) == 0.5, "a tie is split"
    assert compute_maj_at_k([1], [True], 9, 10) == 1.0, "who says nothing does not vote"
    assert compute_maj_at_k([1], [True], 9, 1) == pytest.approx(0.1), "drawn alone, who says nothing is wrong"
    assert compute_maj_at_k([], [], 4, 4) == 0.0
    assert compute_maj_at_k([3, 2], [False, True], 0, 5) == 0.0


def test_the_answers_to_a_problem_are_compared_once_for_all_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[str, str]] = []
    real = votes.equal
    monkeypatch.setattr(votes, "equal", lambda one, other, how: compared.append((one, other)) or real(one, other, how))
    said = [f"{n}+x" for n in range(100, 108)]
    answers = [
        {"group_id": p, "sample_id": n, "extracted": f"{p}*{each}", "correct": False}
        for p in (2, 3)
        for n, each in enumerate(said)
    ]
    figures = summarize(answers)
    assert list(figures["maj"]) == ["2", "4", "8"]
    assert len(compared) == 2 * 8 * 7 / 2


def test_a_vote_of_very_many_answers_is_counted_once() -> None:
    said = [Vote(str(n % 7 * (n % 3 > 0)), n % 7 * (n % 3 > 0) == 0) for n in range(2000)]
    start = time.process_time()
    assert vote_majority(said, 2000) == 1.0
    assert time.process_time() - start < 5


def test_a_tie_goes_to_the_first_cluster_where_it_is_not_split() -> None:
    assert compute_maj_at_k([2, 2], [True, False], 0, 4, split=False) == 1.0
    assert compute_maj_at_k([2, 2], [False, True], 0, 4, split=False) == 0.0
    assert compute_maj_at_k([1, 1], [False, True], 0, 1, split=False) == 0.5, "alone, nothing ties"


@settings(deadline=None)
@given(SAID, st.data())
def test_the_lowest_of_tied_answers_wins_where_asked(said: list[str | None], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(said)))
    expected = []
    for drawn in combinations(said, k):
        votes = {each: drawn.count(each) for each in drawn if each is not None}
        leading = [each for each, count in votes.items() if count == max(votes.values())]
        expected.append(min(leading, default="") == "2")
    assert vote_majority([Vote(each, each == "2") for each in said], k, "lowest") == pytest.approx(fmean(expected))


@given(SAID, st.data())
def test_the_first_of_tied_answers_wins_where_asked(said: list[str | None], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(said)))
    drawn = [each for each in said[:k] if each is not None]
    winner = max(drawn, key=drawn.count, default="")
    assert vote_majority([Vote(each, each == "2") for each in said], k, "first") == float(winner == "2")


def test_an_unknown_rule_for_ties_is_refused() -> None:
    with pytest.raises(ValueError, match="split, first, lowest"):
        vote_majority([Vote("1", True)], 1, "highest")


def test_votes_that_mean_the_same_are_one() -> None:
    said = ["0.5", "\\frac12", "1/2", "2", " 0.5 ", None, ""]
    clusters = cluster_votes([Vote(each, each != "2") for each in said])
    assert [(each.size, each.correct) for each in clusters] == [(4, True), (1, False)]


@pytest.mark.parametrize("said", [["5 cm", "5 cm", "5 cm", "5"], ["5", "5 cm", "5 cm", "5 cm"]])
def test_a_cluster_is_judged_by_its_most_frequent_answer(said: list[str]) -> None:
    # The gold is 5 m: the answer 5 is right, and equals 5 cm, which is wrong.
    votes = [Vote(each, each == "5") for each in said]
    assert vote_majority(votes, 4) == 0.0
    assert vote_majority(votes, 1) == 0.0


@given(st.permutations(["5 cm", "5 m", "5", "5", "5 m", "7", "0.5", "1/2"]))
def test_clusters_do_not_depend_on_the_order_of_votes(said: list[str]) -> None:
    clusters = cluster_votes([Vote(each, each == "5 m") for each in said])
    assert [(each.answer, each.size, each.correct) for each in clusters] == [
        ("5", 5, False),
        ("0.5", 2, False),
        ("7", 1, False),
    ]


def test_many_answers_vote_by_the_first_ones() -> None:
    votes = [Vote("1", True)] * 2 + [Vote("2", False)] * 198
    assert vote_majority(votes, 2) == 1.0
    assert vote_majority(votes, 200) == 0.0


@pytest.mark.parametrize(
    ("count", "expected"), [(1, [1]), (4, [1, 2, 4]), (6, [1, 2, 4, 6]), (32, [1, 2, 4, 8, 16, 32])]
)
def test_the_k_that_are_reported(count: int, expected: list[int]) -> None:
    assert list_budgets(count) == expected


@given(st.integers(0, 40), st.integers(0, 40))
def test_mcnemar_is_twice_the_tail_of_a_fair_coin(gained: int, lost: int) -> None:
    changed = gained + lost
    tail = sum(comb(changed, count) for count in range(changed + 1) if count <= min(gained, lost)) / 2**changed
    assert compute_mcnemar_p(gained, lost) == pytest.approx(min(1.0, 2 * tail))
    assert compute_mcnemar_p(gained, lost) == compute_mcnemar_p(lost, gained)


def test_known_values_of_the_paired_tests() -> None:
    assert compute_mcnemar_p(1, 9) == pytest.approx(0.021484375)
    assert compute_mcnemar_p(0, 0) == 1.0
    # By hand: 8/102 with 1.96 * sqrt((12/102 - (8/102)^2) / (102 - 1.96^2)) to either side.
    low, high, p_value = compute_difference(np.array([1.0] * 9 + [-1.0] + [0.0] * 90))
    assert (low, high) == pytest.approx((0.01238, 0.14448), abs=1e-5)
    assert p_value == compute_mcnemar_p(9, 1)


@pytest.mark.parametrize("problems", [30, 60])
def test_the_interval_excludes_zero_exactly_where_the_exact_test_rejects(problems: int) -> None:
    for lost in range(8):
        for gained in range(min(problems - lost, 30) + 1):
            differences = np.zeros(problems)
            differences[:gained], differences[gained : gained + lost] = 1, -1
            low, high, p_value = compute_difference(differences)
            assert p_value == compute_mcnemar_p(gained, lost)
            assert (p_value < 0.05) == (low > 0 or high < 0)
            assert low <= (gained - lost) / problems <= high


def test_the_least_p_value_is_that_of_equal_signs() -> None:
    for count in (1, 3, 5):
        low, high, p_value = compute_difference(np.full(count, 0.5))
        assert low <= 0 < 0.5 < high
        assert p_value is None
    low, high, p_value = compute_difference(np.full(8, 0.5))
    assert low > 0
    assert 2 / 2**8 <= p_value < 0.05  # type: ignore[operator]


def test_single_answers_are_compared_by_problems() -> None:
    before = rows(*((f"p{place}", "0" if place < 9 else "1") for place in range(20)))
    after = rows(*((f"p{place}", "0" if place == 15 else "1") for place in range(20)))
    found = compare_paired(before, after)
    assert found is not None
    assert (len(found.gained), len(found.lost), found.test) == (9, 1, "exact McNemar")
    assert found.p_value == compute_mcnemar_p(9, 1)
    assert found.difference == pytest.approx(8 / 20)
    assert [change.problem for change in found.lost] == ["p15"]


@pytest.mark.parametrize(("marks", "test"), [("0", "exact McNemar"), ("00", "adjusted t over problems")])
def test_without_a_difference_the_test_is_that_of_the_answers(marks: str, test: str) -> None:
    same = rows(*((f"p{place}", marks) for place in range(20)))
    found = compare_paired(same, same)
    assert found is not None
    assert (found.test, found.p_value) == (test, 1.0)
    assert (found.ci_lo, found.ci_hi) == compute_difference(np.zeros(20))[:2]


def test_several_answers_are_compared_by_problems() -> None:
    before = rows(*((f"p{place}", "1000") for place in range(30)))
    after = rows(*((f"p{place}", "1110" if place % 3 else "1000") for place in range(30)))
    found = compare_paired(before, after)
    assert found is not None
    assert (found.before, found.after) == (0.25, pytest.approx(0.25 + 0.5 * 20 / 30))
    assert found.ci_lo < found.difference < found.ci_hi
    assert found.p_value < 0.01
    assert compare_paired(before, before).p_value == 1.0  # type: ignore[union-attr]
    assert compare_paired(before, before).ci_lo < 0 < compare_paired(before, before).ci_hi  # type: ignore[union-attr]


def test_only_the_same_problem_is_compared() -> None:
    before, after = rows(("a", "1"), ("b", "1")), rows(("b", "0"), ("c", "1"))
    found = compare_paired(before, after)
    assert found is not None
    assert (found.n, found.unpaired, found.p_value) == (1, 2, None)
    assert "too few" in found.note
    other_gold = [{**row, "gold": "7"} for row in before]
    assert compare_paired(before, other_gold) is None


def test_folding_repeated_rows_leaves_means_unchanged() -> None:
    """A benchmark of 3 problems in 4 copies each, and the same answers as 4 samples of 3 problems."""
    answers = {"a": "1011", "b": "0000", "c": "0010"}
    apart = rows(*((f"{name}#{place}", said) for name, own in answers.items() for place, said in enumerate(own)))
    folded = rows(*answers.items())
    one, other = summarize(apart), summarize(folded)
    for name in ("accuracy", "reward", "format", "no_answer_frac"):
        assert one[name] == pytest.approx(other[name])
    assert (one["n"], one["k"], other["n"], other["k"]) == (12, 1, 3, 4)
    assert other["ci_hi"] - other["ci_lo"] > one["ci_hi"] - one["ci_lo"], "copies of a problem are no new problems"


def test_answers_without_a_reward_are_not_in_its_mean() -> None:
    figures = summarize(
        [{**row, "reward": reward} for row, reward in zip(rows(("a", "110")), (1.0, None, 0.5), strict=True)]
    )
    assert (figures["reward"], figures["without_reward"], figures["accuracy"]) == (0.75, 1, pytest.approx(2 / 3))
    assert summarize([{**row, "reward": None} for row in rows(("a", "1"))])["reward"] is None


def test_problems_weigh_the_same_however_many_answers_they_have() -> None:
    figures = summarize(rows(("a", "1111"), ("b", "00"), ("c", "10")))
    assert figures["accuracy"] == pytest.approx(0.5)
    assert (figures["k"], list(figures["pass"]), figures["answers"]) == (2, ["1", "2"], 8)
    assert (figures["k_min"], figures["k_max"]) == (2, 4)
    assert figures["pass"]["2"]["value"] == pytest.approx(2 / 3)
    assert figures["pass"]["1"]["value"] == pytest.approx(figures["accuracy"])


def test_the_mean_of_sources_does_not_weigh_them() -> None:
    """As LUFFY reports a file of several benchmarks; the accuracy beside it weighs problems."""
    answers = rows(("a", "1111"), ("e", "1111"), ("b", "1100"), ("c", "0000"), ("d", "0010"))
    named = [{**row, "data_source": "aime" if row["group_id"] in "ae" else "math"} for row in answers]
    figures = summarize(named)
    assert figures["accuracy"] == pytest.approx((2 + 0.5 + 0 + 0.25) / 5)
    mean = figures["mean_of_sources"]
    assert (mean["sources"], mean["accuracy"]) == (2, pytest.approx((1 + 0.25) / 2))
    assert mean["ci_lo"] <= mean["accuracy"] <= mean["ci_hi"]
    assert "mean_of_sources" not in summarize(answers)
    assert "mean_of_sources" not in summarize([{**row, "data_source": "aime"} for row in answers])
    names = {"a": "a/1.json", "e": "a/2.json"}
    alone = [{**row, "data_source": names.get(row["group_id"], "math")} for row in answers]
    assert "mean_of_sources" not in summarize(alone), "places of one problem are no benchmarks"
    drawn = [{**row, "data_source": "aime" if row["group_id"] == "a" else "math"} for row in answers]
    assert summarize(drawn)["mean_of_sources"]["sources"] == 2, "of a small benchmark one problem may be drawn"


def test_the_mean_of_tasks_does_not_weigh_them() -> None:
    small, large = ({"accuracy": 0.5, "ci_lo": 0.3, "ci_hi": 0.7}, {"accuracy": 0.1, "ci_lo": 0.09, "ci_hi": 0.13})
    mean = average_tasks([small, large])
    assert mean["accuracy"] == pytest.approx(0.3)
    assert mean["ci_lo"] == pytest.approx(0.3 - (0.2**2 + 0.01**2) ** 0.5 / 2)
    assert mean["ci_hi"] == pytest.approx(0.3 + (0.2**2 + 0.03**2) ** 0.5 / 2)


def test_a_cluster_is_right_where_most_of_its_answers_are() -> None:
    """The grader may fail on some of them, as it does when it runs out of time."""
    for right, correct in (((True, True, False), True), ((True, False), False), ((True, False, False), False)):
        (cluster,) = cluster_votes([Vote("5", each) for each in right])
        assert cluster.correct == correct
