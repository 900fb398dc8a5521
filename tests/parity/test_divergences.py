"""Divergences over the vocabulary made by tiles equal those of the whole logits, in value and gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from qed.models.families import IDENTITY, LogitTransform
from qed.training import output_tiles
from qed.training.fused_divergence import OutputStates, compute_linear_divergence

VOCABULARY, WIDTH, TEACHER_WIDTH, ROWS = 23, 5, 7, 11
CAPPED = LogitTransform(scale=0.5, cap=3.0)


def cut(patch: pytest.MonkeyPatch, elements: int, rows: int) -> None:
    """Tiles of so many logits and rows."""
    patch.setitem(output_tiles.TILE_ELEMENTS, "cpu", elements)
    patch.setattr(output_tiles, "TILE_ROWS", rows)


def states(seed: int, width: int, vocabulary: int = VOCABULARY, dtype: torch.dtype = torch.float64) -> OutputStates:
    source = torch.Generator().manual_seed(seed)
    shapes = ((ROWS, width), (vocabulary, width), (vocabulary,))
    drawn = [torch.randn(*shape, generator=source, dtype=torch.float64).to(dtype) for shape in shapes]
    return OutputStates(*(value.requires_grad_() for value in drawn))


def compute_logits(given: OutputStates, temperature: float, shared: int) -> Tensor:
    assert given.bias is not None
    return given.transform.apply(given.hidden @ given.weight.T + given.bias)[:, :shared] / temperature


def whole(student: OutputStates, teacher: OutputStates, beta: float, temperature: float) -> Tensor:
    """The generalised Jensen-Shannon divergence as TRL's GKDTrainer computes it from whole logits."""
    shared = min(len(student.weight), len(teacher.weight))
    p = compute_logits(student, temperature, shared).log_softmax(-1)
    q = compute_logits(teacher, temperature, shared).log_softmax(-1).detach()
    if beta == 0:
        return functional.kl_div(p, q, reduction="none", log_target=True).sum(-1)
    if beta == 1:
        return functional.kl_div(q, p, reduction="none", log_target=True).sum(-1)
    m = torch.logsumexp(torch.stack([p + math.log(1 - beta), q + math.log(beta)]), 0)
    of_teacher = functional.kl_div(m, q, reduction="none", log_target=True).sum(-1)
    of_student = functional.kl_div(m, p, reduction="none", log_target=True).sum(-1)
    return beta * of_teacher + (1 - beta) * of_student


def gradients(values: Tensor, given: OutputStates) -> list[Tensor]:
    weights = torch.linspace(-1, 2, ROWS, dtype=values.dtype)
    return list(torch.autograd.grad((values * weights).sum(), [part for part in given[:3] if part is not None]))


@pytest.mark.parametrize(("elements", "rows"), [(1, 2048), (20, 4), (10**6, 3), (10**6, 2048)])
@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize(("temperature", "transform"), [(1.0, IDENTITY), (0.7, CAPPED)])
def test_tiles_give_the_divergence_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
    elements: int,
    rows: int,
    beta: float,
    temperature: float,
    transform: LogitTransform,
) -> None:
    cut(monkeypatch, elements, rows)
    student, teacher = states(0, WIDTH)._replace(transform=transform), states(1, TEACHER_WIDTH)
    found = compute_linear_divergence(student, teacher, beta, temperature)
    expected = whole(student, teacher, beta, temperature)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    for one, other in zip(gradients(found, student), gradients(expected, student), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    assert (found > 0).all()


def test_single_precision_is_close() -> None:
    exact = [states(0, WIDTH), states(1, TEACHER_WIDTH)]
    student, teacher = states(0, WIDTH, dtype=torch.float32), states(1, TEACHER_WIDTH, dtype=torch.float32)
    for beta in (0.0, 0.5, 1.0):
        found, expected = compute_linear_divergence(student, teacher, beta), whole(*exact, beta, 1.0)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
        for one, other in zip(gradients(found, student), gradients(expected, exact[0]), strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("own", "other"), [(VOCABULARY, VOCABULARY + 3), (VOCABULARY + 3, VOCABULARY)])
def test_padded_output_layers_are_compared_over_the_tokens_that_both_have(own: int, other: int) -> None:
    student, teacher = states(0, WIDTH, own), states(1, TEACHER_WIDTH, other)
    found, expected = compute_linear_divergence(student, teacher, 0.5), whole(student, teacher, 0.5, 1.0)
    torch.testing.assert_close(found, expected)
    for one, to in zip(gradients(found, student), gradients(expected, student), strict=True):
        torch.testing.assert_close(one, to)


def test_the_gradient_of_the_weight_can_join_an_earlier_one() -> None:
    student, teacher = states(0, WIDTH), states(1, TEACHER_WIDTH)
    (expected,) = torch.autograd.grad(whole(student, teacher, 0.5, 1.0).sum(), [student.weight])
    student.weight.grad = torch.ones_like(student.weight)
    compute_linear_divergence(student, teacher, 0.5, into_grad=True).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(student.weight.grad, 1 + expected)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_a_teacher_that_is_the_student_teaches_nothing(beta: float) -> None:
    student = states(0, WIDTH)
    found = compute_linear_divergence(student, student, beta)
    torch.testing.assert_close(found, torch.zeros_like(found), atol=1e-12, rtol=0)
    for gradient in gradients(found, student):
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-12, rtol=0)


def test_rows_may_be_none() -> None:
    student, teacher = states(0, WIDTH), states(1, TEACHER_WIDTH)
    none = [each._replace(hidden=each.hidden[:0]) for each in (student, teacher)]
    assert compute_linear_divergence(*none, 0.5).shape == (0,)


def grouped(student: OutputStates, teacher: OutputStates, beta: float, temperature: float, count: int) -> Tensor:
    """The divergence between the distributions over the teacher's likeliest tokens and all others together."""
    p, q = (compute_logits(each, temperature, VOCABULARY).softmax(-1) for each in (student, teacher))
    chosen = q.topk(count).indices
    others = torch.ones_like(q).scatter(1, chosen, 0)
    both = [torch.cat((each.gather(1, chosen), (each * others).sum(1, keepdim=True)), 1) for each in (p, q)]
    p, q = both[0], both[1].detach()
    if beta in (0, 1):
        return (q * (q / p).log()).sum(-1) if beta == 0 else (p * (p / q).log()).sum(-1)
    m = beta * q + (1 - beta) * p
    return beta * (q * (q / m).log()).sum(-1) + (1 - beta) * (p * (p / m).log()).sum(-1)


@pytest.mark.parametrize(("elements", "rows"), [(1, 2048), (20, 4), (10**6, 3)])
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("count", [1, 5, VOCABULARY - 1])
def test_the_teachers_likeliest_tokens_are_compared_and_the_others_as_one(
    monkeypatch: pytest.MonkeyPatch, elements: int, rows: int, beta: float, count: int
) -> None:
    cut(monkeypatch, elements, rows)
    student, teacher = states(0, WIDTH), states(1, TEACHER_WIDTH)
    found = compute_linear_divergence(student, teacher, beta, 0.7, top_k=count)
    expected = grouped(student, teacher, beta, 0.7, count)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    for one, other in zip(gradients(found, student), gradients(expected, student), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    assert (found <= compute_linear_divergence(student, teacher, beta, 0.7) + 1e-12).all()


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("top_k", [0, 2])
def test_certain_policies_that_disagree_have_finite_gradients(beta: float, top_k: int) -> None:
    def make_certain(sign: float) -> OutputStates:
        hidden = torch.full((ROWS, 1), 1.0, requires_grad=True)
        return OutputStates(hidden, (sign * torch.linspace(-300, 300, VOCABULARY)[:, None]).requires_grad_())

    student, teacher = make_certain(1), make_certain(-1)
    found = compute_linear_divergence(student, teacher, beta, top_k=top_k)
    assert found.isfinite().all()
    for gradient in gradients(found, student):
        assert gradient.isfinite().all()


def test_a_top_k_of_all_tokens_is_the_whole_vocabulary() -> None:
    student, teacher = states(0, WIDTH), states(1, TEACHER_WIDTH)
    whole_vocabulary = compute_linear_divergence(student, teacher, 0.3)
    assert torch.equal(compute_linear_divergence(student, teacher, 0.3, top_k=VOCABULARY + 5), whole_vocabulary)


def clipped(student: OutputStates, teacher: OutputStates, beta: float, temperature: float, clip: float) -> Tensor:
    """The divergence from whole logits, of which each token adds at most so much."""
    p = compute_logits(student, temperature, VOCABULARY).log_softmax(-1)
    q = compute_logits(teacher, temperature, VOCABULARY).log_softmax(-1).detach()
    if beta == 0:
        terms = q.exp() * (q - p)
    elif beta == 1:
        terms = p.exp() * (p - q)
    else:
        m = torch.logaddexp(p + math.log(1 - beta), q + math.log(beta))
        terms = beta * q.exp() * (q - m) + (1 - beta) * p.exp() * (p - m)
    return terms.clamp(max=clip).sum(-1)


@pytest.mark.parametrize("elements", [20, 10**6])
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("clip", [0.01, 0.05, 100.0])
def test_terms_are_clipped_token_by_token(
    monkeypatch: pytest.MonkeyPatch, elements: int, beta: float, clip: float
) -> None:
    cut(monkeypatch, elements, 4)
    student, teacher = states(0, WIDTH)._replace(transform=CAPPED), states(1, TEACHER_WIDTH)
    found = compute_linear_divergence(student, teacher, beta, 0.7, clip=clip)
    expected = clipped(student, teacher, beta, 0.7, clip)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    for one, other in zip(gradients(found, student), gradients(expected, student), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    if clip == 100.0:
        torch.testing.assert_close(found, compute_linear_divergence(student, teacher, beta, 0.7), rtol=1e-10, atol=0)
