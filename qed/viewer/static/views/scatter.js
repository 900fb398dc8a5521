import { h, svg } from "../dom.js";
import { formatNumber } from "../format.js";
import { isCut } from "./filters.js";

const SIZE = { width: 560, height: 240, left: 44, right: 12, top: 12, bottom: 34 };
const KINDS = [
  { name: "right", label: "right", keep: (row) => row.correct === true && !isCut(row) },
  { name: "wrong", label: "wrong", keep: (row) => row.correct === false && !isCut(row) },
  { name: "ungraded", label: "not graded", keep: (row) => row.correct == null && !isCut(row) },
  { name: "cut", label: "cut off", keep: isCut },
];
const REACH = 18;

/**
 * Draw rewards against lengths, with a symbol for each kind of answer; a click opens the nearest answer.
 *
 * A kind is one path, so that thousands of answers stay cheap. `describe(row)` names the row under the pointer.
 */
export function drawScatter({ rows, describe, onPick }) {
  const known = rows.filter((row) => row.reward != null && row.n_tokens != null);
  if (known.length === 0) return h("p", { class: "note" }, "No answers with a reward and a length are shown.");
  const x = buildAxis(known.map((row) => row.n_tokens), SIZE.left, SIZE.width - SIZE.right);
  const y = buildAxis(known.map((row) => row.reward), SIZE.height - SIZE.bottom, SIZE.top);
  const points = known.map((row) => ({ row, x: x.place(row.n_tokens), y: y.place(row.reward) }));
  const kinds = KINDS.map((kind) => ({ ...kind, points: points.filter(({ row }) => kind.keep(row)) })).filter((kind) => kind.points.length);
  const readout = h("p", { class: "note", "aria-live": "off" }, "A click opens the nearest answer; the table below lists the same answers.");
  const drawing = svg("svg", {
    viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, class: "scatter", role: "img",
    "aria-label": `Reward against tokens of ${known.length} answers`,
  }, drawAxes(x, y), kinds.map((kind) => svg("path", { class: `points ${kind.name}`, d: kind.points.map(MARKS[kind.name]).join("") })));
  const nearest = (event) => findNearest(points, drawing, event);
  drawing.addEventListener("pointermove", (event) => {
    const point = nearest(event);
    if (point) readout.textContent = describe(point.row);
  });
  drawing.addEventListener("click", (event) => {
    const point = nearest(event);
    if (point) onPick(point.row);
  });
  const legend = h("ul", { class: "legend" }, kinds.map((kind) => h("li", {},
    svg("svg", { class: "swatch scatter", width: "14", height: "14", "aria-hidden": "true" },
      svg("path", { class: `points ${kind.name}`, d: MARKS[kind.name]({ x: 7, y: 7 }) })),
    `${kind.label} (${kind.points.length})`)));
  return h("div", { class: "scatter-box" }, legend, drawing, readout);
}

const MARKS = {
  right: ({ x, y }) => `M${x} ${y}m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0`,
  wrong: ({ x, y }) => `M${x - 3} ${y - 3}l6 6m0-6l-6 6`,
  ungraded: ({ x, y }) => `M${x - 3} ${y}h6m-3-3v6`,
  cut: ({ x, y }) => `M${x} ${y - 4}l4 7h-8z`,
};

function buildAxis(values, from, to) {
  const low = values.reduce((least, value) => Math.min(least, value), Infinity);
  const high = values.reduce((most, value) => Math.max(most, value), -Infinity);
  const margin = (high - low || Math.abs(high) || 1) * 0.04;
  const place = (value) => from + ((value - low + margin) / (high - low + 2 * margin)) * (to - from);
  return { low, high, place: (value) => Math.round(place(value) * 10) / 10, ticks: [...new Set([low, (low + high) / 2, high])] };
}

function drawAxes(x, y) {
  const base = SIZE.height - SIZE.bottom;
  return [
    y.ticks.map((tick) => [
      svg("line", { class: "grid", x1: SIZE.left, x2: SIZE.width - SIZE.right, y1: y.place(tick), y2: y.place(tick) }),
      svg("text", { class: "end", x: SIZE.left - 6, y: y.place(tick) + 4 }, formatNumber(tick)),
    ]),
    svg("line", { class: "axis", x1: SIZE.left, x2: SIZE.width - SIZE.right, y1: base, y2: base }),
    x.ticks.map((tick) => svg("text", { class: "middle", x: x.place(tick), y: base + 16 }, formatNumber(Math.round(tick)))),
    svg("text", { x: SIZE.left, y: 9 }, "reward"),
    svg("text", { class: "end", x: SIZE.width - SIZE.right, y: SIZE.height - 3 }, "tokens"),
  ];
}

function findNearest(points, drawing, event) {
  const box = drawing.getBoundingClientRect();
  const scale = SIZE.width / box.width;
  const at = { x: (event.clientX - box.left) * scale, y: (event.clientY - box.top) * scale };
  let best = null;
  let least = REACH ** 2;
  for (const point of points) {
    const distance = (point.x - at.x) ** 2 + (point.y - at.y) ** 2;
    if (distance < least) [best, least] = [point, distance];
  }
  return best;
}
