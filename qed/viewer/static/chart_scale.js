/* Scales of charts: from values to pixels, ticks at round numbers, and lines thinned to the width of the drawing. */

/** Find the lowest and the highest of numbers; null if there are none. */
export function findRange(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : null;
}

/** Build a scale from a range of values to a range of pixels: `place(value)`, `invert(pixel)` and `ticks`. */
export function buildScale([low, high], [from, to], { log = false, count = 4 } = {}) {
  const isLog = log && low > 0;
  const warp = isLog ? Math.log10 : (value) => value;
  const [start, end] = [warp(low), warp(high)];
  const width = end - start || 1;
  const place = (value) => from + ((warp(value) - start) / width) * (to - from);
  const invert = (pixel) => {
    const value = start + ((pixel - from) / (to - from)) * width;
    return isLog ? 10 ** value : value;
  };
  return { place, invert, low, high, ticks: isLog ? listPowers(low, high, count) : listTicks(low, high, count) };
}

/** Widen a range a little, so that lines do not touch the frame; a single value gets space on both sides. */
export function padRange([low, high], share = 0.05) {
  if (low === 0 && high === 0) return [0, 1];
  if (low === high) {
    const room = Math.abs(low) * 0.1 || 1;
    return [low - room, high + room];
  }
  const room = (high - low) * share;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

/** List round numbers within a range, about `count` of them. */
export function listTicks(low, high, count) {
  const width = high - low;
  if (!(width > 0) || !Number.isFinite(width)) return [low];
  const raw = width / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= raw * 0.999) ?? raw;
  const ticks = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9 && ticks.length < 20; at += 1) {
    ticks.push(Number((at * step).toPrecision(12)));
  }
  return ticks;
}

function listPowers(low, high, count) {
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const last = Math.floor(Math.log10(high) + 1e-9);
  if (last <= first) return listTicks(low, high, count);
  const every = Math.ceil((last - first + 1) / (count + 1));
  const powers = [];
  for (let power = first; power <= last; power += every) powers.push(Number(`1e${power}`));
  return powers;
}

/**
 * Thin points to at most two for each pixel, the lowest and the highest, so that no peak is lost. Points without a value
 * split the line into pieces.
 */
export function thinPoints(points, placeX) {
  const pieces = [];
  let piece = [];
  let bucket = null;
  const flush = () => {
    if (bucket) piece.push(...(bucket.low === bucket.high ? [bucket.low] : [bucket.low, bucket.high].sort((a, b) => a[0] - b[0])));
    bucket = null;
  };
  for (const point of points) {
    if (!Number.isFinite(point[1])) {
      flush();
      if (piece.length) pieces.push(piece);
      piece = [];
      continue;
    }
    const pixel = Math.round(placeX(point[0]));
    if (bucket && bucket.pixel !== pixel) flush();
    if (!bucket) bucket = { pixel, low: point, high: point };
    else if (point[1] < bucket.low[1]) bucket.low = point;
    else if (point[1] > bucket.high[1]) bucket.high = point;
  }
  flush();
  if (piece.length) pieces.push(piece);
  return pieces;
}

/** Find the index of the value nearest to a number in a sorted list. */
export function findNearest(sorted, value) {
  let low = 0;
  let high = sorted.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low > 0 && value - sorted[low - 1] <= sorted[low] - value ? low - 1 : low;
}
