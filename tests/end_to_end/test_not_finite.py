"""What is not finite stops before the optimizer step with exit code 4 and a dump of its batch, or is passed over."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qed.guards.finite import find_not_finite
from qed.rollout.stages import assign_advantages, grade
from qed.runs.run import read_lines
from qed.training.learner import Learner
from qed.types import Problem, Rollout

METHODS = ("sft", "grpo", "dpo")
SMALL = ["--steps", 3, "--sampling.problems_per_step", 2, "--sampling.group_size", 2, "--sampling.max_tokens", 4]
SMALL += ["--evaluation.problems", 2, "--evaluation.samples", 0, "--learner.batch_size", 4]
FIRST_BAD = 2  # the update that the fault is put into


def arguments(method: str, tmp_path: Path, *more: object) -> list[object]:
    """A run of three steps; DPO on pairs, the others on the built-in default."""
    if method == "dpo":
        file = tmp_path / "pairs.jsonl"
        rows = [{"prompt": f"{n} + 1?", "chosen": str(n + 1), "rejected": "0"} for n in range(20)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        more = ("--tasks", file, "--prompt", "question_only", *more)
    bonus = ["--algorithm.entropy", 0.01] if method == "grpo" else []
    return [method, "--out", tmp_path / "run", *SMALL, *bonus, *more]


def poison(value: float, fields: str) -> Callable[[Any], Any]:
    """Writes a number into a field of the first rollout of an update."""

    def spoil(seen: tuple[Any, tuple[Any, ...]]) -> Any:
        found, (_, rollouts, *_) = seen
        row: Rollout = rollouts[0]
        setattr(row, fields, value if fields == "advantage" else (value,) * len(row.output))
        return found

    return spoil


def assert_stopped(done: Any, run: Path, step: int, *words: str) -> list[dict[str, Any]]:
    """Exit code 4, one screen that names the step and the dump, no later checkpoint; the rows of the dump."""
    assert done.code == 4, done.err
    assert "Traceback" not in done.err
    file = run / "dumps" / f"step_{step:06d}.jsonl"
    for word in (f"Step {step}: ", "before the optimizer step", str(file), *words):
        assert word in done.err, done.err
    assert not list(run.glob(f"checkpoints/step_{step:06d}"))
    text = file.read_text(encoding="ascii")
    assert "NaN" not in text
    assert "Infinity" not in text
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("place", ["advantage", "ref_logps", "old_logps"])
def test_a_figure_of_an_answer(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, value: float, place: str
) -> None:
    update = Learner.update
    calls = iter(range(1, 100))

    def poisoned(self: Learner, rollouts: Sequence[Rollout], step: int) -> dict[str, float]:
        if next(calls) == FIRST_BAD:
            poison(value, place)((None, (self, rollouts)))
        return update(self, rollouts, step)

    monkeypatch.setattr(Learner, "update", poisoned)
    done = qed(*arguments(method, tmp_path))
    name = {"advantage": "advantage", "ref_logps": "reference log-prob", "old_logps": "old log-prob"}[place]
    rows = assert_stopped(done, tmp_path / "run", FIRST_BAD, f"The {name} of 1 of")
    assert [row["not_finite"] for row in rows] == [[name]] + [[]] * (len(rows) - 1)
    assert all(row["prompt"] and row["tokens"] and row["prompt_tokens"] for row in rows)
    assert rows[0][place] == str(value) if place == "advantage" else set(rows[0][place]) == {str(value)}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_the_loss_and_its_gradient(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, what: str
) -> None:
    """One answer's log-probs go wrong in the second update, or the gradient alone does."""
    calls = iter(range(1, 100))
    accumulate = Learner.accumulate

    def broken(self: Learner, rollouts: Sequence[Rollout], *more: int) -> dict[str, float]:
        stats = accumulate(self, rollouts, *more)
        if next(calls) >= FIRST_BAD:
            if what == "gradient":
                next(p for p in self.parameters if p.grad is not None).grad.fill_(math.inf)  # type: ignore[union-attr]
            else:
                stats["train/loss"] = math.nan
        return stats

    monkeypatch.setattr(Learner, "accumulate", broken)
    rows = assert_stopped(
        qed(*arguments(method, tmp_path)), tmp_path / "run", FIRST_BAD, f"The {what} is not finite", "in 0 of"
    )
    assert all(row["not_finite"] == [] for row in rows)


@pytest.mark.parametrize(("value", "said"), [("nan", "nan"), ("inf", "inf"), ("-inf", "-inf")])
def test_a_reward(qed: Callable[..., Any], tmp_path: Path, value: str, said: str) -> None:
    """A reward of the user's own that is no number for wrong answers is met in the first evaluation."""
    reward = tmp_path / "mine.py"
    reward.write_text(
        f"from qed.types import Grade\ndef reward(rollout):\n    return Grade(float('{value}'), False, False, None)\n"
    )
    rows = assert_stopped(
        qed(*arguments("grpo", tmp_path, "--reward", reward)), tmp_path / "run", 0, "The reward of", "problem"
    )
    assert {row["reward"] for row in rows} == {said}
    assert rows[0]["not_finite"] == ["reward"]


def test_a_reward_after_a_complete_step_does_not_lose_it(qed: Callable[..., Any], tmp_path: Path) -> None:
    reward, run = tmp_path / "mine.py", tmp_path / "run"
    head = "from pathlib import Path\nfrom qed.types import Grade\ndef reward(rollout):\n"
    graded = "    return Grade({}, False, True, None)\n".format
    seen = f"    seen = Path({str(run / 'metrics.jsonl')!r})\n"
    broken = graded("float('nan') if seen.exists() and 'train/live_rows' in seen.read_text() else len(rollout.text)")
    reward.write_text(head + seen + broken, encoding="utf-8")
    more = ("--reward", reward, "--evaluation.every", 0, "--run.on_no_signal", "warn")
    done = qed(*arguments("grpo", tmp_path, *more))
    assert_stopped(done, run, 2, "The reward of", "The checkpoint of step 1 is complete")
    assert [path.name for path in (run / "checkpoints").iterdir() if path.is_dir()] == ["step_000001"]
    reward.write_text(head + graded("len(rollout.text)"), encoding="utf-8")
    assert qed(*arguments("grpo", tmp_path, *more), "--resume", "--allow-change", "data.reward").code == 0


def test_advantages_that_the_algorithm_makes(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crediting(groups: Any, algorithm: Any) -> None:
        assign_advantages(groups, algorithm)
        groups[0][0].advantage = math.nan

    monkeypatch.setattr("qed.loops.online.assign_advantages", crediting)
    assert_stopped(qed(*arguments("grpo", tmp_path)), tmp_path / "run", 1, "The advantage of 1 of 4", "std_epsilon")


def test_log_probs_of_the_sampler(qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that it does not know, NaN, is agreed upon; one that is infinite is not."""

    def grading(groups: Any, grader: Any) -> None:
        grade(groups, grader)
        groups[0][0].logps = (-math.inf,) * len(groups[0][0].output)

    monkeypatch.setattr("qed.rollout.collector.grade", grading)
    assert_stopped(qed(*arguments("grpo", tmp_path)), tmp_path / "run", 1, "The sampled log-prob of 1 of 4")


def test_a_model_whose_logits_are_broken(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are spoilt after the first step: the sampler of the second says so, and the prompts are dumped."""
    update = Learner.update

    def spoiling(self: Learner, rollouts: Sequence[Rollout], step: int) -> dict[str, float]:
        stats = update(self, rollouts, step)
        self.parameters[0].data.fill_(math.nan)
        return stats

    monkeypatch.setattr(Learner, "update", spoiling)
    done = qed(*arguments("grpo", tmp_path))
    assert done.code == 4, done.err
    assert "Step 2: The model's log-probs are not finite any more" in done.err
    dumped = (tmp_path / "run" / "dumps" / "step_000002.jsonl").read_text().splitlines()
    assert len(dumped) == 4
    assert all(json.loads(line)["prompt"] for line in dumped)


def spoilt(monkeypatch: pytest.MonkeyPatch, which: set[int]) -> None:
    """Spoil the gradients of some updates."""
    calls = iter(range(1, 100))
    accumulate = Learner.accumulate

    def broken(self: Learner, rollouts: Sequence[Rollout], *more: int) -> dict[str, float]:
        stats = accumulate(self, rollouts, *more)
        return {**stats, "train/loss": math.nan} if next(calls) in which else stats

    monkeypatch.setattr(Learner, "accumulate", broken)


@pytest.mark.parametrize("method", METHODS)
def test_updates_may_be_passed_over(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """One bad update after another is one too many for skip:1; with a good one between them the count begins anew."""
    spoilt(monkeypatch, {1, 3})
    done = qed(*arguments(method, tmp_path, "--run.on_non_finite", "skip:1"))
    assert done.code == 0, done.err
    rows = [row for row in read_lines(tmp_path / "run" / "metrics.jsonl") if "train/rows" in row]
    assert [row["optim/skipped"] for row in rows] == [1, 0, 1]
    events = [row for row in read_lines(tmp_path / "run" / "events.jsonl") if row["event"] == "not_finite"]
    assert [(event["step"], event["in_a_row"]) for event in events] == [(1, 1), (3, 1)]
    assert len(list((tmp_path / "run" / "dumps").iterdir())) == 2
    assert "skipped an update (1 in a row, at most 1)" in done.out
    spoilt(monkeypatch, {2, 3})
    done = qed(*arguments(method, tmp_path, "--run.on_non_finite", "skip:1", "--overwrite"))
    assert_stopped(done, tmp_path / "run", 3)


def test_several_updates_of_a_step_are_added_up(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt(monkeypatch, {1, 2, 4})
    more = ["--learner.batch_size", 1, "--steps", 1, "--run.on_non_finite", "skip:3"]
    assert qed(*arguments("grpo", tmp_path, *more)).code == 0
    (row,) = [row for row in read_lines(tmp_path / "run" / "metrics.jsonl") if "train/rows" in row]
    assert (row["optim/skipped"], row["train/rows"]) == (3, 4)
    names = sorted(path.name for path in (tmp_path / "run" / "dumps").iterdir())
    assert names == ["step_000001-2.jsonl", "step_000001-3.jsonl", "step_000001.jsonl"]


@pytest.mark.parametrize("policy", ["skip", "skip:", "skip:0", "skip:-1", "skip:x", "go", "skip:²"])
def test_a_policy_that_cannot_be_meant(qed: Callable[..., Any], tmp_path: Path, policy: str) -> None:
    done = qed(*arguments("grpo", tmp_path, f"--run.on_non_finite={policy}"))
    assert done.code == 2
    assert "run.on_non_finite must be stop, or skip:N" in done.err


def test_what_is_dumped_is_ascii(qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's text cannot command the terminal of whoever looks at the file."""

    def grading(groups: Any, grader: Any) -> None:
        grade(groups, grader)
        first = groups[0][0]
        first.text, first.grade = "\x1b[2J\u202e\x07", replace(first.grade, reward=math.nan)
        grade_again = [[rollout.grade for rollout in group] for group in groups]
        grade(groups, lambda _: grade_again)

    monkeypatch.setattr("qed.rollout.collector.grade", grading)
    rows = assert_stopped(qed(*arguments("grpo", tmp_path)), tmp_path / "run", 1, "The reward of 1 of 4")
    assert rows[0]["text"] == "\x1b[2J\u202e\x07"


def test_a_log_prob_that_its_sampler_does_not_know_is_no_mistake() -> None:
    for logp, wrong in ((-1.0, []), (math.nan, []), (-math.inf, ["sampled log-prob"])):
        assert find_not_finite(Rollout(Problem("p", "?", "1"), (1,), (1,), (logp,), "", "stop")) == wrong
