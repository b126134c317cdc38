// An exercise in the page: an editor, Run, what was printed, the verdict. Editor and Python come on first use.
"use strict";
(() => {
  window.course.patience = 20_000; // ms without a sign of life; Python itself stops a loop earlier, and says in which line
  const LONGEST = 90_000; // ms for a whole check
  const KEPT = "course-code:"; // what was typed, by exercise
  const MARKS = { right: "✓", wrong: "✗", open: "○", lacks: "→", failed: "✗" };
  const LAST_WORD = "It was stopped; the rest of the page lives on.";

  const loaded = {};
  function load(name) {
    loaded[name] ||= new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = `static/${name}`;
      script.onload = done;
      script.onerror = () => { delete loaded[name]; failed(new Error(`${name} is not there`)); };
      document.head.append(script);
    });
    return loaded[name];
  }

  // ---- one Python for all exercises of the page

  let parts = null, worker = null, ready = null, told = null;
  window.pagePython = (text, packed) => { parts = { text, packed }; };

  function end() {
    worker?.terminate();
    worker = null;
    ready = null;
    told = null;
  }

  function begin() {
    ready ||= load("python.js").then(() => new Promise((done, failed) => {
      const address = URL.createObjectURL(new Blob([parts.text], { type: "text/javascript" }));
      worker = new Worker(address);
      worker.onmessage = ({ data }) => {
        if (data.ready) { URL.revokeObjectURL(address); done(); } else if (told) told(data); else failed(new Error(data.broken));
      };
      worker.onerror = (event) => { event.preventDefault(); (told ?? failed)({ broken: event.message }); };
      worker.postMessage({ packed: parts.packed });
    }));
    ready.catch(end);
    return ready;
  }

  function ask(job) {
    return new Promise((done) => {
      let timer = 0;
      const until = performance.now() + LONGEST;
      const failed = (message) => { end(); done({ status: "failed", message: `${message} ${LAST_WORD}`, output: "" }); };
      const wait = () => {
        clearTimeout(timer);
        timer = setTimeout(() => failed("Your code goes on and on without an end."), Math.min(window.course.patience, until - performance.now()));
      };
      told = ({ alive, verdict, broken }) => {
        if (alive) { wait(); return; }
        clearTimeout(timer);
        told = null;
        if (verdict) done(verdict); else failed(meaning(broken));
      };
      wait();
      worker.postMessage({ job: JSON.stringify(job) });
    });
  }

  window.course.judge = async (job) => { await begin(); return ask(job); };

  // What has broken Python itself: no memory is left, or no stack.
  function meaning(broken) {
    if (/memory|allocation|out of bounds/i.test(broken)) return "Your code asks for more memory than a page has.";
    if (/call stack|recursion/i.test(broken)) return "Your code calls itself more deeply than a page can.";
    return `Python itself has stopped (${broken.trim().split("\n").pop()}).`;
  }

  // ---- one exercise

  const recall = (key) => { try { return localStorage.getItem(KEPT + key); } catch { return null; } };
  function keep(key, text) {
    try { if (text === null) localStorage.removeItem(KEPT + key); else localStorage.setItem(KEPT + key, text); } catch { /* this page only */ }
  }

  function make(tag, name, text = "") {
    return Object.assign(document.createElement(tag), { className: name, textContent: text });
  }

  function build(box, title) {
    const head = make("p", "practice-title", title);
    const editor = make("div", "practice-editor");
    const row = make("p", "practice-row");
    const run = Object.assign(make("button", "practice-run", "Run"), { type: "button" });
    const again = Object.assign(make("button", "practice-again", "Back to the stub"), { type: "button" });
    const hint = make("span", "practice-keys", "Ctrl-Enter runs; the first run loads Python, 9 MB. Tab indents; Escape, then Tab moves on.");
    const printed = Object.assign(make("pre", "output practice-output"), { hidden: true });
    const verdict = make("p", "practice-verdict");
    printed.setAttribute("role", "group");
    printed.setAttribute("aria-label", "What your code printed");
    verdict.setAttribute("role", "status");
    row.append(run, again, hint);
    box.append(head, editor, row, printed, verdict);
    return { editor, run, again, printed, verdict };
  }

  function show(view, { status, message, output }) {
    view.printed.hidden = !output;
    view.printed.textContent = output;
    view.verdict.dataset.status = status;
    view.verdict.textContent = MARKS[status] ? `${MARKS[status]} ${message}` : message;
  }

  async function check(view, practice, text) {
    if (view.run.disabled) return;
    for (const button of document.querySelectorAll(".practice-run")) button.disabled = true;
    try {
      if (!parts || !worker) show(view, { status: "busy", message: "Python is being loaded …", output: "" });
      await begin();
      show(view, { status: "busy", message: "Your code runs …", output: "" });
      const { check, answers, above } = practice;
      show(view, await ask({ check, answers, above, code: text }));
    } catch (error) {
      show(view, { status: "failed", message: `Python can't be loaded here (${error.message}). The notebook has the exercise, too.`, output: "" });
    } finally {
      for (const button of document.querySelectorAll(".practice-run")) button.disabled = false;
    }
  }

  async function begun(box) {
    const practice = JSON.parse(box.dataset.practice);
    const view = build(box, box.dataset.title);
    let editor = null;
    const run = () => check(view, practice, editor.text());
    await load("vendored/editor.js");
    const label = `${box.dataset.title}: Python, ${practice.answers.join(", ")}`;
    editor = window.makeEditor(view.editor, recall(practice.key) ?? practice.stub, label, run, (text) => {
      keep(practice.key, text);
      begin().catch(() => {}); // ready when it is needed
    });
    view.run.addEventListener("click", run);
    view.again.addEventListener("click", () => {
      editor.write(practice.stub);
      keep(practice.key, null);
      show(view, { status: "", message: "", output: "" });
      editor.focus();
    });
    box.practice = editor;
  }

  addEventListener("DOMContentLoaded", () => {
    const boxes = new Set(document.querySelectorAll(".practice"));
    const open = (box) => boxes.delete(box) ? begun(box) : null;
    const seen = new IntersectionObserver(
      (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => open(entry.target)),
      { rootMargin: "600px" },
    );
    boxes.forEach((box) => seen.observe(box));
    window.course.editors = () => Promise.all([...boxes].map(open));
  });
})();
