"""The operations of a step are counted from shapes alone, and the rows are spread by the tokens that they cost."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import pytest
import torch
from families import SHAPE, make_family
from hypothesis import given
from hypothesis import strategies as st
from making import make_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen2ForCausalLM

from qed.config.ranks_settings import ParallelSettings
from qed.loops.profile import MEMORY, build_snapshot
from qed.models.peak_flops import find_peak_flops, look_up_card
from qed.training.batch import Batch, collate, cut_microbatches
from qed.training.flops import FlopCounter, Work, count_sampled_work, count_work, measure_size
from qed.training.packing import cut_packed_microbatches, pack_batch
from qed.training.parallel import Parallel
from qed.training.spreading import count_packed_tokens, spread_microbatches
from qed.types import Problem, Rollout

LINEAR = ("mm", "addmm")  # the products with weights; those of attention have a batch dimension


def build_group(source: random.Random, sizes: Sequence[int], prompt: int) -> list[Rollout]:
    """Answers of these lengths to one prompt."""
    shared = tuple(source.randrange(23) for _ in range(prompt))
    outputs = [tuple(source.randrange(23) for _ in range(size)) for size in sizes]
    return [Rollout(Problem("a", "?", "1"), shared, output, (-1.0,) * len(output), "", "stop") for output in outputs]


def count_products(model: Qwen2ForCausalLM, batch: Batch, *, backward: bool) -> int:
    """The operations of the products with weights that torch counts."""
    counter = FlopCounterMode(display=False)
    with counter, torch.set_grad_enabled(backward):
        states = model.model(input_ids=batch.inputs, use_cache=False).last_hidden_state
        logits = model.lm_head(states[batch.mask.bool()])
        if backward:
            logits.sum().backward()
    found = counter.get_flop_counts()["Global"]
    return sum(
        int(count) for kind, count in found.items() if str(kind).removeprefix("aten.").partition(".")[0] in LINEAR
    )


@pytest.mark.parametrize("frozen", [False, True])
def test_torch_counts_the_same(frozen: bool) -> None:
    """An embedding does no work, and a frozen matrix has no gradient; the states before the first matrix have one."""
    model = make_model(tie_word_embeddings=False)
    if frozen:
        model.lm_head.requires_grad_(False)
        for layer in model.model.layers:
            layer.mlp.requires_grad_(False)
    batch = collate(build_group(random.Random(0), [9, 9, 9], 11), dtype=torch.float64)
    size = measure_size(model)
    work = Work(int(batch.attention.sum()), int(batch.mask.sum()), 0)
    assert count_products(model, batch, backward=False) == size.count_forward(work)
    assert count_products(model, batch, backward=True) == size.count_update(work)


def test_a_pass_counts_once_and_with_gradients_threefold() -> None:
    model, counter = make_model(), FlopCounter()
    batch = collate(build_group(random.Random(1), [3, 5], 12))
    with torch.no_grad():
        counter.add(model, batch)
    forward = counter.pop()
    counter.add(model, batch)
    assert counter.pop() == 3 * forward == 3 * measure_size(model).count_forward(count_work(batch))
    assert counter.pop() == 0


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5), prompt=st.integers(8, 20), seed=st.integers(0, 99))
def test_a_shared_prompt_counts_once(sizes: list[int], prompt: int, seed: int) -> None:
    """As many tokens as a packed row has; sampling needs one more of each answer, whose end nothing follows."""
    group = build_group(random.Random(seed), sizes, prompt)
    batch = collate(group)
    work, sampled = count_work(batch), count_sampled_work([group])
    assert work.tokens == pack_batch(batch, fill=False).ids.numel() == prompt + sum(sizes) - len(sizes)
    assert work.labels == sampled.labels == sum(sizes)
    assert sampled.tokens == work.tokens + len(sizes)
    ends = [prompt + size for size in sizes]
    # The last token of each answer sees the whole row.
    assert sampled.pairs - work.pairs == sum(ends)


def test_of_experts_those_that_a_token_takes_are_counted() -> None:
    sizes = {chosen: measure_size(make_family("mixtral", num_experts_per_tok=chosen)).body for chosen in (1, 2, 4)}
    expert = SHAPE["num_hidden_layers"] * 3 * SHAPE["hidden_size"] * SHAPE["intermediate_size"]  # it has three matrices
    assert (sizes[2] - sizes[1], sizes[4] - sizes[2]) == (expert, 2 * expert)


def test_groups_without_sampled_answers_need_nothing() -> None:
    assert count_sampled_work([[]]) == Work(0, 0, 0)


@given(
    groups=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=5),
    world=st.integers(2, 4),
    packed=st.booleans(),
    shard=st.sampled_from(["none", "full"]),
)
def test_all_rows_are_spread_and_no_rank_has_much_more(
    groups: list[list[int]], world: int, packed: bool, shard: str
) -> None:
    source = random.Random(0)
    batch = collate([row for sizes in groups for row in build_group(source, sizes, 12)])
    cut = partial(cut_packed_microbatches if packed else cut_microbatches, together=1)
    settings = ParallelSettings(shard=shard)  # type: ignore[arg-type]
    ranks = [Parallel(rank, world, settings=settings) for rank in range(world)]
    spread = [spread_microbatches(batch, cut, 10_000, rank, packed) for rank in ranks]
    assert sorted(row for parts in spread for rows in parts for row in rows) == list(range(len(batch)))
    if shard == "full":
        assert len({len(parts) for parts in spread}) == 1
    lengths = batch.attention.sum(1).tolist()

    def count(rows: list[int]) -> int:
        return count_packed_tokens(batch)(rows) if packed else len(rows) * max(lengths[row] for row in rows)

    work = [sum(count(rows) for rows in parts if rows) for parts in spread]
    # The busiest of several ranks has at most the work of one alone, but for 5 %, for which no part is cut smaller.
    assert max(work) <= 1.05 * count(list(range(len(batch)))) + 1


def test_equal_groups_are_halved_without_computing_a_prompt_twice() -> None:
    source = random.Random(0)
    batch = collate([row for _ in range(8) for row in build_group(source, [8] * 8, 60)])
    cut = partial(cut_packed_microbatches, together=1)
    spread = [spread_microbatches(batch, cut, 16_384, Parallel(rank, 2), True) for rank in range(2)]
    assert [sum(count_packed_tokens(batch)(rows) for rows in parts) for parts in spread] == [4 * (60 + 8 * 7)] * 2


def test_cards_are_known_by_name() -> None:
    assert look_up_card("NVIDIA H100 80GB HBM3", torch.bfloat16) == 989.4e12
    assert look_up_card("NVIDIA H100 PCIe", torch.bfloat16) == 756e12
    assert look_up_card("NVIDIA H200 NVL", torch.bfloat16) == 835.5e12
    assert look_up_card("NVIDIA A100-SXM4-80GB", torch.float32) == 19.5e12
    assert look_up_card("NVIDIA L4", torch.bfloat16) == 121e12
    assert look_up_card("NVIDIA A100-SXM4-40GB MIG 1g.5gb", torch.bfloat16) is None
    assert look_up_card("a card of tomorrow", torch.bfloat16) is None
    assert look_up_card("NVIDIA H100 80GB HBM3", torch.float64) is None


def test_an_unknown_device_is_measured_without_touching_the_random_numbers() -> None:
    before = torch.get_rng_state()
    assert find_peak_flops(torch.device("cpu"), torch.float32) > 1e8
    assert torch.equal(before, torch.get_rng_state())


def test_a_snapshot_knows_who_allocated() -> None:
    def operation(name: str, start: float, duration: float) -> dict[str, object]:
        return {"name": name, "ph": "X", "cat": "cpu_op", "tid": 1, "ts": start, "dur": duration}

    def memory(at: float, size: int) -> dict[str, object]:
        return {"name": MEMORY, "ph": "i", "tid": 1, "ts": at, "args": {"Bytes": size, "Addr": 64}}

    events = [operation("inner", 2, 2), memory(3, 8), operation("outer", 1, 9), memory(6, -8), {"name": "x", "ph": "M"}]
    taken, freed = build_snapshot(events)["device_traces"][0]
    assert (taken["action"], taken["size"], freed["action"], freed["size"]) == ("alloc", 8, "free_completed", 8)
    assert [frame["name"] for frame in taken["frames"]] == ["inner", "outer"]
    assert [frame["name"] for frame in freed["frames"]] == ["outer"]
