/* The server's replies, or those that a static copy contains: the same replies by the same names. */

import { encodePart } from "./router.js";

/** A request that failed: the HTTP status and a sentence for people. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const DATA = "qed-data"; // the element of a static copy: {"replies": {key: reply}, "files": {key: path}, "notes": []}
const state = { copy: undefined, loading: new Map() };

/** Return whether this page is a static copy, which has no server. */
export function isStatic() {
  return readCopy() !== null;
}

/** Return sentences about what a static copy leaves out. */
export function listNotes() {
  return readCopy()?.notes ?? [];
}

/** Return the key of a reply: the name with its parameters, sorted and encoded. */
export function canonical(name, params = {}) {
  const pairs = Object.keys(params)
    .filter((key) => params[key] !== null && params[key] !== undefined && params[key] !== "")
    .sort()
    .map((key) => `${encodePart(key)}=${encodePart(params[key])}`);
  return `${name}?${pairs.join("&")}`;
}

/** Return whether a reply can be requested: a static copy contains only some of them. */
export function isHeld(name, params) {
  const copy = readCopy();
  const key = canonical(name, params);
  return !copy || key in copy.replies || key in (copy.files ?? {});
}

/** Request a reply. Throws ApiError. */
export async function get(name, params = {}, signal = undefined) {
  const key = canonical(name, params);
  const copy = readCopy();
  if (copy) return getCopied(copy, key);
  let response;
  try {
    response = await fetch(`/api/${key}`, { signal, headers: { Accept: "application/json" } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The viewer does not answer. Is `qed view` still running?");
  }
  const reply = await response.json().catch(() => ({}));
  if (!response.ok) throw new ApiError(response.status, reply.error ?? `The viewer replied with status ${response.status}.`);
  return reply;
}

/**
 * Follow a run until it ends; for a run that has ended, the stream says so and closes. `handlers` has a function for each of
 * `metrics`, `steps`, `events` and `status`; `after` is the last step whose metrics are known. Returns a function that
 * stops it.
 */
export function listen(run, { after, ...handlers }) {
  if (isStatic() || !window.EventSource) return () => {};
  const source = new EventSource(`/api/${canonical("live", { run, after })}`);
  for (const [name, handle] of Object.entries(handlers)) {
    source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
  }
  source.addEventListener("end", () => source.close()); // the run has ended, so do not reconnect
  return () => source.close();
}

function readCopy() {
  if (state.copy === undefined) {
    const element = document.getElementById(DATA);
    state.copy = element ? JSON.parse(element.textContent) : null;
  }
  return state.copy;
}

async function getCopied(copy, key) {
  if (key in copy.replies) return copy.replies[key];
  const file = copy.files?.[key];
  if (!file) throw new ApiError(404, "This copy does not contain that. It has only chosen steps; `qed view` shows the whole run.");
  await loadScript(file);
  if (!(key in copy.replies)) throw new ApiError(404, `The file ${file} of this copy is damaged or missing.`);
  return copy.replies[key];
}

/** Load a file of a copy, a script that calls `qedReply(key, reply)`, because a page from a folder may not use fetch. */
function loadScript(file) {
  window.qedReply ??= (key, reply) => {
    readCopy().replies[key] = reply;
  };
  if (!state.loading.has(file)) {
    state.loading.set(file, new Promise((resolve) => {
      const script = document.createElement("script");
      script.addEventListener("load", resolve);
      script.addEventListener("error", resolve);
      script.src = file;
      document.head.append(script);
    }));
  }
  return state.loading.get(file);
}
