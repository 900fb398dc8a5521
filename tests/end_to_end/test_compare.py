"""`qed compare`: paired tests of runs and of arms, adjusted for their number, and what else differs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from qed.cli.main import main
from qed.console.live import Console
from qed.evaluation.arms import compare_arms
from qed.evaluation.intervals import adjust_holm
from qed.evaluation.paired import compare_paired
from qed.evaluation.power import compute_detectable_difference
from qed.evaluation.summary import average_tasks, summarize
from qed.evaluation.table import show_summary
from qed.runs.run import Row, build_row, write_evaluation
from qed.types import Grade, Problem, Rollout

ASKED = {"model": "m", "weights": "1", "seed": 0, "prompt": "boxed", "max_tokens": 48, "temperature": 0.6}
Compare = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Compare:
    """Runs `qed compare … --json` in an empty folder: the exit code, the JSON and all other output."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, dict[str, Any], str]:
        with pytest.raises(SystemExit) as ended:
            main(["compare", *words, "--json"])
        said = capsys.readouterr()
        return int(ended.value.code or 0), json.loads(said.out or "{}"), said.err

    return run


def make_rows(shares: Sequence[float], k: int = 1, seed: int = 0, decoding: str = "sampled", cut: int = 0) -> list[Row]:
    """Rows of an evaluation; the first `cut` problems are cut off."""
    source = random.Random(seed)
    rows = []
    for number, share in enumerate(shares):
        for sample in range(k):
            right = source.random() < share
            problem = Problem(f"q{number}", f"Question {number}?", str(number))
            grade = Grade(float(right), right, True, str(number if right else -1))
            stop = "length" if number < cut else "stop"
            rollout = Rollout(problem, (1,), (2,), (-0.5,), "text", stop, index=sample, grade=grade)
            rows.append({"decoding": decoding, **build_row(rollout, 0)})
    return rows


def write(name: str, rows: Sequence[Row], task: str = "sums", **settings: Any) -> list[Row]:
    """Write rows as `qed evaluate` does."""
    decodings = {row["decoding"]: [] for row in rows}
    for row in rows:
        decodings[row["decoding"]].append(row)
    asked = {**ASKED, "weights": name, **settings}
    summary = {decoding: {**summarize(own), "settings": asked} for decoding, own in decodings.items()}
    write_evaluation(Path(name), 0, task, list(rows), summary)
    return list(rows)


def forget_settings(name: str) -> None:
    """Leave the figures alone, as a training run writes them."""
    path = Path(name, "eval/step_000000/summary.json")
    tasks = json.loads(path.read_text())
    for figures in [figures for own in tasks.values() for figures in own.values()]:
        del figures["settings"]
    path.write_text(json.dumps(tasks))


EVEN = [number / 39 for number in range(40)]
RISEN = [min(1.0, share + 0.2) for share in EVEN]


def test_two_runs_are_tested_as_ever(compare: Compare) -> None:
    before, after = write("a", make_rows(EVEN, 4)), write("b", make_rows(RISEN, 4, 1), seed=1)
    code, result, said = compare("a", "b")
    test = compare_paired(before, after)
    assert code == 0
    assert test is not None
    found = result["sums, sampled"]
    assert (found["difference"], found["ci_lo"], found["p_value"]) == (test.difference, test.ci_lo, test.p_value)
    assert (found["p_holm"], found["warnings"]) == (test.p_value, [])
    assert "p (Holm)" not in said, "one test needs no adjustment"


def test_six_tasks_are_adjusted_for_their_number(compare: Compare) -> None:
    for number in range(6):
        write("a", make_rows(EVEN, 1, number), f"task{number}")
        write("b", make_rows(RISEN, 1, 10 + number), f"task{number}", max_tokens=512)
    _, result, said = compare("a", "b")
    assert len(result) == 6
    assert [each["p_holm"] for each in result.values()] == adjust_holm([each["p_value"] for each in result.values()])
    assert "p (Holm) is adjusted for the 6 tests of this table" in said
    assert said.count("Other max_tokens: 48 before, 512 after") == 1, "what holds for all is said once"


def test_what_one_side_alone_has_is_said(compare: Compare) -> None:
    """Tasks and decodings of one side, and a task of which both have other problems."""
    rows = make_rows(EVEN)
    others = [{**row, "group_id": f"other {row['group_id']}"} for row in rows]
    for name, task, own in (("a", "aime", rows), ("b", "amc", rows), ("a", "drawn", rows), ("b", "drawn", others)):
        write(name, own, task)
    write("a", [*rows, *make_rows(EVEN, decoding="greedy")])
    write("b", make_rows(RISEN, 1, 1))
    _, result, said = compare("a", "b")
    assert list(result) == ["sums, sampled"]
    for line in (
        "aime, sampled is in a alone, and left out.",
        "amc, sampled is in b alone, and left out.",
        "sums, greedy is in a alone, and left out.",
        "drawn, sampled: a and b have no problem in common, so there is nothing to compare",
    ):
        assert line in said
    write("b-0", [*make_rows(RISEN, 1, 1), *make_rows(EVEN, decoding="greedy")], weights="b-0")
    _, result, said = compare("a", "b,b-0")
    assert list(result) == ["sums, sampled"]
    assert "sums, greedy is not in all runs of b,b-0, and left out." in said
    write("c", [*make_rows(EVEN, decoding="one"), *make_rows(EVEN, decoding="two")])
    code, _, said = compare("b", "c")
    assert code == 3
    assert "no decoding of a task in common: b has amc, sampled; drawn, sampled; sums, sampled; c has" in said


def test_few_problems_have_no_p_value(compare: Compare) -> None:
    write("a", make_rows([0, 0, 0, 0]))
    write("b", make_rows([1, 1, 1, 1]))
    code, result, said = compare("a", "b")
    assert code == 0
    assert (result["sums, sampled"]["p_value"], result["sums, sampled"]["p_holm"]) == (None, None)
    assert result["sums, sampled"]["note"] in said


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"seed": 1, "weights": "2", "rows_per_batch": 4, "sampler": "server"}, []),
        ({"prompt": "r1_zero"}, ["Other prompt: boxed before, r1_zero after. Evaluate both with the same --prompt."]),
        ({"max_tokens": 96}, ["Other max_tokens: 48 before, 96 after. Evaluate both with the same --max-tokens."]),
        ({"temperature": 0}, ["Other temperature: 0.6 before, 0 after. Evaluate both with the same --temperature."]),
        ({"top_k": 20}, ["Other top_k: none before, 20 after. Evaluate both with the same --top-k."]),
        (
            {"reward": ["x"], "judged_by": "x"},
            ["Other reward: none before, ['x'] after. Evaluate both with the same --reward."],
        ),
        ({"judged_by": "x"}, ["Other judged_by: none before, x after. Evaluate both with the same --reward."]),
        ({"weights": "a"}, ["Both sides are the same model with the same settings: a difference is chance."]),
    ],
    ids=["seed", "prompt", "length", "temperature", "top-k", "reward", "judge", "same-model"],
)
def test_what_else_than_the_model_differs_is_said(compare: Compare, settings: Row, warned: list[str]) -> None:
    write("a", make_rows(EVEN))
    write("b", make_rows(RISEN), **settings)
    _, result, said = compare("a", "b")
    assert result["sums, sampled"]["warnings"] == warned
    assert all(f"warning: {line}" in " ".join(said.split()) for line in warned)


@pytest.mark.parametrize("name", ["a", "./a", "link", "a/eval/step_000000"])
@pytest.mark.parametrize("asked", [True, False], ids=["evaluated", "trained"])
def test_a_run_is_the_same_under_all_its_names(compare: Compare, name: str, asked: bool) -> None:
    write("a", make_rows(EVEN))
    write("b", make_rows(RISEN))
    if not asked:
        forget_settings("a")
    Path("link").symlink_to("a")
    (warned,) = compare("a", name)[1]["sums, sampled"]["warnings"]
    assert warned.startswith("Both sides are the same model and the same answers")
    if "eval" not in name:
        assert "in both arms" in compare("a,b", name)[2]


def test_one_file_on_both_sides_is_named(compare: Compare) -> None:
    Path("own.jsonl").write_text('{"question": "1+1?", "answer": "2", "response": "2"}\n')
    (result,) = compare("own.jsonl", "./own.jsonl")[1].values()
    assert any("the same answers" in line for line in result["warnings"])


@pytest.mark.parametrize(
    ("before", "after", "warned"),
    [
        ("reward: ['./a.py:reward']", "reward: ['./b.py:reward']", ["Other reward"]),
        ("reward: [boxed], reward_options: [x=1]", "reward: [boxed], reward_options: [x=2]", ["Other reward_options"]),
        ("reward: [boxed]", "reward: [boxed]", []),
        ("reward: [auto]", "reward: [boxed]", []),
        ("reward: ['0.5*auto', length]", "reward: [boxed]", []),
        ("reward: [boxed]", "{}", []),
    ],
)
def test_another_reward_of_a_training_run_is_said(compare: Compare, before: str, after: str, warned: list[str]) -> None:
    for name, data in (("a", before), ("b", after)):
        write(name, make_rows(EVEN))
        forget_settings(name)
        Path(name, "settings.yaml").write_text(f"data: {{{data.strip('{}')}}}\n")
    found = compare("a", "b")[1]["sums, sampled"]["warnings"]
    assert [line.partition(":")[0] for line in found] == warned


def test_other_prompts_and_counts_are_seen_in_the_answers(compare: Compare) -> None:
    """Training records no settings beside its evaluations, but the rows hold what was asked."""
    rows = make_rows(EVEN)
    changed = [{**row, "prompt": f"Solve: {row['question']}"} for row in [*rows[:8], *make_rows(EVEN, 2)[16:]]]
    for name, own in (("a", [{**row, "prompt": row["question"]} for row in rows]), ("b", changed)):
        write_evaluation(Path(name), 0, "sums", own, {"sampled": summarize(own)})
    _, result, _ = compare("a", "b")
    assert result["sums, sampled"]["warnings"] == [
        "Other prompts: 40 of 40 problems were asked with other texts.",
        "Other numbers of answers to a problem: 1 before, 1, 2 after.",
    ]


def test_the_settings_of_training_are_compared(compare: Compare) -> None:
    rows = make_rows(EVEN)
    for name, length in (("a", 48), ("b", 64)):
        write_evaluation(Path(name), 0, "sums", rows, {"sampled": {**summarize(rows), "temperature": 1.0}})
        settings = f"method: grpo\nsampling: {{max_tokens: {length}, temperature: 0.7}}\ndata: {{prompt: boxed}}\n"
        Path(name, "settings.yaml").write_text(settings)
    assert compare("a", "b")[1]["sums, sampled"]["warnings"] == [
        "Other max_tokens: 48 before, 64 after. Evaluate both with the same --max-tokens."
    ]


def test_doubled_answers_and_several_golds_are_said(compare: Compare) -> None:
    rows = make_rows(EVEN)
    other = {**rows[0], "gold": "99", "correct": True}
    write("a", [*rows, rows[3], other])
    write("b", [{**row, "gold": "7"} if row["group_id"] == "q5" else row for row in rows])
    _, result, _ = compare("a", "b")
    found = result["sums, sampled"]
    assert found["n"] == 39, "q5 has another gold after, and q0 the gold of the question alone"
    assert found["warnings"] == [
        "1 id with another gold after than before (q5): left out, because these are other problems. Check that both "
        "files have the same golds.",
        "1 id with several golds (q0): each counts as a problem.",
        "1 answer stored twice, with the same problem and number: the first one counts.",
    ]


def test_an_id_with_two_golds_in_one_file_is_still_paired(compare: Compare) -> None:
    rows = [{"id": number, "gold": str(number), "response": str(number)} for number in range(8)]
    for name, more in (("a", [rows[2], {**rows[3], "gold": "9"}]), ("b", [])):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, *more]))
    (found,) = compare("a.jsonl", "b.jsonl")[1].values()
    assert (found["n"], found["unpaired"]) == (8, 1)
    assert found["warnings"] == [
        "Before: 1 id with several golds (3): each gold counts as a problem.",
        "Before: 1 row left out as exact copies of others.",
    ]


def test_answers_cut_off_are_counted_by_their_verdict(compare: Compare) -> None:
    write("a", make_rows([1, 1, *EVEN], cut=3))
    write("b", make_rows([1, 0, *EVEN], cut=3))
    _, result, said = compare("a", "b")
    cut = result["sums, sampled"]["truncated"]
    assert cut["before"] == {"answers": 42, "truncated": 3, "truncated_right": 2, "truncated_wrong": 1}
    assert cut["after"] == {"answers": 42, "truncated": 3, "truncated_right": 1, "truncated_wrong": 2}
    assert "cut off at the limit of tokens: before 3 of 42 (2 right, 1 wrong); after 3 of 42 (1 right, 2 wrong)" in said


def test_pass_at_k_and_votes_are_tested(compare: Compare) -> None:
    greedy = make_rows(EVEN, 1, 5, "greedy")
    before, after = write("a", make_rows(EVEN, 4) + greedy), write("b", make_rows(RISEN, 4, 1) + greedy)
    for measure in ("pass@4", "maj@2"):
        code, result, said = compare("a", "b", "--measure", measure)
        sampled = [[row for row in rows if row["decoding"] == "sampled"] for rows in (before, after)]
        test = compare_paired(*sampled, measure)
        assert code == 0
        assert test is not None
        assert result["sums, sampled"]["difference"] == test.difference
        assert result["sums, sampled"]["p_value"] == test.p_value
        assert list(result) == ["sums, sampled"]
        assert f"sums, greedy: {measure} needs" in said
    code, _, said = compare("a", "b", "--measure", "pass@8")
    assert code == 3
    assert "the largest k here is" in said
    assert compare("a", "b", "--measure", "mean@8")[0] == 2


@pytest.fixture
def arms(compare: Compare) -> dict[str, list[list[Row]]]:
    """Three runs of each of two arms, as folders a-0, …, b-2."""
    del compare  # which has changed the folder
    return {
        arm: [write(f"{arm}-{seed}", make_rows(shares, 2, 10 * seed + len(arm)), seed=seed) for seed in range(3)]
        for arm, shares in (("a", EVEN), ("b", RISEN))
    }


@pytest.mark.parametrize("name", ["b-*", "b-0,b-1,b-2"])
def test_arms_of_several_seeds_are_compared(compare: Compare, arms: dict[str, list[list[Row]]], name: str) -> None:
    code, result, said = compare("a-*", name)
    test = compare_arms(arms["a"], arms["b"])
    assert code == 0
    assert test is not None
    found = result["sums, sampled"]
    assert (found["difference"], found["ci_lo"], found["p_value"]) == (test.difference, test.ci_lo, test.p_value)
    assert (found["seeds"], found["p_holm"], found["warnings"]) == ([3, 3], test.p_value, [])
    assert "3 runs against 3 runs, on the 40 problems that all answered" in said
    assert f"before: {', '.join(f'{100 * share:.1f}' for share in test.runs[0])}; standard deviation" in said


def test_settings_that_vary_within_an_arm_are_said(compare: Compare, arms: dict[str, list[list[Row]]]) -> None:
    write("b-1", arms["b"][1], prompt="r1_zero")
    warnings = compare("a-*", "b-*")[1]["sums, sampled"]["warnings"]
    assert warnings == ["Other prompt: boxed before, boxed and r1_zero after. Evaluate both with the same --prompt."]


def test_runs_that_drew_other_problems_are_told_what_to_do(compare: Compare) -> None:
    """As training does with evaluation.problems: every seed draws its own held-out problems."""
    rows = make_rows(EVEN, 2)
    for number in range(4):
        own = [row for row in rows if int(row["group_id"][1:]) % 5 != number]
        write(f"{'ab'[number // 2]}-{number % 2}", own, weights=str(number))
    (found,) = compare("a-*", "b-*")[1].values()
    assert (found["n"], found["unpaired"]) == (8, 32)
    assert found["warnings"] == [
        "Only 8 of 40 problems were answered by all runs, the others are left out. Evaluate all runs on the same "
        "problems: qed evaluate, with the same --seed."
    ]


def test_what_a_comparison_can_detect_is_said(compare: Compare, arms: dict[str, list[list[Row]]]) -> None:
    before, after = arms["a"][0], arms["b"][0]
    for words, power in (
        (("a-0", "b-0"), compute_detectable_difference(before, after)),
        (("a-0",), compute_detectable_difference(before)),
    ):
        _, result, said = compare(*words, "--power")
        found = result["sums, sampled"]
        assert power is not None
        assert power.difference is not None
        assert (found if len(words) == 1 else found["power"])["difference"] == power.difference
        assert f"a true difference of {100 * power.difference:.1f} points is found in 80 % of comparisons" in said
    _, result, said = compare("a-*", "b-*", "--power")
    found = result["sums, sampled"]
    assert 0.6 < found["power"]["difference"] / (found["ci_hi"] - found["ci_lo"]) < 0.8
    assert "With these 40 problems, and 3 and 3 runs, a true difference of" in said


def test_arms_that_cannot_be_compared_are_refused(compare: Compare, arms: dict[str, list[list[Row]]]) -> None:
    write("other", arms["a"][0], "products")
    write("elsewhere", [{**row, "group_id": f"other {row['group_id']}"} for row in arms["a"][0]])
    for words, told in (
        (("c-*", "b-*"), "No run, evaluation or file matches 'c-*'. Check the pattern, and keep it in quotes."),
        (("a-0", "a-1", "b-0"), "got 3 paths. For arms of several runs, quote the patterns"),
        (("?-0", "b-*"), "b-0 is in both arms, ?-0 and b-*. Leave it out of one of them."),
        (
            ("a-*,other", "b-*"),
            "The runs of a-*,other have no task in common: a-0 has sums; a-1 has sums; a-2 has sums; other has",
        ),
        (("a-*", "elsewhere"), "a-* and elsewhere have no problem in common"),
        (("a-0,", "b-*"), "a-0, has nothing before or after a comma."),
        ((",".join(["a-0"] * 99), "nowhere"), "There is no run, evaluation or file nowhere to compare."),
        (("a-0", "nowhere"), "There is no run, evaluation or file nowhere to compare."),
        (("a-0",), "qed compare takes A and B; with --power, A alone."),
    ):
        code, _, said = compare(*words)
        assert code in (2, 3)
        assert told in said
        assert "Traceback" not in said


def test_patterns_of_one_run_each_are_two_runs(compare: Compare, arms: dict[str, list[list[Row]]]) -> None:
    found = compare("a-0*", "b-0*")[1]["sums, sampled"]
    assert found["warnings"] == ["Each arm is one run: the interval covers the choice of problems, not of seeds."]
    assert found["p_value"] == compare_paired(arms["a"][0], arms["b"][0]).p_value  # type: ignore[union-attr]


def test_answers_in_files_make_arms_too(compare: Compare) -> None:
    for name, step in (("a", 2), ("b", 3)):
        for seed in range(2):
            rows = [{"id": i, "gold": "1", "response": str((i + seed) % step // (step - 1))} for i in range(12)]
            Path(f"{name}{seed}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (found,) = compare("a*.jsonl", "b*.jsonl")[1].values()
    assert (found["seeds"], found["n"]) == ([2, 2], 12)
    for number in range(4):  # folders of scored files, each named after its file
        rows = make_rows((EVEN, RISEN)[number // 2], 1, number, decoding="responses")
        write(f"{'ab'[number // 2]}-{number % 2}", rows, f"sums.seed{number % 2}", weights=str(number))
    (found,) = compare("a-*", "b-*")[1].values()
    assert (found["seeds"], found["n"]) == ([2, 2], 40)


@pytest.mark.parametrize(("problems", "runs", "few"), [(1, 2, "one problem in common"), (12, 1, "one run")])
def test_an_unknown_spread_of_seeds_says_why(compare: Compare, problems: int, runs: int, few: str) -> None:
    for name, count in (("a", runs), ("b", 2)):
        for seed in range(count):
            rows = [{"id": i, "gold": "1", "response": str((i + seed) % 2)} for i in range(problems)]
            Path(f"{name}{seed}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, _, said = compare("a*.jsonl", "b*.jsonl")
    assert code == 0, said
    (line,) = (line for line in said.splitlines() if line.startswith("  before: "))
    assert f"standard deviation between seeds unknown, with {few}, from problems" in line


def test_figures_say_what_is_odd_about_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Uneven numbers of answers, too few problems, and answers that were cut off and are right."""
    rows = make_rows([1, 1, 0, 1, 0], cut=3)
    figures = summarize([*rows, {**rows[4], "sample_id": 1}])
    show_summary(Console(), {"sums": figures}, average_tasks([figures]))
    said = capsys.readouterr().out
    assert "1 (1–2)" in said
    assert "] too few" in said
    assert "sums: 2 of 3 answers that were cut off are right: their answer comes before the limit." in said
