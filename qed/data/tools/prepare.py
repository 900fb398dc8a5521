"""An offline snapshot of tasks: their rows as they were published, in a folder that `--tasks NAME:SPLIT@DIR` reads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from qed import __version__
from qed.config import plugins
from qed.data.sources.rows import Row
from qed.data.tasks import MANIFEST, suggest_prompt
from qed.data.tools import snapshot
from qed.data.tools.contamination import Overlap, find_overlap
from qed.data.tools.convert import build_rows
from qed.data.tools.filters import Filters, filter_problems, split_problems
from qed.data.tools.load import Data, pair_with_rows
from qed.data.tools.prompting import PromptView, load_prompt_view
from qed.errors import DataError, UsageError
from qed.types import Problem

FILE = "data.jsonl"
VALIDATION = "validation"


@dataclass(frozen=True)
class Plan:
    """What to make of tasks.

    Attributes:
        filters: for the splits to train on; benchmarks are kept whole.
        against: benchmarks to compare with, by their names.
        words: how many words in a row make an overlap.
        drop_contaminated: whether training problems that overlap are left out.
        model: whose tokenizer measures lengths; empty measures characters.
        prompt: that lengths are measured with, and its options; an empty name takes each task's own.
        revisions: of the hub, as they were asked for.
    """

    filters: Filters
    against: Mapping[str, list[Problem]]
    words: int
    drop_contaminated: bool
    model: str
    prompt: tuple[str, tuple[str, ...]]
    revisions: Mapping[str, str]


@dataclass(frozen=True)
class PreparedTask:
    """What became of one task: the problems of each split, the reasons of those left out, what overlaps, and the unit
    that lengths were measured in."""

    data: Data
    parts: dict[str, list[Problem]]
    left_out: Counter[str]
    overlap: Overlap | None
    view: PromptView


def prepare(loaded: Sequence[Data], folder: Path, plan: Plan, overwrite: bool) -> dict[str, Any]:
    """Write the snapshot, and return its manifest.

    Raises:
        UsageError: the folder is there already, or two tasks are the same.
        DataError: a task has no problem left.
    """
    made = [_prepare_task(data, plan) for data in loaded]
    with snapshot.open_snapshot(folder, overwrite) as place:
        tasks = [entry for one in made for entry in _write_splits(one, place, folder, plan)]
        manifest = {
            "qed": __version__,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "filters": asdict(plan.filters),
            "model": plan.model,
            "tasks": tasks,
            "contamination": {one.data.name: one.overlap.figures for one in made if one.overlap},
        }
        (place / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False, default=str), encoding="utf-8")
    return manifest


def check_names(loaded: Sequence[Data]) -> None:
    """Refuse two tasks that would be one folder."""
    twice = [name for name, count in Counter(f"{data.folder}:{data.split}" for data in loaded).items() if count > 1]
    if twice:
        raise UsageError(f"Two of the tasks would both be {twice[0]} in the snapshot; name one, or rename a file.")


def label_benchmarks(loaded: Sequence[Data]) -> dict[str, list[Problem]]:
    """Benchmarks by the shortest name that tells them apart."""
    labels = Counter(data.task.label for data in loaded)
    return {data.task.label if labels[data.task.label] == 1 else data.name: data.problems for data in loaded}


def _prepare_task(data: Data, plan: Plan) -> PreparedTask:
    prompt, options = plan.prompt
    asked = load_prompt_view(prompt or suggest_prompt(data.name), options, plan.model, data.problems)
    if not data.trains:
        return PreparedTask(data, {data.split: data.problems}, data.left_out, None, asked)
    left_out = Counter(data.left_out)
    kept = filter_problems(data.problems, plan.filters, asked, left_out)
    overlap = find_overlap(kept, plan.against, plan.words) if plan.against else None
    if overlap is not None and plan.drop_contaminated:
        left_out["problems that overlap with a benchmark"] += len(kept) - len(overlap.clean)
        kept = overlap.clean
        if not kept:
            raise DataError(f"{data.name}: every problem overlaps with a benchmark.")
    train, validation = split_problems(kept, plan.filters, left_out)
    parts = {data.split: train, **({VALIDATION: validation} if validation else {})}
    return PreparedTask(data, parts, left_out, overlap, asked)


def _write_splits(made: PreparedTask, place: Path, folder: Path, plan: Plan) -> list[dict[str, Any]]:
    """Write the splits of a task, and describe each for the manifest."""
    entries = []
    for split, problems in made.parts.items():
        table = _collect_rows(made, problems, split)
        name = Path(made.data.folder) / split / FILE
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        snapshot.write_rows(place / name, table)
        entries.append(
            {
                "task": f"{made.data.folder}:{split}",
                "read_with": _name_task(made.data, split, folder),
                "file": name.as_posix(),
                "sha256": snapshot.hash_file(place / name),
                "rows": len(table),
                "problems": len(problems),
                "from": {
                    "name": made.data.name,
                    "split": made.data.split,
                    **_describe_origin(made.data, plan.revisions),
                },
                "lengths_in": made.view.unit,
                "left_out": {reason: count for reason, count in made.left_out.items() if count},
            }
        )
    return entries


def _collect_rows(made: PreparedTask, problems: list[Problem], split: str) -> list[Row]:
    """The rows as they were published, so that a task reads them as its own; made ones in our plain schema."""
    if made.data.originals:
        return [row for _, row in pair_with_rows(problems, made.data.originals)]
    return build_rows(problems, "jsonl", made.view, (made.data.folder, split), made.left_out)


def _name_task(data: Data, split: str, folder: Path) -> str:
    """The task's name that reads a split of the snapshot."""
    if data.originals and data.task.leaf != "files":
        return f"{data.task.leaf}:{split}@{folder}"
    return f"files:{split}@{folder / data.folder}"


def _describe_origin(data: Data, revisions: Mapping[str, str]) -> dict[str, str]:
    """Where a task's rows came from."""
    if data.task.path:
        path = Path(data.task.path)
        return {"source": str(path), **({"source_sha256": snapshot.hash_file(path)} if path.is_file() else {})}
    benchmark = getattr(plugins.load_leaf("tasks", data.task.leaf), "BENCHMARK", None)
    if benchmark is None:
        return {"source": f"made by qed {__version__}"}
    hub = benchmark.splits[data.split]
    return {"source": f"hub:{hub.name}", "revision": revisions.get(data.task.leaf) or hub.revision}
