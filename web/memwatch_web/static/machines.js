"use strict";

// Hides the tiles that do not contain the text of the filter, also in each update before it is shown. On the page of one
// machine, which app.js does not update, it only writes times in the local time zone.

(() => {
  const filter = document.getElementById("view")?.elements.q;

  function apply(root) {
    const words = filter.value.toLowerCase();
    const tiles = [...root.querySelectorAll(".machine-tile")];
    for (const tile of tiles) tile.hidden = !tile.textContent.toLowerCase().includes(words);
    const seen = tiles.filter((tile) => !tile.hidden).length;
    document.getElementById("shown").textContent = words ? `${seen} of ${tiles.length}` : "";
  }

  document.addEventListener("htmx:before:swap", (event) => {
    const fragment = event.detail.tasks[0]?.fragment;
    if (!fragment) return;
    if (filter) apply(fragment);
    else Times.localise(fragment);
  });

  if (!filter) return;
  filter.value = new URL(location.href).searchParams.get("q") ?? "";
  filter.addEventListener("input", () => {
    const address = new URL(location.href);
    if (filter.value) address.searchParams.set("q", filter.value);
    else address.searchParams.delete("q");
    history.replaceState(null, "", address);
    apply(document);
  });
  filter.form.addEventListener("submit", (event) => event.preventDefault());
  apply(document);
})();
