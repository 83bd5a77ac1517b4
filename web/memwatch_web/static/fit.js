"use strict";

// Copy an opened file into the text field, which is sent only when the form is submitted, and launch lines to the
// clipboard, where the browser allows it.

(() => {
  const file = document.getElementById("config-file");
  file.closest("label").hidden = false;
  file.addEventListener("change", async () => {
    const chosen = file.files[0];
    if (chosen) document.getElementById("config").value = await chosen.slice(0, 60000).text();
  });
  if (!navigator.clipboard) return;
  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(button.parentElement.querySelector("pre").textContent);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Copying is not allowed";
      }
    });
  }
})();
