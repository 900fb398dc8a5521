import { h } from "../dom.js";

/** Say that this view is missing. */
export async function renderRun() {
  return { title: "", element: h("h1", {}, "Missing") };
}
