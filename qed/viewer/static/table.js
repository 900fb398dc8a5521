/* A table of rows: sorted by its headers, navigated with keys, and drawn only where it is visible. */

import { h, replace } from "./dom.js";

const ROW = 36; // pixels of a row in a long table
const AHEAD = 12; // rows that are drawn above and below the visible ones
const LONG = 200; // rows from which only visible ones are drawn

/**
 * Build a table.
 *
 * `columns` have `key`, `label`, `about?`, `value(row)` for sorting, `show?(row)` for the cell, `numeric?`, `wide?` if a narrow window leaves it out. The caller sorts:
 * `onSort({key, down})`, then `setRows`. `link(row)` is the address of a row, on its first cell; `onOpen(row)` is called by
 * Enter and by a click. `height` is that of a long table in pixels.
 *
 * Returns `{element, setRows, move(delta), open(), selected()}`.
 */
export function createTable(options) {
  const table = {
    ...options, rows: options.rows ?? [], at: -1, first: -1, last: -1, sort: options.sort ?? { key: "", down: false },
    head: h("thead", {}), body: h("tbody", {}),
  };
  table.element = h("div", {
    class: "table-scroll", tabindex: "0", role: "region", "aria-label": options.caption,
    on: { scroll: () => draw(table, false), keydown: (event) => handleKey(table, event) },
  }, h("table", { class: "rows", "aria-rowcount": "-1" }, h("caption", {}, options.caption), table.head, table.body));
  drawHead(table);
  const setRows = (rows) => {
    const kept = table.rows[table.at];
    table.rows = rows;
    table.at = kept?.key === undefined ? rows.indexOf(kept) : rows.findIndex((row) => row.key === kept.key);
    draw(table, true);
  };
  setRows(table.rows);
  requestAnimationFrame(() => draw(table, true)); // the height is known once it is in the page
  return {
    element: table.element, setRows,
    move: (delta) => move(table, delta),
    open: () => open(table, table.rows[table.at]),
    selected: () => table.rows[table.at] ?? null,
  };
}

/** Sort rows by a column: numbers by size, texts alphabetically, and rows without a value last. */
export function sortByColumn(rows, columns, { key, down }) {
  const column = columns.find((one) => one.key === key);
  if (!column) return rows;
  const keyed = rows.map((row) => [column.value(row), row]);
  keyed.sort(([a], [b]) => {
    const lacks = Number(isMissing(a)) - Number(isMissing(b));
    if (lacks || isMissing(a)) return lacks;
    const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
    return down ? -order : order;
  });
  return keyed.map(([, row]) => row);
}

function isMissing(value) {
  return value === null || value === undefined || value === "" || Number.isNaN(value);
}

function drawHead(table) {
  const { key, down } = table.sort;
  replace(table.head, h("tr", {}, table.columns.map((column) => {
    const sorted = column.key === key ? (down ? "descending" : "ascending") : null;
    const arrow = sorted ? h("span", { "aria-hidden": "true" }, down ? " ↓" : " ↑") : null;
    const choose = () => {
      // Numbers are most useful in descending order, names in ascending order.
      const next = column.key === table.sort.key ? !table.sort.down : Boolean(column.numeric);
      table.sort = { key: column.key, down: next };
      drawHead(table);
      table.head.querySelectorAll("button")[table.columns.filter(canSort).indexOf(column)]?.focus();
      table.onSort?.(table.sort);
    };
    const label = canSort(column)
      ? h("button", { type: "button", on: { click: choose } }, column.label, arrow)
      : column.label || h("span", { class: "unseen" }, column.key);
    return h("th", { scope: "col", title: column.about, "aria-sort": sorted, class: [column.numeric ? "" : "word", column.wide ? "wide-only" : ""].filter(Boolean).join(" ") || null }, label);
  })));

  function canSort(column) {
    return Boolean(table.onSort && column.value && column.label);
  }
}

function draw(table, force) {
  const { element, rows } = table;
  const long = rows.length > LONG;
  element.classList.toggle("long", long);
  element.style.setProperty("max-height", long ? `${table.height ?? 560}px` : "none");
  const head = table.head.offsetHeight || ROW;
  const seen = Math.ceil((element.clientHeight || table.height || 560) / ROW);
  const first = long ? Math.max(0, Math.floor((element.scrollTop - head) / ROW) - AHEAD) : 0;
  const last = long ? Math.min(rows.length, first + seen + 2 * AHEAD) : rows.length;
  if (!force && first === table.first && last === table.last) return;
  table.first = first;
  table.last = last;
  element.firstElementChild.setAttribute("aria-rowcount", String(rows.length + 1));
  const had = table.body.contains(document.activeElement);
  const shown = rows.slice(first, last).map((row, at) => buildRow(table, row, first + at));
  replace(table.body, buildSpace(table, first), shown, buildSpace(table, rows.length - last));
  if (had && table.at >= first && table.at < last) focusRow(table);
}

function buildSpace(table, count) {
  return count > 0
    ? h("tr", { class: "space", "aria-hidden": "true" }, h("td", { colspan: String(table.columns.length), css: { height: `${count * ROW}px` } }))
    : null;
}

function buildRow(table, row, number) {
  const cells = table.columns.map((column, at) => {
    const shown = column.show ? column.show(row) : column.value(row);
    const content = shown === null || shown === undefined || shown === "" ? "–" : shown;
    const kind = `${column.numeric ? "number" : "word"}${column.wide ? " wide-only" : ""}`;
    const title = typeof content === "string" && content.length > 40 ? content : null; // texts that do not fit are cut
    if (at > 0) return h("td", { class: kind, title, "data-label": column.label }, content);
    const href = table.link?.(row);
    return h("th", { scope: "row", class: kind }, href ? h("a", { href }, content) : content);
  });
  return h("tr", {
    "aria-rowindex": String(number + 2), class: number === table.at ? "at" : null,
    on: { click: (event) => clickRow(table, number, event) },
  }, cells);
}

function clickRow(table, number, event) {
  if (event.target.closest("a, button, input, label, select, summary") || String(window.getSelection())) return;
  mark(table, number);
  open(table, table.rows[number]);
}

function handleKey(table, event) {
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 };
  if (event.key in steps && event.target === table.element) {
    event.preventDefault();
    move(table, steps[event.key]);
  }
}

function move(table, delta) {
  if (!table.rows.length) return;
  mark(table, Math.max(0, Math.min(table.rows.length - 1, table.at < 0 && delta > 0 ? delta - 1 : table.at + delta)));
  const { element, at } = table;
  if (table.rows.length > LONG) {
    const head = table.head.offsetHeight;
    const top = at * ROW;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + ROW + head > element.scrollTop + element.clientHeight) element.scrollTop = top + ROW + head - element.clientHeight;
    draw(table, true);
  }
  focusRow(table);
}

function mark(table, number) {
  table.at = number;
  for (const row of table.body.rows) row.classList.toggle("at", row.getAttribute("aria-rowindex") === String(number + 2));
}

function focusRow(table) {
  const row = [...table.body.rows].find((one) => one.classList.contains("at"));
  const target = row?.querySelector("a") ?? row;
  if (target && !target.matches("a")) target.setAttribute("tabindex", "-1");
  target?.focus({ preventScroll: table.rows.length > LONG });
}

function open(table, row) {
  if (row === undefined) return;
  if (table.onOpen) table.onOpen(row);
  else if (table.link) window.location.hash = table.link(row);
}
