"use strict";

// Moves and zooms without a page load. The server renders every page. htmx fetches it and morphs the parts that differ
// (`swaps` in past_parts.html); this script draws the charts, keeps the URL a permalink, and refreshes a live range.

(() => {
  const root = document.getElementById("past");
  if (!document.getElementById("past-data")) return; // invalid request, or no history yet

  const MIN_RANGE_SECONDS = 2;
  const KEYS = { ArrowLeft: "earlier", ArrowRight: "later", "+": "closer", "=": "closer", "-": "wider", "0": "reset" };

  const boxesOf = (part) => [...part.querySelectorAll("[data-chart]")];
  const shapeOf = (part) => boxesOf(part).map((box) => box.dataset.chart).join();
  const rfc3339 = (unix) => `${new Date(unix * 1000).toISOString().slice(0, 19)}Z`;

  const charts = boxesOf(root).map((box) => new PastChart(box, pick));
  let past;
  let shownAt;
  let focusedAt; // an event has a different number in each range, but the same time

  function draw() {
    past = JSON.parse(document.getElementById("past-data").textContent);
    past.thresholds = JSON.parse(document.getElementById("latest").textContent).thresholds;
    shownAt = performance.now();
    for (const chart of charts) chart.show(past);
  }

  // There is no past to the right of now.
  function pick(from, right) {
    const to = Math.min(right, past.now);
    if (to <= from) return;
    const query = new URLSearchParams(location.search);
    const middle = (from + to) / 2;
    const half = Math.max(to - from, MIN_RANGE_SECONDS) / 2;
    query.set("from", rfc3339(middle - half));
    query.set("to", rfc3339(middle + half));
    go(`${location.pathname}?${query}`);
  }

  const go = (url) => htmx.ajax("GET", url, { source: root });

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
    draw();
  });

  document.addEventListener("click", (event) => {
    if (event.target.closest("#past-list a[href]")) root.querySelector(".past-card").scrollIntoView({ block: "nearest" });
  });

  document.addEventListener("keydown", (event) => {
    const name = KEYS[event.key];
    if (!name || event.ctrlKey || event.metaKey || event.altKey || !event.target.closest("[data-chart]")) return;
    event.preventDefault();
    document.querySelector(`#past-${name}[href]`)?.click();
  });

  // A hidden or stale page does not refresh.
  function look() {
    const due = performance.now() - shownAt > past.poll_seconds * 1000;
    if (!past.live || !due || document.hidden || document.body.classList.contains("stale")) return;
    shownAt = performance.now();
    go(location.href);
  }

  window.addEventListener("popstate", () => go(location.href));

  draw();
  setInterval(look, 500);
  document.addEventListener("visibilitychange", look);
})();
