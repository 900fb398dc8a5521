import { renderDiff } from "../diff.js";
import { h, replace } from "../dom.js";
import { redraw } from "./figures.js";
import { makeButton, makeSelect, showVerdict } from "./texts.js";
import { findWhere, loadAnswers, nameSeries, nameVisit, readAnswer, writeAnswer } from "./visits.js";
import { linkPlace } from "./where.js";

const DEMONSTRATION = "demonstration";

/**
 * Show the difference of two chosen answers of a problem; the choice (`a`, `b`, `diff`) is kept in the URL.
 *
 * Returns {element, choose(name), chosen(), preset(name), start(), onChange(call)}.
 */
export function createChoice(view) {
  const { query } = view.context;
  const state = { view, a: query.a ?? "", b: query.b ?? "", mode: query.diff ?? "inline", number: 0, calls: [] };
  const places = { tools: h("div", {}), shown: h("div", { class: "chosen", "aria-live": "polite" }) };
  Object.assign(state, { places });
  return {
    element: h("div", {}, places.tools, places.shown),
    choose: (name) => choose(state, name),
    chosen: () => [state.a, state.b],
    preset: (name) => usePreset(state, name),
    start: () => (state.a || state.b ? show(state) : usePreset(state, listPresets(view)[0]?.[0], false)),
    onChange: (call) => state.calls.push(call),
  };
}

/** Choose an answer: the first click is A, the second B, a third starts over; a click on a chosen answer deselects it. */
function choose(state, name) {
  if (state.a === name) change(state, { a: state.b, b: "" });
  else if (state.b === name) change(state, { b: "" });
  else if (!state.a) change(state, { a: name });
  else if (!state.b) change(state, { b: name });
  else change(state, { a: name, b: "" });
}

function change(state, changes, isOwn = true) {
  Object.assign(state, changes);
  if (isOwn) state.view.context.setQuery({ a: state.a || null, b: state.b || null, diff: state.mode === "inline" ? null : state.mode });
  show(state);
}

/** List the pairs of visits that are most useful: [name, label, [visit, wish], [visit, wish]]. */
function listPresets({ reply, visits }) {
  const presets = [];
  const isSame = (a, b) => a.step === b.step && a.group === b.group && nameSeries(a) === nameSeries(b);
  const findBefore = (visit, fits) => {
    const at = visits.findIndex((each) => isSame(each, visit));
    const before = visits.slice(0, Math.max(0, at)).filter(fits);
    return before.filter((each) => nameSeries(each) === nameSeries(visit)).at(-1) ?? before.at(-1);
  };
  const first = reply.first_right;
  const wrong = first ? findBefore(first, ({ n, n_right: right }) => right < n) : null;
  if (wrong) presets.push(["right", "before and after the first right one", [wrong, false], [first, true]]);
  const lost = reply.forgotten[0];
  const learned = lost ? findBefore(lost, ({ n_right: right }) => right > 0) : null;
  if (learned) presets.push(["forgotten", "before and after it was forgotten", [learned, true], [lost, false]]);
  const last = visits.at(-1);
  const begin = visits.find((each) => nameSeries(each) === nameSeries(last));
  if (last && begin !== last) presets.push(["ends", "first and last", [begin, null], [last, null]]);
  const right = visits.filter((each) => each.n_right > 0).at(-1);
  if (reply.demonstration && right) presets.push([DEMONSTRATION, "demonstration and last right one", [DEMONSTRATION], [right, true]]);
  return presets;
}

async function usePreset(state, name, isOwn = true) {
  const found = listPresets(state.view).find((preset) => preset[0] === name);
  if (!found) return show(state);
  state.number += 1;
  const own = state.number;
  try {
    const [a, b] = await Promise.all(found.slice(2).map(([visit, wish]) => pickAnswer(state.view, visit, wish)));
    if (own === state.number) change(state, { a, b }, isOwn);
  } catch (error) {
    if (own === state.number) showTrouble(state, error);
  }
}

async function pickAnswer(view, visit, wish) {
  if (visit === DEMONSTRATION) return DEMONSTRATION;
  const answers = await loadAnswers(view, visit);
  const found = answers.find((answer) => wish === null || answer.correct === wish) ?? answers[0];
  return found ? writeAnswer(visit, found.answer) : "";
}

async function readText(view, name) {
  if (!name) return null;
  if (name === DEMONSTRATION) return view.reply.demonstration ? { label: "demonstration", text: view.reply.demonstration } : null;
  const found = readAnswer(view.visits, name);
  if (!found) return null;
  const answer = (await loadAnswers(view, found.visit)).find((each) => each.answer === found.answer);
  if (!answer) return null;
  const label = `step ${found.visit.step}, answer ${answer.answer + 1}`;
  return { label, text: answer.text ?? "", answer, visit: found.visit };
}

async function show(state) {
  state.number += 1;
  const own = state.number;
  const { view, places } = state;
  showTools(state);
  for (const call of state.calls) call();
  try {
    const [a, b] = await Promise.all([readText(view, state.a), readText(view, state.b)]);
    if (own !== state.number) return;
    if (!a && !b) return void replace(places.shown, h("p", { class: "note" }, "Click the signs of two answers: their difference appears here."));
    const body = a && b ? renderDiff(a.text, b.text, { mode: state.mode, labels: ["A", "B"] }) : h("pre", {}, (a ?? b).text);
    replace(places.shown, h("dl", { class: "texts" }, showHead(view, "A", a), showHead(view, "B", b)), body,
      a && b ? null : h("p", { class: "note" }, "Click the sign of another answer to see what differs."));
  } catch (error) {
    if (own === state.number) showTrouble(state, error);
  }
}

function showTrouble({ places }, error) {
  replace(places.shown, h("p", { class: "trouble", role: "alert" }, `The answers could not be read: ${error.message}`));
}

function showHead(view, letter, text) {
  if (!text) return null;
  const name = text.visit ? h("a", { href: linkPlace(findWhere(view.run, text.visit), text.visit.group, text.answer.answer) }, `${nameVisit(text.visit)}, answer ${text.answer.answer + 1}`) : text.label;
  return [h("dt", {}, letter), h("dd", {}, name, text.answer ? [" ", showVerdict(text.answer.correct)] : null)];
}

function showTools(state) {
  const presets = listPresets(state.view);
  redraw(state.places.tools,
    h("div", { class: "presets" }, presets.map(([name, label]) => makeButton(label, () => usePreset(state, name), { class: "small" }))),
    state.a && state.b ? h("div", { class: "tools" },
      makeSelect("Shown", [["inline", "in one text"], ["side", "side by side"]], state.mode, (mode) => change(state, { mode })),
      makeButton("Swap", () => change(state, { a: state.b, b: state.a }), { class: "small" }),
      makeButton("Clear", () => change(state, { a: "", b: "" }), { class: "small" })) : null);
}
