// Runs the planner for the pages of a folder: Python, the packages beside it, and one answer after the other.
import { loadPyodide } from "../pyodide/pyodide.mjs";

const say = (state) => postMessage({ state });
const started = (async () => {
  say("loading");
  const packed = fetch("../packages.zip").then((answer) => {
    if (!answer.ok) throw new Error("packages.zip: " + answer.status);
    return answer.arrayBuffer();
  });
  const python = await loadPyodide({ indexURL: new URL("../pyodide/", import.meta.url).href });
  python.FS.mkdirTree("/packages");
  python.unpackArchive(await packed, "zip", { extractDir: "/packages" });
  say("starting");
  const answer = python.runPython(`
import sys
sys.path.insert(0, "/packages")
from shardwise.web.inside import answer, take_templates
take_templates("/packages/templates")
answer`);
  say("ready");
  return (page, query, body) => {
    const found = answer(page, query, body && python.toPy(body));
    const [status, kind, text] = found.toJs();
    found.destroy();
    return { status, kind, text };
  };
})();
started.catch((error) => postMessage({ state: "failed", why: String(error.message || error).trim().split("\n").pop() }));

onmessage = async ({ data: { number, page, query, body } }) => {
  try {
    postMessage({ number, ...(await started)(page, query, body) });
  } catch (error) {
    postMessage({ number, failed: String(error.message || error).trim().split("\n").pop() });
  }
};
