// Puts the frames of an atlas together: the controls choose one, and the picture's words follow it.
// Nothing is fetched: what it needs lies in the page, deflated, and is unpacked when the figure comes near.
"use strict";
(() => {
  const QUIET = 500; // ms without a move before the words are read out

  async function unpack(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  function assemble(data, number) {
    const [runs] = data.f[number];
    const parts = [];
    for (let k = 0; k < runs.length; k += 2) {
      for (let n = 0; n < runs[k + 1]; n += 1) parts.push(data.t[runs[k] + n]);
    }
    return parts.join("\n");
  }

  // The width of a frame on the page, and its height as a share of it, from the head of its SVG.
  function shape(head, width) {
    const [, , wide, high] = /viewBox="([^"]*)"/.exec(head)[1].split(/[\s,]+/).map(Number);
    return { width, ratio: high / wide };
  }

  function place(input) {
    if (input.type === "checkbox") return Number(input.checked);
    return input.tagName === "SELECT" ? input.selectedIndex : Number(input.value);
  }

  function places(input) {
    if (input.disabled) return 1;
    if (input.type === "checkbox") return 2;
    return input.tagName === "SELECT" ? input.options.length : Number(input.max) + 1;
  }

  function begin(figure) {
    const inputs = [...figure.querySelectorAll(".atlas-controls input, .atlas-controls select")];
    const picture = figure.querySelector(".atlas-picture");
    const words = figure.querySelector(".atlas-words");
    const stage = document.createElement("div"); // as high as the highest frame: nothing below it moves
    stage.className = "atlas-stage";
    picture.before(stage);
    stage.append(picture);
    let shapes = [];
    let data = null, opened = null, address = "", timer = 0, shown = -1;

    function open() {
      opened = opened || unpack(figure.querySelector("script").textContent).then((found) => {
        data = found;
        shapes = found.f.map(([[first], , width]) => shape(found.t[first], width));
        stand();
      });
      return opened;
    }

    function stand() {
      const most = getComputedStyle(picture).maxWidth; // a phone has pixels, all else 100%
      const room = most.endsWith("px") ? parseFloat(most) : stage.clientWidth;
      const heights = shapes.map(({ width, ratio }) => Math.min(width, room) * ratio);
      stage.style.minHeight = heights.length ? `${Math.ceil(Math.max(...heights))}px` : "";
    }

    // Where an input is, in the words of its options: a screen reader says them in place of a number.
    function tell(input) {
      if (input.type !== "range") return;
      const stop = JSON.parse(input.dataset.stops)[place(input)];
      input.setAttribute("aria-valuetext", stop);
      input.parentElement.querySelector("output").textContent = stop;
    }

    function show() {
      let setting = 0;
      for (const input of inputs) setting = setting * places(input) + (input.disabled ? 0 : place(input));
      const number = data.s[setting];
      if (number === shown) return;
      shown = number;
      const [, alt, width] = data.f[number];
      const before = address;
      address = URL.createObjectURL(new Blob([assemble(data, number)], { type: "image/svg+xml" }));
      picture.removeAttribute("height"); // frames differ in height: each has its own
      picture.width = width;
      picture.src = address;
      picture.alt = alt;
      if (before) URL.revokeObjectURL(before);
      clearTimeout(timer);
      timer = setTimeout(() => { words.textContent = alt; }, QUIET);
    }

    async function moved(input) {
      tell(input);
      try {
        await open();
        show();
      } catch (error) {
        fail(figure, `This figure stands still here: its frames cannot be unpacked (${error.message}).`);
      }
    }

    for (const input of inputs) input.addEventListener("input", () => moved(input));
    addEventListener("resize", () => requestAnimationFrame(stand));
    inputs.forEach(tell); // a browser that comes back to a page keeps where its inputs were
    figure.querySelector(".atlas-controls").hidden = false;
    figure.dataset.ready = "";
    return async () => {
      await open();
      show();
    };
  }

  function fail(figure, why) {
    figure.querySelector(".atlas-controls").hidden = true;
    const note = document.createElement("p");
    note.className = "atlas-error";
    note.setAttribute("role", "status");
    note.textContent = why;
    figure.querySelector(".atlas-count").before(note);
  }

  const figures = [...document.querySelectorAll("figure.atlas")];
  if (!("DecompressionStream" in window)) {
    const need = "Chrome 80, Firefox 113 or Safari 16.4";
    for (const figure of figures) fail(figure, `This figure stands still here: it moves from ${need} on.`);
    return;
  }
  const near = "IntersectionObserver" in window
    ? new IntersectionObserver((seen) => {
      for (const entry of seen.filter((each) => each.isIntersecting)) {
        near.unobserve(entry.target);
        starts.get(entry.target)().catch((error) => fail(entry.target, `This figure stands still: ${error.message}.`));
      }
    }, { rootMargin: "600px" })
    : null;
  const starts = new Map(figures.map((figure) => [figure, begin(figure)]));
  if (near) for (const figure of figures) near.observe(figure);
})();
