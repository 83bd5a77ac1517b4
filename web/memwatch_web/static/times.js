"use strict";

// The server sends UTC and says so. A browser shows the time of its zone, which the footer names.

const Times = (() => {
  const day = (date) => date.toLocaleDateString([], { day: "numeric", month: "short" });
  const clock = (date) => date.toLocaleTimeString([], { hourCycle: "h23" });

  // With the date if it is not today.
  function localise(root) {
    const today = new Date().toDateString();
    for (const time of root.querySelectorAll("time")) {
      const date = new Date(time.dateTime);
      time.title = time.dateTime;
      time.textContent = date.toDateString() === today ? clock(date) : `${day(date)}, ${clock(date)}`;
    }
  }

  function zone() {
    const parts = new Intl.DateTimeFormat([], { timeZoneName: "short" }).formatToParts();
    return parts.find((part) => part.type === "timeZoneName").value;
  }

  localise(document);
  document.getElementById("zone").textContent = `Times in ${zone()}`;
  return { localise };
})();
