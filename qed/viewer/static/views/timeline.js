import { h, replace } from "../dom.js";
import { formatNumber } from "../format.js";
import { countWords } from "./figures.js";
import { makeButton } from "./texts.js";
import { findWhere, loadAnswers, nameSeries, nameVisit, writeAnswer } from "./visits.js";
import { linkPlace } from "./where.js";

const MOST_AT_ONCE = 40;
const MOST_ANSWERS = 64;

/**
 * Show the visits of a problem in a list: step, share right and a sign for each answer, loaded when it becomes visible.
 *
 * Returns {element, refresh(visits), mark(chosen), reveal(step), move(way)}; a click on a sign calls `onChoose(name)`.
 */
export function createTimeline(view, onChoose) {
  const list = h("ol", { class: "visits" });
  const more = h("p", { class: "actions" });
  const state = { view, onChoose, list, more, visits: [], shown: 0, items: new Map(), at: -1, chosen: [], watcher: null };
  state.watcher = watch(state);
  return {
    element: h("div", {}, list, more),
    refresh: (visits) => refresh(state, visits),
    mark: (chosen) => {
      state.chosen = chosen;
      for (const item of state.items.values()) markItem(item, chosen);
    },
    reveal: (step) => reveal(state, step),
    move: (way) => focusItem(state, Math.max(0, Math.min(state.visits.length - 1, state.at + way))),
  };
}

function watch(state) {
  const see = (entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      state.watcher.unobserve(entry.target);
      fill(state, state.items.get(entry.target.dataset.key));
    }
  };
  return new IntersectionObserver(see, { rootMargin: "200px" });
}

function refresh(state, visits) {
  state.watcher.disconnect();
  state.items.clear();
  state.visits = visits;
  state.shown = 0;
  state.at = -1;
  replace(state.list);
  showMore(state, MOST_AT_ONCE);
}

function showMore(state, count) {
  const added = state.visits.slice(state.shown, state.shown + count);
  for (const visit of added) {
    const item = buildItem(state.view, visit);
    state.items.set(item.key, item);
    state.list.append(item.element);
    state.watcher.observe(item.element);
  }
  state.shown += added.length;
  const rest = state.visits.length - state.shown;
  replace(state.more, rest === 0 ? null : [
    makeButton(`${formatNumber(Math.min(rest, MOST_AT_ONCE))} more`, () => showMore(state, MOST_AT_ONCE), { class: "small" }),
    h("span", { class: "note" }, ` of ${countWords(rest, "further step")} with answers`),
  ]);
}

function buildItem(view, visit) {
  const { reply } = view;
  const isSame = (other) => other && other.step === visit.step && other.group === visit.group && nameSeries(other) === nameSeries(visit);
  const key = writeAnswer(visit, 0);
  const signs = h("span", { class: "signs", role: "group", "aria-label": `Answers of ${nameVisit(visit)}` });
  const mark = isSame(reply.first_right) ? h("b", { class: "mark-right" }, "first right")
    : reply.forgotten.some(isSame) ? h("b", { class: "mark-wrong" }, "forgotten") : null;
  const share = visit.n ? visit.n_right / visit.n : 0;
  const element = h("li", { "data-key": key, tabindex: "-1", class: visit.task ? "visit evaluated" : "visit" },
    h("a", { class: "step", href: linkPlace(findWhere(view.run, visit), visit.group) }, `step ${visit.step}`),
    h("span", { class: "series" }, nameSeries(visit)),
    h("span", { class: "track", "aria-hidden": "true" }, h("span", { class: "fill right", css: { width: `${share * 100}%` } })),
    h("span", { class: "count" }, visit.n ? `${visit.n_right} of ${visit.n}` : "not graded", mark ? [" ", mark] : null),
    signs);
  return { key, visit, element, signs };
}

async function fill(state, item) {
  if (!item) return;
  replace(item.signs, h("span", { class: "note" }, "…"));
  item.signs.setAttribute("aria-busy", "true");
  try {
    const answers = await loadAnswers(state.view, item.visit);
    replace(item.signs, answers.slice(0, MOST_ANSWERS).map((answer) => showSign(state, item.visit, answer)),
      answers.length > MOST_ANSWERS ? h("span", { class: "note" }, ` and ${answers.length - MOST_ANSWERS} more`) : null);
    markItem(item, state.chosen);
  } catch (error) {
    replace(item.signs, h("span", { class: "note" }, `not read: ${error.message}`));
  } finally {
    item.signs.removeAttribute("aria-busy");
  }
}

function showSign(state, visit, answer) {
  const name = writeAnswer(visit, answer.answer);
  const [kind, sign, word] = answer.correct == null ? ["", "–", "not graded"] : answer.correct ? ["right", "✓", "right"] : ["wrong", "✗", "wrong"];
  const written = answer.source && !["policy", "greedy"].includes(answer.source) ? `, ${answer.source}` : "";
  const known = [answer.extracted == null ? null : `extracted ${answer.extracted}`, answer.n_tokens == null ? null : `${answer.n_tokens} tokens`];
  return h("button", {
    type: "button", class: `sign ${kind}${written ? " written" : ""}`, "data-name": name, "aria-pressed": "false",
    "aria-label": `Answer ${answer.answer + 1} of ${nameVisit(visit)}: ${word}${written}`, title: known.filter(Boolean).join(" · ").slice(0, 300),
    on: { click: () => state.onChoose(name) },
  }, h("span", {}, sign), h("sup", { class: "letter" }));
}

function markItem(item, chosen) {
  for (const button of item.signs.querySelectorAll("button.sign")) {
    const letters = ["A", "B"].filter((letter, at) => chosen[at] === button.dataset.name).join("");
    button.setAttribute("aria-pressed", String(letters !== ""));
    button.querySelector(".letter").textContent = letters;
  }
}

/** Scroll to the visit nearest to a step. */
function reveal(state, step) {
  if (state.visits.length === 0) return;
  const near = state.visits.reduce((best, visit, at) => (Math.abs(visit.step - step) < Math.abs(state.visits[best].step - step) ? at : best), 0);
  focusItem(state, near);
}

function focusItem(state, at) {
  if (state.visits.length === 0) return;
  if (at >= state.shown) showMore(state, at - state.shown + MOST_AT_ONCE);
  state.at = at;
  const item = state.items.get(writeAnswer(state.visits[at], 0));
  item?.element.scrollIntoView({ block: "nearest" });
  item?.element.focus({ preventScroll: true });
}
