"use strict";

// Copy an opened file into the text field, which is sent only when the form is submitted.

(() => {
  const file = document.getElementById("config-file");
  file.closest("label").hidden = false;
  file.addEventListener("change", async () => {
    const chosen = file.files[0];
    if (chosen) document.getElementById("config").value = await chosen.slice(0, 60000).text();
  });
})();
