"use strict";

// An incident: links that copy, and the times of the picture in the zone of the browser. A link whose address cannot be
// copied, in an old browser or without permission, opens it as it does without a script.

(() => {
  const MINUTES = { hour: "2-digit", minute: "2-digit" };
  const PARTS = { minutes: MINUTES, seconds: { ...MINUTES, second: "2-digit" } };
  for (const word of document.querySelectorAll(".incident-picture [data-at]")) {
    const parts = { hourCycle: "h23", ...PARTS[word.dataset.parts] };
    word.textContent = new Date(word.dataset.at * 1000).toLocaleTimeString([], parts);
  }

  const SCALE = 2;
  async function read(link) {
    const answer = await fetch(link.href);
    if (!answer.ok) throw new Error(`${answer.status}`);
    return new Blob([await answer.text()], { type: "text/plain" });
  }

  // Chats and documents take PNG, not SVG.
  async function paint(link) {
    const image = new Image();
    image.src = link.href;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = image.naturalWidth * SCALE;
    canvas.height = image.naturalHeight * SCALE;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((done, fail) => canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("no picture"))), "image/png"));
  }

  // The clipboard takes a promise, so that the click still counts as the user's when the answer is late.
  const item = (type, promise) => navigator.clipboard.write([new ClipboardItem({ [type]: promise })]);
  const WAYS = {
    link: (link) => navigator.clipboard.writeText(link.href),
    text: (link) => item("text/plain", read(link)),
    picture: (link) => item("image/png", paint(link)),
  };

  if (!navigator.clipboard?.write || !window.ClipboardItem) return;
  const announcement = document.getElementById("announcement");
  for (const link of document.querySelectorAll("[data-copy]")) {
    const words = link.dataset.words;
    link.textContent = words;
    link.addEventListener("click", async (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      try {
        await WAYS[link.dataset.copy](link);
        link.textContent = "Copied";
        announcement.textContent = "Copied";
        setTimeout(() => (link.textContent = words), 2000);
      } catch {
        location.href = link.href;
      }
    });
  }
})();
