"""Let a model judge answers to instructions without a gold answer: AlpacaEval's win rate, SimpleSafetyTests.

The judge is a chat model behind an OpenAI-compatible endpoint, or a model that qed loads. Its replies are saved as they
arrive, so an interrupted judgement can be resumed.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from qed.console.live import Console
from qed.data.sources.texts import read_text
from qed.errors import DataError, Interrupted, ModelError, UsageError, find_exit_code
from qed.evaluation.intervals import compute_mean_intervals
from qed.evaluation.judges import Ask
from qed.evaluation.rubrics import CHECK_SAFETY, COMPARE, PREFERENCE, SAFETY, parse_verdict, read_rubric
from qed.evaluation.stored_problems import write_count
from qed.net.cache import ReplyCache
from qed.rewards.http import fill
from qed.runs.run import write_whole

# Column names in the files of AlpacaEval, CS336 and qed; the first that a row has is used.
INSTRUCTIONS = ("instruction", "prompts_final", "prompt", "question")
OUTPUTS = ("output", "response", "completion", "text")
KINDS = ("harm_area", "dataset")
ENDINGS = (".jsonl", ".json")  # of the files of verdicts and of figures


@dataclass(frozen=True)
class Judgement:
    """What is judged: the outputs, the references to compare them with, the rubric, and where verdicts are written.

    Args:
        outputs: a JSON list or JSON Lines with an instruction and an output in each row.
        references: a file of the same form, to compare the outputs with; None for no comparison.
        rubric: `preference`, `safety`, or a text file with {instruction} and {output} that asks for a reply ending in
            `Score: N`.
        out: folder of the verdicts.
        limit: judge only this many first rows; 0 judges all.
    """

    outputs: Path
    references: Path | None
    rubric: str
    out: Path
    limit: int = 0


@dataclass(frozen=True)
class _Item:
    """A row with its requests to the judge."""

    row: Mapping[str, Any]
    requests: tuple[str, ...]


def judge_outputs(
    judgement: Judgement, name: str, identity: Sequence[Any], ask: Ask, console: Console
) -> dict[str, Any]:
    """Judge outputs, write verdicts and figures, and print the figures.

    Args:
        judgement: what is judged.
        name: name of the judge.
        identity: what determines its replies besides the requests; the key under which replies are saved.
        ask: asks the judge.
        console: for progress and figures.

    Returns:
        the figures: the share of wins or safe outputs, or the mean score, with its 95 % interval, overall and by kind.
    """
    items = _load_items(judgement)
    stem = judgement.outputs.name.removesuffix(".json").removesuffix(".jsonl").removesuffix(".outputs")
    cache = ReplyCache(judgement.out / f"{stem}.replies.jsonl")
    requests = [request for item in items for request in item.requests]
    try:
        replies = _collect_replies(requests, name, identity, ask, cache, console)
    except (Interrupted, KeyboardInterrupt) as stopped:
        console.end_phase()
        message = "Interrupted. The replies so far are saved; the same command resumes."
        raise Interrupted(message, find_exit_code(stopped)) from stopped
    rows = list(_build_rows(items, replies, judgement.rubric))
    compared = {"references": str(judgement.references)} if judgement.rubric == PREFERENCE else {}
    figures = {"judge": name, "rubric": judgement.rubric, **compared, **_summarize(rows, judgement.rubric)}
    place = judgement.out / f"{stem}.judged"
    _keep_others(place, figures, console)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    # The figures name the judge, so they are written first: a killed process must not leave verdicts without them.
    write_whole(place.with_name(f"{place.name}.json"), json.dumps(figures, indent=1).encode())
    write_whole(place.with_name(f"{place.name}.jsonl"), lines.encode())
    _show(figures, stem, console)
    console.say(f"Every verdict is in {place}.jsonl.")
    return figures


def _keep_others(place: Path, figures: Mapping[str, Any], console: Console) -> None:
    """Rename verdicts of another judge, rubric or comparison, so that they are not overwritten."""
    written = place.with_name(f"{place.name}.json")
    try:
        known = json.loads(written.read_bytes())
        other = any(known.get(key) != figures.get(key) for key in ("judge", "rubric", "references"))
    except FileNotFoundError:
        return
    except (ValueError, AttributeError):
        other = True  # not written by this command, so not overwritten either
    if not other:
        return
    names = (f"{place.name}.{number}" for number in itertools.count(1))
    free = next(name for name in names if not any(place.with_name(f"{name}{end}").exists() for end in ENDINGS))
    for ending in ENDINGS:
        with suppress(FileNotFoundError):
            place.with_name(f"{place.name}{ending}").rename(place.with_name(f"{free}{ending}"))
    console.say(f"Verdicts of another judge, rubric or comparison are kept: {written} is now {free}.json.")


def _load_items(judgement: Judgement) -> list[_Item]:
    rows = _read_rows(judgement.outputs)[: judgement.limit or None]
    if judgement.rubric != PREFERENCE:
        template = CHECK_SAFETY if judgement.rubric == SAFETY else read_rubric(Path(judgement.rubric))
        return [_Item(row, (fill(template, row),)) for row in rows]
    if judgement.references is None:
        raise UsageError(
            "The rubric preference compares with the outputs of another model: name their file with --references."
        )
    references: dict[str, list[str]] = defaultdict(list)
    for row in _read_rows(judgement.references):
        references[row["instruction"]].append(row["output"])
    missing = [row["instruction"] for row in rows if row["instruction"] not in references]
    if missing:
        raise DataError(
            f"{judgement.references} has no output for {len(missing)} of the {len(rows)} instructions, the first: "
            f"{missing[0][:80]!r}. Both files must answer the same instructions."
        )
    # Judges have a position bias, so both orders are asked.
    return [
        _Item(
            {**row, "reference": reference},
            (_compare(row, row["output"], reference), _compare(row, reference, row["output"])),
        )
        for row, reference in _pair(rows, references)
    ]


def _pair(
    rows: Sequence[dict[str, str]], references: Mapping[str, Sequence[str]]
) -> Iterator[tuple[dict[str, str], str]]:
    """Yield each row with its reference; repeated instructions are matched in the order of both files."""
    counts: Counter[str] = Counter()
    for row in rows:
        own, number = references[row["instruction"]], counts[row["instruction"]]
        counts[row["instruction"]] += 1
        yield row, own[min(number, len(own) - 1)]


def _compare(row: Mapping[str, str], first: str, second: str) -> str:
    return fill(COMPARE, {"instruction": row["instruction"], "first": first, "second": second})


def _read_rows(path: Path) -> list[dict[str, str]]:
    """Read rows with an instruction, an output and their kind."""
    if not path.exists():
        raise DataError(f"There is no file {path}. `qed evaluate` writes one for tasks such as alpaca_eval.")
    text = read_text(path)
    try:
        whole = text.lstrip().startswith("[")
        # Only line feeds end a line: an output may contain other Unicode line separators.
        rows = json.loads(text) if whole else [json.loads(line) for line in text.split("\n") if line.strip()]
    except ValueError as error:
        raise DataError(f"{path} cannot be read: {error}.") from error
    if not rows:
        raise DataError(f"{path} has no rows.")
    return [_read_row(row, path, number) for number, row in enumerate(rows, 1)]


def _read_row(row: Any, path: Path, number: int) -> dict[str, str]:
    values = row if isinstance(row, dict) else {}
    instruction = next((values[name] for name in INSTRUCTIONS if isinstance(values.get(name), str)), None)
    output = next((values[name] for name in OUTPUTS if isinstance(values.get(name), str)), None)
    if instruction is None or output is None:
        wanted = " or ".join(INSTRUCTIONS if instruction is None else OUTPUTS)
        raise DataError(f"{path}, row {number}: there is no text in a column {wanted}.")
    kind = next((str(values[name]) for name in KINDS if values.get(name)), "")
    return {"instruction": instruction, "output": output, "kind": kind}


def _collect_replies(
    requests: Sequence[str], name: str, identity: Sequence[Any], ask: Ask, cache: ReplyCache, console: Console
) -> dict[str, tuple[str | None, str]]:
    """Return the reply to each request, or None and the reason; saved replies are not requested again."""
    replies: dict[str, tuple[str | None, str]] = {}
    for request in dict.fromkeys(requests):
        known = cache.find([*identity, request])
        if known is not None:
            replies[request] = (known, "")
    waiting = [request for request in dict.fromkeys(requests) if request not in replies]
    if replies:
        console.say(f"{len(replies)} of {len(replies) + len(waiting)} replies are already there.")
    console.phase("", len(replies), "reply")
    total = len(replies) + len(waiting)
    for number, reply, reason in ask(waiting) if waiting else ():
        replies[waiting[number]] = (reply, reason)
        if reply is not None:
            cache.add([*identity, waiting[number]], reply)
        console.step(len(replies), total, {})
    console.end_phase()
    if waiting and not any(reply is not None for reply, _ in replies.values()):
        raise ModelError(f"The judge {name} has answered none of {total} requests: {replies[waiting[0]][1]}.")
    return replies


def _build_rows(
    items: Sequence[_Item], replies: Mapping[str, tuple[str | None, str]], rubric: str
) -> Iterator[dict[str, Any]]:
    for item in items:
        answers = [replies[request] for request in item.requests]
        values = [None if reply is None else parse_verdict(reply, rubric) for reply, _ in answers]
        if rubric == PREFERENCE and values[1] is not None:
            values[1] = 1 - values[1]  # the second request has the output in second place
        known = [value for value in values if value is not None]
        yield {
            **item.row,
            # One order alone would include the judge's position bias.
            "value": fmean(known) if len(known) == len(values) else None,
            "replies": [reply for reply, _ in answers],
            "reasons": [
                reason or "no verdict in the reply" for (_, reason), v in zip(answers, values, strict=True) if v is None
            ],
        }


def _summarize(rows: Sequence[Mapping[str, Any]], rubric: str) -> dict[str, Any]:
    judged = [row for row in rows if row["value"] is not None]
    kinds = sorted({row["kind"] for row in judged})
    figures: dict[str, Any] = {
        "n": len(rows),
        "not_judged": len(rows) - len(judged),
        **_estimate([row["value"] for row in judged]),
        "mean_chars": fmean(len(row["output"]) for row in rows),
        "by": {kind: _estimate([row["value"] for row in judged if row["kind"] == kind]) for kind in kinds if kind},
    }
    if rubric == PREFERENCE:
        figures["ties"] = sum(row["value"] == 0.5 for row in judged)
        figures["mean_chars_reference"] = fmean(len(row["reference"]) for row in rows)
    return figures


def _estimate(values: Sequence[float]) -> dict[str, Any]:
    """Return the mean of values in [0, 1] and its 95 % interval; None if nothing was judged."""
    if not values:
        return {"judged": 0, "value": None, "ci_lo": None, "ci_hi": None}
    low, high = compute_mean_intervals(np.array(values, dtype=np.float64)[:, None])[0]
    return {"judged": len(values), "value": fmean(values), "ci_lo": low, "ci_hi": high}


def _show(figures: Mapping[str, Any], stem: str, console: Console) -> None:
    title = {PREFERENCE: "Wins against the references", SAFETY: "Safe outputs"}.get(figures["rubric"], "Score")
    kinds = {stem: figures, **(figures["by"] if len(figures["by"]) > 1 else {})}
    rows = [
        (
            kind,
            str(each["judged"]),
            "–" if each["value"] is None else f"{each['value']:.1%} [{each['ci_lo']:.1%}, {each['ci_hi']:.1%}]",
        )
        for kind, each in kinds.items()
    ]
    console.table(f"{title}, judged by {figures['judge']}", ("", "n", "share [95 %]"), rows)
    if figures.get("ties"):
        ties = write_count(figures["ties"], "output")
        console.say(f"{ties} won in one order and lost in the other; each counts as half a win.")
    if figures["not_judged"]:
        console.say(
            f"{figures['not_judged']} of {figures['n']} outputs have no verdict and count in no figure; see `reasons`."
        )
