"""Write an offline snapshot of tasks: their original rows, in a folder that `--tasks NAME:SPLIT@DIR` reads."""

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
from qed.data.sources.hub import NEWEST
from qed.data.sources.rows import Row
from qed.data.tasks import MANIFEST, suggest_prompt
from qed.data.tools import snapshot
from qed.data.tools.contamination import Overlap, find_overlap
from qed.data.tools.convert import build_rows
from qed.data.tools.filters import Filters, filter_problems, split_problems
from qed.data.tools.load import Data, pair_with_rows
from qed.data.tools.prompting import PromptView, load_prompt_view
from qed.errors import DataError, UsageError
from qed.runs.manifest import hash_file
from qed.types import Problem

FILE = "data.jsonl"
VALIDATION = "validation"
BY_COLUMNS = ("files", "hub", "memory")  # tasks whose snapshot is read as files


@dataclass(frozen=True)
class Plan:
    """How to prepare tasks.

    Attributes:
        filters: filters for training splits; benchmarks are not filtered.
        against: benchmarks to compare with, by name.
        words: number of consecutive shared words that count as an overlap.
        drop_contaminated: whether to drop training problems that overlap.
        model: model whose tokenizer measures lengths; empty measures characters.
        prompt: prompt for measuring lengths, and its options; an empty name uses each task's default.
        revisions: requested hub commits by task.
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
    """A prepared task: the problems of each split, the counts of skipped ones, the overlap, and the prompt view."""

    data: Data
    parts: dict[str, list[Problem]]
    left_out: Counter[str]
    overlap: Overlap | None
    view: PromptView


def prepare(loaded: Sequence[Data], folder: Path, plan: Plan, overwrite: bool) -> dict[str, Any]:
    """Write the snapshot, and return its manifest.

    Raises:
        UsageError: the folder already exists.
        DataError: a task has no problem left.
    """
    prepared = [_prepare_task(data, plan) for data in loaded]
    with snapshot.open_snapshot(folder, overwrite) as place:
        tasks = [entry for task in prepared for entry in _write_splits(task, place, folder, plan)]
        manifest = {
            "qed": __version__,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "filters": asdict(plan.filters),
            "model": plan.model,
            "tasks": tasks,
            "contamination": {task.data.name: task.overlap.figures for task in prepared if task.overlap},
        }
        (place / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False, default=str), encoding="utf-8")
    return manifest


def check_names(loaded: Sequence[Data]) -> None:
    """Raise if two tasks would be written to the same folder."""
    duplicates = [
        name for name, count in Counter(f"{data.folder}:{data.split}" for data in loaded).items() if count > 1
    ]
    if duplicates:
        raise UsageError(f"Two of the tasks would both be named {duplicates[0]}; name one, or rename a file.")


def label_benchmarks(loaded: Sequence[Data]) -> dict[str, list[Problem]]:
    """Map benchmarks by their shortest unique name."""
    labels = Counter(data.task.label for data in loaded)
    return {data.task.label if labels[data.task.label] == 1 else data.name: data.problems for data in loaded}


def _prepare_task(data: Data, plan: Plan) -> PreparedTask:
    prompt, options = plan.prompt
    view = load_prompt_view(prompt or suggest_prompt(data.name), options, plan.model, data.problems)
    if not data.trains:
        return PreparedTask(data, {data.split: data.problems}, data.left_out, None, view)
    left_out = Counter(data.left_out)
    kept = filter_problems(data.problems, plan.filters, view, left_out)
    overlap = find_overlap(kept, plan.against, plan.words) if plan.against else None
    if overlap is not None and plan.drop_contaminated:
        left_out["problems that overlap with a benchmark"] += len(kept) - len(overlap.clean)
        kept = overlap.clean
        if not kept:
            raise DataError(f"{data.name}: every problem overlaps with a benchmark.")
    train, validation = split_problems(kept, plan.filters, left_out)
    parts = {data.split: train, **({VALIDATION: validation} if validation else {})}
    return PreparedTask(data, parts, left_out, overlap, view)


def _write_splits(prepared: PreparedTask, place: Path, folder: Path, plan: Plan) -> list[dict[str, Any]]:
    """Write the splits of a task, and describe each for the manifest."""
    entries = []
    for split, problems in prepared.parts.items():
        table = _collect_rows(prepared, problems, split)
        name = Path(prepared.data.folder) / split / FILE
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        snapshot.write_rows(place / name, table)
        entries.append(
            {
                "task": f"{prepared.data.folder}:{split}",
                "read_with": _name_task(prepared.data, split, folder),
                "file": name.as_posix(),
                "sha256": hash_file(place / name),
                "rows": len(table),
                "problems": len(problems),
                "from": {
                    "name": prepared.data.name,
                    "split": prepared.data.split,
                    **_describe_origin(prepared.data, plan.revisions),
                },
                "lengths_in": prepared.view.unit,
                "left_out": {reason: count for reason, count in prepared.left_out.items() if count},
            }
        )
    return entries


def _collect_rows(prepared: PreparedTask, problems: list[Problem], split: str) -> list[Row]:
    """Return the original rows, which the task can read; for generated tasks, rows in qed's plain schema."""
    if prepared.data.originals:
        return [row for _, row in pair_with_rows(problems, prepared.data.originals)]
    return build_rows(problems, "jsonl", prepared.view, (prepared.data.folder, split), prepared.left_out)


def _name_task(data: Data, split: str, folder: Path) -> str:
    """Return the task name that reads a split of the snapshot."""
    if data.originals and data.task.leaf not in BY_COLUMNS:
        return f"{data.task.leaf}:{split}@{folder}"
    return f"files:{split}@{folder / data.folder}"


def _describe_origin(data: Data, revisions: Mapping[str, str]) -> dict[str, str]:
    """Describe the origin of a task's rows."""
    if data.task.path:
        path = Path(data.task.path)
        return {"source": str(path), **({"source_sha256": hash_file(path)} if path.is_file() else {})}
    if data.task.source:
        return {"source": f"hub:{data.task.source}", "revision": revisions.get(data.task.dataset) or NEWEST}
    benchmark = getattr(plugins.load_leaf("tasks", data.task.leaf), "BENCHMARK", None)
    if benchmark is None:
        return {"source": f"made by qed {__version__}"}
    hub = benchmark.splits[data.split]
    return {"source": f"hub:{hub.name}", "revision": revisions.get(data.task.leaf) or hub.revision}
