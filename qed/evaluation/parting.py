"""Find where two runs with the same settings diverge: the first different sampled token, and how close that draw was.

A token is drawn by inverting the cumulative distribution at a uniform random number (`qed.sampling.draw`). If that
number is within rounding error of the boundary between two tokens, a run with other tensor shapes, such as one with
another number of ranks, may draw the other token. `qed compare A B --rollouts` shows this.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qed.config.changes import read_saved
from qed.config.settings import ModelSettings
from qed.console.live import Console
from qed.errors import DataError
from qed.models.load import load_model
from qed.randomness import derive_seed, draw_uniforms
from qed.runs import manifest
from qed.runs.run import Row, read_lines
from qed.sampling.base import Sampling
from qed.sampling.draw import shape_logits
from qed.training.checkpoints import load_exact_weights

# Columns compared besides the tokens: rows at the same position must be answers to the same problem.
PLACE = ("group_id", "sample_id", "source")


@dataclass(frozen=True)
class Margin:
    """How close a draw was: the random number, and the interval of the cumulative distribution from `lower` to `upper`
    that it fell into; `margin` is its distance to the nearer end, below 0 if these weights would draw another token."""

    uniform: float
    lower: float
    upper: float
    margin: float


@dataclass(frozen=True)
class Parting:
    """The first token that two runs drew differently.

    `position` counts the tokens of the answer from 0; `tokens` and `logps` are those of the two runs there, None if the
    answer has ended. `drift` is the largest log-prob difference in this step between equal tokens before an answer's
    first different one. `answers` counts the answers of the step that differ.
    """

    step: int
    problem: str
    sample: int
    position: int
    tokens: tuple[int | None, int | None]
    logps: tuple[float | None, float | None]
    drift: float
    answers: int
    margin: Margin | None = None


def show_parting(before: Path, after: Path, console: Console) -> dict[str, Any]:
    """Print where two runs diverge, and return the same for JSON; empty if all answers of the shared steps are equal.

    Raises:
        DataError: they have no step in common, or their steps have different problems.
    """
    steps, parting = find_parting(before, after)
    if parting is None:
        console.say(f"All answers of the {steps} steps that both have are the same, token by token.")
        return {}
    margin, note = _measure_margin((before, after), parting)
    for line in _describe(replace(parting, margin=margin), note):
        console.say(line)
    return asdict(replace(parting, margin=margin))


def find_parting(before: Path, after: Path) -> tuple[int, Parting | None]:
    """Return the number of steps that two runs have in common, and where they first diverge, if they do.

    Raises:
        DataError: see `show_parting`.
    """
    names = [{path.name for path in folder.glob("rollouts/step_*.jsonl.zst")} for folder in (before, after)]
    shared = sorted(names[0] & names[1])
    if not shared:
        raise DataError(f"{before} and {after} have no rollouts/step_N in common, so there is nothing to compare.")
    for name in shared:
        rows = [read_lines(folder / "rollouts" / name) for folder in (before, after)]
        if [_locate(row) for row in rows[0]] != [_locate(row) for row in rows[1]]:
            raise DataError(
                f"{name} has answers to other problems in {before} than in {after}: only runs with the same data, seed "
                "and sampling can be compared token by token."
            )
        parting = _find_first(rows[0], rows[1])
        if parting is not None:
            return len(shared), parting
    return len(shared), None


def _locate(row: Row) -> list[Any]:
    return [row.get(name) for name in PLACE]


def _find_first(before: Sequence[Row], after: Sequence[Row]) -> Parting | None:
    """Return the first different token among the answers of a step: the one at the lowest position.

    Tokens after a difference come from another distribution, so they are not compared.
    """
    places = [_find_position(one["tokens"], other["tokens"]) for one, other in zip(before, after, strict=True)]
    differing = [(place, number) for number, place in enumerate(places) if place is not None]
    if not differing:
        return None
    place, number = min(differing)
    rows = before[number], after[number]
    return Parting(
        int(rows[0]["step"]),
        str(rows[0]["group_id"]),
        int(rows[0]["sample_id"]),
        place,
        (_get(rows[0]["tokens"], place), _get(rows[1]["tokens"], place)),
        (_get(rows[0]["logps"], place), _get(rows[1]["logps"], place)),
        max(_list_drifts(before, after, places), default=0.0),
        len(differing),
    )


def _find_position(before: Sequence[int], after: Sequence[int]) -> int | None:
    for position in range(max(len(before), len(after))):
        if _get(before, position) != _get(after, position):
            return position
    return None


def _get(values: Sequence[Any], position: int) -> Any:
    return values[position] if position < len(values) else None


def _list_drifts(before: Sequence[Row], after: Sequence[Row], places: Sequence[int | None]) -> Iterator[float]:
    """Yield the log-prob differences of the tokens that both runs drew."""
    for one, other, place in zip(before, after, places, strict=True):
        for own, others in list(zip(one["logps"], other["logps"], strict=False))[:place]:
            if not math.isnan(own - others):
                yield abs(own - others)


def _measure_margin(runs: tuple[Path, Path], parting: Parting) -> tuple[Margin | None, str]:
    """Compute the margin of a draw with the weights that sampled it, if a run still has them; else return why not."""
    for run in runs:
        folder = manifest.list_checkpoints(run).get(parting.step - 1)
        if folder is None and parting.step == 1 and (run / "reference/step_000000/hf").is_dir():
            folder = run / "reference/step_000000"
        if folder is not None and manifest.list_damage(folder) == []:
            return _compute_margin(run, folder, parting)
    return None, (
        f"The margin of the draw needs the weights after step {parting.step - 1}, but neither run has that checkpoint: "
        "run.save_every=1 saves one at every step."
    )


def _compute_margin(run: Path, checkpoint: Path, parting: Parting) -> tuple[Margin | None, str]:
    saved = read_saved(run / "settings.yaml")
    rows = read_lines(run / f"rollouts/step_{parting.step:06d}.jsonl.zst")
    row = next(r for r in rows if (r["group_id"], r["sample_id"]) == (parting.problem, parting.sample))
    token = row["tokens"][parting.position] if parting.position < len(row["tokens"]) else None
    if token is None or not all(row["sampled_mask"][: parting.position + 1]):
        return None, "The margin is known only in the first turn of an answer that was sampled from its beginning."
    model, tokenizer = load_model(ModelSettings(name=str(checkpoint / "hf"), precision=_read_precision(saved)))
    load_exact_weights(model, checkpoint)
    prompt = tokenizer(row["prompt"], add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        ids = torch.tensor([[*prompt, *row["tokens"][: parting.position]]])
        scores = model(input_ids=ids, use_cache=False).logits[:, -1]
    shares = shape_logits(scores, _read_sampling(saved["sampling"])).double().softmax(-1)[0].cumsum(0)
    lower, upper = float(shares[token - 1]) if token else 0.0, float(shares[token])
    seed = derive_seed(saved["run"]["seed"], "rollout", parting.step, parting.problem, parting.sample)
    uniform = float(draw_uniforms(torch.tensor([seed]), parting.position + 1)[0, -1])
    return Margin(uniform, lower, upper, min(uniform - lower, upper - uniform)), ""


def _read_precision(saved: Mapping[str, Any]) -> Any:
    """Return the precision to compute in: half precision is too coarse to tell how close a draw was."""
    return "float64" if saved["model"].get("precision") == "float64" else "float32"


def _read_sampling(saved: Mapping[str, Any]) -> Sampling:
    known = {name: saved[name] for name in ("temperature", "top_p", "top_k", "min_p") if name in saved}
    known["top_k"] = max(0, known.get("top_k", 0))
    return Sampling(max_tokens=saved["max_tokens"], **known)


def _describe(parting: Parting, note: str) -> Iterator[str]:
    """Describe in a few lines where the runs diverge."""
    yield (
        f"The runs diverge in step {parting.step}: {parting.answers:,} answers differ, first answer {parting.sample} "
        f"to problem {parting.problem}, at token {parting.position}."
    )
    for name, token, logp in zip("AB", parting.tokens, parting.logps, strict=True):
        yield f"  {name}: " + ("the answer has ended" if token is None else f"token {token}, log-prob {logp:.6f}")
    yield f"  Tokens that both runs drew in this step differ by at most {parting.drift:.1e} in their log-probs."
    if parting.margin is None:
        yield f"  {note}"
        return
    margin = parting.margin
    yield (
        f"  The random number {margin.uniform:.9f} is {margin.margin:.1e} from the end of that token's interval of the "
        f"distribution, {margin.lower:.9f} to {margin.upper:.9f}: a rounding error of that size draws the other one."
    )
