"use strict";

// Moves and zooms without a page load. The server renders every page; this script replaces the parts that differ, keeps
// the URL a permalink, and refreshes while the range is live.

(() => {
  const source = document.getElementById("past-data");
  if (!source) return; // invalid request, or no history yet

  const MIN_RANGE_SECONDS = 2;
  const KEYS = { ArrowLeft: "earlier", ArrowRight: "later", "+": "closer", "=": "closer", "-": "wider", "0": "reset" };

  let past = JSON.parse(source.textContent);
  let shownAt = performance.now();
  let asked = 0;

  const charts = [...document.querySelectorAll("[data-chart]")].map((box) => new PastChart(box, pick));
  const rfc3339 = (unix) => `${new Date(unix * 1000).toISOString().slice(0, 19)}Z`;

  function draw() {
    for (const part of document.querySelectorAll("[data-part]")) Times.localise(part);
    past.thresholds = JSON.parse(document.getElementById("latest").textContent).thresholds;
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

  // Fetch a page and show it in place of this one. The last request wins.
  // `how`: "push" adds a step to the browser's history, so that Back undoes a zoom.
  async function go(url, how = "push") {
    const number = ++asked;
    let answer;
    try {
      answer = await fetch(url);
    } catch {
      return; // the banner shows a lost connection
    }
    const text = await answer.text();
    if (number !== asked || answer.status === 404) return; // a process that is no longer known keeps its last figures
    const page = new DOMParser().parseFromString(text, "text/html");
    if (!answer.ok || !hasTheSameCharts(page)) {
      location.assign(url);
      return;
    }
    if (how === "push" && new URL(url, location.href).href !== location.href) history.pushState(null, "", url);
    take(page);
  }

  function hasTheSameCharts(page) {
    const shape = (root) => [...root.querySelectorAll("[data-chart]")].map((box) => box.dataset.chart).join();
    return page.getElementById("past-data") && shape(page) === shape(document);
  }

  // An event has a different number in each range, but the same time.
  function selectorOf(element) {
    if (element?.dataset.at) return `[data-at="${element.dataset.at}"]`;
    return element?.id ? `#${CSS.escape(element.id)}` : null;
  }

  function take(page) {
    const focus = selectorOf(document.activeElement);
    const open = [...document.querySelectorAll("[data-part] details[open]")].map((one) => one.id);
    for (const part of page.querySelectorAll("[data-part]")) {
      const old = document.getElementById(part.id);
      if (old) old.replaceWith(document.adoptNode(part));
    }
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    if (focus && !document.activeElement?.matches(focus)) document.querySelector(focus)?.focus({ preventScroll: true });
    past = JSON.parse(document.getElementById("past-data").textContent);
    shownAt = performance.now();
    draw();
  }

  // Only plain clicks on links to this page.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("#past-bar a[href], #past-list a[href]");
    if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(link.href);
    if (link.closest("#past-list")) document.querySelector(".past-card").scrollIntoView({ block: "nearest" });
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
    go(location.href, "stay");
  }

  window.addEventListener("popstate", () => go(location.href, "stay"));

  draw();
  setInterval(look, 500);
  document.addEventListener("visibilitychange", look);
})();
