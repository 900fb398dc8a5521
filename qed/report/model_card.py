"""Model card of a run or of an exported model: README.md with front matter for the Hugging Face Hub.

All content comes from the run folder: base model, method, data with a fingerprint, figures with intervals, versions.
The evaluation is that of the model's step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from qed.guards.redaction import redact
from qed.report.panel_list import PREFERRED
from qed.report.record import VALIDATION
from qed.report.settings_file import list_phases, read_settings
from qed.runs.run import Row, read_evaluations, read_json, read_lines

CARD = """\
---
{front}---

# {title}

Trained by qed {version} with {methods}, from `{model}`.

{usage}

## Data

{data}

## Evaluation

{evaluation}

## How it was made

    {command}

`settings.yaml` of the run reproduces it; `settings.origin.json` says where each setting came from.

| | |
|---|---|
{environment}
"""
HEADER = ["| task | decoding | right | in format | mean tokens | n |", "|---|---|--:|--:|--:|--:|"]
IN_FOLDER = "The model is in `final/hf` and loads with `transformers.AutoModelForCausalLM.from_pretrained`."
TASKS = {False: "text-generation", True: "text-classification"}  # the hub's names, without and with a scalar head
SCORES = (
    "The model scores a prompt with an answer at its last token, and loads with "
    "`transformers.AutoModelForSequenceClassification.from_pretrained`; in a run its folder is `final/hf`."
)
HUB_CACHE = re.compile(r"/models--([^/]+)--([^/]+)/snapshots/")
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
MAX_ANCESTORS = 8


@dataclass(frozen=True)
class Contents:
    """Contents of a card that are not in the run's folder, or differ between the run and an exported model.

    `step` is the model's step. `relation` is the hub's term for its relation to the base model, `library` the library
    that loads it. `datasets` are the hub names of the training data, `benchmarks` those of evaluated tasks by label.
    """

    step: int
    title: str
    usage: str = IN_FOLDER
    relation: str = "finetune"
    library: str = "transformers"
    license: str = ""
    datasets: tuple[str, ...] = ()
    benchmarks: Mapping[str, str] = field(default_factory=dict)


def write_card(folder: Path, step: int) -> Path:
    """Write the model card of a run from the files in its folder.

    Args:
        folder: the run folder.
        step: the run's last step.
    """
    card = folder / "README.md"
    card.write_text(build_card(folder, Contents(step, folder.name)), encoding="utf-8")
    return card


def build_card(folder: Path, contents: Contents) -> str:
    """Build the text of a model card from the files in a run's folder.

    Raises:
        DataError: a file of the run is damaged.
    """
    environment = read_json(folder / "env.json", {})
    settings = read_settings(folder / "settings.yaml")
    model = str(settings.get("model", {}).get("name", ""))
    methods = _list_methods(settings)
    data = next((event for event in read_lines(folder / "events.jsonl") if event["event"] == "data"), None)
    summaries = dict(read_evaluations(folder)).get(contents.step, {})
    scores = _has_scalar_head(folder, contents.step)
    command = folder / "command.txt"
    text = CARD.format(
        front=_dump(_build_front(model, methods, summaries, contents, TASKS[scores])),
        title=contents.title,
        version=environment.get("qed", ""),
        methods=_describe_phases(settings) or "no phase",
        model=model,
        usage=SCORES if scores else contents.usage,
        data=_describe_data(data),
        evaluation=_describe_ranking(folder, contents.step) or _describe_evaluation(summaries, contents.step),
        command=command.read_text(encoding="utf-8").strip().replace("\n", "\n    ") if command.is_file() else "",
        environment="\n".join(f"| {name} | {value} |" for name, value in environment.items()),
    )
    return redact(text)


def _dump(front: Row) -> str:
    # The large width keeps long texts on one line.
    return str(yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=1_000_000_000))


def _list_methods(settings: Row) -> list[str]:
    """Return the algorithms of the run's phases, in order."""
    return [Path(phase["method"]).stem for phase in list_phases(settings)]


def _describe_phases(settings: Row) -> str:
    """Return the algorithms of the run's phases as text, each with its teacher if it has one."""
    names = []
    for phase, method in zip(list_phases(settings), _list_methods(settings), strict=True):
        taught = phase.get("algorithm", {})
        teacher = " ".join(str(taught[name]) for name in ("teacher_model", "teacher") if taught.get(name))
        names.append(f"{method} (teacher: `{teacher}`)" if teacher else method)
    return " and then ".join(names)


def _has_scalar_head(folder: Path, step: int) -> bool:
    """Return whether the model of a step has a scalar head, like a reward model."""
    config = read_json(folder / "checkpoints" / f"step_{step:06d}" / "hf" / "config.json", {})
    return any(name.endswith("ForSequenceClassification") for name in config.get("architectures") or ())


def _describe_ranking(folder: Path, step: int) -> str:
    """Describe how well a reward model ranks the held-out pairs after a step; empty if not measured."""
    rows = [row for row in read_lines(folder / "metrics.jsonl") if row["step"] == step and f"{PREFERRED}/ci_lo" in row]
    if not rows:
        return ""
    share, low, high = (rows[-1][f"{PREFERRED}{end}"] for end in ("", "/ci_lo", "/ci_hi"))
    return (
        f"After step {step} the model ranks {share:.1%} [{low:.1%}, {high:.1%}] of the held-out pairs right (95 % "
        "interval). The checkpoint may have been chosen by these pairs."
    )


def _build_front(
    model: str, methods: list[str], summaries: Mapping[str, Row], contents: Contents, pipeline: str
) -> Row:
    """Build the front matter, omitting keys without a value."""
    base = find_hub_base(model)
    results = [
        _build_result(task, decodings, contents.benchmarks.get(task, task))
        for task, decodings in summaries.items()
        if task != VALIDATION  # used to select the checkpoint, so it is not a result of the model
    ]
    front = {
        "license": contents.license,
        "base_model": base,
        "base_model_relation": base and contents.relation,
        "library_name": contents.library,
        "pipeline_tag": pipeline,
        "datasets": list(contents.datasets),
        "tags": ["qed", *dict.fromkeys(methods)],
        "model-index": results and [{"name": contents.title, "results": results}],
    }
    return {key: value for key, value in front.items() if value}


def find_hub_base(model: str) -> str:
    """Return the hub name of an initial model, also behind earlier runs and the hub's cache; empty if it has none."""
    for _ in range(MAX_ANCESTORS):
        if not Path(model).exists():
            # The hub can link to neither a new model with random weights nor a folder that is gone.
            return model if HUB_NAME.fullmatch(model) else ""
        if cached := HUB_CACHE.search(f"{Path(model).resolve()}/"):
            return "/".join(cached.groups())
        run = next((path for path in Path(model).resolve().parents if (path / "settings.yaml").is_file()), None)
        if run is None:
            return ""
        model = str(read_settings(run / "settings.yaml").get("model", {}).get("name", ""))
    return ""


def _build_result(task: str, decodings: Mapping[str, Row], dataset: str) -> Row:
    """Build a task's entry in the hub's model-index: a metric for each decoding, in percent."""
    metrics = [
        {
            "type": "accuracy",
            "name": f"accuracy, {_describe_decoding(decoding, figures)} (95 % interval {figures['ci_lo']:.1%} to "
            f"{figures['ci_hi']:.1%}, {figures['n']} problems)",
            "value": round(100 * figures["accuracy"], 2),
        }
        for decoding, figures in decodings.items()
    ]
    return {
        "task": {"type": "text-generation", "name": "Text Generation"},
        "dataset": {"name": task, "type": dataset},
        "metrics": metrics,
    }


def _describe_decoding(decoding: str, figures: Row) -> str:
    temperature = figures.get("temperature")
    return f"{decoding} at temperature {temperature:g}" if temperature else decoding


def _describe_data(data: Row | None) -> str:
    if data is None:
        return "Not recorded."
    held_out = [f"{count} of {name}" for name, count in data["held_out"].items()]
    held_out += [f"{data['validation']} for validation"] if data.get("validation") else []
    check = data.get("held_out_check")
    checked = f" Compared with the training data by {check}." if check and held_out else ""
    first = data.get("first_phase")
    before = f"{_describe_problems(first)} in the first phase, then " if first else ""
    return (
        f"{before}{_describe_problems(data)} (fingerprint `{data['fingerprint']}`). Held out and never trained on: "
        f"{', '.join(held_out) or 'nothing'}.{checked}"
    )


def _describe_problems(data: Row) -> str:
    return f"{data['training']} training problems of {', '.join(data['tasks'])} with the prompt `{data['prompt']}`"


def _describe_evaluation(summaries: Mapping[str, Row], step: int) -> str:
    if not summaries:
        return f"This model's step, {step}, was not evaluated."
    rows = [
        _build_line(task, decoding, figures)
        for task, decodings in summaries.items()
        for decoding, figures in decodings.items()
    ]
    introduction = f"After step {step}. 95 % intervals in brackets. Greedy answers unless another temperature is given."
    return "\n".join([introduction, "", *HEADER, *rows])


def _build_line(task: str, decoding: str, figures: Row) -> str:
    # The token lengths of stored answers may be unknown.
    tokens = "" if figures["mean_tokens"] is None else f"{figures['mean_tokens']:.1f}"
    return (
        f"| {task} | {_describe_decoding(decoding, figures)} | {figures['accuracy']:.1%} "
        f"[{figures['ci_lo']:.1%}, {figures['ci_hi']:.1%}] | {figures['format']:.1%} | {tokens} | {figures['n']} |"
    )
