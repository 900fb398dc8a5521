"""Layers in C++ have the states and gradients of the model's own forward pass, of any packed row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from families import make_family
from hypothesis import given, settings
from hypothesis import strategies as st
from making import VOCABULARY
from test_packed_attention import join, layouts
from torch import Tensor, nn

from qed.config.settings import ModelSettings
from qed.kernels import training
from qed.kernels.build import load_library
from qed.kernels.functions import has_kernels
from qed.kernels.structures import PackedAttention
from qed.models import fast_float32
from qed.models.compiled_layers import LONGEST, can_compile_layers
from qed.models.families import split_head
from qed.models.lora import add_adapters
from qed.models.own_layers import LLAMA_LIKE
from qed.models.precision import compute_in
from qed.models.segments import Segment
from qed.models.suffixes import choose_suffixes, locate
from qed.sampling.native.kept import NOTHING
from qed.sampling.native.prefill import prefill
from qed.training import attention
from qed.training.attention import compute_packed_states
from qed.training.packing import Layout

pytestmark = pytest.mark.skipif(not has_kernels(), reason=f"no functions in C++: {load_library().reason}")

# Prompts with answers, rows alone, and answers longer than a block of queries.
LAYOUT = join([(30, (20, 61)), (7, ()), (100, (1,)), (3, (70, 50, 2))])
# More keys than a slice has: an answer begins in a slice of its prompt's, and ends in the next one.
LONG = join([(700, (30, 500)), (1030, ())])
LONGER = join([(1990, (30, 150))])  # three slices, also of tiles


@pytest.fixture
def _threads_are_restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def build(family: str = "qwen3", window: int | None = None, **changes: Any) -> Any:
    """A decoder of float32, all of whose weights count."""
    body = make_family(family, window, **changes).base_model
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in body.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=source)
    return body


def lay_out(segments: Sequence[Segment]) -> Layout:
    """The layout of segments, with random tokens."""
    positions = torch.cat([torch.arange(one.length) + one.prompt_length for one in segments])
    ids = torch.randint(VOCABULARY, (1, len(positions)), generator=torch.Generator().manual_seed(2))
    longest = max(one.prompt_length + one.length for one in segments)
    return Layout(ids, positions[None], positions[:0], tuple(segments), longest)


def choose_answers(segments: Sequence[Segment]) -> Tensor:
    """What an update reads: the last input of each prompt, again for each answer, and the answers."""
    read = [[one.start + one.length - 1] for one in segments if one.prompt_length == 0]
    for one in segments:
        if one.prompt_length:
            read.append([one.prompt + one.prompt_length - 1, *range(one.start, one.start + one.length)])
    return torch.tensor([place for places in reversed(read) for place in places])


def compute(body: Any, segments: Sequence[Segment], read: Tensor | None) -> list[Tensor]:
    """The states, and the gradients of all weights."""
    body.zero_grad()
    states = compute_packed_states(body, lay_out(segments), read)
    (states.sin() * torch.linspace(0.5, 1, states.shape[1])).sum().backward()
    return [states.detach(), *(weight.grad.clone() for weight in body.parameters())]


def compute_by_torch(body: Any, segments: Sequence[Segment], read: Tensor | None) -> list[Tensor]:
    """The same by operators of torch in float64."""
    body.double()
    try:
        assert not can_compile_layers(body, 9)
        with compute_in("cpu", torch.float64):
            return [each.float() for each in compute(body, segments, read)]
    finally:
        body.float()


def assert_alike(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        # The bias of a key moves all scores of a query alike, so its gradient is only rounding.
        assert (one - other).norm() <= 3e-5 * other.norm() + 1e-4, (one - other).norm() / other.norm()


@pytest.mark.usefixtures("_threads_are_restored")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("window", [None, 17])
@pytest.mark.parametrize("family", LLAMA_LIKE)
def test_states_and_gradients(family: str, window: int | None, threads: int) -> None:
    torch.set_num_threads(threads)
    body = build(family, window)
    assert can_compile_layers(body, 9)
    for read in (None, choose_answers(LAYOUT)):
        assert_alike(compute(body, LAYOUT, read), compute_by_torch(body, LAYOUT, read))


@pytest.mark.parametrize("width", [8, 16, 64])
@pytest.mark.parametrize("family", LLAMA_LIKE)
def test_in_bfloat16_it_is_as_exact_as_torch(family: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    body, read = build(family, head_dim=width), choose_answers(LAYOUT)
    expected = compute_by_torch(body, LAYOUT, read)
    with compute_in("cpu", torch.bfloat16):
        assert can_compile_layers(body, 9)
        found = compute(body, LAYOUT, read)
        monkeypatch.setattr(attention, "can_compile_layers", lambda body, longest: False)
        other = compute(body, LAYOUT, read)
    total = sum(float(each.norm()) for each in expected)
    for one, by_torch, exact in zip(found, other, expected, strict=True):
        assert one.dtype == torch.float32
        assert (one - exact).norm() <= 1.3 * (by_torch - exact).norm() + 1e-4 * total


@pytest.mark.parametrize("window", [None, 700])
def test_rows_of_more_than_a_thousand_tokens(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qed.models.compiled_layers.is_faster", lambda: True)
    segments = join([(1100, (30, 301))])
    body, read = build("mistral", window, num_hidden_layers=2), choose_answers(segments)
    assert can_compile_layers(body, lay_out(segments).longest)
    assert_alike(compute(body, segments, read), compute_by_torch(body, segments, read))


@pytest.mark.usefixtures("_threads_are_restored")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("window", [None, 1, 17])
@pytest.mark.parametrize("width", [8, 16, 24, 48, 64])
def test_attention_in_bfloat16_is_that_of_its_operands(width: int, window: int | None, threads: int) -> None:
    """Where the processor has products of pairs, they compute widths of multiples of 16, and shares have 8 digits."""
    check_attention(LAYOUT, width, window, threads)


@pytest.mark.parametrize("window", [None, 40, 600])
@pytest.mark.parametrize("width", [8, 48, 64, 128])
@pytest.mark.parametrize("segments", [LONG, LONGER], ids=["long", "longer"])
def test_long_attention_in_bfloat16_is_that_of_its_operands(
    segments: Sequence[Segment], width: int, window: int | None
) -> None:
    check_attention(segments, width, window, 1)


def check_attention(segments: Sequence[Segment], width: int, window: int | None, threads: int) -> None:
    torch.set_num_threads(threads)
    suffixes, heads, grouped = choose_suffixes(segments, None), 2, 2
    count, source = segments[-1].start + segments[-1].length, torch.Generator().manual_seed(3)
    operands = [
        torch.randn(count, size * width, generator=source).bfloat16() for size in (heads * grouped, heads, heads)
    ]
    slopes = torch.randn(count, heads * grouped * width, generator=source).bfloat16()
    sizes = suffixes.table.data_ptr(), len(suffixes.table), heads, grouped, width, window or 0, threads, width**-0.5
    packed = PackedAttention(*sizes)

    def attend(dtype: torch.dtype) -> list[Tensor]:
        inputs = [each.to(dtype) for each in operands]
        out, sums = training.attend(packed, *inputs)
        found = training.reverse_attend(packed, (*inputs, sums, out), slopes.to(dtype))
        return [each.float() for each in (out, sums, *found)]

    for one, other in zip(attend(torch.bfloat16), attend(torch.float32), strict=True):
        assert one.isfinite().all()
        # With a window of 1 the slopes of queries and keys are 0, up to rounding.
        assert (one - other).norm() <= 2**-7 * other.norm() + 1e-5 * slopes.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("place", [5, 20, 530])
@pytest.mark.parametrize("width", [16, 64])
def test_a_key_that_is_no_number_reaches_only_those_that_see_it(width: int, place: int, dtype: torch.dtype) -> None:
    packed, (query, key, value) = prepare_row(700, dtype, width)
    key[place] = torch.nan
    for found in training.attend(packed, query, key, value):
        assert found[:place].isfinite().all()
        assert found[place:].isnan().any(1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [1, 20, 333])
@pytest.mark.parametrize("width", [16, 64])
def test_what_follows_changes_no_bit(width: int, length: int, dtype: torch.dtype) -> None:
    (whole, operands), (part, _) = prepare_row(700, dtype, width), prepare_row(length, dtype, width)
    found = training.attend(part, *(each[:length] for each in operands))
    for one, other in zip(found, training.attend(whole, *operands), strict=True):
        assert torch.equal(one, other[:length])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [16, 64])
def test_keys_without_a_share_fill_a_slice(width: int, dtype: torch.dtype) -> None:
    """Their scores are minus infinity."""
    packed, (query, key, value) = prepare_row(700, dtype, width)
    query.fill_(1e4)
    key[:600], key[600:] = -1e38, 0
    out, _ = training.attend(packed, query, key, value)
    expected = value[600:].float().cumsum(0) / torch.arange(1, 101)[:, None]
    torch.testing.assert_close(out[600:].float(), expected, rtol=2e-2, atol=2e-2)


def prepare_row(length: int, dtype: torch.dtype, width: int) -> tuple[PackedAttention, list[Tensor]]:
    """A row of one head, and its random query, key and value."""
    table = choose_suffixes((Segment(0, length),), None).table
    operands = [
        torch.randn(length, width, generator=torch.Generator().manual_seed(each)).to(dtype) for each in range(3)
    ]
    packed = PackedAttention(table.data_ptr(), 1, 1, 1, width, 0, 1, 0.25)
    packed.table = table  # lives as long
    return packed, operands


@given(layouts, st.sampled_from([None, 1, 9]), st.data())
@settings(max_examples=25, deadline=None)
def test_every_layout(segments: tuple[Segment, ...], window: int | None, data: st.DataObject) -> None:
    body = build("mistral", window, num_hidden_layers=2)
    count = segments[-1].start + segments[-1].length
    read = torch.tensor(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=9)))
    assert_alike(compute(body, segments, read), compute_by_torch(body, segments, read))


@pytest.mark.parametrize(
    "changes",
    [
        {"head_dim": 24, "num_attention_heads": 3, "num_key_value_heads": 1},
        {"head_dim": 40, "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 36},
        {"intermediate_size": 44, "attention_bias": False, "tie_word_embeddings": True},
    ],
)
def test_shapes(changes: dict[str, Any]) -> None:
    body = build("qwen3", **changes)
    assert can_compile_layers(body, 9)
    read = choose_answers(LAYOUT)
    assert_alike(compute(body, LAYOUT, read), compute_by_torch(body, LAYOUT, read))


def test_products_by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch._C._has_mkldnn:
        pytest.skip("This torch has no oneDNN.")
    body, read = build("qwen2"), choose_answers(LAYOUT)
    expected = compute_by_torch(body, LAYOUT, read)
    monkeypatch.setattr(fast_float32, "is_faster", lambda: True)
    assert_alike(compute(body, LAYOUT, read), expected)


def test_a_pass_without_gradients_has_the_same_bits() -> None:
    """An update and the log-probs of a reference model agree exactly."""
    body, read = build(), choose_answers(LAYOUT)
    expected = compute_packed_states(body, lay_out(LAYOUT), read)
    with torch.no_grad():
        assert torch.equal(compute_packed_states(body, lay_out(LAYOUT), read), expected)


def test_weights_that_are_not_finite_are_seen() -> None:
    body = build()
    with torch.no_grad():
        body.layers[0].self_attn.k_proj.weight[0, 0] = torch.nan
    found = compute(body, LAYOUT, None)
    assert found[0].isnan().all()
    assert all(gradient.isnan().any() for gradient in found[1:])


def test_frozen_weights_get_no_gradient() -> None:
    body, read = build(), choose_answers(LAYOUT)
    expected = compute(body, LAYOUT, read)
    body.embed_tokens.requires_grad_(False)
    body.layers[0].requires_grad_(False)
    body.zero_grad()
    states = compute_packed_states(body, lay_out(LAYOUT), read)
    (states.sin() * torch.linspace(0.5, 1, states.shape[1])).sum().backward()
    for weight, gradient in zip(body.parameters(), expected[1:], strict=True):
        assert weight.grad is None if not weight.requires_grad else torch.equal(weight.grad, gradient)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("family", LLAMA_LIKE)
def test_prompts_of_the_sampler(
    family: str, window: int | None, precision: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed into one row they have the KV cache and the logits of padded ones."""
    model = make_family(family, window)
    prompts = [(5, 6, 7, 8, 9, 4, 4, 1), (4, 3), (9, 9, 9, 2), (7,)]
    with torch.no_grad(), compute_in("cpu", precision):
        cache, mask, logits = prefill(model, prompts, [NOTHING] * 4)
        monkeypatch.setattr("qed.sampling.native.prefill.can_compile_layers", lambda body, longest: False)
        other_cache, other_mask, other_logits = prefill(model, prompts, [NOTHING] * 4)
    assert torch.equal(mask, other_mask)
    tolerance = 1e-4 if precision == torch.float32 else 0.1
    torch.testing.assert_close(logits, other_logits, rtol=tolerance, atol=tolerance)
    for one, other in zip(cache.layers, other_cache.layers, strict=True):
        assert one.used == mask.shape[1]
        for own, expected in ((one.keys, other.keys), (one.values, other.values)):
            seen = mask[:, None, :, None].expand_as(own)
            torch.testing.assert_close(own[seen], expected[:, :, : one.used][seen], rtol=tolerance, atol=tolerance)
            assert not own[~seen].any()


def call_kernels(threads: int) -> list[Tensor]:
    """What the functions compute of the same random numbers."""
    torch.set_num_threads(threads)
    source = torch.Generator().manual_seed(0)
    rows, heads, grouped, width = sum(one.length for one in LAYOUT), 3, 2, 16

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source)

    weight, changes = draw(700), draw(rows, 700)
    normed = training.norm(draw(rows, 700), changes, weight, 1e-6, torch.float32)
    gates, ups, slopes = draw(rows, 700), draw(rows, 700), draw(rows, 700)
    found = [
        *normed,
        *training.reverse_norm(slopes, normed, weight, changes),
        *training.reverse_gate(gates, ups, slopes),
    ]
    table = choose_suffixes(LAYOUT, choose_answers(LAYOUT)).table
    layer = PackedAttention(table.data_ptr(), len(table), heads, grouped, width, 20, threads, 0.3)
    count = int((table[:, 1] - table[:, 4]).sum())
    query, key, value = draw(count, heads * grouped * width), *(draw(rows, heads * width) for _ in range(2))
    rotation = training.Rotation(draw(rows, width), draw(rows, width), draw(width), 1e-6)
    rotated = training.rotate(key, rotation)
    attended, sums = training.attend(layer, query, rotated, value)
    slopes = training.reverse_attend(layer, (query, rotated, value, sums, attended), draw(*attended.shape))
    of_weight = training.reverse_rotate(slopes[1], key, rotation)
    assert of_weight is not None
    return [*found, rotated, attended, sums, *slopes, of_weight]


@pytest.mark.usefixtures("_threads_are_restored")
def test_threads_change_no_bit() -> None:
    expected = call_kernels(1)
    for threads in (2, 3):
        for one, other in zip(call_kernels(threads), expected, strict=True):
            assert torch.equal(one, other)


def test_slopes_of_gates_of_any_size() -> None:
    """Where an exponential is beyond float32 a gate is closed, or wholly open."""
    gates = torch.cat([torch.linspace(-140, 140, 2801), torch.tensor([-1e30, -1e4, 1e4, 1e30])])[None]
    exact = (gates.double().requires_grad_(), torch.full_like(gates, 3).double().requires_grad_())
    (nn.functional.silu(exact[0]) * exact[1]).sum().backward()
    slopes = torch.ones_like(gates)
    for found, expected in zip(training.reverse_gate(gates, torch.full_like(gates, 3), slopes), exact, strict=True):
        torch.testing.assert_close(found.double(), expected.grad, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(slopes, 3 * nn.functional.silu(gates), rtol=2e-6, atol=2e-6)


@given(layouts, st.data())
def test_suffixes(segments: tuple[Segment, ...], data: st.DataObject) -> None:
    """They have all inputs that are read, each once, and are ends of segments."""
    count = segments[-1].start + segments[-1].length
    read = torch.tensor(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=9)))
    suffixes = choose_suffixes(segments, read)
    expected = [
        place
        for (start, length, *_), skip in zip(segments, suffixes.table[:, 4].tolist(), strict=True)
        for place in range(start + skip, start + length)
    ]
    places = torch.arange(count) if suffixes.places is None else suffixes.places
    assert places.tolist() == expected
    assert torch.equal(places[locate(suffixes, read)], read)
    counts = (suffixes.table[:, 1] - suffixes.table[:, 4]).tolist()
    assert suffixes.table[:, 5].tolist() == [sum(counts[:number]) for number in range(len(counts))]
    assert choose_suffixes(segments, None).places is None


def add_hook(body: Any) -> Any:
    body.layers[1].mlp.register_forward_hook(lambda *_: None)
    return body


def replace_forward(body: Any) -> Any:
    body.layers[1].mlp.forward = lambda states: states
    return body


def checkpoint(body: Any) -> Any:
    body.gradient_checkpointing_enable()
    return body.train()


def adapt(model: Any) -> Any:
    return split_head(add_adapters(model, ModelSettings(lora_rank=2), 0))[0]


def parametrize(body: Any) -> Any:
    nn.utils.parametrizations.weight_norm(body.layers[0].mlp.up_proj)
    return body


OTHERS: dict[str, Callable[[], Any]] = {
    "a hook": lambda: add_hook(build()),
    "another forward": lambda: replace_forward(build()),
    "checkpointing": lambda: checkpoint(build()),
    "adapters": lambda: adapt(make_family("qwen3")),
    "a parametrized weight": lambda: parametrize(build()),
    "dropout": lambda: build(attention_dropout=0.1).train(),
    "another activation": lambda: build(hidden_act="gelu"),
    "biases": lambda: build("llama", mlp_bias=True, attention_bias=True),
    "bfloat16": lambda: build().bfloat16(),
    "float64": lambda: build().double(),
    "small heads": lambda: build(head_dim=4),
    "gemma": lambda: build("gemma"),
    "gpt2": lambda: build("gpt2"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_are_left_to_torch(name: str) -> None:
    assert not can_compile_layers(OTHERS[name](), 9)


def test_long_rows_are_left_to_torch_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    body, narrow = build(head_dim=32), build(head_dim=24)
    for has_avx2_alone, is_faster in ((True, False), (False, True)):
        monkeypatch.setattr("qed.models.compiled_layers.has_avx2_alone", lambda found=has_avx2_alone: found)
        monkeypatch.setattr("qed.models.compiled_layers.is_faster", lambda found=is_faster: found)
        for precision in LONGEST:
            with compute_in("cpu", precision):
                assert can_compile_layers(body, 100_000)
    monkeypatch.setattr("qed.models.compiled_layers.is_faster", lambda: False)
    monkeypatch.setattr("qed.models.compiled_layers.multiplies_in_tiles", lambda width: width == 32)
    for precision, may_be_long in ((torch.float32, False), (torch.bfloat16, True)):
        with compute_in("cpu", precision):
            assert can_compile_layers(body, 100_000) == may_be_long
            assert not can_compile_layers(narrow, 100_000)
    monkeypatch.setattr("qed.models.compiled_layers.multiplies_in_tiles", lambda _: False)
    for precision, longest in LONGEST.items():
        with compute_in("cpu", precision):
            assert can_compile_layers(body, longest)
            assert not can_compile_layers(body, longest + 1)
    with torch.autocast("cpu", torch.float16):
        assert not can_compile_layers(body, 9)


def test_without_a_compiler_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    body, read = build(), choose_answers(LAYOUT)
    found = compute(body, LAYOUT, read)
    monkeypatch.setattr("qed.models.compiled_layers.has_kernels", lambda: False)
    monkeypatch.setattr(attention, "compute_compiled_states", None)
    assert_alike(found, compute(body, LAYOUT, read))
