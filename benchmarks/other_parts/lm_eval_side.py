"""Runs lm-eval on tasks of a folder, or its GSM8K filters on stored answers; needs lm-eval, but not qed.

python lm_eval_side.py tasks MODEL FOLDER NAME,… SHOTS OUT
python lm_eval_side.py filter ROWS OUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

STRICT = r"#### (\-?[0-9\.\,]+)"  # from the task gsm8k, version 3
FLEXIBLE = r"(-?[$0-9.,]{2,})|(-?[0-9]+)"
IGNORED = [",", r"\$", r"(?s).*#### ", r"\.$"]


def run_tasks(model: str, folder: str, names: str, shots: str, out: str) -> None:
    """Evaluate the tasks, and write for each the figures and the results by document."""
    import lm_eval  # noqa: PLC0415
    from lm_eval.tasks import TaskManager  # noqa: PLC0415

    results = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": model, "dtype": "float32"},
        tasks=names.split(","),
        task_manager=TaskManager(include_path=folder, include_defaults=False),
        num_fewshot=int(shots),
        device="cpu",
        batch_size=8,
        bootstrap_iters=0,
        log_samples=True,
    )
    written = {
        name: {
            "figures": {key: value for key, value in results["results"][name].items() if isinstance(value, float)},
            "documents": [_describe(sample) for sample in results["samples"][name]],
        }
        for name in names.split(",")
    }
    Path(out).write_text(json.dumps(written), encoding="utf-8")


def _describe(sample: dict[str, Any]) -> dict[str, Any]:
    arguments = sample["arguments"]
    texts = list(arguments.values()) if isinstance(arguments, dict) else arguments
    first = texts[0].get("arg_0") if isinstance(texts[0], dict) else texts[0][0]
    measured = {key: sample[key] for key in ("acc", "acc_norm", "exact_match") if key in sample}
    return {
        "id": sample["doc"].get("id"),
        "filter": sample.get("filter"),
        "context": first,
        "responses": sample["resps"],
        "filtered": sample["filtered_resps"],
        **measured,
    }


def run_filter(rows: str, out: str) -> None:
    """Extract and compare stored answers with the filters and the metric of gsm8k."""
    from lm_eval.api.metrics import exact_match_hf_evaluate  # noqa: PLC0415
    from lm_eval.filters.extraction import RegexFilter  # noqa: PLC0415

    answers = [json.loads(line) for line in Path(rows).read_text(encoding="utf-8").splitlines()]
    texts = [[row["text"]] for row in answers]
    found = {
        "strict": RegexFilter(STRICT).apply(texts, [{}] * len(texts)),
        "flexible": RegexFilter(FLEXIBLE, group_select=-1).apply(texts, [{}] * len(texts)),
    }
    verdicts = []
    for number, row in enumerate(answers):
        verdict: dict[str, Any] = {"id": row["id"]}
        for name, extracted in found.items():
            answer = extracted[number][0]
            match = exact_match_hf_evaluate(
                predictions=[answer], references=[row["solution"]], regexes_to_ignore=IGNORED, ignore_case=True
            )
            verdict |= {name: bool(match["exact_match"]), f"{name}_answer": answer}
        verdicts.append(verdict)
    Path(out).write_text(json.dumps(verdicts), encoding="utf-8")


if __name__ == "__main__":
    {"tasks": run_tasks, "filter": run_filter}[sys.argv[1]](*sys.argv[2:])
