"""The benchmarks of speed with their smallest settings: what they measure, and that they end with a line of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from speed_parts import figures, places
from torch import Tensor

from qed.models.load import build_model

BENCHMARKS = Path(places.__file__).parents[1]
ANSWERS = ("--problems", "2", "--group", "2", "--tokens", "4", "--lengths", "even")
SMALLEST = {
    "step": ANSWERS,
    "sampler": ANSWERS,
    "learner": ANSWERS,
    "sft": ("--model", "new:tiny", "--rows", "4", "--longest", "64"),
}
RIVALS = {"step": "trl", "sampler": "generate", "learner": "trl", "sft": "trl"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the model folders of all these tests are kept."""
    return tmp_path_factory.mktemp("speed")


def run(script: str, place: Path, *more: str) -> dict[str, Any]:
    """The last line of a benchmark of one round, which is in the file as well."""
    file = place / "last.json"
    found = start(script, place, "--rounds", "1", *SMALLEST[script], "--json", str(file), *more)
    assert found == json.loads(file.read_text(encoding="utf-8"))
    return found


def start(script: str, place: Path, *more: str) -> dict[str, Any]:
    """The last line of a script."""
    asked = [str(BENCHMARKS / f"{script}.py"), "--place", str(place), *more]
    path = os.pathsep.join([str(BENCHMARKS.parent), *filter(None, sys.path)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, *asked], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.faults
@pytest.mark.parametrize("script", ["step", "learner"])
def test_qed_alone(script: str, place: Path) -> None:
    found = run(script, place)
    assert found["ours"]["tokens"] > 0
    assert found["ours"]["cpu"] > 0
    assert found["ours"]["rows"] == 4
    assert found["settings"]["rounds"] == 1
    if script != "learner":
        assert found["rival"] is found["ratio"] is None
    if script == "step":
        assert found["ours"]["tokens"] == 16, "no answer ends before its fourth token"
        assert found["ours"]["live_rows"] == 4, "noise gives every row a gradient"
        assert found["signal_share"] == 0, "a random model earns nothing"
    if script == "learner":
        norms = {side: one["norm"] for side, one in found["sides"].items()}
        assert {"qed", "packing off", "plain"} <= set(norms)
        assert list(norms.values()) == pytest.approx([norms["plain"]] * len(norms), rel=1e-3), "not the same update"


@pytest.mark.faults
@pytest.mark.parametrize("script", SMALLEST)
def test_beside_the_rival(script: str, place: Path) -> None:
    if RIVALS[script] == "trl":
        pytest.importorskip("trl")
    more = ["--live-only"] if script == "step" else []
    found = run(script, place, "--against", RIVALS[script], *more)
    assert found["ratio"] > 0
    assert found["ratio_wall"] > 0
    if script != "sft":
        assert found["ours"]["tokens"] == found["rival"]["tokens"] == 16
    if script == "sampler":
        assert 0 < found["ceiling_share"] < 1
    if script == "step":
        assert found["ours"]["live_rows"] == 0, "without noise no row of a random model has a gradient"
    if script == "sft":
        assert found["ratio_plain"] > 0
    if script in ("step", "learner"):
        assert found["rival"]["rows"] == 4
    if script == "learner":
        assert found["rival"]["norm"] == pytest.approx(found["ours"]["norm"], rel=1e-3)


@pytest.mark.faults
def test_the_table_of_one_row(place: Path) -> None:
    found = start("all", place, "--quick", "--only", "help")
    assert [row["name"] for row in found["rows"]] == ["help"]
    assert found["rows"][0]["figures"][0]["value"] > 0
    assert found["kernels"]["libraries"]


@pytest.mark.faults
def test_the_guard_of_the_same_files(place: Path) -> None:
    found = start("guard", place, ".", ".", "--only", "sft,help", "--starts", "1", "--rounds", "1", "--limit", "10")
    assert (found["slower"], found["failed"], found["workloads"]["sft"]["pairs"]) == ([], [], 1)


@pytest.mark.faults
def test_growth_over_the_batch(place: Path, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path))
    found = start("growth", place, "--quick", "--axes", "batch", "--rounds", "1", *out)
    assert len(found["points"]["batch"]["sampling"]) == 2
    assert (tmp_path / "growth.svg").is_file()


def ends(network: Any, tokenizer: Any) -> Tensor:
    """The end's probability behind random tokens."""
    ids = torch.randint(len(tokenizer), (64, 64), generator=torch.Generator().manual_seed(1))
    ids[ids == tokenizer.eos_token_id] = 0
    with torch.no_grad():
        return network(input_ids=ids).logits.double().softmax(-1)[..., tokenizer.eos_token_id].flatten()


@pytest.mark.parametrize("probability", [0.05, places.NEVER])
def test_a_fresh_model_ends_its_answers_as_often_as_asked(probability: float) -> None:
    network, tokenizer = build_model("new:tiny", [places.words(2000, 0)], 0)
    places.set_ends(network, tokenizer.eos_token_id, probability)
    assert float(ends(network, tokenizer).mean()) == pytest.approx(probability, rel=0.3)


def test_ratios_are_of_medians() -> None:
    ours = figures.summary([{"cpu": cpu, "wall": 1.0, "tokens": 10, "rss_gb": 1.0} for cpu in (1.0, 2.0, 9.0)])
    rival = figures.summary([{"cpu": 6.0, "wall": 3.0, "tokens": 20, "rss_gb": 2.0}])
    assert (ours["cpu_least"], ours["cpu"], ours["cpu_most"]) == (1.0, 2.0, 9.0)
    found = figures.ratios(ours, rival)
    assert found == {"ratio": 3.0, "ratio_wall": 3.0, "ratio_per_token": 1.5, "ratio_rss": 2.0}
