import { get } from "../api.js";

const groups = new WeakMap();
const AT_ONCE = 4;

/** List the visits of a problem by step, evaluations before the training of the same step. */
export function listVisits({ training, evaluations }) {
  const order = (visit) => [visit.step, visit.task ? 0 : 1];
  return [...evaluations, ...training].sort((a, b) => order(a)[0] - order(b)[0] || order(a)[1] - order(b)[1] || nameSeries(a).localeCompare(nameSeries(b), "en"));
}

/** Name the series of a visit: training, or one decoding of one task. */
export function nameSeries({ task, decoding }) {
  return task ? `${task}, ${decoding}` : "training";
}

/** Name a visit: its step and series. */
export function nameVisit(visit) {
  return `step ${visit.step} (${nameSeries(visit)})`;
}

/** Return the step or evaluation that a visit belongs to. */
export function findWhere(run, { step, task, decoding }) {
  return task ? { run, step, task, decoding } : { run, step };
}

/** Name an answer of a visit for the URL: step, group, answer, and for an evaluation task and decoding. */
export function writeAnswer({ step, group, task, decoding }, answer) {
  return [step, group, answer, ...(task ? [decoding, task] : [])].join(":");
}

/** Parse the name of an answer from the URL: the visit and the number of its answer; null if there is none. */
export function readAnswer(visits, text) {
  const [step, group, answer, decoding, ...task] = (text ?? "").split(":");
  const name = decoding == null ? "training" : nameSeries({ task: task.join(":"), decoding });
  const visit = visits.find((each) => String(each.step) === step && String(each.group) === group && nameSeries(each) === name);
  return visit && /^\d+$/.test(answer ?? "") ? { visit, answer: Number(answer) } : null;
}

/**
 * Return the answers of a visit, requested once; at most AT_ONCE requests of a page run concurrently.
 *
 * `view` is the page's state, with which the answers are discarded.
 */
export function loadAnswers(view, visit) {
  if (!groups.has(view)) groups.set(view, { known: new Map(), waiting: [], running: 0 });
  const queue = groups.get(view);
  const key = writeAnswer(visit, 0);
  if (!queue.known.has(key)) {
    const asked = new Promise((resolve, reject) => queue.waiting.push({ visit, resolve, reject }));
    asked.catch(() => queue.known.delete(key));
    queue.known.set(key, asked);
    work(view, queue);
  }
  return queue.known.get(key);
}

async function work(view, queue) {
  if (queue.running >= AT_ONCE || queue.waiting.length === 0) return;
  const { visit, resolve, reject } = queue.waiting.pop(); // the visit that became visible last comes first
  if (view.context.signal?.aborted) return;
  queue.running += 1;
  try {
    const reply = await get("group", { ...findWhere(view.run, visit), group: visit.group });
    resolve(reply.answers);
  } catch (error) {
    reject(error);
  }
  queue.running -= 1;
  work(view, queue);
}
