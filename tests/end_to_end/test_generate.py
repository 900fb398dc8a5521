"""`qed generate`: a file of prompts answered, continued where it stopped, and never half a line."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qed.data.prompts import question_only
from qed.data.prompts.base import PromptTemplate
from qed.evaluation import generate, store
from qed.models.load import build_tokenizer
from qed.runs.run import read_lines

pytestmark = pytest.mark.xdist_group("adapters")
PROMPTS = ["1+1?", "2+2?", "one two?", "3+3?"]


@pytest.fixture
def ask(qed: Callable[..., Any], lora_run: Path, tmp_path: Path) -> Callable[..., Any]:
    """Answers the prompts of a file into another one."""

    def call(*arguments: Any, file: str = "prompts.txt", out: str = "out.jsonl") -> Any:
        return qed("generate", lora_run, tmp_path / file, "--out", tmp_path / out, "--max-tokens", 6, *arguments)

    (tmp_path / "prompts.txt").write_text("\n".join([PROMPTS[0], "", *PROMPTS[1:]]) + "\n")
    return call


def test_every_answer_is_a_row(ask: Callable[..., Any], qed: Callable[..., Any], tmp_path: Path) -> None:
    rows = [{"question": text, "answer": "2", "level": n} for n, text in enumerate(PROMPTS)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = ask("--n", 2, "--json", file="data.jsonl")
    assert done.code == 0, done.err
    assert done.result == {"out": str(tmp_path / "out.jsonl"), "answers": 8, "left_out": {}}
    written = read_lines(tmp_path / "out.jsonl")
    assert [(row["row"], row["sample"], row["prompt"], row["level"]) for row in written] == [
        (n + 1, sample, text, n) for n, text in enumerate(PROMPTS) for sample in (0, 1)
    ]
    assert {row["finish_reason"] for row in written} <= {"stop", "length"}
    assert all(1 <= row["n_tokens"] <= 6 for row in written)
    # What reads answers elsewhere takes them.
    scored = qed("evaluate", "--responses", tmp_path / "out.jsonl", "--response-key", "completion", "--json")
    assert scored.code == 0, scored.err
    assert scored.result["tasks"]["out"]["answers"] == 8


def test_a_rendered_prompt_is_sent_as_it_is(tmp_path: Path) -> None:
    text = "<|im_start|>user\nOne or two?<|im_end|>\n<|im_start|>assistant\n"
    (tmp_path / "data.jsonl").write_text(json.dumps({"prompt": text}) + "\n" + json.dumps({"prompt": "1+1?"}) + "\n")
    rendered, bare = generate.read_questions(tmp_path / "data.jsonl", "", Counter())
    assert (rendered.text, rendered.rendered, bare.rendered) == ("One or two?", text, "")
    tokenizer = build_tokenizer([text, "1+1?"], 300)
    template = PromptTemplate(question_only, tokenizer, (tokenizer.eos_token_id,))
    assert generate._Asked(rendered, [0], template).prompt.text == text
    assert "1+1?" in generate._Asked(bare, [0], template).prompt.text


def test_an_interrupted_file_goes_on_and_ends_as_if_uninterrupted(
    ask: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "CHUNK", 1)
    assert ask("--n", 2).code == 0
    whole = (tmp_path / "out.jsonl").read_bytes()
    really, calls = store.write_bytes, []

    def fail(path: Path, content: bytes, append: bool = False) -> None:
        calls.append(content)
        if len(calls) == 3:
            really(path, content[: len(content) // 2], append)
            raise OSError(28, "No space left on device")
        if len(calls) == 4:
            raise KeyboardInterrupt
        really(path, content, append)

    monkeypatch.setattr(store, "write_bytes", fail)
    full = ask("--n", 2, out="cut.jsonl")
    assert (full.code, "Earlier answers are kept" in full.err) == (1, True)
    assert whole.startswith((tmp_path / "cut.jsonl").read_bytes())
    stopped = ask("--n", 2, out="cut.jsonl")
    assert (stopped.code, "the same command continues" in stopped.err) == (130, True)
    # A power failure may leave half a line.
    with (tmp_path / "cut.jsonl").open("ab") as file:
        file.write(b'{"row": 3, "sam')
    done = ask("--n", 2, out="cut.jsonl")
    assert done.code == 0, done.err
    assert "4 of 8 answers are already there." in done.out
    assert (tmp_path / "cut.jsonl").read_bytes() == whole
    assert "8 of 8 answers are already there." in ask("--n", 2, out="cut.jsonl").out


def test_more_answers_are_added(ask: Callable[..., Any], tmp_path: Path) -> None:
    assert ask("--temperature", 1).code == 0
    first = (tmp_path / "out.jsonl").read_bytes()
    assert ask("--temperature", 1, "--n", 3).code == 0
    assert (tmp_path / "out.jsonl").read_bytes().startswith(first)
    rows = read_lines(tmp_path / "out.jsonl")
    assert sorted((row["row"], row["sample"]) for row in rows) == [(n, s) for n in (1, 3, 4, 5) for s in range(3)]
    assert len({row["completion"] for row in rows}) > 4


def test_answers_of_other_settings_or_prompts_are_not_mixed(ask: Callable[..., Any], tmp_path: Path) -> None:
    assert ask("--limit", 2).code == 0
    other = ask("--temperature", 1)
    assert (other.code, "temperature 0.6 there and 1.0 here" in other.err) == (2, True)
    (tmp_path / "prompts.txt").write_text("another\n")
    changed = ask()
    assert (changed.code, "Row 1 is not the prompt" in changed.err) == (3, True)
    assert ask("--overwrite").code == 0
    (tmp_path / "mine.jsonl").write_text("{}\n")
    assert "was not written by this command" in ask(out="mine.jsonl").err
    (tmp_path / "data.jsonl").write_text('{"prompt": "1?"}\n')
    assert "is the prompt file itself" in ask("--overwrite", file="data.jsonl", out="data.jsonl").err
    assert (tmp_path / "data.jsonl").read_text() == '{"prompt": "1?"}\n'


def test_any_file_of_prompts_is_read(ask: Callable[..., Any], tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "1?"}]
    turns = [*messages, {"role": "assistant", "content": "2"}, {"role": "user", "content": "3?"}]
    rows = [{"prompt": "1?"}, {"prompt": messages}, {"prompt": turns}, {"prompt": "5 " * 600}]
    (tmp_path / "mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = ask(file="mixed.jsonl", out="mixed.out.jsonl")
    assert done.code == 0, done.err
    assert [row["prompt"] for row in read_lines(tmp_path / "mixed.out.jsonl")] == ["1?", "1?"]
    assert "Left out 1 conversations that do not ask one question." in done.out
    assert "Left out 1 prompts longer than the model's window." in done.out
    assert "indexing errors" not in done.err  # as transformers warns
    (tmp_path / "own.csv").write_text("frage,completion\n1+1?,x\n")
    own = ask("--question-key", "frage", file="own.csv", out="own.jsonl")
    assert "replaced by those of the answers: completion" in own.out
    (row,) = read_lines(tmp_path / "own.jsonl")
    assert (row["prompt"], row["frage"]) == ("1+1?", "1+1?")
    for name, text, words in (
        ("empty.txt", "\n\n", "has no prompt"),
        ("broken.jsonl", '{"prompt": "1?"}\n{"pro', "broken.jsonl, row 2: broken JSON"),
        ("other.jsonl", '{"frage": "1?"}\n', "the columns are frage"),
        ("prob.csv", "prob,ans\n1+1,2\n", "Name yours with --question-key YOURS, for example --question-key problem."),
        ("damaged.txt", "1?\né \udce9?", "damaged.txt, line 2: not UTF-8 text"),
    ):
        (tmp_path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
        refused = ask(file=name, out="none.jsonl")
        assert (refused.code, words in refused.err) == (3, True), refused.err
    assert not (tmp_path / "none.jsonl").exists()
    (tmp_path / "latin.txt").write_bytes("Wie groß?".encode("latin-1"))
    assert "latin.txt is not UTF-8: read as windows-1252" in ask(file="latin.txt", out="latin.jsonl").err
    assert read_lines(tmp_path / "latin.jsonl")[0]["prompt"] == "Wie groß?"
    assert "there is no column text" in ask("--question-key", "text", file="own.csv", out="none.jsonl").err
    assert "Use a smaller --max-tokens" in ask("--prompt", "few_shot_gsm8k", out="none.jsonl").err
