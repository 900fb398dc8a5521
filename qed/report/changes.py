"""Section on how the policy changed: greedy answers to the same problems, before and after, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qed.report.formulas import convert_formula, render_formulas
from qed.report.markup import Html, build_element, join_html
from qed.report.stages import Comparison, Pairs
from qed.report.story import describe_change
from qed.report.tables import render_breakdowns, render_moves
from qed.runs.run import Row

# Number of examples for each (right before, right after), in order: gains come first.
CHOICES = (((False, True), 2), ((True, False), 1), ((True, True), 1), ((False, False), 1))
MIN_EXAMPLES = 3
EXAMPLES_PER_VERDICT = 2  # for an evaluation without a comparison
WORDS = {
    (False, True): "From wrong to right",
    (True, False): "From right to wrong",
    (True, True): "Right before and after",
    (False, False): "Wrong before and after",
}
MAX_CHARS, TAIL_CHARS = 1600, 500


def render_section(comparison: Comparison, task: str) -> Html:
    """Render the transitions, accuracy by level and subject, and example answers; the only task is not named."""
    return build_element(
        "section",
        build_element("h2", f"How the policy changed{f' on {task}' if task else ''}"),
        build_element("p", describe_change(comparison.tests)),
        render_moves(comparison),
        *render_breakdowns(comparison),
        build_element("p", "The first problems of each kind, with their greedy answers:", class_="lead"),
        *(_render_card(pair, comparison) for pair in choose_examples(comparison.pairs)),
    )


def choose_examples(pairs: Pairs) -> Pairs:
    """Return the first few problems of each kind of change, so that examples are not hand-picked."""
    kinds = {kind: [pair for pair in pairs if _get_kind(pair) == kind] for kind, _ in CHOICES}
    examples = [pair for kind, count in CHOICES for pair in kinds[kind][:count]]
    spare = [pair for kind, count in CHOICES for pair in kinds[kind][count:]]
    return examples + spare[: max(0, MIN_EXAMPLES - len(examples))]


def _get_kind(pair: tuple[Row, Row]) -> tuple[bool, bool]:
    return bool(pair[0]["correct"]), bool(pair[1]["correct"])


def render_examples(rows: Sequence[Row]) -> Iterator[Html]:
    """Render the first right and the first wrong answers of an evaluation without a comparison."""
    for right in (True, False):
        for row in [row for row in rows if bool(row["correct"]) == right][:EXAMPLES_PER_VERDICT]:
            yield build_element("article", *_render_problem(row), _render_answer(row, ""), class_="problem")


def _render_card(pair: tuple[Row, Row], comparison: Comparison) -> Html:
    answers = build_element(
        "div",
        _render_answer(pair[0], comparison.before.title),
        _render_answer(pair[1], comparison.after.title),
        class_="pair",
    )
    return build_element(
        "article", build_element("h3", WORDS[_get_kind(pair)]), *_render_problem(pair[0]), answers, class_="problem"
    )


def _render_problem(row: Row) -> Iterator[Html]:
    """Render the question and its known answer."""
    yield build_element("p", render_formulas(_shorten(str(row.get("question", "")))), class_="question", dir="auto")
    yield build_element(
        "p", "Known answer: ", build_element("b", _render_formula(row.get("gold")), dir="auto"), class_="gold"
    )


def _render_answer(row: Row, title: str) -> Html:
    right = bool(row["correct"])
    verdict = build_element("b", "right" if right else "wrong", class_=f"verdict {'right' if right else 'wrong'}")
    extracted = row.get("extracted")
    parsed = (
        join_html("read as ", build_element("b", _render_formula(extracted), dir="auto"))
        if extracted is not None
        else "no answer found"
    )
    tokens = row.get("n_tokens")
    cut = ", cut off at the limit" if row.get("stop_reason") == "length" else ""
    length = f"{tokens:,} tokens{cut}" if isinstance(tokens, int) else None
    facts = build_element("p", parsed, " · " if length else None, length, class_="facts")
    head = build_element("p", build_element("span", title), verdict, class_="head")
    answer = build_element("pre", render_formulas(_shorten(str(row.get("text", "")))), dir="auto")
    return build_element("div", head, answer, facts, class_=f"answer {'right' if right else 'wrong'}")


def _render_formula(answer: object) -> Html:
    return convert_formula(_shorten(str(answer)))


def _shorten(content: str) -> str:
    """Cut the middle of a long text, and say how many characters are left out."""
    if len(content) <= MAX_CHARS:
        return content
    head, tail = content[: MAX_CHARS - TAIL_CHARS], content[-TAIL_CHARS:]
    return f"{head}\n[… {len(content) - MAX_CHARS:,} characters left out …]\n{tail}"
