"""Rules of the preflight check: turn the figures of a few sampled answers into findings.

Only a run that can never work is rejected; everything else is a warning, because a model that cannot answer yet may
still learn to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qed.errors import UsageError

MANY = 0.5  # of the answers: a smaller share of truncated or badly formatted answers is normal at the start
# An id, a log-prob and the text of a token, compressed. The built-in task needs 2, because its answers repeat
# each other; other text compresses less.
BYTES_PER_ROLLOUT_TOKEN = 8
BYTES_PER_STATS_TOKEN = 13  # four statistics of a token, compressed
BYTES_PER_TOP_LOGP = 6  # the id of a likely token and its log-prob, compressed


@dataclass(frozen=True)
class Finding:
    """A line of the table; `advice` says what is wrong and what to change; `fatal` means that the run cannot work."""

    what: str
    found: str
    advice: str = ""
    fatal: bool = False


@dataclass(frozen=True)
class Answers:
    """Shares of the sampled answers; `reward` is the mean over answers with one, `signal` a share of the groups."""

    truncated: float
    readable: float
    right: float
    reward: float | None
    signal: float
    without_reward: float = 0.0


def check_answers(
    figures: Answers, max_tokens: int, rewarded: bool = True, joined: bool = False, turns: bool = False
) -> list[Finding]:
    """Check truncation, format, correctness and rewards of the sampled answers.

    Args:
        figures: the figures of the answers.
        max_tokens: the maximum tokens of an answer.
        rewarded: whether the loss uses rewards.
        joined: whether demonstrations join the groups; rewards then differ even if all sampled answers are alike.
        turns: whether the answers contain replies of an environment.
    """
    truncated, unreadable = "", ""
    if figures.truncated >= MANY:
        counted = ", which includes the environment's replies" if turns else ""
        truncated = (
            f"{figures.truncated:.0%} of the answers are cut off at sampling.max_tokens={max_tokens}{counted}: raise "
            "it, or teach the model to end its answers first (SFT)."
        )
    if rewarded and figures.readable == 0 and figures.without_reward < 1:
        unreadable = (
            "No answer has the format that the reward reads. A phase of SFT teaches it, or another --prompt asks for a "
            "format that the model knows; qed debug-generations shows answers."
        )
    no_signal = (
        ""
        if figures.signal or not rewarded or joined
        else "All answers to a problem earn the same here. If no step has a gradient, run.on_no_signal decides how the "
        "run ends."
    )
    without_reward = [] if not figures.without_reward else [_describe_missing_rewards(figures.without_reward)]
    return [
        Finding("answers cut off", f"{figures.truncated:.0%}", truncated),
        Finding("answers in the expected format", f"{figures.readable:.0%}", unreadable),
        Finding("right answers", f"{figures.right:.0%}"),
        Finding("mean reward", "none" if figures.reward is None else f"{figures.reward:.3f}"),
        *without_reward,
        Finding(f"groups with signal{', demonstrations aside' if joined else ''}", f"{figures.signal:.0%}", no_signal),
    ]


def _describe_missing_rewards(share: float) -> Finding:
    """Explain answers without a reward."""
    advice = (
        f"For {share:.0%} of the answers every reward function returns None or NaN. They are excluded from training "
        "and from their group's statistics. A function that is meant to apply should return a number."
    )
    return Finding("answers without a reward", f"{share:.0%}", advice)


def check_weights(weights: Sequence[float]) -> list[Finding]:
    """Check that the reward has a part whose weight is not 0."""
    if any(weights):
        return []
    advice = "Every part of data.reward has the weight 0, so every answer earns 0. Give one of them another weight."
    return [Finding("reward", "constant", advice, fatal=True)]


def check_ends(trained: int, count: int, what: str, imitated: bool) -> list[Finding]:
    """Check that the end token of the answers is in the loss.

    Args:
        trained: the number of answers whose last token is an end token and is in the loss.
        count: the number of answers that have ended.
        what: what to call them, such as "rows".
        imitated: whether this is SFT, where the model learns to end its answers only from these end tokens.
    """
    if not count:
        return [Finding("end token in the loss", "no answer has ended")]
    advice = ""
    if imitated and not trained:
        advice = (
            f"The end token is in the loss of none of the {what}, so the model would never learn to end its answers. "
            "Is it left out by algorithm.loss, by a custom algorithm's weights, or by the prompt's demonstration?"
        )
    return [Finding("end token in the loss", f"{trained} of {count} {what}", advice, fatal=bool(advice))]


def check_prefixes(same: int, count: int) -> list[Finding]:
    """Check whether prompt and answer, tokenised as one text, begin with the tokens of the prompt."""
    if not count:
        return []
    advice = ""
    if same < count:
        advice = (
            "If prompt and answer are tokenised as one text, a token spans the boundary between them. qed tokenises "
            "them separately and is not affected; other programs that train on the texts are. A prompt that ends in a "
            "special token or a line break avoids this."
        )
    return [Finding("prompt is a prefix of prompt + answer", f"{same} of {count}", advice)]


def check_form(prompt: str, rewards: Sequence[str], own: str) -> list[Finding]:
    """Warn about a reward that cannot read the prompt's answer tags; `own` is the prompt's own reward."""
    advice = (
        f"The reward {','.join(rewards)} grades a right answer in the tags of the prompt {prompt} as wrong if the "
        f"answer is given in no other form. Use the prompt's own reward ({own}) or another --prompt, unless the "
        "questions ask for the form that this reward reads."
    )
    return [Finding("right answers in the prompt's tags", "not found by the reward", advice)]


def check_demonstrations(troubles: Sequence[str], rewritten: int = 0, whose: str = "prompt") -> list[Finding]:
    """Check the demonstrations that can be graded by a reference answer.

    Args:
        troubles: why each does not earn the full reward; "" if it does.
        rewritten: the number of replies in the data that the prompt has rewritten in its format.
        whose: whose reward it is, "prompt" or "run".
    """
    if not troubles:
        return []
    bad = [trouble for trouble in troubles if trouble]
    advice = ""
    if len(bad) > MANY * len(troubles):
        reasons = "; ".join(f"{bad.count(reason)}: {reason}" for reason in dict.fromkeys(bad))
        advice = (
            f"{len(bad)} of {len(troubles)} demonstrations do not teach the right answer in the {whose}'s form "
            f"({reasons}). data.correct_only leaves wrong ones out; qed data inspect counts them."
        )
    earned = f"{len(troubles) - len(bad)} of {len(troubles)}"
    changed = [Finding("demonstrations rewritten in the prompt's form", f"{rewritten} of {len(troubles)}")]
    return [
        Finding(f"demonstrations that earn the {whose}'s full reward", earned, advice),
        *(changed if rewritten else []),
    ]


def check_window(longer: int, count: int, max_tokens: int) -> list[Finding]:
    """Check whether answers as long as the written ones fit into `sampling.max_tokens`."""
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
    """Check that the learning rate reaches `learner.lr`."""
    if lr == 0:
        return [Finding("learning rate", "0", "learner.lr is 0, so nothing is learned.")]
    if warmup and warmup >= steps:
        advice = f"learner.warmup_steps={warmup} is not below learner.steps={steps}: learner.lr is never reached."
        return [Finding("warm-up", f"{warmup} of {steps} steps", advice)]
    return []


def check_memory(training: int, sampling: int, free: int | None) -> list[Finding]:
    """Check whether the longest micro-batch and the largest KV cache fit; only a warning, because it is an estimate.

    Args:
        training: bytes that a learner's step needs in addition to what is already allocated.
        sampling: bytes that the sampler needs in addition.
        free: the free bytes; None if unknown.
    """
    needed = max(training, sampling)
    if free is None:
        return [Finding("memory at worst, about", _format_size(needed))]
    advice = ""
    if needed > free:
        advice = (
            f"The longest micro-batch may need {_format_size(training)} and the sampler {_format_size(sampling)}, "
            f"and {_format_size(free)} "
            "are free. Smaller learner.tokens_per_microbatch or sampling.rows_per_batch, "
            "model.gradient_checkpointing=true or model.lora_rank take less; qed doctor --fit measures what fits, and "
            "--device-memory computes it for a card."
        )
    return [Finding("memory at worst, about", f"{_format_size(needed)} of {_format_size(free)} free", advice)]


def check_disk(checkpoint: int, saves: int, rollouts: int, free: int) -> list[Finding]:
    """Check whether the checkpoints fit on the disk, and the rollouts too if all answers have the maximum length.

    Args:
        checkpoint: bytes of one checkpoint.
        saves: the number of checkpoints kept at the same time.
        rollouts: bytes of all rollouts, if every answer has the maximum length.
        free: the free bytes on the disk.
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
            f"If all answers have the maximum length, rollouts take {_format_size(rollouts)} in addition to "
            f"{_format_size(needed)} of checkpoints, and the disk has {_format_size(free)} free. "
            "run.save_rollouts=false saves none."
        )
    return [Finding("disk at most, about", f"{_format_size(needed + rollouts)} of {_format_size(free)} free", advice)]


def count_token_bytes(answers: int, with_stats: int, top: int) -> int:
    """Return the bytes that a step's answers take on the disk per token of the longest.

    Args:
        answers: the number of answers of a step.
        with_stats: the largest number of answers with per-token statistics.
        top: the number of most likely tokens that these save at each position.
    """
    of_stats = min(with_stats, answers) * (BYTES_PER_STATS_TOKEN + top * BYTES_PER_TOP_LOGP)
    return answers * BYTES_PER_ROLLOUT_TOKEN + of_stats


def refuse(findings: Sequence[Finding]) -> None:
    """Reject a run that cannot work.

    Raises:
        UsageError: a finding is fatal; the message says which settings to change.
    """
    advice = [finding.advice for finding in findings if finding.fatal]
    if advice:
        raise UsageError("\n".join([*advice, "run.preflight=false starts the run anyway."]))


def _format_size(count: float) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
