import { isStatic } from "../api.js";
import { h, replace } from "../dom.js";
import { formatPercent, formatPoints } from "../format.js";

const SPACE = "\u00a0";
const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** Show a p-value as the report does: p = 0.012, or p = 3 × 10⁻⁸. */
export function formatP(value) {
  if (value == null) return "–";
  if (value < 1e-300) return `p${SPACE}<${SPACE}10⁻³⁰⁰`;
  if (value >= 1e-3) return `p${SPACE}=${SPACE}${value < 1 ? value.toFixed(3) : "1"}`;
  const [digit, exponent] = value.toExponential(0).split("e-");
  const raised = [...exponent].map((sign) => RAISED[Number(sign)]).join("");
  return `p${SPACE}=${SPACE}${digit}${SPACE}×${SPACE}10⁻${raised}`;
}

/** Adjust p-values for their number (Holm 1979); null stays null. */
export function adjustHolm(values) {
  const order = values.map((value, at) => [value, at]).filter(([value]) => value != null).sort(([one], [other]) => one - other);
  const adjusted = values.map(() => null);
  let highest = 0;
  order.forEach(([value, at], place) => {
    highest = Math.max(highest, Math.min(1, value * (order.length - place)));
    adjusted[at] = highest;
  });
  return adjusted;
}

/** Show the ends of an interval in brackets; nothing if there is none. */
export function formatBrackets(lo, hi, format = (value) => (100 * value).toFixed(1)) {
  return lo == null || hi == null ? "" : `[${format(lo)},${SPACE}${format(hi)}]`;
}

/** Show a share in bold with its interval below it. */
export function showShare(value, lo, hi) {
  return [h("b", {}, formatPercent(value)), lo == null ? null : h("small", {}, formatBrackets(lo, hi))];
}

/** Show the difference of two shares in percentage points, in bold, with its interval below it. */
export function showDifference({ difference, ci_lo: lo, ci_hi: hi }) {
  return [h("b", {}, formatPoints(difference)), lo == null ? null : h("small", {}, formatBrackets(lo, hi, formatPoints))];
}

/** Count things in words: "1 problem", "2,000 problems". */
export function countWords(count, one, many = `${one}s`) {
  return `${Number(count).toLocaleString("en")}${SPACE}${count === 1 ? one : many}`;
}

/**
 * Build a short table; on a narrow screen each row becomes a list of labelled figures.
 *
 * `rows` are `{head, cells, props?}`; a head or a cell is a string, a node or a list of them.
 */
export function showFigures({ caption, heads, rows, kind = "stack", foot = null }) {
  return h("div", { class: "figure-table" },
    h("table", { class: kind },
      caption ? h("caption", {}, caption) : null,
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head === "" ? h("span", { class: "unseen" }, "what") : head)))),
      h("tbody", {}, rows.map(({ head, cells, props = {} }) => h("tr", props,
        h("th", { scope: "row" }, head),
        cells.map((cell, at) => h("td", { "data-label": labelOf(heads[at + 1]) }, h("span", { class: "cell" }, cell))))))),
    foot ? h("p", { class: "note" }, foot) : null);
}

function labelOf(head) {
  return typeof head === "string" ? head : head.textContent;
}

/** Draw a share and its interval on a scale from 0 to 100 %. */
export function showScale(value, lo, hi, colour = 0) {
  const at = (share) => `${Math.max(0, Math.min(1, share)) * 100}%`;
  return h("span", { class: `scale c${colour}`, "aria-hidden": "true" },
    lo == null ? null : h("span", { class: "reach", css: { left: at(lo), width: `${Math.max(0, hi - lo) * 100}%` } }),
    value == null ? null : h("span", { class: "spot", css: { left: at(value) } }));
}

/** Cut a text for a cell; the whole text is its tooltip. */
export function showShort(text, most = 140) {
  const line = String(text ?? "").replaceAll(/\s+/g, " ").trim() || "(blank)";
  return h("span", { class: "question-cell wide", title: line.length > most ? line.slice(0, 1000) : null },
    line.length > most ? `${line.slice(0, most)}…` : line);
}

/** Read a query parameter that may be given several times. */
export function readMany(value) {
  return value == null || value === "" ? [] : [value].flat();
}

/**
 * Request again while a reply is not complete: the server continues reading where it stopped.
 *
 * Stops when the page is left (`signal`), on an error, or when `use(reply)` got a complete reply; a static copy
 * has only one.
 */
export async function askOn(ask, use, signal) {
  for (let turn = 0; turn < 1000 && !signal?.aborted; turn += 1) {
    const reply = await ask();
    if (signal?.aborted) return;
    use(reply);
    if (reply.complete !== false || isStatic()) return;
    await new Promise((resume) => setTimeout(resume, 150));
  }
}

/** Replace the content of a node, and focus the control at the position of the one that had the focus. */
export function redraw(node, ...children) {
  const list = () => [...node.querySelectorAll("a[href], button, input, select, summary")];
  const at = list().indexOf(document.activeElement);
  replace(node, ...children);
  if (at >= 0) list()[at]?.focus({ preventScroll: true });
}
