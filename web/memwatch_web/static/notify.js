"use strict";

// Browser notifications when memory becomes critical. Enabled by a click, in this browser only, while a page is open.
// The page never asks for permission by itself.

(() => {
  const button = document.getElementById("notify");
  const KEY = "memwatch.notify";
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
    const { level, verdict, title } = event.detail;
    if (level !== "critical" || !isWanted()) return;
    try {
      // One tag for each machine: several open pages show one notification.
      new Notification(title, { body: verdict, tag: `memwatch ${location.host}`, icon: `${document.documentElement.dataset.up}static/icon-critical.svg` });
    } catch {
      // Some mobile browsers allow this in service workers only. The tab title and icon still show the level.
    }
  });

  show();
})();
