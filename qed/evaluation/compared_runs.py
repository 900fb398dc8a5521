"""Load the evaluations for `qed compare`: two arms, each of one run or of several with different seeds."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qed.config.changes import read_saved
from qed.config.reward_names import AUTO, parse_reward
from qed.console.progress import say_on_stderr
from qed.errors import DataError
from qed.evaluation import stored
from qed.randomness import derive_seed
from qed.runs.folder import drop_repeated, drop_tables
from qed.runs.run import Row, name_step_folder, read_evaluations, read_json, read_lines

NEEDED = ("decoding", "group_id", "correct")  # columns of an evaluation's rows
UNUSED = ("tokens", "logps", "sampled_mask", "loss_mask")  # large columns that no comparison reads
SAMPLING = ("temperature", "top_p", "top_k", "min_p")


@dataclass(frozen=True)
class Decoding:
    """The answers to a task with one decoding, the known settings that determined them, and notes.

    The settings are `complete` if `qed evaluate` wrote them; a missing one was then not set. `file` is the resolved
    file of the answers, if known.
    """

    rows: list[Row]
    settings: Row = field(default_factory=dict)
    complete: bool = False
    notes: tuple[str, ...] = ()
    file: Path | None = None


Answers = dict[str, dict[str, Decoding]]  # by task and decoding


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: the places of its runs, and the answers of each."""

    name: str
    places: list[Path]
    runs: list[Answers]

    @property
    def is_pattern(self) -> bool:
        """Return whether the name is a pattern or a list."""
        return [str(place) for place in self.places] != [self.name] and Path(self.name) not in self.places


def load_arm(name: str, scoring: stored.Scoring) -> Arm:
    """Load one side of a comparison: a path, a pattern such as `runs/a-*`, or several of them, separated by commas.

    Raises:
        DataError: a pattern matches nothing, or a place contains no evaluation.
    """
    places = find_places(name)
    return Arm(name, places, [load_answers(place, scoring) for place in places])


def find_places(name: str) -> list[Path]:
    """Return the places that a side names; see `load_arm` for the patterns and errors."""
    if not ("," in name or glob.has_magic(name)) or _exists(name):
        return [Path(name)]
    places: list[Path] = []
    for part in name.split(","):
        if not part:
            raise DataError(f"{name} has nothing before or after a comma. Name a run there, or remove the comma.")
        found = [part] if not glob.has_magic(part) or _exists(part) else sorted(glob.glob(part))
        if not found:
            raise DataError(f"No run, evaluation or file matches {part!r}. Check the pattern, and keep it in quotes.")
        places += drop_tables(list(map(Path, found)))
    return drop_repeated(places)


def _exists(name: str) -> bool:
    """Return whether a file or folder of this name exists; a list may be longer than a valid file name."""
    try:
        return Path(name).exists()
    except OSError:
        return False


def load_answers(place: Path, scoring: stored.Scoring) -> Answers:
    """Load the answers of a run's last evaluation, of an evaluation's folder, or of a file; see `load_arm`.

    Raises:
        DataError: the place does not exist, cannot be read, or contains no answers of an evaluation.
    """
    if place.is_file():
        return _load_file(place, scoring)
    if not place.is_dir():
        raise DataError(f"There is no run, evaluation or file {place} to compare.")
    steps = [step for step, _ in read_evaluations(place)]
    home = place / name_step_folder(steps[-1]) if steps else place
    files = sorted(home.glob("*.jsonl"))
    if not files:
        raise DataError(f"{place} contains no evaluation: there is no eval/step_N/TASK.jsonl in it.")
    answers = {file.stem: decodings for file in files if (decodings := _load_decodings(file))}
    if not answers:
        raise DataError(f"{place} contains no answers of an evaluation: no row has {', '.join(NEEDED)}.")
    return answers


def _load_file(file: Path, scoring: stored.Scoring) -> Answers:
    """Load answers of an evaluation, or score other answers."""
    if file.name.endswith(".jsonl") and (decodings := _load_decodings(file)):
        return {file.stem: decodings}
    table = stored.read_answers(file, scoring)
    scored = stored.score_table(table, stored.name_columns(file, scoring), scoring, say_on_stderr)
    notes, own = tuple(table.notes), file.resolve()
    return {name: {stored.DECODING: Decoding(rows, notes=notes, file=own)} for name, rows in scored.items()}


def _load_decodings(file: Path) -> dict[str, Decoding]:
    """Load the decodings in a file of an evaluation; empty if it is not from one."""
    groups = _group_by_decoding(file)
    if not groups:
        return {}
    summaries, trained = read_json(file.with_name("summary.json"), {}), _read_training(file.parent)
    figures = summaries.get(file.stem, {}) if isinstance(summaries, dict) else {}
    own = file.resolve()
    return {
        name: replace(build_decoding(rows, figures.get(name, {}), trained), file=own) for name, rows in groups.items()
    }


def _group_by_decoding(file: Path) -> dict[str, list[Row]]:
    """Group the rows of an evaluation by decoding; return an empty dict if the file is not from an evaluation."""
    try:
        rows = read_lines(file)
    except ValueError as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if not all(name in row for name in NEEDED):
            return {}
        kept = {name: value for name, value in row.items() if name not in UNUSED}
        if kept.get("prompt"):
            kept["prompt"] = derive_seed(kept["prompt"])  # prompts are long and only compared
        groups.setdefault(str(row["decoding"]), []).append(kept)
    return groups


def build_decoding(rows: list[Row], figures: Any, trained: Row) -> Decoding:
    """Build the decoding of a task with its settings: those written by `qed evaluate`, else those of the training run.

    Args:
        rows: its answers.
        figures: its figures in `summary.json`, if any.
        trained: the settings of a training run, from `describe_training`.
    """
    known = figures if isinstance(figures, dict) else {}
    asked = known.get("settings")
    judge = {"judged_by": known["judged_by"]} if known.get("judged_by") else {}
    notes = tuple(map(str, known["notes"])) if isinstance(known.get("notes"), list) else ()
    if isinstance(asked, dict):
        return Decoding(rows, {**asked, **judge}, True, notes)
    # Greedy answers do not depend on the sampling settings of training.
    ignored = SAMPLING if known.get("temperature") == 0 else ()
    own = {name: value for name, value in trained.items() if name not in ignored}
    measured = {"temperature": known["temperature"]} if "temperature" in known else {}
    return Decoding(rows, {**own, **measured, **judge}, notes=notes)


def describe_training(settings: Mapping[Any, Any]) -> Row:
    """Return the known settings with which a training run evaluates, from the run's settings."""
    last = next((settings[name] for name in ("rl", "sft") if isinstance(settings.get(name), dict)), settings)
    data, sampling, evaluation = (_get_table(last, name) for name in ("data", "sampling", "evaluation"))
    judged = ("reward", "reward_options")
    known = {name: data[name] for name in ("prompt", "prompt_options", "system_prompt", *judged) if name in data}
    if known.get("prompt") == "auto":
        del known["prompt"]
    if any(parse_reward(str(text)).source == AUTO for text in known.get("reward") or ()):
        del known["reward"]  # the prompt names it, and `judged_by` says which one it was
    names = ("max_tokens", *SAMPLING)
    given = {name: evaluation[name] for name in SAMPLING if evaluation.get(name) is not None}
    return {**known, **{name: sampling[name] for name in names if name in sampling}, **given}


def _read_training(home: Path) -> Row:
    """Return the settings of the run whose evaluation `home` is; empty if it does not belong to a run."""
    saved = home.parent.parent / "settings.yaml"
    return describe_training(read_saved(saved)) if home.parent.name == "eval" and saved.is_file() else {}


def _get_table(settings: Mapping[Any, Any], name: str) -> Mapping[str, Any]:
    value = settings.get(name)
    return value if isinstance(value, dict) else {}
