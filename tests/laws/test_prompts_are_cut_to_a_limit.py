"""data.max_prompt_tokens: no prompt is longer, what it cuts is the question's end alone, and nothing is lost unsaid."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from qed.console.live import Console
from qed.data.prompts import r1_zero
from qed.data.prompts.base import SPECIAL_TOKENS, PromptTemplate
from qed.data.shortening import shorten_prompts
from qed.errors import DataError
from qed.models.load import build_tokenizer
from qed.types import Problem

TEXT = "How many apples are left, if ten of the 24 are eaten? Größe, naïve, 数学."


class Told:
    """Stands in for a run: remembers its events."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def event(self, kind: str, **what: Any) -> None:
        self.events.append({"event": kind, **what})


@pytest.fixture(scope="module")
def template() -> PromptTemplate:
    tokenizer = build_tokenizer([TEXT, r1_zero.render(Problem("", TEXT, ""), None)], 400)
    return PromptTemplate(r1_zero, tokenizer, (tokenizer.eos_token_id,))


@given(words=some.lists(some.integers(0, 30), min_size=1, max_size=6), spare=some.integers(0, 20), data=some.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_prompt_is_longer_than_the_limit(
    template: PromptTemplate, words: list[int], spare: int, data: some.DataObject
) -> None:
    side = data.draw(some.sampled_from(["drop", "left", "right"]))
    questions = [" ".join((TEXT.split() * 3)[:count]) or "?" for count in words]
    problems = [Problem(str(number), question, "") for number, question in enumerate(questions)]
    limit = template.lengths([Problem("", "", "")])[0] + spare
    told = Told()
    try:
        kept = shorten_prompts(problems, template, limit, side, told, Console())  # type: ignore[arg-type]
    except DataError:
        assert all(length > limit for length in template.lengths(problems))
        return
    assert max(template.lengths(kept)) <= limit
    lengths = dict(zip((problem.id for problem in problems), template.lengths(problems), strict=True))
    by_id = {problem.id: problem for problem in problems}
    for problem in kept:
        whole = by_id[problem.id].question
        if lengths[problem.id] <= limit:
            assert problem is by_id[problem.id]
            continue
        # Also where a letter has several tokens.
        part = problem.question
        assert part
        assert whole.endswith(part) if side == "left" else whole.startswith(part)
        assert template.prompt(problem).text.endswith("Assistant: <think>")
    left_out, cut = len(problems) - len(kept), sum(problem.question != by_id[problem.id].question for problem in kept)
    assert told.events == (
        [{"event": "prompts_above_limit", "left_out": left_out, "cut": cut, "limit": limit}] if left_out or cut else []
    )
    if side == "drop":
        assert (left_out, cut) == (sum(length > limit for length in lengths.values()), 0)


@given(questions=some.lists(some.text(max_size=60) | some.text("aé \u3000ﷺ9", max_size=60)), data=some.data())
def test_what_fits_is_what_its_tokens_say(
    template: PromptTemplate, questions: list[str], data: some.DataObject
) -> None:
    problems = [Problem(str(number), question, "") for number, question in enumerate(questions)]
    lengths = template.lengths(problems)
    longest = max((len(template.prompt(problem).text) for problem in problems), default=0)
    limit = data.draw(some.integers(0, longest + 2 * SPECIAL_TOKENS) | some.sampled_from([0, *lengths]))
    assert template.check_lengths(problems, limit) == [length <= limit for length in lengths]


def test_a_limit_that_leaves_nothing_says_what_the_shortest_prompt_has(template: PromptTemplate) -> None:
    problems = [Problem("a", TEXT, "")]
    shortest = template.lengths(problems)[0]
    with pytest.raises(DataError, match=f"the shortest has {shortest} tokens"):
        shorten_prompts(problems, template, 5, "left", Told(), Console())  # type: ignore[arg-type]
