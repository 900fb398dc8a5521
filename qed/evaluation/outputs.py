"""Write the outputs of a task without correct answers, for `qed judge` and for programs such as alpaca-eval."""

from __future__ import annotations

import json
from pathlib import Path

from qed.console.live import Console
from qed.evaluation.benchmarks import Benchmark
from qed.evaluation.store import Store
from qed.runs.run import Row, write_whole


def write_outputs(bench: Benchmark, store: Store, generator: str, console: Console) -> Row:
    """Write the first output to each instruction, and the references that the task has, in two files of the same form.

    Returns:
        the path of the outputs.
    """
    problems = {problem.id: problem for problem in bench.problems}
    outputs, references = [], []
    for row in store.rows:
        if row["sample_id"] == 0:
            meta = problems[row["group_id"]].meta
            about = {
                "instruction": row["question"],
                "dataset": meta.get("dataset") or row.get("data_source") or bench.label,
            }
            outputs.append({**about, "output": str(row["text"]).strip(), "generator": generator})
            if meta.get("reference"):
                references.append({**about, "output": meta["reference"], "generator": str(meta.get("generator", ""))})
    path = store.home / f"{bench.label}.outputs.json"
    write_whole(path, json.dumps(outputs, indent=1).encode())
    if references:
        write_whole(find_references(path), json.dumps(references, indent=1).encode())
    store.part.unlink(missing_ok=True)
    console.say(f"{bench.label}: there are no gold answers; its {len(outputs)} outputs are in {path}.")
    console.say(f"A model judges them with `qed judge {path} --url ADDRESS --model NAME`.")
    return {"outputs": str(path)}


def find_references(outputs: Path) -> Path:
    """Return the path of the references that belong to a file of outputs."""
    return outputs.parent / (outputs.name.removesuffix(".outputs.json") + ".references.json")
