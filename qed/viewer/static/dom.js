/* Build the page from text: strings become text nodes, and nothing that a model wrote becomes markup. */

const SVG = "http://www.w3.org/2000/svg";
const MATHML = "http://www.w3.org/1998/Math/MathML";
// Control characters, bidirectional marks and other invisible characters can disguise a text; the two joiners stay.
const HIDDEN = new RegExp([
  "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u00ad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb]",
  "[\\u{e0000}-\\u{e007f}]",
  "[\\ud800-\\udfff]", // with the flag u only lone surrogates
].join("|"), "gu");
const MATH_ELEMENTS = new Set((
  "math mrow mi mn mo mtext mspace mfrac msqrt mroot msup msub msubsup munder mover munderover mtable mtr mtd mstyle "
  + "menclose mpadded mfenced").split(" "));
const MATH_ATTRIBUTES = new Set((
  "mathvariant stretchy fence separator linethickness notation columnalign accent accentunder form display "
  + "displaystyle scriptlevel minsize maxsize width alttext").split(" "));
const MAX_DEPTH = 60;

/** Make control, bidirectional and invisible characters of a text visible. */
export function clean(text) {
  return String(text).replace(HIDDEN, (sign) => {
    const code = sign.codePointAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

/**
 * Build an HTML element. `props` are attributes (`true` sets an empty one, null and false none), `on` has listeners by
 * event, `dataset` data attributes, `css` style properties. Children are strings, nodes, arrays of them, or null.
 */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** Build an SVG element, with the arguments of `h`. */
export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

/** Replace the content of a node with children, and return the node. */
export function replace(node, ...children) {
  const parts = [];
  collect(children, parts);
  node.replaceChildren(...parts);
  return node;
}

/** Build the nodes of pieces: text, formulas as MathML from a list of allowed elements, and collapsed thinking. */
export function renderPieces(pieces) {
  const fragment = document.createDocumentFragment();
  for (const piece of pieces ?? []) fragment.append(renderPiece(piece));
  return fragment;
}

function renderPiece(piece) {
  if (piece.thought) {
    const label = piece.closed === false ? "Thinking, not closed" : "Thinking";
    return h("details", { class: "thought", open: piece.open === true },
      h("summary", {}, label), h("div", { class: "thought-text" }, renderPieces(piece.thought)));
  }
  if (!piece.math) return document.createTextNode(clean(piece.text ?? piece.source ?? ""));
  const drawn = buildFormula(piece.math, 0);
  if (!drawn) return document.createTextNode(clean(piece.source ?? ""));
  return h("span", { class: piece.block ? "formula block" : "formula" }, drawn);
}

function buildFormula(tree, depth) {
  if (!Array.isArray(tree) || !MATH_ELEMENTS.has(tree[0]) || depth > MAX_DEPTH) return null;
  const node = document.createElementNS(MATHML, tree[0]);
  for (const [name, value] of Object.entries(tree[1] ?? {})) {
    if (MATH_ATTRIBUTES.has(name)) node.setAttribute(name, clean(value));
  }
  for (const child of tree[2] ?? []) {
    if (typeof child === "string") {
      node.append(clean(child));
      continue;
    }
    const inner = buildFormula(child, depth + 1);
    if (!inner) return null;
    node.append(inner);
  }
  return node;
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) setProperty(node, name, value);
  const parts = [];
  collect(children, parts);
  node.append(...parts);
  return node;
}

function setProperty(node, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name === "on") {
    for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
  } else if (name === "dataset") {
    for (const [key, text] of Object.entries(value)) node.dataset[key] = clean(text);
  } else if (name === "css") {
    for (const [key, text] of Object.entries(value)) node.style.setProperty(key, text);
  } else {
    // A link leads only to a state of this page.
    if (name === "href" && !String(value).startsWith("#/")) return;
    node.setAttribute(name, value === true ? "" : clean(value));
  }
}

function collect(children, parts) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) collect(child, parts);
    else parts.push(child instanceof Node ? child : document.createTextNode(clean(child)));
  }
}
