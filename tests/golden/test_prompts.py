"""Prompts byte for byte, what a demonstration trains, and chat templates of several kinds."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qed import model, plugins
from qed.errors import ModelError
from qed.prompts.base import Template, turn_end
from qed.types import Problem

PROBLEM = Problem("p", "Ada has 2 pens and buys 3. How many pens?", "5", "2+3=5")
TOKENIZER = model.build_tokenizer([PROBLEM.question, "0123456789 <think>2+3=5</think>"], 400)


def template(name: str = "think_answer", chat_template: str = model.CHAT_TEMPLATE) -> Template:
    TOKENIZER.chat_template = chat_template
    end = turn_end(TOKENIZER) if plugins.load("prompts", name).CHAT else None
    return Template(plugins.load("prompts", name), TOKENIZER, (end or TOKENIZER.eos_token_id,))


def test_think_answer_is_the_tokenizers_own_turn() -> None:
    made = template()
    prompt = made.prompt(PROBLEM)
    assert prompt.text == "<|user|>Ada has 2 pens and buys 3. How many pens?<|assistant|>"
    assert prompt.opened == ""
    shown = made.demonstration(PROBLEM)
    assert shown is not None
    assert shown.text == "<think>2+3=5</think><answer>5</answer>"
    assert TOKENIZER.decode(shown.output) == "<think>2+3=5</think><answer>5</answer><|end|>"
    assert TOKENIZER.decode(shown.prompt) == prompt.text


def test_r1_zero_byte_for_byte() -> None:
    made = template("r1_zero")
    assert made.prompt(PROBLEM).text == (
        "A conversation between User and Assistant. The User asks a question, and the Assistant solves it. "
        "The Assistant first thinks about the reasoning process in the mind and then provides the User with the "
        "answer. The reasoning process is enclosed within <think> </think> and answer is enclosed within <answer> "
        "</answer> tags, "
        "respectively, i.e., <think> reasoning process here </think> <answer> answer here </answer>.\n"
        "User: Ada has 2 pens and buys 3. How many pens?\n"
        "Assistant: <think>"
    )
    assert made.prompt(PROBLEM).opened == "<think>"
    shown = made.demonstration(PROBLEM)
    assert shown is not None
    assert TOKENIZER.decode(shown.output) == " 2+3=5 </think> <answer> 5 </answer><|end|>"
    assert plugins.load("rewards", "r1_zero").reward(shown).reward == 1.0
    assert made.demonstration(Problem("p", "?", "5")) is None


def test_braces_in_a_question_are_left_alone() -> None:
    text = template("r1_zero").prompt(Problem("p", r"What is {question} of \frac{1}{2}?", "1")).text
    assert r"User: What is {question} of \frac{1}{2}?" in text


@pytest.mark.parametrize("space", ["", "\n"])
def test_a_template_that_opens_the_thought_is_neither_doubled_nor_trained(space: str) -> None:
    """Reasoning models end their generation prompt in <think>: the answer's text has it, its tokens do not."""
    opening = model.CHAT_TEMPLATE.replace(
        "'<|assistant|>' }}{% endif %}", f"'<|assistant|><think>{space}' }}}}{{% endif %}}"
    )
    made = template(chat_template=opening)
    prompt = made.prompt(PROBLEM)
    assert prompt.opened == f"<think>{space}"
    shown = made.demonstration(PROBLEM)
    assert shown is not None
    assert TOKENIZER.decode(shown.output) == "2+3=5</think><answer>5</answer><|end|>"
    assert shown.text == f"<think>{space}2+3=5</think><answer>5</answer>"
    assert plugins.load("rewards", "think_answer").reward(shown).correct
    assert made.read(prompt, shown.output) == shown.text
    bare = made.demonstration(Problem("p", "?", "5", meta={"completion": "5"}))
    assert bare is not None
    assert bare.text == f"<think>{space}5"


def test_a_chat_template_that_fails_is_named() -> None:
    with pytest.raises(ModelError, match="only two turns"):
        template(chat_template="{{ raise_exception('only two turns') }}").prompt(PROBLEM)


def test_the_end_of_a_turn_is_what_the_template_writes() -> None:
    """Not the tokenizer's end of text: base models often have another one."""
    TOKENIZER.chat_template = model.CHAT_TEMPLATE.replace("<|end|>", "<|pad|>\\n")
    assert turn_end(TOKENIZER) == TOKENIZER.pad_token_id
    TOKENIZER.chat_template = None
    assert turn_end(TOKENIZER) is None
    with pytest.raises(ModelError, match="needs a chat template"):
        Template(plugins.load("prompts", "think_answer"), TOKENIZER, (1,))


def test_an_answer_is_read_up_to_its_stop_string() -> None:
    made = template("r1_zero")
    output = tuple(TOKENIZER(" 2+3=5 </think> <answer> 5 </answer> and so on")["input_ids"])
    assert made.read(made.prompt(PROBLEM), output) == "<think> 2+3=5 </think> <answer> 5 </answer>"


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_the_built_tokenizer_gives_back_what_it_was_given(text: str) -> None:
    """Byte-level, so every text has tokens; composed characters are normalised as Qwen2 does."""
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == unicodedata.normalize("NFC", text)


def test_digits_and_tags_are_single_tokens_and_survive_decoding() -> None:
    ids = TOKENIZER("<think>1234</think><answer>5</answer><|end|>")["input_ids"]
    assert len(ids) == 4 + 4 + 1 + 1
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "<think>1234</think><answer>5</answer>"


def test_a_saved_tokenizer_comes_back_the_same(tmp_path: Any) -> None:
    TOKENIZER.chat_template = model.CHAT_TEMPLATE
    network, tokenizer = model.build("new:tiny", [PROBLEM.question, "2+3=5, 7-1=6"], seed=0)
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again, back = model.load(model.ModelSettings(name=str(tmp_path)))
    text = "<|user|>Ada's 12 pens,\n\n  ok?<|assistant|><think>1-2</think>"
    assert back(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert back.chat_template == tokenizer.chat_template
    assert len(back) == len(tokenizer) == network.config.vocab_size
    assert model.end_ids(again, back, chat=True) == (tokenizer.convert_tokens_to_ids("<|end|>"),)
