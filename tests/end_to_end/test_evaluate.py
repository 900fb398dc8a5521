"""`qed evaluate` and `qed compare` as their users meet them: a model, a run, an interruption, answers, mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qed.evaluation import run as evaluation_run
from qed.loops import evaluate
from qed.rollout.stages import flatten
from qed.runs.run import read_lines
from qed.types import Groups

SMALL = ("--max-tokens", 8, "--rows-per-batch", 2)
COLUMNS = {"step", "group_id", "sample_id", "question", "gold", "prompt", "text", "extracted", "reward", "parts"}
COLUMNS |= {"correct", "format_ok", "tier", "reason", "n_tokens", "tokens", "logps", "stop_reason", "decoding"}
COLUMNS |= {"strict", "flexible", "string", "class", "reasoning_chars"}
Qed = Callable[..., Any]


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    file = tmp_path / "sums.jsonl"
    rows = [{"question": f"What is {a} + 2?", "answer": f"#### {a + 2}", "level": a % 2} for a in range(12)]
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


def answers(out: Path, task: str = "sums", step: int = 0) -> list[dict[str, Any]]:
    return read_lines(out / f"eval/step_{step:06d}/{task}.jsonl")


def test_a_fresh_model_on_two_tasks(qed: Qed, problems: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = qed(
        *("evaluate", "--model", "new:tiny", "--tasks", f"{problems},arithmetic", "--limit", 6, "--samples", 2),
        *("--out", out, "--json", *SMALL),
    )
    assert done.code == 0, done.err
    assert set(done.result["tasks"]) == {"sums", "arithmetic"}
    assert done.result["overall"]["tasks"] == 2
    figures = done.result["tasks"]["sums"]
    assert (figures["n"], figures["k"], figures["answers"]) == (6, 2, 12)
    assert set(figures["by"]["level"]) == {"0", "1"}
    assert figures["settings"]["prompt"] == "r1_zero"
    assert done.result["tasks"]["arithmetic"]["settings"]["prompt"] == "think_answer", "each task has its own prompt"
    assert json.loads((out / "eval/step_000000/summary.json").read_text())["sums"]["sampled"] == figures
    rows = answers(out)
    assert [(row["group_id"], row["sample_id"]) for row in rows[:2]] == [(rows[0]["group_id"], n) for n in (0, 1)]
    drawn = [int(row["question"].split()[2]) for row in rows[::2]]
    assert drawn == sorted(set(drawn)), "in the order of the file"
    assert figures["subset"].startswith("6 of ")
    assert figures["subset"].endswith("drawn by seed 0, stratified by level")
    assert set(rows[0]) >= COLUMNS
    assert sum(row["stop_reason"] == "length" for row in rows) / 12 == pytest.approx(figures["truncated_frac"])
    assert "problem 6/6" in done.err
    assert sorted(path.name for path in (out / "eval/step_000000").iterdir()) == [
        "arithmetic.jsonl",
        "summary.json",
        "sums.jsonl",
    ]


def test_an_interrupted_evaluation_equals_one_that_was_not(
    qed: Qed, problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("evaluate", "--model", "new:tiny", "--tasks", problems, "--samples", 4, *SMALL)
    assert qed(*command, "--out", tmp_path / "whole").code == 0
    out, calls, real = tmp_path / "out", [], evaluation_run.grade

    def interrupted(groups: Any, grader: Any) -> None:
        calls.append(groups)
        if len(calls) == 3:
            raise KeyboardInterrupt
        real(groups, grader)

    monkeypatch.setattr(evaluation_run, "grade", interrupted)
    stopped = qed(*command, "--out", out)
    assert (stopped.code, "saved in" in stopped.err) == (130, True)
    (part,) = (out / "eval/step_000000").glob(".*.unfinished.jsonl")
    assert len(read_lines(part)) == 1 + 2 * 8
    # As if killed in the middle of a line, with a problem half written.
    lines = part.read_text().splitlines(keepends=True)
    part.write_text("".join(lines[:-1]) + lines[-1][:40])
    other = qed(*command, "--out", out, "--temperature", 1)
    assert (other.code, "temperature 0.6 there and 1.0 here" in other.err) == (2, True)
    gone_on = qed(*command, "--out", out, "--resume")
    assert gone_on.code == 0, gone_on.err
    assert "2 of 12 problems are already finished" in gone_on.out
    assert len(calls) == 3 + 5, "only the missing chunks are asked again"
    for name in ("sums.jsonl", "summary.json"):
        here, there = (folder / "eval/step_000000" / name for folder in (out, tmp_path / "whole"))
        assert here.read_bytes() == there.read_bytes()
    assert not part.exists()
    again = qed(*command, "--out", out)
    assert (again.code, len(calls), "already evaluated" in again.out) == (0, 8, True)
    refused = qed(*command, "--out", out, "--seed", 1)
    assert (refused.code, "seed 0 there and 1 here" in refused.err) == (2, True)
    assert qed(*command, "--out", out, "--seed", 1, "--overwrite").code == 0


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The problems of level 0 are answered right and the others wrong, all in the format of r1_zero."""
    together, alone = evaluate.sample_batches, evaluation_run.sample

    def write(groups: Groups) -> Groups:
        for rollout in flatten(groups):
            said = rollout.problem.answer if rollout.problem.meta["level"] == 0 else "1000"
            rollout.text = f"I add. </think> <answer> {said} </answer>"
        return groups

    monkeypatch.setattr(evaluation_run, "sample", lambda *asked, **options: write(alone(*asked, **options)))
    monkeypatch.setattr(
        evaluate, "sample_batches", lambda *asked, **options: list(map(write, together(*asked, **options)))
    )


MINE = """
JUDGES = False

def reward(rollout):
    from qed.types import Grade
    return Grade(0.25, False, False, None)
"""


@pytest.mark.usefixtures("answered")
def test_a_reward_that_judges_nothing_does_not_hide_what_is_right(qed: Qed, problems: Path, tmp_path: Path) -> None:
    """The prompt's own reward judges; the reward, and the format where the reward checks it, are the chosen one's."""
    (tmp_path / "mine.py").write_text(MINE)
    ours = ("--reward-options", "format_only.format=r1_zero")
    asked: dict[str, tuple[tuple[object, ...], float, float]] = {
        "auto": ((), 0.5, 1.0),
        "think": (("--reward", "format_only"), 0.0, 0.0),
        "r1": (("--reward", "format_only", *ours), 1.0, 1.0),
        "mine": (("--reward", tmp_path / "mine.py"), 0.25, 1.0),
    }
    command = ("evaluate", "--model", "new:tiny", "--tasks", problems, "--greedy", "--json", *SMALL)
    for name, (options, reward, format_ok) in asked.items():
        done = qed(*command, *options, "--out", tmp_path / name)
        assert done.code == 0, done.err
        figures = done.result["tasks"]["sums"]
        assert (figures["accuracy"], figures["reward"], figures["format"]) == (0.5, reward, format_ok), name
        assert figures["judged_by"] == "r1_zero"
        assert ("correctness by r1_zero" in done.err) == (name != "auto")
        rows = answers(tmp_path / name)
        assert [row["correct"] for row in rows] == [row["level"] == 0 for row in rows]
    again = qed(*command, "--reward", "format_only", "--out", tmp_path / "think")
    assert "nothing is sampled again" in again.err


@pytest.mark.usefixtures("answered")
def test_training_on_a_reward_that_judges_nothing_is_measured_all_the_same(
    qed: Qed, problems: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    done = qed(
        *("sft", "--model", "new:tiny", "--out", out, "--learner.steps", 1, "--learner.batch_size", 4),
        *("--sampling.max_tokens", 8, "--evaluation.tasks", problems, "--evaluation.samples", 0, "--prompt", "r1_zero"),
        *("--reward", "0.5*length,0*repetition"),
    )
    assert done.code == 0, done.err
    assert "data.reward judges no answers; evaluations use the verdict of r1_zero." in done.out
    figures = json.loads((out / "eval/step_000001/summary.json").read_text())["sums"]["greedy"]
    assert (figures["accuracy"], figures["format"], figures["judged_by"]) == (0.5, 1.0, "r1_zero")
    assert figures["reward"] < 0


@pytest.fixture
def run(qed: Qed, problems: Path, tmp_path: Path) -> Path:
    """A run of one step of SFT."""
    folder = tmp_path / "run"
    rows = [
        {"question": f"What is {a} + {b}?", "answer": f"It is {a + b}.\n#### {a + b}"}
        for a in range(9)
        for b in range(9)
        if b != 2
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = qed(
        *("sft", "--model", "new:tiny", "--tasks", tmp_path / "train.jsonl", "--out", folder, "--learner.steps", 1),
        *("--learner.batch_size", 4, "--sampling.max_tokens", 8, "--evaluation.tasks", problems),
        *("--evaluation.samples", 1),
    )
    assert done.code == 0, done.err
    return folder


def test_a_run_is_asked_as_it_was_trained(qed: Qed, run: Path, problems: Path, tmp_path: Path) -> None:
    trained = json.loads((run / "eval/step_000001/summary.json").read_text())["sums"]
    assert set(trained) == {"greedy", "sampled"}
    assert {"pass", "maj", "classes", "by", "right_tokens"} <= set(trained["greedy"])
    refused = qed("evaluate", "--model", run, "--greedy")
    assert (refused.code, "made by training" in refused.err) == (2, True)
    done = qed("evaluate", "--model", run, "--greedy", "--out", tmp_path / "again", "--json")
    assert done.code == 0, done.err
    assert done.result["step"] == 1
    asked = done.result["tasks"]["sums"]["settings"]
    assert (asked["prompt"], asked["max_tokens"]) == ("r1_zero", 8)
    same = [row for row in answers(run, step=1) if row["decoding"] == "greedy"]
    assert [row["text"] for row in answers(tmp_path / "again", step=1)] == [row["text"] for row in same]
    first = qed("evaluate", "--model", run, "--tasks", f"arithmetic,{problems}", "--limit", 2, "--out", tmp_path / "o")
    assert first.code == 0, first.err
    missing = qed("evaluate", "--model", run, "--step", 7)
    assert (missing.code, "no checkpoint of step 7" in missing.err, "step 1" in missing.err) == (3, True, True)


def test_a_runs_own_folder_takes_other_evaluations(qed: Qed, run: Path) -> None:
    assert qed("evaluate", "--model", run, "--tasks", "arithmetic", "--limit", 2).code == 0
    summary = json.loads((run / "eval/step_000001/summary.json").read_text())
    assert set(summary) == {"sums", "arithmetic"}
    assert qed("report", run).code == 0
    compared = qed("compare", run / "eval/step_000000", run / "eval/step_000001", "--json")
    assert compared.code == 0, compared.err
    assert set(compared.result) == {"sums, greedy", "sums, sampled"}
    assert compared.result["sums, greedy"]["test"] == "exact McNemar"
    resumed = qed("sft", run / "settings.yaml", "--out", run, "--resume", "--json")
    assert resumed.code == 0, resumed.err
    assert set(resumed.result) == {"run", "steps", "sums"}, "a resumed run reports the tasks of its own evaluations"


STORED = [
    ("a", "12", "so \\boxed{12}"),
    ("a", "12", "it is 13"),
    ("b", "7", "\\boxed{7"),
    ("b", "7", "<think>x</think>7"),
]


def test_stored_answers_are_scored(qed: Qed, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    rows = [{"question": q, "gold": gold, "response": text, "source": "mine"} for q, gold, text in STORED]
    file.write_text("\n".join(map(json.dumps, rows)))
    done = qed("evaluate", "--responses", file, "--json", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    figures = done.result["tasks"]["answers"]
    assert (figures["n"], figures["k"], figures["accuracy"]) == (2, 2, 0.5)
    assert figures["classes"] == {"fmt1_ans1": 0.25, "fmt1_ans0": 0, "fmt0_ans1": 0.5, "fmt0_ans0": 0.25}
    assert (figures["pass"]["2"]["value"], figures["maj"]["2"]["value"]) == (1.0, 0.75)
    assert figures["reasoning_frac"] == 0.25
    assert figures["mean_tokens"] is None
    unknown = ("n_tokens", "stop_reason", "version", "advantage")
    assert all(row[name] is None for row in answers(tmp_path / "out", "answers") for name in unknown)
    assert [row["text"] for row in answers(tmp_path / "out", "answers")] == [text for *_, text in STORED]
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(json.dumps({**row, "response": "\\boxed{7}"}) for row in rows))
    compared = qed("compare", file, other, "--json")
    assert compared.code == 0, compared.err
    (found,) = compared.result.values()
    assert (found["n"], found["before"], found["after"], len(found["gained"]), len(found["lost"])) == (
        2,
        0.5,
        0.5,
        1,
        1,
    )
    by_reward = qed("evaluate", "--responses", file, "--reward", "boxed", "--json")
    assert by_reward.result["tasks"]["answers"]["accuracy"] == 0.25
    assert by_reward.result["tasks"]["answers"]["judged_by"] == "boxed"
    unjudged = qed("evaluate", "--responses", file, "--reward", "format_only", "--json")
    told = unjudged.result["tasks"]["answers"]
    assert (told["accuracy"], told["reward"], told["judged_by"]) == (0.5, 0.0, "accuracy")
    assert "format_only does not decide correctness" in unjudged.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--tasks", "sums.jsonl", "--samples", "0"), 2, "--samples must be at least 1"),
        (("--tasks", "sums.jsonl", "--greedy", "--samples", "4"), 2, "leave --samples out"),
        (("--tasks", "sums.jsonl", "--greedy", "--temperature", "0.9"), 2, "leave one of the two out"),
        (("--tasks", "sums.jsonl", "--temperature", "0"), 2, "--greedy"),
        (("--tasks", "sums.jsonl", "--top-p", "1.5"), 2, "--top-p"),
        (("--tasks", "arithmetik"), 2, "Did you mean 'arithmetic'"),
        (("--tasks", "arithmetic:validation"), 2, "no split"),
        (("--tasks", "nothing.jsonl"), 2, "There is no file nothing.jsonl"),
        (("--tasks", "empty.jsonl"), 3, "no problems"),
        (("--tasks", "sums.jsonl,sums.jsonl"), 2, "called 'sums'"),
        (("--tasks", "sums.jsonl", "--max-tokens", "600"), 3, "context window leaves 0"),
        (("--tasks", "sums.jsonl", "--sampler", "vlm"), 2, "no 'vlm' among the samplers"),
        (("--tasks", "sums.jsonl", "--prompt", "boxd"), 2, "among the prompts"),
        (("--tasks", "sums.jsonl", "--tempreture", "1"), 2, "Did you mean '--temperature'"),
        (("--tasks", "sums.jsonl", "--resume"), 2, "--resume needs the folder"),
        (("--tasks", "sums.jsonl", "--out", "taken"), 2, "contains no evaluation"),
        ((), 2, "needs --tasks"),
        (("--model", "runs/nix"), 2, "and runs/nix is not a run"),
    ],
)
def test_mistakes_cost_a_line(
    qed: Qed,
    problems: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(problems.parent)
    Path("empty.jsonl").write_text("")
    Path("taken").mkdir()
    Path("taken/diary.txt").write_text("mine")
    done = qed("evaluate", "--model", "new:tiny", *arguments)
    assert done.code == code, done.err
    assert words in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not Path("runs").exists(), "a mistake leaves nothing behind"


@pytest.mark.parametrize(
    ("rows", "code", "words"),
    [
        ([{"gold": "1", "said": "1"}], 3, "no column of the known names"),
        ([{"id": 1, "gold": "1", "response": "1"}, {"gold": "1", "response": "1"}], 3, "row 2"),
        (
            [{"id": 1, "gold": "1", "response": "1"}, {"id": "", "gold": "1", "response": "1"}],
            3,
            "row 2: the id is empty",
        ),
        ([{"gold": " ", "response": "1"}], 3, "the gold is empty"),
        ([], 3, "no row to score"),
    ],
)
def test_a_broken_file_of_answers_is_named(
    qed: Qed, tmp_path: Path, rows: list[dict[str, Any]], code: int, words: str
) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    done = qed("evaluate", "--responses", file)
    assert (done.code, words in done.err) == (code, True), done.err
    assert qed("evaluate", "--responses", tmp_path / "none.jsonl").code == 3
    assert qed("evaluate").code == 2


def test_golds_that_cannot_be_used_are_counted(qed: Qed, tmp_path: Path) -> None:
    file = tmp_path / "sums.jsonl"
    golds = ("3", "", "\\frac{1}{", "4")
    file.write_text("\n".join(json.dumps({"question": f"Q{n}?", "answer": gold}) for n, gold in enumerate(golds)))
    done = qed(
        "evaluate", "--model", "new:tiny", "--tasks", file, "--greedy", "--out", tmp_path / "o", "--json", *SMALL
    )
    assert done.code == 0, done.err
    assert done.result["tasks"]["sums"]["left_out"] == {"problems without an answer": 1}
    assert "left out 1 problems without an answer" in done.err
    assert "1 golds cannot be read" in done.err
    assert done.result["tasks"]["sums"]["n"] == 3


def test_nothing_to_compare(qed: Qed, tmp_path: Path) -> None:
    for name, question in (("a", "one?"), ("b", "two?")):
        row = {"question": question, "gold": "1", "response": "1"}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    refused = qed("compare", tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert (refused.code, "no problem in common" in refused.err) == (3, True)
    assert qed("compare", tmp_path / "a.jsonl", tmp_path / "nowhere").code == 3
    (tmp_path / "empty").mkdir()
    assert "contains no evaluation" in qed("compare", tmp_path / "a.jsonl", tmp_path / "empty").err


def test_a_rule_for_ties_needs_no_new_answers(qed: Qed, problems: Path, tmp_path: Path) -> None:
    asked = ("evaluate", "--model", "new:tiny", "--tasks", problems, "--samples", 2, *SMALL, "--json")
    first = qed(*asked, "--out", tmp_path / "a")
    again = qed(*asked, "--out", tmp_path / "a", "--ties", "first")
    assert (first.result["tasks"]["sums"].get("maj_ties"), again.code) == ("split", 0), again.err
    assert "nothing is sampled again" in again.err
    fresh = qed(*asked, "--out", tmp_path / "b", "--ties", "first")
    assert again.result["tasks"] == fresh.result["tasks"]
    assert answers(tmp_path / "a") == answers(tmp_path / "b")
    shard = qed(*asked, "--out", tmp_path / "a", "--shard", "1/2")
    assert (shard.code, "without --shard and --cluster counts its votes with --ties split" in shard.err) == (2, True)
    file = next((tmp_path / "a").glob("eval/*/sums.jsonl"))
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    last = qed(*asked, "--out", tmp_path / "a")
    assert last.result["tasks"] == again.result["tasks"]
    assert "--ties split is not applied" in last.err


def test_instructions_without_right_answers_become_outputs(qed: Qed, shared: Path, tmp_path: Path) -> None:
    """As the alpaca-eval package reads them: nothing is called right or wrong."""
    file = shared / "data/alpaca_eval/alpaca_eval.jsonl"
    asked = ["--model", "new:tiny", "--tasks", f"alpaca_eval@{file}", "--limit", 3, "--max-tokens", 8]
    done = qed("evaluate", *asked, "--out", tmp_path / "out", "--json")
    assert done.code == 0, done.err
    assert done.result["tasks"] == {}
    outputs = json.loads(Path(done.result["outputs"]["alpaca_eval"]).read_text())
    given = {row["instruction"]: row["dataset"] for row in map(json.loads, file.read_text().splitlines())}
    assert len(outputs) == 3
    assert all(given[each["instruction"]] == each["dataset"] for each in outputs)
    assert all(each["generator"] == "new:tiny" and isinstance(each["output"], str) for each in outputs)
    path = Path(done.result["outputs"]["alpaca_eval"])
    path.write_text(path.read_text().replace("new:tiny", "new:small"))
    kept = sorted(each.name for each in path.parent.iterdir())
    refused = qed("evaluate", *asked, "--out", tmp_path / "out")
    assert (refused.code, "has the outputs of new:small" in refused.err) == (2, True)
    assert sorted(each.name for each in path.parent.iterdir()) == kept
    assert qed("evaluate", *asked, "--out", tmp_path / "out", "--overwrite").code == 0


def test_a_task_has_its_usual_length_and_texts_that_end_an_answer(qed: Qed, shared: Path, tmp_path: Path) -> None:
    task = f"aime:2024@{shared / 'data/qwen_eval/aime24.jsonl'}"
    asked = ["--model", "new:tiny", "--tasks", task, "--limit", 1, "--samples", 1, *("--out", tmp_path / "out")]
    done = qed("evaluate", *asked, "--prompt", "chat", "--stop", '["e", "\\n\\n"]', "--json")
    assert done.code == 0, done.err
    ((name, figures),) = done.result["tasks"].items()
    used = figures["settings"]
    assert used["stop"] == ["e", "\n\n"]
    assert 256 < used["max_tokens"] < 512, "more than half of the window, and less than all of it"
    (row,) = answers(tmp_path / "out", name)
    assert "e" not in row["text"] or row["stop_reason"] == "stop"
    other = qed("evaluate", *asked, "--prompt", "chat", "--json")
    assert (other.code, "stop" in other.err) == (2, True)
    refused = qed("evaluate", *asked, "--overwrite", "--prompt", "chat", "--chat-template-options", "thinking=false")
    assert (refused.code, "does not use thinking" in refused.err) == (2, True)


def test_worked_examples_stand_before_a_question(qed: Qed, shared: Path, tmp_path: Path) -> None:
    task = f"gsm8k:test@{shared / 'data/gsm8k/test.jsonl'}"
    asked = ["--model", "new:tiny", "--tasks", task, "--limit", 2, "--greedy", *("--out", tmp_path / "out")]
    done = qed("evaluate", *asked, "--exemplars", "gsm8k_cot", "--shots", 1, "--max-tokens", 4, "--json")
    assert done.code == 0, done.err
    ((name, figures),) = done.result["tasks"].items()
    used = figures["settings"]
    assert (used["prompt"], used["exemplars"], used["reward"]) == ("few_shot", "1 of gsm8k_cot", ["accuracy"])
    assert all(row["prompt"].startswith("Q: There are 15 trees") for row in answers(tmp_path / "out", name))
    other = qed("evaluate", *asked, "--exemplars", "gsm8k_cot", "--shots", 2, "--max-tokens", 4)
    assert (other.code, "exemplars" in other.err) == (2, True), "another number is another evaluation"
    refused = qed("evaluate", *asked, "--shots", 1, "--prompt", "boxed")
    assert (refused.code, "use their own prompt" in refused.err) == (2, True)


@pytest.mark.parametrize("greedy", [(), ("--greedy",)])
def test_an_evaluation_without_its_answers_is_done_again(
    qed: Qed, problems: Path, tmp_path: Path, greedy: tuple[str, ...]
) -> None:
    """Also where another decoding of the same task was in the lost file; other settings are refused as before."""
    asked = ("evaluate", "--model", "new:tiny", "--tasks", problems, "--out", tmp_path / "a", *SMALL, "--json")
    first = qed(*asked)
    qed(*asked, "--greedy")
    (file,) = (tmp_path / "a").glob("eval/*/sums.jsonl")
    before, summary = file.read_bytes(), file.with_name("summary.json")
    file.unlink()
    other = qed(*asked, "--temperature", 0.5)
    assert (other.code, "with other settings: temperature" in other.err) == (2, True), other.err
    again = qed(*asked, *greedy)
    assert (again.code, "its answers are gone: sampling them again" in again.err) == (0, True), again.err
    assert set(json.loads(summary.read_text())["sums"]) == {"sampled", "greedy"}
    both = [qed(*asked), qed(*asked, "--greedy")]
    assert both[0].result["tasks"]["sums"]["accuracy"] == first.result["tasks"]["sums"]["accuracy"]
    assert sorted(file.read_bytes().splitlines()) == sorted(before.splitlines())
