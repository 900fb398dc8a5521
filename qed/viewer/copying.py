"""Choose what a static copy of the viewer holds: the replies that its pages ask for, within bounds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any
from urllib.parse import quote

import qed
from qed.errors import QedError
from qed.viewer.app import ENDPOINTS
from qed.viewer.library import Library, RunPlace
from qed.viewer.params import Params
from qed.viewer.replies import encode_reply, find_neighbours

UNRESERVED = "!'()*~-_."  # what encodeURIComponent leaves as it is, beside letters and digits
HALVES = re.compile("[\ud800-\udfff]")
MAX_COMPARED = 6  # runs that are compared with each other
MAX_NOTES = 20  # sentences on what is left out
MAX_LOGS = 20  # of the last attempts of a run
Values = Mapping[str, str | int]
Reply = dict[str, Any]
# What an endpoint raises for a folder that nobody would write.
FAULTS = (QedError, OSError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True)
class Bounds:
    """How much a copy holds.

    `steps` of training of each run, `groups` of a step or an evaluation with all their answers side by side, `answers`
    of each group with their tokens, `problems` of each run, and `size` of all replies in bytes.
    """

    steps: int
    groups: int
    answers: int
    problems: int
    size: int


PAGE = Bounds(steps=6, groups=12, answers=4, problems=100, size=48 << 20)
FOLDER = Bounds(steps=12, groups=64, answers=16, problems=1_000, size=1 << 30)


def canonical_key(name: str, params: Values) -> str:
    """Return the key of a reply, the same as `canonical` of api.js: the parameters in order, each encoded."""
    pairs = (f"{encode_part(key)}={encode_part(params[key])}" for key in sorted(params) if params[key] != "")
    return f"{name}?{'&'.join(pairs)}"


def encode_part(value: str | int) -> str:
    """Encode a text for a key; half of a pair of surrogates has no encoding, and becomes the replacement character."""
    return quote(HALVES.sub("\ufffd", str(value)), UNRESERVED)


def choose_steps(found: Sequence[int], wanted: Sequence[int] | None, limit: int) -> list[int]:
    """Return the wanted steps that there are; by default at most `limit`, evenly spaced, with both ends."""
    if wanted is not None:
        return sorted(set(wanted) & set(found))
    if len(found) <= limit:
        return list(found)
    return [found[round(number * (len(found) - 1) / (limit - 1))] for number in range(limit)]


@dataclass
class Copy:
    """Collects the replies of a copy, each once, and says what it leaves out.

    Args:
        library: the runs.
        bounds: how much it holds.
        wanted: the steps of training that were asked for; None for a few of each run.
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
        """Yield each reply with its key: first what lists and figures need, then groups and answers."""
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
            self.notes.append(f"The copy is full at {self.bounds.size >> 20} MiB; what comes after is left out.")

    def list_notes(self) -> list[str]:
        """Return what the copy leaves out, in sentences; complete once all replies are collected."""
        notes = list(dict.fromkeys(self.notes))
        rest = len(notes) - MAX_NOTES
        return [*notes[:MAX_NOTES], f"And {rest:,} more of this kind."] if rest > 0 else notes

    def describe(self) -> tuple[str, bytes]:
        """Return the reply of `about`, which says what the copy holds."""
        reply = {"version": qed.__version__, "static": True, "runs": len(self.library.runs())}
        return canonical_key("about", {}), encode_reply({**reply, "notes": self.list_notes()})

    def _take(self, name: str, params: Values) -> Iterator[tuple[str, bytes]]:
        """Yield the key and the reply of an endpoint; nothing where it refuses, or the copy is full."""
        yield from self._add(name, params, self._ask(name, params))

    def _ask(self, name: str, params: Values) -> Reply:
        """Return the reply of an endpoint; empty where it refuses."""
        try:
            return {} if self.is_full else ENDPOINTS[name](self.library, Params(params))
        except FAULTS as error:
            self.notes.append(f"{canonical_key(name, params)} is not here: {str(error)[:200]}")
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
        """Note groups of a step that this copy lists."""
        if canonical_key("step", where) in self.keys:
            self.groups.setdefault(canonical_key("step", where), (where, set()))[1].update(groups)

    def _copy_run(self, place: RunPlace) -> Iterator[tuple[str, bytes]]:
        """Yield the pages of a run."""
        run = {"run": place.key}
        details = self._ask("run", run)
        found = details.get("steps", [])
        steps = choose_steps(found, self.wanted, self.bounds.steps)
        if len(steps) < len(found):
            self.notes.append(f"{place.key}: the answers of {len(steps)} of {len(found)} steps are here.")
        yield from self._add("run", run, details and {**details, "steps": steps})
        yield from self._take("metrics", run)
        yield from self._copy_logs(place, details)
        yield from self._copy_evaluations(place)
        for at, step in enumerate(steps):
            yield from self._copy_table({**run, "step": step}, find_neighbours(steps, at), self.bounds.groups)
        yield from self._copy_suspects(run)
        yield from self._copy_problems(place)

    def _copy_logs(self, place: RunPlace, details: Reply) -> Iterator[tuple[str, bytes]]:
        """Yield the ends of the logs of the last attempts."""
        logs = [
            {"run": place.key, "attempt": attempt["attempt"], "name": log["name"]}
            for attempt in reversed(details.get("attempts", []))
            for log in attempt["logs"]
        ]
        for params in logs[:MAX_LOGS]:
            yield from self._take("log", params)

    def _copy_evaluations(self, place: RunPlace) -> Iterator[tuple[str, bytes]]:
        """Yield all evaluations with their tables of answers; groups of a few of each task and decoding."""
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
                f"Of a step's groups the first {self.bounds.groups} can be opened, and those that a list of suspects "
                "or of changed problems names first."
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
        """Yield groups of a step that lead to each other, and the first answers of each with their tokens."""
        for at, group in enumerate(groups):
            reply = self._ask("group", {**where, "group": group})
            yield from self._add("group", {**where, "group": group}, reply and {**reply, **find_neighbours(groups, at)})
            answers = reply.get("answers", [])
            for answer in answers[: self.bounds.answers]:
                yield from self._take("answer", {**where, "group": group, "answer": answer["answer"]})
            if len(answers) > self.bounds.answers:
                self.notes.append(f"Of each group the first {self.bounds.answers} answers can be opened alone.")

    def _copy_problems(self, place: RunPlace) -> Iterator[tuple[str, bytes]]:
        """Yield the list of the problems that the run saw most often, and each of them through training."""
        run = {"run": place.key}
        reply = self._ask("problems", run)
        while reply and not reply["complete"]:
            reply = self._ask("problems", run)
        found = reply.get("problems", [])
        kept = found[: self.bounds.problems]
        if len(kept) < reply.get("n", 0):
            self.notes.append(f"{place.key}: {len(kept)} of {reply['n']} problems are here, those seen most often.")
        yield from self._add("problems", run, reply and {**reply, "problems": kept})
        for problem in kept:
            yield from self._take("problem", {**run, "id": problem["id"]})
