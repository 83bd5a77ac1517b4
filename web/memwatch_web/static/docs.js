"use strict";

// Swagger UI's dark theme follows that of the page. Its class sets the scheme of colours itself: look without it.
(() => {
  const root = document.documentElement;
  const follow = () => {
    root.classList.remove("dark-mode");
    root.classList.toggle("dark-mode", getComputedStyle(root).colorScheme === "dark");
  };
  document.addEventListener("memwatch:theme", follow);
  follow();
})();

// validatorUrl: null, or the page would send the URL of the description to an external validator.
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger",
  deepLinking: true,
  validatorUrl: null,
  defaultModelsExpandDepth: 0,
  presets: [SwaggerUIBundle.presets.apis],
});
