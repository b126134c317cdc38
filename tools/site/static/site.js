// What every page does: theme, memory, search, table of contents, progress. No page needs it to be read.
"use strict";
window.course = (() => {
  const KEY = "course", THEME = "course-theme";
  let kept = {}; // kind → id → value; in private mode it lives as long as the page
  const read = () => { try { kept = JSON.parse(localStorage.getItem(KEY)) || {}; } catch { /* as it is */ } };
  const tell = () => document.dispatchEvent(new CustomEvent("course:changed"));
  const write = () => { try { localStorage.setItem(KEY, JSON.stringify(kept)); } catch { /* memory only */ } tell(); };
  read();
  addEventListener("storage", (event) => { if (event.key === KEY || event.key === null) { read(); tell(); } });

  const root = document.documentElement;
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  try { const theme = localStorage.getItem(THEME); if (theme) root.dataset.theme = theme; } catch { /* the system's */ }

  const course = {
    remember(kind, id, value) { read(); (kept[kind] ||= {})[id] = value; write(); },
    recall(kind, id) { return kept[kind]?.[id]; },
    forget() { kept = {}; write(); },
    all() { return structuredClone(kept); },
    found: [],
    sections(rows) { course.found = rows.map((row) => [...row, `${row[3]} ${row[4]}`.toLowerCase(), row[3].toLowerCase()]); },
  };

  const chinese = { Light: "浅色", Dark: "深色", "Light colours": "浅色配色", "Dark colours": "深色配色", "Nothing found.": "没有找到。", "places found": "处匹配" };
  const said = (words) => (root.lang.startsWith("zh") && chinese[words]) || words;

  function theme() {
    const button = document.getElementById("theme");
    const name = () => { button.textContent = said(dark() ? "Light" : "Dark"); button.setAttribute("aria-label", said(dark() ? "Light colours" : "Dark colours")); };
    button.hidden = false;
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      try { localStorage.setItem(THEME, root.dataset.theme); } catch { /* this page only */ }
      name();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
    name();
  }

  // Search: every word must occur in a section; where it is in the title counts more.
  function find(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return [];
    return course.found
      .filter((row) => words.every((word) => row[5].includes(word)))
      .map((row) => [words.reduce((sum, word) => sum + (row[6].includes(word) ? 10 : 0) + Math.min(5, row[5].split(word).length - 1), 0), row])
      .sort((a, b) => b[0] - a[0])
      .map(([, row]) => row);
  }
  function marked(element, text, words) {
    const pattern = new RegExp(`(${words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})`, "gi");
    text.split(pattern).forEach((piece, place) => {
      if (place % 2) { const mark = document.createElement("mark"); mark.textContent = piece; element.append(mark); } else element.append(piece);
    });
  }
  function result(row, words) {
    const [file, anchor, page, title, text] = row;
    const link = document.createElement("a"), head = document.createElement("b"), said = document.createElement("span");
    link.href = file + (anchor ? `#${anchor}` : "");
    head.textContent = title === page ? page : `${page} › ${title}`;
    const places = words.map((word) => text.toLowerCase().indexOf(word)).filter((place) => place >= 0);
    const first = text.lastIndexOf(" ", Math.max(0, Math.min(...places, text.length) - 40)) + 1; // whole words
    const start = places.length ? first : 0, end = text.indexOf(" ", start + 150);
    marked(said, (start ? "… " : "") + text.slice(start, end < 0 ? undefined : end) + (end < 0 ? "" : " …"), words);
    link.append(head, said);
    return link;
  }
  function search() {
    const input = document.getElementById("search"), box = document.getElementById("found"), count = document.getElementById("found-count");
    let loaded;
    const load = () => loaded ||= new Promise((done) => {
      const script = document.createElement("script");
      script.src = "static/sections.js";
      script.onload = done;
      document.head.append(script);
    });
    async function show() {
      await load();
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean), rows = find(input.value);
      box.replaceChildren(...rows.slice(0, 20).map((row) => result(row, words)));
      if (words.length && !rows.length) box.append(Object.assign(document.createElement("p"), { textContent: said("Nothing found.") }));
      count.textContent = words.length ? `${rows.length} ${said("places found")}` : "";
      box.hidden = !words.length;
    }
    input.disabled = false;
    input.addEventListener("focus", load);
    input.addEventListener("input", show);
    input.form.addEventListener("submit", async (event) => { event.preventDefault(); await show(); box.querySelector("a")?.click(); });
    input.form.addEventListener("keydown", (event) => {
      const links = [...box.querySelectorAll("a")], place = links.indexOf(document.activeElement);
      if (event.key === "Escape") { box.hidden = true; input.focus(); }
      if (event.key === "ArrowDown" && links.length) { event.preventDefault(); links[Math.min(place + 1, links.length - 1)].focus(); }
      if (event.key === "ArrowUp" && place >= 0) { event.preventDefault(); (links[place - 1] || input).focus(); }
    });
    box.addEventListener("click", () => { box.hidden = true; });
    document.addEventListener("click", (event) => { if (!input.form.contains(event.target)) box.hidden = true; });
    document.addEventListener("keydown", (event) => {
      if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) { event.preventDefault(); input.focus(); }
    });
  }

  // A box that scrolls sideways must be reachable by keys; one that does not should not be a stop on the way.
  function scrollers() {
    // What goes on beyond an edge fades out there.
    const cue = (box) => {
      const left = box.scrollLeft > 1, right = box.scrollLeft + box.clientWidth < box.scrollWidth - 1;
      const more = [left && "left", right && "right"].filter(Boolean).join(" ");
      if (more) box.dataset.more = more; else delete box.dataset.more;
    };
    const look = () => document.querySelectorAll("pre, .scroll, .figure, .atlas-stage").forEach((box) => {
      if (box.scrollWidth > box.clientWidth + 1) { box.tabIndex = 0; } else box.removeAttribute("tabindex");
      if (!box.dataset.watched) { box.dataset.watched = ""; box.addEventListener("scroll", () => cue(box), { passive: true }); }
      cue(box);
    });
    let waiting;
    const soon = () => { clearTimeout(waiting); waiting = setTimeout(look, 100); };
    addEventListener("resize", soon);
    document.addEventListener("load", soon, true); // pictures, whose widths come late
    document.addEventListener("toggle", soon, true);
    look();
  }

  function contents() {
    const details = document.querySelector(".contents details");
    if (!details) return;
    if (matchMedia("(max-width: 60rem)").matches) details.open = false;
    const links = new Map([...details.querySelectorAll("a")].map((link) => [decodeURIComponent(link.hash.slice(1)), link]));
    const heads = [...links.keys()].map((id) => document.getElementById(id)).filter(Boolean);
    const here = () => {
      const now = heads.filter((head) => head.getBoundingClientRect().top < 120).pop() || heads[0];
      for (const [id, link] of links) { if (now && id === now.id) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current"); }
    };
    new IntersectionObserver(here, { rootMargin: "0px 0px -60% 0px" }).observe(heads[0] || details);
    addEventListener("scroll", () => requestAnimationFrame(here), { passive: true });
    here();
  }

  // Solutions that were opened and exercises that were marked as solved.
  function exercises() {
    document.querySelectorAll("details[data-opened]").forEach((details) => details.addEventListener("toggle", () => {
      if (details.open) course.remember("opened", details.dataset.opened, true);
    }));
    const boxes = document.querySelectorAll("input[data-done]");
    const show = () => boxes.forEach((box) => { box.checked = Boolean(course.recall("done", box.dataset.done)); });
    boxes.forEach((box) => box.addEventListener("change", () => course.remember("done", box.dataset.done, box.checked)));
    document.addEventListener("course:changed", show);
    show();
  }

  function progress() {
    const panel = document.getElementById("progress");
    if (!panel) return;
    const count = (kind, number) => Object.entries(kept[kind] || {}).filter(([id, value]) => value && id.startsWith(`${kind === "guess" ? "guess-" : ""}${number}`)).length;
    const some = (n, of, word, verb) => `${n} of ${of} ${word}${of === 1 ? "" : "s"} ${verb}`;
    function show() {
      let guesses = 0, predictions = 0, solved = 0, exercises = 0;
      document.querySelectorAll(".progress").forEach((line) => {
        const { of: number, predictions: p, exercises: e } = line.dataset;
        const guessed = count("guess", number), done = count("done", number), opened = count("opened", number);
        guesses += guessed; solved += done; predictions += +p; exercises += +e;
        const state = guessed + done >= +p + +e && +p + +e ? "done" : guessed + done + opened ? "begun" : "";
        const said = [];
        if (+p) said.push(some(guessed, p, "prediction", "made"));
        if (+e) said.push(some(done, e, "exercise", "solved"));
        if (opened) said.push(`${opened} solution${opened === 1 ? "" : "s"} opened`);
        line.textContent = said.join(", ");
        for (const element of [line, document.querySelector(`[data-map="${number}"]`)]) {
          if (element && state) element.dataset.state = state; else if (element) delete element.dataset.state;
        }
      });
      panel.hidden = !Object.keys(kept).length;
      document.getElementById("progress-said").textContent = `${some(guesses, predictions, "prediction", "made")}, ${some(solved, exercises, "exercise", "solved")}.`;
    }
    document.getElementById("progress-forget").addEventListener("click", () => {
      if (confirm("Forget all guesses, opened solutions and solved exercises?")) course.forget();
    });
    document.getElementById("progress-save").addEventListener("click", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([JSON.stringify({ saved: new Date().toISOString(), ...kept }, null, 1)], { type: "application/json" }));
      link.download = "inside-distributed-training-progress.json";
      link.click();
      URL.revokeObjectURL(link.href);
    });
    document.addEventListener("course:changed", show);
    show();
  }

  // On paper hints are unfolded (where CSS cannot do it), solutions stay away.
  const folded = () => document.querySelectorAll("main details:not([open], .solution)");
  let unfolded = [];
  addEventListener("beforeprint", () => { unfolded = [...folded()]; unfolded.forEach((details) => { details.open = true; }); });
  addEventListener("afterprint", () => { unfolded.forEach((details) => { details.open = false; }); });

  addEventListener("DOMContentLoaded", () => { theme(); search(); contents(); exercises(); progress(); scrollers(); });
  return course;
})();
