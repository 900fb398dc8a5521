"""`qed chat`: with the run's own prompt, over turns, on a pipe and in a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qed.cli import chat_policy
from qed.cli.chat_policy import PolicyPartner
from qed.cli.chat_session import ChatSession
from qed.data.prompts.base import PromptTemplate, load_leaf
from qed.models.load import build_model
from qed.rollout.conversation import Conversation
from qed.sampling.base import Sampling
from qed.types import Completion

pytestmark = pytest.mark.xdist_group("adapters")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_model("new:tiny", ["one two 1 2 3"], seed=0)[1]


def converse(tokenizer: Any, prompt: str, system: str = "") -> Conversation:
    return Conversation(PromptTemplate(load_leaf(prompt), tokenizer, (tokenizer.eos_token_id,)), system)


def test_a_chat_prompt_gets_all_turns_with_what_it_adds_to_each(tokenizer: Any) -> None:
    plain = converse(tokenizer, "chat")
    assert plain.has_memory
    assert plain.ask("1?").text == "<|user|>1?<|assistant|>"
    plain.answer("<think>a</think>2")
    # A system message has no sign of its own in this template.
    assert plain.ask("2?").text == "<|user|>1?<|assistant|><think>a</think>2<|end|><|user|>2?<|assistant|>"
    plain.forget_question()
    assert plain.ask("3?").text.endswith("2<|end|><|user|>3?<|assistant|>")
    plain.reset()
    assert plain.ask("4?").text == "<|user|>4?<|assistant|>"
    boxed = converse(tokenizer, "boxed")
    first = boxed.ask("1?").text
    assert first == boxed.template.leaf.render(SimpleNamespace(question="1?"), tokenizer)
    boxed.answer("2")
    assert boxed.ask("2?").text == first + "2<|end|><|user|>2?<|assistant|>"
    assert converse(tokenizer, "boxed", "Be brief.").ask("1?").text == "<|user|>Be brief.<|user|>1?<|assistant|>"


def test_what_a_prompt_opens_is_part_of_the_answer(tokenizer: Any) -> None:
    opened = PromptTemplate(load_leaf("chat"), tokenizer, (tokenizer.eos_token_id,))
    opened.tokenizer = SimpleNamespace(
        chat_template="x", apply_chat_template=lambda messages, **_: f"{len(messages)}<think>\n"
    )
    assert Conversation(opened).ask("1?").opened == "<think>\n"


def test_a_plain_prompt_gets_each_question_alone(tokenizer: Any) -> None:
    for name in ("r1_zero", "working_out", "question_only"):
        conversation = converse(tokenizer, name)
        assert not conversation.has_memory
        texts = []
        for _ in range(2):
            texts.append(conversation.ask("1?").text)
            conversation.answer("2")
        assert texts[0] == texts[1] == conversation.template.leaf.render(SimpleNamespace(question="1?"), tokenizer)


class Speaker:
    """A sampler that says the same to every question, token by token."""

    def __init__(self, tokenizer: Any, text: str, stop_after: int = 1000) -> None:
        self.tokens = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
        self.stop_after, self.seeds = stop_after, list[int]()

    def speak(
        self, _: Any, prompt: Any, seed: int, sampling: Sampling, show: Callable[[list[int]], None]
    ) -> Completion:
        self.seeds.append(seed)
        for end in range(1, len(self.tokens) + 1):
            show(list(self.tokens[:end]))
            if end == self.stop_after:
                raise KeyboardInterrupt
        return Completion(self.tokens, (), "stop")


@pytest.fixture
def talk(tokenizer: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Holds a conversation at a terminal, and returns what is shown."""

    def hold(
        speaker: Speaker, *lines: Any, prompt: str = "think_answer", window: int = 500, thinking: bool = False
    ) -> str:
        questions = iter(lines)

        def read(sign: str) -> str:
            line = next(questions, EOFError())
            if isinstance(line, BaseException):
                raise line
            return str(line)

        monkeypatch.setattr("builtins.input", read)
        monkeypatch.setattr(chat_policy, "_sample", speaker.speak)
        monkeypatch.setattr(chat_policy, "read_window", lambda _: window)
        conversation = converse(tokenizer, prompt)
        policy = SimpleNamespace(model=None, template=conversation.template, sampler=None)
        sampling = Sampling(1.0, 50, conversation.template.stop)
        session = ChatSession(PolicyPartner(policy, conversation, sampling, 0), thinking)  # type: ignore[arg-type]
        session.interactive = True
        capsys.readouterr()
        session.run()
        return capsys.readouterr().out

    return hold


def test_commands(talk: Callable[..., str], tokenizer: Any, tmp_path: Path) -> None:
    speaker = Speaker(tokenizer, "<think>1 and 1</think><answer>2 € 👍</answer>")
    saved, text = tmp_path / "a.jsonl", tmp_path / "a.txt"
    shown = talk(
        speaker,
        *("/save", f"/save {saved}", "1+1?", "", f"/save {saved}", f"/save {saved}", f"/save {text}"),
        *("/thinking", "again?", "/help", "/nonsense", "/reset", "/exit", "never asked"),
    ).splitlines()
    assert shown[:3] == ["/save needs the name of a file.", "There is nothing to save yet.", "2 € 👍"]
    assert shown[3:6] == [f"The conversation is in {path}." for path in (saved, saved, text)]
    assert shown[6:8] == ["The reasoning is shown.", "<think>1 and 1</think><answer>2 € 👍</answer>"]
    assert "/reset       forget the conversation" in shown
    assert "There is no command /nonsense." in shown
    assert shown[-1] == "The conversation is forgotten."
    assert json.loads(saved.read_text()) == {
        "messages": [
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "content": "<think>1 and 1</think><answer>2 € 👍</answer>"},
        ]
    }
    assert text.read_text().startswith("> 1+1?\n\n<think>")
    assert len(set(speaker.seeds)) == 2
    text.write_text("precious")
    assert "already exists" in talk(speaker, "1?", f"/save {text}")
    assert "cannot be written: Not a directory" in talk(speaker, "1?", f"/save {text}/x")


def test_several_lines_are_one_question(talk: Callable[..., str], tokenizer: Any, tmp_path: Path) -> None:
    talk(Speaker(tokenizer, "2"), '"""a', "b", 'c"""', '"""d"""', f"/save {tmp_path / 'a.jsonl'}")
    messages = json.loads((tmp_path / "a.jsonl").read_text())["messages"]
    assert [message["content"] for message in messages] == ["a\nb\nc", "2", "d", "2"]


def test_ctrl_c_stops_an_answer_and_not_the_conversation(
    talk: Callable[..., str], tokenizer: Any, tmp_path: Path
) -> None:
    shown = talk(
        Speaker(tokenizer, "1 2 3 1 2 3", stop_after=5), "1?", KeyboardInterrupt(), f"/save {tmp_path / 'a.jsonl'}"
    )
    assert "(stopped)" in shown
    assert "press Ctrl-D or type /exit." in shown
    assert json.loads((tmp_path / "a.jsonl").read_text())["messages"][1]["content"] in "1 2 3 1 2 3"


def test_what_hides_everything_or_does_not_fit_is_said(talk: Callable[..., str], tokenizer: Any) -> None:
    assert "nothing but reasoning and tags, which /thinking shows" in talk(Speaker(tokenizer, "<think>1"), "1?")
    assert "window of 3 tokens is full: /reset" in talk(Speaker(tokenizer, "1"), "1 2 3 1 2 3?", window=3)


def test_a_pipe_gets_the_answers_alone(
    qed: Callable[..., Any], lora_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments in ([], ["--show-thinking"], ["--prompt", "r1_zero", "--checkpoint", "1"]):
        outs = []
        for _ in range(2):
            monkeypatch.setattr("sys.stdin", io.StringIO("1+1?\n\n2+2?\n/exit\n3?\n"))
            done = qed("chat", lora_run, "--max-tokens", 6, *arguments)
            assert done.code == 0, done.err
            outs.append(done.out)
        assert outs[0] == outs[1]
        assert "\x1b" not in outs[0]
        assert "> " not in outs[0]
    adapter = lora_run / "final" / "adapter"
    monkeypatch.setattr("sys.stdin", io.StringIO("1+1?\n"))
    assert qed("chat", adapter, "--max-tokens", 6, "--system", "Be brief.").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["RUN", "--temperature", -1], "--temperature must be 0, or at least 1e-6"),
        (["RUN", "--checkpoint", "9"], "no checkpoint of step 9"),
        (["RUN", "--prompt", "r1_zero", "--system", "x"], "needs a prompt with a chat template"),
        (["RUNN"], "Did you mean"),
        (["/nowhere/model"], "There is no run or model /nowhere/model"),
        (["new:tiny"], "has no trained weights"),
        (["RUN/final/hf", "--checkpoint", "best"], "--checkpoint is for a run"),
    ],
)
def test_mistakes_are_said(qed: Callable[..., Any], lora_run: Path, arguments: list[Any], words: str) -> None:
    done = qed("chat", *(str(word).replace("RUN", str(lora_run)) for word in arguments))
    assert done.code in (2, 3)
    assert words in done.err


@pytest.fixture
def terminal(lora_run: Path) -> Iterator[Callable[..., str]]:
    """`qed chat` in a terminal of its own: sends keys, and reads until some text has come."""
    parent, child = pty.openpty()
    arguments = [sys.executable, "-m", "qed", "chat", str(lora_run), "--max-tokens", "480", "--prompt", "chat"]
    process = subprocess.Popen(
        arguments, stdin=child, stdout=child, stderr=child, start_new_session=True, env={**os.environ, "TERM": "dumb"}
    )
    os.close(child)
    shown, cursor = "", 0

    def send(keys: str, until: str, at_most: float = 60.0) -> str:
        """Return what has been shown since the last call, up to the pattern that is waited for."""
        nonlocal shown, cursor
        os.write(parent, keys.encode())
        deadline, start = time.monotonic() + at_most, cursor
        while (found := re.compile(until).search(shown, start)) is None:
            assert time.monotonic() < deadline, shown
            if select.select([parent], [], [], 0.2)[0]:
                shown += os.read(parent, 4096).decode("utf-8", "replace")
        cursor = found.end()
        return shown[start:cursor]

    send.process = process  # type: ignore[attr-defined]
    yield send
    if process.poll() is None:
        process.kill()
    process.wait()
    os.close(parent)


@pytest.mark.slow
def test_in_a_terminal(terminal: Any) -> None:
    terminal("", "/help lists the commands")
    terminal("", "> ")
    terminal("1+1?\n", r"1\+1\?\r?\n.")  # the answer has begun
    os.kill(terminal.process.pid, signal.SIGINT)
    terminal("", r"stopped\)|press Ctrl-D or type")  # on a fast machine the answer may have ended before
    terminal("", "\n> ")
    terminal("/help\n", "Ctrl-C stops an answer")
    terminal("", "\n> ")
    terminal("\x04", "\n")
    assert terminal.process.wait(30) == 0
