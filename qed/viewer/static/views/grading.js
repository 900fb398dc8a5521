import { get, isStatic } from "../api.js";
import { h, replace } from "../dom.js";
import { makeButton, showFlag, showVerdict } from "./texts.js";

const TIERS = {
  "": "a reward that names no tier, such as your own",
  http: "the score of a server",
  model: "the score of a reward model",
  foreign: "a function of the caller",
  likelihood: "the likelihoods of the choices",
  string: "the texts decide",
  typed: "the values that were read decide",
  symbolic: "math-verify decides, in a separate process",
  bound: "refused before any arithmetic",
  timeout: "math-verify took too long",
  error: "math-verify failed",
  unknown: "no tier can read it",
  extract: "no answer could be extracted",
  format: "no answer could be extracted",
};
const SIDES = { text: "text", cleaned: "cleaned", tokens: "tokens", choice: "choice letter", values: "values", trouble: "not read because" };

/** Show the extracted answer beside the gold answer, with the grader's steps on demand. Returns {element, reveal()}. */
export function createGrading(where, data) {
  const { answer, group } = data;
  const steps = h("div", { class: "grading-steps", "aria-live": "polite" });
  const state = { asked: false };
  const open = async () => {
    if (state.asked || isStatic()) return;
    state.asked = true;
    replace(steps, h("p", { class: "note" }, "The grader reads both answers again …"));
    try {
      replace(steps, showSteps(await get("explain", { ...where, group: group.group, answer: answer.answer })));
    } catch (error) {
      state.asked = false;
      replace(steps, h("p", { class: "trouble", role: "alert" }, `The grader's steps cannot be shown: ${error.message}`));
    }
  };
  const table = h("table", { class: "grading words" },
    h("caption", {}, "What was graded"),
    h("tbody", {},
      showRow("gold", group.gold), showRow("extracted", answer.extracted),
      showRow("decided by", describeTier(answer.tier)),
      showRow("reason", answer.reason)));
  const button = isStatic()
    ? h("p", { class: "note" }, "A copy does not contain the grader's steps; `qed view` shows them.")
    : makeButton("Show the grader's steps", open, { class: "small" });
  const element = h("div", { class: "grading-box" }, table, button, steps);
  const reveal = () => open().then(() => element.scrollIntoView({ block: "nearest" }));
  return { element, reveal };
}

function describeTier(tier) {
  if (tier == null) return null;
  return (tier === "" ? "" : `${tier}: `) + (TIERS[tier] ?? "a tier of your own reward, or of another version");
}

function showRow(name, value) {
  const cell = value == null || value === "" ? h("span", { class: "note" }, "none") : h("code", {}, String(value));
  return h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, cell));
}

function showSteps(reply) {
  if (!reply.gold) return h("p", { class: "note" }, `There are no steps to show. ${reply.reason}`);
  const rows = Object.entries(SIDES)
    .filter(([name]) => hasContent(reply.gold[name]) || hasContent(reply.answer[name]))
    .map(([name, label]) => h("tr", {}, h("th", { scope: "row" }, label), h("td", {}, showCell(reply.gold[name])), h("td", {}, showCell(reply.answer[name]))));
  return [
    h("table", { class: "grading words" },
      h("caption", {}, "The grader's steps, repeated for this page"),
      h("thead", {}, h("tr", {}, ["", "gold", "answer"].map((name) => (name ? h("th", { scope: "col" }, name) : h("td", {}))))),
      h("tbody", {}, rows)),
    h("p", {}, showVerdict(reply.correct), ` by tier ${reply.tier} (${TIERS[reply.tier] ?? "unknown"}): ${reply.reason}`),
    showChange(reply),
  ];
}

function showChange({ stored, correct, tier }) {
  if (!stored || (stored.correct === correct && stored.tier === tier)) return null;
  return h("p", { class: "trouble" },
    `The run recorded another verdict: correct ${showFlag(stored.correct)} by tier ${stored.tier} (${stored.reason}). `,
    "Its grader may be your own or of another version, or its settings differ.");
}

function hasContent(value) {
  return Array.isArray(value) ? value.length > 0 : value != null && value !== "";
}

function showCell(value) {
  if (!hasContent(value)) return "–";
  return (Array.isArray(value) ? value : [value]).map((item) => h("code", { class: "line" }, String(item)));
}
