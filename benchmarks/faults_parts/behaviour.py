"""S1, N1, N2, H1 and B1: signals, non-finite numbers, equal rewards, hangs, bad data."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faults_parts.rival import STEPS, Ended, Finding, Rival, checkpoints, ending, finite, resumed

SLOW, LONG, PATIENCE = 0.7, 12, 70


def s1(rival: Rival) -> Iterator[Finding]:
    """Send a signal in the middle of step 4 of a run that saves every second step; then SIGTERM with its option."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        out = rival.fresh()
        fault = {"at": "reward", "step": 4, "do": "signal", "value": int(number)}
        end = rival.run(out, fault=fault, config={"save_steps": 2})
        left = checkpoints(out)
        yield Finding("S1", number.name, f"{ending(end)}; checkpoints {left}", end, {"left": left})
    told: dict[str, Any] = {"steps": LONG, "config": {"save_steps": 100, "enable_jit_checkpoint": True}}
    whole, out = rival.whole(steps=LONG), rival.fresh()
    fault = {"at": "reward", "step": 3, "do": "signal", "value": int(signal.SIGTERM)}
    end = rival.run(out, fault=fault, slow=SLOW, **told)
    figures = {"left": checkpoints(out), "said": rival.unusual(end)[:6]}
    yield Finding("S1", "SIGTERM, enable_jit_checkpoint", f"{ending(end)}, saved {checkpoints(out)}", end, figures)
    outcome, end, figures = resumed(rival, out, whole, **told)
    yield Finding("S1", "resumed after SIGTERM, enable_jit_checkpoint", outcome, end, figures)


def n1(rival: Rival) -> Iterator[Finding]:
    """Put a non-finite number into step 3."""
    for name, at, do in (
        ("one reward NaN", "reward", "nan"),
        ("all rewards NaN", "reward", "all nan"),
        ("one reward infinite", "reward", "inf"),
        ("loss NaN", "loss", "nan"),
    ):
        out = rival.fresh()
        end = rival.run(out, fault={"at": at, "step": 3, "do": do})
        made = checkpoints(out)
        good = finite(out, made[-1])
        outcome = f"{ending(end)}; {made[-1]} of {STEPS} steps saved, weights {'finite' if good else 'NaN'}"
        broken = [step for step in made if not finite(out, step)]
        yield Finding("N1", name, outcome, end, {"not_finite": broken, "said": rival.unusual(end)[:6]})


def n2(rival: Rival) -> Iterator[Finding]:
    """Give equal rewards."""
    out = rival.fresh()
    end = rival.run(out, fault={"at": "reward", "step": "each", "do": "zero"})
    said = rival.unusual(end)
    figures = {"said": said[:6], "logged": "frac_reward_zero_std" in end.text}
    yield Finding("N2", "all rewards 0", f"{ending(end)}, {len(said)} lines about it", end, figures)
    end = rival.run(rival.fresh(), config={"num_generations": 1})
    yield Finding("N2", "num_generations=1", ending(end), end)


def h1(rival: Rival) -> Iterator[Finding]:
    """Let a reward hang."""
    fault = {"at": "reward", "step": 3, "do": "sleep", "value": 3600}
    end = rival.run(rival.fresh(), limit=PATIENCE, fault=fault)
    yield Finding("H1", "a reward hangs in step 3", ending(end), end, {"said": rival.unusual(end)[:6]})


def b1(rival: Rival) -> Iterator[Finding]:
    """Train on invalid data."""
    broken = rival.place / "broken.jsonl"
    broken.write_text('{"prompt": "one"}\n{"prompt": "two"\n{"prompt": "three"}\n', encoding="utf-8")
    sixteen = {"per_device_train_batch_size": 16}
    cases: dict[str, dict[str, Any]] = {
        "no rows": {"data": {"columns": {"prompt": []}}},
        "no column prompt": {"data": {"columns": {"question": ["one", "two"]}}},
        "a null among the prompts": {"data": {"columns": {"prompt": ["one", None, "three", "four"]}}},
        "1 prompt for a batch of 16 answers": {"data": {"columns": {"prompt": ["one"]}}, "config": sixteen},
        "JSONL with a broken line 2": {"data": {"file": str(broken)}},
    }
    for name, told in cases.items():
        out = rival.fresh()
        end = rival.run(out, **told)
        yield Finding("B1", name, _trained(end, out), end, {"said": rival.unusual(end)[:6]})


def _trained(end: Ended, out: Path) -> str:
    made = checkpoints(out)[-1:]
    return ending(end) if end.code else f"exit code 0 after {made[0] if made else 0} of {STEPS} steps"
