"""Log-probs and entropy made by tiles equal those of the whole logits, in value and gradient, however they are cut."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import numpy as np
import pytest
import torch
from making import make_model, make_rollout
from torch import Tensor

from qed.models.families import IDENTITY, LogitTransform
from qed.training import fused_logps, output_tiles
from qed.training.batch import collate
from qed.training.fused_logps import compute_linear_scores
from qed.training.logps import compute_scores
from qed.training.support import LabelSupport, RowSupport, build_label_support
from qed.types import Problem, Rollout, Support

VOCABULARY, WIDTH, ROWS = 23, 5, 11


def cut(patch: pytest.MonkeyPatch, elements: int, rows: int = 2048, kept: bool = False) -> None:
    """Tiles of so many logits and rows, their exponentials kept or made again."""
    patch.setitem(output_tiles.TILE_ELEMENTS, "cpu", elements)
    patch.setattr(output_tiles, "TILE_ROWS", rows)
    patch.setattr(fused_logps, "KEPT_BYTES", 10**7 if kept else 0)


def inputs(bias: bool = True, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Hidden states, weight, bias and labels; all but the labels with a gradient."""
    torch.manual_seed(0)
    hidden = torch.randn(ROWS, WIDTH, dtype=dtype, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, dtype=dtype, requires_grad=True)
    offset = torch.randn(VOCABULARY, dtype=dtype, requires_grad=True) if bias else None
    return hidden, weight, offset, torch.randint(0, VOCABULARY, (ROWS,))


def whole(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    temperature: float,
    bias: Tensor | None,
    transform: LogitTransform = IDENTITY,
) -> tuple[Tensor, Tensor, Tensor]:
    """logp = log p_y, H = -sum p log p and log sum p^2, p = softmax(f(h W^T + b) / temperature), by autograd."""
    logits = transform.apply(hidden @ weight.T + (0 if bias is None else bias)) / temperature
    log_probs = logits.log_softmax(-1)
    chosen = log_probs.gather(-1, labels[:, None]).squeeze(-1)
    return chosen, -(log_probs.exp() * log_probs).sum(-1), log_probs.exp().square().sum(-1).log()


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(("elements", "rows"), [(1, 2048), (VOCABULARY * 3, 2048), (20, 4), (10**6, 3), (10**6, 2048)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "transform", [IDENTITY, LogitTransform(0.3), LogitTransform(1.0, 1.5), LogitTransform(2.0, 0.8)]
)
def test_tiles_equal_the_whole_in_value_and_gradient(
    elements: int, rows: int, bias: bool, kept: bool, transform: LogitTransform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a gradient of both, and of each alone."""
    cut(monkeypatch, elements, rows, kept)
    hidden, weight, offset, labels = inputs(bias)
    leaves = [tensor for tensor in (hidden, weight, offset) if tensor is not None]
    found = compute_linear_scores(hidden, weight, labels, 0.7, offset, squares=True, transform=transform)
    wanted = whole(hidden, weight, labels, 0.7, offset, transform)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    assert not found[2].requires_grad
    factors = torch.randn(2, ROWS, dtype=torch.float64)
    for of_logps, of_entropy in ((1, 1), (1, 0), (0, 1)):
        gradients = [
            torch.autograd.grad(
                (of_logps * some[0] * factors[0] + of_entropy * some[1] * factors[1]).sum(), leaves, retain_graph=True
            )
            for some in (found, wanted)
        ]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def random_support() -> tuple[LabelSupport, Tensor, Tensor]:
    """Of each label at random: one token, a few, all, all but a few; the mask of the others, and the labels."""
    source = random.Random(3)
    hidden, counts, ids, labels = torch.zeros(ROWS, VOCABULARY, dtype=torch.bool), [], array("i"), []
    for row in range(ROWS):
        listed = sorted(source.sample(range(VOCABULARY), [1, 3, 0, 2][row % 4]))
        only = row % 4 < 2
        hidden[row] = only
        hidden[row, listed] = not only
        counts.append(len(listed) if only else -len(listed))
        ids.extend(listed)
        labels.append(source.choice((~hidden[row]).nonzero().flatten().tolist()))
    rollout = Rollout(
        Problem("p", "?", "1"), (1,), tuple(labels), (), "", "stop", support=Support(array("i", counts), ids)
    )
    chosen = torch.ones(1, ROWS, dtype=torch.bool)
    support = build_label_support([RowSupport.of(rollout)], chosen)
    assert support is not None
    return support, hidden, torch.tensor(labels)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(("elements", "rows"), [(1, 2048), (VOCABULARY * 3, 2048), (20, 4), (10**6, 2048)])
@pytest.mark.parametrize("transform", [IDENTITY, LogitTransform(2.0, 0.8)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_tiles_with_a_support_equal_a_softmax_over_it(
    elements: int, rows: int, kept: bool, transform: LogitTransform, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a tile has no token of the support, in value and in gradient of both; float32 stays finite."""
    cut(monkeypatch, elements, rows, kept)
    hidden, weight, offset, _ = inputs(dtype=dtype)
    assert offset is not None
    support, outside, labels = random_support()
    found = compute_linear_scores(
        hidden, weight, labels, 0.7, offset, squares=True, transform=transform, support=support
    )
    logits = transform.apply(hidden @ weight.T + offset) / 0.7
    log_probs = logits.masked_fill(outside, -1e9).log_softmax(-1)
    probs = log_probs.exp()
    wanted = (
        log_probs.gather(-1, labels[:, None]).squeeze(-1),
        -(probs * log_probs).sum(-1),
        probs.square().sum(-1).log(),
    )
    exact = {"rtol": 1e-9, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, **exact)
    assert not found[0][::4].any(), "a single token has probability 1"
    factors = torch.randn(2, ROWS, dtype=dtype)
    gradients = [
        torch.autograd.grad((some[0] * factors[0] + some[1] * factors[1]).sum(), [hidden, weight, offset])
        for some in (found, wanted)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, **exact)


@pytest.mark.parametrize("kept", [False, True])
def test_a_probability_that_is_rounded_to_nothing_has_no_gradient_of_entropy(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits 400 apart in float32: the probability is 0, and so is its part, whether or not the tiles are cut."""
    for elements in (10**6, ROWS):
        cut(monkeypatch, elements, kept=kept)
        hidden, weight, _, labels = inputs(dtype=torch.float32)
        _, entropy, _ = compute_linear_scores(hidden * 100, weight, labels)
        found = torch.autograd.grad(entropy.sum(), [hidden, weight])
        wanted = torch.autograd.grad(whole(hidden * 100, weight, labels, 1.0, None)[1].sum(), [hidden, weight])
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rows", [0, 1])
def test_no_rows_have_no_gradient(rows: int) -> None:
    hidden, weight, offset, labels = inputs()
    logps, entropy, squares = compute_linear_scores(hidden[:rows], weight, labels[:rows], 1.0, offset, squares=True)
    assert logps.shape == entropy.shape == squares.shape == (rows,)
    (logps.sum() + entropy.sum()).backward()
    assert weight.grad is not None
    assert bool(weight.grad.any()) == (rows > 0)


@pytest.mark.parametrize("kept", [False, True])
def test_a_frozen_layer_gets_no_gradient_and_passes_one_on(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under adapters; nor is anything written to its `.grad`."""
    cut(monkeypatch, 20, kept=kept)
    hidden, weight, offset, labels = inputs()
    wanted = torch.autograd.grad(whole(hidden, weight, labels, 1.0, offset)[0].sum(), hidden)
    frozen, still = weight.detach(), offset.detach() if offset is not None else None
    logps, *_ = compute_linear_scores(hidden, frozen, labels, 1.0, still, into_grad=True)
    logps.sum().backward()
    torch.testing.assert_close(hidden.grad, *wanted, rtol=1e-9, atol=1e-11)
    assert frozen.grad is None


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("transform", [IDENTITY, LogitTransform(2.0, 0.8)])
def test_a_gradient_is_added_where_it_lies(
    tied: bool, kept: bool, transform: LogitTransform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over three micro-batches, also where the embedding is the same parameter: the memory stays, the sum is right."""
    cut(monkeypatch, 40, 4, kept)
    _, weight, offset, labels = inputs()
    apart = torch.randn(VOCABULARY, WIDTH, dtype=torch.float64, requires_grad=True)
    gradients, places = [], set()
    for into_grad in (False, True):
        weight.grad = apart.grad = None
        for part in labels.split(4):
            hidden = torch.nn.functional.embedding(part.flip(0), weight if tied else apart).sin()
            logps, entropy, _ = compute_linear_scores(
                hidden, weight, part, 1.0, offset, into_grad=into_grad, transform=transform
            )
            (logps.sum() + 0.1 * entropy.sum()).backward()
            assert weight.grad is not None
            places |= {weight.grad.data_ptr()} if into_grad else set()
        gradients.append(weight.grad.clone())
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)
    assert len(places) == 1


def test_only_an_own_parameter_is_added_to() -> None:
    """A weight that was computed, as by a parametrisation, passes its gradient on."""
    hidden, weight, offset, labels = inputs()
    wanted = torch.autograd.grad(whole(hidden, 2 * weight, labels, 1.0, offset)[0].sum(), weight)
    compute_linear_scores(hidden, 2 * weight, labels, 1.0, offset, into_grad=True)[0].sum().backward()
    torch.testing.assert_close(weight.grad, *wanted, rtol=1e-9, atol=1e-11)


def test_the_sum_of_squares_is_that_of_the_models_own_logits() -> None:
    """log sum_v p_v^2 at the learner's temperature, without a gradient; nobody else pays for it."""
    model, rollouts = make_model(), [make_rollout(random.Random(seed)) for seed in range(3)]
    batch = collate(rollouts, dtype=torch.float64)
    *_, found = compute_scores(model, batch, 0.7, squares=True)
    logits = model(input_ids=batch.inputs, attention_mask=batch.attention).logits / 0.7
    wanted = logits.softmax(-1).square().sum(-1).log() * batch.mask
    assert found is not None
    assert not found.requires_grad
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    assert compute_scores(model, batch, 0.7)[2] is None


@pytest.mark.parametrize("kept", [False, True])
def test_in_half_precision_only_the_products_are_rounded(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums are float32, and the gradient of a float32 weight is added up in float32 however small the tiles."""
    torch.manual_seed(0)
    weight = torch.randn(500, 32, requires_grad=True)
    hidden, labels = torch.randn(64, 32).bfloat16(), torch.randint(0, 500, (64,))
    logits = (hidden @ weight.detach().bfloat16().T).float().requires_grad_()
    wanted = logits.log_softmax(-1).gather(-1, labels[:, None]).squeeze(-1)
    (d_logits,) = torch.autograd.grad(wanted.sum(), logits)
    for elements in (10**6, 64 * 7):
        cut(monkeypatch, elements, kept=kept)
        logps, entropy, _ = compute_linear_scores(hidden, weight, labels)
        assert logps.dtype == entropy.dtype == torch.float32
        torch.testing.assert_close(logps, wanted, rtol=1e-5, atol=1e-5)
        (gradient,) = torch.autograd.grad(logps.sum(), weight)
        assert gradient.dtype == torch.float32
        torch.testing.assert_close(gradient, d_logits.T @ hidden.float(), rtol=1e-4, atol=1e-4)


def test_the_graph_holds_tiles_only_where_they_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept without a gradient, nor above the budget."""
    hidden, weight, offset, labels = inputs()

    def held() -> int:
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            compute_linear_scores(hidden, weight, labels, 1.0, offset)
        return max(sizes, default=0)

    assert held() == ROWS * VOCABULARY
    with torch.no_grad():
        assert held() == 0
    monkeypatch.setattr(fused_logps, "KEPT_BYTES", 8 * ROWS * VOCABULARY - 1)
    assert held() < ROWS * VOCABULARY


def test_recorded_entropy_and_log_probs(shared: Path) -> None:
    """The recordings of verl: entropy and log-probs from logits, here as a linear layer of the identity."""
    vectors = np.load(shared / "vectors" / "verl_entropy_logprob.npz")
    logits, labels = torch.tensor(vectors["logprob::in::logits"]), torch.tensor(vectors["logprob::in::labels"])
    logps, *_ = compute_linear_scores(logits, torch.eye(logits.shape[1]), labels)
    np.testing.assert_allclose(logps.numpy(), vectors["logprob::out::logprob"], rtol=1e-5, atol=1e-6)
    logits = torch.tensor(vectors["entropy::in::logits"])
    labels = torch.zeros(len(logits), dtype=torch.int64)
    _, entropy, _ = compute_linear_scores(logits, torch.eye(logits.shape[1]), labels)
    np.testing.assert_allclose(entropy.numpy(), vectors["entropy::out::entropy"], rtol=1e-5, atol=1e-6)
