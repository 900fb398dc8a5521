"""The divergence between two policies over the whole vocabulary, tile by tile, with its gradient for one of them.

The student has the probabilities p, the teacher q, and m = beta q + (1 - beta) p:

    D = beta KL(q || m) + (1 - beta) KL(p || m),    0 < beta < 1
    D = KL(q || p), the forward KL, at beta = 0;    D = KL(p || q), the reverse KL, at beta = 1

This is the generalised Jensen-Shannon divergence of GKD (arXiv 2306.13649, equation 1), with the ends as in TRL's
GKDTrainer. For a logit z_j of the student

    dD/dz_j = (1 - beta) p_j (log(p_j / m_j) - KL(p || m)),    p_j - q_j,    p_j (log(p_j / q_j) - KL(p || q))

With a clip c, the divergence is sum_v min(d_v, c), as in OPSD (arXiv 2601.18734) and TRL's OPSDTrainer. Let K be the
tokens whose d_v is below c, and s_v = p_v d(d_v)/d(p_v):

    s_v = -q_v at beta = 0,  d_v + p_v at beta = 1,  (1 - beta) p_v log(p_v / m_v) else
    dD/dz_j = [j in K] s_j - p_j sum_(v in K) s_v

With top k, the tokens that are not among the teacher's k most likely form one outcome, with the sum of their
probabilities under each policy. So it is still a divergence of distributions, and at most that over the whole
vocabulary. With p', q' and m' of a token's outcome, the logarithms above are those of p', q' and m', and at beta = 0

    dD/dz_j = p_j - p_j q'_j / p'_j

Each tile of both is computed three times, or five times with top k: for the normalisers, for the divergence, and in the
backward pass.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qed.models.families import IDENTITY, LogitTransform
from qed.training.output_tiles import OutputLayer, Tile, add_product, choose_accumulator


class OutputStates(NamedTuple):
    """The inputs of a model's output layer: states [N, H], weight [V, H], bias [V] or None, and logit transform."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None = None
    transform: LogitTransform = IDENTITY


def compute_linear_divergence(
    student: OutputStates,
    teacher: OutputStates,
    beta: float,
    temperature: float = 1.0,
    into_grad: bool = False,
    clip: float = math.inf,
    top_k: int = 0,
) -> Tensor:
    """Compute the divergence of every row, [N], in float32, or float64 if the student's states are.

    Output layers may be padded to different sizes; the softmax of both is over the tokens they share.

    Args:
        student: output states with a gradient.
        teacher: output states of the same rows, without a gradient.
        beta: from 0, the forward KL, to 1, the reverse KL.
        temperature: divides the logits of both.
        into_grad: add the gradient of the student's weight to `weight.grad`, see `compute_linear_scores`.
        clip: largest contribution of one token of the vocabulary, in nats; not with `top_k`.
        top_k: compare only the teacher's `top_k` most likely tokens and the sum of the others; 0 compares all.
    """
    shared = min(len(student.weight), len(teacher.weight))
    weight = student.weight
    bias = None if teacher.bias is None else teacher.bias.detach()[:shared]
    options = _Options(
        OutputStates(teacher.hidden.detach(), teacher.weight.detach()[:shared], bias, teacher.transform),
        shared,
        beta,
        temperature,
        student.transform,
        into=weight if into_grad and weight.is_leaf and weight.requires_grad else None,
        clip=clip,
        top_k=0 if top_k >= shared else top_k,
    )
    divergence: Tensor = _LinearDivergence.apply(student.hidden, weight, student.bias, options)
    return divergence


# `into` is the weight whose `grad` receives the gradient.
class _Options(NamedTuple):
    teacher: OutputStates
    shared: int
    beta: float
    temperature: float
    transform: LogitTransform
    into: Tensor | None
    clip: float
    top_k: int


class _Top(NamedTuple):
    """The log-prob of the teacher's k-th most likely token, [N], and of all less likely ones, for both [2, N]."""

    thresholds: Tensor
    rests: Tensor


class _Pair:
    """The output layers of student and teacher, whose tiles are the same."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, options: _Options) -> None:
        teacher, temperature = options.teacher, options.temperature
        own = weight.detach()[: options.shared], None if bias is None else bias.detach()[: options.shared]
        self.student = OutputLayer(hidden, *own, temperature, options.transform)
        self.teacher = OutputLayer(teacher.hidden, teacher.weight, teacher.bias, temperature, teacher.transform)
        self.beta, self.clip = options.beta, options.clip
        self.top: _Top | None = None
        # Two tiles, and scratch memory for mixing them.
        self.memory = [self.student.allocate(self.student.largest) for _ in range(4)]

    def compute_normalisers(self) -> Tensor:
        """Compute log sum_v e^(z_v) of both, [2, N]."""
        normalisers = self.student.allocate(2, len(self.student.hidden))
        for layer, values in zip((self.student, self.teacher), normalisers, strict=True):
            for block in layer.blocks:
                sums = [layer.compute_logits(tile, self.memory[0]).logsumexp(-1) for tile in block]
                values[block[0].rows] = torch.stack(sums).logsumexp(0)
        return normalisers

    def compute_log_probs(self, tile: Tile, normalisers: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the log-probs of a tile under the student and the teacher."""
        both = (
            layer.compute_logits(tile, memory).sub_(values[tile.rows, None])
            for layer, memory, values in zip((self.student, self.teacher), self.memory, normalisers, strict=False)
        )
        own, other = both
        return own, other

    def find_top(self, normalisers: Tensor, count: int) -> _Top:
        """Find the teacher's most likely tokens, and the combined log-probs of the others."""
        thresholds, *masses = self.student.allocate(3, len(self.student.hidden)).zero_().unbind()
        for block in self.student.blocks:
            kept = self.student.allocate(len(self.student.hidden[block[0].rows]), 0)
            for tile in block:
                _, other = self.compute_log_probs(tile, normalisers)
                kept = torch.cat((kept, other), 1).topk(min(count, kept.shape[1] + other.shape[1]), sorted=True).values
            thresholds[block[0].rows] = kept[:, -1]
        for tile in chain.from_iterable(self.student.blocks):
            both = self.compute_log_probs(tile, normalisers)
            inside = both[1] >= thresholds[tile.rows, None]
            for mass, log_probs in zip(masses, both, strict=True):
                mass[tile.rows] += log_probs.exp().masked_fill_(inside, 0).sum(-1)
        rests = torch.stack(masses)
        return _Top(thresholds, rests.clamp_(min=torch.finfo(rests.dtype).tiny).log_())

    def join_rest(self, tile: Tile, own: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probs of the outcomes that a tile's tokens belong to."""
        if self.top is None:
            return own, other
        inside = other >= self.top.thresholds[tile.rows, None]
        of_student, of_teacher = (rest[tile.rows, None] for rest in self.top.rests)
        return own.where(inside, of_student), other.where(inside, of_teacher)

    def compute_target(self, tile: Tile, own: Tensor, other: Tensor) -> Tensor:
        """Compute the log-probs to compare the student's with: the teacher's, or those of the mixture."""
        if self.beta in (0, 1):
            return other
        scaled = torch.add(other, math.log(self.beta), out=tile.view_in(self.memory[2]))
        shifted = torch.add(own, math.log1p(-self.beta), out=tile.view_in(self.memory[3]))
        return torch.logaddexp(scaled, shifted, out=scaled)

    def compute_terms(self, own: Tensor, other: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the clipped d_v of each token of a tile, and s_v where d_v is below the clip, otherwise 0."""
        p, q = own.exp(), other.exp()
        if self.beta == 0:
            terms, slopes = q * (other - own), -q
        elif self.beta == 1:
            terms = p * (own - other)
            slopes = terms + p
        else:
            slopes = (1 - self.beta) * p * (own - target)
            terms = slopes + self.beta * q * (other - target)
        return terms.clamp(max=self.clip), slopes.masked_fill_(terms >= self.clip, 0)

    def compute_clipped_divergences(self, normalisers: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the clipped D and the sum of s_v below the clip, [N] each."""
        total, sums = self.student.allocate(2, len(self.student.hidden)).zero_().unbind()
        for tile in chain.from_iterable(self.student.blocks):
            own, other = self.compute_log_probs(tile, normalisers)
            terms, slopes = self.compute_terms(own, other, self.compute_target(tile, own, other))
            total[tile.rows] += terms.sum(-1)
            sums[tile.rows] += slopes.sum(-1)
        return total, sums

    def compute_divergences(self, normalisers: Tensor) -> tuple[Tensor, Tensor]:
        """Compute D and, unless beta is 0, the student's KL to the mixture, [N] each; with a clip, see above."""
        if self.clip < math.inf:
            return self.compute_clipped_divergences(normalisers)
        total, kl = self.student.allocate(2, len(self.student.hidden)).zero_().unbind()
        for tile in chain.from_iterable(self.student.blocks):
            own, other = self.compute_log_probs(tile, normalisers)
            of_student, of_teacher = self.join_rest(tile, own, other)
            if self.beta == 0:
                total[tile.rows] += (other.exp() * (of_teacher - of_student)).sum(-1)
                continue
            target = self.compute_target(tile, of_student, of_teacher)
            kl[tile.rows] += (own.exp() * (of_student - target)).sum(-1)
            if self.beta < 1:
                total[tile.rows] += self.beta * (other.exp() * (of_teacher - target)).sum(-1)
        return total + (1 - self.beta if self.beta < 1 else 1) * kl, kl

    def compute_gradient(self, tile: Tile, normalisers: Tensor, kl: Tensor) -> Tensor:
        """Compute dD/dz of the student's logits in a tile, after the temperature."""
        own, other = self.compute_log_probs(tile, normalisers)
        if self.clip < math.inf:
            _, slopes = self.compute_terms(own, other, self.compute_target(tile, own, other))
            return slopes.sub_(own.exp_().mul_(kl[tile.rows, None]))
        of_student, of_teacher = self.join_rest(tile, own, other)
        if self.beta == 0:
            # Compute a token's share of its outcome first: q' / p' alone may be infinite where p rounds to 0.
            share = other if self.top is None else (own - of_student).add_(of_teacher)
            return own.exp_().sub_(share.exp_())
        factor = 1 - self.beta if self.beta < 1 else 1.0
        target = self.compute_target(tile, of_student, of_teacher)
        distance = torch.sub(of_student, target, out=tile.view_in(self.memory[3]))
        return own.exp_().mul_(distance.sub_(kl[tile.rows, None]).mul_(factor))


class _LinearDivergence(torch.autograd.Function):
    """Computes the divergence of rows; the gradients are those of the module's docstring."""

    @staticmethod
    def forward(context: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, options: _Options) -> Tensor:
        pair = _Pair(hidden, weight, bias, options)
        normalisers = pair.compute_normalisers()
        pair.top = pair.find_top(normalisers, options.top_k) if options.top_k else None
        divergences, kl = pair.compute_divergences(normalisers)
        context.save_for_backward(hidden, weight, bias, normalisers, kl, *(pair.top or ()))
        context.options = options
        return divergences

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, normalisers, kl, *top = context.saved_tensors
        options: _Options = context.options
        pair = _Pair(hidden, weight, bias, options)
        pair.top = _Top(*top) if top else None
        layer = pair.student
        scale = gradients[0][:, None] / layer.divisor
        d_hidden = layer.allocate(*hidden.shape).zero_()
        d_weight = choose_accumulator(weight, options.into) if context.needs_input_grad[1] else None
        d_bias = torch.zeros_like(bias) if bias is not None and context.needs_input_grad[2] else None
        layer.slopes = layer.allocate(layer.largest) if options.transform.cap is not None else None
        for tile in chain.from_iterable(layer.blocks):
            d_logits = pair.compute_gradient(tile, normalisers, kl).mul_(scale[tile.rows])
            if layer.slopes is not None:
                d_logits.mul_(tile.view_in(layer.slopes))
            add_product(d_hidden[tile.rows], d_logits.to(hidden.dtype), layer.slice_weight(tile))
            if d_weight is not None:
                add_product(d_weight[tile.columns], d_logits.T, hidden[tile.rows])
            if d_bias is not None:
                d_bias[tile.columns] += d_logits.sum(0)
        return d_hidden.to(hidden.dtype), None if options.into is not None else d_weight, d_bias, None
