"use strict";

// The time under the pointer on a past, and its line. For the overview and the history.

const Scrub = (() => {
  const spanOf = (past) => ({ start: Number(past.dataset.start), end: Number(past.dataset.end), now: Number(past.dataset.now) });

  function timeAt(past, x) {
    const box = past.getBoundingClientRect();
    const { start, end, now } = spanOf(past);
    return Math.min(now, start + (end - start) * Math.min(1, Math.max(0, (x - box.left) / box.width)));
  }

  function placeOf(past, unix) {
    const { start, end } = spanOf(past);
    return `${((unix - start) / (end - start)) * 100}%`;
  }

  // Draw the line of a time, or with null none.
  function point(past, unix) {
    const cursor = past.querySelector(".cursor");
    if (unix !== null) for (const end of ["x1", "x2"]) cursor.setAttribute(end, placeOf(past, unix));
    cursor.setAttribute("visibility", unix === null ? "hidden" : "visible");
  }

  return { spanOf, timeAt, placeOf, point };
})();
