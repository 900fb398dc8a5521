"""The GPU kit with tiny shapes on a CPU: what it measures, and that it ends in time with what it has."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu
import pytest
import torch
from gpu_parts import checks, part, rivals, runs, step
from gpu_parts.ceilings import Work
from gpu_parts.report import Report, format_state, format_table, has_failed
from gpu_parts.shapes import SHAPES, make_model, shrink
from torch import nn

from qed.errors import UsageError
from qed.training.learner import Learner

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """The kit ends its parts at SIGTERM; later tests of this process must not."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def report(tmp_path: Path) -> Report:
    found = Report(tmp_path / "gpu.json")
    found.add_part("ceilings", bytes_per_s=1e11, flop_per_s=1e12)
    return found


def run_part(name: str, report: Report, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    told = {"name": name, "report": str(report.path), "device": "cpu", "tiny": True, "seconds": 60}
    monkeypatch.setattr("sys.argv", ["part", json.dumps(told)])
    with torch.random.fork_rng():
        try:
            part.main()
        finally:
            torch.set_float32_matmul_precision("highest")
    found: dict[str, Any] = report.read()["parts"][name]
    return found


@pytest.mark.parametrize("name", ["0.5b", "1.5b-qlora", "7b-lora"])
def test_a_step_is_measured_by_stage(name: str, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    if SHAPES[name].quantized:
        pytest.importorskip("bitsandbytes")
    found = run_part(name, report, monkeypatch)
    assert (found["rounds"], found["at"]) == (1 + step.ROUNDS, "done")
    assert set(found["seconds"]) == set(step.STAGES)
    assert found["grad_norm"] > 0
    assert 0 < found["mismatch"] < 0.01
    assert 0 < found["sampler"]["share_of_floor"] < 1
    assert 0 < found["learner"]["share_of_peak"] < 1
    assert found["memory"]["estimated_gib"] > 0
    assert {stage: bool(one["kernels"]) for stage, one in found["kernels"].items()} == dict.fromkeys(
        step.STAGES[:3], True
    )
    assert name in format_table(report.read())


def test_the_ceilings_and_generate_are_measured(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_parts.ceilings.REPEATS", 1)
    assert min(run_part("ceilings", report, monkeypatch).values()) > 0
    assert run_part("generate", report, monkeypatch)["tokens_per_s"] > 0


@pytest.mark.slow
def test_trl_makes_the_same_step(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl")
    found = run_part("trl", report, monkeypatch)
    assert len(found["all_s"]) == 3
    assert found["step_s"] > 0


def test_whole_runs_are_measured(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_part("runs", report, monkeypatch)
    assert found["at"] == "done"
    assert found["vllm"] == found["qlora"] == {"skipped": "it needs a CUDA device"}
    for name in ("lora", "full"):
        assert found[name]["exit_code"] == 0, found[name]["output"]
        assert len(found[name]["steps"]) == 3
        assert all(one["mem/peak"] > 0 for one in found[name]["steps"])


def test_a_whole_run_that_fails_fails_its_part(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "RUNS", {"full": ("--learner.lr", "much")})
    found = run_part("runs", report, monkeypatch)
    assert found["failed"] == "full with exit code 2"
    assert "much" in found["full"]["output"]


def test_a_whole_run_that_is_cut_off_keeps_its_output(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, timeout: float, **__: object) -> None:
        raise subprocess.TimeoutExpired("qed", timeout, output="20 °C\n".encode())

    monkeypatch.setattr(runs, "RUNS", {"full": ()})
    monkeypatch.setattr(subprocess, "run", run)
    assert run_part("runs", report, monkeypatch)["full"]["output"] == "20 °C\n"


def test_a_whole_run_without_its_package_says_why(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    def find() -> None:
        raise UsageError("vLLM 0.25.1 is not one of the versions")

    monkeypatch.setattr(runs, "find_vllm", find)
    assert runs._find_lack("vllm", torch.device("cuda")) == "vLLM 0.25.1 is not one of the versions"


def test_steps_of_trl_are_noted_as_they_come(report: Report) -> None:
    clock = rivals._Clock(CPU, "trl", report)
    for count in (1, 2):
        clock.on_step_begin()
        clock.on_step_end()
        assert len(report.read()["parts"]["trl"]["all_s"]) == count
    assert report.read()["parts"]["trl"]["step_s"] == min(clock.seconds)


def test_why_a_test_failed_is_noted_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the outcome, because pytest's own report comes at its end, which a part that is cut off does not reach."""
    (tmp_path / "tests").mkdir()
    lines = "def test_cpu_works():\n    pass\n\n\ndef test_cpu_fails():\n    assert 6 * 7 == 43\n"
    (tmp_path / "tests" / "test_one.py").write_text(lines, encoding="utf-8")
    monkeypatch.setattr(checks, "ROOT", tmp_path)
    monkeypatch.setattr(checks, "FILES", ("tests/test_one.py",))
    noted: list[dict[str, Any]] = []

    class Notes(Report):
        def add_part(self, part: str, **figures: Any) -> None:
            noted.append(json.loads(json.dumps(figures)))

    checks.run_checks("cpu", "checks", Notes(tmp_path / "gpu.json"))
    first = next(one for one in noted if "failed" in one["tests"].values())
    assert "assert (6 * 7) == 43" in first["output"]
    assert "exit_code" not in first
    assert sorted(noted[-2]["tests"].values()) == ["failed", "passed"]
    assert noted[-2]["exit_code"] == 1


def test_a_test_that_failed_counts_where_the_rest_was_cut_off() -> None:
    part: dict[str, Any] = {"cut_off": "after 9 s", "tests": {"a": "failed", "b": "passed"}}
    assert has_failed(part)
    assert format_state("checks", part) == "checks: cut off: after 9 s; 1 passed, 1 failed, 0 skipped"
    assert not has_failed({"cut_off": "after 9 s", "tests": {"b": "passed"}})
    assert not has_failed({"skipped": "it needs 60"})


def test_a_quantized_model_is_the_one_whose_memory_is_estimated() -> None:
    pytest.importorskip("bitsandbytes")
    shape = shrink(SHAPES["1.5b-qlora"])
    embedding = make_model(shape, CPU, checkpointing=False).get_input_embeddings()
    assert embedding.weight.dtype == getattr(torch, step.make_settings(shape).model.dtype)


def test_what_does_not_fit_is_tried_smaller(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    update = Learner.update

    def fail_twice(self: Learner, *arguments: Any) -> dict[str, float]:
        tried.append(self.settings.tokens_per_microbatch)
        if len(tried) < 3:
            raise torch.OutOfMemoryError("pretended")
        return update(self, *arguments)

    monkeypatch.setattr(Learner, "update", fail_twice)
    found = run_part("0.5b", report, monkeypatch)
    assert tried[:3] == [1 << 16, 1 << 16, 1 << 15], "activation checkpointing first, then half of the tokens"
    assert found["settings"]["gradient_checkpointing"]
    assert found["out_of_memory_at"]["tokens_per_microbatch"] == 1 << 16
    monkeypatch.setattr(step, "LEAST_TOKENS", 1 << 16)
    monkeypatch.setattr(Learner, "update", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("pretended")))
    assert run_part("1.5b", report, monkeypatch)["failed"] == "out of memory at every size"


@pytest.mark.parametrize("name", SHAPES)
def test_the_least_work_counts_every_weight(name: str) -> None:
    shape = replace(shrink(SHAPES[name]), quantized=False)
    model = make_model(shape, CPU, checkpointing=False)
    linear = [
        (path, module.weight.numel())
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and "lora_" not in path
    ]
    work = Work(shape)
    assert sum(count for path, count in linear if path != "lm_head") == work.blocks
    assert work.head == shape.width * shape.vocabulary


@pytest.mark.parametrize(("name", "millions"), [("0.5b", 494), ("1.5b", 1544), ("7b-lora", 7616)])
def test_the_shapes_are_those_of_the_published_models(name: str, millions: int) -> None:
    shape = SHAPES[name]
    work = Work(shape)
    biases = shape.layers * (shape.width + 2 * shape.kv_heads * shape.width // shape.heads)
    norms = (2 * shape.layers + 1) * shape.width
    total = work.blocks + (1 if shape.tied else 2) * work.head + biases + norms
    assert round(total / 1e6) == millions


def run_kit(out: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, dict[str, Any]]:
    monkeypatch.setattr("sys.argv", ["gpu.py", "--json", str(out), *arguments])
    code = gpu.main()
    return code, json.loads(out.read_text()) if out.exists() else {}


def test_without_a_card_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert run_kit(tmp_path / "a.json", monkeypatch) == (2, {})
    assert "There is no CUDA device here" in capsys.readouterr().err


def test_without_time_every_part_is_skipped_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = run_kit(tmp_path / "a.json", monkeypatch, "--device", "cpu", "--tiny", "--minutes", "0.01")
    assert code == 0
    assert all("are left, and it needs" in one["skipped"] for one in found["parts"].values())
    assert list(found["parts"]) == list(gpu.PARTS)
    assert capsys.readouterr().out.count("skipped: ") == len(gpu.PARTS)


@pytest.mark.parametrize(
    ("code", "state", "ends"),
    [
        ("import sys; sys.exit('no such thing')", "failed", 1),
        ("import time; print('half way', flush=True); time.sleep(60)", "cut_off", 0),
    ],
)
def test_a_part_that_fails_or_hangs_ends_no_other(
    code: str, state: str, ends: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part is a process with a deadline; the exit code says whether one failed."""
    monkeypatch.setattr(gpu, "PARTS", {"ceilings": (1, 1), "checks": (1, 1)})
    monkeypatch.setattr(gpu, "TINY_LEAST", 0.1)
    monkeypatch.setattr(gpu, "CHILD", (sys.executable, "-S", "-c", code))
    found_code, found = run_kit(tmp_path / "a.json", monkeypatch, "--device", "cpu", "--tiny", "--minutes", "0.05")
    assert found_code == ends
    assert state in found["parts"]["ceilings"]
    assert "ended" in found
    if state == "failed":
        assert found["parts"]["checks"]["failed"] == "no such thing"
    else:
        assert found["parts"]["ceilings"]["output"] == "half way\n"
