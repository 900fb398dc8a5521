"""R1 to R3, K1 and K2: does an interrupted and resumed run equal an uninterrupted one?"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faults_parts.rival import PROMPTS, STEPS, Ended, Finding, Rival, checkpoints, cut, difference, ended, resumed, stop

LONG = 20
# More prompts than a run of that length uses, and so few that it makes five epochs.
MANY, FEW = ({"columns": {"prompt": [f"what is {n} + 1?" for n in range(count)]}} for count in (64, 8))
STAGES = {
    "save": "before anything is written",
    "save optimizer": "behind the weights",
    "save rng": "behind the optimizer",
    "save state": "before trainer_state.json",
}


def r1(rival: Rival) -> Iterator[Finding]:
    """Make the same run twice, and interrupt it at a boundary and elsewhere."""
    whole, again = rival.whole(), rival.fresh()
    end = rival.run(again)
    apart = difference(again, whole)
    yield Finding("R1", "same seed twice", f"weights differ by {apart:.2g}" if apart else "same weights", end)
    inner: dict[str, Any] = {"config": {"steps_per_generation": 4}}
    twice: dict[str, Any] = {"config": {"num_iterations": 2}}
    short: dict[str, Any] = {"data": {"columns": {"prompt": PROMPTS["prompt"][:8]}}}
    for name, step, told in (
        ("cut behind step 3", 3, {}),
        ("cut behind step 4, an epoch's last", 4, short),
        ("cut behind step 5, an epoch's first", 5, short),
        ("steps_per_generation=4, cut behind step 2", 2, inner),
        ("steps_per_generation=4, cut behind step 4, a buffer's last", 4, inner),
        ("num_iterations=2, cut behind step 3", 3, twice),
        ("num_iterations=2, cut behind step 4, a buffer's last", 4, twice),
    ):
        yield _cut(rival, "R1", name, step, told)


def r2(rival: Rival) -> Iterator[Finding]:
    """Resume with a moving and with a fixed reference model."""
    moving = {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 0.6}
    yield _cut(rival, "R2", "sync_ref_model, cut behind step 3", 3, {"config": moving})
    yield _cut(rival, "R2", "beta=0.1, cut behind step 3", 3, {"config": {"beta": 0.1}})


def r3(rival: Rival) -> Iterator[Finding]:
    """Resume with other settings."""
    whole = rival.whole()
    for name, told in (
        ("50 times the learning rate", {"config": {"learning_rate": 5e-2}}),
        ("another seed", {"config": {"seed": 7}}),
        ("other data", {"data": {"columns": {"prompt": [f"{n} = ?" for n in range(16)]}}}),
        ("per_device_train_batch_size 8 in place of 4", {"config": {"per_device_train_batch_size": 8}}),
    ):
        outcome, end, figures = resumed(rival, cut(whole, rival.fresh(), 3), whole, **told)
        yield Finding("R3", f"resumed behind step 3 with {name}", outcome, end, figures)
    out = cut(whole, rival.fresh(), STEPS)
    end = rival.run(out, resume=True)
    outcome = f"exit code {end.code}, the last of its {STEPS} steps is {checkpoints(out)[-1]}"
    yield Finding("R3", "resumed when it was done", outcome, end, {"left": checkpoints(out)})


def k1(rival: Rival) -> Iterator[Finding]:
    """Kill at each stage of the save of step 4."""
    whole = rival.whole()
    for stage, name in STAGES.items():
        out = rival.fresh()
        rival.run(out, fault={"at": stage, "step": 4, "do": "signal", "value": signal.SIGKILL})
        left = checkpoints(out)
        outcome, end, figures = resumed(rival, out, whole)
        yield Finding("K1", f"killed in a save {name}", outcome, end, {"left": left, **figures})


def k2(rival: Rival) -> Iterator[Finding]:
    """Kill at random and resume, until there were enough kills and a run finished."""
    yield _killed(rival, "within an epoch", 20, {"steps": LONG, "data": MANY})
    yield _killed(rival, "over five epochs", 10, {"steps": LONG, "data": FEW})


def _killed(rival: Rival, where: str, wanted: int, told: dict[str, Any]) -> Finding:
    """Kill runs at random moments within the time that the steps of a whole run take. If a run cannot be resumed, its
    newest checkpoint is deleted, as a person would do."""
    source, whole = random.Random(0), rival.fresh("whole")
    began, end = _trained(rival, whole, told, None)
    if end.code:
        raise SystemExit(end.text)
    patience = end.seconds - began
    kills, runs, same, crashes = 0, 0, 0, []
    while kills < wanted:
        out, done = rival.fresh(), False
        while not done:
            moment = source.uniform(0, patience * 0.6) if kills < wanted else None
            _, end = _trained(rival, out, told, moment)
            kills += end.code == -signal.SIGKILL
            if end.code and end.code > 0:
                crashes.append({"checkpoints": checkpoints(out), "last": end.last})
                shutil.rmtree(out / f"checkpoint-{checkpoints(out)[-1]}")
            done = end.code == 0
        runs, same = runs + 1, same + (difference(out, whole, LONG) == 0)
    outcome = f"{kills} kills: {len(crashes)} restarts crashed; {same} of {runs} runs ended with the same weights"
    figures = {"kills": kills, "runs": runs, "same": same, "crashes": crashes, "seconds_of_steps": round(patience, 1)}
    return Finding("K2", f"{LONG} steps, each saved, {where}", outcome, end, figures)


def _trained(rival: Rival, out: Path, told: dict[str, Any], moment: float | None) -> tuple[float, Ended]:
    """Make a run, killed `moment` seconds after its steps began; return when they began, and how it ended."""
    ready = rival.fresh("ready")
    process = rival.start(out, **told, ready=str(ready), resume="if any")
    while not ready.exists() and process.made.poll() is None:
        time.sleep(0.01)
    began = time.monotonic() - process.began
    if moment is not None:
        time.sleep(moment)
        if process.made.poll() is None:
            stop(process)
    return began, ended(process, 300)


def _cut(rival: Rival, group: str, name: str, step: int, told: dict[str, Any]) -> Finding:
    whole = rival.whole(**told)
    outcome, end, figures = resumed(rival, cut(whole, rival.fresh(), step), whole, **told)
    return Finding(group, name, outcome, end, figures)
