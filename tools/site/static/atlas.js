// Puts the frames of an atlas together: the controls choose one, and the picture's words follow it.
// Nothing is fetched: what it needs lies in the page, deflated, and is unpacked when the figure comes near.
"use strict";
(() => {
  const QUIET = 500; // ms without a move before the words are read out
  const EDGE = 6; // points around a panel that stands alone
  const phone = matchMedia("(max-width: 34rem)");

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

  // Where a drawing is measured: out of sight, and apart, so that the page is not laid out anew for it.
  let apart = null;
  function bench() {
    if (apart) return apart;
    const host = Object.assign(document.createElement("div"), { className: "atlas-bench", ariaHidden: "true" });
    document.body.append(host);
    apart = host.attachShadow({ mode: "open" });
    return apart;
  }

  // On a phone: the finding as text, and what lies side by side one below the other. Returns [finding, SVGs].
  function stacked(text) {
    const drawing = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
    const finding = drawing.querySelector("#finding");
    const said = finding ? finding.dataset.said : "";
    if (finding) finding.remove();
    const measured = document.importNode(drawing, true);
    bench().append(measured);
    const parts = [...measured.querySelectorAll("#figure_1 > g")].filter((part) => part.id !== "patch_1");
    const [left, top, wide, high] = drawing.getAttribute("viewBox").split(/[\s,]+/).map(Number);
    const boxes = parts.map((part) => part.getBBox()).filter((box) => box.width * box.height > 0).map((box) => ({
      from: Math.max(left, box.x - EDGE), to: Math.min(left + wide, box.x + box.width + EDGE),
      top: Math.max(top, box.y - EDGE), end: Math.min(top + high, box.y + box.height + EDGE),
    }));
    measured.remove();
    const columns = [];
    for (const box of boxes.sort((one, other) => one.from - other.from)) {
      const last = columns.at(-1);
      if (!last || box.from > last.to - 2 * EDGE) { columns.push({ ...box }); continue; }
      for (const [side, pick] of [["from", Math.min], ["to", Math.max], ["top", Math.min], ["end", Math.max]]) last[side] = pick(last[side], box[side]);
    }
    if (!columns.length) columns.push({ from: left, to: left + wide, top, end: top + high }); // nothing drawn has an area
    const cuts = columns.map(({ from, to, top: start, end }) => {
      drawing.setAttribute("viewBox", `${from} ${start} ${to - from} ${end - start}`);
      drawing.setAttribute("width", `${to - from}pt`);
      drawing.setAttribute("height", `${end - start}pt`);
      const source = new XMLSerializer().serializeToString(drawing);
      return { source, share: (to - from) / wide, ratio: (end - start) / (to - from) };
    });
    return [said, cuts];
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

  function stop(input) {
    return JSON.parse(input.dataset.stops)[place(input)];
  }

  function begin(figure) {
    const inputs = [...figure.querySelectorAll(".atlas-controls input, .atlas-controls select")];
    const picture = figure.querySelector(".atlas-picture");
    const words = figure.querySelector(".atlas-words");
    const stage = document.createElement("div"); // as high as the highest frame: nothing below it moves
    stage.className = "atlas-stage";
    const finding = Object.assign(document.createElement("p"), { className: "atlas-finding", hidden: true });
    picture.before(finding, stage);
    stage.append(picture);
    const back = figure.querySelector(".atlas-back");
    const moves = [...inputs]; // the last one moved stands last
    let shapes = [];
    let piles = null; // on a phone: the panels of each frame
    let data = null, opened = null, addresses = [], timer = 0, shown = -1;

    function open() {
      opened = opened || unpack(figure.querySelector("script").textContent).then((found) => {
        data = found;
        shapes = found.f.map(([[first], , width]) => shape(found.t[first], width));
        stand();
        if (phone.matches) pile();
      });
      return opened;
    }

    // The height of the longest finding of all frames, so that a longer one moves nothing.
    function tallest() {
      const now = finding.textContent;
      const texts = data.t.map((element) => /id="finding" data-said="([^"]*)"/.exec(element)).filter(Boolean);
      const heights = [now, ...texts.map(([, said]) => said)].map((said) => {
        finding.textContent = said;
        return finding.offsetHeight;
      });
      finding.textContent = now;
      return Math.max(...heights);
    }

    // Each frame is measured before its turn, so that none needs more room than there is.
    async function pile() {
      if (piles) return;
      piles = [];
      for (const [number, [, , width]] of data.f.entries()) {
        piles.push({ width, cuts: stacked(assemble(data, number))[1].map(({ share, ratio }) => ({ share, ratio })) });
        await new Promise((next) => setTimeout(next)); // the page lives on meanwhile
      }
      stand();
      stage.dataset.measured = "";
    }

    // How high the panels of a frame are, one below the other.
    function heightOf({ width, cuts }) {
      const alone = cuts.length === 1;
      const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
      const room = alone ? 38 * rem : stage.clientWidth; // as in the style sheet
      const gap = alone ? 0 : 0.4 * rem;
      const heights = cuts.map(({ share, ratio }) => gap + Math.min(Math.round(width * share), room) * ratio);
      return heights.reduce((sum, height) => sum + height, 0);
    }

    function stand() {
      if (phone.matches && !finding.hidden && !finding.style.minHeight) finding.style.minHeight = `${tallest()}px`;
      if (phone.matches) { // panels below each other: as high as the highest, or as they ever were
        const reserved = parseFloat(stage.style.minHeight) || 0;
        const highest = Math.max(reserved, stage.offsetHeight, ...(piles ?? []).map(heightOf));
        stage.style.minHeight = `${Math.ceil(highest)}px`;
        return;
      }
      const most = getComputedStyle(picture).maxWidth; // a phone has pixels, all else 100%
      const room = most.endsWith("px") ? parseFloat(most) : stage.clientWidth;
      const heights = shapes.map(({ width, ratio }) => Math.min(width, room) * ratio);
      stage.style.minHeight = heights.length ? `${Math.ceil(Math.max(...heights))}px` : "";
    }

    // Where an input is, in the words of its options: a screen reader says them in place of a number.
    function tell(input) {
      if (input.type !== "range") return;
      input.setAttribute("aria-valuetext", stop(input));
      input.parentElement.querySelector("output").textContent = stop(input);
    }

    // The number of the frame where the inputs are; -1 where the page has none.
    function chosen() {
      let setting = 0;
      for (const input of inputs) setting = setting * places(input) + (input.disabled ? 0 : place(input));
      return data.s[setting];
    }

    // Some sliders leave their start a few at a time: those moved longest ago go back until there is a frame.
    function makeRoom() {
      const returned = [];
      for (const input of moves.slice(0, -1)) {
        if (chosen() >= 0) break;
        if (!("near" in input.dataset) || input.value === input.defaultValue) continue;
        input.value = input.defaultValue;
        tell(input);
        returned.push(`${input.getAttribute("aria-label")} is back at ${stop(input)}.`);
      }
      if (back) back.textContent = returned.join(" ");
    }

    function show() {
      makeRoom();
      const number = chosen();
      if (number === shown) return;
      shown = number;
      const [, alt, width] = data.f[number];
      const before = addresses;
      const [said, cuts] = phone.matches ? stacked(assemble(data, number)) : ["", [{ source: assemble(data, number), share: 1 }]];
      addresses = cuts.map(({ source }) => URL.createObjectURL(new Blob([source], { type: "image/svg+xml" })));
      stage.querySelectorAll("img + img").forEach((old) => old.remove());
      const pictures = [picture, ...cuts.slice(1).map(() => document.createElement("img"))];
      pictures.forEach((each, place) => {
        each.className = "atlas-picture";
        each.classList.toggle("atlas-panel", cuts.length > 1);
        each.removeAttribute("height"); // frames differ in height: each has its own
        each.width = Math.round(width * cuts[place].share);
        each.src = addresses[place];
        each.alt = place ? "" : alt;
        each.onload = phone.matches ? stand : null;
        stage.append(each);
      });
      finding.hidden = !said;
      finding.textContent = said;
      before.forEach((old) => URL.revokeObjectURL(old));
      clearTimeout(timer);
      timer = setTimeout(() => { words.textContent = alt; }, QUIET);
    }

    async function moved(input) {
      tell(input);
      moves.push(...moves.splice(moves.indexOf(input), 1));
      try {
        await open();
        show();
      } catch (error) {
        fail(figure, `This figure stands still here: its frames cannot be unpacked (${error.message}).`);
      }
    }

    for (const input of inputs) input.addEventListener("input", () => moved(input));
    addEventListener("resize", () => requestAnimationFrame(stand));
    phone.addEventListener("change", () => {
      stage.style.minHeight = "";
      finding.style.minHeight = "";
      shown = -1;
      if (data) show();
      if (data) stand();
      if (data && phone.matches) pile();
    });
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
