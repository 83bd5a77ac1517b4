"use strict";

// For every page: times of the browser's zone, and keyboard shortcuts.

// The server sends UTC and says so. A browser shows the time of its zone, which the footer names.

const Times = (() => {
  const day = (date, year) => date.toLocaleDateString([], { day: "numeric", month: "short", year });
  const MINUTES = { hour: "2-digit", minute: "2-digit" };
  const HALF_DAY = 43200;
  const clock = (date, parts) => date.toLocaleTimeString([], { hourCycle: "h23", ...parts });

  // With the date if it is not today, and the year if it is not this one.
  function words(date, parts) {
    const now = new Date();
    const year = date.getFullYear() === now.getFullYear() ? undefined : "numeric";
    return date.toDateString() === now.toDateString() ? clock(date, parts) : `${day(date, year)}, ${clock(date, parts)}`;
  }

  // In a narrow column: without the date within half a day of now, else the date alone.
  function column(date) {
    const year = date.getFullYear() === new Date().getFullYear() ? undefined : "numeric";
    return Math.abs(Date.now() - date) < HALF_DAY * 1000 ? clock(date, {}) : day(date, year);
  }

  function localise(root) {
    for (const time of root.querySelectorAll("time")) {
      time.title = time.dateTime;
      const date = new Date(time.dateTime);
      const parts = "minutes" in time.dataset ? MINUTES : {};
      // On a page about one moment the date is in its heading.
      if ("column" in time.dataset) time.textContent = column(date);
      else time.textContent = "clock" in time.dataset ? clock(date, parts) : words(date, parts);
    }
    // Words in a picture have no room for a date, unless they stand for a whole day.
    for (const word of root.querySelectorAll("[data-unix]")) word.textContent = short(Number(word.dataset.unix), word.dataset);
  }

  function short(unix, { day: isDay, minutes: isMinutes }) {
    if (isDay !== undefined) return day(new Date((unix + HALF_DAY) * 1000)); // the nearest midnight of this zone
    const date = new Date(unix * 1000);
    const text = clock(date, isMinutes === undefined ? {} : MINUTES);
    return text === "00:00" ? day(date) : text;
  }

  const minutes = (unix) => words(new Date(unix * 1000), MINUTES);
  const moment = (unix) => words(new Date(unix * 1000), {});

  function zone() {
    const parts = new Intl.DateTimeFormat([], { timeZoneName: "short" }).formatToParts();
    return parts.find((part) => part.type === "timeZoneName").value;
  }

  localise(document);
  document.getElementById("zone").textContent = `Times in ${zone()}`;
  return { localise, minutes, moment };
})();

// Commands to copy. Without permission, or over plain http, the command is shown to be selected.

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  const text = button.dataset.copy;
  const said = document.getElementById("announcement");
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
    said.textContent = `Copied: ${text}`;
  } catch {
    button.textContent = text;
    getSelection().selectAllChildren(button);
    said.textContent = `Copying is not allowed here. The command is: ${text}`;
  }
});

// Keyboard shortcuts. They can be disabled in this browser, as WCAG 2.1.4 requires for keys without a modifier.

(() => {
  const KEY = "memwatch.shortcuts";
  const SEQUENCE_MS = 1500;
  const dialog = document.getElementById("shortcuts");
  const button = document.getElementById("show-shortcuts");
  const enabled = document.getElementById("use-shortcuts");
  let wentAt = -Infinity; // when g was pressed

  const isTyping = (element) => element.closest("input, select, textarea, [contenteditable]") !== null;
  const show = () => dialog.open || dialog.showModal();

  function go(key) {
    const link = document.querySelector(`.top nav [data-key="${CSS.escape(key)}"]`);
    link?.click();
    return link !== null;
  }

  function focusFilter() {
    const filter = document.querySelector("main input[type=search]");
    filter?.select();
    filter?.focus();
    return filter !== null;
  }

  // Whether the key is one of ours.
  function press(key, time) {
    const follows = time - wentAt < SEQUENCE_MS;
    wentAt = !follows && key === "g" ? time : -Infinity;
    if (follows) return go(key);
    if (key === "/") return focusFilter();
    if (key !== "?") return false;
    show();
    return true;
  }

  document.addEventListener("keydown", (event) => {
    const isPlain = !event.ctrlKey && !event.metaKey && !event.altKey && !event.repeat && !event.isComposing;
    if (!isPlain || event.key === "Shift" || !enabled.checked || dialog.open || isTyping(event.target)) return;
    if (press(event.key, event.timeStamp)) event.preventDefault();
  });

  // Storage may be disabled: then the choice lasts until the page is left.
  try {
    enabled.checked = localStorage.getItem(KEY) !== "off";
    enabled.addEventListener("change", () => localStorage.setItem(KEY, enabled.checked ? "on" : "off"));
  } catch {
    enabled.checked = true;
  }
  button.addEventListener("click", show);
  button.hidden = false;
})();
