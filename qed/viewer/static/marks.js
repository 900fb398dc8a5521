/* Marks at the places where a text occurs on a page. */

import { h } from "./dom.js";

const MOST = 2_000; // marks of a page

/** Mark each place below `root` where `text` occurs, ignoring case, outside of formulas; returns the marks. */
export function markText(root, text) {
  const wanted = text.toLowerCase();
  if (!wanted) return [];
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (walker.nextNode()) if (!walker.currentNode.parentElement.closest("math, svg, summary, button")) nodes.push(walker.currentNode);
  const marks = [];
  for (let node of nodes) {
    let at = findText(node.data, wanted);
    while (at >= 0 && marks.length < MOST) {
      const hit = node.splitText(at);
      node = hit.splitText(wanted.length);
      const mark = h("mark", { tabindex: "-1" });
      hit.replaceWith(mark);
      mark.append(hit);
      marks.push(mark);
      at = findText(node.data, wanted);
    }
  }
  return marks;
}

/** Show a mark: open everything that hides it, and focus it. */
export function revealMark(mark) {
  for (let fold = mark.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  mark.focus({ preventScroll: true });
  mark.scrollIntoView({ block: "center" });
}

/** Find a text in another one; letters whose lower case is longer would shift the index, so such texts are compared with case. */
function findText(whole, wanted) {
  const lower = whole.toLowerCase();
  return (lower.length === whole.length ? lower : whole).indexOf(wanted);
}
