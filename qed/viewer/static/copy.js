/* Copying what is shown: JSON, CSV for spreadsheets, a table in Markdown. */

import { clean, h, replace } from "./dom.js";

const FORMULA = /^[=+\-@\t\r]/; // texts that a spreadsheet would treat as a formula

/** Write rows as CSV (RFC 4180); a text that a spreadsheet would run as a formula gets an apostrophe before it. */
export function toCsv({ columns, rows }) {
  return [columns, ...rows].map((row) => row.map(quoteCell).join(",")).join("\r\n") + "\r\n";
}

/** Write rows as a Markdown table; all markup in texts is escaped. */
export function toMarkdown({ columns, rows }) {
  const line = (cells) => `| ${cells.map(escapeCell).join(" | ")} |`;
  return [line(columns), line(columns.map(() => "---")), ...rows.map(line)].join("\n") + "\n";
}

/**
 * Build buttons that copy what a view shows. `json()` returns the value to copy as JSON, `rows()` the `{columns, rows}` of
 * the other two.
 */
export function copyButtons({ name, json, rows }) {
  const said = h("span", { class: "said", role: "status" });
  const add = (label, write) => h("button", {
    type: "button", "aria-label": `Copy ${name} as ${label}`, on: { click: () => copyText(write(), label, said) },
  }, label);
  return h("div", { class: "copy", role: "group", "aria-label": `Copy ${name}` }, "Copy as ",
    add("JSON", () => JSON.stringify(json(), null, 1)), add("CSV", () => toCsv(rows())),
    add("Markdown", () => toMarkdown(rows())), said);
}

/** Build a button that copies one text, such as a command. */
export function copyButton(label, text) {
  const said = h("span", { class: "said", role: "status" });
  return h("span", { class: "copy" },
    h("button", { type: "button", on: { click: () => copyText(text(), label, said) } }, label), said);
}

async function copyText(text, label, said) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copySelected(text);
  }
  replace(said, ` Copied (${label}).`);
  setTimeout(() => replace(said), 2500);
}

/** Copy by a selection, if the page has no access to the clipboard. */
function copySelected(text) {
  const area = h("textarea", { class: "hidden-copy", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

function quoteCell(value) {
  if (value === null || value === undefined) return "";
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  const safe = typeof value !== "number" && FORMULA.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function escapeCell(value) {
  if (value === null || value === undefined) return "";
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  return clean(text.replace(/\r?\n/g, " ")).replace(/[\\`*_{}[\]<>|$#!&~]/g, "\\$&");
}
