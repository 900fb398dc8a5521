"""The panels of a report: which metrics and figures each one draws."""

from __future__ import annotations

from dataclasses import dataclass

from qed.report.record import VALIDATION

EVALUATION = f"eval/{VALIDATION}/"
PREFERRED = f"{EVALUATION}preferred"  # the share of validation pairs that the policy or a reward model ranks right
LOSS = f"{EVALUATION}loss"  # of the validation demonstrations


@dataclass(frozen=True)
class Panel:
    """Curves of a panel.

    They are (label, metric) for training steps and for validation data without answers to grade, such as preference
    pairs, and (label, decoding, figure) for evaluations.
    """

    title: str
    unit: str
    trained: tuple[tuple[str, str], ...] = ()
    held_out: tuple[tuple[str, str, str], ...] = ()
    validated: tuple[tuple[str, str], ...] = ()
    share: bool = False
    log: bool = False
    note: str = ""
    needs: str = ""  # a metric that the panel requires


LENGTH = Panel(
    "Answer length",
    "tokens",
    (("training, all", "length/mean"), ("right", "length/right_mean"), ("wrong", "length/wrong_mean")),
    (("held-out, greedy", "greedy", "mean_tokens"),),
)
CLASSES = Panel(
    "Format × answer",
    "share of answers",
    held_out=(
        ("kept, right", "greedy", "classes.fmt1_ans1"),
        ("kept, wrong", "greedy", "classes.fmt1_ans0"),
        ("broken, right", "greedy", "classes.fmt0_ans1"),
        ("broken, wrong", "greedy", "classes.fmt0_ans0"),
    ),
    share=True,
    note="Greedy answers to held-out problems; where the format is broken, the answer is extracted leniently.",
)
VALIDATED = "The best checkpoint is chosen by this part of the training problems, so it is not a held-out result."
VALIDATION_PANELS = (
    Panel(
        "Validation pairs",
        "share of pairs",
        validated=(("ranked right", PREFERRED), ("chosen reply likelier", f"{EVALUATION}likelier")),
        share=True,
        note=VALIDATED,
    ),
    Panel("Loss on validation demonstrations", "nats per token", validated=(("loss", LOSS),), note=VALIDATED),
)
PANELS = (
    Panel(
        "Reward model and grader",
        "score, and share of answers",
        (("score of the reward model", "reward/model/mean"), ("right by the grader, in training", "accuracy")),
        (("right, held-out, sampled", "sampled", "accuracy"),),
        needs="reward/model/mean",
        note="A score that rises while the share of right answers does not indicates reward hacking.",
    ),
    Panel(
        "Answers in format",
        "share of answers",
        (("training", "format"),),
        (("held-out, greedy", "greedy", "format"), ("held-out, sampled", "sampled", "format")),
        share=True,
    ),
    CLASSES,
    Panel(
        "Length of right and wrong answers",
        "tokens",
        held_out=(
            ("held-out, all", "greedy", "mean_tokens"),
            ("held-out, right", "greedy", "right_tokens"),
            ("held-out, wrong", "greedy", "wrong_tokens"),
        ),
        note="Greedy answers to held-out problems.",
    ),
    Panel(
        "Groups without signal",
        "share of groups",
        (
            ("equal rewards", "groups/zero_std"),
            ("all right", "groups/all_right"),
            ("all wrong", "groups/all_wrong"),
            ("equal, mixed", "groups/neither"),
        ),
        share=True,
        note="A group whose answers all earned the same reward has no gradient.",
    ),
    Panel(
        "Pass rates of the curriculum",
        "share",
        (
            ("mean pass rate", "curriculum/pass_rate"),
            ("spread", "curriculum/spread"),
            ("problems tried", "curriculum/tried"),
        ),
        share=True,
        note="Estimates over the problems that were tried: the mean and the standard deviation of their pass rates.",
    ),
    Panel(
        "Turns of the policy",
        "turns in an answer",
        (("training", "turns/mean"),),
        (("held-out, greedy", "greedy", "mean_turns"), ("held-out, sampled", "sampled", "mean_turns")),
        note="An answer has one turn, plus one for each reply of the environment.",
    ),
    Panel(
        "Truncated answers",
        "share of answers",
        (("training", "length/truncated_frac"),),
        (("held-out, greedy", "greedy", "truncated_frac"), ("held-out, sampled", "sampled", "truncated_frac")),
        share=True,
    ),
    Panel("Entropy of the policy", "nats per token", (("entropy", "policy/entropy"),), log=True),
)
SYSTEM_PANELS = (
    Panel(
        "Answers not graded",
        "in a step",
        (
            ("timed out", "grading/timeouts"),
            ("failed", "grading/errors"),
            ("without a reward", "grading/without_reward"),
        ),
    ),
    Panel("Divergence from the reference", "nats per token", (("KL", "kl/ref"),)),
    Panel("Divergence within a step", "nats per token", (("old from new policy", "kl/old"),)),
    Panel(
        "Sampler–learner mismatch",
        "nats per token",
        (("KL", "mismatch/kl"),),
        log=True,
        note="Divergence of the sampler's token probabilities from the learner's, on the same tokens.",
    ),
    Panel(
        "Log-probs of the servers",
        "nats per token",
        (("mean", "sampler/logp_gap_mean"), ("99th percentile", "sampler/logp_gap_p99")),
        log=True,
        note="Difference between the servers' log-probs and the learner's before the update, on the same tokens.",
    ),
    Panel("Clipped tokens", "share of tokens", (("low", "clip/low"), ("high", "clip/high")), share=True),
    Panel(
        "Values of the critic",
        "reward",
        (("values", "critic/values"), ("returns", "critic/returns")),
        note="What the critic expects of an answer, and what it then learns; means over the tokens of a step.",
    ),
    Panel(
        "What the critic knows",
        "explained variance of the returns",
        (("explained variance", "critic/explained_variance"),),
        note="1: it predicts every return. 0: it is no better than their mean. Below 0: it is worse than their mean.",
    ),
    Panel("Gradient norm", "before clipping", (("gradient norm", "optim/grad_norm"),), log=True),
    Panel("Learning rate", "of the optimizer", (("learning rate", "optim/lr"),)),
    Panel(
        "Time of a step",
        "seconds",
        (
            ("whole step", "time/step"),
            ("sampling", "time/sample"),
            ("grading", "time/grade"),
            ("scoring", "time/score"),
            ("updating", "time/update"),
            ("loading weights", "time/sync"),
            ("waiting for answers", "time/wait"),
        ),
    ),
    Panel("Speed", "tokens per second", (("tokens per second", "perf/tokens_per_s"),)),
)
