"use strict";

// The server sorts and searches, for the page and for each update of it. Without a page load, this script asks the
// stream for another view, and keeps that in the URL.

(() => {
  const live = document.getElementById("live");
  const form = document.getElementById("view");
  const filter = form.elements.q;
  const PAUSE_MS = 200;
  const DEFAULTS = { sort: "-footprint", q: "" };

  let request = null;
  let connection = null;
  let isMoved = false; // since the last request was sent
  let timer;

  // The query of the stream: the page, and what differs from its default view.
  function address() {
    const page = new URLSearchParams(live.getAttribute("hx-sse:connect").split("?")[1]).get("page");
    const query = new URLSearchParams({ page });
    const chosen = new URLSearchParams(location.search);
    for (const [name, preset] of Object.entries(DEFAULTS)) {
      const value = chosen.get(name) ?? preset;
      if (value !== preset) query.set(name, value);
    }
    return `live?${query}`;
  }

  function show(chosen) {
    const url = new URL(location.href);
    for (const [name, value] of Object.entries(chosen)) {
      if (value === DEFAULTS[name]) url.searchParams.delete(name);
      else url.searchParams.set(name, value);
    }
    history.replaceState(null, "", url);
    if (request) request.action = address();
    isMoved = true;
    connectAgain();
  }

  // A request under way cannot be changed: its answer ends at once.
  function connectAgain() {
    connection?.reader?.cancel(); // htmx connects again, after a pause that is for errors
    connection?.delayCanceller?.();
  }

  document.addEventListener("htmx:config:request", ({ detail: { ctx } }) => {
    if (ctx.sourceElement !== live) return;
    request = ctx.request;
    request.action = address();
  });

  document.addEventListener("htmx:sse:before:connection", ({ detail }) => {
    connection = detail.connection;
    if (!isMoved || !connection.attempt) return; // the first request was sent before this event
    setTimeout(() => {
      isMoved = false;
      connection.delayCanceller?.();
    });
  });

  document.addEventListener("htmx:sse:after:connection", () => {
    if (isMoved) setTimeout(connectAgain);
  });

  document.addEventListener("submit", (event) => {
    if (event.target !== form) return;
    event.preventDefault();
    clearTimeout(timer);
    show({ q: filter.value, ...(event.submitter?.classList.contains("sort") && { sort: event.submitter.value }) });
  });

  filter.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => show({ q: filter.value }), PAUSE_MS);
  });
})();
