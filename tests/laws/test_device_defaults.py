"""Defaults by device: what a card changes, what a user sets stays, and a measurement never fails a run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qed.cli.commands import config
from qed.cli.training import run_recipe
from qed.config.keys import list_origins
from qed.config.phases import Settings
from qed.config.resolve import DEFAULT, resolve_settings
from qed.loops import device_fit
from qed.loops.device_defaults import (
    LEAST_ROWS,
    LEAST_TOKENS,
    MOST_ROWS,
    MOST_TOKENS,
    ON_CUDA,
    Card,
    Sizes,
    Surroundings,
    choose_device_defaults,
    estimate_sizes,
    read_value,
)
from qed.loops.device_fit import build_request, measure_sizes
from qed.models.load import build_model
from qed.models.shapes import KNOWN
from qed.runs.run import read_lines

GIB = 2**30
H100 = Card("H100", (9, 0), 80 * GIB, 79 * GIB)
T4 = Card("T4", (7, 5), 16 * GIB, 15 * GIB)
HALF, MIDDLE = (KNOWN[f"Qwen/Qwen2.5-{size}"] for size in ("0.5B", "1.5B"))
SEVEN = KNOWN["Qwen/Qwen2.5-7B"].with_adapters(16)
PLENTY = 10_000 * GIB
WINDOW = 32_768


def choose(
    *arguments: str,
    command: str = "grpo",
    card: Card = H100,
    shape: Any = HALF,
    disk: int = PLENTY,
    measure: Callable[[Settings], Sizes | None] = lambda _: None,
) -> tuple[Any, dict[str, str]]:
    resolved = resolve_settings(command, ["--model", "some/model", *arguments])
    origins = list_origins(resolved.settings, resolved.origins)
    return choose_device_defaults(resolved.settings, origins, Surroundings(card, shape, disk, measure))


def test_a_card_of_today_gets_its_defaults() -> None:
    settings, origins = choose("--steps", "400", measure=lambda _: Sizes(12_345, 77, "measured"))
    assert settings.model.precision == "bfloat16"
    assert settings.run.matmul_precision == "high"
    assert not settings.model.gradient_checkpointing
    assert (settings.learner.tokens_per_microbatch, settings.sampling.rows_per_batch) == (12_345, 77)
    assert (settings.run.save_every, settings.run.keep_last) == (40, 2)
    chosen = {path: origin for path, origin in origins.items() if origin.startswith(ON_CUDA)}
    assert set(chosen) == {
        "model.precision",
        "run.matmul_precision",
        "model.gradient_checkpointing",
        "learner.tokens_per_microbatch",
        "sampling.rows_per_batch",
        "run.save_every",
        "run.keep_last",
    }
    assert chosen["learner.tokens_per_microbatch"] == f"{ON_CUDA}: measured"


def test_without_bfloat16_it_stays_in_float32() -> None:
    settings, origins = choose(card=T4)
    assert (settings.model.precision, settings.run.matmul_precision) == ("float32", "highest")
    assert "compute capability 7.5" in origins["model.precision"]
    assert origins["run.matmul_precision"] == DEFAULT


def test_float32_that_is_asked_for_is_exact() -> None:
    settings, _ = choose("--model.precision", "float32")
    assert (settings.model.precision, settings.run.matmul_precision) == ("float32", "highest")


GIVEN = {
    "model.precision": "float32",
    "run.matmul_precision": "medium",
    "model.gradient_checkpointing": "true",
    "learner.tokens_per_microbatch": "99",
    "sampling.rows_per_batch": "3",
    "run.save_every": "0",
    "run.keep_last": "7",
}


@given(st.sets(st.sampled_from(sorted(GIVEN))), st.sampled_from([H100, T4]), st.sampled_from([HALF, MIDDLE, SEVEN]))
def test_what_is_given_wins(keys: set[str], card: Card, shape: Any) -> None:
    arguments = [f"{key}={GIVEN[key]}" for key in sorted(keys)]
    before = resolve_settings("grpo", arguments)
    settings, origins = choose(*arguments, card=card, shape=shape)
    for key in keys:
        assert read_value(settings, key) == read_value(before.settings, key)
        assert not origins[key].startswith(DEFAULT)
    changed = {key for key in origins if origins[key].startswith(ON_CUDA)}
    assert changed <= set(GIVEN) - keys


def test_both_phases_of_a_pipeline_get_the_size_unless_one_is_given() -> None:
    settings, origins = choose("--sft.learner.tokens_per_microbatch", "5", command="pipeline")
    assert settings.sft.learner.tokens_per_microbatch == 5
    assert settings.rl.learner.tokens_per_microbatch > 5
    assert not origins["sft.learner.tokens_per_microbatch"].startswith(DEFAULT)
    assert origins["rl.learner.tokens_per_microbatch"].startswith(ON_CUDA)


def test_checkpointing_is_on_where_the_estimate_says_so() -> None:
    """Where 4,096 tokens do not fit without it, or as many as are set."""
    small = Card("A", (8, 0), 40 * GIB, 40 * GIB)
    assert not choose(shape=HALF)[0].model.gradient_checkpointing
    assert not choose(shape=HALF, card=small)[0].model.gradient_checkpointing
    settings, origins = choose(shape=MIDDLE, card=Card("A", (8, 0), 32 * GIB, 32 * GIB))
    assert settings.model.gradient_checkpointing
    assert "4,096 tokens" in origins["model.gradient_checkpointing"]
    settings, origins = choose("--learner.tokens_per_microbatch", "32768", shape=HALF, card=small)
    assert settings.model.gradient_checkpointing
    assert "32,768 tokens" in origins["model.gradient_checkpointing"]


@pytest.mark.parametrize("shape", [HALF, MIDDLE, SEVEN])
def test_estimated_sizes_grow_with_the_card(shape: Any) -> None:
    settings, _ = choose()
    sizes = [estimate_sizes(shape, settings, Card("", (9, 0), memory * GIB, 0)) for memory in (1, 16, 40, 80, 4000)]
    assert [one.tokens for one in sizes] == sorted(one.tokens for one in sizes)
    assert [one.rows for one in sizes] == sorted(one.rows for one in sizes)
    assert (sizes[0].tokens, sizes[0].rows) == (LEAST_TOKENS, LEAST_ROWS)
    assert (sizes[-1].tokens, sizes[-1].rows) == (MOST_TOKENS, MOST_ROWS)


def test_checkpoints_on_the_way_need_room_and_a_long_run() -> None:
    assert choose("--steps", "19")[0].run.save_every == 0
    assert choose("--steps", "20")[0].run.save_every == 10
    assert choose("--learner.epochs", "2")[0].run.save_every == 100
    settings, origins = choose("--steps", "400", shape=MIDDLE, disk=100 * GIB)
    assert settings.run.save_every == 0
    assert "would fill the disk" in origins["run.save_every"]


def test_a_model_of_unknown_shape_keeps_its_sizes() -> None:
    settings, origins = choose(shape=None)
    assert settings.model.precision == "bfloat16"
    assert origins["learner.tokens_per_microbatch"] == origins["sampling.rows_per_batch"] == DEFAULT


def phase(*arguments: str) -> Settings:
    settings = resolve_settings("grpo", ["--model", "some/model", *arguments]).settings
    assert isinstance(settings, Settings)
    return settings


def answer(rows: int, code: int = 0, text: str = "") -> Callable[..., Any]:
    """A process that ends as `qed doctor --fit --json` does."""
    found = json.dumps({"learner": {"rows": rows}, "sampler": {"rows": 2 * rows}})
    return lambda *_, **__: SimpleNamespace(returncode=code, stdout=text or f"{found}\n", stderr="error: why\n")


def test_a_measurement_is_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said: list[str] = []
    settings = phase("--sampling.max_tokens", "100", "--data.max_prompt_tokens", "28")
    sizes = measure_sizes(settings, H100, WINDOW, said.append, answer(40))
    assert sizes is not None
    assert (sizes.tokens, sizes.rows) == (40 * 127, 80)
    assert measure_sizes(settings, H100, WINDOW, said.append, answer(1)) == sizes, "from the cache"
    assert len(said) == 1
    others = [phase("--model.precision", "bfloat16"), phase("--algorithm.kl", "0.1"), phase("--model.lora_rank", "4")]
    for other in others:
        assert measure_sizes(other, H100, WINDOW, said.append, answer(1)) != sizes
    assert measure_sizes(settings, T4, WINDOW, said.append, answer(1)) != sizes
    assert len(list((tmp_path / "qed" / "fits").iterdir())) == 5


def test_a_measurement_beside_other_programs_is_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    busy = Card("H100", (9, 0), 80 * GIB, 30 * GIB)
    first = measure_sizes(phase(), busy, WINDOW, print, answer(7))
    second = measure_sizes(phase(), busy, WINDOW, print, answer(8))
    assert first is not None
    assert second is not None
    assert first.tokens < second.tokens
    assert not (tmp_path / "qed").exists()


def timeout(*_: Any, **__: Any) -> Any:
    raise subprocess.TimeoutExpired("qed doctor", 1)


@pytest.mark.parametrize(
    "run", [answer(1, code=3), answer(1, text="no JSON\n"), answer(1, text="{}\n"), answer(1, text="\n"), timeout]
)
def test_a_failed_measurement_is_an_estimate(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said: list[str] = []
    assert measure_sizes(phase(), H100, WINDOW, said.append, run) is None
    assert said[-1].startswith("The measurement failed, so the batch sizes are estimated.")
    assert not (tmp_path / "qed").exists()


def test_the_measurement_has_the_settings_that_decide_its_memory() -> None:
    """The arguments are a valid command line, and give the doctor the settings of the run."""
    given = [
        "--model.lora_rank",
        "8",
        "--model.lora_targets",
        "q_proj,v_proj",
        "--model.gradient_checkpointing",
        "true",
    ]
    settings = phase(*given, "--learner.optimizer", "adamw_offload", "--sampling.group_size", "6", "--lr", "3e-4")
    arguments = build_request(settings, WINDOW).arguments
    words = [word for word in arguments if "=" in word]
    measured = resolve_settings("grpo", ["--model", arguments[2], *words]).settings
    assert measured.model == settings.model
    assert isinstance(measured, Settings)
    assert measured.learner.optimizer == "adamw_offload"
    assert arguments[:6] == ("doctor", "--fit", "some/model", "--lengths", "512,256", "--group")
    assert not any("lr" in word for word in words)
    assert build_request(settings, 300).arguments[4] == "44,256", "the prompt leaves room for the answer"


@pytest.mark.parametrize(
    ("method", "given"),
    [("opd", ("--algorithm.teacher", "a/larger-model")), ("opsd", ("--algorithm.teacher_weights", "live"))],
)
def test_what_the_doctor_does_not_know_is_not_measured(method: str, given: tuple[str, ...]) -> None:
    """A teacher of another size, or a divergence over the vocabulary."""
    settings = resolve_settings(method, ["--model", "some/model", *given]).settings
    assert isinstance(settings, Settings)
    said: list[str] = []
    assert measure_sizes(settings, H100, WINDOW, said.append, run=lambda *_, **__: pytest.fail("measured")) is None
    assert not said


@pytest.mark.slow
@pytest.mark.faults
def test_the_measurement_is_made_by_the_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real process, on the CPU: its result is read, and the model's window is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    network, tokenizer = build_model("new:tiny", ["one two three"], 0)
    network.save_pretrained(tmp_path / "model")  # type: ignore[operator]
    tokenizer.save_pretrained(tmp_path / "model")
    settings = phase("--model", str(tmp_path / "model"), "--model.device", "cpu", "--sampling.max_tokens", "8")
    shape, window = device_fit.find_shape(settings)
    assert shape is not None
    assert window == 512
    said: list[str] = []
    sizes = measure_sizes(settings, H100, window, said.append)
    assert sizes is not None, said
    assert sizes.tokens > 512


RUN = ("--steps", "2", "--sampling.max_tokens", "4", "--sampling.problems_per_step", "2", "--sampling.group_size", "2")
QUICK = ("--evaluation.problems", "2", "--evaluation.at_start", "false", "--run.on_no_signal", "warn")


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU passes for a card of today."""
    monkeypatch.setattr(device_fit, "read_card", lambda device: H100)


@pytest.mark.usefixtures("pretended", "few_problems")
def test_a_run_has_the_defaults_and_a_resumed_one_keeps_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    arguments = ["--model", "new:tiny", *RUN, *QUICK]
    run_recipe(resolve_settings("grpo", [*arguments, "--out", str(out)]), ["grpo"])
    assert "Defaults on H100: model.precision bfloat16, run.matmul_precision high." in capsys.readouterr().out
    saved, origins = (out / "settings.yaml").read_text(), json.loads((out / "settings.origin.json").read_text())
    assert "precision: bfloat16" in saved
    assert origins["model.precision"] == f"{ON_CUDA}: H100 computes it in hardware"
    (event,) = (row for row in read_lines(out / "events.jsonl") if row["event"] == "device_defaults")
    assert event["chosen"]["model.precision"] == "bfloat16"
    # Elsewhere, and with a configuration, whose precision would be the default.
    monkeypatch.setattr(device_fit, "read_card", lambda device: None)
    own = tmp_path / "own.yaml"
    own.write_text("model: {name: 'new:tiny'}\n", encoding="utf-8")
    again = [str(own), *RUN, *QUICK, "--steps", "3", "--resume", "--out", str(out)]
    run_recipe(resolve_settings("grpo", again), ["grpo"])
    assert "precision: bfloat16" in (out / "settings.yaml").read_text()
    assert json.loads((out / "settings.origin.json").read_text())["model.precision"] == origins["model.precision"]
    assert read_lines(out / "metrics.jsonl")[-1]["step"] == 3


@pytest.mark.usefixtures("pretended")
def test_a_dry_run_says_what_would_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", "new:tiny", "--steps", "50", "--run.matmul_precision", "highest", "--dry-run"]
    run_recipe(resolve_settings("grpo", arguments), ["grpo"])
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("Defaults on H100:")
    assert lines[start + 1 :] == [
        "  model.precision bfloat16: H100 computes it in hardware",
        "  run.save_every 10: a stopped run loses little",
        "  run.keep_last 2: run.save_every is on by default",
    ]


@pytest.mark.usefixtures("pretended")
def test_config_show_says_it_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("qed.host.may_have_cuda", lambda: True)
    assert config.run(["show", "grpo", "--model", "new:tiny", "--model.device", "cpu"]) == 0
    assert "  model.precision bfloat16: H100 computes it in hardware" in capsys.readouterr().out.splitlines()


def test_on_a_cpu_nothing_changes(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", "new:tiny", "--model.device", "cpu", "--dry-run"]
    run_recipe(resolve_settings("grpo", arguments), ["grpo"])
    assert "Defaults on" not in capsys.readouterr().out
