"""The text between two turns is that of the chat template, byte for byte, or of the plain prompt."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from qed.config import plugins
from qed.data.prompts.base import PromptTemplate
from qed.data.prompts.in_environment import PromptInEnvironment
from qed.environments.base import Environment, Message, Reply
from qed.environments.calculator import Calculator
from qed.environments.retry import Retry
from qed.errors import ModelError
from qed.models import load
from qed.models.chat_template import find_turn_end, render_chat
from qed.types import Problem

PROBLEM = Problem("p", "Ada has 2 pens and buys 3. How many pens?", "5")
ANSWERS = ("It is 4.", "<think>2+3</think><answer>4</answer>", "")
SAID = ("That answer is wrong. Try again.", "Wrong", "no\n\nno")
CHATML = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nHelp.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "<|begin|>{% for m in messages %}<|head|>{{ m.role }}<|/head|>\n\n{{ m.content | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant<|/head|>\n\n{% endif %}"
)
THINKS = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
# Of earlier answers it shows what follows the reasoning; those of this conversation stay as they were written.
FORGETS = CHATML.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")
TEMPLATES = {"qed": load.CHAT_TEMPLATE, "chatml": CHATML, "llama": LLAMA, "thinks": THINKS, "forgets": FORGETS}
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|begin|>", "<|head|>", "<|/head|>"]


def make_template(name: str, environment: Environment) -> PromptTemplate:
    """The prompt `chat` on a tokenizer with a chat template."""
    tokenizer = load.build_tokenizer([PROBLEM.question, "0123456789 That answer is wrong. Try again."], 400)
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.chat_template = TEMPLATES[name]
    leaf = PromptInEnvironment(plugins.load_leaf("prompts", "chat"), environment)
    end = find_turn_end(tokenizer)
    assert end is not None
    return PromptTemplate(leaf, tokenizer, (end,))


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("ended", [True, False])
def test_a_conversation_is_what_the_chat_template_renders(name: str, answer: str, ended: bool) -> None:
    """Whether the policy wrote the end of its turn, or a stop string ended it."""
    template = make_template(name, Retry())
    tokenizer = template.tokenizer
    prompt = template.prompt(PROBLEM)
    messages = [{"role": "user", "content": PROBLEM.question}]
    shown = prompt.text
    tokens = [*template.tokens(prompt)]
    for said in SAID:
        sampled = [*tokenizer(answer, add_special_tokens=False)["input_ids"], *([template.end] if ended else [])]
        between = template.encode_reply(Reply(said, message=True), prompt, sampled)
        tokens += [*sampled, *between]
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": said}]
        shown += answer + template_between(template, said)
    assert tokenizer.decode(tokens, skip_special_tokens=False) == shown
    if name not in ("thinks", "forgets"):  # these show earlier answers otherwise than they were written
        assert shown == render_chat(messages, tokenizer, add_generation_prompt=True)
    assert shown.endswith(prompt.opened)
    assert prompt.opened == ("<think>\n" if name == "thinks" else "")


def template_between(template: PromptTemplate, said: str) -> str:
    """What the chat template writes between two answers."""
    messages: list[dict[str, str]] = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "ANSWER"},
        {"role": "user", "content": said},
    ]
    whole = render_chat(messages, template.tokenizer, add_generation_prompt=True)
    return whole.partition("ANSWER")[2]


def test_a_plain_prompt_says_it_in_its_own_words() -> None:
    tokenizer = load.build_tokenizer([PROBLEM.question], 400)
    leaf = plugins.load_leaf("prompts", "r1_zero")
    template = PromptTemplate(PromptInEnvironment(leaf, Retry()), tokenizer, (tokenizer.eos_token_id,))
    prompt = template.prompt(PROBLEM)
    between = template.encode_reply(Reply("Wrong.", message=True), prompt, ())
    assert tokenizer.decode(between) == "\nUser: Wrong.\nAssistant: <think>"
    other = SimpleNamespace(CHAT=False, STOP=(), render=lambda problem, _: problem.question)
    template = PromptTemplate(PromptInEnvironment(other, Retry()), tokenizer, (tokenizer.eos_token_id,))
    prompt = template.prompt(PROBLEM)
    assert tokenizer.decode(template.encode_reply(Reply("Wrong.", message=True), prompt, ())) == "\n\nWrong.\n\n"
    assert tokenizer.decode(template.encode_reply(Reply("<result>", message=False), prompt, ())) == "<result>"


def test_a_template_that_drops_earlier_answers_is_refused() -> None:
    template = make_template("qed", Retry())
    template.tokenizer.chat_template = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    with pytest.raises(ModelError, match="omits earlier answers"):
        template.encode_reply(Reply("Wrong.", message=True), template.prompt(PROBLEM), ())


def test_instructions_come_before_the_question() -> None:
    template = make_template("chatml", Calculator())
    question = template.prompt(PROBLEM).text
    instruction, asked = Calculator().start(PROBLEM)
    assert instruction["content"] in question
    assert question.index(instruction["content"]) < question.index(PROBLEM.question)
    silent = make_template("chatml", Calculator(instruction=""))
    assert silent.prompt(PROBLEM) == make_template("chatml", Retry()).prompt(PROBLEM)
    read: Message = asked
    assert read["content"] == PROBLEM.question
