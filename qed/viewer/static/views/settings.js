import { get } from "../api.js";
import { copyButtons } from "../copy.js";
import { h, replace } from "../dom.js";
import { createTable, sortByColumn } from "../table.js";

/** Show the settings of a run: where each comes from, and how they differ from those of another run. */
export async function renderSettings(context, run) {
  const { runs } = await get("runs", {}, context.signal);
  const view = { context, run, text: context.query.q ?? "", other: context.query.other ?? "", theirs: null, sort: { key: context.query.sort ?? "", down: context.query.down === "1" }, table: null };
  view.place = h("div", {});
  view.facts = h("p", { class: "facts", role: "status" });
  const search = h("input", {
    type: "search", placeholder: "name, value or origin", "aria-label": "Filter the settings", value: view.text,
    on: { input: (event) => change(view, { text: event.target.value }) },
  });
  const others = runs.filter((card) => card.key !== run.card.key);
  const picker = h("select", { on: { change: (event) => change(view, { other: event.target.value }) } },
    h("option", { value: "" }, "no other run"), others.map((card) => h("option", { value: card.key, selected: card.key === view.other }, card.key)));
  const element = h("section", { class: "settings" },
    h("div", { class: "bar" }, search, h("label", {}, "Difference to ", picker)), view.facts, view.place,
    copyButtons({ name: "the settings", json: () => listShown(view), rows: () => ({
      columns: ["setting", "value", "origin"], rows: listShown(view).map((one) => [one.key, show(one.value), one.origin]),
    }) }),
    buildEnvironment(run));
  await draw(view);
  return {
    element,
    keys: { j: { about: "Next row", run: () => view.table.move(1) }, k: { about: "Previous row", run: () => view.table.move(-1) } },
  };
}

async function change(view, changes) {
  Object.assign(view, changes);
  view.context.setQuery({ q: view.text, other: view.other });
  await draw(view);
}

async function draw(view) {
  const { other } = view;
  if (other && view.theirs?.key !== other) {
    const { settings } = await get("run", { run: other }, view.context.signal);
    if (view.other !== other) return; // another run was chosen since
    view.theirs = { key: other, values: new Map(settings.map((one) => [one.key, one.value])), all: settings };
  }
  const columns = [
    { key: "key", label: "setting", value: (one) => one.key },
    { key: "value", label: view.other ? view.run.card.key : "value", value: (one) => show(one.value) },
    view.other ? { key: "theirs", label: view.other, value: (one) => show(one.theirs) } : null,
    { key: "origin", label: "set by", value: (one) => one.origin },
  ].filter(Boolean);
  const table = createTable({
    caption: "Settings", columns, rows: sortByColumn(listShown(view), columns, view.sort), sort: view.sort, height: 640,
    onSort: (sort) => {
      view.sort = sort;
      view.context.setQuery({ sort: sort.key, down: sort.down ? "1" : null });
      table.setRows(sortByColumn(listShown(view), columns, sort));
    },
  });
  view.table = table;
  const count = listShown(view).length;
  replace(view.facts, view.other ? `${count} settings differ.` : `${count} settings.`);
  replace(view.place, table.element);
}

function listShown(view) {
  const words = view.text.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (one) => words.every((word) => `${one.key} ${show(one.value)} ${one.origin}`.toLowerCase().includes(word));
  if (!view.other) return view.run.settings.filter(matches);
  const { values, all } = view.theirs;
  const own = new Set(view.run.settings.map((one) => one.key));
  const both = view.run.settings.map((one) => ({ ...one, theirs: values.get(one.key) }));
  const more = all.filter((one) => !own.has(one.key)).map((one) => ({ key: one.key, value: undefined, theirs: one.value, origin: "" }));
  return [...both, ...more].filter((one) => show(one.value) !== show(one.theirs)).filter(matches);
}

function show(value) {
  if (value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value);
}

function buildEnvironment(run) {
  const entries = Object.entries(run.environment ?? {});
  return entries.length ? h("section", {}, h("h2", {}, "Environment"),
    h("table", { class: "words" }, h("caption", { class: "unseen" }, "Environment"),
      h("tbody", {}, entries.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, show(value))))))) : null;
}
