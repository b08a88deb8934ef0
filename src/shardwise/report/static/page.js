"use strict";
(() => {
  // Values on hover and on tap. Without scripts, the browser shows the segments' titles.
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const label = () => {
    for (const title of document.querySelectorAll("svg.bar rect > title")) {
      title.parentNode.dataset.tip = title.textContent;
      title.remove();
    }
  };
  // On a phone what is not the first answer is folded, until it is opened.
  const narrow = matchMedia("(max-width: 760px)");
  const fold = () => {
    for (const one of document.querySelectorAll(".fold:not([data-kept])")) {
      one.dataset.kept = "";
      if (narrow.matches) one.open = false;
    }
  };
  // How long a run has written nothing.
  const age = () => {
    for (const one of document.querySelectorAll("[data-age]")) {
      const seconds = Math.max(0, Math.round(Date.now() / 1000 - one.dataset.age));
      const [size, unit] = seconds < 120 ? [1, "s"] : seconds < 7200 ? [60, "min"] : seconds < 172800 ? [3600, "h"] : [86400, "days"];
      one.textContent = `Last written ${Math.round(seconds / size)} ${unit} ago.`;
    }
  };
  const changed = () => { label(); fold(); age(); };
  changed();
  setInterval(age, 1000);
  // Sent by a page that has put new parts in the place of others.
  document.addEventListener("shardwise:changed", changed);
  const show = (event) => {
    const words = event.target.dataset && event.target.dataset.tip;
    tip.hidden = !words;
    if (!words) return;
    tip.textContent = words;
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const above = event.clientY - tip.offsetHeight - 12;
    tip.style.left = Math.max(8, left) + "px";
    tip.style.top = (above > 4 ? above : event.clientY + 18) + "px";
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

  if (!document.getElementById("curves")) return;
  const write = {
    plain: (value) => String(+value.toPrecision(4)),
    seconds: (value) => value > 0 && value < 0.1 ? +(1000 * value).toPrecision(3) + " ms" : +value.toPrecision(3) + " s",
    power: (value) => value === 0 ? "0" : (+value.toPrecision(3)).toExponential(),
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const lines = () => ({
    main: { stroke: colour("--accent"), width: 2 },
    raw: { stroke: colour("--faint"), width: 1 },
    second: { stroke: colour("--second"), width: 2 },
    third: { stroke: colour("--optimizer"), width: 2 },
    fourth: { stroke: colour("--other"), width: 2 },
    reference: { stroke: colour("--second"), width: 1.5, dash: [6, 4], points: { show: false } },
  });
  const few = (values) => { const known = values.filter((value) => value !== null).length; return known < 13; };
  const draw = (place, curve) => {
    const looks = lines(), text = write[curve.unit], font = "12px " + getComputedStyle(document.body).fontFamily;
    const axis = { stroke: colour("--quiet"), font, grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false } };
    const last = curve.steps.length - 1, one = last < 1;
    const rest = (plot) => { if (plot.cursor.idx === null || plot.cursor.idx === undefined) plot.setLegend({ idx: last }); };
    return new uPlot({
      width: place.clientWidth,
      height: place.dataset.curve === "0" ? 300 : 190,
      padding: [6, null, null, null],
      cursor: { y: false, drag: { x: true, y: false } },
      hooks: { ready: [rest], setCursor: [rest] },
      scales: { x: { time: false, range: one ? (plot, low) => [low - 1, low + 1] : undefined } },
      axes: [
        { ...axis, size: 30, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6] },
        {
          ...axis,
          values: (plot, ticks) => ticks.map(text),
          size: (plot, words) => 14 + 7 * Math.max(3, ...(words || []).map((word) => word.length)),
        },
      ],
      series: [
        { label: "step", value: (plot, step) => step === null ? "–" : step.toLocaleString("en") },
        ...curve.series.map((line) => ({
          label: line.name, spanGaps: true, points: { show: few(line.values), size: 6 }, ...looks[line.look],
          value: (plot, value) => value === null || value === undefined ? "–" : text(value),
        })),
      ],
    }, [curve.steps, ...curve.series.map((line) => line.values)], place);
  };
  const plots = new Map();
  const drawAll = () => {
    const curves = JSON.parse(document.getElementById("curves").textContent);
    for (const place of plots.keys()) if (!place.isConnected) { plots.get(place).destroy(); plots.delete(place); }
    for (const place of document.querySelectorAll(".plot")) {
      const curve = curves[+place.dataset.curve];
      if (plots.has(place)) plots.get(place).destroy();
      place.textContent = "";
      if (curve.series.length) plots.set(place, draw(place, curve));
      else place.append(Object.assign(document.createElement("p"), { className: "empty", textContent: "not measured" }));
    }
  };
  drawAll();
  document.addEventListener("shardwise:changed", drawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let width = innerWidth, waiting;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 100);
  });
})();
