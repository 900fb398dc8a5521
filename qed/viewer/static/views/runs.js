import { get, isStatic } from "../api.js";
import { sparkline } from "../chart.js";
import { copyButtons } from "../copy.js";
import { h, replace } from "../dom.js";
import { formatAge, formatInterval, formatNumber } from "../format.js";
import { go, link } from "../router.js";
import { createTable, sortByColumn } from "../table.js";
import { STATUSES, showStatus } from "./status.js";

const REFRESH = 5000; // milliseconds between two polls while a run is live
const MOST_COMPARED = 12;

/** Show all runs: a table to sort, filter and select runs for a comparison. */
export async function renderRuns(context) {
  const reply = await get("runs", {}, context.signal);
  const view = {
    context, reply, chosen: new Set([context.query.run ?? []].flat()), text: context.query.q ?? "", status: context.query.status ?? "",
    sort: { key: context.query.sort ?? "updated", down: context.query.sort ? context.query.down === "1" : true }, timer: null,
  };
  view.facts = h("p", { class: "facts", role: "status" });
  view.compare = h("button", { type: "button", on: { click: () => compareChosen(view) } }, "Compare");
  view.search = h("input", {
    type: "search", placeholder: "name, method, model, task", "aria-label": "Filter the runs", value: view.text,
    on: { input: (event) => change(view, { text: event.target.value }) },
  });
  view.table = createTable({
    caption: "Runs", columns: listColumns(view), rows: [], sort: view.sort, link: (card) => link(["run", card.key]),
    onOpen: (card) => go(["run", card.key]), onSort: (sort) => change(view, { sort }), height: 720,
  });
  const trouble = reply.problems.length
    ? h("details", { class: "trouble" }, h("summary", {}, reply.problems.length === 1 ? "1 folder is not shown" : `${formatNumber(reply.problems.length)} folders are not shown`),
      h("ul", {}, reply.problems.map((one) => h("li", {}, `${one.folder}: ${one.reason}`))))
    : null;
  const element = h("article", { class: "runs-view" },
    h("h1", {}, "Runs"), view.facts,
    h("div", { class: "bar" }, view.search, buildStatusFilter(view), view.compare), trouble, view.table.element,
    copyButtons({ name: "the runs", json: () => listShown(view), rows: () => listRows(view) }));
  refresh(view);
  watch(view);
  return {
    title: "Runs", element, dispose: () => clearTimeout(view.timer),
    keys: {
      j: { about: "Next row", run: () => view.table.move(1) },
      k: { about: "Previous row", run: () => view.table.move(-1) },
      Enter: { about: "Open", run: () => view.table.open() },
      x: { about: "Choose the row for a comparison", run: () => choose(view, view.table.selected()) },
      c: { about: "Compare the chosen runs", run: () => compareChosen(view) },
      "/": { about: "Search", run: () => view.search.focus() },
    },
  };
}

function listColumns(view) {
  return [
    { key: "name", label: "run", value: (card) => card.key, show: showName },
    { key: "choose", label: "", value: (card) => Number(view.chosen.has(card.key)), show: (card) => buildBox(view, card) },
    { key: "status", label: "status", value: (card) => STATUSES.indexOf(card.status), show: showStatus },
    { key: "method", label: "method", wide: true, value: (card) => card.method },
    { key: "model", label: "model", wide: true, value: (card) => card.model },
    { key: "task", label: "task", wide: true, value: (card) => card.task },
    { key: "step", label: "steps", numeric: true, wide: true, value: (card) => card.step, show: showSteps },
    {
      key: "accuracy", label: "accuracy [95 %]", about: "The last evaluation: the share of right answers with its interval over problems",
      numeric: true, value: (card) => card.accuracy?.value, show: showAccuracy,
    },
    { key: "accuracies", label: "", wide: true, value: () => null, show: (card) => showSpark(card, ["accuracy"]) },
    { key: "reward", label: "reward", numeric: true, wide: true, value: (card) => card.reward, show: (card) => formatNumber(card.reward) },
    { key: "spark", label: "", wide: true, value: () => null, show: (card) => showSpark(card, ["reward/mean", "train/loss"]) },
    { key: "alarms", label: "alarms", numeric: true, wide: true, value: (card) => card.alarms.length, show: showAlarms },
    { key: "updated", label: "written", numeric: true, wide: true, value: (card) => card.updated, show: (card) => formatAge(card.updated) },
  ];
}

function showSteps(card) {
  return card.planned && card.planned !== card.step ? `${formatNumber(card.step)} of ${formatNumber(card.planned)}` : formatNumber(card.step);
}

function showAccuracy(card) {
  if (!card.accuracy) return "–";
  const { task, decoding, step, n } = card.accuracy;
  return h("span", { title: `${task}, ${decoding}, step ${step}, n = ${n}` }, formatInterval(card.accuracy));
}

/** Show the name; in a narrow window, which has no space for their columns, with the most important other facts. */
function showName(card) {
  const alarms = card.alarms.length ? `▲ ${formatNumber(card.alarms.length)}` : "";
  const facts = [card.method, card.task, `step ${showSteps(card)}`, alarms, formatAge(card.updated)];
  return [card.key, h("small", { class: "narrow-only" }, facts.filter(Boolean).join(" · "))];
}

function showSpark(card, names) {
  const name = names.find((one) => (card.sparks[one] ?? []).length > 1);
  return name ? h("span", { class: "spark-cell", title: name }, sparkline(card.sparks[name], name)) : "–";
}

function showAlarms(card) {
  if (!card.alarms.length) return "0";
  const text = card.alarms.map((alarm) => `step ${alarm.step}: ${alarm.message || alarm.name}`).join("\n");
  return h("span", { class: "alarm", title: text }, `▲ ${card.alarms.length}`);
}

function buildBox(view, card) {
  return h("input", {
    type: "checkbox", checked: view.chosen.has(card.key), "aria-label": `Choose ${card.key} for a comparison`,
    on: { change: () => choose(view, card) },
  });
}

function buildStatusFilter(view) {
  const set = (event) => change(view, { status: event.target.value });
  return h("label", {}, "Status ", h("select", { on: { change: set } },
    ["", ...STATUSES].map((one) => h("option", { value: one, selected: one === view.status }, one || "all"))));
}

function choose(view, card) {
  if (!card) return;
  if (view.chosen.has(card.key)) view.chosen.delete(card.key);
  else if (view.chosen.size < MOST_COMPARED) view.chosen.add(card.key);
  view.context.setQuery({ run: [...view.chosen] });
  refresh(view);
}

function compareChosen(view) {
  if (view.chosen.size > 1) go(["compare"], { run: [...view.chosen] });
}

function change(view, changes) {
  Object.assign(view, changes);
  view.context.setQuery({ q: view.text, status: view.status, sort: view.sort.key, down: view.sort.down ? "1" : null });
  refresh(view);
}

function listShown(view) {
  const words = view.text.toLowerCase().split(/\s+/).filter(Boolean);
  const cards = view.reply.runs.filter((card) => {
    const text = [card.key, card.method, card.model, card.task, card.status].join(" ").toLowerCase();
    return (!view.status || card.status === view.status) && words.every((word) => text.includes(word));
  });
  return sortByColumn(cards, listColumns(view), view.sort);
}

function listRows(view) {
  const columns = ["run", "status", "method", "model", "task", "step", "planned", "accuracy", "lo", "hi", "n", "reward", "alarms"];
  const rows = listShown(view).map((card) => [
    card.key, card.status, card.method, card.model, card.task, card.step, card.planned, card.accuracy?.value, card.accuracy?.lo,
    card.accuracy?.hi, card.accuracy?.n, card.reward, card.alarms.length,
  ]);
  return { columns, rows };
}

function refresh(view) {
  const cards = listShown(view);
  view.table.setRows(cards);
  const live = cards.filter((card) => card.status === "live").length;
  const all = view.reply.runs.length;
  replace(view.facts, `${formatNumber(cards.length)}${cards.length === all ? "" : ` of ${formatNumber(all)}`} runs`,
    live ? `, ${live} live` : "", view.chosen.size ? `, ${view.chosen.size} chosen` : "");
  replace(view.compare, view.chosen.size > 1 ? `Compare ${view.chosen.size} runs` : "Choose runs to compare");
  view.compare.disabled = view.chosen.size < 2;
}

/** Poll again after a while, as long as a run is live. */
function watch(view) {
  if (isStatic() || !view.reply.runs.some((card) => card.status === "live")) return;
  view.timer = setTimeout(async () => {
    try {
      view.reply = await get("runs", {}, view.context.signal);
      if (!view.table.element.contains(document.activeElement)) refresh(view);
    } catch (error) {
      if (error.name === "AbortError") return;
    }
    watch(view);
  }, REFRESH);
}
