"""A model whose text part stands beside one for images is trained, sampled, saved, reloaded and resumed by its text
part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from qed.algorithms.grpo import Grpo
from qed.algorithms.sft import Sft
from qed.config.phases import Settings
from qed.config.sampling_settings import EvaluationSettings, SamplingSettings
from qed.config.settings import LearnerSettings, ModelSettings, RunSettings
from qed.loops.train import train
from qed.models import load
from qed.runs.run import Launch, read_lines
from qed.sampling.base import Sampling
from qed.sampling.native.sampler import make
from qed.training.batch import collate
from qed.training.learner import Learner
from qed.training.logps import compute_logps
from qed.types import Problem, Rollout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Gemma 3 as it is published: text and images, with a tokenizer."""
    torch.manual_seed(0)
    _, tokenizer = load.build_model("new:tiny", ["1 + 1 = 2"], 0)
    count = len(tokenizer)
    text = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    text |= {"num_key_value_heads": 2, "head_dim": 8, "vocab_size": count + 8, "max_position_embeddings": 512}
    text |= {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"], "initializer_range": 0.3}
    text |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    image = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config={**image, "image_size": 16, "patch_size": 8},
        mm_tokens_per_image=4,
        image_token_index=count + 1,
        boi_token_index=count + 2,
        eoi_token_index=count + 3,
    )
    transformers.Gemma3ForConditionalGeneration(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def settings_for(name: Path, out: Path, **changes: object) -> Settings:
    settings = Settings(
        method="sft",
        algorithm=Sft(),
        model=ModelSettings(name=str(name)),
        learner=LearnerSettings(steps=2, batch_size=4, lr=0.01),
        sampling=SamplingSettings(problems_per_step=2, group_size=2, max_tokens=8),
        evaluation=EvaluationSettings(problems=2),
        run=RunSettings(out=str(out), on_no_signal="warn"),
    )
    return replace(settings, **changes)


def test_it_is_trained_by_both_methods_and_keeps_its_other_part(folder: Path, tmp_path: Path) -> None:
    """SFT, then GRPO from what SFT saved: all weights are there under their names, those for images as they were."""
    train(settings_for(folder, tmp_path / "sft"), Launch())
    tuned = tmp_path / "sft" / "final" / "hf"
    before, after = load_file(folder / "model.safetensors"), load_file(tuned / "model.safetensors")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]) == ("language_model" not in name), name
    train(settings_for(tuned, tmp_path / "grpo", method="grpo", algorithm=Grpo(kl=0.1)), Launch())
    assert [row["step"] for row in read_lines(tmp_path / "grpo" / "metrics.jsonl") if "train/loss" in row] == [1, 2]
    config = transformers.AutoConfig.from_pretrained(tmp_path / "grpo" / "final" / "hf")
    assert config.model_type == "gemma3"


@pytest.mark.parametrize("checkpointing", [False, True])
def test_what_it_samples_is_what_it_learns_from(folder: Path, checkpointing: bool) -> None:
    """The sampler's log-probs are the learner's, past its window too; checkpointing needs no other input."""
    settings = ModelSettings(name=str(folder), gradient_checkpointing=checkpointing)
    network, tokenizer = load.load_model(settings)
    network = load.prepare_model(network, settings, torch.device("cpu"))
    ends = load.find_end_ids(network, tokenizer, chat=False)
    sampler = make(network, tokenizer, ends, 8, torch.float32)
    prompts = [(5, 6, 7), tuple(range(10, 25))]
    found = sampler.generate(prompts, [[1, 2], [3, 4]], Sampling(1.0, 12))
    rollouts = [
        Rollout(Problem("p", "?", "1"), prompt, answer.tokens, answer.logps, "", answer.stop_reason, advantage=1.0)
        for prompt, answers in zip(prompts, found, strict=True)
        for answer in answers
    ]
    batch = collate(rollouts)
    logps, _ = compute_logps(network, batch, 1.0)
    torch.testing.assert_close(logps.detach(), batch.sampled_logps * batch.mask, rtol=1e-4, atol=1e-4)
    assert Learner(network, Grpo(), LearnerSettings()).update(rollouts, 0)["optim/grad_norm"] > 0
