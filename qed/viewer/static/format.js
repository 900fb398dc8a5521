/* Numbers and times for readers, in the format of the report. */

const SPACE = "\u00a0";
const MINUS = "\u2212";
const NONE = "–";

/** Format a number with as many digits as are useful: 1,234 · 12.3 · 0.0042 · 1.2e-7. */
export function formatNumber(value) {
  if (!isNumber(value)) return NONE;
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return sign(value.toLocaleString("en-US"));
  if (size >= 1000) return sign(Math.round(value).toLocaleString("en-US"));
  if (size < 1e-4 || size >= 1e15) return sign(value.toExponential(2));
  return sign(String(Number(value.toPrecision(size >= 100 ? 4 : 3))));
}

/** Format a share as a percentage: 0.345 is 34.5 %. */
export function formatPercent(value) {
  return isNumber(value) ? `${sign((100 * value).toFixed(1))}${SPACE}%` : NONE;
}

/** Format a difference of two shares in percentage points with its sign: 0.031 is +3.1. */
export function formatPoints(value) {
  if (!isNumber(value)) return NONE;
  const points = 100 * value;
  return `${points > 0 ? "+" : ""}${sign(points.toFixed(1))}`;
}

/** Format a share with its interval: 34.5 % [28.3, 41.3]. */
export function formatInterval(figures) {
  if (!figures || !isNumber(figures.value)) return NONE;
  const bounds = isNumber(figures.lo) && isNumber(figures.hi)
    ? ` [${sign((100 * figures.lo).toFixed(1))}, ${sign((100 * figures.hi).toFixed(1))}]`
    : "";
  return formatPercent(figures.value) + bounds;
}

/** Format seconds: 0.8 s · 45 s · 3 min 20 s · 2 h 5 min. */
export function formatDuration(seconds) {
  if (!isNumber(seconds)) return NONE;
  if (seconds < 10) return `${Number(seconds.toPrecision(2))}${SPACE}s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole}${SPACE}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}${SPACE}min ${whole % 60}${SPACE}s`;
  return `${Math.floor(whole / 3600)}${SPACE}h ${Math.floor((whole % 3600) / 60)}${SPACE}min`;
}

/** Format a Unix time in this machine's local time: 2026-11-22 20:42. */
export function formatTime(seconds) {
  if (!isNumber(seconds) || Math.abs(seconds) > 8e12) return NONE;
  const date = new Date(1000 * seconds);
  const two = (number) => String(number).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

/** Format how long ago a Unix time was: 3 min ago. */
export function formatAge(seconds) {
  if (!isNumber(seconds)) return NONE;
  const age = Math.max(0, Date.now() / 1000 - seconds);
  if (age > 172800) return formatTime(seconds);
  if (age > 5400) return `${Math.round(age / 3600)}${SPACE}h ago`;
  return age > 90 ? `${Math.round(age / 60)}${SPACE}min ago` : `${Math.round(age)}${SPACE}s ago`;
}

/** Format a number of bytes: 12 B · 3.4 kB · 1.2 GB. */
export function formatBytes(bytes) {
  if (!isNumber(bytes)) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let value = bytes;
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit ? Number(value.toPrecision(3)) : value}${SPACE}${units[unit]}`;
}

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

function sign(text) {
  return text.replace("-", MINUS);
}
