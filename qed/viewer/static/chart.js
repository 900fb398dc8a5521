/* Line charts as SVG: several lines with bands, phases and events, a cursor that charts share, and zoom by dragging. */

import { buildScale, findNearest, findRange, padRange, thinPoints } from "./chart_scale.js";
import { h, replace, svg } from "./dom.js";
import { formatNumber, formatPercent } from "./format.js";

const HEIGHT = 190;
const EDGE = { top: 14, right: 10, bottom: 24 };
const CHARACTER = 6.6; // pixels of a digit of a tick's label
const DASHES = ["", "7 3", "2 3", "10 3 2 3", "5 2", "1 2", "12 4", "8 2 2 2"];
const MARK = 4; // pixels that the mark of a point at the edge needs
const DRAG = 5; // the fewest pixels of a drag that zooms instead of a click

/** Build a cursor that several charts share: `set(x)` moves it in all of them, null hides it. */
export function sharedCursor() {
  const listeners = new Set();
  let next;
  const flush = () => {
    const x = next;
    next = undefined;
    listeners.forEach((listener) => listener(x));
  };
  return {
    set: (x) => {
      // A pointer moves more often than the page is redrawn.
      if (next === undefined) requestAnimationFrame(flush);
      next = x;
    },
    follow: (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/**
 * Build a line chart. Each of `series` has `label`, `points` of `[x, y]` sorted by x, `colour` 0 to 7, `band` of
 * `[x, low, high]`, `marks` to draw each point, `faint` for the raw values behind a smoothed line. `phases` of
 * `{begin, label}` and `events` of `{x, label}` are marked. `onPick(x)` is called with the x of a point that is clicked,
 * `onZoom([low, high])` after a drag; `zoom` is the range to show.
 *
 * Returns `{element, update(options)}`; `update` changes some of the options and draws again.
 */
export function lineChart(options) {
  const chart = { options, cursor: options.cursor ?? sharedCursor(), width: 0 };
  chart.readout = h("p", { class: "cursor-values", "aria-live": "off" });
  chart.canvas = h("div", {
    class: "canvas", tabindex: "0", role: "application", "aria-label": options.title, "aria-roledescription": "chart",
  });
  chart.legend = h("ul", { class: "legend" });
  chart.element = h("figure", { class: "chart line-chart" }, h("h3", {}, options.title), chart.legend, chart.canvas, chart.readout);
  new ResizeObserver(() => {
    if (chart.canvas.clientWidth && chart.canvas.clientWidth !== chart.width) draw(chart);
  }).observe(chart.canvas);
  bindPointer(chart);
  chart.cursor.follow((x) => showCursor(chart, x));
  return {
    element: chart.element,
    update(changes) {
      chart.options = { ...chart.options, ...changes };
      if (chart.canvas.clientWidth) draw(chart);
    },
  };
}

/** Draw a small line without axes, for tables. */
export function sparkline(values, label) {
  const [width, height] = [96, 24];
  const range = findRange(values);
  if (!range || values.length < 2) return h("span", { class: "no-spark" }, "–");
  const x = buildScale([0, values.length - 1], [2, width - 2]);
  const y = buildScale(padRange(range), [height - 2, 2]);
  const pieces = thinPoints(values.map((value, at) => [at, value]), x.place);
  return svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
    pieces.map((piece) => svg("path", { class: "line c0", d: writePath(piece, x, y) })));
}

/** Draw a signal of an answer against the position of its tokens; a click or the arrow keys pick a token. */
export function signalPlot({ values, index, onPick, label }) {
  const chart = lineChart({
    title: label, series: [{ label, points: values.map((value, at) => [at, value]), colour: 0 }], onPick, xLabel: "token",
    events: index >= 0 ? [{ x: index, label: "" }] : [],
  });
  chart.element.classList.add("signal-plot");
  return { element: chart.element, update: (at) => chart.update({ events: at >= 0 ? [{ x: at, label: "" }] : [] }) };
}

function draw(chart) {
  const { options, canvas } = chart;
  const width = canvas.clientWidth || 360;
  chart.width = width;
  const series = options.series.filter((one) => one.points.some(([, y]) => Number.isFinite(y)));
  replace(chart.legend, series.filter((one) => !one.faint).length > 1 ? series.filter((one) => !one.faint).map(buildKey) : null);
  chart.xs = [...new Set(series.flatMap((one) => one.points.map(([x]) => x)))].sort((a, b) => a - b);
  if (!chart.xs.length) {
    replace(canvas, h("p", { class: "empty" }, "No values."));
    return;
  }
  const [x, y, left] = buildScales(chart, series, width);
  chart.x = x;
  chart.y = y;
  chart.pointer = svg("g", { class: "pointer" });
  const clip = `clip-${Math.random().toString(36).slice(2)}`;
  replace(canvas, svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, "aria-hidden": "true" },
    svg("clipPath", { id: clip }, svg("rect", { x: left - MARK, y: 0, width: Math.max(0, width - left - EDGE.right + 2 * MARK), height: HEIGHT })),
    drawAxes(options, x, y, left, width), drawPhases(options, x, left, width),
    svg("g", { "clip-path": `url(#${clip})` }, series.map((one) => drawBand(one, x, y)), series.map((one) => drawLine(one, x, y))),
    drawEvents(options, x), chart.pointer));
}

function buildScales(chart, series, width) {
  const { options } = chart;
  const ends = findRange(chart.xs);
  const range = options.zoom ?? (ends[0] === ends[1] ? [ends[0] - 0.5, ends[1] + 0.5] : ends);
  const seen = series.flatMap((one) => [
    ...one.points.filter(([x]) => x >= range[0] && x <= range[1]).map(([, y]) => y),
    ...(one.band ?? []).filter(([x]) => x >= range[0] && x <= range[1]).flatMap(([, low, high]) => [low, high]),
  ]);
  const log = Boolean(options.log);
  const limits = findRange(log ? seen.filter((value) => value > 0) : seen) ?? [0, 1];
  const y = buildScale(log ? limits : padRange(limits), [HEIGHT - EDGE.bottom, EDGE.top], { log });
  const left = Math.max(28, 10 + CHARACTER * Math.max(...labelTicks(options, y.ticks).map((label) => label.length)));
  const x = buildScale(range, [left, width - EDGE.right], { count: Math.max(2, Math.floor(width / 90)) });
  return [x, y, left];
}

function drawAxes(options, x, y, left, width) {
  const base = HEIGHT - EDGE.bottom;
  const labels = labelTicks(options, y.ticks);
  return [
    y.ticks.map((tick, at) => [
      svg("line", { class: "grid", x1: left, x2: width - EDGE.right, y1: y.place(tick), y2: y.place(tick) }),
      svg("text", { class: "end", x: left - 6, y: y.place(tick) + 4 }, labels[at]),
    ]),
    svg("line", { class: "axis", x1: left, x2: width - EDGE.right, y1: base, y2: base }),
    x.ticks.filter(Number.isInteger).map((tick) => {
      const text = formatNumber(tick);
      const isLast = x.place(tick) + (CHARACTER * text.length) / 2 > width;
      return svg("text", { class: isLast ? "end" : "middle", x: isLast ? width : x.place(tick), y: HEIGHT - 6 }, text);
    }),
  ];
}

function drawPhases(options, x, left, width) {
  const phases = options.phases ?? [];
  const isSeen = ({ begin }, at) => begin < x.high && (phases[at + 1]?.begin ?? Infinity) > x.low;
  const seen = phases.filter(isSeen);
  return seen.map(({ begin, label }, place) => {
    const at = Math.max(left, x.place(begin));
    return [
      begin > x.low ? svg("line", { class: "boundary", x1: at, x2: at, y1: EDGE.top, y2: HEIGHT - EDGE.bottom }) : null,
      // The last name is at the edge if there is no space to its right.
      at < width - 60 ? svg("text", { class: "phase", x: at + 4, y: EDGE.top - 3 }, label)
        : place === seen.length - 1 ? svg("text", { class: "phase end", x: width - 2, y: EDGE.top - 3 }, label) : null,
    ];
  });
}

function drawEvents(options, x) {
  return (options.events ?? []).filter((event) => event.x >= x.low && event.x <= x.high).map((event) => {
    const at = x.place(event.x);
    return svg("g", { class: "event" },
      svg("line", { x1: at, x2: at, y1: EDGE.top, y2: HEIGHT - EDGE.bottom }),
      event.label ? svg("path", { d: `M${at - 4} ${HEIGHT - EDGE.bottom + 7}h8l-4 -7z` }, svg("title", {}, event.label)) : null);
  });
}

function drawBand(series, x, y) {
  const band = (series.band ?? []).filter(([, low, high]) => Number.isFinite(y.place(low)) && Number.isFinite(y.place(high)));
  if (band.length < 1) return null;
  const upper = band.map(([at, , high]) => `${round(x.place(at))} ${round(y.place(high))}`);
  const lower = band.map(([at, low]) => `${round(x.place(at))} ${round(y.place(low))}`).reverse();
  // The band around an isolated point is a line.
  if (band.length === 1) return svg("path", { class: `line c${series.colour}`, d: `M${upper[0]}L${lower[0]}` });
  return svg("path", { class: `band c${series.colour}`, d: `M${upper.join("L")}L${lower.join("L")}Z` });
}

function drawLine(series, x, y) {
  const kind = `line c${series.colour}${series.faint ? " faint" : ""}`;
  const positive = series.points.map(([at, value]) => [at, Number.isFinite(y.place(value)) ? value : null]);
  const pieces = thinPoints(positive, x.place);
  const alone = pieces.filter((piece) => piece.length === 1).map(([point]) => point);
  const marks = series.marks ? series.points.filter(([, value]) => Number.isFinite(value)) : alone;
  return [
    pieces.map((piece) => svg("path", { class: kind, d: writePath(piece, x, y), "stroke-dasharray": series.faint ? null : DASHES[series.colour % 8] || null })),
    marks.map(([at, value]) => svg("circle", { class: `mark c${series.colour}`, cx: round(x.place(at)), cy: round(y.place(value)), r: 3 })),
  ];
}

function showCursor(chart, at) {
  if (!chart.pointer || !chart.xs?.length) return;
  if (at === null) {
    replace(chart.pointer);
    replace(chart.readout);
    return;
  }
  const x = chart.xs[findNearest(chart.xs, at)];
  chart.at = x;
  if (x < chart.x.low || x > chart.x.high) return;
  const place = chart.x.place(x);
  const shown = chart.options.series.filter((one) => !one.faint).map((one) => [one, readValue(one.points, x)]).filter(([, value]) => Number.isFinite(value));
  replace(chart.pointer, chart.drag ? buildDrag(chart.drag) : null, svg("line", { x1: place, x2: place, y1: EDGE.top, y2: HEIGHT - EDGE.bottom }),
    shown.map(([one, value]) => svg("circle", { class: `mark c${one.colour}`, cx: place, cy: chart.y.place(value), r: 3.5 })));
  const many = shown.length > 1;
  replace(chart.readout, h("b", {}, `${chart.options.xLabel ?? "step"} ${formatNumber(x)}`),
    shown.map(([one, value]) => h("span", { class: `c${one.colour}` }, ` ${many ? `${one.label} ` : ""}${writeValue(chart.options, value)}`)));
}

function readValue(points, x) {
  let low = 0;
  let high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle + 1;
    else high = middle;
  }
  return points[low]?.[0] === x ? points[low][1] : null;
}

function bindPointer(chart) {
  const { canvas } = chart;
  let begin = null;
  const locate = (event) => event.clientX - canvas.getBoundingClientRect().left;
  const read = (pixel) => Math.max(chart.x.low, Math.min(chart.x.high, chart.x.invert(pixel)));
  canvas.addEventListener("pointermove", (event) => {
    if (!chart.x) return;
    chart.drag = begin !== null && chart.options.onZoom ? [begin, locate(event)].sort((a, b) => a - b) : null;
    chart.cursor.set(read(locate(event)));
  });
  canvas.addEventListener("pointerleave", () => chart.cursor.set(null));
  canvas.addEventListener("pointercancel", () => {
    begin = null;
    chart.drag = null;
  });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    begin = chart.x ? locate(event) : null;
    canvas.setPointerCapture(event.pointerId); // a drag may end outside of the chart
  });
  canvas.addEventListener("pointerup", (event) => {
    if (begin === null) return;
    const [from, to] = [begin, locate(event)].sort((a, b) => a - b);
    begin = null;
    chart.drag = null;
    if (to - from > DRAG && chart.options.onZoom) chart.options.onZoom([read(from), read(to)]);
    else chart.options.onPick?.(chart.xs[findNearest(chart.xs, read(to))]);
  });
  canvas.addEventListener("keydown", (event) => moveCursor(chart, event));
}

function buildDrag([left, right]) {
  return svg("rect", { class: "drag", x: left, y: EDGE.top, width: right - left, height: HEIGHT - EDGE.bottom - EDGE.top });
}

function moveCursor(chart, event) {
  const delta = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!chart.xs?.length || (delta === undefined && event.key !== "Enter")) return;
  event.preventDefault();
  event.stopPropagation();
  const at = chart.at === undefined ? 0 : findNearest(chart.xs, chart.at);
  if (delta !== undefined) {
    chart.at = chart.xs[Math.max(0, Math.min(chart.xs.length - 1, at + delta))];
    chart.cursor.set(chart.at);
  } else chart.options.onPick?.(chart.xs[at]);
}

function buildKey(series) {
  return h("li", {},
    svg("svg", { class: `swatch c${series.colour}`, width: 22, height: 8, viewBox: "0 0 22 8", "aria-hidden": "true" },
      svg("line", { class: "line", x1: 0, x2: 22, y1: 4, y2: 4, "stroke-dasharray": DASHES[series.colour % 8] || null })),
    h("span", { title: series.label }, series.label));
}

/** Write ticks with enough digits to distinguish them: 1.005 and 1.01, not 1.01 twice. */
function labelTicks(options, ticks) {
  const labels = ticks.map((tick) => writeValue(options, tick));
  if (new Set(labels).size === labels.length) return labels;
  return ticks.map((tick) => (options.percent ? `${Number((100 * tick).toPrecision(6))}\u00a0%` : String(Number(tick.toPrecision(6)))));
}

function writeValue(options, value) {
  return options.percent ? formatPercent(value) : formatNumber(value);
}

function writePath(points, x, y) {
  return `M${points.map(([at, value]) => `${round(x.place(at))} ${round(y.place(value))}`).join("L")}`;
}

function round(value) {
  return Math.round(value * 10) / 10;
}
