"""The texts of the page that describe the setup; the results come only from the summaries."""

from __future__ import annotations

INTRODUCTION = """
# The laboratory

Which way of learning from demonstrations or from a teacher is worth its compute? Here all methods run in the same
training loop, with the same loss averages, problems, seeds and compute budget:

<!-- not run: about an hour on 4 cores -->
```bash
python benchmarks/laboratory.py                  # all methods and tasks; an interrupted study continues
python benchmarks/laboratory.py --quick          # three seeds, one task, into runs/laboratory/quick
python benchmarks/laboratory.py --page           # writes this page again, from the committed summaries
```

![Held-out accuracy of each method on each task]({figure})

Each dot is a seed, each bar a mean with its 95 % interval over seeds. The dashed line is the model at the start, the
grey one the best control.

**The setting.** The model has 0.6 M parameters (`new:tiny`). The three tasks are made of the two-step word problems
of `arithmetic`. Each run has a budget of {budget} billion multiply–adds, which its own metrics count (`perf/flops`):
sampling, and the forward and backward passes of the policy, of the teacher and of the reference model. Evaluations,
and the training of the start model and of the teacher, are not counted. Pilot runs set the number of steps for each
method, task and learning rate. The first final run is within 5 % of the budget where whole steps allow it. A run that
is more than 10 % off is repeated with another number of steps: on `withheld` the step at which a policy begins to
write long answers depends on the seed. The tables give what the final runs used. A step with sampling has {problems}
problems with {answers} answers of at most {tokens} tokens, an SFT step has 32 demonstrations. The learning rate, one
of {rates} with linear decay, is the best on 300 validation problems with one seed; the final runs use {seeds} other
seeds. All other settings are each method's defaults. *SFT → GRPO* is `qed pipeline` with a quarter of the compute for
SFT. The longest final run took {longest} CPU seconds.

**The measure** is the share of right answers among {samples} sampled at temperature 1 for each of {test} held-out
problems. Differences are tested on the same problems, with both seeds and problems as random
([evaluate.md](evaluate.md)). Each guidance and distillation method is compared with the best control, the one with
the highest held-out mean, which is a strict choice; p-values are Holm-adjusted over the methods of a task. *The other
task* is what the start model could already do; *entropy* is minus the mean log-prob of sampled tokens, in nats. The
controls are SFT, GRPO, SFT → GRPO, RL + SFT loss and LUFFY. Methods with a teacher have more to learn from than the
others: the teacher was trained on 3,488 further demonstrations. The teacher of OPSD is the policy itself with the
demonstration in its prompt; a policy that was never trained on such prompts, as here, may not be able to use them.
"""

TASK_TEXTS = {
    "withheld": """
## `withheld`: a start that earns nothing

The start model answers every question with "unknown". If the question ends in a cue, it solves about half of them
(the other task). {shown} of {train} problems have a demonstration.
""",
    "little": """
## `little`: a start that earns a little

The start model was trained on few demonstrations with steps, and mostly guesses. {shown} of {train} problems have a
demonstration. The other task is problems with one step, worded differently, which the start model can solve.
""",
    "foreign": """
## `foreign`: demonstrations in another style, some of them wrong inside

The start model, the problems and the other task are those of `little`. All {train} problems have a demonstration,
written in a style that the start model has never seen, and {noise} of the demonstrations have a wrong intermediate
step before the right answer, which a check of the answer does not find. The teacher was trained on such
demonstrations. GRPO uses no demonstrations, so its runs are those of `little`.
""",
}

PAPER = """
## What this says about arXiv 2604.23747

The paper ("SFT-then-RL outperforms mixed-policy methods") finds that published SFT baselines were weakened by two
bugs, one of gradient accumulation under offload and one of averaging over micro-batches, and that a correct SFT
followed by RL beats the mixed-policy methods. qed has neither bug: a loss is a sum with weights that are computed over
the whole step, and property tests check it. Here is SFT → GRPO against each method that mixes demonstrations into RL,
Holm-adjusted over these methods:
"""

LIMITS = """
## What is not established

- Anything about large models. The model is tiny, the problems are generated, and the demonstrations differ less from
  the model's own answers than those of a strong model would.
- Other start models, problem sets and teachers: each task has one of each, and the intervals are over training seeds
  and held-out problems only.
- Other budgets, and other settings than the methods' defaults. One learning rate of four was chosen with one seed, so a
  method's best rate may lie between them.
- Which part of a method its difference comes from.
"""
