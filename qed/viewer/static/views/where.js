import { link } from "../router.js";

/** Parse which step of which run a route names: a training step or the answers of one evaluation. */
export function readWhere(parts) {
  const [, run, kind, step, task, decoding] = parts;
  const where = { run, step: Number(step) };
  return kind === "eval" ? { ...where, task, decoding } : where;
}

/** List what follows the step in a route: group and answer, if they are named. */
export function readPlace(parts) {
  const rest = parts.slice(parts[2] === "eval" ? 6 : 4);
  const place = {};
  for (let at = 0; at + 1 < rest.length; at += 2) place[rest[at]] = Number(rest[at + 1]);
  return place;
}

/** Build the parts of the route of a step, a group (`group`) or an answer (`group` and `answer`). */
export function buildParts(where, group = null, answer = null) {
  const step = String(where.step);
  const parts = where.task
    ? ["run", where.run, "eval", step, where.task, where.decoding]
    : ["run", where.run, "step", step];
  if (group !== null) parts.push("group", String(group));
  if (answer !== null) parts.push("answer", String(answer));
  return parts;
}

/** Build the address of a step, a group or an answer. */
export function linkPlace(where, group = null, answer = null, query = {}) {
  return link(buildParts(where, group, answer), query);
}

/** Name the step for titles: a training step, or the task and decoding of an evaluation. */
export function nameWhere(where) {
  return where.task ? `Step ${where.step}, ${where.task}, ${where.decoding}` : `Step ${where.step}`;
}

/** Track the query of a view: `setQuery` changes the address and `query`. Of repeated names the last one counts. */
export function followQuery(context) {
  const query = Object.fromEntries(Object.entries(context.query).map(([name, value]) => [name, [value].flat().at(-1)]));
  const setQuery = (changes) => {
    Object.assign(query, changes);
    context.setQuery(changes);
  };
  return { ...context, query, setQuery };
}
