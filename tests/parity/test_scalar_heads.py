"""Models with a scalar head have the values that transformers' own forward pass has, and are saved for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from qed.config.settings import ModelSettings
from qed.errors import ModelError
from qed.models.load import build_model, load_model, prepare_model
from qed.models.lora import add_adapters
from qed.models.save import save_model
from qed.models.scalar_head import build_scalar_model, load_scalar_model
from qed.training.batch import collate
from qed.training.logps import compute_values
from qed.training.packing import pack_batch
from qed.types import Problem, Rollout

PROBLEM = Problem("p", "question", "answer")
ROWS = [
    Rollout(PROBLEM, list(range(5, 15)), output, [-1.0] * len(output), "", "stop")
    for output in ([20, 21, 22, 3], [23, 3], [24, 25, 3])
]


@pytest.fixture(scope="module")
def policy() -> tuple[torch.nn.Module, object]:
    model, tokenizer = build_model("new:tiny", ["12+34=46 "] * 50, seed=1)
    return prepare_model(model, ModelSettings(), torch.device("cpu")), tokenizer


@pytest.mark.parametrize("rank", [0, 2])
def test_a_saved_critic_is_a_model_of_transformers_with_the_same_values(policy, rank: int, tmp_path: Path) -> None:
    model, tokenizer = policy
    if rank:
        add_adapters(model, ModelSettings(lora_rank=rank), seed=0)
    critic = build_scalar_model(model)
    batch = collate(ROWS)
    assert not compute_values(critic, batch)[0].any()
    torch.nn.init.normal_(critic.score.weight)
    (padded,) = compute_values(critic, batch)
    (packed,) = compute_values(critic, batch, layout=pack_batch(batch))
    torch.testing.assert_close(packed, padded, rtol=1e-4, atol=1e-4)
    save_model(critic, tokenizer, tmp_path)
    loaded, _ = load_scalar_model(ModelSettings(name=str(tmp_path)))
    for row, rollout in enumerate(ROWS):
        for place in range(len(rollout.output)):
            ids = torch.tensor([[*rollout.prompt, *rollout.output[:place]]])
            expected = loaded(input_ids=ids).logits[0, 0]
            torch.testing.assert_close(padded[row, ids.shape[1] - 1], expected, rtol=1e-4, atol=1e-4)


def test_a_causal_model_is_no_critic_and_a_critic_no_policy(policy, tmp_path: Path) -> None:
    model, tokenizer = build_model("new:tiny", ["12+34=46 "] * 50, seed=1)
    save_model(model, tokenizer, tmp_path / "policy")
    with pytest.raises(ModelError, match="scalar head"):
        load_scalar_model(ModelSettings(name=str(tmp_path / "policy")))
    save_model(build_scalar_model(model), tokenizer, tmp_path / "critic")
    with pytest.raises(ModelError, match="scores answers but cannot generate them"):
        load_model(ModelSettings(name=str(tmp_path / "critic")))
    written = tmp_path / "critic" / "config.json"
    configuration = json.loads(written.read_text())
    # The head of a language model is its embedding; and other libraries name the kind otherwise.
    for changed in ({"tie_word_embeddings": True}, {"architectures": ["RewardModel"]}):
        written.write_text(json.dumps({**configuration, **changed}))
        with pytest.raises(ModelError, match="scores answers but cannot generate them"):
            load_model(ModelSettings(name=str(tmp_path / "critic")))
    written = tmp_path / "policy" / "config.json"
    kinds = ["Qwen2ForCausalLM", "Qwen2ForSequenceClassification"]
    written.write_text(json.dumps({**json.loads(written.read_text()), "architectures": kinds}))
    load_model(ModelSettings(name=str(tmp_path / "policy")))
