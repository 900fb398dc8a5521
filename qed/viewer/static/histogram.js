/* A histogram whose bars can be selected, to show what is in them. */

import { h, svg } from "./dom.js";

const WIDTH = 360;
const HEIGHT = 120;
const BOTTOM = 20;
const TOP = 6;
const made = { count: 0 }; // patterns, for their ids

/**
 * Draw a histogram of values; those that are not numbers are left out.
 *
 * `selected` is the selected range `[least, most]` or null. `onPick` gets the smallest and the largest value in a bar that
 * is selected, or null if it was selected already; a value at the edge of two bars is in one of them. `marked` says for each
 * value whether it is drawn with a pattern, such as an answer that was cut off; `markLabel` names these. Returns
 * `{element}`.
 */
export function histogram({ title, values, bins = 24, selected = null, onPick, format, marked = null, markLabel = "" }) {
  const bars = countBars(values, bins, marked);
  const most = Math.max(1, ...bars.map((bar) => bar.count));
  const width = WIDTH / Math.max(1, bars.length);
  const hatch = `hatch-${(made.count += 1)}`;
  const drawn = bars.map((bar, at) => drawBar(bar, at * width, width, most, hatch));
  const buttons = bars.map((bar, at) => {
    const isChosen = selected !== null && bar.count > 0 && selected[0] <= bar.least && bar.most <= selected[1];
    const range = bar.lo === bar.hi ? format(bar.lo) : `${format(bar.lo)} to ${format(bar.hi)}`;
    const also = bar.marked ? `, ${bar.marked} ${markLabel}` : "";
    return h("button", {
      type: "button", class: isChosen ? "bar chosen" : "bar", "aria-pressed": String(isChosen), disabled: bar.count === 0,
      title: `${range}: ${bar.count}${also}`, "aria-label": `${title} ${range}: ${bar.count}${also}`,
      css: { left: `${(100 * at) / bars.length}%`, width: `${100 / bars.length}%` },
      on: { click: () => onPick(isChosen ? null : [bar.least, bar.most]) },
    });
  });
  const ends = bars.length ? [bars[0].lo, bars[bars.length - 1].hi] : [0, 0];
  const element = h("figure", { class: "histogram" },
    h("figcaption", {}, h("b", {}, title), bars.some((bar) => bar.marked) ? h("span", { class: "marked-note" }, `hatched: ${markLabel}`) : null),
    h("div", { class: "bars" },
      svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT - BOTTOM + 2}`, preserveAspectRatio: "none", "aria-hidden": "true" }, drawHatch(hatch), drawn),
      buttons),
    h("div", { class: "ends" }, h("span", {}, format(ends[0])), h("span", {}, format(ends[1]))));
  return { element };
}

/**
 * Count values in bars of equal width, as `{lo, hi, count, marked, least, most}`, where the last two are the smallest and
 * the largest value in the bar; if there are few different values, each gets a bar.
 */
export function countBars(values, bins, marked = null) {
  const pairs = values.map((value, at) => [value, Boolean(marked?.[at])]).filter(([value]) => Number.isFinite(value));
  if (!pairs.length) return [];
  const different = [...new Set(pairs.map(([value]) => value))].sort((a, b) => a - b);
  const lo = different[0];
  const hi = different[different.length - 1];
  const bars = different.length <= bins
    ? different.map((value) => buildBar(value, value))
    : Array.from({ length: bins }, (_, at) => buildBar(lo + ((hi - lo) * at) / bins, at === bins - 1 ? hi : lo + ((hi - lo) * (at + 1)) / bins));
  const places = new Map(different.map((value, at) => [value, at]));
  for (const [value, isMarked] of pairs) {
    const at = different.length <= bins ? places.get(value) : Math.min(bins - 1, Math.floor(((value - lo) / (hi - lo)) * bins));
    bars[at].count += 1;
    bars[at].marked += isMarked ? 1 : 0;
    bars[at].least = Math.min(bars[at].least, value);
    bars[at].most = Math.max(bars[at].most, value);
  }
  return bars;
}

function buildBar(lo, hi) {
  return { lo, hi, count: 0, marked: 0, least: Infinity, most: -Infinity };
}

function drawHatch(id) {
  return svg("pattern", { id, class: "hatch", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { class: "ground", width: 5, height: 5 }), svg("rect", { class: "stripe", width: 2.5, height: 5 }));
}

function drawBar(bar, x, width, most, hatch) {
  const room = HEIGHT - BOTTOM - TOP;
  const base = HEIGHT - BOTTOM;
  const height = (count) => (count ? Math.max(2, (room * count) / most) : 0);
  const thin = Math.min(width * 0.86, 40);
  const left = x + (width - thin) / 2;
  return [
    svg("rect", { class: "count", x: left, y: base - height(bar.count), width: thin, height: height(bar.count) }),
    bar.marked
      ? svg("rect", { fill: `url(#${hatch})`, x: left, y: base - height(bar.marked), width: thin, height: height(bar.marked) })
      : null,
  ];
}
