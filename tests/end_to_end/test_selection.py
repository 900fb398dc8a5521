"""Which problems a run trains on, and which checkpoint it calls its best."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qed.config.settings import DataSettings
from qed.data.selection import compute_percentile_length, has_right_solution, select_problems, split_validation
from qed.errors import DataError
from qed.runs.run import read_evaluations
from qed.types import Problem

SHORT = [
    "--steps",
    6,
    "--learner.batch_size",
    8,
    "--evaluation.problems",
    6,
    "--sampling.max_tokens",
    12,
    "--lr",
    "2e-3",
]


def problems(count: int = 40) -> list[Problem]:
    return [Problem(f"p{number}", f"{number} + 1?", str(number + 1), f"It is {number + 1}.") for number in range(count)]


def test_a_solution_is_right_when_its_answer_is() -> None:
    assert has_right_solution(Problem("a", "?", "5", "2 and 3 make 5"))  # the answer is written behind it
    assert has_right_solution(Problem("a", "?", "\\frac12", "so \\boxed{0.5}"))
    assert not has_right_solution(Problem("a", "?", "5", "so \\boxed{6}"))
    assert not has_right_solution(Problem("a", "?", "5"))
    assert not has_right_solution(Problem("a", "?", "", "So it is 6."))
    for said in ("2 and 3 make 6. The answer is 6.", "So it is 6."):
        assert not has_right_solution(Problem("a", "?", "5", said))
        assert has_right_solution(Problem("a", "?", "6", said))
    assert has_right_solution(Problem("a", "?", "5", meta={"completion": "<think>a</think><answer>5</answer>"}))
    assert not has_right_solution(Problem("a", "?", "5", meta={"completion": "<think>5</think><answer>6</answer>"}))


def test_what_is_left_out_is_counted() -> None:
    mixed = [*problems(), Problem("w", "?", "5", "so \\boxed{6}")]
    left_out: Counter[str] = Counter()
    kept = select_problems(mixed, DataSettings(correct_only=True, unique_examples=10), 0, left_out)
    assert len(kept) == 10
    assert sum(left_out.values()) == len(mixed) - 10
    fewer = select_problems(mixed, DataSettings(correct_only=True, unique_examples=5), 0, Counter())
    assert {problem.id for problem in fewer} < {problem.id for problem in kept}  # 5 of a seed are among its 10
    assert [problem.id for problem in kept] != [problem.id for problem in problems(10)]  # drawn, not the first
    with pytest.raises(DataError, match="correct_only"):
        select_problems([mixed[-1]], DataSettings(correct_only=True), 0, Counter())


def test_no_question_is_validated_and_trained() -> None:
    twice = [*problems(), *[Problem(f"again {p.id}", p.question, p.answer, "another way") for p in problems()]]
    kept, held, _ = split_validation(twice, 0.1, 100, seed=1)
    assert len(held) == 8
    assert len(kept) == len(twice) - 8
    assert not {problem.question for problem in kept} & {problem.question for problem in held}
    assert split_validation(twice, 0.0, 100, 1) == (twice, [], "")
    _, held, told = split_validation(twice, 0.5, 3, 1)
    assert len(held) == 6
    assert told == "3 of 20 questions, by evaluation.problems"


def test_a_percentile_keeps_that_share() -> None:
    lengths = list(range(1, 101))
    assert [compute_percentile_length(lengths, p) for p in (100, 90, 50, 0.1)] == [100, 90, 50, 1]
    assert compute_percentile_length([7], 90) == 7


def test_the_best_checkpoint_is_that_of_the_validation_part(qed: Callable[..., Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    more = ["--data.validation_split", 0.1, "--evaluation.every", 2, "--data.max_prompt_percentile", 90]
    more += ["--data.unique_examples", 10_000]
    done = qed("sft", "--model", "new:tiny", "--out", run, *SHORT, *more, "--json")
    assert done.code == 0, done.err
    told = dict(read_evaluations(run))
    assert {step: set(found) for step, found in told.items()} == {
        0: {"arithmetic", "validation"},
        2: {"validation"},
        4: {"validation"},
        6: {"arithmetic", "validation"},
    }
    scores = {step: told[step]["validation"]["greedy"]["accuracy"] for step in (2, 4, 6)}
    best = min(step for step, score in scores.items() if score == max(scores.values()))
    assert (run / "best").resolve() == run / "checkpoints" / f"step_{best:06d}"
    assert (run / "best" / "hf" / "model.safetensors").is_file()
    data = next(e for e in map(json.loads, (run / "events.jsonl").read_text().splitlines()) if e["event"] == "data")
    assert data["validation"] == 6
    assert "90th percentile" in done.err
    assert "data.unique_examples is 10,000, but only" in done.err
