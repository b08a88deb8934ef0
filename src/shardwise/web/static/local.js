"use strict";
// In a folder of files there is no server: what one would answer, the planner answers in a worker of this page.
(() => {
  const base = new URL(".", location.href), waiting = new Map();
  const SAID = {
    loading: "Loading the planner, once: 18 MB", starting: "Starting the planner", ready: "Runs in this browser",
    kept: "Runs in this browser, and without a network",
  };
  const state = document.getElementById("state");
  const say = (name) => { state.textContent = SAID[name] || name; state.dataset.state = name in SAID ? name : "failed"; };
  if (location.search) document.documentElement.classList.add("unanswered");
  document.addEventListener("shardwise:changed", () => document.documentElement.classList.remove("unanswered"));

  const worker = new Worker(new URL("static/worker.js", base), { type: "module" });
  const failed = (why) => {
    say("The planner cannot be started: " + why);
    for (const answered of waiting.values()) answered({ failed: why });
    waiting.clear();
  };
  worker.onerror = (error) => failed(error.message || "this browser is too old, or the folder is not served by a web server");
  worker.onmessage = ({ data }) => {
    if (data.state === "failed") failed(data.why);
    else if (data.state) {
      say(data.state);
      if (data.state === "ready") keep();
    } else {
      waiting.get(data.number)?.(data);
      waiting.delete(data.number);
    }
  };
  // Asked once the planner runs, so that the files are not loaded twice.
  const keep = async () => {
    if (!navigator.serviceWorker) return;
    try {
      await navigator.serviceWorker.register(new URL("sw.js", base));
      await navigator.serviceWorker.ready;
      say("kept");
    } catch { /* what is not kept is loaded again */ }
  };

  let count = 0;
  window.shardwiseGet = async (address, { body } = {}) => {
    const url = new URL(address, base), number = ++count;
    const bytes = body ? new Uint8Array(await body.arrayBuffer()) : null;
    const found = await new Promise((answered) => {
      waiting.set(number, answered);
      worker.postMessage({ number, page: url.pathname.split("/").pop() || "index.html", query: url.search.slice(1), body: bytes });
    });
    if (found.failed) throw new Error(found.failed);
    return new Response(found.text, { status: found.status, headers: { "content-type": found.kind } });
  };
  // A file to keep is made here.
  document.addEventListener("click", async (event) => {
    const link = event.target.closest("a[download]");
    if (!link || link.href.startsWith("blob:")) return;
    event.preventDefault();
    const made = document.createElement("a");
    made.download = link.download || new URL(link.href).pathname.split("/").pop();
    made.href = URL.createObjectURL(await (await window.shardwiseGet(link.href)).blob());
    made.click();
    URL.revokeObjectURL(made.href);
  });
})();
