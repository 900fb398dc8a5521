"""Prompts byte for byte, what a demonstration trains, and chat templates of several kinds."""

from __future__ import annotations

import hashlib
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from qed.config import plugins
from qed.config.settings import DataSettings
from qed.data.prompts.base import PromptTemplate, load_leaf
from qed.data.splits import load_prompt
from qed.errors import ModelError, UsageError
from qed.models import load
from qed.models.chat_template import find_turn_end
from qed.rollout.conversation import Conversation
from qed.rollout.grader import load_grader
from qed.types import Problem, Rollout

PROBLEM = Problem("p", "Ada has 2 pens and buys 3. How many pens?", "5", "2+3=5")
TOKENIZER = load.build_tokenizer([PROBLEM.question, "0123456789 <think>2+3=5</think>"], 400)


def template(name: str = "think_answer", chat_template: str = load.CHAT_TEMPLATE) -> PromptTemplate:
    TOKENIZER.chat_template = chat_template
    end = find_turn_end(TOKENIZER) if plugins.load_leaf("prompts", name).CHAT else None
    return PromptTemplate(plugins.load_leaf("prompts", name), TOKENIZER, (end or TOKENIZER.eos_token_id,))


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
    assert plugins.load_leaf("rewards", "r1_zero").reward(shown).reward == 1.0
    assert made.demonstration(Problem("p", "?", "5")) is None


QUESTION = PROBLEM.question
# The chat template of Qwen2.5, less its tools.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
BOXED = "2+3=5\n\nThe answer is \\boxed{5}."
LUFFY_SHA256 = "a8747f1674d341836ab8fae3c29263fee4dd555f07259cdbc6dadf4104ea8926"

# A prompt, its text, and its demonstration, byte for byte; chat prompts as Qwen's tokenizer writes them.
SNAPSHOTS = [
    ("question_only", QUESTION, f"\n{BOXED}"),
    ("chat", f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n", "2+3=5\n\nThe answer is 5."),
    (
        "boxed",
        "<|im_start|>system\nPlease reason step by step, and put your final answer within \\boxed{}.<|im_end|>\n"
        f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n",
        BOXED,
    ),
    (
        "simplerl",
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        f"<|im_start|>user\n{QUESTION}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
        "<|im_end|>\n<|im_start|>assistant\n",
        BOXED,
    ),
    (
        "prime",
        "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The "
        "assistant first thinks about the reasoning process in the mind and then provides the user with the answer. "
        "The reasoning process and answer are enclosed within <think> </think> and <answer> </answer> tags, "
        "respectively, i.e., <think> reasoning process here </think> <answer> answer here </answer>. "
        f"User: {QUESTION}\n\nPresent the answer in LaTex format: \\boxed{{Your answer}}. Assistant:",
        " <think> 2+3=5 </think> <answer> \\boxed{5} </answer>",
    ),
    (
        "prime_sft",
        f"<|im_start|>user\n{QUESTION}\n\nPresent the answer in LaTex format: \\boxed{{Your answer}}<|im_end|>\n"
        "<|im_start|>assistant\n",
        BOXED,
    ),
    (
        "prime_code",
        "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The "
        "assistant first thinks about the reasoning process in the mind and then provides the user with the answer. "
        "The reasoning process and answer are enclosed within <think> </think> and <answer> </answer> tags, "
        "respectively, i.e., <think> reasoning process here </think> <answer> answer here </answer>. "
        f"User: {QUESTION}\n\nWrite Python code to solve the problem. Present the code in \n```python\nYour code\n```\n"
        "at the end.. Assistant:",
        " <think> 2+3=5 </think> <answer>\n```python\n5\n```\n</answer>",
    ),
    (
        "open_reasoner",
        "A conversation between User and Assistant. The User asks a question, and the Assistant solves it. The "
        "Assistant first thinks about the reasoning process in the mind and then provides the User with the answer. "
        "The reasoning process is enclosed within <think> </think> and answer is enclosed within <answer> </answer> "
        "tags, respectively, i.e., <think> reasoning process here </think> <answer> answer here </answer>. User: You "
        "must put your answer inside <answer> </answer> tags, i.e., <answer> answer here </answer>. And your final "
        f"answer will be extracted automatically by the \\boxed{{}} tag.\nThis is the problem:\n{QUESTION}\n"
        "Assistant: <think>",
        " 2+3=5 </think> <answer> \\boxed{5} </answer>",
    ),
    (
        "chatml",
        "<|im_start|>system\nPlease reason step by step, and put your final answer within \\boxed{}.<|im_end|>\n"
        f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n",
        BOXED,
    ),
    (
        "luffy_no_system",
        f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n",
        "<think>\n2+3=5\n</think>\n\nThe answer is \\boxed{5}.",
    ),
    (
        "alpaca",
        "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
        f"### Instruction:\n{QUESTION}\n\n### Response:\n",
        "2+3=5\n\nThe answer is 5.",
    ),
    (
        "reasoning_answer",
        "<|im_start|>system\nWork the problem out first, then give the result and nothing else. Write each tag on a "
        "line of its own:\n<reasoning>\nyour steps\n</reasoning>\n<answer>\nthe result\n</answer>\n<|im_end|>\n"
        f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n",
        "<reasoning>\n2+3=5\n</reasoning>\n<answer>\n5\n</answer>\n",
    ),
    (
        "working_out",
        "Solve the problem below. Show how you work it out between <start_working_out> and <end_working_out>, then "
        f"write the result between <SOLUTION> and </SOLUTION>.\n\n{QUESTION}\n<start_working_out>",
        "2+3=5<end_working_out><SOLUTION>5</SOLUTION>",
    ),
]
# Long ones by the SHA-256 of their text.
DIGESTS = {
    "luffy": "a96054cafa96e873ce269fd069e43e1b7c4d6d95e1a00ceec683333fb39e6a99",
    "few_shot_gsm8k": "cbb42eefbdb6f2e97870b7ae193a0332fa0d1799a54c978b1209624a2669feda",
    "few_shot_minerva": "9a95af50c6d89c4193a2f2638af8fa98eaf5f7eae32fce3bedcf6af5ffc1146a",
    "zero_shot": "76d02648db2fcf76ac5f967ae482482c2972cf5bc31578c3691f27a6d1a1d605",
    "few_shot_mmlu": "4ef44c1407cb2c1f16a622035c195c1aa8f07dfdc85137e35643a1c108980b1d",
}


@pytest.mark.parametrize(("name", "text", "demonstration"), SNAPSHOTS, ids=[case[0] for case in SNAPSHOTS])
def test_a_prompt_byte_for_byte(name: str, text: str, demonstration: str) -> None:
    made = template(name, CHATML)
    assert made.prompt(PROBLEM).text == text
    shown = made.demonstration(PROBLEM)
    assert shown is not None
    assert shown.text.removeprefix(made.prompt(PROBLEM).opened) == demonstration


@pytest.mark.parametrize("name", DIGESTS)
def test_a_long_prompt_byte_for_byte(name: str) -> None:
    text = template(name, CHATML).prompt(PROBLEM).text
    assert hashlib.sha256(text.encode()).hexdigest() == DIGESTS[name], text


@pytest.mark.parametrize("name", ["prime_sft", "prime_code", "open_reasoner", "chatml"])
def test_a_demonstration_of_luffys_templates_earns_the_whole_reward(name: str) -> None:
    """With a tokenizer of any chat template."""
    shown = template(name).demonstration(PROBLEM)
    assert shown is not None
    assert plugins.load_leaf("rewards", plugins.load_leaf("prompts", name).REWARD).reward(shown).reward == 1.0


def test_the_zero_shot_prompt_asks_mmlu_as_the_course_does() -> None:
    meta = {"choices": ("4", "{options}", "6", "8"), "options": "ABCD", "subject": "number theory"}
    made = template("zero_shot", CHATML)
    problem = Problem("p", "Which is prime?\n\nA) 4\nB) {options}\nC) 6\nD) 8", "B", meta=meta)
    assert made.prompt(problem).text.endswith(
        "```Answer the following multiple choice question about number theory. Respond with a single sentence of the "
        'form "The correct answer is _", filling the blank with the letter corresponding to the correct answer (i.e., '
        "A, B, C or D).\n\nQuestion: Which is prime?\nA. 4\nB. {options}\nC. 6\nD. 8\nAnswer:```\n\n# Answer:\n```"
    )
    shown = made.demonstration(problem)
    assert shown is not None
    assert plugins.load_leaf("rewards", "multiple_choice").reward(shown).correct


def test_every_prompt_has_a_snapshot() -> None:
    # few_shot has the examples of a benchmark: tests/golden/test_few_shot.py.
    named = {"r1_zero", "think_answer", "few_shot", *DIGESTS, *(name for name, _, _ in SNAPSHOTS)}
    assert named == set(plugins.list_leaves("prompts"))


def test_luffys_words_are_those_of_its_data(shared: Path) -> None:
    system = plugins.load_leaf("prompts", "luffy").SYSTEM
    assert (len(system), hashlib.sha256(system.encode()).hexdigest()) == (762, LUFFY_SHA256)
    rows = Dataset.from_parquet(str(shared / "data" / "luffy" / "valid.parquet"), keep_in_memory=True)
    assert {row["prompt"][0]["content"] for row in rows} == {system}


@pytest.mark.parametrize("name", plugins.list_leaves("prompts"))
def test_every_prompt_keeps_its_promises(name: str) -> None:
    """The question stands in it as it is; a demonstration is right, and nothing of it is behind a stop string."""
    made = template(name, CHATML)
    odd = Problem("p", r"What is {question} of {instruction} \frac{1}{2} %s?", "1", "so")
    assert odd.question in made.prompt(odd).text
    shown = made.demonstration(PROBLEM)
    assert shown is not None
    assert made.read(made.prompt(PROBLEM), shown.output) == shown.text
    without = made.demonstration(Problem("p", "?", "5"))
    assert without is None or "5" in without.text


@pytest.mark.parametrize(
    ("name", "tag"), [("reasoning_answer", "<reasoning>\n"), ("luffy", "<think>\n"), ("boxed", "<think>\n\n")]
)
def test_a_template_may_open_the_prompts_own_tag(name: str, tag: str) -> None:
    """It is given, so it is in the answer's text, and neither sampled nor trained a second time."""
    opening = CHATML.replace("assistant\\n' }}", f"assistant\\n' + {tag!r} }}}}")
    made = template(name, opening)
    assert made.prompt(PROBLEM).opened == tag
    shown = made.demonstration(PROBLEM)
    assert shown is not None
    assert shown.text.startswith(tag)
    assert shown.text.count(tag.strip()) == 1
    assert tag.strip() not in TOKENIZER.decode(shown.output)
    traced = made.demonstration(Problem("p", "?", "5", meta={"completion": f"{tag}2+3"}))
    assert traced is not None
    assert TOKENIZER.decode(traced.output).startswith("2+3")


def test_the_tags_of_a_working_out_can_be_chosen() -> None:
    options = ["working_out.reasoning_start=<think>", "working_out.reasoning_end=</think>", "boxed.tag=<a>"]
    made = PromptTemplate(load_leaf("working_out", options), TOKENIZER, (1,))
    assert made.prompt(PROBLEM).text.endswith("\n<think>")
    assert made.prompt(PROBLEM).opened == "<think>"
    shown = made.demonstration(PROBLEM)
    assert shown is not None
    assert shown.text == "<think>2+3=5</think><SOLUTION>5</SOLUTION>"
    assert PromptTemplate(load_leaf("working_out", ["working_out.solution_end=END"]), TOKENIZER, (1,)).stop == ("END",)
    with pytest.raises(UsageError, match="Did you mean 'reasoning_start'"):
        load_leaf("working_out", ["working_out.reasoning_strat=<a>"])
    with pytest.raises(UsageError, match="has no option 'tag'"):
        load_leaf("boxed", ["boxed.tag=<a>"])
    with pytest.raises(UsageError, match=r"NAME\.FIELD=VALUE"):
        load_leaf("working_out", ["reasoning_start"])


@pytest.mark.parametrize("field", ["reasoning_start", "reasoning_end", "solution_start", "solution_end"])
@pytest.mark.parametrize("dash", [False, True])
def test_an_empty_tag_is_refused(field: str, dash: bool) -> None:
    """Every text has it: an empty stop string would end an answer behind its first token."""
    name = "working-out" if dash else "working_out"
    with pytest.raises(UsageError, match=r"stop string of the prompt working_out is empty.*[ ]''[.,]"):
        load_leaf("working_out", [f"{name}.{field}="])


def test_a_prompt_of_ones_own_has_tags_and_stop_strings_too(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    text = "CHAT, REWARD, STOP, TAGS = False, 'accuracy', {stop!r}, {tags!r}\nrender = demonstration = print\n"
    for stop, tags in ((("",), ()), ((), ("<a>", ""))):
        file.write_text(text.format(stop=stop, tags=tags))
        with pytest.raises(UsageError, match="is empty"):
            load_leaf(str(file))
    file.write_text(text.format(stop=("END",), tags=("<a>", "</a>")))
    assert load_leaf(str(file)).STOP == ("END",)


@pytest.mark.parametrize(
    "tags",
    [
        "solution_end=<t> reasoning_start=<t>",
        "reasoning_start=## reasoning_end=##",
        "solution_start=SOLUTION solution_end=/SOLUTION",
    ],
)
def test_tags_that_cannot_be_told_apart_are_refused(tags: str) -> None:
    """A reward counts each, and searches for one behind another."""
    with pytest.raises(UsageError, match="of the prompt working_out cannot be told apart"):
        load_leaf("working_out", [f"working_out.{tag}" for tag in tags.split()])


@pytest.mark.parametrize("reward", ["auto", "0.5*working_out", "2*auto"])
@pytest.mark.parametrize("name", ["working_out", "working-out"])
def test_the_reward_has_the_tags_of_the_prompt(name: str, reward: str) -> None:
    """Also with a weight, and however the name is written: a right answer in the prompt's tags is right."""
    options = (f"{name}.solution_start=<what>", f"{name}.solution_end=</what>")
    data = DataSettings(tasks=("arithmetic",), prompt=name, prompt_options=options, reward=(reward, "0*length"))
    text = load_prompt(data).demonstration(PROBLEM)
    grader = load_grader(data, 100)
    assert grader([[Rollout(PROBLEM, (), (), (), text, "stop")]])[0][0].correct
    grader.close()


def test_an_option_of_no_prompt_is_refused() -> None:
    message = r"The prompt option 'workingout\.reasoning_start=<t>': There is no 'workingout' .*mean 'working_out'"
    for name in ("working_out", "boxed"):
        with pytest.raises(UsageError, match=message):
            load_leaf(name, ["workingout.reasoning_start=<t>"])
    with pytest.raises(UsageError, match=r"think_answer has no option 'reasoning_start'\. There are: none"):
        load_leaf("think_answer", ["think_answer.reasoning_start=<t>"])
    # A file of the user's may be elsewhere by now, and is not the prompt in use.
    others = ["working-out.solution_end=", "own.module.tag=<t>", "./none.py.tag=<t>"]
    assert load_leaf("boxed", others) is load_leaf("boxed")
    assert load_leaf("working_out", [" working-out.solution_end=END"]).STOP == ("END",)


def test_a_working_out_is_also_a_chat_template() -> None:
    """What a checkpoint is published with asks in the same words as the prompt it was trained on."""
    leaf = load_leaf("working_out", ['working_out.reasoning_start=<"how" «🤔»>'])
    TOKENIZER.chat_template = leaf.chat_template
    turn = [{"role": "user", "content": QUESTION}]
    text = TOKENIZER.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    assert text == leaf.render(PROBLEM, TOKENIZER)
    turn.append({"role": "assistant", "content": "5"})
    assert TOKENIZER.apply_chat_template(turn, tokenize=False).endswith(f"{QUESTION}\n5{TOKENIZER.eos_token}")


def test_a_box_is_not_written_twice() -> None:
    """MATH's solutions have theirs."""
    made = template("boxed", CHATML)
    shown = made.demonstration(Problem("p", "?", "5", r"So it is $\boxed{5}$."))
    assert shown is not None
    assert shown.text == r"So it is $\boxed{5}$."


def test_braces_in_a_question_are_left_alone() -> None:
    text = template("r1_zero").prompt(Problem("p", r"What is {question} of \frac{1}{2}?", "1")).text
    assert r"User: What is {question} of \frac{1}{2}?" in text


@pytest.mark.parametrize("space", ["", "\n"])
def test_a_template_that_opens_the_thought_is_neither_doubled_nor_trained(space: str) -> None:
    """Reasoning models end their generation prompt in <think>: the answer's text has it, its tokens do not."""
    opening = load.CHAT_TEMPLATE.replace(
        "'<|assistant|>' }}{% endif %}", f"'<|assistant|><think>{space}' }}}}{{% endif %}}"
    )
    made = template(chat_template=opening)
    prompt = made.prompt(PROBLEM)
    assert prompt.opened == f"<think>{space}"
    shown = made.demonstration(PROBLEM)
    assert shown is not None
    assert TOKENIZER.decode(shown.output) == "2+3=5</think><answer>5</answer><|end|>"
    assert shown.text == f"<think>{space}2+3=5</think><answer>5</answer>"
    assert plugins.load_leaf("rewards", "think_answer").reward(shown).correct
    assert made.read(prompt, shown.output) == shown.text
    bare = made.demonstration(Problem("p", "?", "5", meta={"completion": "5"}))
    assert bare is not None
    assert bare.text == f"<think>{space}5"


def test_a_chat_template_that_fails_is_named() -> None:
    with pytest.raises(ModelError, match="only two turns"):
        template(chat_template="{{ raise_exception('only two turns') }}").prompt(PROBLEM)


def test_the_end_of_a_turn_is_what_the_template_writes() -> None:
    """Not the tokenizer's end of text: base models often have another one."""
    TOKENIZER.chat_template = load.CHAT_TEMPLATE.replace("<|end|>", "<|pad|>\\n")
    assert find_turn_end(TOKENIZER) == TOKENIZER.pad_token_id
    TOKENIZER.chat_template = None
    assert find_turn_end(TOKENIZER) is None
    with pytest.raises(ModelError, match="needs a chat template"):
        PromptTemplate(plugins.load_leaf("prompts", "think_answer"), TOKENIZER, (1,))


def test_a_template_that_leaves_answers_out_has_no_end_of_a_turn() -> None:
    TOKENIZER.chat_template = "Asked now:{{ messages[0]['content'] }}<|pad|>"
    assert find_turn_end(TOKENIZER) is None
    TOKENIZER.chat_template = None


def test_an_answer_is_read_up_to_its_stop_string() -> None:
    made = template("r1_zero")
    output = tuple(TOKENIZER(" 2+3=5 </think> <answer> 5 </answer> and so on")["input_ids"])
    assert made.read(made.prompt(PROBLEM), output) == "<think> 2+3=5 </think> <answer> 5 </answer>"


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_the_built_tokenizer_gives_back_what_it_was_given(text: str) -> None:
    """Byte-level, so every text has tokens; composed characters are normalised as Qwen2 does.

    The text of a special token is that token, which decoding leaves out.
    """
    assume(not any(token in text for token in TOKENIZER.all_special_tokens))
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == unicodedata.normalize("NFC", text)


def test_digits_and_tags_are_single_tokens_and_survive_decoding() -> None:
    ids = TOKENIZER("<think>1234</think><answer>5</answer><|end|>")["input_ids"]
    assert len(ids) == 4 + 4 + 1 + 1
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "<think>1234</think><answer>5</answer>"


def test_a_saved_tokenizer_comes_back_the_same(tmp_path: Any) -> None:
    TOKENIZER.chat_template = load.CHAT_TEMPLATE
    network, tokenizer = load.build_model("new:tiny", [PROBLEM.question, "2+3=5, 7-1=6"], seed=0)
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again, back = load.load_model(load.ModelSettings(name=str(tmp_path)))
    text = "<|user|>Ada's 12 pens,\n\n  ok?<|assistant|><think>1-2</think>"
    assert back(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert back.chat_template == tokenizer.chat_template
    assert len(back) == len(tokenizer) == network.config.vocab_size
    assert load.find_end_ids(again, back, chat=True) == (tokenizer.convert_tokens_to_ids("<|end|>"),)


THINKING = "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking is false %}<none>{% endif %}"


def test_the_chat_template_gets_its_options() -> None:
    data = DataSettings(prompt="chat", chat_template_options=("enable_thinking=false",))
    TOKENIZER.chat_template = THINKING
    try:
        assert load_prompt(data).render(PROBLEM, TOKENIZER) == f"{PROBLEM.question}<none>"
        other = replace(data, chat_template_options=("enable_thinking=true",), system_prompt="Be brief.")
        assert load_prompt(other).render(PROBLEM, TOKENIZER) == f"Be brief.{PROBLEM.question}"
        conversation = Conversation(PromptTemplate(load_prompt(data), TOKENIZER, (1,)))
        assert conversation.ask("one").text == "one<none>"
        conversation.answer("two")
        assert conversation.ask("three").text == "onetwothree<none>"
    finally:
        TOKENIZER.chat_template = load.CHAT_TEMPLATE


@pytest.mark.parametrize(
    ("prompt", "option", "words"),
    [
        ("chat", "enable_thnking=false", "does not use enable_thnking"),
        ("chat", "enable_thinking", "must be NAME=VALUE"),
        ("r1_zero", "enable_thinking=false", "r1_zero is plain text"),
    ],
)
def test_an_option_of_the_chat_template_without_effect_is_refused(prompt: str, option: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_prompt(DataSettings(prompt=prompt, chat_template_options=(option,))).render(PROBLEM, TOKENIZER)
