"""Write the outputs of a task without gold answers, for `qed judge` and programs such as alpaca-eval."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from qed.console.live import Console
from qed.errors import UsageError
from qed.evaluation.store import Store
from qed.runs.run import Row, read_json, write_whole

if TYPE_CHECKING:
    from qed.evaluation.benchmarks import Benchmark

REFERENCE = ("dataset", "reference", "generator")  # optional columns of a problem besides its instruction


def list_references(bench: Benchmark) -> dict[str, Row]:
    """Return the optional columns of the problems, by problem id."""
    return {
        problem.id: {name: problem.meta[name] for name in REFERENCE if problem.meta.get(name)}
        for problem in bench.problems
    }


def write_outputs(store: Store, references: Mapping[str, Row], generator: str, console: Console) -> Row:
    """Write the first output to each instruction, and the task's references if any, to two files of the same form.

    Returns:
        the path of the outputs.
    """
    outputs, expected = [], []
    for row in store.rows:
        if row["sample_id"] == 0:
            known = references[row["group_id"]]
            about = {
                "instruction": row["question"],
                "dataset": known.get("dataset") or row.get("data_source") or store.task,
            }
            outputs.append({**about, "output": str(row["text"]).strip(), "generator": generator})
            if known.get("reference"):
                expected.append({**about, "output": known["reference"], "generator": str(known.get("generator", ""))})
    path = _name_outputs(store.home, store.task)
    write_whole(path, json.dumps(outputs, indent=1).encode())
    if expected:
        write_whole(find_references(path), json.dumps(expected, indent=1).encode())
    store.part.unlink(missing_ok=True)
    console.say(f"{store.task}: there are no gold answers; its {len(outputs)} outputs are in {path}.")
    console.say(f"To have a model judge them: `qed judge {path} --url ADDRESS --model NAME`.")
    return {"outputs": str(path)}


def require_own_outputs(home: Path, task: str, generator: str) -> None:
    """Check before sampling that the outputs will not overwrite those of another model.

    Raises:
        UsageError: they would.
    """
    path = _name_outputs(home, task)
    rows = read_json(path, [])
    others = {str(row.get("generator")) for row in rows if isinstance(row, dict)} - {generator}
    if others:
        raise UsageError(
            f"{path} has the outputs of {', '.join(sorted(others))}. Use another --out, or replace them with "
            "--overwrite."
        )


def _name_outputs(home: Path, task: str) -> Path:
    return home / f"{task}.outputs.json"


def find_references(outputs: Path) -> Path:
    """Return the path of the references that belong to a file of outputs."""
    return outputs.parent / (outputs.name.removesuffix(".outputs.json") + ".references.json")
