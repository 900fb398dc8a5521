"""Prompts that the data has rendered already are used verbatim, and so are the replies to them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from qed.config import plugins
from qed.config.task_names import parse_task
from qed.data.prompts.base import PromptTemplate, load_leaf
from qed.data.prompts.demonstrations import find_demonstration, write_demonstration
from qed.data.selection import has_right_solution
from qed.data.sources.finished import recognize_prompt
from qed.data.sources.rows import Place
from qed.data.tasks.base import build_problems
from qed.data.tools.inspect import inspect_data
from qed.data.tools.load import Data
from qed.data.tools.prompting import PromptView
from qed.models import load
from qed.types import Problem

Q = "Ada has 2 pens and buys 3.\n\nHow many pens?"
PLAIN = [name for name in plugins.list_leaves("prompts") if not plugins.load_leaf("prompts", name).CHAT]
R1_ZERO = load_leaf("r1_zero").render(Problem("p", Q, ""), None)
CHATML = f"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{Q}<|im_end|>\n<|im_start|>assistant\n"
LLAMA = (
    f"<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n{Q}<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)
TEMPLATES = [
    CHATML,
    f"{CHATML}<think>\n",
    LLAMA,
    f"<s>[INST] {Q} [/INST]",
    f"<bos><start_of_turn>user\n{Q}<end_of_turn>\n<start_of_turn>model\n",
    f"<｜begin▁of▁sentence｜><｜User｜>{Q}<｜Assistant｜><think>\n",
    f"<|user|>\n{Q}<|end|>\n<|assistant|>\n",
    f"A chat of a user and an assistant.\nUser: {Q}\nAssistant: <think>",
    f"### Instruction:\n{Q}\n\n### Response:\n",
]


def read(row: dict[str, Any]) -> Problem:
    (problem,) = build_problems(iter([(Place("x", 1), row)]), "x", {}, Counter())
    return problem


def bind(prompt: str) -> PromptTemplate:
    tokenizer = load.build_tokenizer([R1_ZERO, "2+3=5 </think> <answer> 5 </answer>"], 600)
    tokenizer.chat_template = load.CHAT_TEMPLATE
    return PromptTemplate(load_leaf(prompt), tokenizer, (tokenizer.eos_token_id,))


def test_a_finished_pair_is_not_wrapped_again() -> None:
    reply = " 2+3=5 </think> <answer> 5 </answer>"
    problem = read({"prompt": R1_ZERO, "response": reply, "ground_truth": "5"})
    assert (problem.question, problem.answer, problem.solution) == (Q, "5", "")
    made = bind("r1_zero")
    shown = made.demonstration(problem)
    assert shown is not None
    assert (shown.prompt_text, shown.text) == (R1_ZERO, f"<think>{reply}")
    assert made.tokenizer.decode(shown.output) == f"{reply}{made.tokenizer.eos_token}"
    assert made.tokenizer.decode(shown.prompt) == R1_ZERO


def test_a_reply_to_it_in_another_form_is_put_into_its_form() -> None:
    problem = read({"prompt": R1_ZERO, "response": "2+3=5, so \\boxed{5}", "ground_truth": "5"})
    text = find_demonstration(load_leaf("r1_zero"), problem)
    assert text == "<think> 2+3=5, so \\boxed{5} </think> <answer> 5 </answer>"


@pytest.mark.parametrize("prompt", ["working_out", "think_answer", "luffy"])
def test_another_prompt_leaves_both_as_they_are(prompt: str) -> None:
    reply = " 2+3=5 </think> <answer> 5 </answer>"
    problem = read({"prompt": R1_ZERO, "response": reply, "ground_truth": "5"})
    assert bind(prompt).prompt(problem).text == R1_ZERO
    assert write_demonstration(load_leaf(prompt), problem) == (reply, False)


@pytest.mark.parametrize("text", TEMPLATES)
def test_chat_templates_are_recognised(text: str) -> None:
    problem = read({"prompt": text, "response": "It is 5.", "answer": "5"})
    assert (problem.question, problem.meta["rendered"]) == (Q, text)
    assert bind("r1_zero").prompt(problem).text == text
    assert find_demonstration(load_leaf("think_answer"), problem) == "It is 5."


@pytest.mark.parametrize("name", PLAIN)
def test_every_plain_prompt_is_recognised_by_its_text(name: str) -> None:
    found = recognize_prompt(load_leaf(name).render(Problem("p", Q, ""), None))
    assert found == (None if name in ("question_only", "few_shot") else (Q, name))


@pytest.mark.parametrize(
    "question",
    [
        Q,
        "",
        "What does <|im_start|> mean?",
        "Explain [INST] and [/INST] tags.",
        "The Assistant: a novel. Who wrote it?",
    ],
)
def test_a_question_is_no_rendered_prompt(question: str) -> None:
    assert recognize_prompt(question) is None


def test_the_end_of_a_turn_in_the_data_is_trained_once() -> None:
    made = bind("r1_zero")
    end = made.tokenizer.eos_token
    shown = made.demonstration(read({"prompt": CHATML, "response": f"It is 5.{end}\n"}))
    assert shown is not None
    assert made.tokenizer.decode(shown.output) == f"It is 5.{end}"


def test_a_chat_template_brings_its_own_special_tokens() -> None:
    """A plain prompt gets the tokenizer's BOS, a rendered one has it in its text."""
    made = bind("r1_zero")
    asked: list[bool] = []

    class Counting:
        eos_token_id = -1

        def __call__(self, texts: list[str], add_special_tokens: bool, **_: Any) -> dict[str, list[list[int]]]:
            asked.extend([add_special_tokens] * len(texts))
            return {"input_ids": [[1] for _ in texts]}

    made.tokenizer = Counting()
    made.lengths([read({"prompt": LLAMA, "answer": "5"}), read({"prompt": R1_ZERO, "answer": "5"})])
    assert asked == [False, True]


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        (" 2+3=5 </think> <answer> 5 </answer>", True),
        (" 2+3=6 </think> <answer> 6 </answer>", False),
        ("So the number of pens is 6.", False),
    ],
)
def test_correct_only_judges_the_reply_itself(reply: str, right: bool) -> None:
    assert has_right_solution(read({"prompt": R1_ZERO, "response": reply, "ground_truth": "5"})) == right
    tagged = {"question": Q, "solution": f"<think>{reply}", "answer": "5"}
    assert has_right_solution(read(tagged)) == right


@pytest.mark.parametrize(
    ("solution", "right"),
    [
        ("We add 2 and 3 and get 5. This took 3 steps.", True),
        ("The answer is 5. This took 3 steps.", True),
        ("1+1=2, 2+3=5", True),
        ("1+1=2, 2+4=6", False),
        ("6", False),
        ("The answer is 6.", False),
        ("So it is 6.", False),
        ("The answer is 6, not 5.", False),
    ],
)
def test_correct_only_reads_words_that_state_an_answer(solution: str, right: bool) -> None:
    assert has_right_solution(read({"question": Q, "solution": solution, "answer": "5"})) == right


def test_luffys_target_is_the_demonstration() -> None:
    """`prepare_sft` writes prompts in the chat template, which opens the thought, and targets without its tag."""
    target = "2+3=5\n</think>\n\nIt is \\boxed{5}."
    problem = read({"prompt": f"{CHATML}<think>\n", "target": target})
    shown = bind("luffy").demonstration(problem)
    assert shown is not None
    assert shown.text == f"<think>\n{target}"
    assert read({"prompt": Q, "target": target}).meta["completion"] == target


@pytest.mark.parametrize("rendered", [R1_ZERO, CHATML, f"\n\nHuman: {Q}\n\nAssistant:"])
def test_the_prompt_of_a_preference_is_not_wrapped_again(rendered: str) -> None:
    problem = read({"prompt": rendered, "chosen": " five", "rejected": " six"})
    assert (problem.question, problem.meta["chosen"], problem.meta["rejected"]) == (Q, " five", " six")
    assert bind("r1_zero").prompt(problem).text == rendered


def test_the_sample_has_the_tag_of_the_prompt_once_without_a_model_too() -> None:
    problem = read({"question": Q, "answer": "2+3=5\n#### 5"})
    prompt, trained = PromptView(load_leaf("r1_zero")).sample(problem)
    assert prompt.endswith("<think>")
    assert trained == " 2+3=5 </think> <answer> 5 </answer><end of answer>"


def test_inspect_says_so() -> None:
    rows = [{"prompt": R1_ZERO, "response": "a"}, {"prompt": CHATML, "response": "b"}, {"prompt": Q, "response": "c"}]
    data = Data("x", parse_task("x.jsonl"), "train", [read(row) for row in rows], {})
    view = PromptView(load_leaf("r1_zero"))
    assert inspect_data(data, view)["rendered_prompts"] == {"r1_zero": 1, "a chat template": 1}
    assert view.sample(data.problems[1])[0] == CHATML
