"""How the policy changed: greedy answers to the same problems, before and after, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qed.report.formulas import as_formula, with_formulas
from qed.report.markup import Html, element, join
from qed.report.stages import Comparison, Pairs
from qed.report.story import change
from qed.report.tables import breakdowns, moves
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


def section(found: Comparison, task: str) -> Html:
    """The answers, how many changed, and where; the task is named where there are several."""
    return element(
        "section",
        element("h2", f"How the policy changed{f' on {task}' if task else ''}"),
        element("p", change(found.counts)),
        moves(found),
        *breakdowns(found),
        element("p", "The first problems of each kind, with their greedy answers:", class_="lead"),
        *(_card(pair, found) for pair in chosen(found.pairs)),
    )


def chosen(pairs: Pairs) -> Pairs:
    """A few problems of each kind of change, always the first ones, so that nobody can have picked them."""
    kinds = {kind: [pair for pair in pairs if _kind(pair) == kind] for kind, _ in CHOICES}
    found = [pair for kind, count in CHOICES for pair in kinds[kind][:count]]
    spare = [pair for kind, count in CHOICES for pair in kinds[kind][count:]]
    return found + spare[: max(0, LEAST - len(found))]


def _kind(pair: tuple[Row, Row]) -> tuple[bool, bool]:
    return bool(pair[0]["correct"]), bool(pair[1]["correct"])


def examples(rows: Sequence[Row]) -> Iterator[Html]:
    """The first right and the first wrong answers of an evaluation that stands alone."""
    for right in (True, False):
        for row in [row for row in rows if bool(row["correct"]) == right][:ALONE]:
            yield element("article", *_problem(row), _answer(row, ""), class_="problem")


def _card(pair: tuple[Row, Row], found: Comparison) -> Html:
    answers = element("div", _answer(pair[0], found.before.title), _answer(pair[1], found.after.title), class_="pair")
    return element("article", element("h3", WORDS[_kind(pair)]), *_problem(pair[0]), answers, class_="problem")


def _problem(row: Row) -> Iterator[Html]:
    """The question and its known answer."""
    yield element("p", with_formulas(_short(str(row.get("question", "")))), class_="question", dir="auto")
    yield element("p", "Known answer: ", element("b", _formula(row.get("gold")), dir="auto"), class_="gold")


def _answer(row: Row, title: str) -> Html:
    right = bool(row["correct"])
    verdict = element("b", "right" if right else "wrong", class_=f"verdict {'right' if right else 'wrong'}")
    extracted = row.get("extracted")
    read = (
        join("read as ", element("b", _formula(extracted), dir="auto")) if extracted is not None else "no answer found"
    )
    tokens = row.get("n_tokens")
    cut = ", cut off at the limit" if row.get("stop_reason") == "length" else ""
    length = f"{tokens:,} tokens{cut}" if isinstance(tokens, int) else None
    facts = element("p", read, " · " if length else None, length, class_="facts")
    head = element("p", element("span", title), verdict, class_="head")
    answer = element("pre", with_formulas(_short(str(row.get("text", "")))), dir="auto")
    return element("div", head, answer, facts, class_=f"answer {'right' if right else 'wrong'}")


def _formula(answer: object) -> Html:
    return as_formula(_short(str(answer)))


def _short(content: str) -> str:
    """A long text's beginning and end; what is left out is counted."""
    if len(content) <= LONGEST:
        return content
    return f"{content[: LONGEST - TAIL]}\n[… {len(content) - LONGEST:,} characters left out …]\n{content[-TAIL:]}"
