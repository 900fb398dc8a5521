"""A demonstration has the form of the prompt in use, whatever form the data has; what has it already stays verbatim."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qed.config import plugins
from qed.config.resolve import resolve_settings
from qed.config.task_names import parse_task
from qed.data.prompts import demonstrations
from qed.data.prompts.base import PromptTemplate, load_leaf
from qed.data.prompts.demonstrations import (
    CUT_OFF,
    OTHER_ANSWER,
    OTHER_FORM,
    OTHER_PROMPT,
    find_demonstration,
    find_trouble,
    measure_most,
    measure_reward,
    write_demonstration,
)
from qed.data.selection import has_right_solution
from qed.data.sources.rows import Place
from qed.data.tasks import arithmetic, long_sums
from qed.data.tasks.base import build_problems
from qed.data.tools.inspect import inspect_data
from qed.data.tools.load import Data
from qed.data.tools.prompting import PromptView
from qed.loops.dry_run import run_dry
from qed.models import load
from qed.rewards.base import load_reward
from qed.types import Problem

PROMPTS = list(plugins.list_leaves("prompts"))
Q, A = "Ada has 2 pens and buys 3. How many pens?", "5"
STEPS = "She has 2 pens.\n\n2+3=5"
TRACE = f"<think>\n{STEPS}\n</think>\n\nAda has $\\boxed{{5}}$ pens."
USER = {"role": "user", "content": Q}


def say(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def read(row: dict[str, Any]) -> Problem:
    (problem,) = build_problems(iter([(Place("x", 1), row)]), "x", {}, Counter())
    return problem


# A correct row of every schema with a worked solution.
VERL = {"data_source": "m", "prompt": [USER], "reward_model": {"style": "rule", "ground_truth": A}}
OPENMATH = {"expected_answer": A, "problem": Q}
CHECKED = {"correctness_math_verify": [True], "is_reasoning_complete": [True]}
SKY = f"<|begin_of_thought|>{STEPS}<|end_of_thought|>\n<|begin_of_solution|>So:\n\\boxed{{5}}<|end_of_solution|>"
TAGGED = f"<think>{STEPS}</think> <answer> \\boxed{{5}} </answer>"
XML = f"<reasoning>\n{STEPS}\n</reasoning>\n<answer>\n5\n</answer>\n"
SPOKEN = f"<think>I must close </think> and <answer>.\n{STEPS}</think>\\boxed{{5}}"
ROWS: dict[str, dict[str, Any]] = {
    "GSM8K": {"question": Q, "answer": f"{STEPS}\n#### 5"},
    "MATH": {"problem": Q, "solution": f"{STEPS}, so $\\boxed{{5}}$."},
    "NuminaMath": {"problem": Q, "solution": "We box \\boxed{2+3} first. $\\boxed{5}$", "answer": A},
    "OpenMathReasoning": {**OPENMATH, "generated_solution": TRACE},
    "OpenMathReasoning with a boxed gold": {**OPENMATH, "expected_answer": "\\boxed{5}", "generated_solution": TRACE},
    "OpenMathReasoning without a box": {**OPENMATH, "generated_solution": f"<think>{STEPS}</think>"},
    "DeepMath": {"question": Q, "final_answer": A, "r1_solution_1": "", "r1_solution_2": TRACE},
    "OpenR1": {"problem": Q, "answer": A, "generations": [TRACE], **CHECKED},
    "LUFFY": {**VERL, "target": [say(TRACE)]},
    "prepare_sft": {"prompt": [USER], "target": f"{STEPS}\n</think>\nSo \\boxed{{5}}."},
    "TRL completion": {"prompt": Q, "completion": TRACE, "answer": A},
    "TRL messages": {"messages": [USER, say(TRACE)]},
    "ShareGPT": {"conversations": [{"from": "human", "value": Q}, {"from": "gpt", "value": SKY}]},
    "Alpaca": {"instruction": Q, "input": "", "output": TRACE},
    "a solution with tags": {"question": Q, "answer": A, "solution": TAGGED},
    "a reply of another prompt": {"prompt": Q, "response": XML, "answer": A},
    "tags spoken about": {**OPENMATH, "generated_solution": SPOKEN},
}


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("schema", ROWS)
def test_a_correct_row_earns_the_prompts_full_reward(schema: str, prompt: str) -> None:
    problem, leaf = read(ROWS[schema]), load_leaf(prompt)
    text, built = write_demonstration(leaf, problem)
    assert text is not None
    judged = replace(problem, answer=A)
    assert measure_reward(leaf, judged, text) == measure_most(leaf, judged), text
    assert find_trouble(leaf, judged) == ""
    # Between the prompt's tags is the answer alone, never its box, unless the prompt asks for it.
    tags = getattr(leaf, "TAGS", ())
    if built and len(tags) == 4 and prompt not in ("prime", "open_reasoner"):
        assert "boxed" not in text.partition(tags[2])[2]


@pytest.mark.parametrize("prompt", PROMPTS)
@settings(max_examples=25, deadline=None)
@given(
    steps=st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n<>/\\{}$#"), min_size=1).filter(
        str.strip
    ),
    answer=st.sampled_from(["5", "-3", "1/2", "\\frac{1}{2}", "x+1", "12.5", "(1, 2)"]),
    tag=st.sampled_from(["think", "thinking", "reasoning"]),
)
def test_any_reasoning_earns_it_or_is_counted(prompt: str, steps: str, answer: str, tag: str) -> None:
    row = {"problem": Q, "expected_answer": answer, "generated_solution": f"<{tag}>{steps}</{tag}> \\boxed{{{answer}}}"}
    problem, leaf = read(row), load_leaf(prompt)
    text = find_demonstration(leaf, problem)
    assert text is not None
    full = measure_reward(leaf, problem, text) == measure_most(leaf, problem)
    assert full == (find_trouble(leaf, problem) == "")
    assert full or any(stop in steps for stop in leaf.STOP) or "{" in steps or "}" in steps or "\\" in steps


@pytest.mark.parametrize("prompt", PROMPTS)
def test_without_an_answer_or_steps_there_is_nothing_to_imitate(prompt: str) -> None:
    """A written demonstration never has an empty answer, and an empty thought only where the data wants one."""
    leaf, solved = load_leaf(prompt), Problem("x", Q, A, solution=STEPS)
    assert find_demonstration(leaf, replace(solved, answer="")) is None
    without_steps = find_demonstration(leaf, replace(solved, solution=""))
    if prompt in ("chat", "few_shot_mmlu"):  # they have no place for steps
        assert without_steps is not None
    else:
        assert without_steps is None


def test_a_solution_with_a_box_needs_no_other_answer() -> None:
    solution = "It is \\boxed{5}."
    assert find_demonstration(load_leaf("boxed"), Problem("x", Q, "", solution)) == solution


@pytest.mark.parametrize(("task", "split"), [(arithmetic, "train"), (long_sums, "train"), (long_sums, "train-plain")])
def test_a_generated_task_leaves_steps_out_on_purpose(task: Any, split: str) -> None:
    problems = task.load(split)[:200]
    found = [find_demonstration(load_leaf(task.PROMPT), problem) for problem in problems]
    assert None not in found
    without = sum("<think></think>" in text for text in found if text)
    assert without == len(problems) if split == "train-plain" else 50 < without < 150


@pytest.mark.parametrize(("mark", "kept"), [(True, True), ("True", True), ("no", False), (None, False)])
def test_a_column_says_that_answers_stand_alone(mark: Any, kept: bool) -> None:
    found = find_demonstration(load_leaf("think_answer"), read({"question": Q, "answer": A, "without_steps": mark}))
    assert found == (f"<think></think><answer>{A}</answer>" if kept else None)


def test_a_reply_that_is_a_bare_answer_gets_the_form_with_an_empty_thought() -> None:
    bare = read({"prompt": Q, "completion": A, "answer": A})
    assert find_demonstration(load_leaf("think_answer"), bare) == f"<think></think><answer>{A}</answer>"


def test_the_most_is_what_the_reward_names() -> None:
    best = {"working_out": 12.5, "think_answer": 1.1, "reasoning_answer": 4.0, "r1_zero": 1.0, "luffy": 1.0}
    assert {name: measure_most(load_leaf(name), read(ROWS["GSM8K"])) for name in best} == best


def test_the_tags_are_those_of_the_options() -> None:
    options = [
        "working_out.reasoning_start=<how>",
        "working_out.solution_end=</what>",
        "working_out.solution_start=<what>",
    ]
    leaf = load_leaf("working_out", options)
    made = write_demonstration(leaf, read(ROWS["OpenMathReasoning"]))
    assert made.text == f"<how>{STEPS}\n\nAda has $\\boxed{{5}}$ pens.<end_working_out><what>5</what>"
    finished = {"problem": Q, "answer": A, "generated_solution": f"<how>{STEPS}<end_working_out> <what>5</what>"}
    assert write_demonstration(leaf, read(finished)) == (finished["generated_solution"], False)
    assert find_trouble(leaf, read(finished)) == ""


FINISHED = {
    "r1_zero": f" {STEPS}  </think> <answer> \\boxed{{5}} </answer>",
    "think_answer": f"<think>{STEPS}</think>\n<answer>5</answer>",
    "working_out": f"{STEPS}<end_working_out>\n<SOLUTION>5</SOLUTION>",
    "luffy": f"<think>\n{STEPS} </think>\n So \\boxed{{5}}",
    "boxed": TRACE,
    "chat": TRACE,
}


@pytest.mark.parametrize("prompt", FINISHED)
def test_what_has_the_form_stays_verbatim(prompt: str) -> None:
    """Right or wrong; a tag that the prompt opens may be missing."""
    for reply in (FINISHED[prompt], FINISHED[prompt].replace("=5", "=6").replace("5", "6")):
        leaf = load_leaf(prompt)
        text = find_demonstration(leaf, read({"prompt": Q, "completion": reply, "answer": A}))
        assert text is not None
        assert (text if text == reply else text.removeprefix(leaf.TAGS[0])) == reply


def test_a_task_of_ones_own_says_what_is_imitated() -> None:
    made = write_demonstration(load_leaf("r1_zero"), Problem("p", Q, A, meta={"completion": TRACE}))
    assert made == (TRACE, False)
    assert find_demonstration(load_leaf("r1_zero"), Problem("p", Q, A, STEPS, {"completion": None})) is None


def test_a_conversation_without_a_final_answer_stays_verbatim() -> None:
    reply = "Red, green and blue are three colors.\n\n## More\nAsk 7 painters."
    for prompt in PROMPTS:
        problem = read({"instruction": "Name three colors.", "input": "", "output": reply})
        leaf = load_leaf(prompt)
        assert write_demonstration(leaf, problem) == (reply, False)
        assert find_trouble(leaf, problem) == (OTHER_FORM if getattr(leaf, "TAGS", ()) else "")


CHATML = f"<|im_start|>user\n{Q}<|im_end|>\n<|im_start|>assistant\n"
TROUBLES: dict[str, dict[str, Any]] = {
    CUT_OFF: {"problem": Q, "expected_answer": A, "generated_solution": "<think>\nShe has"},
    OTHER_ANSWER: {"problem": Q, "expected_answer": "6", "generated_solution": TRACE},
    OTHER_FORM: {"problem": Q, "expected_answer": A, "generated_solution": "5"},
    OTHER_PROMPT: {"prompt": CHATML, "response": TRACE, "answer": A},
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_what_cannot_be_made_is_counted(trouble: str) -> None:
    problem, leaf = read(TROUBLES[trouble]), load_leaf("r1_zero")
    assert find_trouble(leaf, problem) == trouble
    data = Data("x", parse_task("x.jsonl"), "train", [problem, read(ROWS["GSM8K"])], {})
    figures = inspect_data(data, PromptView(leaf))
    assert figures["demonstrations_in_trouble"] == {trouble: 1}
    assert figures["demonstrations"] == 2 - (trouble == CUT_OFF)


def test_tools_write_each_demonstration_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[str] = []
    write = demonstrations._adapt
    monkeypatch.setattr(
        demonstrations, "_adapt", lambda leaf, one, reply: written.append(reply) or write(leaf, one, reply)
    )
    rows = [{"problem": f"{Q} {number}", "expected_answer": A, "generated_solution": TRACE} for number in range(20)]
    data = Data("x", parse_task("x.jsonl"), "train", list(map(read, rows)), {})
    inspect_data(data, PromptView(load_leaf("r1_zero")))
    assert len(written) == 20
    file, folder = tmp_path / "x.jsonl", tmp_path / "model"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for part in load.build_model("new:tiny", [TRACE], seed=0):
        part.save_pretrained(folder)
    words = [
        "--model",
        str(folder),
        "--tasks",
        str(file),
        "--data.prompt",
        "r1_zero",
        "--evaluation.tasks",
        "arithmetic",
    ]
    written.clear()
    run_dry(resolve_settings("sft", words).settings)
    assert "20 with a demonstration" in capsys.readouterr().out
    assert len(written) == 20


@pytest.mark.parametrize("prompt", ["r1_zero", "working_out"])
def test_words_around_a_removed_tag_stay_apart(prompt: str) -> None:
    reply = "<think>2+3=5</think>The answer is \\boxed{5}."
    text = find_demonstration(load_leaf(prompt), read({"problem": Q, "answer": "5", "generated_solution": reply}))
    assert text is not None
    assert "2+3=5\nThe answer is" in text


def test_a_solution_that_says_another_answer_is_in_trouble() -> None:
    leaf = load_leaf("boxed")
    steps = "2 and 3 make {0}. The answer is {0}."
    assert find_trouble(leaf, Problem("p", Q, "5", steps.format(6))) == OTHER_ANSWER
    assert not find_trouble(leaf, Problem("p", Q, "5", steps.format(5)))
    assert not find_trouble(leaf, Problem("p", Q, "5", "Of 5 apples she eats 1, which leaves 4 behind."))


def test_a_wrong_reply_keeps_its_wrong_answer() -> None:
    """In the form of the prompt, so that data with and without wrong replies can be compared."""
    text = find_demonstration(load_leaf("r1_zero"), read(TROUBLES[OTHER_ANSWER]))
    assert text is not None
    assert text.endswith("</think> <answer> 5 </answer>")
    assert not has_right_solution(read(TROUBLES[OTHER_ANSWER]))


def test_traces_get_the_form_too_and_keep_their_probabilities_only_verbatim() -> None:
    tokenizer = load.build_tokenizer([Q, TRACE], 300)
    tokenizer.chat_template = load.CHAT_TEMPLATE
    ids = tokenizer(TRACE, add_special_tokens=False)["input_ids"]
    row = {**VERL, "target": [say(TRACE)], "target_lst": [TRACE, TRACE.replace("She", "Ada")]}
    problem = read({**row, "target_ds_qwen_7b_probs": [0.5] * (len(ids) + 1)})
    kept = PromptTemplate(load_leaf("luffy"), tokenizer, (1,)).demonstrations(problem)
    assert [bool(rollout.behaviour) for rollout in kept] == [True, False]
    built = PromptTemplate(load_leaf("think_answer"), tokenizer, (1,)).demonstrations(problem)
    assert [rollout.text.endswith("</think><answer>5</answer>") for rollout in built] == [True, True]
    assert not built[0].behaviour
    reward = load_reward(("think_answer",))
    assert [grade.reward for grade in reward.grade(built)] == [1.1, 1.1]
