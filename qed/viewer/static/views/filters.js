/** The filters of a step's answers as in the URL: each is a string, "" if it is not set. */
export const FILTERS = [
  "q", "regex", "fields", "verdict", "reward", "tokens", "cut", "source", "subject", "level", "data", "signal", "version",
  "staleness",
];

/** What `verdict` can choose. */
export const VERDICTS = {
  right: { label: "right", keep: (row) => row.correct === true },
  wrong: { label: "wrong", keep: (row) => row.correct === false },
  ungraded: { label: "not graded", keep: (row) => row.correct == null },
  "wrong-format": { label: "in format, wrong", keep: (row) => row.correct === false && row.format_ok === true },
  "no-format": { label: "not in format", keep: (row) => row.format_ok === false },
  "right-no-format": { label: "right, not in format", keep: (row) => row.correct === true && row.format_ok === false },
};

const FLAT = 1e-9;
const WORDS = new Intl.Collator("en", { numeric: true });

/** Read the filters from the query of a URL. */
export function readFilters(query) {
  return Object.fromEntries(FILTERS.map((name) => [name, query[name] ?? ""]));
}

/** Count the filters that apply, without the search. */
export function countFilters(filters) {
  return FILTERS.filter((name) => !["q", "regex", "fields"].includes(name) && filters[name] !== "").length;
}

/** Parse a range "low..high" of the URL; a missing end is open. Null if it is not a range. */
export function readRange(text) {
  const ends = (text ?? "").split("..");
  if (ends.length !== 2) return null;
  const [low, high] = ends.map((end, at) => (end.trim() === "" ? [-Infinity, Infinity][at] : Number(end)));
  return Number.isNaN(low) || Number.isNaN(high) ? null : [low, high];
}

/** Write a range for the URL; null becomes "". */
export function writeRange(range) {
  if (!range) return "";
  const [low, high] = range.map((end) => (Number.isFinite(end) ? String(end) : ""));
  return low === "" && high === "" ? "" : `${low}..${high}`;
}

/** Turn the columns of a step's table into rows; each knows its group as `about`. */
export function buildRows(table) {
  const groups = new Map(table.groups.map((group) => [group.group, group]));
  const columns = Object.entries(table.rows);
  const parts = Object.entries(table.parts ?? {});
  return table.rows.group.map((number, index) => {
    const row = { index, parts: {} };
    for (const [name, values] of columns) row[name] = values[index];
    for (const [name, values] of parts) row.parts[name] = values[index];
    row.about = groups.get(number) ?? { group: number, place: number };
    row.key = nameRow(row);
    return row;
  });
}

/** Name an answer within its step. */
export function nameRow(row) {
  return `${row.group}/${row.answer}`;
}

/** Whether the answer reached its length limit. */
export function isCut(row) {
  return row.stop_reason === "length";
}

/** Whether all answers of a group have the same reward, so that it has no training signal. */
export function isFlat(group) {
  return group.n > 1 && group.reward_max != null && group.reward_max - group.reward_min < FLAT;
}

/** Return the share of right answers among those of a group that were graded; null without any. */
export function readRate({ n, n_graded: graded = n, n_right: right }) {
  return graded ? right / graded : null;
}

/** Say how many of a group's graded answers are right. */
export function nameRate({ n, n_graded: graded = n, n_right: right }) {
  return graded ? `${right} of ${graded}` : "not graded";
}

/** Build the tests that a row must pass, one for each filter that applies. */
export function buildTests(filters) {
  const equals = (read, wanted) => (row) => String(read(row) ?? "") === wanted;
  const within = (read, range) => (row) => read(row) != null && read(row) >= range[0] && read(row) <= range[1];
  const tests = {
    verdict: () => VERDICTS[filters.verdict]?.keep,
    reward: () => readRange(filters.reward) && within((row) => row.reward, readRange(filters.reward)),
    tokens: () => readRange(filters.tokens) && within((row) => row.n_tokens, readRange(filters.tokens)),
    cut: () => (row) => isCut(row) === (filters.cut === "1"),
    source: () => equals((row) => row.source, filters.source),
    subject: () => equals((row) => row.about.subject, filters.subject),
    level: () => equals((row) => row.about.level, filters.level),
    data: () => equals((row) => row.about.data_source, filters.data),
    signal: () => (row) => isFlat(row.about) === (filters.signal === "none"),
    version: () => equals((row) => row.version, filters.version),
    staleness: () => equals((row) => row.staleness, filters.staleness),
  };
  return Object.keys(tests)
    .filter((name) => filters[name] !== "")
    .map((name) => tests[name]())
    .filter(Boolean);
}

/** Keep the rows that pass all filters; `found` is a Map of row names that the search found, or null without one. */
export function filterRows(rows, filters, found = null) {
  const tests = buildTests(filters);
  return rows.filter((row) => (found === null || found.has(row.key)) && tests.every((test) => test(row)));
}

/** Compare two values of a column: numbers by size, words alphabetically. */
export function compareValues(a, b) {
  if (typeof a === "string" || typeof b === "string") return WORDS.compare(String(a), String(b));
  return Number(a) - Number(b);
}

/** Sort rows by what `read` returns; missing values are last in either direction, equal ones keep their order. */
export function sortRows(rows, read, down) {
  const isMissing = (value) => value == null || value === "" || Number.isNaN(value);
  const keyed = rows.map((row, at) => ({ row, at, value: read(row) }));
  keyed.sort((a, b) => {
    const gaps = isMissing(a.value) - isMissing(b.value);
    if (gaps !== 0 || isMissing(a.value)) return gaps || a.at - b.at;
    return (down ? -1 : 1) * compareValues(a.value, b.value) || a.at - b.at;
  });
  return keyed.map((entry) => entry.row);
}

/** List the values that occur in a column, in order, with their counts: the choices of its filter. */
export function countChoices(rows, read) {
  const counts = new Map();
  for (const row of rows) {
    const value = read(row);
    if (value != null && value !== "") counts.set(value, (counts.get(value) ?? 0) + 1);
  }
  return [...counts].sort((a, b) => compareValues(a[0], b[0]));
}

/** Summarise answers: how many, right, in format, cut off, means of reward and tokens; null for what is not recorded. */
export function summarise(rows) {
  const groups = new Map(rows.map((row) => [row.group, row.about]));
  return {
    n: rows.length,
    groups: groups.size,
    flat: [...groups.values()].filter(isFlat).length,
    right: average(rows.map((row) => toShare(row.correct))),
    format: average(rows.map((row) => toShare(row.format_ok))),
    cut: average(rows.map((row) => (row.stop_reason == null ? null : Number(isCut(row))))),
    reward: average(rows.map((row) => row.reward)),
    tokens: average(rows.map((row) => row.n_tokens)),
  };
}

/** Group the rows by problem: a row for each group with at least one row that is shown. */
export function groupRows(rows) {
  const gathered = new Map();
  for (const row of rows) {
    if (!gathered.has(row.group)) gathered.set(row.group, []);
    gathered.get(row.group).push(row);
  }
  return [...gathered].map(([group, members]) => {
    const about = members[0].about;
    return {
      key: String(group), group, about, members, shown: members.length, flat: isFlat(about),
      rate: readRate(about),
      tokens: average(members.map((row) => row.n_tokens)),
      cut: members.filter(isCut).length,
    };
  });
}

/** Search questions, gold and extracted answers in the page, which a static copy can do without the server. */
export function searchRows(rows, text) {
  const wanted = text.toLowerCase();
  const hits = [];
  for (const row of rows) {
    for (const [field, value] of [["question", row.about.question], ["gold", row.about.gold], ["extracted", row.extracted]]) {
      const at = value == null ? -1 : String(value).toLowerCase().indexOf(wanted);
      if (at >= 0) hits.push({ group: row.group, answer: row.answer, field, ...cutSnippet(String(value), at, wanted.length) });
      if (at >= 0) break;
    }
  }
  return hits;
}

function cutSnippet(text, at, length) {
  return {
    before: text.slice(Math.max(0, at - 60), at), match: text.slice(at, at + length),
    after: text.slice(at + length, at + length + 60),
  };
}

function toShare(value) {
  return value == null ? null : Number(value);
}

function average(values) {
  const known = values.filter((value) => value != null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}
