import { h } from "./dom.js";

/** The most edits that a word-by-word comparison searches for; texts that differ more are compared line by line. */
export const MOST_EDITS = 1200;
const MOST_LINE_EDITS = 800;
const MOST_WORDS = 40000;
const HUNK_EDITS = 200;
const BLANK = /^\s*$/;

/**
 * Compare two texts word by word, and return the parts in both, only in `a`, or only in `b`, in reading order.
 *
 * The work is bounded: texts that differ in more than MOST_EDITS words are compared line by line, and only the lines that
 * changed word by word.
 */
export function diffTexts(a, b) {
  const words = [splitWords(a), splitWords(b)];
  const short = words[0].length <= MOST_WORDS && words[1].length <= MOST_WORDS;
  const parts = (short && compareLists(words[0], words[1], MOST_EDITS)) || compareLines(a, b);
  return absorbBlanks(joinParts(parts));
}

/** Split a text into words, numbers, single other characters and stretches of white space. */
export function splitWords(text) {
  return text.match(/\s+|[\p{L}\p{M}_]+|\p{N}+|[^\s]/gu) ?? [];
}

/**
 * Compare two lists with Myers' algorithm (An O(ND) Difference Algorithm, 1986).
 *
 * Returns [{kind, text}] of single items, or null if more than `most` edits are needed.
 */
export function compareLists(a, b, most) {
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a.at(-1 - end) === b.at(-1 - end)) end += 1;
  const middle = findEdits(a.slice(start, a.length - end), b.slice(start, b.length - end), most);
  if (middle === null) return null;
  const same = (text) => ({ kind: "same", text });
  return [...a.slice(0, start).map(same), ...middle, ...a.slice(a.length - end).map(same)];
}

function findEdits(a, b, most) {
  const limit = Math.min(most, a.length + b.length);
  const reach = new Int32Array(2 * limit + 3);
  const trace = [];
  for (let edits = 0; edits <= limit; edits += 1) {
    trace.push(reach.slice(limit - edits, limit + edits + 3));
    for (let diagonal = -edits; diagonal <= edits; diagonal += 2) {
      const at = limit + 1 + diagonal;
      const down = diagonal === -edits || (diagonal !== edits && reach[at - 1] < reach[at + 1]);
      let x = down ? reach[at + 1] : reach[at - 1] + 1;
      while (x < a.length && x - diagonal < b.length && a[x] === b[x - diagonal]) x += 1;
      reach[at] = x;
      if (x >= a.length && x - diagonal >= b.length) return walkBack(a, b, trace);
    }
  }
  return null;
}

function walkBack(a, b, trace) {
  const parts = [];
  let x = a.length;
  let y = b.length;
  for (let edits = trace.length - 1; edits >= 0; edits -= 1) {
    const before = (diagonal) => trace[edits][diagonal + edits + 1];
    const diagonal = x - y;
    const down = diagonal === -edits || (diagonal !== edits && before(diagonal - 1) < before(diagonal + 1));
    const startX = edits === 0 ? 0 : before(down ? diagonal + 1 : diagonal - 1);
    const startY = edits === 0 ? 0 : startX - (down ? diagonal + 1 : diagonal - 1);
    while (x > startX && y > startY) parts.push({ kind: "same", text: a[(x -= 1, y -= 1, x)] });
    if (edits > 0) parts.push(down ? { kind: "b", text: b[(y -= 1)] } : { kind: "a", text: a[(x -= 1)] });
  }
  return parts.reverse();
}

function compareLines(a, b) {
  const [left, right] = [a, b].map((text) => text.split(/(?<=\n)/));
  const lines = compareLists(left, right, MOST_LINE_EDITS);
  return lines ? refineHunks(joinParts(lines)) : [{ kind: "a", text: a }, { kind: "b", text: b }];
}

/** Compare changed lines word by word if few words changed. */
function refineHunks(parts) {
  return parts.flatMap((part, at) => {
    if (part.kind === "b" && parts[at - 1]?.kind === "a") return [];
    if (part.kind !== "a" || parts[at + 1]?.kind !== "b") return [part];
    const after = parts[at + 1];
    return compareLists(splitWords(part.text), splitWords(after.text), HUNK_EDITS) ?? [part, after];
  });
}

/** Join neighbours of one kind; within a change, the part only in `a` comes first. */
function joinParts(parts) {
  const joined = [];
  let change = { a: [], b: [] };
  let same = [];
  const close = () => {
    if (same.length) joined.push({ kind: "same", text: same.join("") });
    for (const kind of ["a", "b"]) if (change[kind].length) joined.push({ kind, text: change[kind].join("") });
    change = { a: [], b: [] };
    same = [];
  };
  for (const { kind, text } of parts) {
    if (kind === "same") {
      if (change.a.length || change.b.length) close();
      same.push(text);
    } else {
      if (same.length) close();
      change[kind].push(text);
    }
  }
  close();
  return joined;
}

/** Count white space between two changes as changed too: a replaced sentence is one change, not one for each word. */
function absorbBlanks(parts) {
  const isBetween = (at) =>
    parts[at].kind === "same" && BLANK.test(parts[at].text) && at > 0 && at < parts.length - 1;
  return joinParts(
    parts.flatMap((part, at) =>
      isBetween(at) ? [{ kind: "a", text: part.text }, { kind: "b", text: part.text }] : [part],
    ),
  );
}

/**
 * Show the difference of two texts, inline or side by side; deletions are struck through, insertions underlined.
 *
 * `options`: `{mode: "inline"|"side", labels: [name of a, name of b]}`. Side by side, lines that both have are aligned.
 */
export function renderDiff(a, b, { mode = "inline", labels = ["A", "B"] } = {}) {
  const parts = diffTexts(a, b);
  const text = mode === "side" ? showSides(parts, labels) : h("pre", {}, markParts(parts));
  const place = h("div", { class: "diff-text", tabindex: "0", role: "region", "aria-label": `${labels[0]} and ${labels[1]}, differences marked` }, text);
  return h("div", { class: "diff" }, h("p", { class: "diff-facts" }, describeDiff(parts, labels)), place);
}

function showSides(parts, labels) {
  const cells = splitRows(parts).flatMap((row) => {
    const changed = [...row.a, ...row.b].some((part) => part.kind !== "same");
    return ["a", "b"].map((side) => h("pre", { class: changed ? "changed" : "same" }, markParts(row[side])));
  });
  return h("div", { class: "diff-sides" }, labels.map((label) => h("p", { class: "diff-name" }, label)), cells);
}

/** Cut the parts into rows {a, b}, each up to a line end that both texts have. */
export function splitRows(parts) {
  const rows = [];
  let row = { a: [], b: [] };
  for (const part of parts) {
    if (part.kind !== "same") {
      row[part.kind].push(part);
      continue;
    }
    part.text.split("\n").forEach((text, at) => {
      if (at > 0) {
        rows.push(row);
        row = { a: [], b: [] };
      }
      if (text) for (const side of ["a", "b"]) row[side].push({ kind: "same", text });
    });
  }
  return [...rows, row];
}

function markParts(parts) {
  return parts.map((part) => (part.kind === "same" ? part.text : h(part.kind === "a" ? "del" : "ins", {}, part.text)));
}

function describeDiff(parts, labels) {
  const count = (kind) => parts.filter((part) => part.kind === kind).reduce((sum, part) => sum + countWords(part.text), 0);
  const [gone, come, same] = ["a", "b", "same"].map(count);
  if (gone === 0 && come === 0) return "The two texts are the same.";
  return [
    h("del", {}, `${gone} ${gone === 1 ? "word" : "words"} only in ${labels[0]}`), " · ",
    h("ins", {}, `${come} only in ${labels[1]}`), ` · ${same} the same`,
  ];
}

function countWords(text) {
  return splitWords(text).filter((word) => !BLANK.test(word)).length;
}
