"use strict";

// A file that is opened becomes the text of the field; nothing is sent before the button is pressed.

(() => {
  const file = document.getElementById("config-file");
  file.closest("label").hidden = false;
  file.addEventListener("change", async () => {
    const chosen = file.files[0];
    if (chosen) document.getElementById("config").value = await chosen.slice(0, 60000).text();
  });
})();
