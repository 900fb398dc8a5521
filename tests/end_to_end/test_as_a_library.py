"""qed used as a library: a run that is trained, evaluated and read back, and rewards that are functions."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import qed
from qed.cli.main import main
from qed.config.callables import give_functions
from qed.errors import DataError, QedError, UsageError
from qed.grading.session import Limits
from qed.rewards.grader import CallableGrader, Pool, make_grader
from qed.rollout.stages import grade
from qed.types import Group, Problem, Rollout

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL: dict[str, Any] = {
    "model": "new:tiny",
    "sampling": {"problems_per_step": 4, "group_size": 4, "max_tokens": 12},
    "evaluation": {"problems": 4, "samples": 0},
    "run": {"preflight": False},
    "steps": 2,
    "seed": 3,
}
ROWS = [{"question": f"What is {n} + 7?", "answer": n + 7} for n in range(40)]


def count_characters(rollout: qed.Rollout) -> float:
    return len(rollout.text) / 100


async def wait_and_count(rollout: qed.Rollout) -> qed.Grade:
    await asyncio.sleep(0)
    return qed.Grade(len(rollout.text) / 100, correct=True, format_ok=True, extracted="1")


def make_groups(*texts: str) -> list[Group]:
    """A group of answers to a problem whose answer is 12, and one to another."""
    problems = Problem("p", "5+7=", "12"), Problem("q", "6+6=", "12")
    return [
        [Rollout(problem, (), (5,), (), text, "stop", index=index) for index, text in enumerate(texts)]
        for problem in problems
    ]


def make(*functions: Any, names: tuple[str, ...] = ("<callable>",), pool: Pool | None = None) -> CallableGrader:
    given = {"<callable>" if not number else f"<callable {number + 1}>": each for number, each in enumerate(functions)}
    with give_functions(given):
        made = make_grader(names, pool=pool or Pool())
    assert isinstance(made, CallableGrader)
    return made


# Functions as rewards


def test_a_function_returns_a_number_a_grade_or_nothing() -> None:
    results: dict[str, Any] = {"is 12": 0.5, "13": qed.Grade(2.0, True, False, "x"), "none": None, "t": torch.tensor(3)}
    grader = make(lambda rollout: results[rollout.text])
    number, whole, nothing, tensor = grader(make_groups(*results))[0]
    assert (number.reward, number.correct, number.extracted) == (0.5, True, "12")
    assert whole == results["13"]
    assert (nothing.reward, nothing.has_reward) == (0.0, False)
    assert tensor.reward == 3.0
    assert grader.judge == "callable"


def test_a_part_that_is_nan_does_not_apply_to_the_answer() -> None:
    def reward(rollout: Rollout) -> qed.Grade:
        return qed.Grade(1.0, True, True, None, parts={"kept": 2, "left_out": float("nan")})

    assert make(reward)(make_groups("12"))[0][0].parts == {"kept": 2.0}


def test_functions_have_weights_and_join_other_rewards() -> None:
    names = ("accuracy", "0.5*<callable>", "0*<callable 2>")
    failing = "TypeError: object of type 'Rollout' has no len()"
    (grades, _) = make(len, count_characters, names=names, pool=Pool())(make_groups("12"))
    assert (grades[0].tier, grades[0].reward) == ("error", 0.0)
    assert failing in grades[0].reason
    (grades, _) = make(count_characters, len, names=names, pool=Pool())(make_groups("12"))
    assert (grades[0].tier, grades[0].reward) == ("string", 1.01), "a part of weight 0 takes no reward"
    assert "of weight 0, failed: " in grades[0].reason
    assert failing in grades[0].reason
    assert "callable_2" not in grades[0].parts
    (grades, _) = make(count_characters, lambda rollout: 7, names=names)(make_groups("12"))
    assert grades[0].reward == 1.01
    assert grades[0].parts["count_characters"] == 0.02
    assert grades[0].parts["callable_2"] == 7


def test_an_exception_names_the_answer_and_counts_as_ungraded(tmp_path: Path) -> None:
    def fail(rollout: Rollout) -> Any:
        if rollout.text == "bad":
            raise KeyError("gold")
        return "text" if rollout.text == "odd" else 1

    log = tmp_path / "rewards.log"
    bad, odd, good = make(fail, pool=Pool(log=log))(make_groups("bad", "odd", "good"))[1]
    assert (bad.tier, bad.reason) == ("error", "problem q, answer 0: KeyError: 'gold'")
    assert odd.reason.startswith("problem q, answer 1: UsageError: it returned str; it must return a number")
    assert good.reward == 1
    assert 'raise KeyError("gold")' in log.read_text()
    with pytest.raises(QedError, match="failed on all of 2 answers, first with: problem p, answer 0: KeyError"):
        grade(make_groups("bad"), make(fail))


@pytest.mark.parametrize("in_a_loop", [False, True], ids=["script", "notebook"])
def test_coroutines_of_a_step_are_awaited_together(in_a_loop: bool) -> None:
    open_calls, most = 0, 0
    loops = set()

    async def ask(rollout: Rollout) -> float:
        nonlocal open_calls, most
        open_calls += 1
        most = max(most, open_calls)
        loops.add(asyncio.get_running_loop())
        await asyncio.sleep(60 if rollout.text == "never" else 0.05)
        open_calls -= 1
        return float(rollout.text)

    grader = make(ask, pool=Pool(limits=Limits(wall=1)))

    def run() -> None:
        for _ in range(2):
            grades = grader(make_groups("1", "2", "never", "x"))
        assert [each.reward for each in grades[1]] == [1, 2, 0, 0]
        assert [each.tier for each in grades[1][2:]] == ["timeout", "error"]
        grader.close()

    async def run_in_a_loop() -> None:
        run()

    asyncio.run(run_in_a_loop()) if in_a_loop else run()
    assert most >= 8
    assert len(loops) == 1, "clients with open connections belong to one loop"


def test_functions_of_trl_and_verl_have_wrappers() -> None:
    def short(completions: list[str], answer: list[str], **columns: Any) -> list[float | None]:
        assert answer == ["12"] * len(completions)
        return [None if text == "none" else 1 / len(text) for text in completions]

    def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> dict[str, Any]:
        return {"score": 2.0, "acc": solution_str == ground_truth}

    names = ("<callable>", "<callable 2>")
    right, none = make(qed.rewards.trl(short), qed.rewards.verl(compute_score), names=names)(make_groups("12", "none"))[
        0
    ]
    assert right.parts == {"short": 0.5, "compute_score": 2.0, "compute_score/acc": 1.0}
    assert (none.reward, none.parts) == (2.0, {"compute_score": 2.0, "compute_score/acc": 0.0})
    assert qed.rewards.trl(short)(make_groups("12")[0][0]).reward == 0.5  # type: ignore[union-attr]


def test_a_function_without_its_wrapper_is_refused() -> None:
    def of_trl(completions: list[str], answer: list[str]) -> list[float]:
        return [float(one in text) for text, one in zip(completions, answer, strict=True)]

    with pytest.raises(UsageError, match=r"of_trl has the parameters of TRL, .*: pass it as qed\.rewards\.trl\("):
        make(of_trl)


def test_a_function_for_many_answers_that_returns_too_few_is_told() -> None:
    def compute_score(data_sources: Any, solution_strs: Any, ground_truths: Any, extra_infos: Any) -> list[float]:
        return [1.0] if len(solution_strs) > 1 else []

    grades = make(qed.rewards.verl(compute_score), names=("<callable>",))(make_groups("12", "none"))[0]
    assert all("returned 0 results for 1 answers" in grade.reason for grade in grades)


# Runs


def test_a_run_with_functions_goes_on_from_python_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, reward = tmp_path / "run", [count_characters, (0.5, wait_and_count)]
    run = qed.train("grpo", tasks=ROWS, reward=reward, out=out, **SMALL)
    assert run.settings["data"]["reward"] == ["<callable>", "0.5*<callable 2>"]
    assert run.settings["data"]["tasks"] == ["memory:train"]
    first = next(run.rollouts(1))
    assert first["parts"] == dict.fromkeys(("count_characters", "wait_and_count"), pytest.approx(first["reward"] / 1.5))
    with pytest.raises(SystemExit) as left:
        main(["grpo", str(out / "settings.yaml"), "--out", str(out), "--resume"])
    assert left.value.code == 2
    told = capsys.readouterr().err
    assert "data.reward is <callable>: a function of the Python program that began this run" in told
    assert len(list((out / "logs").iterdir())) == 1
    again = qed.train("grpo", tasks=ROWS, reward=reward, out=out, resume=True, **SMALL | {"steps": 3})
    rows = [row for row in again.metrics() if "reward/mean" in row]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert {row["reward/count_characters/mean"] > 0 for row in rows} == {True}
    _read_back(again)
    _evaluate(again)


def test_each_run_has_the_rows_of_its_own_call(tmp_path: Path) -> None:
    """A later call with other rows does not change what an earlier run was trained and evaluated on."""

    def make_rows(plus: int) -> list[dict[str, Any]]:
        return [{"question": f"What is {n} + {plus}?", "answer": n + plus} for n in range(12)]

    def train(plus: int, **more: Any) -> qed.Run:
        rows, evaluation = make_rows(plus), {**SMALL["evaluation"], "tasks": make_rows(plus)[:4]}
        given = {**SMALL, "tasks": rows[4:], "evaluation": evaluation, "reward": len_of_text, "steps": 1}
        return qed.train("grpo", out=tmp_path / str(plus), **given, **more)

    def len_of_text(rollout: qed.Rollout) -> float:
        return len(rollout.text)

    def ask(run: qed.Run | Path, *tasks: Any) -> set[str]:
        result = qed.evaluate(run, *tasks, max_tokens=4, preflight=False, out=tmp_path / "asked", overwrite=True)
        return {row["question"] for row in result.rows()}

    runs: dict[int, qed.Run] = {}
    threads = [threading.Thread(target=lambda plus=plus: runs.update({plus: train(plus)})) for plus in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(runs) == {2, 3}
    own = {plus: {row["question"] for row in make_rows(plus)} for plus in runs}
    for plus, run in runs.items():
        assert {row["question"] for row in run.rollouts()} <= own[plus]
        held_out = {row["question"] for row in make_rows(plus)[:4]}
        assert ask(run) == held_out
        assert ask(run, make_rows(9)[:2]) == {"What is 0 + 9?", "What is 1 + 9?"}
        assert ask(run) == held_out
    with pytest.raises(UsageError, match=r"memory:train is data that was passed in Python, and this call does"):
        ask(runs[2].path)


def _read_back(run: qed.Run) -> None:
    frame = run.metrics().to_pandas()
    assert frame["step"].max() == 3
    assert len(list(run.rollouts())) == 3 * 16
    assert len(run.rollouts(step=2).to_pandas()) == 16
    (figures,) = (row for row in run.evaluations() if row["step"] == 3)
    assert (figures["task"], figures["decoding"], figures["n"]) == ("memory-train", "greedy", 4)
    assert run.report().is_file()
    assert "<iframe srcdoc=" in run._repr_html_()
    assert repr(qed.load_run(run.path)) == repr(run)
    assert qed.load_settings(run.path).learner.steps == 3  # type: ignore[union-attr]
    with pytest.raises(DataError, match=r"has no rollouts of step 9; it has those of steps 1 to 3 \(3 in all\)\."):
        run.rollouts(9)
    with pytest.raises(DataError, match="holds no run"):
        qed.load_run(run.path / "eval")


def _evaluate(run: qed.Run) -> None:
    test = [{"question": row["question"], "answer": row["answer"]} for row in ROWS[:3]]
    result = qed.evaluate(run, test, samples=2, max_tokens=8, reward=wait_and_count, preflight=False)
    assert result.accuracy.value == 1.0
    assert result.estimate("pass@2").value == 1.0 >= result.estimate("pass@2").low
    assert len(list(result.rows())) == 6
    assert result.to_pandas()["n"].tolist() == [3]
    # The run's functions are not here.
    judged = qed.evaluate(run, test, max_tokens=8, preflight=False, out=run.path.parent / "judged")
    assert judged.tasks["memory"]["judged_by"] == "r1_zero"
    assert str(result).startswith("memory: 100.0% [")
    with pytest.raises(UsageError, match=r"has no pass@3\. Did you mean 'pass@2'"):
        result.estimate("pass@3")
    several = replace(result, tasks={"one": result.tasks["memory"], "two": result.tasks["memory"]})
    with pytest.raises(UsageError, match=r"There are several tasks: name one, such as task='one'"):
        several.estimate("pass@2")
    with pytest.raises(UsageError, match=r"the command line scores stored answers"):
        qed.evaluate(responses="answers.jsonl")
    with pytest.raises(UsageError, match=r"There is no model to evaluate"):
        qed.evaluate(tasks=test)
    with pytest.raises(UsageError, match=r"qed evaluate has no option --sample=2\. Did you mean '--samples'"):
        qed.evaluate(run, test, sample=2)
    sampler = qed.Sampler(run)
    with pytest.raises(DataError, match=r"questions, row 2: the question contains half of a UTF-16 pair"):
        sampler.sample(["1+1?", "\ud800"])
    for wrong in ({"samples": 0}, {"top_p": 0.0}, {"temperature": -1.0}, {"temperature": "a"}):
        with pytest.raises(qed.errors.UsageError, match="takes samples"):
            sampler.sample(["What is 2 + 7?"], **wrong)  # type: ignore[arg-type]
    with pytest.raises(qed.errors.UsageError, match="prompt of problem '' has no token"):
        qed.Sampler(run, prompt="question_only").sample(["What is 2 + 7?", ""])
    with pytest.raises(qed.errors.UsageError, match="Question 2 has"):
        sampler.sample(["What is 2 + 7?", "7 " * 5000])
    assert len(sampler.sample(iter(["What is 2 + 7?"]), max_tokens=2)) == 1
    answers = sampler.sample(["What is 2 + 7?"], 2, max_tokens=5)
    assert [answer.index for answer in answers[0]] == [0, 1]
    assert all(len(answer.output) == len(answer.logps) <= 5 for answer in answers[0])


def test_a_loop_of_ones_own_ends_with_the_same_weights(tmp_path: Path) -> None:
    place = importlib.util.spec_from_file_location("own_loop", EXAMPLES / "own_loop.py")
    assert place is not None
    assert place.loader is not None
    own_loop = importlib.util.module_from_spec(place)
    place.loader.exec_module(own_loop)
    # An untrained model is never right; these rewards differ between its answers all the same.
    settings = SMALL | {"reward": "auto,0.5*repetition,0.1*length", "steps": 3, "lr": 1e-3}
    own = own_loop.train(qed.load_settings(method="grpo", **settings)).state_dict()
    run = qed.train("grpo", out=tmp_path / "run", **settings)
    assert sum(row.get("train/live_rows", 0) for row in run.metrics()) > 0
    for name, weight in load_file(run.model / "model.safetensors").items():
        assert torch.equal(own[name], weight), name


SCRIPT = """
import qed
settings = {"evaluation.problems": 2, "run.preflight": False, "run.on_no_signal": "warn"}
settings["sampling"] = {"problems_per_step": 4, "group_size": 4, "max_tokens": 8}
print("began")
run = qed.train("grpo", tasks="train.jsonl", reward="./mine.py", steps=1, out="run", **settings)
result = qed.evaluate(run, "train.jsonl", limit=2, greedy=True, max_tokens=4, preflight=False, out="evaluation")
try:
    qed.evaluate(qed.load_run("run"), "train.jsonl", out="again")
except qed.errors.UsageError as error:
    assert "allow_user_code=True" in str(error)
else:
    raise AssertionError("a run that another process may have written names code")
print(len(list(run.rollouts(1))), result.accuracy)
"""


@pytest.mark.parametrize("how", [pytest.param("script", marks=pytest.mark.slow), "stdin"])
def test_a_script_needs_no_main_guard(tmp_path: Path, how: str) -> None:
    """The processes that grade do not import the caller's program again."""
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "mine.py").write_text("from qed.rewards.accuracy import reward\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, *(["script.py"] if how == "script" else ["-"])]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        input=SCRIPT if how == "stdin" else None,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("began") == 1
    assert done.stdout.splitlines()[-1] == "16 0.0% [0.0%, 80.2%]"
