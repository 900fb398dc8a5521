"""What each reward of the shelf pays, line by line, with the reason."""

from __future__ import annotations

import pytest

from qed.config import plugins
from qed.errors import UsageError
from qed.rewards import base
from qed.rewards.verdicts import CLASSES, classify
from qed.types import Grade, Problem, Rollout

LONGEST = 100


def graded(entry: str, text: str, *options: str, gold: str = "12", tokens: int = 0, **meta: object) -> Grade:
    """The grade that one reward gives to a text of so many tokens."""
    rollout = Rollout(Problem("p", "?", gold, meta=meta), (), (7,) * tokens, (), text, "stop")
    return base.load_reward([entry], options, max_tokens=LONGEST).grade([rollout])[0]


def paid(entry: str, text: str, *options: str, gold: str = "12") -> tuple[float, bool, bool]:
    grade = graded(entry, text, *options, gold=gold)
    return grade.reward, grade.correct, grade.format_ok


LOCAL_REWARDS = sorted(set(plugins.list_leaves("rewards")) - {"http", "model"})  # which need a server, and a model


@pytest.mark.parametrize("leaf", LOCAL_REWARDS)
def test_every_reward_gives_a_reason_where_it_judges(leaf: str) -> None:
    judges = base.load_reward([leaf], max_tokens=LONGEST).parts[0].judges
    for text in ("", "12", "13", "\\boxed{12}", "<think>a</think> <answer>12</answer>"):
        grade = graded(leaf, text)
        assert bool(grade.tier) == bool(grade.reason) == judges, text


@pytest.mark.parametrize(
    ("text", "pay"),
    [
        ("so \\boxed{12}", (1.0, True, True)),
        ("\\boxed{13}, no: \\boxed{12}", (1.0, True, True)),  # the last box counts
        ("so \\boxed{13}", (0.0, False, True)),
        ("so 12", (0.0, False, False)),  # right, but without the box
        ("so \\boxed{12", (0.0, False, False)),  # the box never closes
        ("\\boxed{13} <|im_end|> user \\boxed{12}", (0.0, False, True)),  # the next turn is somebody else's
        ("\\boxed{12} <|im_end|> \\boxed{13}", (1.0, True, True)),
        ("so <|im_end|> \\boxed{12}", (0.0, False, False)),
    ],
)
def test_boxes(text: str, pay: tuple[float, bool, bool]) -> None:
    assert paid("boxed", text) == paid("question_only", text) == pay


@pytest.mark.parametrize(
    ("answer", "gold", "verdicts"),
    [
        ("12", "12", "111"),
        ("\\frac{2}{4}", "\\frac{1}{2}", "101"),  # fast compares two fractions as they are written
        ("18 dollars", "18", "100"),  # a unit that no rule on strings knows, read as letters
        ("18 inches", "18", "111"),  # a unit that it knows
        ("2, 1", "1, 2", "101"),  # fast knows no unordered lists
        ("The answer is 12", "12", "101"),  # nor sentences
        ("3\\times 4", "12", "101"),  # a whole gold needs a whole number
        ("(2, 1)", "(1, 2)", "000"),
        ("[0, 1]", "[0, 1)", "000"),  # other brackets
        ("2^{k}-1", "2^{k-1}", "000"),  # what stands in braces stays in the power
        ("k \\geq 2", "k > 2", "000"),
        ("13", "12", "000"),
    ],
)
def test_the_three_graders_of_r1_zero(answer: str, gold: str, verdicts: str) -> None:
    text = f"</think> <answer> {answer} </answer>"
    found = [graded("r1_zero", text, f"r1_zero.grader={name}", gold=gold).correct for name in ("qed", "fast", "slow")]
    assert "".join(str(int(correct)) for correct in found) == verdicts


GOOD_XML = "<reasoning>\nfive and seven\n</reasoning>\n<answer>\n12\n</answer>\n"


@pytest.mark.parametrize(
    ("text", "dotall", "parts"),
    [
        (GOOD_XML, True, (2.0, 0.5, 0.5, 0.5, 0.5)),  # 4.0 in all
        (GOOD_XML, False, (2.0, 0.5, 0.5, 0.0, 0.5)),  # soft has no room for the line breaks within the tags
        (GOOD_XML.replace(" and ", "\n"), True, (2.0, 0.5, 0.5, 0.5, 0.5)),
        (GOOD_XML.replace(" and ", "\n"), False, (2.0, 0.5, 0.0, 0.0, 0.5)),  # a thought of two lines
        (GOOD_XML.replace("12", "-12"), True, (0.0, 0.0, 0.5, 0.5, 0.5)),  # a sign is no digit
        (GOOD_XML.replace("12", "12.0"), True, (0.0, 0.0, 0.5, 0.5, 0.5)),  # equal, but not the same string
        (GOOD_XML.replace("12", "²"), True, (0.0, 0.5, 0.5, 0.5, 0.5)),  # a raised digit is a digit
        ("<reasoning>a</reasoning><answer>12</answer>", False, (2.0, 0.5, 0.0, 0.5, 0.0)),
        ("12", True, (2.0, 0.5, 0.0, 0.0, 0.0)),  # without tags the whole text is the answer
        ("so 12", True, (0.0, 0.0, 0.0, 0.0, 0.0)),
        ("", True, (0.0, 0.0, 0.0, 0.0, 0.0)),
        # Without the last line break: the third tag loses the whole length, 61 signs; the fourth gains 0.001.
        (GOOD_XML.rstrip(), True, (2.0, 0.5, 0.0, 0.5, 0.5 - 0.061 + 0.001)),
        # Five signs behind the end cost 0.005 in the third tag and as much in the fourth.
        (GOOD_XML + "Done.", True, (2.0, 0.5, 0.0, 0.5, 0.5 - 0.005 - 0.005)),
    ],
)
def test_gsm8k_xml(text: str, dotall: bool, parts: tuple[float, ...]) -> None:
    assert len(GOOD_XML.rstrip()) == 61
    grade = graded("gsm8k_xml", text, f"gsm8k_xml.dotall={dotall}", gold="6 + 6 = 12\n#### 12")
    assert list(grade.parts) == ["correct", "integer", "strict", "soft", "tags"]
    assert tuple(grade.parts.values()) == pytest.approx(parts)
    assert grade.reward == pytest.approx(sum(parts))
    assert grade.correct == (parts[0] > 0)


def worked(solution: str, tail: str = "") -> str:
    return f"<start_working_out>five and seven<end_working_out><SOLUTION>{solution}</SOLUTION>{tail}"


@pytest.mark.parametrize(
    ("text", "gold", "pipeline", "notebook"),
    [
        (worked("12"), "12", (3, 1.5, 5, 3), (3, 1.5, 5, 3.5)),
        (worked(" 12 "), "12", (3, 1.5, 3.5, 3), (3, 1.5, 3.5, 3.5)),
        (worked("13"), "12", (3, 1.5, 2, -1.5), (3, 1.5, 2, -1.5)),  # within 10 %
        (worked("14"), "12", (3, 1.5, 1.5, -1.5), (3, 1.5, 1.5, -1.5)),  # within 20 %
        (worked("99"), "12", (3, 1.5, -2, -1.5), (3, 1.5, -2.5, -1.5)),
        (worked("twelve"), "12", (3, 1.5, -2, -1.5), (3, 1.5, -4.5, -2.5)),  # no number
        (worked("1"), "0", (3, 1.5, -2, -1.5), (3, 1.5, -4.5, -1.5)),  # no ratio to 0
        (worked("1.2.3"), "12", (3, 1.5, -2, 0), (3, 1.5, -4.5, 0)),  # a number that cannot be read
        (worked("12", "\nBye"), "12", (3, 1.5, 5, 3), (3, 1.5, 5, 3.5)),  # text on later lines passes
        (worked("12", " bye"), "12", (0, 1.5, -2, 3), (0, 1.5, -2, 3.5)),  # on the same line it does not
        (worked("12") + worked("12"), "12", (3, -3, -2, 3), (3, -3, -4.5, 3.5)),  # each tag twice
        ("12", "12", (0, -3, -2, -1.5), (0, -3, -2, -2.5)),
        ("", "12", (0, -3, -2, -1.5), (0, -3, -2, -2.5)),
    ],
)
def test_working_out(text: str, gold: str, pipeline: tuple[float, ...], notebook: tuple[float, ...]) -> None:
    for preset, parts in (("pipeline", pipeline), ("notebook", notebook)):
        grade = graded("working_out", text, f"working_out.preset={preset}", gold=gold)
        assert list(grade.parts) == ["exact", "approximate", "answer", "numbers"]
        assert tuple(grade.parts.values()) == parts
        assert grade.reward == sum(parts)


def test_the_range_of_working_out() -> None:
    assert graded("working_out", worked("12")).reward == 12.5
    assert graded("working_out", "").reward == -6.5
    assert graded("working_out", worked("12"), "working_out.preset=notebook").reward == 13


@pytest.mark.parametrize(
    ("solution", "options", "parts"),
    [
        ("12", (), (3, 2, 3, 1.5)),
        ("12", ("working_out.typo=true",), (3, 0.5, 3, 1.5)),  # <answerr> never stands in a text
        (" 12", (), (3, 2, 1.5, 1.5)),
        ("13", (), (3, 2, 1, -0.5)),
        ("14", (), (3, 2, 0.5, -0.5)),
        ("x", (), (3, 2, -1.5, 0)),
    ],
)
def test_working_out_of_the_older_notebook(solution: str, options: tuple[str, ...], parts: tuple[float, ...]) -> None:
    text = f"<reasoning>a</reasoning><answer>{solution}</answer>"
    assert tuple(graded("working_out", text, "working_out.preset=gsm8k", *options).parts.values()) == parts


def test_the_tags_of_working_out_can_be_set() -> None:
    tags = ("reasoning_end=</w>", "solution_start=<s>", "solution_end=</s>", "end_token=<end>")
    grade = graded("working_out", "a</w><s>12</s><end>", *(f"working_out.{tag}" for tag in tags))
    assert (grade.reward, grade.correct, grade.extracted) == (12.5, True, "12")


@pytest.mark.parametrize(
    ("text", "mode", "pay"),
    [
        ("so it is 12", "flexible", (1.0, True, True)),
        ("so it is 12", "strict", (0.0, False, False)),  # words are no convention
        ("\\boxed{12", "flexible", (0.0, False, False)),
        ("\\boxed{12", "lenient", (1.0, True, True)),
        ("so it is 13", "flexible", (0.0, False, True)),
        ("", "lenient", (0.0, False, False)),
    ],
)
def test_accuracy(text: str, mode: str, pay: tuple[float, bool, bool]) -> None:
    assert paid("accuracy", text, f"accuracy.mode={mode}") == pay


@pytest.mark.parametrize(
    ("text", "formats"),
    [
        ("<think>a</think><answer>13</answer>", {"think_answer"}),
        ("a </think> <answer> \\boxed{13} </answer>", {"r1_zero", "boxed"}),
        ("13", set()),
    ],
)
def test_format_only(text: str, formats: set[str]) -> None:
    for name in ("think_answer", "r1_zero", "boxed"):
        assert paid("format_only", text, f"format_only.format={name}") == (
            float(name in formats),
            False,
            name in formats,
        )


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("<think>\n2 + 2 = 4\n</think>\n\nThe answer is 4.", True),
        ("<think></think>", True),
        ("So: <think>2</think> 4", False),
        ("<think>2<think>3</think> 4", False),
        ("<think>2", False),
    ],
)
def test_a_thought_in_tags_is_trls_format(text: str, holds: bool) -> None:
    assert paid("format_only", text, "format_only.format=think") == (float(holds), False, holds)


def test_length_costs_from_the_free_tokens_on() -> None:
    free = "length.free=20"
    assert [graded("length", "", free, tokens=tokens).reward for tokens in (0, 20, 60, 100, 200)] == [
        0,
        0,
        -0.5,
        -1,
        -1,
    ]


@pytest.mark.parametrize(
    ("text", "third", "first"),
    [
        ("<think>\na</think>\\boxed{12}", 1.0, 1.0),
        ("a</think>\\boxed{12}", 1.0, 1.0),  # the prompt opened the thought
        ("a</think>so 12", 1.0, -1.0),  # version 1 asks for a box
        ("a</think>\\boxed{13}", 0.0, -0.5),
        ("<think>a \\boxed{12}", 0.0, -1.0),  # the thought does not close
        ("a</think>\\boxed{13}</think>\\boxed{12}", 0.0, -0.5),  # what stands behind a second end is not read
        ("a</think>\\boxed{13}<|im_end|>user \\boxed{12}", 0.0, -0.5),  # nor what stands in the next turn
        ("a</think>\\boxed{12}<|im_end|>user \\boxed{13}", 1.0, 1.0),
        ("", 0.0, -1.0),
    ],
)
def test_luffy_think(text: str, third: float, first: float) -> None:
    assert graded("luffy_think", text).reward == third
    assert graded("luffy_think", text, "luffy_think.version=1").reward == first


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("<think>a</think><answer>12</answer>", "fmt1_ans1"),
        ("<think>a</think><answer>13</answer>", "fmt1_ans0"),
        ("so the answer is 12", "fmt0_ans1"),  # able, but without the format
        ("<answer>12", "fmt0_ans1"),  # cut off within the tag
        ("so the answer is 13", "fmt0_ans0"),
        ("", "fmt0_ans0"),
    ],
)
def test_four_classes(text: str, cell: str) -> None:
    rollout = Rollout(Problem("p", "?", "12"), (), (), (), text, "stop")
    assert classify(graded("think_answer", text), rollout.problem.answer, text) == cell
    assert cell in CLASSES


@pytest.mark.parametrize("leaf", ["overlong", "length", "cosine"])
def test_a_reward_that_needs_the_longest_answer_says_so(leaf: str) -> None:
    rollout = Rollout(Problem("p", "?", "12"), (), (), (), "12", "stop")
    with pytest.raises(UsageError, match=rf"set {leaf}\.max_tokens"):
        base.load_reward([leaf]).grade([rollout])


@pytest.mark.parametrize(
    "option",
    [
        "overlong.cache=101",
        "overlong.max_tokens=-1",
        "length.free=100",
        "repetition.ngram=0",
        "repetition.max_penalty=1",
    ],
)
def test_settings_that_cannot_be_meant_are_refused(option: str) -> None:
    with pytest.raises(UsageError, match=option.partition(".")[0]):
        base.load_reward([option.partition(".")[0]], [option], max_tokens=LONGEST)


HOSTILE = (
    "<answer>", "</answer>", "\n</answer>\n", "<reasoning>\n", "</reasoning>", "</reasoning> <answer>",
    "<end_working_out><SOLUTION>", "</SOLUTION>", "</SOLUTION> ", "</think> <answer>", "<think>", "</think>",
    "<reasoning></reasoning>",
    "\\boxed{", "\\boxed{1}", "{", "1", " ", "\n", "a b ", "\\frac{", "\\frac{1}{2}", "(1,", "-", "1.", "$", "\\text{",
)  # fmt: skip


@pytest.mark.parametrize("leaf", LOCAL_REWARDS)
def test_hostile_texts_come_back(leaf: str) -> None:
    """200,000 signs each, behind everything that a format wants to begin with: quadratic work would not end."""
    for opening in (
        "",
        "<reasoning>\n",
        "<reasoning>a</reasoning>\n<answer>",
        "<end_working_out><SOLUTION>",
        "</think> <answer>",
    ):
        for piece in HOSTILE:
            grade = graded(leaf, opening + piece * (200_000 // len(piece)))
            assert not grade.correct
