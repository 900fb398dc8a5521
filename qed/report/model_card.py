"""Model card of a run: README.md in its folder, with front matter for the Hugging Face Hub.

All content comes from the run folder: base model, method, data with a fingerprint, figures with intervals, versions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qed.guards.redaction import redact
from qed.runs.run import Row, read_evaluations, read_json, read_lines

CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
{base}tags:
- qed
{tags}---

# {title}

Trained by qed {version} with {methods}, from `{model}`.

The model is in `final/hf` and loads with `transformers.AutoModelForCausalLM.from_pretrained`.

## Data

{data}

## Evaluation

95 % intervals in brackets. Greedy answers unless another temperature is given.

{table}

## How it was made

    {command}

`settings.yaml` reproduces the run; `settings.origin.json` says where each setting came from.

| | |
|---|---|
{environment}
"""


def write_card(folder: Path, model: str, methods: list[str]) -> Path:
    """Write the model card of a run from the files in its folder.

    Args:
        folder: the run folder.
        model: the initial model, a Hub name or a local path.
        methods: the algorithms of the run's phases, in order.
    """
    environment = read_json(folder / "env.json", {})
    data = next((event for event in read_lines(folder / "events.jsonl") if event["event"] == "data"), None)
    text = CARD.format(
        # The Hub can link to neither a randomly initialized model nor a local folder.
        base=f"base_model: {model}\n" if "/" in model and not Path(model).exists() else "",
        tags="".join(f"- {method}\n" for method in methods),
        title=folder.name,
        version=environment.get("qed", ""),
        methods=" and then ".join(methods) or "no phase",
        model=model,
        data=_describe_data(data),
        table=_build_table(folder),
        command=(folder / "command.txt").read_text(encoding="utf-8").strip(),
        environment="\n".join(f"| {name} | {value} |" for name, value in environment.items()),
    )
    card = folder / "README.md"
    card.write_text(redact(text), encoding="utf-8")
    return card


def _describe_data(data: Row | None) -> str:
    if data is None:
        return "Not recorded."
    held_out = ", ".join(f"{count} of {name}" for name, count in data["held_out"].items())
    return (
        f"{data['training']} training problems of {', '.join(data['tasks'])} (fingerprint "
        f"`{data['fingerprint']}`), with the prompt `{data['prompt']}`. Held out and never trained on: {held_out}."
    )


def _build_table(folder: Path) -> str:
    lines = ["| step | task | decoding | right | in format | mean tokens | n |", "|--:|---|---|--:|--:|--:|--:|"]
    for step, summaries in read_evaluations(folder):
        for task, decodings in summaries.items():
            lines += [_build_line(step, task, decoding, figures) for decoding, figures in decodings.items()]
    return "\n".join(lines)


def _build_line(step: int, task: str, decoding: str, figures: dict[str, Any]) -> str:
    at = f" at temperature {figures['temperature']:g}" if figures["temperature"] else ""
    return (
        f"| {step} | {task} | {decoding}{at} | {figures['accuracy']:.1%} [{figures['ci_lo']:.1%}, "
        f"{figures['ci_hi']:.1%}] "
        f"| {figures['format']:.1%} | {figures['mean_tokens']:.1f} | {figures['n']} |"
    )
