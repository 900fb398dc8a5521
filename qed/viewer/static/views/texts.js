import { isHeld } from "../api.js";
import { h, renderPieces } from "../dom.js";
import { formatNumber } from "../format.js";
import { link } from "../router.js";
import { isCut } from "./filters.js";

const SOURCES = {
  policy: "sampled by the policy",
  expert: "written by an expert, trained on together with the policy's answers",
  demonstration: "a demonstration from the data",
  replay: "a replayed answer of an earlier step",
  greedy: "decoded greedily",
};

const NOISE = 1e-6; // the advantage of equal rewards, which rounding may keep from being exactly 0
const made = { count: 0 }; // choices, for their ids

/** The description of a source of answers, for tooltips. */
export function describeSource(source) {
  return SOURCES[source] ?? "";
}

/** Whether an answer was not written by the policy, but by an expert or the data. */
export function isWritten(answer) {
  return answer.source === "expert" || answer.source === "demonstration";
}

/** Show a verdict as a sign and a word: right, wrong or not graded. */
export function showVerdict(correct, small = false) {
  if (correct == null) return h("span", { class: "verdict" }, small ? "–" : "not graded");
  const [kind, sign] = correct ? ["right", "✓"] : ["wrong", "✗"];
  return h("span", { class: `verdict ${kind}` }, h("span", { "aria-hidden": "true" }, `${sign} `), kind);
}

/** Show yes, no, or a dash for a fact that was not recorded. */
export function showFlag(value) {
  return value == null ? "–" : value ? "yes" : "no";
}

/** Show why an answer ended; the length limit is highlighted. */
export function showStop(row) {
  if (row.stop_reason == null) return "–";
  return isCut(row) ? h("span", { class: "cut" }, "cut off") : row.stop_reason;
}

/** Read one advantage of an answer: the mean if each token has its own. */
export function readAdvantage(row) {
  if (!Array.isArray(row.advantage)) return row.advantage ?? null;
  const known = row.advantage.filter((value) => value != null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

/** Format a figure with its sign, so that gains and losses differ without colour; rounding noise becomes 0. */
export function formatSigned(value) {
  if (value == null) return "–";
  if (Math.abs(value) < NOISE) return "0";
  return value > 0 ? `+${formatNumber(value)}` : formatNumber(value);
}

/**
 * Draw a figure as a bar next to its number; bars of one `range` [low, high] are comparable, and zero is marked if it is in it.
 */
export function showBar(label, value, range, kind = "") {
  const low = Math.min(0, range[0]);
  const high = Math.max(0, range[1]);
  const place = (point) => (high > low ? ((point - low) / (high - low)) * 100 : 0);
  const [from, to] = value == null ? [0, 0] : [place(Math.min(0, value)), place(Math.max(0, value))];
  const css = { left: `${from}%`, width: `${value ? Math.max(to - from, 0.8) : 0}%` };
  return h("div", { class: "figure-bar" },
    h("span", { class: "label" }, label),
    h("span", { class: "track", "aria-hidden": "true" },
      h("span", { class: `fill ${kind}`, css }), low < 0 ? h("span", { class: "zero", css: { left: `${place(0)}%` } }) : null),
    h("b", {}, kind === "signed" ? formatSigned(value) : value == null ? "–" : formatNumber(value)));
}

/** Show pieces of a text as a block: formulas drawn, thinking collapsed. */
export function showText(pieces, className = "text") {
  return h("div", { class: className, dir: "auto" }, renderPieces(pieces ?? []));
}

/** Show a text character by character, in a box that scrolls. */
export function showRaw(name, text) {
  return h("pre", { class: "raw", tabindex: "0", role: "region", "aria-label": `${name}, raw` }, text ?? "");
}

/** Show an answer's text, or say that it is empty. */
export function showAnswer(answer) {
  const body = answer.text === "" ? h("p", { class: "note" }, "The answer is empty.") : showText(answer.pieces);
  const cut = answer.cut ? h("p", { class: "note" }, "The text is too long for a page; it is cut here.") : null;
  return [body, cut];
}

/** Name a problem by its id, which links to the problem through training. */
export function nameProblem(where, group) {
  if (group.id == null) return "";
  return isHeld("problem", { run: where.run, id: group.id })
    ? h("a", { href: link(["run", where.run, "problem", String(group.id)]), title: "This problem through training" }, String(group.id))
    : String(group.id);
}

/** Show the problem above its answers: question, gold answer and, collapsed, the prompt as the model reads it. */
export function showProblem(group, { prompt = null, demonstration = null } = {}) {
  return h("div", { class: "problem-card" },
    showText(group.question_pieces ?? [{ text: group.question ?? "" }], "text question"),
    group.gold == null && !group.gold_pieces ? null
      : h("div", { class: "gold" }, h("b", {}, "gold "), showText(group.gold_pieces ?? [{ text: String(group.gold) }], "text")),
    demonstration ? h("details", {}, h("summary", {}, "demonstration"), showText(demonstration, "text")) : null,
    prompt ? h("details", {}, h("summary", {}, "prompt as the model reads it"), showRaw("Prompt", prompt)) : null);
}

/** Open or close all collapsible thinking below `root`. */
export function toggleThoughts(root) {
  const folds = [...root.querySelectorAll("details.thought")];
  const open = folds.some((fold) => !fold.open);
  for (const fold of folds) fold.open = open;
  return folds.length;
}

/** Build a button. */
export function makeButton(label, onClick, props = {}) {
  return h("button", { type: "button", ...props, on: { click: onClick } }, label);
}

/** Build a labelled choice; `choices` are [value, label, disabled?]. */
export function makeSelect(label, choices, value, onChange) {
  const id = `choice-${(made.count += 1)}`;
  const options = choices.map(([choice, text, disabled]) => h("option", {
    value: choice, selected: String(choice) === String(value), disabled: Boolean(disabled),
  }, text));
  return h("span", { class: "choice" }, h("label", { for: id }, label),
    h("select", { id, on: { change: (event) => onChange(event.target.value) } }, options));
}

/** Link the neighbours of a page: `previous` and `next` are {href, label} or null. */
export function showNeighbours(name, previous, next) {
  const show = (side, arrow, rel) =>
    side ? h("a", { href: side.href, rel }, arrow === "←" ? `← ${side.label}` : `${side.label} →`)
      : h("span", { class: "none" }, arrow === "←" ? "← none before" : "none after →");
  return h("nav", { class: "neighbours", "aria-label": name }, show(previous, "←", "prev"), show(next, "→", "next"));
}
