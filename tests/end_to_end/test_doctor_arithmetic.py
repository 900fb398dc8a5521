"""`qed doctor --fit --device-memory`: what fits a card that is not here, and the same estimate against a real peak."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from qed.config.resolve import resolve_settings
from qed.doctor.arithmetic import GB, Device, compute_fit
from qed.doctor.rows import Lengths

CARD = ["--device-memory", "80"]


def test_seven_billion_on_one_card(qed: Callable[..., Any]) -> None:
    """In short and in full; in text the settings stand as YAML below comments."""
    done = qed("doctor", "--fit", "qwen2.5-7b", *CARD)
    assert done.code == 0, done.err
    assert "7.616 B parameters; computed, not measured" in done.out
    settings = yaml.safe_load(done.out)
    assert (settings["model.name"], settings["model.dtype"]) == ("Qwen/Qwen2.5-7B", "bfloat16")
    assert settings["learner.optimizer"] == "adamw_offload"
    told = qed("doctor", "--fit", "Qwen/Qwen2.5-7B-Instruct", *CARD, "--json").result
    assert told["full"] == settings | {"model.name": "Qwen/Qwen2.5-7B-Instruct"}
    assert told["lora"]["model.lora_rank"] == 16
    assert told["lora"]["learner.tokens_per_microbatch"] >= 1535
    ways = {choice["choice"]: choice for choice in told["choices"]}
    assert ways["full, float32 weights, adamw, checkpointing"]["learner_rows"] == 0
    offloaded = ways["full, bfloat16 weights, adamw_offload, checkpointing"]
    assert offloaded["learner_rows"] * offloaded["row_bytes"] + sum(offloaded["bytes"].values()) <= 80 * GB
    assert settings["model.gradient_checkpointing"]
    assert [ways[f"full, bfloat16 weights, adamw8bit{each}"]["learner_rows"] for each in ("", ", checkpointing")] == [
        0,
        0,
    ]
    (why,) = (
        line for line in done.out.splitlines() if line.startswith("# Does not fit: full, bfloat16 weights, adamw8bit")
    )
    assert "gradients 30.5" in why
    assert "float32 copies 30.5" in why
    assert offloaded["host_bytes"] == {"moments": 8 * told["parameters"], "float32 copies": 4 * told["parameters"]}


def test_two_cards_need_no_offloading(qed: Callable[..., Any]) -> None:
    """If gradients are summed after each micro-batch; complete ones until the end of a step do not fit."""
    two = ["--fit", "qwen2.5-7b", *CARD, "--devices", 2]
    told = qed("doctor", *two, "--json").result
    assert told["shard"] == "full"
    assert told["full"]["learner.optimizer"] == "adamw"
    assert (told["full"]["parallel.shard"], told["full"]["parallel.reduce"]) == ("full", "microbatch")
    assert told["full"]["model.gradient_checkpointing"]
    ways = {choice["choice"]: choice["learner_rows"] for choice in told["choices"]}
    assert ways["full, bfloat16 weights, adamw, checkpointing"] == 0
    replicated = qed("doctor", *two, "--shard", "none", "--json").result
    assert replicated["full"]["learner.optimizer"] == "adamw_offload"
    assert "parallel.reduce" not in replicated["full"]


def test_the_text_ends_with_a_command_line_of_the_same_settings(qed: Callable[..., Any]) -> None:
    done = qed("doctor", "--fit", "qwen2.5-7b", *CARD, "--devices", 2)
    program, method, *arguments = shlex.split(done.out.splitlines()[-1].removeprefix("# "))
    assert (program, method) == ("qed", "grpo")
    resolved = resolve_settings(method, arguments)
    assert resolved.flags.ranks == 2
    for path, value in yaml.safe_load(done.out).items():
        section, name = path.split(".")
        assert getattr(getattr(resolved.settings, section), name) == value


def test_a_configuration_is_enough(qed: Callable[..., Any], tmp_path: Path) -> None:
    """And the settings that are proposed for it are those of a run, where the model has float32 weights."""
    config = {"model_type": "qwen2", "vocab_size": 999, "hidden_size": 64, "intermediate_size": 128}
    config |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    done = qed("doctor", "--fit", file, "--device-memory", 4, "--lengths", "20,30", "--group", 4, "--json")
    assert done.code == 0, done.err
    assert done.result["full"]["model.name"] == str(tmp_path)
    assert done.result["full"]["learner.tokens_per_microbatch"] == 16 * 4 * 49
    fits = tmp_path / "fits.yaml"
    fits.write_text(qed("doctor", "--fit", "new:small", "--device-memory", 4, "--lengths", "20,30").out, "utf-8")
    assert qed("config", "show", "grpo", fits).code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--fit", "qwen2.5-7bb", *CARD], 2, "Did you mean 'qwen2.5-7b'?"),
        (["--fit", "lama-3.2-1b", *CARD], 2, "Did you mean 'llama-3.2-1b'?"),
        (["--fit", "new:smal", *CARD], 2, "Did you mean 'new:small'?"),
        (["--fit", "absent/config.json", *CARD], 3, "absent"),
        (["--fit", *CARD], 2, "takes a model"),
        (["--fit", "qwen2.5-7b", "--device-memory", "0"], 2, "above 0"),
        (["--fit", "qwen2.5-7b", *CARD, "--devices", "0"], 2, "at least 1"),
        (["--fit", "qwen2.5-7b", *CARD, "--shard", "ful"], 2, "full"),
        (["--fit", "qwen2.5-7b", *CARD, "sampling.group_sise=4"], 2, "sampling.group_size"),
        (["--fit", "new:tiny", "--lengths", "20,30", "--devices", "2"], 2, "--device-memory"),
        (["--device-memory", "80"], 2, "--fit"),
        (["--fit", "qwen2.5-7b", "--device-memory", "8"], 3, "LoRA"),
    ],
)
def test_what_cannot_be_is_explained(qed: Callable[..., Any], arguments: list[str], code: int, words: str) -> None:
    done = qed("doctor", *arguments)
    assert (done.code, done.out) == (code, ""), done.err
    assert words in done.err
    assert "Traceback" not in done.err


def test_a_larger_card_never_fits_less() -> None:
    lengths, largest = Lengths(512, 1024), {}
    for memory in (24, 48, 80, 141):
        fit = compute_fit("qwen2.5-1.5b", ["--sampling.max_tokens", "1024"], lengths, Device(memory * GB))
        for number, choice in enumerate(fit.choices):
            rows = choice.learner_rows, choice.sampler_rows
            assert all(one >= other for one, other in zip(rows, largest.get(number, (0, 0)), strict=True))
            largest[number] = rows


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of a process from /proc")
def test_a_real_run_takes_what_is_computed(tmp_path: Path) -> None:
    """Of small tensors; benchmarks/memory.py has more cases."""
    import memory  # noqa: PLC0415 -- imports the whole trainer

    case = memory.Case("sft", "medium", {"learner.batch_size": 4, "learner.tokens_per_microbatch": 512})
    result = memory.run_case(case, tmp_path, ranks=1, threads=1)
    assert result["estimated"] == pytest.approx(result["measured"], rel=0.3)
