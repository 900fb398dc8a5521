"""Choose what a static copy of the viewer contains: the replies that its pages request, within limits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any
from urllib.parse import quote

import qed
from qed.errors import QedError
from qed.report.numbers import space_evenly
from qed.viewer.app import ENDPOINTS
from qed.viewer.library import Library, RunPlace
from qed.viewer.params import Params
from qed.viewer.replies import encode_reply, find_neighbours

UNRESERVED = "!'()*~-_."  # what encodeURIComponent leaves unchanged, besides letters and digits
HALVES = re.compile("[\ud800-\udfff]")
MAX_COMPARED = 6  # runs that are compared with each other
MAX_NOTES = 20  # sentences about what is left out
MAX_LOGS = 20  # logs of a run's last attempts
Values = Mapping[str, str | int]
Reply = dict[str, Any]
# Errors that an endpoint may raise for a malformed folder.
FAULTS = (QedError, OSError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True)
class Bounds:
    """The limits of a copy.

    `steps` are training steps of each run, `groups` those of a step or an evaluation with all their answers side by
    side, `answers` those of each group with their tokens, `problems` those of each run, and `size` is bytes of all
    replies.
    """

    steps: int
    groups: int
    answers: int
    problems: int
    size: int


PAGE = Bounds(steps=6, groups=12, answers=4, problems=100, size=48 << 20)
FOLDER = Bounds(steps=12, groups=64, answers=16, problems=1_000, size=1 << 30)


def canonical_key(name: str, params: Values) -> str:
    """Return the key of a reply, the same as `canonical` in api.js: the parameters in order, each encoded."""
    pairs = (f"{encode_part(key)}={encode_part(params[key])}" for key in sorted(params) if params[key] != "")
    return f"{name}?{'&'.join(pairs)}"


def encode_part(value: str | int) -> str:
    """Encode a text for a key; a lone surrogate has no encoding and becomes the replacement character."""
    return quote(HALVES.sub("\ufffd", str(value)), UNRESERVED)


def choose_steps(found: Sequence[int], wanted: Sequence[int] | None, limit: int) -> list[int]:
    """Return the wanted steps that exist; by default at most `limit` steps, evenly spaced, with both ends."""
    if wanted is not None:
        return sorted(set(wanted) & set(found))
    return space_evenly(found, limit)


@dataclass
class Copy:
    """Collects the replies of a copy, each once, and notes what is left out.

    Args:
        library: the runs.
        bounds: the limits of the copy.
        wanted: the training steps to copy; None for a few of each run.
    """

    library: Library
    bounds: Bounds
    wanted: Sequence[int] | None = None
    size: int = 0
    keys: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    is_full: bool = False
    # The groups that can be opened, by the key of their step.
    groups: dict[str, tuple[Values, set[int]]] = field(default_factory=dict)

    def collect(self) -> Iterator[tuple[str, bytes]]:
        """Yield each reply with its key: first those of lists and figures, then those of groups and answers."""
        places = self.library.runs()
        yield from self._take("runs", {})
        for place in places:
            yield from self._copy_run(place)
        pairs = list(permutations(places[:MAX_COMPARED], 2)) + [(place, place) for place in places[:MAX_COMPARED]]
        for a, b in pairs:
            yield from self._copy_pair(a, b)
        if len(places) > MAX_COMPARED:
            self.notes.append(f"Only the first {MAX_COMPARED} of {len(places)} runs are compared with each other.")
        for where, groups in self.groups.values():
            yield from self._copy_groups(where, sorted(groups))
        if self.is_full:
            self.notes.append(f"The copy is full at {self.bounds.size >> 20} MiB; everything after that is left out.")

    def list_notes(self) -> list[str]:
        """Return sentences about what the copy leaves out; complete once all replies are collected."""
        notes = list(dict.fromkeys(self.notes))
        rest = len(notes) - MAX_NOTES
        return [*notes[:MAX_NOTES], f"And {rest:,} more like these."] if rest > 0 else notes

    def describe(self) -> tuple[str, bytes]:
        """Return the reply of `about`, which says what the copy contains."""
        reply = {"version": qed.__version__, "static": True, "runs": len(self.library.runs())}
        return canonical_key("about", {}), encode_reply({**reply, "notes": self.list_notes()})

    def _take(self, name: str, params: Values) -> Iterator[tuple[str, bytes]]:
        """Yield the key and the reply of an endpoint; nothing if it refuses, or the copy is full."""
        yield from self._add(name, params, self._ask(name, params))

    def _ask(self, name: str, params: Values) -> Reply:
        """Return the reply of an endpoint; empty if it refuses."""
        try:
            return {} if self.is_full else ENDPOINTS[name](self.library, Params(params))
        except FAULTS as error:
            self.notes.append(f"{canonical_key(name, params)} is left out: {str(error)[:200]}")
            return {}

    def _add(self, name: str, params: Values, reply: Reply) -> Iterator[tuple[str, bytes]]:
        key = canonical_key(name, params)
        if not reply or key in self.keys:
            return
        content = encode_reply(reply)
        self.is_full = self.size + len(content) > self.bounds.size
        if not self.is_full:
            self.keys.add(key)
            self.size += len(content)
            yield key, content

    def _want(self, where: Values, groups: Iterable[int]) -> None:
        """Remember groups of a step to copy later."""
        if canonical_key("step", where) in self.keys:
            self.groups.setdefault(canonical_key("step", where), (where, set()))[1].update(groups)

    def _copy_run(self, place: RunPlace) -> Iterator[tuple[str, bytes]]:
        """Yield the pages of a run."""
        run = {"run": place.key}
        details = self._ask("run", run)
        found = details.get("steps", [])
        steps = choose_steps(found, self.wanted, self.bounds.steps)
        if len(steps) < len(found):
            self.notes.append(f"{place.key}: the answers of {len(steps)} of {len(found)} steps are included.")
        yield from self._add("run", run, details and {**details, "steps": steps})
        yield from self._take("metrics", run)
        yield from self._copy_logs(place, details)
        yield from self._copy_evaluations(place)
        for at, step in enumerate(steps):
            yield from self._copy_table({**run, "step": step}, find_neighbours(steps, at), self.bounds.groups)
        yield from self._copy_suspects(run)
        yield from self._copy_problems(place)

    def _copy_logs(self, place: RunPlace, details: Reply) -> Iterator[tuple[str, bytes]]:
        """Yield the ends of the last attempts' logs."""
        logs = [
            {"run": place.key, "attempt": attempt["attempt"], "name": log["name"]}
            for attempt in reversed(details.get("attempts", []))
            for log in attempt["logs"]
        ]
        for params in logs[:MAX_LOGS]:
            yield from self._take("log", params)

    def _copy_evaluations(self, place: RunPlace) -> Iterator[tuple[str, bytes]]:
        """Yield all evaluations with their tables of answers, and the groups of a few of each task and decoding."""
        reply = self._ask("evaluations", {"run": place.key})
        yield from self._add("evaluations", {"run": place.key}, reply)
        found = reply.get("evaluations", [])
        steps: dict[tuple[str, str], list[int]] = {}
        for each in found:
            steps.setdefault((each["task"], each["decoding"]), []).append(each["step"])
        chosen = {name: choose_steps(own, None, self.bounds.steps) for name, own in steps.items()}
        for each in found:
            where = {"run": place.key, **{name: each[name] for name in ("step", "task", "decoding")}}
            yield from self._take("evaluation", where)
            wanted = each["step"] in chosen[each["task"], each["decoding"]]
            yield from self._copy_table(where, {}, self.bounds.groups if wanted else 0)

    def _copy_table(self, where: Values, changes: Reply, count: int) -> Iterator[tuple[str, bytes]]:
        """Yield the table of a step or an evaluation, whose first `count` groups can be opened."""
        table = self._ask("step", where)
        groups = table.get("groups", [])
        yield from self._add("step", where, table and {**table, **changes})
        self._want(where, [group["group"] for group in groups[:count]])
        if len(groups) > count:
            self.notes.append(
                f"Of a step's groups, only the first {self.bounds.groups} can be opened, and the first ones in the "
                "lists of suspects and of changed problems."
            )

    def _copy_suspects(self, run: Values) -> Iterator[tuple[str, bytes]]:
        """Yield the suspects of a run; the groups of the first ones can be opened."""
        reply = self._ask("suspects", run)
        yield from self._add("suspects", run, reply)
        for kind in reply.get("kinds", []):
            for item in kind["items"][: self.bounds.groups]:
                self._want({**run, "step": item["step"]}, [item["group"]])

    def _copy_pair(self, a: RunPlace, b: RunPlace) -> Iterator[tuple[str, bytes]]:
        """Yield the comparison of two runs; the groups of the first problems that changed can be opened."""
        reply = self._ask("compare", {"a": a.key, "b": b.key})
        yield from self._add("compare", {"a": a.key, "b": b.key}, reply)
        for task in reply.get("tasks", []):
            changes = [*task["gained"][: self.bounds.groups], *task["lost"][: self.bounds.groups]]
            for side, place, decoding in (("a", a, "decoding"), ("b", b, "decoding_b")):
                where = {"task": task["task"], "decoding": task[decoding], "step": task[f"step_{side}"]}
                self._want({"run": place.key, **where}, [change[f"group_{side}"] for change in changes])

    def _copy_groups(self, where: Values, groups: Sequence[int]) -> Iterator[tuple[str, bytes]]:
        """Yield groups of a step that link to each other, and the first answers of each with their tokens."""
        for at, group in enumerate(groups):
            reply = self._ask("group", {**where, "group": group})
            yield from self._add("group", {**where, "group": group}, reply and {**reply, **find_neighbours(groups, at)})
            answers = reply.get("answers", [])
            for answer in answers[: self.bounds.answers]:
                yield from self._take("answer", {**where, "group": group, "answer": answer["answer"]})
            if len(answers) > self.bounds.answers:
                self.notes.append(f"Of each group, only the first {self.bounds.answers} answers have a page.")

    def _copy_problems(self, place: RunPlace) -> Iterator[tuple[str, bytes]]:
        """Yield the list of the problems that the run saw most often, and the page of each."""
        run = {"run": place.key}
        reply = self._ask("problems", run)
        while reply and not reply["complete"]:
            reply = self._ask("problems", run)
        found = reply.get("problems", [])
        kept = found[: self.bounds.problems]
        if len(kept) < reply.get("n", 0):
            self.notes.append(f"{place.key}: the {len(kept)} of {reply['n']} problems seen most often are included.")
        yield from self._add("problems", run, reply and {**reply, "problems": kept})
        for problem in kept:
            yield from self._take("problem", {**run, "id": problem["id"]})
