"""What a look at a few answers before the first step says about a run: what cannot work, and what hardly will.

Each function turns figures into findings. Only what is impossible in principle is refused: a model that has not learned
to answer yet is no mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qed.errors import UsageError

MANY = 0.5  # of the answers: below, cutting off or missing form are part of learning
FLOAT = 4  # bytes
BYTES_PER_ROLLOUT_TOKEN = 8  # an id, a log-prob and the text of a token, compressed; see loops/dry_run.py
# Numbers kept for the backward pass by each layer and token: those of attention and norms by the width, those
# of a gated feed-forward by its own width.
KEPT_BY_WIDTH, KEPT_BY_INNER = 10, 4


@dataclass(frozen=True)
class Finding:
    """One line of the table; `advice` says what is wrong and which setting to change, `fatal` that it cannot work."""

    what: str
    found: str
    advice: str = ""
    fatal: bool = False


@dataclass(frozen=True)
class Answers:
    """Shares of the answers that were sampled, but for `reward`, the mean of those that have one, and `signal`, a share
    of the groups."""

    truncated: float
    readable: float
    right: float
    reward: float | None
    signal: float
    without_reward: float = 0.0


@dataclass(frozen=True)
class Shape:
    """A model by the numbers that decide its memory; `trained` and `weights` count parameters."""

    layers: int
    width: int
    inner: int
    keys: int  # numbers of keys and values by layer and token
    weights: int
    trained: int


def check_answers(seen: Answers, max_tokens: int) -> list[Finding]:
    """What the sampled answers say."""
    cut, unread = "", ""
    if seen.truncated >= MANY:
        cut = (
            f"{seen.truncated:.0%} of the answers are cut off at sampling.max_tokens={max_tokens}: raise it, or teach "
            "the model to end its answers first (SFT)."
        )
    if seen.readable == 0:
        unread = (
            "No answer has the form that the reward reads. A phase of SFT teaches it, another --prompt may ask for a "
            "form that the model knows; qed debug-generations shows answers."
        )
    alike = "" if seen.signal else "All answers to a problem earn the same here; a run without any other ends with 5."
    bare = [] if not seen.without_reward else [_of_bare(seen.without_reward)]
    return [
        Finding("answers cut off", f"{seen.truncated:.0%}", cut),
        Finding("answers with a form that can be read", f"{seen.readable:.0%}", unread),
        Finding("right answers", f"{seen.right:.0%}"),
        Finding("mean reward", "none" if seen.reward is None else f"{seen.reward:.3f}"),
        *bare,
        Finding("groups with signal", f"{seen.signal:.0%}", alike),
    ]


def _of_bare(share: float) -> Finding:
    """What answers without a reward mean."""
    advice = (
        f"For {share:.0%} of the answers every reward function returns None or NaN. They train nothing and stay out of "
        "their group's statistics. A function that is meant to apply should return a number."
    )
    return Finding("answers without a reward", f"{share:.0%}", advice)


def check_weights(weights: Sequence[float]) -> list[Finding]:
    """Whether the parts of a reward can tell answers apart at all."""
    if any(weights):
        return []
    advice = "Every part of data.reward has the weight 0, so every answer earns 0. Give one of them another weight."
    return [Finding("reward", "constant", advice, fatal=True)]


def check_ends(trained: int, count: int, what: str, taught: bool) -> list[Finding]:
    """Whether answers teach the model to end.

    Args:
        trained: of the answers, those whose last token is one that ends an answer and is in the loss.
        count: the answers that have ended.
        what: they are.
        taught: whether the loss imitates them, so that nothing else teaches the end.
    """
    if not count:
        return [Finding("end token in the loss", "no answer has ended")]
    advice = ""
    if taught and not trained:
        advice = (
            f"The end token is in the loss of none of the {what}, so the model would never learn to end its answers. "
            "Does algorithm.loss or a field weights of your own leave it out, or does the prompt's demonstration?"
        )
    return [Finding("end token in the loss", f"{trained} of {count} {what}", advice, fatal=bool(advice))]


def check_prefixes(same: int, count: int) -> list[Finding]:
    """Whether a prompt and its answer, tokenised as one text, begin with the prompt's own tokens."""
    if not count:
        return []
    advice = ""
    if same < count:
        advice = (
            "Where a prompt and its answer are tokenised as one text, tokens reach over the border between them. qed "
            "keeps them apart and is not affected; other programs that train on the texts are. A prompt that ends in a "
            "special token or a line break has no such tokens."
        )
    return [Finding("prompt is a prefix of prompt + answer", f"{same} of {count}", advice)]


def check_window(longer: int, count: int, max_tokens: int) -> list[Finding]:
    """Whether answers as long as the written ones could be sampled."""
    if not count:
        return []
    advice = ""
    if longer > MANY * count:
        advice = (
            f"{longer} of {count} written answers are longer than sampling.max_tokens={max_tokens}, so the policy "
            "could not write them out, in training or evaluation. Raise it."
        )
    return [Finding("written answers longer than max_tokens", f"{longer} of {count}", advice)]


def check_schedule(lr: float, warmup: int, steps: int) -> list[Finding]:
    """Whether the learning rate ever is what was asked for."""
    if lr == 0:
        return [Finding("learning rate", "0", "learner.lr is 0, so nothing is learned.")]
    if warmup and warmup >= steps:
        told = f"learner.warmup_steps={warmup} is not over in learner.steps={steps}: learner.lr is never reached."
        return [Finding("warm-up", f"{warmup} of {steps} steps", told)]
    return []


def estimate_training_bytes(shape: Shape, tokens: int, moments: int, copies: int, checkpointing: bool) -> int:
    """What a micro-batch of so many tokens needs beside the weights: gradients, AdamW's moments, frozen copies of the
    model and what is kept for the backward pass. An estimate; `qed doctor --fit` measures.

    Args:
        shape: of the model.
        tokens: computed at once.
        moments: numbers that the optimizer keeps for each trained weight on this device.
        copies: of the weights, for a reference.
        checkpointing: whether layers are computed again in the backward pass.
    """
    layer = KEPT_BY_WIDTH * shape.width + KEPT_BY_INNER * shape.inner
    kept = layer + shape.layers * shape.width if checkpointing else layer * shape.layers
    return FLOAT * (shape.trained * (1 + moments) + copies * shape.weights + kept * tokens)


def estimate_sampling_bytes(shape: Shape, rows: int, length: int) -> int:
    """What the keys and values of so many answers need, each with its prompt of so many tokens in all."""
    return FLOAT * rows * length * shape.layers * shape.keys


def check_memory(training: int, sampling: int, free: int | None) -> list[Finding]:
    """Whether the longest micro-batch and the most answers side by side fit; by an estimate, so that it only warns."""
    needed = max(training, sampling)
    if free is None:
        return [Finding("memory at worst, about", _format_size(needed))]
    advice = ""
    if needed > free:
        advice = (
            f"The longest micro-batch may need {_format_size(training)} and the sampler {_format_size(sampling)}, "
            f"and {_format_size(free)} "
            "are free. Smaller learner.tokens_per_microbatch or sampling.rows_per_batch, "
            "model.gradient_checkpointing=true or model.lora_rank take less; qed doctor --fit measures what fits."
        )
    return [Finding("memory at worst, about", f"{_format_size(needed)} of {_format_size(free)} free", advice)]


def check_disk(checkpoint: int, saves: int, rollouts: int, free: int) -> list[Finding]:
    """Whether the checkpoints fit on the disk, and the rollouts at their longest beside them.

    Args:
        checkpoint: its bytes.
        saves: how many will be there at once.
        rollouts: bytes of all of them, if every answer were as long as can be.
        free: bytes of the disk.
    """
    needed, advice = checkpoint * saves, ""
    if needed > free:
        advice = (
            f"{saves} checkpoints of {_format_size(checkpoint)} need {_format_size(needed)}, and the disk has "
            f"{_format_size(free)} free. "
            "Keep fewer with run.keep_last, save less often with run.save_every, or write elsewhere with --out."
        )
        return [Finding("disk", f"{_format_size(needed)} of {_format_size(free)} free", advice, fatal=True)]
    if needed + rollouts > free:
        advice = (
            f"With every answer as long as can be, rollouts would take {_format_size(rollouts)} beside "
            f"{_format_size(needed)} of "
            f"checkpoints, and the disk has {_format_size(free)} free. run.save_rollouts=false keeps none."
        )
    return [Finding("disk at most, about", f"{_format_size(needed + rollouts)} of {_format_size(free)} free", advice)]


def refuse(findings: Sequence[Finding]) -> None:
    """End a run that cannot work.

    Raises:
        UsageError: what, and which settings to change.
    """
    wrong = [finding.advice for finding in findings if finding.fatal]
    if wrong:
        raise UsageError("\n".join([*wrong, "run.preflight=false begins all the same."]))


def _format_size(count: float) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
