"use strict";

// Lists that the server sorts by a figure. Their rows keep their places on an open page: a row that moves cannot
// be read or clicked. A list is sorted again when its order has differed for SORT_SECONDS, and at once when a level
// rises or the user asks for another order. A list in use waits: one under a pointer that moves, or with the focus. A
// sort puts other rows in the place of those shown; no row travels across it.

const Places = (() => {
  const SORT_SECONDS = 30;
  const HELD_SECONDS = 10;
  const LEVELS = ["unknown", "low", "medium", "high", "critical"];

  const now = () => performance.now() / 1000;
  const sorted = new Map(); // by list: the order in the last message that had it
  const differs = new Map(); // by list: since when its order is another
  let heldAt = -Infinity;

  document.addEventListener("pointermove", (event) => {
    if (event.target.closest?.("[data-places]")) heldAt = now();
  });

  // Rows by id, each with the rows of details below it.
  function readRows(list) {
    const rows = new Map();
    let last;
    for (const row of list.children) {
      if (last && row.classList.contains("detail-row")) last.push(row);
      else rows.set(row.id, (last = [row]));
    }
    return rows;
  }

  // New rows take the places of those that have gone, or come last. A sort moves places that nothing takes to the end,
  // where they are empty: what stands below the list stays where it is.
  function arrange(shown, next) {
    const fresh = [...next.keys()].filter((id) => !shown.has(id));
    const kept = [...shown.keys()].map((id) => (next.has(id) ? id : (fresh.shift() ?? id)));
    return [...kept, ...fresh];
  }

  function asGone(row, isEmpty) {
    const gone = row.cloneNode(true);
    gone.classList.add("gone");
    if (isEmpty) gone.classList.add("empty-place");
    return gone;
  }

  function keepList(shown, list, isUrgent) {
    const [rows, before] = [readRows(list), readRows(shown)];
    for (const [id, [row]] of rows) if (row.classList.contains("gone")) rows.delete(id);
    const isEmpty = (id) => before.get(id)?.[0].classList.contains("empty-place") && !rows.has(id);
    const wanted = ("same" in list.dataset && sorted.get(list.id)) || [...rows.keys()];
    delete list.dataset.same;
    const order = arrange(before, rows);
    sorted.set(list.id, wanted);
    const isSorted = order.filter((id) => !isEmpty(id)).join() === wanted.join();
    if (isSorted) differs.delete(list.id);
    else if (!differs.has(list.id)) differs.set(list.id, now());
    const isInUse = shown.contains(document.activeElement) || now() - heldAt < HELD_SECONDS;
    const isDue = !isSorted && (isUrgent || (now() - differs.get(list.id) >= SORT_SECONDS && !isInUse));
    const places = isDue ? [...wanted, ...order.filter((id) => !rows.has(id))] : order;
    const show = (id) => rows.get(id) ?? before.get(id).map((row) => asGone(row, isDue));
    list.replaceChildren(...places.flatMap(show));
    if (!isDue) return;
    differs.delete(list.id);
    shown.replaceChildren(...list.cloneNode(true).children);
    document.dispatchEvent(new CustomEvent("memwatch:sorted", { detail: list.id }));
  }

  const isWorse = (before, next) => LEVELS.indexOf(next) > LEVELS.indexOf(before);

  function keep(fragment, isUrgent) {
    for (const list of fragment.querySelectorAll("[data-places]")) {
      const shown = document.getElementById(list.id);
      if (shown?.dataset.places !== list.dataset.places) continue;
      const rises = (row) => isWorse(document.getElementById(row.id)?.dataset.level, row.dataset.level);
      keepList(shown, list, isUrgent || [...list.children].some(rises));
    }
  }

  return { keep, isWorse };
})();

// The server renders all content. This script detects stale data.

(() => {
  const live = document.getElementById("live");
  const banner = document.getElementById("stale-banner");
  const announcement = document.getElementById("announcement");
  const icon = document.getElementById("icon");
  const up = document.documentElement.dataset.up;
  const subject = live.dataset.subject ? `${live.dataset.subject} · ` : "";
  const page = new URLSearchParams(live.getAttribute("hx-sse:connect").split("?")[1]).get("page");

  const STALE_INTERVALS = 2.5; // with one sample a second and a check every 250 ms: stale within 3 s
  const MIN_STALE_SECONDS = 2; // under pressure there are ten samples a second; a page may lag a little
  const RETRY_SECONDS = 5;

  const now = () => performance.now() / 1000;
  const read = (root) => JSON.parse(root.querySelector("#latest").textContent);
  const timeOfDay = (unix) => new Date(unix * 1000).toLocaleTimeString([], { hourCycle: "h23" });

  let latest = read(document);
  let freshAt = now() - Number(document.body.dataset.stalledSeconds ?? 0);
  let retriedAt = now();
  let connection = null;
  let titles = null;
  let stale = null;
  let wasHidden = false;

  // The end of a silence counts as a change: a critical level may be notified then.
  function announceLevel(before, after) {
    if (before.level === after.level && (!before.silence || after.silence)) return;
    announcement.textContent = after.verdict;
    document.dispatchEvent(new CustomEvent("memwatch:level", { detail: after }));
  }

  function showTitle() {
    const { title, silence } = latest;
    const local = silence ? title.replace(silence.words, Times.minutes(silence.until_unix)) : title;
    document.title = (stale ? "stale · " : "") + subject + local;
    icon.href = `${up}static/icon-${stale ? "stale" : latest.level}.svg`;
  }

  function showClock() {
    const clock = document.getElementById("clock");
    clock.dateTime = new Date(latest.unix * 1000).toISOString();
    Times.localise(clock.parentElement);
  }

  function showFiring(count) {
    const badge = document.getElementById("firing");
    if (badge.textContent === String(count || "")) return;
    badge.textContent = count || "";
    badge.hidden = !count;
    const link = document.getElementById("nav-alerts");
    if (count) link.setAttribute("aria-label", `Alerts, ${count} firing`);
    else link.removeAttribute("aria-label");
  }

  function accept(next) {
    if (next.seq === latest.seq && next.unix === latest.unix) return; // a repeated sample does not count as fresh data
    announceLevel(latest, next);
    latest = next;
    freshAt = now();
    showTitle();
    showClock();
    showFiring(next.firing);
  }

  function look() {
    const quiet = now() - freshAt;
    const limit = Math.max(STALE_INTERVALS * latest.interval_seconds, MIN_STALE_SECONDS);
    const isStale = quiet > limit;
    if (isStale) {
      banner.textContent = `No new data for ${duration(quiet)}. Showing data from ${timeOfDay(latest.unix)}.`;
      reconnect();
    }
    if (isStale !== stale) {
      stale = isStale;
      document.body.classList.toggle("stale", stale);
      banner.hidden = !stale;
      showTitle();
    }
  }

  function duration(seconds) {
    if (seconds < 120) return `${Math.round(seconds)} s`;
    return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
  }

  // A stream may be dead without being closed (suspend, unplugged cable), or refused and not retried by htmx.
  function reconnect() {
    if (now() - retriedAt < RETRY_SECONDS) return;
    retriedAt = now();
    if (document.hidden) {
      openTitles();
      return;
    }
    connection?.reader?.cancel();
    htmx.trigger(live, "reconnect");
  }

  // A hidden page follows only what its title and notifications need.
  function openTitles() {
    titles?.close();
    titles = new EventSource(`${up}live?page=title`);
    titles.addEventListener("title", (event) => accept(JSON.parse(event.data)));
  }

  function followVisibility() {
    if (document.hidden) {
      connection?.reader?.cancel();
      openTitles();
      return;
    }
    titles?.close();
    titles = null;
    wasHidden = true;
    htmx.trigger(live, "reconnect");
  }

  document.addEventListener("visibilitychange", followVisibility);

  document.addEventListener("htmx:sse:before:connection", (event) => {
    if (document.hidden) event.detail.connection.cancelled = true;
  });

  document.addEventListener("htmx:sse:after:connection", (event) => {
    connection = event.detail.connection;
  });

  // Events are named after their page; htmx swaps only events without a name.
  document.addEventListener("htmx:sse:before:message", (event) => {
    if (event.detail.message.event === page) event.detail.message.event = "";
  });

  // A part that has not changed since the message before is sent empty: it stays as it is. Rows keep their places.
  function keepSame(fragment) {
    for (const part of fragment.querySelectorAll("[data-same]")) {
      const same = document.getElementById(part.id)?.cloneNode(true);
      if (!same) continue;
      for (const list of same.querySelectorAll("[data-places]")) list.dataset.same = "";
      part.replaceWith(same);
    }
    Places.keep(fragment, wasHidden || Places.isWorse(latest.level, read(fragment).level));
    wasHidden = false;
  }

  live.addEventListener("htmx:before:swap", (event) => {
    if (event.target !== live) return; // a part inside, by a link
    const fragment = event.detail.tasks[0]?.fragment;
    if (!fragment?.querySelector("#latest")) {
      event.preventDefault(); // not a fragment of memwatchd: an error page, a login form of a proxy
      return;
    }
    keepSame(fragment);
    Times.localise(fragment);
    accept(read(fragment));
  });

  if (document.hidden) openTitles();
  look();
  setInterval(look, 250);
})();

// Browser notifications when memory becomes critical. Enabled by a click, in this browser only, while a page is open.
// The page never asks for permission by itself.

(() => {
  const button = document.getElementById("notify");
  const KEY = "memwatch.monitor.notify";
  if (!("Notification" in window) || !isSecureContext) return; // not available over plain HTTP from another machine

  const isWanted = () => localStorage.getItem(KEY) === "critical" && Notification.permission === "granted";

  function show() {
    const isBlocked = Notification.permission === "denied";
    button.hidden = false;
    button.disabled = isBlocked;
    button.setAttribute("aria-pressed", isWanted());
    if (isBlocked) button.textContent = "Notifications are blocked in this browser";
  }

  button.addEventListener("click", async () => {
    if (isWanted()) localStorage.removeItem(KEY);
    else if ((await Notification.requestPermission()) === "granted") localStorage.setItem(KEY, "critical");
    show();
  });

  document.addEventListener("memwatch:level", (event) => {
    const { level, verdict, title, silence } = event.detail;
    if (level !== "critical" || silence || !isWanted()) return;
    try {
      // One tag for each machine: several open pages show one notification.
      new Notification(title, { body: verdict, tag: `memwatch ${location.host}`, icon: `${document.documentElement.dataset.up}static/icon-critical.svg` });
    } catch {
      // Some mobile browsers allow this in service workers only. The tab title and icon still show the level.
    }
  });

  show();
})();
