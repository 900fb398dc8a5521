import { get } from "../api.js";
import { copyButtons } from "../copy.js";
import { renderDiff } from "../diff.js";
import { h, replace } from "../dom.js";
import { formatPercent, formatPoints } from "../format.js";
import { link } from "../router.js";
import { countWords, formatBrackets, formatP, redraw, showDifference, showFigures, showShort } from "./figures.js";
import { makeButton, makeSelect, showProblem, showVerdict } from "./texts.js";
import { linkPlace } from "./where.js";

const MOST_AT_ONCE = 50;

/**
 * Show what changed between A and B for one task and decoding: the paired test, the problems that only one of them
 * solves, the difference of their answers, and tables by subject and level.
 *
 * Returns {element, show(task), keys}; the open problem (`problem`, `side`) is kept in the URL.
 */
export function createPair(view) {
  const places = { lists: h("div", {}), answers: h("section", { class: "pair-answers", tabindex: "-1", "aria-label": "Both answers" }), by: h("div", {}) };
  const { query } = view.context;
  const state = { view, places, task: null, items: [], open: query.problem ?? "", mode: query.diff ?? "side", number: 0, picks: {} };
  return {
    element: h("div", { class: "pair-view" }, places.lists, places.answers, places.by),
    show: (task) => show(state, task),
    keys: {
      j: { about: "next problem", run: () => move(state, 1) },
      k: { about: "previous problem", run: () => move(state, -1) },
    },
  };
}

function show(state, task) {
  const { places } = state;
  state.task = task;
  state.items = task ? [...task.lost.map((item) => ({ ...item, kind: "lost" })), ...task.gained.map((item) => ({ ...item, kind: "gained" }))] : [];
  if (!task) return void [places.lists, places.answers, places.by].forEach((place) => replace(place));
  const isPlain = state.items.every(({ before, after }) => [before, after].every((share) => share === 0 || share === 1));
  const labels = isPlain ? ["A right, B wrong", "B right, A wrong"] : ["A right more often", "B right more often"];
  replace(places.lists,
    h("h2", {}, `${task.task}, ${task.decoding} answers`), showTest(task),
    h("p", { class: "facts" }, h("b", {}, "A"), ` is ${state.view.a} at step ${task.step_a}, `, h("b", {}, "B"), ` is ${state.view.b} at step ${task.step_b}.`),
    showCautions(task),
    h("div", { class: "panes changes" },
      showList(state, "lost", labels[0], task.n_lost ?? task.lost.length), showList(state, "gained", labels[1], task.n_gained ?? task.gained.length)));
  replace(places.by, showKinds(task));
  const open = state.items.find(({ problem }) => problem === state.open) ?? state.items[0];
  // A problem that stays open while A, B or the task changes is in the address as if it were chosen again.
  if (open && open !== state.items[0]) state.view.context.setQuery({ problem: open.problem });
  if (open) openItem(state, open, false);
  else replace(places.answers);
}

/** Summarise the test in one line, directly above its lists. */
function showTest({ test }) {
  const sign = `${formatPoints(test.difference)} points ${formatBrackets(test.ci_lo, test.ci_hi, formatPoints)}`;
  const clear = test.ci_lo > 0 || test.ci_hi < 0 ? "" : " The interval contains zero: the difference is not established.";
  const holm = test.p_holm != null && test.p_holm !== test.p_value ? `, by Holm ${formatP(test.p_holm)}` : "";
  const chance = test.p_value == null ? test.note : `${formatP(test.p_value)} (${test.test})${holm}`;
  const name = test.measure === "accuracy" ? "" : ` of ${test.measure}`;
  return h("p", { class: "verdict-line" }, h("b", {}, `B − A${name}: ${sign}`), `, ${chance}, ${countWords(test.n, "problem")} paired`,
    test.unpaired ? `, ${test.unpaired} unpaired` : "", `. A ${formatPercent(test.before)}, B ${formatPercent(test.after)}.${clear}`);
}

/** Show what differs besides the model, and how many answers that were cut off are right. */
function showCautions({ warnings, truncated }) {
  const sides = Object.entries(truncated).map(([side, { answers, truncated: cut, truncated_right: right }]) =>
    `${side.toUpperCase()} ${cut} of ${answers} (${right} right, ${cut - right} wrong)`);
  const isCut = Object.values(truncated).some((side) => side.truncated > 0);
  return [
    warnings.length ? h("ul", { class: "cautions", "aria-label": "What else differs" }, warnings.map((line) => h("li", {}, line))) : null,
    isCut ? h("p", { class: "facts" }, `Answers cut off at the token limit: ${sides.join(", ")}.`) : null,
  ];
}

function showList(state, kind, label, count) {
  const items = state.items.filter((item) => item.kind === kind);
  const list = h("ul", { class: "problem-list" });
  const more = h("p", { class: "actions" });
  let shown = 0;
  const showMore = () => {
    const next = items.slice(shown, shown + MOST_AT_ONCE);
    next.forEach((item) => list.append(showItem(state, item)));
    shown += next.length;
    replace(more, shown < items.length ? makeButton(`${Math.min(MOST_AT_ONCE, items.length - shown)} more`, showMore, { class: "small" })
      : items.length < count ? h("span", { class: "note" }, `The first ${items.length} of ${count}.`) : null);
  };
  const open = items.findIndex(({ problem }) => problem === state.open);
  do showMore(); while (shown <= open);
  const columns = ["problem", "question", "gold", "before", "after"];
  return h("div", { class: `change-list ${kind}` },
    h("h3", {}, h("span", { "aria-hidden": "true" }, kind === "lost" ? "▼ " : "▲ "), label, h("span", { class: "size" }, countWords(count, "problem"))),
    items.length ? [list, more, copyButtons({
      name: `${kind}-${state.task.task}`, json: () => items,
      rows: () => ({ columns, rows: items.map((item) => columns.map((name) => item[name] ?? "")) }),
    })] : h("p", { class: "note" }, "None."));
}

function showItem(state, item) {
  const isPlain = [item.before, item.after].every((share) => share === 0 || share === 1);
  const shares = isPlain ? null : h("small", {}, `A ${formatPercent(item.before)} → B ${formatPercent(item.after)}`);
  return h("li", {}, h("button", {
    type: "button", class: "item", "data-problem": item.problem, "aria-pressed": String(item.problem === state.open), on: { click: () => openItem(state, item) },
  }, showShort(item.question || item.problem, 200), shares));
}

function move(state, way) {
  if (state.items.length === 0) return;
  const at = state.items.findIndex(({ problem }) => problem === state.open);
  const next = Math.max(0, Math.min(state.items.length - 1, at + way));
  openItem(state, state.items[next]);
}

async function openItem(state, item, isOwn = true) {
  const { view, places } = state;
  state.open = item.problem;
  state.number += 1;
  const own = state.number;
  for (const button of places.lists.querySelectorAll("button.item")) button.setAttribute("aria-pressed", String(button.dataset.problem === item.problem));
  if (isOwn) view.context.setQuery({ problem: item.problem });
  replace(places.answers, h("p", { class: "note", role: "status" }, "Reading both answers …"));
  try {
    const [a, b] = await Promise.all(["a", "b"].map((side) => loadSide(state, item, side)));
    if (own !== state.number) return;
    state.picks = { a: pickAnswer(a, item.kind === "lost"), b: pickAnswer(b, item.kind === "gained") };
    showAnswers(state, item, a, b);
    if (isOwn) places.answers.scrollIntoView({ block: "nearest" });
  } catch (error) {
    if (own === state.number) replace(places.answers, h("p", { class: "trouble", role: "alert" }, `The answers could not be read: ${error.message}`));
  }
}

async function loadSide({ view, task }, item, side) {
  const decoding = side === "b" ? (task.decoding_b ?? task.decoding) : task.decoding;
  const where = { run: view[side], step: task[`step_${side}`], task: task.task, decoding };
  const reply = await get("group", { ...where, group: item[`group_${side}`] });
  return { where, side, ...reply };
}

/** Choose the answer that shows the change: a right one if this side was better, else a wrong one. */
function pickAnswer({ answers }, isBetter) {
  const found = answers.findIndex((answer) => Boolean(answer.correct) === isBetter);
  return Math.max(0, found);
}

function showAnswers(state, item, a, b) {
  const [one, other] = [a.answers[state.picks.a], b.answers[state.picks.b]];
  const change = (changes) => {
    Object.assign(state, changes);
    showAnswers(state, item, a, b);
  };
  const pick = (side, reply) => reply.answers.length < 2 ? null : makeSelect(`Answer of ${side.toUpperCase()}`,
    reply.answers.map((answer, at) => [at, `${at + 1} ${answer.correct ? "✓ right" : "✗ wrong"}`]), state.picks[side],
    (at) => change({ picks: { ...state.picks, [side]: Number(at) } }));
  const mode = (value) => {
    state.view.context.setQuery({ diff: value === "side" ? null : value });
    change({ mode: value });
  };
  redraw(state.places.answers,
    h("h3", {}, `Problem ${item.problem}`), showProblem(a.group),
    h("dl", { class: "texts" }, showHead("A", a, one), showHead("B", b, other)),
    h("div", { class: "tools" }, pick("a", a), pick("b", b), makeSelect("Shown", [["side", "side by side"], ["inline", "in one text"]], state.mode, mode)),
    one && other ? renderDiff(one.text ?? "", other.text ?? "", { mode: state.mode, labels: ["A", "B"] }) : h("p", { class: "note" }, "An answer is missing."),
    h("p", { class: "actions" }, [...new Set([a.where.run, b.where.run])].map((run) =>
      h("a", { href: link(["run", run, "problem", item.problem], {}) }, `This problem through training: ${run}`))));
}

function showHead(letter, { where, group }, answer) {
  if (!answer) return null;
  return [h("dt", {}, letter), h("dd", {},
    h("a", { href: linkPlace(where, group.group ?? answer.group, answer.answer) }, `${where.run}, step ${where.step}, answer ${answer.answer + 1}`),
    " ", showVerdict(answer.correct), answer.extracted == null ? null : [" · extracted ", h("code", {}, String(answer.extracted))])];
}

function showKinds(task) {
  const kinds = [...new Set(task.by.map(({ kind }) => kind))];
  if (kinds.length === 0) return null;
  const tables = kinds.map((kind) => {
    const rows = task.by.filter((each) => each.kind === kind).map((each) => ({
      head: kind === "level" && /^\d/.test(String(each.value)) ? `level ${each.value}` : String(each.value),
      cells: [formatPercent(each.before), formatPercent(each.after), showDifference(each), formatP(each.p_value), formatP(each.p_holm), String(each.n)],
    }));
    return showFigures({ caption: `By ${kind}`, heads: ["", "A", "B", "difference in points", "p", "p (Holm)", "n"], rows });
  });
  return h("section", {}, h("h2", {}, "By subject, level and source"), tables, task.by_note ? h("p", { class: "note" }, task.by_note) : null);
}
