/* Addresses: every state of the viewer is the part of its URL after `#`, `#/run/NAME/step/10?sort=-reward`. */

/** Encode a text for a URL; a lone surrogate has no encoding and becomes the replacement character. */
export function encodePart(part) {
  return encodeURIComponent(String(part).replace(/[\ud800-\udfff]/gu, "\ufffd"));
}

/** Build the address of a page; `query` has texts or lists of texts, and empty ones are left out. */
export function link(parts, query = {}) {
  const path = parts.map(encodePart).join("/");
  const pairs = [];
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "" && one !== false) {
        pairs.push(`${encodePart(name)}=${encodePart(one)}`);
      }
    }
  }
  return `#/${path}${pairs.length ? `?${pairs.join("&")}` : ""}`;
}

/** Parse an address. A name that occurs several times in the query has a list as its value. */
export function parse(hash) {
  const text = hash.replace(/^#\/?/, "");
  const at = text.indexOf("?");
  const path = at < 0 ? text : text.slice(0, at);
  const query = {};
  for (const [name, value] of new URLSearchParams(at < 0 ? "" : text.slice(at + 1))) {
    query[name] = name in query ? [query[name], value].flat() : value;
  }
  return { parts: path.split("/").filter(Boolean).map(decode), query };
}

/** Go to a page: the viewer shows it, and Back returns. */
export function go(parts, query = {}) {
  window.location.hash = link(parts, query);
}

/** Change the query of the current address without rendering the page again; null removes a name. */
export function changeQuery(changes) {
  const { parts, query } = parse(window.location.hash);
  window.history.replaceState(null, "", link(parts, { ...query, ...changes }));
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
