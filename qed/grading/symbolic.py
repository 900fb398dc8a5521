"""The grader's last resort: math-verify, in a child process that can be killed.

Its parser turns LaTeX into sympy objects, which may take any time and memory, so it runs in a sealed child of a fork
server, within limits that the kernel enforces.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from qed.grading.fork_server import ForkServer
from qed.grading.session import FailedError, Limits, NotLoadedError, TimedOutError

LIMITS = Limits(cpu=1.0, wall=2.0, memory=1 << 30)
MAX_CACHED = 4096
MAX_CHARS = 400  # no longer answer in practice needs this tier
# Plain mathematics. In quotes, code and prose math-verify would find some number.
SIGNS = re.compile(r"[\w\s\\{}()\[\]^+\-*/=<>,.;:|!&%$~]+")
WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{3,}|__")
COMMAND = re.compile(r"\\([A-Za-z]+)")
# A backslash before a digit, which is not LaTeX, or signs alone, which have no value.
WORTHLESS = re.compile(r"(?<!\\)\\(?:\\\\)*\d|\A[\W_]*\Z")
NAME = re.compile(r"[A-Za-z]")
# The index of a sum or a limit, and the variable of an integral: they are not names of the result.
BOUND = re.compile(r"_\s?\{?\s?([A-Za-z])\s?(?:=|\\to)|d\s?([a-z])")
INDEX = re.compile(r"(_\s?\{?\s?[A-Za-z]\s?)=")
CONSTANTS = frozenset("deiC")
# Compared once when math-verify is loaded. For the first text of a kind, sympy's imports and the parser's caches take a
# third of a second or more. Without this each child would repeat them, near the time limits on a slow or busy machine.
FAMILIAR = (
    (r"\binom{n}{2}", r"\frac{n(n-1)}{2}"),
    (r"\frac{x}{2}", r"\frac{x^2}{2x}"),
    (r"\sin^2 x", r"1-\cos^2 x"),
    (r"\log_2 8x", r"3+\log_2 x"),
    (r"(1,\frac{1}{2})", "(1,0.5)"),
    (r"\sqrt{8}+x", r"2\sqrt{2}+x"),
    (r"\sum_{k=1}^{n} k", r"\frac{n(n+1)}{2}"),
    (r"\int_0^1 x dx", r"\frac12"),
    (r"A\cup B", r"A\cap B"),
)
# The commands that math-verify computes. It skips others, and would read 5\\ldots as 5.
COMPUTED = {
    "operators": "int iint iiint oint sum prod lim limits max min sup inf det partial mod bmod pmod gcd lcm",
    "calculation": "frac dfrac tfrac cfrac sqrt binom dbinom tbinom cdot times div pm mp infty circ pi",
    "functions": "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log lg exp",
    "brackets": "left right big Big bigl bigr lfloor rfloor lceil rceil begin end mathrm mathbf quad qquad",
    "letters": "alpha beta gamma delta epsilon theta lambda mu phi omega",
    "relations": "to le leq ge geq ne neq lt gt in cup cap setminus",
}
COMMANDS = frozenset(" ".join(COMPUTED.values()).split())
Result = tuple[bool, str, str]
_cache: dict[tuple[str, str], Result] = {}
_waits = threading.local()
CHILD = ForkServer("qed.grading.symbolic:prepare", limits=LIMITS, sealed=True)


def start_for(golds: Iterable[str]) -> None:
    """Start loading math-verify if some gold answer is LaTeX.

    Loading takes seconds of CPU time, and answers to other golds rarely need this tier; those that do wait for it.
    """
    if any("\\" in gold for gold in golds):
        CHILD.start()


def can_decide(gold: str, answer: str) -> bool:
    """Return whether this tier may decide: the texts are short, with known LaTeX, the same names and no prose.

    Expressions with different names are rarely equal and always slow to compare.
    """
    return (
        any("\\" in text for text in (gold, answer))
        and all(
            len(text) <= MAX_CHARS
            and SIGNS.fullmatch(text)
            and not WORD.search(text)
            and not WORTHLESS.search(text)
            and COMMANDS.issuperset(COMMAND.findall(text))
            for text in (gold, answer)
        )
        and _find_names(gold, answer) == _find_names(answer, gold)
    )


def _find_names(text: str, other: str) -> set[str]:
    """Return the free names in a text; those before its equals sign do not count if the other text has no such sign."""
    if "=" not in INDEX.sub("", other):
        text = INDEX.sub(r"\1", text).rpartition("=")[2] if "=" in INDEX.sub("", text) else text
    bound = {name for index, differential in BOUND.findall(text) for name in (index, differential)}
    return set(NAME.findall(COMMAND.sub(" ", text))) - bound - CONSTANTS


def prepare() -> tuple[None, Callable[[Sequence[str]], bool]]:
    """Load math-verify in the server process, and return the function that compares a pair of answers."""
    # Imported only in the server process, because sympy and antlr take seconds to load.
    from math_verify import LatexExtractionConfig, parse, verify  # noqa: PLC0415

    logging.disable(logging.CRITICAL)
    reader = [LatexExtractionConfig()]

    def is_same(pair: Sequence[str]) -> bool:
        # Without math-verify's own time limits, which use signals of the calling process.
        gold, answer = (parse(f"${text}$", reader, parsing_timeout=None, fallback_mode="no_fallback") for text in pair)
        return bool(gold and answer) and bool(verify(gold, answer, timeout_seconds=None))

    for pair in FAMILIAR:
        is_same(pair)
    return None, is_same


def are_equal(gold: str, answer: str) -> Result:
    """Compare two answers with math-verify, and return the verdict, its tier and its reason. Never raises."""
    result = _cache.get((gold, answer))
    if result is not None:
        return result
    # Loading takes seconds, which count neither for this answer nor for the others that wait for a child.
    _waits.seconds = count_loading_seconds() + CHILD.wait_until_loaded()
    start = time.monotonic()
    if not CHILD.slots.acquire(timeout=LIMITS.wall):
        return False, "timeout", f"more than {LIMITS.wall:g} s of wall-clock time"
    try:
        # Another thread may have asked the same question in the meantime: the answers of a group are often the same.
        result = _cache.get((gold, answer)) or _ask_child(gold, answer, time.monotonic() - start)
    except NotLoadedError as error:  # perhaps temporarily: the system had no process left
        return False, "error", f"math-verify cannot be loaded: {error}"
    finally:
        CHILD.slots.release()
    if len(_cache) >= MAX_CACHED:
        _cache.clear()
    _cache[gold, answer] = result
    return result


def count_loading_seconds() -> float:
    """Return the seconds that this thread has waited for math-verify to load, which timers of answers subtract."""
    return float(getattr(_waits, "seconds", 0.0))


def _ask_child(gold: str, answer: str, waited: float) -> Result:
    try:
        session = CHILD.open_session()
        try:
            correct = session.ask([gold, answer], waited=waited)
        finally:
            session.close()
    except TimedOutError as error:
        return False, "timeout", str(error)
    except FailedError as error:
        return False, "error", str(error)
    return correct, "symbolic", "math-verify: the same value" if correct else "math-verify: another value"
