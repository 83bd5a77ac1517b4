"use strict";

// Moves and zooms without a page load. The server renders every page, its charts too. htmx fetches it and morphs the parts
// that differ (`swaps` in past_parts.html); this script shows the figures under the pointer, keeps the URL a permalink, and
// refreshes a live range.

(() => {
  const root = document.getElementById("past");
  if (!document.getElementById("past-data")) return; // invalid request, or no history yet

  const MIN_RANGE_SECONDS = 2;
  const MIN_DRAG = 6; // pixels
  const MIN_SPREAD = 0.005; // of the scale: a smaller band is not visible
  const HATCHED = "reclaimable";
  const MIB = 2 ** 20;
  const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const KEYS = { ArrowLeft: "earlier", ArrowRight: "later", "+": "closer", "=": "closer", "-": "wider", "0": "reset" };

  const boxesOf = (part) => [...part.querySelectorAll("[data-chart]")];
  const shapeOf = (part) => boxesOf(part).map((box) => box.dataset.chart).join();
  const plotsOf = () => [...root.querySelectorAll("svg.past")];
  const rfc3339 = (unix) => `${new Date(unix * 1000).toISOString().slice(0, 19)}Z`;

  let past;
  let shownAt;
  let focusedAt; // an event has a different number in each range, but the same time
  let pointed = null; // the time under the pointer, in Unix seconds
  let drag = null; // where a drag began: its plot, and pixels
  const latest = new Map(); // the words of the end of the range, while others are shown

  // Curves without times have those of the first one of all charts.
  function read() {
    past = JSON.parse(document.getElementById("past-data").textContent);
    const times = past.charts.find((chart) => chart.curves.length)?.curves[0].unix;
    for (const chart of past.charts) for (const curve of chart.curves) curve.unix ??= times;
    shownAt = performance.now();
    latest.clear();
    show();
  }

  function size(bytes) {
    if (bytes < 1024) return `${Math.round(bytes)} B`;
    const power = Math.min(Math.floor(Math.log2(bytes) / 10 + 1e-9), BINARY.length - 1);
    const value = bytes / 1024 ** power;
    return `${value < 999.95 ? value.toFixed(1) : Math.round(value).toLocaleString("en-US")} ${BINARY[power]}`;
  }

  function words(value, unit) {
    if (unit === "bytes") return size(value);
    if (unit === "ratio") return `${(value * 100).toFixed(1)}%`;
    return unit === "seconds" ? `${Number(value.toPrecision(4))} s` : String(Number(value.toPrecision(4)));
  }

  // The index of the nearest point, -1 in a gap: there it belongs to another time.
  function nearest(times, unix) {
    let [low, high] = [0, times.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (times[middle] < unix) low = middle + 1;
      else high = middle;
    }
    if (low > 0 && unix - times[low - 1] < times[low] - unix) low -= 1;
    return Math.abs(times[low] - unix) < 2 * Math.max(past.grain_seconds, 2) ? low : -1;
  }

  function spread({ avg, below, above }, at, unit, top) {
    const mean = avg[at];
    if (at < 0 || mean == null) return "—";
    const middle = words(mean, unit);
    if (below[at] + above[at] <= top * MIN_SPREAD) return middle;
    const ending = middle.match(/[^\d.,]*$/)[0];
    const [low, high] = [mean - below[at], mean + above[at]].map((value) => words(value, unit));
    const [from, to] = [low, high].map((word) => (ending && word.endsWith(ending) ? word.slice(0, -ending.length) : word));
    return `${middle} (${from} – ${to})`;
  }

  // The figures of the time under the pointer in all charts, or those of the end of the range.
  function show() {
    for (const plot of plotsOf()) Scrub.point(plot, pointed);
    if (pointed === null) {
      for (const [part, markup] of latest) part.innerHTML = markup;
      latest.clear();
      return;
    }
    for (const chart of past.charts) showChart(chart, document.getElementById(`past-chart-${chart.id}`));
  }

  const held = (part) => {
    if (!latest.has(part)) latest.set(part, part.innerHTML);
    return part;
  };

  function showChart(chart, box) {
    const { unit, curves, stack } = chart;
    const card = box.parentElement;
    const top = Number(box.dataset.top);
    const places = curves.map((curve) => nearest(curve.unix, pointed));
    const at = curves[0].unix[places[0]] ?? pointed;
    held(card.querySelector(".past-at")).textContent = Times.moment(at);
    const figures = held(document.getElementById(`past-legend-${chart.id}`)).querySelectorAll("b");
    curves.forEach((curve, number) => { figures[number].textContent = spread(curve, places[number], unit, top); });
    if (!stack) return;
    const used = curves.findIndex((curve) => curve.name === `pool.${chart.id}.used_bytes`);
    const sizes = stack.layers.map(({ holder, values }) => ({ holder, value: values[places[used]] }));
    showMoment(card, sizes, top, at);
  }

  function showMoment(card, layers, top, at) {
    const words = held(card.querySelector(".moment"));
    const tower = held(card.querySelector(".then"));
    const [edge, height] = [Number(tower.dataset.top), Number(tower.dataset.height)];
    const known = layers.some(({ value }) => value != null);
    const bytes = layers.map(({ value }) => (value ?? 0) * MIB);
    const taken = bytes.reduce((sum, value, number) => sum + (layers[number].holder === HATCHED ? 0 : value), 0);
    let ground = edge + height;
    [...tower.querySelectorAll("rect")].slice(1, -1).forEach((rect, number) => {
      const high = (height * bytes[number]) / top;
      ground -= high;
      rect.setAttribute("y", ground);
      rect.setAttribute("height", high);
    });
    words.querySelector(".moment-when").textContent = Times.moment(at);
    words.querySelector(".moment-used").textContent = known ? `${((taken / top) * 100).toFixed(1)}% used` : "no data";
    words.querySelectorAll("span b").forEach((figure, number) => { figure.textContent = known ? size(bytes[number]) : "—"; });
  }

  // There is no past to the right of now.
  function pick(from, right) {
    const to = Math.min(right, past.now);
    if (to <= from) return;
    const query = new URLSearchParams(location.search);
    const middle = (from + to) / 2;
    const half = Math.max(to - from, MIN_RANGE_SECONDS) / 2;
    query.delete("at");
    query.set("from", rfc3339(middle - half));
    query.set("to", rfc3339(middle + half));
    go(`${location.pathname}?${query}`);
  }

  const go = (url) => htmx.ajax("GET", url, { source: root });

  // With a mouse a drag is a range; a finger shows figures.
  function showExtent(x) {
    const extent = drag?.plot.querySelector(".extent");
    if (!extent) return;
    const [left, right] = [drag.x, x].sort((one, other) => one - other).map((place) => Scrub.timeAt(drag.plot, place));
    const { start, end } = Scrub.spanOf(drag.plot);
    extent.setAttribute("x", Scrub.placeOf(drag.plot, left));
    extent.setAttribute("width", `${((right - left) / (end - start)) * 100}%`);
    extent.setAttribute("visibility", "visible");
  }

  function endDrag() {
    drag?.plot.querySelector(".extent")?.setAttribute("visibility", "hidden");
    drag = null;
  }

  root.addEventListener("pointerdown", (event) => {
    const plot = event.target.closest("svg.past");
    if (!plot || event.button || event.target.closest("a")) return;
    pointed = Scrub.timeAt(plot, event.clientX);
    show();
    if (event.pointerType !== "mouse") return;
    drag = { plot, x: event.clientX };
    plot.setPointerCapture(event.pointerId);
    event.preventDefault(); // selects no words
    plot.parentElement.focus({ preventScroll: true });
  });

  root.addEventListener("pointermove", (event) => {
    const plot = drag?.plot ?? event.target.closest("svg.past");
    if (!plot) return;
    pointed = Scrub.timeAt(plot, event.clientX);
    show();
    showExtent(event.clientX);
  });

  root.addEventListener("pointerup", (event) => {
    if (!drag) return;
    const { plot, x } = drag;
    endDrag();
    if (Math.abs(event.clientX - x) < MIN_DRAG) return;
    const [from, to] = [x, event.clientX].sort((one, other) => one - other).map((place) => Scrub.timeAt(plot, place));
    pick(from, to);
  });

  root.addEventListener("pointercancel", endDrag);

  root.addEventListener("pointerout", (event) => {
    if (drag || event.pointerType !== "mouse" || event.relatedTarget?.closest?.("svg.past")) return;
    pointed = null;
    show();
  });

  // A page with other charts, with an error or of a proxy is loaded. One without a known process keeps its last figures.
  document.addEventListener("htmx:before:swap", (event) => {
    const { ctx, tasks } = event.detail;
    if (ctx.target !== root) return;
    if (shapeOf(tasks[0].fragment) !== shapeOf(root)) {
      event.preventDefault();
      if (ctx.response.status !== 404) location.assign(ctx.request.action);
      return;
    }
    for (const task of tasks) Times.localise(task.fragment);
    focusedAt = document.activeElement?.dataset.at;
  });

  // A new URL adds a step to the browser's history, so that Back undoes a zoom.
  document.addEventListener("htmx:after:swap", (event) => {
    const { ctx } = event.detail;
    if (ctx.target !== root) return;
    const url = new URL(ctx.request.action, location.href);
    if (url.href !== location.href) history.pushState(null, "", url);
    if (focusedAt) document.querySelector(`[data-at="${focusedAt}"]`)?.focus({ preventScroll: true });
    endDrag();
    read();
  });

  document.addEventListener("click", (event) => {
    const flag = event.target.closest("a[data-zoom]");
    if (flag && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      go(flag.getAttribute("href"));
    }
    if (event.target.closest("#past-list a[href]")) root.querySelector(".past-card").scrollIntoView({ block: "nearest" });
  });

  document.addEventListener("keydown", (event) => {
    const name = KEYS[event.key];
    if (!name || event.ctrlKey || event.metaKey || event.altKey || !event.target.closest("[data-chart]")) return;
    event.preventDefault();
    document.querySelector(`#past-${name}[href]`)?.click();
  });

  // A hidden or stale page does not refresh, nor one in the middle of a drag.
  function look() {
    const due = performance.now() - shownAt > past.poll_seconds * 1000;
    if (!past.live || !due || drag || document.hidden || document.body.classList.contains("stale")) return;
    shownAt = performance.now();
    go(location.href);
  }

  window.addEventListener("popstate", () => go(location.href));

  read();
  setInterval(look, 500);
  document.addEventListener("visibilitychange", look);
})();
