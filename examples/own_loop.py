"""GRPO as a custom training loop. It ends with bitwise the same weights as `qed grpo` with the same settings if a step
is a single update. Other features of `qed grpo` are omitted: a KL in the reward, targets of KL and entropy, a moving
reference, corrections for the sampler, curricula, limits on the length of prompts, `learner.epochs`, evaluations and
checkpoints."""

import qed
from qed.algorithms.base import StepContext
from qed.data.splits import load_problems
from qed.models.load import pick_device
from qed.models.threads import set_threads
from qed.rollout.collector import RolloutCollector
from qed.rollout.grader import load_grader
from qed.rollout.policy import load_policy
from qed.rollout.stages import Stream, assign_advantages
from qed.training.learner import Learner


def train(settings):
    """Return the model after `learner.steps` steps."""
    seed, steps, sampling, algorithm = settings.run.seed, settings.learner.steps, settings.sampling, settings.algorithm
    set_threads(settings.run.threads, settings.run.matmul_precision)
    problems = load_problems(settings.data, settings.evaluation, seed).problems
    policy = load_policy(settings, problems, pick_device(settings.model.device), None)
    scale = {"temperature": sampling.temperature, "length": sampling.max_tokens}
    learner = Learner(policy.model, algorithm, settings.learner, **scale)
    grader, stream = load_grader(settings.data, sampling.max_tokens), Stream(problems, seed, "problems 0")
    score = learner.compute_mean_scores
    collector = RolloutCollector(stream, policy.sampler, policy.template, grader, sampling, score)
    for step in range(1, steps + 1):
        groups = collector.collect(algorithm, StepContext(step, steps, seed)).groups  # sample and grade answers
        assign_advantages(groups, algorithm)  # compute advantages
        rows = algorithm.rows(groups)
        if not rows:  # all were filtered out, such as truncated answers
            continue
        learner.score(rows, old=False)  # log-probs of the reference model, if there is one
        loss = learner.update(rows, step - 1)["train/loss"]  # update the policy
        policy.sampler.load(policy.model, version=step)
        print(f"step {step}: reward {sum(row.reward for row in rows) / len(rows):.3f}, loss {loss:.4f}")
    return policy.model


if __name__ == "__main__":
    start = qed.train("sft", "arithmetic-sft", steps=100, out="runs/start")
    train(qed.load_settings("arithmetic-rl", method="grpo", model=start.model, steps=20)).save_pretrained("runs/own")
