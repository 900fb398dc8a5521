"""Answers in words that mean the same: no solutions, infinitely many, does not exist, odd (function)."""

from __future__ import annotations

import re

from qed.grading.tree import Node

ARTICLES = ("a ", "an ", "the ")
COUNTED = r"(?:solution|root|answer|value|zero)"
NO_SOLUTION = re.compile(
    rf"(?:there (?:is|are|exist|exists) )?no(?: real| such| valid| possible)?(?: {COUNTED}s?)(?: exists?| of x)?"
    rf"|none|null set|empty set|(?:there (?:is|are) )?no such (?:x|number|value|integer|point|function)s?(?: exists?)?"
    rf"|(?:has no|does not have (?:an?|any)|do not have any)(?: real)? {COUNTED}s?"
)
INFINITE = re.compile(
    rf"(?:there (?:is|are|exist|exists) )?(?:an )?infinite(?:ly)?(?: many)?(?: number of)?(?: {COUNTED}s?)?(?: exist)?"
)
MISSING = re.compile(
    r"(?:the |this )?(?:limit |value |derivative |integral )?"
    r"(?:dne|no limit(?: exists)?|(?:does|do) not exist|(?:is )?(?:not defined|undefined))"
)
NEITHER = {"neither even nor odd", "neither odd nor even", "neither function"}
NO_SOLUTIONS, INFINITELY_MANY, NONEXISTENT = "no solution", "infinitely many", "does not exist"
SYNONYMS = {
    "convergent": "converges", "diverges": "diverges", "divergent": "diverges", "converge": "converges",
    "diverge": "diverges", "does not converge": "diverges", "not convergent": "diverges",
    "absolutely convergent": "converges absolutely",
    "conditionally convergent": "converges conditionally", "right-angled": "right", "right angled": "right",
    "even numbers": "even integers", "odd numbers": "odd integers", "all even numbers": "all even integers",
    "all odd numbers": "all odd integers", "both even and odd": "both", "both odd and even": "both",
}  # fmt: skip
SYNONYMS |= dict.fromkeys(
    ("无解", "無解", "解なし", "нет решений", "keine lösung", "sin solución", "pas de solution"), NO_SOLUTIONS
)
SUBJECT = re.compile(
    r"^(?:(?:it|they|(?:the|this) (?:series|sequence|function|integral|sum|graph|curve|lines|number)) )?(?:is |are )?"
)
OWNER = re.compile(r"^(?:it|(?:the|this) (?:equation|system|inequality|problem)|the equations) (?:has|have) ")
# True is yes and false is no, in all languages.
YES_AND_NO = {
    "yes": "true ja oui sí sì да так 是 是的 はい sim 예 네 نعم हाँ हां evet vrai wahr verdadero verdadeiro верно 正确 对"
    " 真",
    "no": "false non nein нет ні 否 不是 不 いいえ não 아니요 아니오 لا नहीं hayır faux falsch falso неверно 错误 错 假",
}
SYNONYMS |= {word: meaning for meaning, words in YES_AND_NO.items() for word in words.split()}
# Nouns that an adjective may leave out: `odd` means an odd function.
NOUNS = re.compile(
    r"function|triangle|number|integer|series?|sequence|line|angle|quadrilateral|polygon|colou?r|matrix|event"
)
INFINITY = Node("constant", "infinity")


def read_meaning(words: str) -> str:
    """Return the same wording for all words of one meaning, without article and plural ending."""
    words = OWNER.sub("", words)
    for pattern, meaning in ((NO_SOLUTION, NO_SOLUTIONS), (INFINITE, INFINITELY_MANY), (MISSING, NONEXISTENT)):
        if pattern.fullmatch(_strip_article(words)):
            return meaning
    words = _strip_article(SUBJECT.sub("", words))
    return _strip_plural("neither" if words in NEITHER else SYNONYMS.get(words, words))


def _strip_article(words: str) -> str:
    for article in ARTICLES:
        words = words.removeprefix(article)
    return words


def _strip_plural(words: str) -> str:
    return words[:-1] if len(words) > 4 and words.endswith("s") and not words.endswith("ss") else words


def mean_the_same(gold: str, answer: str) -> bool:
    """Return whether two answers in words mean the same; one of them may leave out the noun after its adjective."""
    left, right = read_meaning(gold), read_meaning(answer)
    if left == right:
        return True
    short, long = sorted((left, right), key=len)
    adjective, _, noun = long.rpartition(" ")
    return (
        NOUNS.fullmatch(noun.removesuffix("s")) is not None
        and _strip_plural(SYNONYMS.get(adjective, adjective)) == short
        and NOUNS.fullmatch(short) is None
    )


def read_set_in_words(node: Node) -> Node:
    """Return the empty set for `no solution`, and infinity for `infinitely many`; any other node unchanged."""
    if node.kind != "text":
        return node
    return {NO_SOLUTIONS: Node("set"), INFINITELY_MANY: INFINITY}.get(read_meaning(node.name), node)
