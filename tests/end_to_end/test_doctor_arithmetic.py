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

from qed.config.keys import list_values
from qed.config.resolve import resolve_settings
from qed.doctor.arithmetic import GB, compute_fit
from qed.doctor.trial import Lengths
from qed.doctor.ways import Device
from qed.models import load
from qed.models.qlora import count_packed_bytes
from qed.models.shapes import KNOWN

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


# What is given is computed with, and printed.


def fit(qed: Callable[..., Any], *arguments: Any, model: str = "qwen2.5-7b", memory: int = 24) -> Any:
    """The object that is printed for a model on one device."""
    done = qed("doctor", "--fit", model, "--device-memory", memory, "--json", *arguments)
    assert done.code == 0, done.err
    return done.result


def test_four_bits_are_counted_and_printed(qed: Callable[..., Any]) -> None:
    """Of the linear layers alone, for the model that --fit names; the settings are those of LoRA, which it needs."""
    plain = fit(qed, "model.lora_rank=16")
    told = fit(qed, "model.lora_rank=16", "model.quantization=nf4")
    assert told["full"] == {}
    assert (told["lora"]["model.name"], told["lora"]["model.quantization"]) == ("Qwen/Qwen2.5-7B", "nf4")
    assert "--model.quantization=nf4" in told["command"]
    shape = KNOWN["Qwen/Qwen2.5-7B"]
    linear = shape.layers * shape.linear_weights
    assert linear == 6_525_288_448
    for before, after in zip(plain["choices"], told["choices"], strict=True):
        assert "nf4" in after["choice"]
        saved = before["bytes"]["weights"] - after["bytes"]["weights"]
        assert saved == 2 * linear - count_packed_bytes(linear)
    assert told["lora"]["learner.tokens_per_microbatch"] > 2 * plain["lora"]["learner.tokens_per_microbatch"]
    assert fit(qed, "model.lora_rank=16", "model.quantization=nf4", memory=12)["lora"]


def test_four_bits_are_not_sharded(qed: Callable[..., Any]) -> None:
    given = ["model.lora_rank=16", "model.quantization=nf4", "--devices", 2]
    assert fit(qed, *given)["lora"]["parallel.shard"] == "none"
    done = qed("doctor", "--fit", "qwen2.5-7b", "--device-memory", 24, *given, "--shard", "full")
    assert (done.code, done.out) == (2, "")
    assert "model.quantization nf4 does not work with parallel.shard=full" in done.err
    both = fit(qed, "--devices", 2, memory=80)
    assert not [choice for choice in both["choices"] if "adamw8bit" in choice["choice"]], "a run would refuse it"


def test_the_layers_with_adapters_are_those_that_are_given(qed: Callable[..., Any], tmp_path: Path) -> None:
    targets = "model.lora_targets=q_proj,v_proj"
    told = fit(qed, "model.lora_rank=16", targets)
    every = fit(qed, "model.lora_rank=16")
    assert told["lora"]["model.lora_targets"] == ["q_proj", "v_proj"]
    assert "--model.lora_targets=q_proj,v_proj" in told["command"]
    per_layer = 16 * (3584 + 3584 + 3584 + 512)
    for few, all_layers in zip(told["choices"], every["choices"], strict=True):
        assert few["bytes"]["gradients"] == 4 * 28 * per_layer
        assert few["bytes"]["gradients"] < all_layers["bytes"]["gradients"]
    config = {"model_type": "qwen2", "vocab_size": 99, "hidden_size": 64, "intermediate_size": 128}
    config |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    own = fit(qed, "model.lora_rank=3", targets, model=str(tmp_path / "config.json"))
    assert own["choices"][0]["bytes"]["gradients"] == 4 * 2 * 3 * (64 + 64 + 64 + 32)


def test_every_given_setting_is_printed(qed: Callable[..., Any]) -> None:
    """In the settings, in the text and in the command, from which a run has them; other sizes are not proposed."""
    given = {"algorithm.kl": 0.1, "sampling.group_size": 2, "sampling.problems_per_step": 1}
    given |= {"sampling.max_tokens": 4096, "learner.optimizer": "adamw_offload", "sampling.rows_per_batch": 1}
    given |= {"data.system_prompt": "- Be brief.", "data.tasks": ("gsm8k", "math")}
    words = [f"{key}={','.join(value) if isinstance(value, tuple) else value}" for key, value in given.items()]
    told = fit(qed, *words, model="qwen2.5-1.5b", memory=80)
    expected = json.loads(json.dumps(given))
    for proposal in (told["full"], told["lora"]):
        assert {key: proposal.get(key) for key in given} == expected
    assert told["full"]["learner.tokens_per_microbatch"] == 2 * (512 + 4096 - 1), "a step has two rows"
    assert "model.gradient_checkpointing" not in told["full"], "both fit at once without"
    assert all("adamw_offload" in choice["choice"] for choice in told["choices"])
    sizes = {"float32": 4, "bfloat16": 2}
    for choice in told["choices"]:
        kind, weights, _ = choice["choice"].split(", ")[:3]
        reference = sizes[weights.split()[0]] * told["parameters"] if kind == "full" else 0
        assert choice["bytes"].get("reference", 0) == reference
    values = list_values(resolve_settings("grpo", told["command"][2:]).settings)
    assert {key: values[key] for key in given} == given
    done = qed("doctor", "--fit", "qwen2.5-1.5b", "--device-memory", 80, *words)
    assert {key: yaml.safe_load(done.out).get(key) for key in given} == expected


def test_adapters_that_are_asked_for_are_proposed(qed: Callable[..., Any]) -> None:
    """Also where a full fine-tune would fit; a rank of 0 asks for the latter."""
    told = fit(qed, "model.lora_rank=8", model="qwen2.5-0.5b", memory=80)
    assert told["full"] == {}
    assert told["lora"]["model.lora_rank"] == 8
    assert "--model.lora_rank=8" in told["command"]
    done = qed("doctor", "--fit", "qwen2.5-0.5b", *CARD, "model.lora_rank=8")
    assert yaml.safe_load(done.out)["model.lora_rank"] == 8
    assert "full" not in done.out
    whole = fit(qed, "model.lora_rank=0", model="qwen2.5-0.5b", memory=80)
    assert whole["lora"] == {}
    assert whole["full"]["model.lora_rank"] == 0


def test_given_sizes_of_batches_must_fit(qed: Callable[..., Any]) -> None:
    """And no more is proposed than is given."""
    told = fit(qed, "model.lora_rank=16", "learner.tokens_per_microbatch=4000")
    assert told["lora"]["learner.tokens_per_microbatch"] == 4000
    assert not told["lora"].get("model.dtype"), "two rows of float32 weights fit"
    done = qed(
        "doctor", "--fit", "qwen2.5-7b", "--device-memory", 24, "model.lora_rank=16", "sampling.rows_per_batch=128"
    )
    assert (done.code, done.out) == (3, "")
    most = max(choice["sampler_rows"] for choice in told["choices"])
    assert f"and {most}." in done.err


def test_the_length_of_rows_is_that_of_the_settings(qed: Callable[..., Any]) -> None:
    told = fit(qed, "sampling.max_tokens=2000", "data.max_prompt_tokens=100", model="qwen2.5-0.5b")
    assert told["full"]["sampling.max_tokens"] == 2000
    assert told["full"]["learner.tokens_per_microbatch"] % 2099 == 0


def test_an_adapter_folder_is_computed_as_its_base(qed: Callable[..., Any], tmp_path: Path) -> None:
    """Of a run the folder to name is told."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({"base_model_name_or_path": "Qwen/Qwen2.5-0.5B"}), encoding="utf-8")
    told = fit(qed, "model.lora_rank=4", "model.lora_targets=q_proj", model=str(folder))
    same = fit(qed, "model.lora_rank=4", "model.lora_targets=q_proj", model="qwen2.5-0.5b")
    assert told["choices"] == same["choices"]
    assert told["lora"]["model.name"] == str(folder)
    card = ["--device-memory", 24]
    done = qed("doctor", "--fit", folder, *card, "model.lora_rank=4", "model.quantization=nf4")
    assert (done.code, "needs complete weights" in done.err) == (2, True)
    file.write_text(json.dumps({"base_model_name_or_path": "some/other"}), encoding="utf-8")
    done = qed("doctor", "--fit", folder, *card)
    assert (done.code, "is some/other. The sizes" in done.err) == (2, True)
    run = tmp_path / "run"
    for part in load.build_model("new:tiny", ["1 + 1 = 2"], 0):
        part.save_pretrained(run / "final" / "hf")
    done = qed("doctor", "--fit", run, *card)
    assert (done.code, f"Did you mean {run / 'final' / 'hf'}?" in done.err) == (3, True)


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
        (["--fit", "qwen2.5-7b", *CARD, "model.lora_targets=q_pro"], 2, "Did you mean 'q_proj'?"),
        (["--fit", "qwen2.5-7b", *CARD, "model.name=Qwen/Qwen2.5-3B"], 2, "--fit sets model.name to"),
        (["--fit", "qwen2.5-7b", *CARD, "--lengths", "9,9", "sampling.max_tokens=8"], 2, "--lengths sets"),
        (["--fit", "qwen2.5-7b", *CARD, "--group", "4", "sampling.group_size=8"], 2, "--group sets"),
        (["--fit", "new:small", *CARD, "model.quantization=nf4"], 2, "model.lora_rank above 0"),
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
        fit = compute_fit("qwen2.5-1.5b", [], Device(memory * GB), lengths)
        for number, choice in enumerate(fit.choices):
            rows = choice.rows.learner, choice.rows.sampler
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
