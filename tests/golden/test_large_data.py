"""Data that takes long to read and to tokenise: a signal stops it at once, many rows are tokenised together, and what
does not fit the model's window is refused first.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest

from qed.console import progress
from qed.data import demonstrations
from qed.data.changed_chat import change_chat
from qed.data.demonstrations import require_fitting
from qed.data.prompts.base import PromptTemplate, load_leaf
from qed.data.prompts.demonstrations import find_demonstration
from qed.data.sources.fields import convert_to_text
from qed.data.sources.rows import Place, Row
from qed.data.tasks.base import build_problems
from qed.errors import DataError, Interrupted
from qed.guards.signals import watch_signals
from qed.models import load
from qed.types import Problem

TOKENIZER = load.build_tokenizer(["What is 2 + 3? It is 5, not 6."], 400)
PLACE = Place("x.jsonl", 1)


def test_a_signal_stops_the_reading_of_rows() -> None:
    """At the next row, also where the file has millions."""
    read = []

    def rows() -> Iterator[tuple[Place, Row]]:
        for number in count(1):
            assert number < 3_000
            if number == 1_001:
                signal.raise_signal(signal.SIGINT)
            read.append(number)
            yield Place("x.jsonl", number), {"question": f"What is {number}?", "answer": str(number)}

    with watch_signals(), pytest.raises(Interrupted, match="SIGINT"):
        build_problems(rows(), "x", {}, Counter())
    assert len(read) == 1_001


def test_reading_and_the_training_of_a_tokenizer_say_how_far_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SAID_AFTER", 0.0)
    monkeypatch.setattr(progress, "SAID_EVERY", 0.0)
    rows = ((Place("x.jsonl", n), {"question": f"What is {n}?", "answer": str(n)}) for n in (1, 2, 3))
    problems = build_problems(rows, "x", {}, Counter())
    load.build_tokenizer((problem.question for problem in problems), 300)
    out, said = capsys.readouterr()
    assert not out
    assert said.splitlines() == [
        *("Reading: 1 rows of x.", "Reading: 2 rows of x."),
        *("Training the tokenizer: 1 texts.", "Training the tokenizer: 2 texts."),
    ]


def test_a_signal_stops_the_training_of_a_tokenizer() -> None:
    def texts() -> Iterator[str]:
        for number in count(1):
            assert number < 3_000
            if number == 10:
                signal.raise_signal(signal.SIGINT)
            yield "What is 2 + 3?"

    with watch_signals(), pytest.raises(Interrupted, match="SIGINT"):
        load.build_tokenizer(texts(), 400)


@pytest.mark.parametrize("prompt", ["r1_zero", "question_only", "chat", "think_answer"])
def test_answers_that_are_tokenised_together_are_those_of_each_alone(prompt: str) -> None:
    """Two replies to one question, the same question in another row, and a prompt that is rendered already."""
    TOKENIZER.chat_template = load.CHAT_TEMPLATE
    template = PromptTemplate(change_chat(load_leaf(prompt), prompt, "", ()), TOKENIZER, (1,))
    rendered = {"rendered": "<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\n"}
    first, second = Problem("a", "What is 2 + 3?", "5"), Problem("b", "And 2₁?", "2")
    answers = [(first, "It is 5."), (first, "It is 6."), (second, "2"), (first, ""), (Problem("c", "What?", "5"), "5")]
    answers.append((Problem("d", "What?", "5", meta=rendered), "It is é."))
    together = template.build_rollouts(answers)
    assert together == [template.build_rollout(*answer) for answer in answers]
    assert [rollout.problem.id for rollout in together] == ["a", "a", "b", "a", "c", "d"]


@pytest.mark.parametrize("text", ["", "x₁", "a\ud7ffb\ue000", "\U00010000\U0010ffff"])
def test_text_beyond_ascii_is_text(text: str) -> None:
    assert convert_to_text(text, PLACE, "question") == text


@pytest.mark.parametrize("code", [0xD800, 0xDBFF, 0xDC00, 0xDFFF])
def test_half_of_a_pair_is_refused_wherever_it_is(code: int) -> None:
    half = chr(code)
    for text in (half, f"x₁{half}", f"{'é' * 10_000}{half}b"):
        with pytest.raises(DataError, match="half of a UTF-16 pair"):
            convert_to_text(text, PLACE, "question")


def test_large_data_that_does_not_fit_is_refused_by_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demonstrations, "SAMPLED", 10)
    monkeypatch.setattr(demonstrations, "ENOUGH", 10)
    monkeypatch.setattr(demonstrations, "CACHED_CHARACTERS", 0)
    template = PromptTemplate(load_leaf("r1_zero"), TOKENIZER, (1,))
    encoded: list[int] = []
    monkeypatch.setattr(
        template, "encode", lambda rows: encoded.append(len(rows)) or PromptTemplate.encode(template, rows)
    )
    short, long = (Problem("p", "What is 2 + 3?", "5", "It is 5. " * times) for times in (1, 100))
    limit = sum(map(len, template.encode([template.write(short, find_demonstration(template.leaf, short) or "")])[0]))
    encoded.clear()
    with pytest.raises(DataError, match=r"^10 demonstrations, sampled from those of 40 problems, are all longer"):
        require_fitting(template, [long] * 40, limit)
    assert encoded == [1] * 10
    monkeypatch.setattr(demonstrations, "shuffle_indices", lambda *_: [7, 4, *range(38)])
    require_fitting(template, [long, long, long, long, short, *[long] * 35], limit)
    assert encoded == [1] * 12  # up to the second of the sample, which fits
    bare = replace(long, solution="", answer="")
    require_fitting(template, [*[long] * 5, *[bare] * 35], limit)  # too few to judge by
    assert encoded == [1] * 18
    require_fitting(template, [bare] * 40, limit)  # without any demonstration
    require_fitting(template, [long] * 19, limit)  # the sample would be most of them
    monkeypatch.setattr(demonstrations, "CACHED_CHARACTERS", 1_000_000)
    require_fitting(template, [long] * 40, limit)  # all of small data is counted
    assert encoded == [1] * 18
