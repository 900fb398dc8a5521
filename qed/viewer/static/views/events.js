import { copyButtons } from "../copy.js";
import { h, replace } from "../dom.js";
import { formatNumber, formatTime } from "../format.js";
import { createTable, sortByColumn } from "../table.js";

const KNOWN = new Set(["time", "event", "step"]);

/** Show what happened in a run: its events with their time and step. */
export async function renderEvents(context, run) {
  const view = { events: [...run.events].reverse(), text: context.query.q ?? "", sort: { key: context.query.sort ?? "time", down: context.query.sort ? context.query.down === "1" : true } };
  const columns = [
    { key: "time", label: "time", value: (one) => one.time, show: (one) => formatTime(one.time) },
    { key: "event", label: "event", value: (one) => one.event },
    { key: "step", label: "step", numeric: true, value: (one) => one.step, show: (one) => formatNumber(one.step) },
    { key: "more", label: "what", value: describe },
  ];
  const facts = h("p", { class: "facts", role: "status" });
  const table = createTable({
    caption: "Events", columns, rows: [], sort: view.sort, height: 640,
    onSort: (sort) => {
      view.sort = sort;
      context.setQuery({ sort: sort.key, down: sort.down ? "1" : null });
      draw();
    },
  });
  const list = () => {
    const words = view.text.toLowerCase().split(/\s+/).filter(Boolean);
    return sortByColumn(view.events.filter((one) => words.every((word) => `${one.event} ${describe(one)}`.toLowerCase().includes(word))), columns, view.sort);
  };
  const draw = () => {
    const rows = list();
    table.setRows(rows);
    replace(facts, `${formatNumber(rows.length)} events, the last 2,000 at most.`);
  };
  const search = h("input", {
    type: "search", placeholder: "event or text", "aria-label": "Filter the events", value: view.text,
    on: {
      input: (event) => {
        view.text = event.target.value;
        context.setQuery({ q: view.text });
        draw();
      },
    },
  });
  draw();
  const element = h("section", { class: "events" }, h("div", { class: "bar" }, search), facts, table.element,
    copyButtons({ name: "the events", json: list, rows: () => ({
      columns: ["time", "event", "step", "what"], rows: list().map((one) => [formatTime(one.time), one.event, one.step, describe(one)]),
    }) }));
  return {
    element,
    keys: { j: { about: "Next row", run: () => table.move(1) }, k: { about: "Previous row", run: () => table.move(-1) } },
    live: {
      events: ({ events }) => {
        view.events = [...events.reverse(), ...view.events];
        draw();
      },
    },
  };
}

function describe(event) {
  return Object.entries(event).filter(([name]) => !KNOWN.has(name))
    .map(([name, value]) => (name === "message" || name === "reason" ? value : `${name} ${typeof value === "string" ? value : JSON.stringify(value)}`)).join(" · ");
}
