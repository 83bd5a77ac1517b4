"use strict";

// A notification of the browser when memory turns critical: for whoever asked for it by a click, in this browser, while
// a page is open. Nobody is asked by the page itself.

(() => {
  const button = document.getElementById("notify");
  const KEY = "memwatch.notify";
  if (!("Notification" in window) || !isSecureContext) return; // plain http from another machine has none

  const isWanted = () => localStorage.getItem(KEY) === "critical" && Notification.permission === "granted";

  function show() {
    const isBlocked = Notification.permission === "denied";
    button.hidden = false;
    button.disabled = isBlocked;
    button.setAttribute("aria-pressed", isWanted());
    if (isBlocked) button.textContent = "This browser blocks notifications of this page";
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
      // The tag is the machine's: several open pages say it once.
      new Notification(title, { body: verdict, tag: `memwatch ${location.host}`, icon: "static/icon-critical.svg" });
    } catch {
      // Some phones let only service workers notify; the tab's title and icon say it there.
    }
  });

  show();
})();
