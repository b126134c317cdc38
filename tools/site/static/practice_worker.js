// Python in a worker of its own: it is unpacked once, then runs one check after another. A page can end it at any time.
"use strict";

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Pyodide asks for its files by address; from file:// nothing can be fetched, and nothing needs to be.
function answerFrom(files) {
  self.fetch = async (address) => {
    const name = String(address.url ?? address).split("/").pop();
    const type = name.endsWith(".wasm") ? "application/wasm" : "application/octet-stream";
    return files[name] ? new Response(files[name], { headers: { "Content-Type": type } }) : Response.error();
  };
}

async function start(packed) {
  const names = Object.keys(packed);
  const contents = await Promise.all(names.map((name) => unpacked(packed[name])));
  const files = Object.fromEntries(names.map((name, place) => [name, contents[place]]));
  answerFrom(files);
  const text = new TextDecoder();
  (0, eval)(text.decode(files["pyodide.js"]));
  (0, eval)(text.decode(files["pyodide.asm.js"]));
  const info = { abi_version: "2025_0", arch: "wasm32", platform: "emscripten_4_0_9", python: "3.13.2", version: "0.29.5" };
  const pyodide = await self.loadPyodide({
    indexURL: "file:///python/",
    lockFileContents: JSON.stringify({ info, packages: {} }),
    env: { HOME: "/home", PYTHONHASHSEED: "0" },
  });
  pyodide.unpackArchive(files["course.zip"], "zip", { extractDir: "/course" });
  pyodide.runPython("import sys; sys.path.insert(0, '/course'); import in_page; in_page.prepare()");
  const python = pyodide.pyimport("in_page");
  let last = 0;
  python.still_here = () => { if (performance.now() - last > 500) { last = performance.now(); self.postMessage({ alive: true }); } };
  return python;
}

let python = null;
self.onmessage = async ({ data }) => {
  try {
    if (data.packed) {
      python = await start(data.packed);
      self.postMessage({ ready: true });
    } else {
      self.postMessage({ verdict: JSON.parse(python.judge(data.job)) });
    }
  } catch (error) {
    self.postMessage({ broken: String(error) });
  }
};
