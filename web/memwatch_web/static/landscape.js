"use strict";

// Looking back: the picture and the holders of an earlier time, from the server. Moving over the past shows a time for as
// long as the pointer is there; a click, a touch or an arrow key keeps it until Escape.

(() => {
  const live = document.getElementById("live");
  const PARTS = ["landscape-place", "who"];
  const STEPS_OF_A_SPAN = 60;
  const COPY_WIDTH = 1200;
  const COPY_HEIGHT = 630;

  let wanted = null; // the time to show, in Unix seconds, null for now
  let shown = null;
  let isKept = false;
  let isAsking = false;
  const parts = new Map(); // of now, while an earlier time is shown
  let request = null; // of the stream
  let connection = null;
  let isMoved = false; // since the last request was sent

  const { spanOf, timeAt } = Scrub;
  const firstPast = () => live.querySelector("svg.past");

  // The stream morphs around these parts meanwhile.
  function hold() {
    for (const id of PARTS) {
      const part = document.getElementById(id);
      if (!part || parts.has(id)) continue;
      parts.set(id, part.cloneNode(true));
      part.setAttribute("hx-morph-skip", "");
    }
  }

  function look(unix) {
    const past = firstPast();
    if (!past) return;
    wanted = Math.max(spanOf(past).start, unix);
    hold();
    point();
    if (!isAsking) ask();
  }

  function point() {
    for (const past of live.querySelectorAll("svg.past")) {
      const { start, now } = spanOf(past);
      Scrub.point(past, wanted);
      const slider = past.querySelector(".past-slider");
      slider?.setAttribute("aria-valuenow", Math.round((100 * ((wanted ?? now) - start)) / (now - start)));
      slider?.setAttribute("aria-valuetext", wanted === null ? "now" : new Date(wanted * 1000).toLocaleTimeString([], { hourCycle: "h23" }));
    }
  }

  // One request at a time; the latest wish is asked next.
  async function ask() {
    isAsking = true;
    while (wanted !== null && wanted !== shown) {
      const at = wanted;
      const range = new URLSearchParams(location.search).get("range") ?? "";
      let answer;
      try {
        answer = await fetch(`landscape?${new URLSearchParams({ at: new Date(at * 1000).toISOString().replace(/\.\d+/, ""), range })}`);
      } catch {
        break; // the banner shows a lost connection
      }
      shown = at;
      if (answer.ok && wanted !== null) show(await answer.text());
    }
    isAsking = false;
  }

  function show(text) {
    const found = document.createElement("template");
    found.innerHTML = text;
    Times.localise(found.content);
    replaceNow(found.content);
    const then = found.content.getElementById("who");
    then.setAttribute("hx-morph-skip", "");
    document.getElementById("who")?.replaceWith(then);
  }

  // The past stays; the towers are those of the time.
  function replaceNow(found) {
    const place = document.getElementById("landscape-place");
    for (const kind of ["now-wide", "now-narrow", "now", "loupe", "left-out"]) {
      for (const tower of place.querySelectorAll(".tower")) {
        const then = found.getElementById(tower.id)?.querySelector(`.${kind}`);
        const now = tower.querySelector(`.${kind}`);
        if (now && then) now.replaceWith(then);
      }
    }
    place.querySelector(".look-back").replaceWith(found.querySelector(".look-back"));
  }

  function leave() {
    if (wanted === null) return;
    [wanted, shown, isKept] = [null, null, false];
    const hasFocus = document.activeElement?.matches(".past-slider");
    for (const [id, before] of parts) document.getElementById(id)?.replaceWith(before);
    parts.clear();
    point();
    connectAgain(); // for all parts: those that have not changed since are not sent again
    if (hasFocus) live.querySelector(".past-slider")?.focus({ preventScroll: true });
  }

  // The stream has towers in the form that fits the width of the page.
  function form() {
    const wide = live.querySelector(".now-wide");
    return wide && getComputedStyle(wide).display === "none" ? "narrow" : "wide";
  }

  function nameForm() {
    const [path, query] = request.action.split("?");
    const wanted = new URLSearchParams(query);
    wanted.set("form", form());
    request.action = `${path}?${wanted}`;
  }

  document.addEventListener("htmx:config:request", ({ detail: { ctx } }) => {
    if (ctx.sourceElement !== live) return;
    request = ctx.request;
    nameForm();
  });

  document.addEventListener("htmx:sse:before:connection", ({ detail }) => {
    connection = detail.connection;
    nameForm();
    if (!isMoved || !connection.attempt) return; // the first request was sent before this event
    setTimeout(() => {
      isMoved = false;
      nameForm();
      connection.delayCanceller?.(); // the pause is for errors
    });
  });

  // A request under way cannot be changed: its answer ends at once.
  document.addEventListener("htmx:sse:after:connection", () => {
    if (isMoved) setTimeout(connectAgain);
  });

  function connectAgain() {
    isMoved = true;
    connection?.reader?.cancel();
  }

  window.addEventListener("resize", () => {
    if (request && !request.action.endsWith(form())) connectAgain();
  });

  live.addEventListener("pointermove", (event) => {
    const past = event.target.closest("svg.past");
    if (past && (!isKept || event.buttons)) look(timeAt(past, event.clientX));
  });

  live.addEventListener("pointerdown", (event) => {
    const past = event.target.closest("svg.past");
    if (!past || event.target.closest("a")) return;
    look(timeAt(past, event.clientX));
    isKept = true;
  });

  live.addEventListener("pointerout", (event) => {
    if (!isKept && event.target.closest("svg.past") && !event.relatedTarget?.closest?.("svg.past")) leave();
  });

  live.addEventListener("click", (event) => {
    if (event.target.closest("#return")) leave();
    if (event.target.closest("#copy-picture")) copy(event.target.closest("#copy-picture"));
  });

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") leave();
    const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const past = firstPast();
    const isElsewhere = event.target !== document.body && !event.target.closest("svg.past");
    if (!direction || !past || isElsewhere || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    event.preventDefault();
    const { start, now } = spanOf(past);
    const next = (wanted ?? now) + (direction * (now - start)) / STEPS_OF_A_SPAN;
    if (next >= now) return leave();
    isKept = true;
    look(next);
  });

  // The picture of this machine as PNG to the clipboard. Browsers allow that on HTTPS and on localhost.
  async function copy(button) {
    const theme = getComputedStyle(document.documentElement).colorScheme === "dark" ? "dark" : "light";
    const query = new URLSearchParams({ theme });
    if (wanted !== null) query.set("at", new Date(wanted * 1000).toISOString().replace(/\.\d+/, ""));
    const png = async () => {
      const image = new Image(COPY_WIDTH, COPY_HEIGHT);
      image.src = `picture.svg?${query}`;
      await image.decode();
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [2 * COPY_WIDTH, 2 * COPY_HEIGHT];
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      return new Promise((done) => canvas.toBlob(done, "image/png"));
    };
    let word = "copied";
    try {
      await navigator.clipboard.write([new ClipboardItem({ "image/png": png() })]);
    } catch {
      word = "not allowed here";
    }
    button.textContent = word;
    setTimeout(() => { button.textContent = "copy"; }, 2000);
  }

  document.documentElement.toggleAttribute("data-copies", Boolean(navigator.clipboard?.write && window.ClipboardItem));
})();
