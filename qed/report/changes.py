"""How the policy changed: greedy answers to the same problems, before and after, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qed.report.formulas import convert_formula, render_formulas
from qed.report.markup import Html, build_element, join_html
from qed.report.stages import Comparison, Pairs
from qed.report.story import describe_change
from qed.report.tables import render_breakdowns, render_moves
from qed.runs.run import Row

# In this order, and of each so many: what was mended comes first.
CHOICES = (((False, True), 2), ((True, False), 1), ((True, True), 1), ((False, False), 1))
LEAST = 3
ALONE = 2  # of each verdict, where there is nothing to compare with
WORDS = {
    (False, True): "From wrong to right",
    (True, False): "From right to wrong",
    (True, True): "Right before and after",
    (False, False): "Wrong before and after",
}
LONGEST, TAIL = 1600, 500


def render_section(found: Comparison, task: str) -> Html:
    """The answers, how many changed, and where; the task is named where there are several."""
    return build_element(
        "section",
        build_element("h2", f"How the policy changed{f' on {task}' if task else ''}"),
        build_element("p", describe_change(found.counts)),
        render_moves(found),
        *render_breakdowns(found),
        build_element("p", "The first problems of each kind, with their greedy answers:", class_="lead"),
        *(_render_card(pair, found) for pair in choose_examples(found.pairs)),
    )


def choose_examples(pairs: Pairs) -> Pairs:
    """A few problems of each kind of change, always the first ones, so that nobody can have picked them."""
    kinds = {kind: [pair for pair in pairs if _kind(pair) == kind] for kind, _ in CHOICES}
    found = [pair for kind, count in CHOICES for pair in kinds[kind][:count]]
    spare = [pair for kind, count in CHOICES for pair in kinds[kind][count:]]
    return found + spare[: max(0, LEAST - len(found))]


def _kind(pair: tuple[Row, Row]) -> tuple[bool, bool]:
    return bool(pair[0]["correct"]), bool(pair[1]["correct"])


def render_examples(rows: Sequence[Row]) -> Iterator[Html]:
    """The first right and the first wrong answers of an evaluation that stands alone."""
    for right in (True, False):
        for row in [row for row in rows if bool(row["correct"]) == right][:ALONE]:
            yield build_element("article", *_render_problem(row), _render_answer(row, ""), class_="problem")


def _render_card(pair: tuple[Row, Row], found: Comparison) -> Html:
    answers = build_element(
        "div", _render_answer(pair[0], found.before.title), _render_answer(pair[1], found.after.title), class_="pair"
    )
    return build_element(
        "article", build_element("h3", WORDS[_kind(pair)]), *_render_problem(pair[0]), answers, class_="problem"
    )


def _render_problem(row: Row) -> Iterator[Html]:
    """The question and its known answer."""
    yield build_element("p", render_formulas(_shorten(str(row.get("question", "")))), class_="question", dir="auto")
    yield build_element(
        "p", "Known answer: ", build_element("b", _render_formula(row.get("gold")), dir="auto"), class_="gold"
    )


def _render_answer(row: Row, title: str) -> Html:
    right = bool(row["correct"])
    verdict = build_element("b", "right" if right else "wrong", class_=f"verdict {'right' if right else 'wrong'}")
    extracted = row.get("extracted")
    read = (
        join_html("read as ", build_element("b", _render_formula(extracted), dir="auto"))
        if extracted is not None
        else "no answer found"
    )
    tokens = row.get("n_tokens")
    cut = ", cut off at the limit" if row.get("stop_reason") == "length" else ""
    length = f"{tokens:,} tokens{cut}" if isinstance(tokens, int) else None
    facts = build_element("p", read, " · " if length else None, length, class_="facts")
    head = build_element("p", build_element("span", title), verdict, class_="head")
    answer = build_element("pre", render_formulas(_shorten(str(row.get("text", "")))), dir="auto")
    return build_element("div", head, answer, facts, class_=f"answer {'right' if right else 'wrong'}")


def _render_formula(answer: object) -> Html:
    return convert_formula(_shorten(str(answer)))


def _shorten(content: str) -> str:
    """A long text's beginning and end; what is left out is counted."""
    if len(content) <= LONGEST:
        return content
    return f"{content[: LONGEST - TAIL]}\n[… {len(content) - LONGEST:,} characters left out …]\n{content[-TAIL:]}"
