"use strict";
// Every page is whole without this script. With it, parts of a page are exchanged for those of its next address.
(() => {
  const form = () => document.querySelector("form[data-live]");
  const get = window.shardwiseGet || fetch;  // in a folder of files, of the planner in a worker
  const changed = () => document.dispatchEvent(new Event("shardwise:changed"));
  let flying = false, last = null;

  // What has the focus, is ticked, opened or scrolled stays so where a part is exchanged.
  const reachable = (part) => [...part.querySelectorAll("a, button, input, summary, [tabindex]")];
  const movable = (part) => [...part.querySelectorAll(".scroll, .events")];
  const titled = (one) => [one.closest("section, .fold").querySelector("h2"), one.firstElementChild].map((words) => words.textContent).join();
  const exchange = (next) => {
    document.title = next.title;
    for (const part of document.querySelectorAll("[data-part]")) {
      const fresh = next.getElementById(part.id);
      if (!fresh || fresh.innerHTML === part.dataset.was) continue;
      part.dataset.was = fresh.innerHTML;
      const active = part.contains(document.activeElement) ? document.activeElement.id : "";
      const reached = reachable(part).indexOf(document.activeElement);
      const moved = movable(part).map((one) => [one.scrollLeft, one.scrollTop]);
      // A slider that is being dragged is not taken out of the hand that drags it.
      if (active && document.activeElement.type === "range") {
        keepSlider(part, fresh, active);
        continue;
      }
      const ticked = [...part.querySelectorAll("input:checked")].map((one) => one.id);
      const open = new Map([...part.querySelectorAll("details")].map((one) => [titled(one), one.open]));
      part.replaceChildren(...document.importNode(fresh, true).childNodes);
      for (const one of part.querySelectorAll("details")) if (open.has(titled(one))) {
        one.open = open.get(titled(one));
        one.dataset.kept = "";
      }
      for (const id of ticked) if (document.getElementById(id)) document.getElementById(id).checked = true;
      movable(part).forEach((one, index) => { [one.scrollLeft, one.scrollTop] = moved[index] || [0, 0]; });
      if (reached >= 0) (document.getElementById(active) || reachable(part)[reached] || part).focus({ preventScroll: true });
    }
    for (const field of form() ? form().elements : []) {
      const wrong = document.getElementById("wrong-" + field.name);
      if (wrong) field.setAttribute("aria-invalid", wrong.textContent.trim() ? "true" : "false");
    }
    changed();
    slide();
  };
  // Said where the server is gone, until it comes back, and where the planner of a folder failed.
  const silent = (id, why) => {
    const part = document.getElementById(id);
    if (!part) return;
    (part.querySelector(".last, .live:not(:has(.last))") || part).textContent = window.shardwiseGet ? "The planner failed: " + why.message : "shardwise serve does not answer: what is shown is what it said last.";
    delete part.dataset.was;
  };
  const keepSlider = (part, fresh, id) => {
    const mine = document.getElementById(id), theirs = fresh.querySelector("#" + id);
    if (theirs) for (const name of ["min", "max"]) mine[name] = theirs[name];
    const label = part.querySelector("label"), other = fresh.querySelector("label");
    if (label && other) label.textContent = other.textContent;
  };
  const sync = (next) => {
    const theirs = next.getElementById("question");
    for (const field of form() && theirs ? form().elements : []) {
      const other = field.name && theirs.elements.namedItem(field.name);
      if (!other || field.type === "file") continue;
      if (field.type === "checkbox") field.checked = other.checked;
      else if (field.value !== other.value) {
        if (field.options && ![...field.options].some((one) => one.value === other.value)) field.add(new Option(other.value));
        field.value = other.value;
      }
    }
  };
  // At once, so that a field that is changed before the answer comes does not take a link back.
  const fillFrom = (asked) => {
    for (const field of form().elements) {
      const text = asked.get(field.name) || "";
      if (!field.name || field.type === "file") continue;
      if (field.type === "checkbox") field.checked = text === field.value;
      else if (!field.options || [...field.options].some((one) => one.value === text)) field.value = text;
    }
  };
  // Asks for an address and exchanges the parts. One question is on its way at a time, and of those meanwhile the last
  // is asked next: so a slider is answered while it is dragged, and no answer is made that nobody waits for.
  const ask = async (address, { fill = false } = {}) => {
    last = { address, fill };
    if (flying) return;
    flying = true;
    const busy = document.querySelector("[data-busy]");
    if (busy) busy.setAttribute("aria-busy", "true");
    while (last) {
      const asked = last;
      last = null;
      try {
        const answer = await get(asked.address);
        const next = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (last && (asked.fill || last.fill)) continue;
        if (asked.fill) sync(next);
        exchange(next);
        if (busy) delete busy.dataset.gone;
      } catch (why) {
        if (busy) busy.dataset.gone = "true";
        silent("verdict", why);
      }
    }
    if (busy) busy.removeAttribute("aria-busy");
    flying = false;
  };
  const address = () => {
    const filled = [...new FormData(form())].filter(([, text]) => typeof text === "string" && text !== "");
    return form().getAttribute("action") + "?" + new URLSearchParams(filled);
  };

  // While a field changes its address is replaced; once it has changed, there is one more to go back to.
  let waiting, pushed = true;
  const now = () => { history.replaceState(null, "", address()); ask(address()); };
  const later = (typed) => {
    clearTimeout(waiting);
    if (pushed) { history.pushState(null, "", address()); pushed = false; }
    if (typed) waiting = setTimeout(now, 150);
    else now();
  };
  // In a folder of files another page takes the place of this one, and the planner goes on.
  const pathOf = (address) => new URL(address, location.href).pathname;
  let shown = location.pathname;
  const visit = async (address) => {
    shown = pathOf(address);
    const next = new DOMParser().parseFromString(await (await get(address)).text(), "text/html");
    document.title = next.title;
    document.querySelector("main").replaceWith(document.importNode(next.querySelector("main"), true));
    for (const link of document.querySelectorAll("a[data-page]")) {
      if (pathOf(link.href) === shown) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    begin();
    changed();
    document.querySelector("main").focus();
  };
  const isAsked = (event) => (event.target.name || event.target.dataset.slides) && event.target.form && event.target.form === form() && event.target.type !== "file";
  document.addEventListener("input", (event) => { slid(event.target); if (isAsked(event)) later(event.target.type === "text"); });
  document.addEventListener("change", (event) => {
    if (isAsked(event)) pushed = true;
    const button = document.querySelector("[data-play]");
    if (event.target.matches("[data-speed]") && button.getAttribute("aria-pressed") === "true") { play(button); play(button); }
  });
  document.addEventListener("submit", (event) => { if (event.target === form()) { event.preventDefault(); later(false); } });
  addEventListener("popstate", () => {
    pushed = true;
    clearTimeout(waiting);
    if (pathOf(location.href) !== shown) visit(location.href);
    else if (form()) ask(location.href, { fill: true });
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-swap]");
    const page = window.shardwiseGet && event.target.closest("a[data-page]");
    if ((link && form() || page) && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      history.pushState(null, "", (link || page).href);
      if (link) { fillFrom(new URL(link.href).searchParams); ask(link.href, { fill: true }); }
      else visit(page.href);
    }
    const playable = event.target.closest("[data-play]");
    if (playable) play(playable);
    const button = event.target.closest("[data-copies]");
    if (button) copy(button, document.getElementById(button.dataset.copies));
  });
  document.addEventListener("keydown", (event) => {
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || event.altKey || event.ctrlKey || event.metaKey) return;
    const link = document.querySelector(`a[data-key="${CSS.escape(event.key)}"]`);
    if (link) { event.preventDefault(); link.click(); }
  });
  // Steps by itself, until it is pressed again or there is no next.
  let playing;
  const play = (button) => {
    clearInterval(playing);
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", on);
    button.textContent = on ? "Pause" : "Play";
    const speed = document.querySelector("[data-speed]");
    if (on) playing = setInterval(() => {
      const next = document.getElementById("next");
      if (!next || flying) return;
      if (next.href === location.href) { play(button); return; }
      history.replaceState(null, "", next.href);
      ask(next.href, { fill: true });
    }, speed ? +speed.value : 900);
  };
  const copy = async (button, from) => {
    try {
      await navigator.clipboard.writeText(from.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(from);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };

  // Sliders on a scale of ratios, from 0 to 100.
  const sliders = () => document.querySelectorAll("input[data-slides]");
  const rounded = (value) => { const step = Math.max(1, 10 ** Math.floor(Math.log10(value) - 1)); return Math.round(value / step) * step; };
  const slide = () => {
    for (const slider of sliders()) {
      const field = document.getElementById(slider.dataset.slides), value = +(field.value || field.placeholder);
      const { low, high } = slider.dataset;
      if (slider !== document.activeElement && value > 0) slider.value = 100 * Math.log(value / low) / Math.log(high / low);
      slider.setAttribute("aria-valuetext", value > 0 ? String(value) : "not stated");
    }
    const method = document.getElementById("method"), rank = document.getElementById("rank");
    const task = document.getElementById("task");
    if (task) task.form.classList.toggle("generates", task.value === "generate");
    if (method && rank) for (const one of rank.closest(".field").querySelectorAll("input")) one.disabled = method.value === "full";
  };
  const begin = () => {
    for (const slider of sliders()) { slider.disabled = false; slider.step = "any"; }
    for (const button of document.querySelectorAll("[data-play]")) button.hidden = false;
    slide();
  };
  const slid = (slider) => {
    if (!slider.matches("input[data-slides]")) return;
    const low = +slider.dataset.low, high = +slider.dataset.high, share = slider.value / 100;
    const value = low * (high / low) ** share;
    document.getElementById(slider.dataset.slides).value = slider.dataset.slides === "rows" ? rounded(value) : halves(value);
    slider.setAttribute("aria-valuetext", document.getElementById(slider.dataset.slides).value);
  };
  // Powers of two, and what lies half-way between them.
  const halves = (value) => {
    const below = 2 ** Math.floor(Math.log2(value) + 1e-9);
    const near = [below, below * 1.5, below * 2].reduce((best, one) => Math.abs(one - value) < Math.abs(best - value) ? one : best);
    return Math.max(1, Math.round(near));
  };
  begin();

  // A config.json is sent as it is, and named in the address by its content.
  const send = async (file, config) => {
    const wrong = file.closest(".field").querySelector(".wrong");
    if (!config) return;
    if (config.size > 1024 * 1024) { wrong.textContent = config.name + " is larger than a model's config.json, which is a page"; return; }
    const answer = await get(file.dataset.drop, { method: "POST", body: config });
    if (!answer.ok) { wrong.textContent = await answer.text(); return; }
    document.getElementById("model").value = (await answer.json()).model;
    pushed = true;
    later(false);
    pushed = true;
  };
  // Rows of a data file are counted here, and nothing of it is sent. Lengths are from bytes, 4 a token, as the planner
  // takes them where there is no tokenizer; of many rows, every so many are looked at.
  const textOf = (value) => typeof value === "string" ? bytes.encode(value).length : value && typeof value === "object" ? Object.values(value).reduce((sum, one) => sum + textOf(one), 0) : 0;
  const bytes = new TextEncoder();
  const lengthOf = (line) => { try { return textOf(JSON.parse(line)); } catch { return bytes.encode(line).length; } };
  const countRows = async (file) => {
    const found = { rows: 0, lengths: [] };
    const row = (read) => { if (found.rows < 20000 || found.rows % 100 === 0) found.lengths.push(Math.max(1, Math.round(read() / 4))); found.rows++; };
    if (/\.json$/i.test(file.name) && file.size < 2 ** 28) {
      const whole = JSON.parse(await file.text().catch(() => "null"));
      if (!Array.isArray(whole)) throw new Error("is no list of rows");
      for (const one of whole) row(() => textOf(one));
      return found;
    }
    const reader = file.stream().pipeThrough(new TextDecoderStream()).getReader();
    let kept = "", quoted = /\.csv$/i.test(file.name), skip = quoted ? 1 : 0;
    const line = (text) => {
      if (!text.trim()) return;
      if (skip) { skip--; return; }
      row(() => quoted ? bytes.encode(text).length : lengthOf(text));
    };
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const lines = (kept + part.value).split("\n");
      kept = lines.pop();
      let open = "";  // a quoted cell may hold the end of a line
      for (const one of lines) {
        open = open ? open + "\n" + one : one;
        if (quoted && (open.split('"').length - 1) % 2) continue;
        line(open);
        open = "";
      }
      if (open) kept = open + "\n" + kept;
    }
    line(kept);
    return found;
  };
  const count = async (input, file) => {
    const said = document.getElementById("counted"), number = (value) => value.toLocaleString("en");
    if (!file) return;
    said.textContent = "Counting " + file.name;
    try {
      if (/\.(parquet|arrow|zip|gz|zst)$/i.test(file.name)) throw new Error("is not text; `shardwise data` counts its rows");
      const { rows, lengths } = await countRows(file);
      if (!rows) throw new Error("has no row");
      lengths.sort((one, other) => one - other);
      const most = +document.getElementById("length").value || 1024, over = lengths.filter((one) => one > most).length;
      const mean = Math.round(lengths.reduce((sum, one) => sum + one, 0) / lengths.length);
      const some = lengths.length < rows ? ` (of ${number(lengths.length)} rows that were looked at)` : "";
      said.textContent = `${file.name}: ${number(rows)} rows, about ${number(mean)} tokens each, P95 ${number(lengths[Math.ceil(.95 * lengths.length) - 1])}, longest ${number(lengths.at(-1))}${some}; ${over ? (100 * over / lengths.length).toPrecision(2) + " % are" : "none is"} longer than ${number(most)}. From bytes, 4 a token. Counted in this browser; nothing was sent. Time and cost are of rows of ${number(most)} tokens: packing fills them.`;
      document.getElementById(input.dataset.counts).value = rows;
      pushed = true;
      later(false);
      pushed = true;
      slide();
    } catch (why) { said.textContent = `${file.name} cannot be counted: it ${why instanceof SyntaxError ? "is no JSON" : why.message}.`; }
  };
  document.addEventListener("change", (event) => {
    const file = event.target;
    if (file.matches("input[data-counts]")) { count(file, file.files[0]); file.value = ""; }
    if (file.matches("input[data-drop]")) { send(file, file.files[0]); file.value = ""; }
  });
  for (const name of ["dragover", "drop"]) document.addEventListener(name, (event) => {
    const place = event.target.closest(".field"), file = place && place.querySelector("input[data-drop], input[data-counts]");
    if (!file) return;
    event.preventDefault();
    if (name === "drop") (file.matches("[data-counts]") ? count : send)(file, event.dataTransfer.files[0]);
  });

  // Runs that go on: their page again, where something has changed; later where it takes long, as of runs of many steps.
  let tag = "";
  const poll = async () => {
    const live = document.querySelector("[data-poll]");
    if (!live) return;
    const began = performance.now();
    if (!document.hidden) try {
      const answer = await fetch(location.href, { cache: "no-store", headers: tag ? { "If-None-Match": tag } : {} });
      if (answer.status === 200) {
        tag = answer.headers.get("ETag") || "";
        exchange(new DOMParser().parseFromString(await answer.text(), "text/html"));
      }
    } catch (why) { tag = ""; silent("live", why); }
    setTimeout(poll, Math.max(+live.dataset.poll, 5 * (performance.now() - began)));
  };
  if (document.querySelector("[data-poll]")) setTimeout(poll, 1000);
  if (window.shardwiseGet && location.search) ask(location.href, { fill: true });
  document.documentElement.classList.add("scripted");
})();
