"use strict";

// The theme chosen in this browser, and the view for a screen on a wall. Runs before the first paint, so that nothing else
// flashes.

(() => {
  const KEY = "memwatch.theme";
  const root = document.documentElement;

  // Storage may be disabled: then a choice lasts until the page is left.
  function read() {
    try {
      return localStorage.getItem(KEY) ?? "";
    } catch {
      return root.dataset.theme ?? "";
    }
  }

  function keep(theme) {
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // as above
    }
  }

  // `theme`: light, dark, or anything else for that of the system.
  function apply(theme) {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
    if (document.body) show();
  }

  function show() {
    const colour = getComputedStyle(root).getPropertyValue("--page").trim();
    for (const bar of document.querySelectorAll("meta[name=theme-color]")) bar.content = colour;
    document.getElementById("theme").value = root.dataset.theme ?? "";
    document.dispatchEvent(new Event("memwatch:theme"));
  }

  root.toggleAttribute("data-kiosk", new URLSearchParams(location.search).has("kiosk"));
  apply(read());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  window.addEventListener("storage", () => apply(read()));
  document.addEventListener("DOMContentLoaded", () => {
    const select = document.getElementById("theme");
    select.parentElement.hidden = false;
    select.addEventListener("change", () => {
      keep(select.value);
      apply(select.value);
    });
    show();
  });
})();
