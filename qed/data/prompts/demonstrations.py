"""Write a problem's demonstration in the form of the prompt in use.

Data has complete replies in other formats: reasoning in <think>, a boxed answer, the tags of another prompt. A reply
that already has the prompt's format, according to the prompt's default reward, is imitated verbatim. So is a reply that
earns the full reward of the run, if that is another one. Any other reply is split into reasoning and answer, from which
the prompt builds a demonstration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from qed.config import plugins
from qed.data.prompts.checking import require_text
from qed.data.prompts.with_reward import PromptWithReward, can_be_asked, load_run_grader
from qed.grading.equal import equal
from qed.grading.extract import TAGS, TURNS, extract_final_answer
from qed.rewards.base import FINAL_ANSWER, load_reward
from qed.rewards.grader import InProcessGrader
from qed.types import UNGRADED, Grade, Problem, Rollout

# Tags around reasoning and answer in published data and in the built-in prompts.
MARKERS = re.compile(
    r"</?(?:think|thinking|thoughts?|reasoning|working_out|scratchpad|answer|solution)>|<(?:start|end)_working_out>"
    r"|<\|(?:begin|end)_of_(?:thought|solution)\|>|\[/?THINK\]|◁/?think▷",
    re.IGNORECASE,
)
OPENED = re.compile(
    r"<(?:think|thinking|thought|reasoning|start_working_out|\|begin_of_thought\|)>|\[THINK\]", re.IGNORECASE
)
CLOSED = re.compile(
    r"</(?:think|thinking|thought|reasoning)>|<end_working_out>|<\|end_of_thought\|>|\[/THINK\]", re.IGNORECASE
)
ANSWERS = (TAGS, ("<SOLUTION>", "</SOLUTION>"), ("<solution>", "</solution>"))
HASHES = re.compile(r"\n\s*####[^\n]*\s*\Z")
REMOVED = "\0"  # placeholder of a removed tag
GLUED = re.compile(rf"(?<=\S){REMOVED}+(?=\S)")
BLANK = re.compile(r"\n{3,}")
UNSURE = ("sentence", "whole")  # extraction sources that often do not give an answer
SAMPLE = "So it is."  # reasoning that no reward penalizes
CUT_OFF = "the reasoning is cut off before any answer"
OTHER_ANSWER = "the worked solution ends in another answer"
OTHER_PROMPT = "the prompt is rendered already, by another prompt"
OTHER_REWARD = "the reward of the run does not pay the text in full"
OTHER_FORM = "the text has another form than the prompt asks for, and is imitated verbatim"


class Demonstration(NamedTuple):
    """A demonstration; `text` is None if there is none, `built` says whether the prompt built it from parts."""

    text: str | None
    built: bool = False


def find_demonstration(leaf: Any, problem: Problem) -> str | None:
    """Return the text of a problem's demonstration, or None if it has none; see `write_demonstration`."""
    return write_demonstration(leaf, problem).text


def write_demonstration(leaf: Any, problem: Problem) -> Demonstration:
    """Write a problem's demonstration.

    The completion of a task is imitated verbatim; None means that the problem has no demonstration. A reply of a data
    file (`meta["adapt"]`, or a worked solution with tags) is converted to the prompt's format. Otherwise the prompt
    builds one from solution and answer.
    """
    completion = problem.meta.get("completion", "")
    if completion is None:
        return Demonstration(None)
    reply = find_reply(problem)
    if not reply:
        built = leaf.demonstration(problem)
        return Demonstration(built if built is None else require_text("The prompt's demonstration", built), built=True)
    if (completion and not problem.meta.get("adapt")) or is_rendered_otherwise(leaf, problem):
        return Demonstration(reply)
    return _adapt(leaf, problem, reply)


def find_reply(problem: Problem) -> str:
    """Return the complete reply in a problem's data: its completion, or a worked solution with tags."""
    return problem.meta.get("completion") or (problem.solution if has_markers(problem.solution) else "")


def is_rewritten(leaf: Any, problem: Problem) -> bool:
    """Return whether the demonstration of a problem is a reply of the data that the prompt has rebuilt."""
    return bool(find_reply(problem)) and write_demonstration(leaf, problem).built


def list_demonstrations(leaf: Any, problem: Problem) -> list[str]:
    """List the distinct demonstrations of a problem: its own, then those of its traces."""
    return list(dict.fromkeys(iterate_demonstrations(leaf, problem)))


def iterate_demonstrations(leaf: Any, problem: Problem) -> Iterator[str]:
    """Yield the demonstrations of a problem: its own, then those of its traces, possibly with duplicates."""
    for trace in (None, *list_traces(problem)):
        own = problem if trace is None else replace(problem, meta={**problem.meta, "completion": trace})
        if text := find_demonstration(leaf, own):
            yield text


def list_traces(problem: Problem) -> list[str]:
    """Return the several demonstrations of a problem, skipping other values that a user's column `traces` may hold."""
    traces = problem.meta.get("traces", ())
    return [each for each in traces if isinstance(each, str)] if isinstance(traces, list | tuple) else []


def has_markers(text: str) -> bool:
    """Return whether a text has a reasoning or answer tag, so that it is a complete reply, not just a solution."""
    return MARKERS.search(text) is not None


def is_rendered_otherwise(leaf: Any, problem: Problem) -> bool:
    """Return whether the data has a rendered prompt that differs from the text of this prompt."""
    rendered = problem.meta.get("rendered")
    return bool(rendered) and (leaf.CHAT or leaf.render(problem, None) != rendered)


def _adapt(leaf: Any, problem: Problem, reply: str) -> Demonstration:
    """Return a reply in the prompt's format: unchanged or rebuilt from its parts; None if the reasoning is cut off."""
    stated = find_stated_answer(reply, leaf)
    if plugins.is_users_own(leaf.REWARD) or not (stated or problem.answer):
        return Demonstration(reply)
    if stated is None and OPENED.search(reply) and not CLOSED.search(reply):
        return Demonstration(None)
    if _accepts_any_form(leaf) and _states_answer(reply, problem.answer):
        return Demonstration(reply)
    goal = replace(problem, answer=_choose_answer(problem.answer, stated))
    tags = _list_tags(leaf)
    text = _open(reply, tags)
    most = measure_most(leaf, goal)
    if _has_form(text, tags, leaf.STOP) and measure_reward(leaf, goal, text) >= most:
        return Demonstration(text)
    reasoning = _strip_markers(reply, leaf)
    bare = reasoning in (goal.answer, stated)
    steps = {"solution": "", "meta": {**goal.meta, "without_steps": True}} if bare else {"solution": reasoning}
    built = leaf.demonstration(replace(goal, **steps))
    if built is None or measure_reward(leaf, goal, built) < most or _loses_run_reward(leaf, goal, reply, built):
        return Demonstration(reply)
    return Demonstration(built, built=True)


def _accepts_any_form(leaf: Any) -> bool:
    """Return whether a prompt prescribes no answer format, such as the bare question."""
    return leaf.REWARD == FINAL_ANSWER and not (_list_tags(leaf) or leaf.STOP)


def _states_answer(reply: str, gold: str) -> bool:
    """Return whether a reply states an answer; a last sentence or a whole text may not be one."""
    found = extract_final_answer(reply)
    return found is not None and (found.source not in UNSURE or is_same_answer(gold, found.answer))


def find_stated_answer(reply: str, leaf: Any) -> str | None:
    """Return the answer that a reply states in a tag, a box or a `####` line; None if it does not."""
    pair = next((pair for pair in _list_answer_tags(leaf) if all(tag in reply for tag in pair)), TAGS)
    found = extract_final_answer(reply, "strict", (pair,))
    return found.answer if found else None


def ends_in_other_answer(solution: str, gold: str) -> bool:
    """Return whether a worked solution ends in another answer than the gold one, marked or in words."""
    found = extract_final_answer(solution)
    if found is None or is_same_answer(gold, found.answer):
        return False
    # "We get 5. This took 3 steps." and "2+3=5, 5+2=7": the last sentence, or the whole text, is often not an answer.
    is_named = gold and re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", solution)
    return not (found.source in UNSURE and is_named)


def _choose_answer(gold: str, stated: str | None) -> str:
    """Return the gold answer, or the stated one if there is no gold or the two differ: a wrong reply stays wrong."""
    return gold if gold and (stated is None or is_same_answer(gold, stated)) else stated or gold


def is_same_answer(gold: str, answer: str) -> bool:
    """Return whether an answer equals the gold answer."""
    return gold == answer or equal(gold, answer).correct


def measure_reward(leaf: Any, problem: Problem, text: str) -> float:
    """Return the prompt's own reward of a text, cut at a stop string like a sampled answer."""
    return round(_grade(_load_own_grader(leaf), leaf, problem, text).reward, 6)


def _grade(grader: InProcessGrader, leaf: Any, problem: Problem, text: str) -> Grade:
    rollout = Rollout(problem, (), (), (), cut_at_stop(text, leaf.STOP), "stop")
    return grader([[rollout]])[0][0]


def _grade_for_run(leaf: Any, problem: Problem, text: str) -> Grade | None:
    """Grade a text by the run's reward, if that is not the prompt's own and can be evaluated here."""
    grader = load_run_grader(leaf)
    return None if grader is None else _grade(grader, leaf, problem, _open_as_prompt(leaf, problem, text))


def _loses_run_reward(leaf: Any, problem: Problem, reply: str, built: str) -> bool:
    """Return whether the run's reward is higher for a right reply than for what the prompt built from it."""
    given, made = (_grade_for_run(leaf, problem, text) for text in (reply, built))
    return given is not None and made is not None and given.correct and given.reward > made.reward


def _earns_run_reward(leaf: Any, problem: Problem, text: str) -> bool:
    """Return whether the run's reward finds a text right and well formed, and pays no more for the prompt's format."""
    grade = _grade_for_run(leaf, problem, text)
    if grade is None or not (grade.correct and grade.format_ok):
        return False
    best = leaf.demonstration(replace(problem, solution=SAMPLE))
    other = _grade_for_run(leaf, problem, best) if best else None
    return other is None or grade.reward >= other.reward


def _open_as_prompt(leaf: Any, problem: Problem, text: str) -> str:
    """Prepend the tag that a plain prompt opens to a text, as for a sampled answer."""
    tags = _list_tags(leaf)
    opens = tags and not leaf.CHAT and leaf.render(problem, None).rstrip().endswith(tags[0])
    return f"{tags[0]}{text}" if opens and not text.lstrip().startswith(tags[0]) else text


def measure_most(leaf: Any, problem: Problem) -> float:
    """Return the prompt's own reward of a demonstration with the problem's answer: the most that one can earn."""
    text = leaf.demonstration(replace(problem, solution=SAMPLE))
    return measure_reward(leaf, problem, text) if text else 0.0


def find_trouble(leaf: Any, problem: Problem, made: Demonstration | None = None) -> str:
    """Return why a problem's demonstration does not teach the right answer in the prompt's format; empty if it does.

    The format is that of the run's reward, if that is not the prompt's own and can be evaluated here, see
    `load_run_grader`. The result is also empty without a demonstration, and if the reward is user code. Without a known
    answer only the prompt's format counts. `made` is the demonstration, if it is already written.
    """
    made = made or write_demonstration(leaf, problem)
    reply = problem.meta.get("completion") or problem.solution
    if made.text is None:
        return CUT_OFF if reply and problem.meta.get("completion", "") is not None else ""
    if plugins.is_users_own(leaf.REWARD):
        return ""
    other = OTHER_PROMPT if is_rendered_otherwise(leaf, problem) else OTHER_FORM
    if not problem.answer:
        tags = _list_tags(leaf)
        return "" if _has_form(_open(made.text, tags), tags, leaf.STOP) else other
    stated = find_stated_answer(reply, leaf) if reply else None
    same = stated is not None and is_same_answer(problem.answer, stated)
    if reply and not same and (stated is not None or ends_in_other_answer(reply, problem.answer)):
        return OTHER_ANSWER
    if load_run_grader(leaf) is not None:
        return "" if _earns_run_reward(leaf, problem, made.text) else OTHER_REWARD
    return "" if measure_reward(leaf, problem, made.text) >= measure_most(leaf, problem) else other


def is_read_by_reward(leaf: Any, problem: Problem, asked: str) -> bool:
    """Return whether the run's reward finds the right answer in the tags that a prompt asks for.

    Also true if a reward cannot be evaluated here, or the prompt's own reward does not find this answer either.

    Args:
        leaf: the prompt.
        problem: a problem with an answer.
        asked: the prompt's text; if it lacks any of the prompt's tags, like a bare question, it asks for none.
    """
    tags = _list_tags(leaf)
    text = _write_sample(leaf, problem) if tags and all(tag in asked for tag in tags) else ""
    grade = _grade_for_run(leaf, problem, text) if text else None
    if grade is None or grade.correct or grade.tier in UNGRADED or not can_be_asked(leaf.REWARD):
        return True
    if not _grade(_load_own_grader(leaf), leaf, problem, text).correct:
        return True
    # In a sum of rewards, one part may reward the answer while another decides correctness.
    other = _grade_for_run(leaf, replace(problem, answer=f"{problem.answer}1"), text)
    return other is None or grade.reward > other.reward


def _write_sample(leaf: Any, problem: Problem) -> str:
    """Build a sample demonstration of a problem's answer after some reasoning; empty if that fails."""
    try:
        text = leaf.demonstration(replace(problem, solution=SAMPLE))
        hash(leaf)  # graders are cached by it
    except Exception:  # noqa: BLE001 -- a user-defined prompt may support only the solutions of its own data
        return ""
    return text if isinstance(text, str) else ""


def cut_at_stop(text: str, stops: Sequence[str], early: int = 0) -> str:
    """Return a text up to the end of the first stop string that ends after the first `early` characters."""
    starts = ((stop, text.find(stop, max(0, early - len(stop) + 1))) for stop in stops)
    ends = [start + len(stop) for stop, start in starts if start >= 0]
    return text[: min(ends, default=len(text))]


@lru_cache
def _load_own_grader(leaf: Any) -> InProcessGrader:
    return InProcessGrader(load_reward((leaf.REWARD,), _list_shared_options(leaf)))


def _list_shared_options(leaf: Any) -> tuple[str, ...]:
    """List the options that a prompt shares with its reward, such as tags."""
    leaf = leaf.leaf if isinstance(leaf, PromptWithReward) else leaf
    name, reward = leaf.REWARD, plugins.load_leaf("rewards", leaf.REWARD).reward
    if not (is_dataclass(leaf) and is_dataclass(reward)):
        return ()
    shared = {field.name for field in fields(leaf)} & {field.name for field in fields(reward)}
    return tuple(f"{name}.{field}={getattr(leaf, field)}" for field in sorted(shared))


def _list_tags(leaf: Any) -> tuple[str, ...]:
    return getattr(leaf, "TAGS", ())


def _list_answer_tags(leaf: Any) -> list[tuple[str, str]]:
    """List the pairs of tags that may enclose an answer, the prompt's own first."""
    tags = _list_tags(leaf)
    return [*([(tags[2], tags[3])] if len(tags) == 4 else []), *ANSWERS]


def _open(reply: str, tags: Sequence[str]) -> str:
    """Prepend the first tag to a reply that lacks it because its prompt opened it."""
    return f"{tags[0]}{reply}" if tags and tags[0] not in reply and tags[1] in reply else reply


def _has_form(text: str, tags: Sequence[str], stops: Sequence[str]) -> bool:
    """Return whether a text begins with the first tag, and has each tag once, in order."""
    text = cut_at_stop(text, stops).lstrip()
    places = [text.find(tag) for tag in tags]
    once = all(text.count(tag) == 1 for tag in tags)
    return once and places == sorted(places) and places[:1] in ([], [0])


def _strip_markers(reply: str, leaf: Any) -> str:
    """Return the reasoning of a reply: without tags, an answer in tags, a `####` line, and what ends a turn."""
    text = reply.rstrip()
    for turn in TURNS:
        text = text.removesuffix(turn).rstrip()
    for opening, closing in _list_answer_tags(leaf):
        start = text.rfind(opening)
        end = text.find(closing, start)
        # A longer answer is a solution, which belongs to the reasoning.
        if 0 <= start < end and "\n" not in text[start + len(opening) : end].strip():
            text = text[:start] + text[end + len(closing) :]
    for tag in _list_tags(leaf):
        text = text.replace(tag, REMOVED)
    # Words on both sides of a tag stay apart.
    text = GLUED.sub("\n", MARKERS.sub(REMOVED, text)).replace(REMOVED, "")
    return BLANK.sub("\n\n", HASHES.sub("", text)).strip()
