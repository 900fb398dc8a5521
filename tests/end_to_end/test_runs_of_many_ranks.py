"""A run of several ranks is the run of one, for every method and every way to shard a model.

In float64, so that what is summed in another order differs in the last bits alone and no draw flips.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cutting import OFFLINE, ONLINE
from ranks import measure_difference, read_rollouts, run_ranks

from qed.config.resolve import resolve_settings
from qed.config.settings import ParallelSettings
from qed.errors import UsageError
from qed.loops.supported import require_supported
from qed.training.parallel import Parallel

Command = Callable[..., list[object]]
DOUBLE = ["--model.precision", "float64", "--evaluation.every", 2]
# Several updates of a step, rows of several lengths, an idle rank now and then, and a reference that follows.
UPDATES = ["--learner.passes", 2, "--learner.batch_size", 6, "--algorithm.kl", 0.1, "--algorithm.entropy", 0.01]
METHODS: dict[str, list[object]] = {
    "sft": [*OFFLINE, "--learner.tokens_per_microbatch", 300],
    "grpo": [*ONLINE, *UPDATES, "--algorithm.reference_every", 2, "--algorithm.reference_mix", 0.5],
    "dpo": [*OFFLINE],
    "luffy": [*ONLINE, "--model.lora_rank", 2],
}


@pytest.fixture
def run(command: Command, tmp_path: Path) -> Callable[..., Path]:
    """The run of a method at a number of ranks."""

    def make(name: str, world: int, *more: object) -> Path:
        out = tmp_path / "-".join(map(str, (name, world, *more)))
        return run_ranks(command(name, *METHODS[name], *DOUBLE, *more), world, out)

    return make


@pytest.mark.parametrize(("name", "shard"), [("sft", "none"), ("grpo", "full"), ("dpo", "grads"), ("luffy", "full")])
def test_two_ranks_make_the_run_of_one(run: Callable[..., Path], name: str, shard: str) -> None:
    one, two = run(name, 1), run(name, 2, "--parallel.shard", shard)
    assert measure_difference(one, two) < 1e-9
    assert read_rollouts(one) == read_rollouts(two)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", METHODS)
def test_every_number_of_ranks_makes_the_run_of_one(run: Callable[..., Path], name: str, world: int) -> None:
    one = run(name, 1)
    for shard in ("none", "grads", "full"):
        other = run(name, world, "--parallel.shard", shard)
        assert measure_difference(one, other) < 1e-9, shard


@pytest.mark.parametrize("setting", ["learner.compile true", "learner.optimizer adamw8bit", "model.quantization nf4"])
def test_what_sharded_models_do_not_support_is_refused(setting: str) -> None:
    parallel = Parallel(0, 2, settings=ParallelSettings(shard="full"))
    name, value = setting.split()
    settings = resolve_settings("grpo", [f"--{name}", value, "--model.lora_rank", "2", "--model", "some"]).settings
    require_supported([settings], Parallel(0, 2))
    with pytest.raises(UsageError, match=f"{name}.* does not work with parallel.shard=full"):
        require_supported([settings], parallel)
