import { get } from "../api.js";
import { copyButtons } from "../copy.js";
import { h, replace } from "../dom.js";
import { formatNumber, formatPercent } from "../format.js";
import { countWords, showShort } from "./figures.js";
import { createSortedTable } from "./sorted_table.js";
import { makeButton } from "./texts.js";
import { linkPlace } from "./where.js";

const VALUES = {
  repetition: ["repeated", formatPercent], garbled: ["rare tokens", formatPercent], near_duplicate: ["alike", formatPercent],
  reward_without_correct: ["reward", formatNumber], truncated: ["tokens", formatNumber], zero_spread: ["answers", formatNumber],
};

/** Show the answers that the viewer's rules flag, kind by kind, below the run's alarms. */
export async function renderSuspects(context) {
  const run = context.parts[1];
  const range = readRange(context.query);
  const [reply, about] = await Promise.all([get("suspects", { run, ...range }), get("run", { run })]);
  const view = {
    context, run, range, reply, steps: about.steps ?? [], number: 0, kind: context.query.kind ?? "", table: null,
    places: { alarms: h("div", {}), facts: h("div", {}), kinds: h("div", { class: "kinds", role: "group", "aria-label": "Kinds" }), shown: h("section", { class: "kind-shown" }), copy: h("div", {}) },
  };
  const { places } = view;
  refresh(view);
  const element = h("article", { class: "suspects-view" },
    h("h1", {}, "Suspects"), h("p", { class: "note" }, "Answers that simple rules flag. A flag is a reason to read an answer, not a verdict."),
    places.alarms, view.steps.length === 0
      ? h("p", {}, "No training step of this run has saved answers, so nothing was examined.")
      : [showRange(view), places.facts, places.kinds, places.shown, places.copy]);
  return { title: `Suspects of ${run}`, element, keys: buildKeys(view) };
}

function readRange(query) {
  const range = {};
  for (const name of ["first", "last"]) if (/^\d{1,9}$/.test(query[name] ?? "")) range[name] = query[name];
  return range;
}

function showRange(view) {
  const [low, high] = [view.steps[0] ?? 0, view.steps.at(-1) ?? 0];
  const field = (name) => h("input", {
    type: "number", min: low, max: high, value: view.range[name] ?? view.reply[name], required: "",
  });
  const inputs = { first: field("first"), last: field("last") };
  const use = (range) => {
    for (const name of ["first", "last"]) if (range[name] != null) inputs[name].value = range[name];
    load(view, range).then(() => ["first", "last"].forEach((name) => (inputs[name].value = range[name] ?? view.reply[name])));
  };
  const submit = (event) => {
    event.preventDefault();
    const [first, last] = [inputs.first.value, inputs.last.value].map(Number).sort((a, b) => a - b);
    use({ first: String(first), last: String(last) });
  };
  return h("form", { class: "tools", on: { submit } },
    h("label", { class: "choice" }, h("span", {}, "From step"), inputs.first), h("label", { class: "choice" }, h("span", {}, "to step"), inputs.last),
    h("button", { type: "submit", class: "small" }, "Read these steps"),
    makeButton("Last 50", () => use({}), { class: "small" }),
    view.steps.length > 50 ? makeButton(`All ${formatNumber(view.steps.length)}`, () => use({ first: String(low), last: String(high) }), { class: "small" }) : null);
}

async function load(view, range) {
  view.number += 1;
  const own = view.number;
  replace(view.places.facts, h("p", { class: "facts", role: "status" }, "Reading the steps …"));
  try {
    const reply = await get("suspects", { run: view.run, ...range });
    if (own !== view.number || view.context.signal?.aborted) return;
    Object.assign(view, { reply, range });
    view.context.setQuery({ first: range.first ?? null, last: range.last ?? null });
    refresh(view);
  } catch (error) {
    if (own !== view.number) return;
    replace(view.places.facts, h("p", { class: "trouble", role: "alert" }, `The steps could not be read: ${error.message}`));
  }
}

function refresh(view) {
  const { reply, places } = view;
  if (!reply.kinds.some(({ kind }) => kind === view.kind)) view.kind = reply.kinds.find(({ count }) => count > 0)?.kind ?? reply.kinds[0]?.kind;
  replace(places.alarms, showAlarms(view));
  replace(places.facts, showFacts(view));
  showKinds(view);
  showItems(view);
}

function showAlarms({ run, reply, steps }) {
  if (!reply.alarms.length) return null;
  const name = (step) => (steps.includes(step) ? h("a", { href: linkPlace({ run, step }) }, `Step ${step}`) : step == null ? "The run" : `Step ${step}`);
  return h("section", { class: "alarms", "aria-label": "Alarms" }, h("h2", {}, countWords(reply.alarms.length, "alarm")),
    h("ul", {}, reply.alarms.map((alarm) => h("li", {},
      h("b", {}, name(alarm.step)), " · ", h("span", { class: "alarm-name" }, String(alarm.name ?? "").replaceAll("_", " ")), h("p", {}, alarm.message ?? "")))));
}

function showFacts(view) {
  const { reply } = view;
  const facts = `${countWords(reply.n_answers, "answer")} of ${countWords(reply.n_steps ?? 0, "step")}, step ${reply.first} to ${reply.last}`;
  const rest = reply.complete === false
    ? h("p", { class: "note" }, "Not all steps have been read: the time limit or the step limit was reached. ", makeButton("Read on", () => load(view, view.range), { class: "small" }))
    : null;
  return [h("p", { class: "facts", role: "status" }, facts), rest];
}

function showKinds(view) {
  replace(view.places.kinds, view.reply.kinds.map(({ kind, label, count }) => {
    const choose = () => {
      view.kind = kind;
      Object.assign(view.context.query, { sort: undefined, down: undefined });
      view.context.setQuery({ kind, sort: null, down: null });
      for (const button of view.places.kinds.children) button.setAttribute("aria-pressed", String(button.dataset.kind === kind));
      showItems(view);
    };
    return h("button", { type: "button", class: count ? "kind" : "kind none", "data-kind": kind, "aria-pressed": String(kind === view.kind), on: { click: choose } },
      h("b", {}, formatNumber(count)), h("span", {}, label));
  }));
}

function linkItem(run, item) {
  return linkPlace({ run, step: item.step }, item.group, item.answer ?? null);
}

function showItems(view) {
  const found = view.reply.kinds.find(({ kind }) => kind === view.kind);
  const { shown, copy } = view.places;
  view.table = null;
  if (!found) return void replace(shown);
  const head = [h("h2", {}, found.label), h("p", {}, found.about)];
  if (found.items.length === 0) {
    replace(copy);
    return void replace(shown, head, h("p", { class: "note" }, "None in these steps."));
  }
  view.table = createSortedTable(view.context, {
    caption: describeItems(found), columns: listColumns(found.kind), rows: found.items, height: 560,
    link: (item) => linkItem(view.run, item),
  });
  replace(shown, head, view.table.element);
  const columns = ["step", "group", "answer", "value", "question", "detail"];
  replace(copy, copyButtons({
    name: `suspects-${found.kind}`, json: () => found.items,
    rows: () => ({ columns, rows: found.items.map((item) => columns.map((name) => item[name] ?? "")) }),
  }));
}

function describeItems({ count, items, kind }) {
  const what = kind === "zero_spread" ? "group" : "answer";
  return items.length < count ? `The ${formatNumber(items.length)} most notable of ${countWords(count, what)}` : countWords(count, what);
}

function listColumns(kind) {
  const values = VALUES[kind];
  return [
    { key: "place", label: "answer", value: (item) => item.step * 1e9 + item.group * 1e4 + (item.answer ?? 0), show: (item) => h("span", { class: "nowrap" }, describePlace(item)) },
    { key: "question", label: "question", wide: true, value: (item) => item.question, show: (item) => showShort(item.question) },
    values ? { key: "value", label: values[0], numeric: true, value: (item) => item.value, show: (item) => values[1](item.value) } : null,
    { key: "detail", label: "why", value: (item) => item.detail, show: (item) => h("span", { class: "why" }, item.detail) },
  ].filter(Boolean);
}

function describePlace({ step, group, answer }) {
  return `step ${step}, problem ${group + 1}${answer == null ? "" : `, answer ${answer + 1}`}`;
}

function buildKeys(view) {
  const turn = (way) => {
    const buttons = [...view.places.kinds.children];
    const at = buttons.findIndex((button) => button.dataset.kind === view.kind);
    buttons[at + way]?.click();
  };
  return {
    j: { about: "next answer", run: () => view.table?.move(1) },
    k: { about: "previous answer", run: () => view.table?.move(-1) },
    Enter: { about: "open the answer", run: () => view.table?.open() },
    ArrowRight: { about: "next kind", run: () => turn(1) },
    ArrowLeft: { about: "previous kind", run: () => turn(-1) },
  };
}
