/** The data of a static copy, which `qed view --export` writes: in the page itself, or in files beside it. */

const ELEMENT = "qed-data";
const FOLDER = "data";
const state = { content: null, loading: new Map(), replies: new Map() };

/** Returns what the page holds: replies by their keys, or `{files: {key: number of its file}}`; null with a server. */
function readContent() {
  if (state.content === null) {
    const element = document.getElementById(ELEMENT);
    state.content = element ? JSON.parse(element.textContent) : false;
  }
  return state.content || null;
}

/** Returns whether this page is a static copy. */
export function isStored() {
  return readContent() !== null;
}

/** Returns the reply of a key; undefined if the copy does not hold it. */
export async function findStored(key) {
  const content = readContent();
  if (!Object.hasOwn(content, "files")) {
    return Object.hasOwn(content, key) ? content[key] : undefined;
  }
  if (!state.replies.has(key) && Object.hasOwn(content.files, key)) {
    await loadFile(content.files[key]);
  }
  return state.replies.get(key);
}

/** Loads a file of data, a script that calls `qedData` with its text: a page of the file system may load no other. */
function loadFile(number) {
  globalThis.qedData = receive;
  if (!state.loading.has(number)) {
    state.loading.set(number, new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = `${FOLDER}/${number}.js`;
      script.addEventListener("load", resolve);
      script.addEventListener("error", () => {
        state.loading.delete(number);
        reject(new Error(`${script.src} cannot be read. It belongs to this copy.`));
      });
      document.head.append(script);
    }));
  }
  return state.loading.get(number);
}

/** Takes the replies of a file. */
function receive(number, text) {
  for (const [key, reply] of Object.entries(JSON.parse(text))) {
    state.replies.set(key, reply);
  }
}
