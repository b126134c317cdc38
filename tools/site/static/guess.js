// A prediction: the reader types a guess, only then sees the answer, and what the check says of this guess.
// What it says was asked of the check itself (tools/site/guesses.py); here it is only looked up.
"use strict";
(() => {
  // ---- how Python writes numbers and lists

  // The decimal digits of a number, rounded as Python does: [sign, digits, exponent of the first].
  function rounded(number, count) {
    const [, digit, rest, exponent] = /^(\d)\.?(\d*)e([+-]\d+)$/.exec(Math.abs(number).toExponential(60));
    let digits = (digit + rest).slice(0, count), power = Number(exponent);
    const tail = (digit + rest).slice(count);
    const tie = /^50*$/.test(tail);
    if (tie ? Number(digits[count - 1]) % 2 === 1 : tail[0] >= "5") {
      digits = String(BigInt(digits) + 1n);
      if (digits.length > count) { digits = digits.slice(0, count); power += 1; }
    }
    return [number < 0 || Object.is(number, -0) ? "-" : "", digits, power];
  }

  function general(number, count) { // f"{number:.4g}"
    if (number === 0) return Object.is(number, -0) ? "-0" : "0";
    let [sign, digits, power] = rounded(number, count);
    digits = digits.replace(/0+$/, "");
    if (power < -4 || power >= count) {
      const tail = digits.length > 1 ? `.${digits.slice(1)}` : "";
      return `${sign}${digits[0]}${tail}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
    }
    if (power < 0) return `${sign}0.${"0".repeat(-power - 1)}${digits}`;
    const whole = digits.slice(0, power + 1).padEnd(power + 1, "0");
    return sign + whole + (digits.length > power + 1 ? `.${digits.slice(power + 1)}` : "");
  }

  function toWhole(number) { // f"{number:.0f}"
    const low = Math.floor(Math.abs(number)), rest = Math.abs(number) - low;
    const up = rest > 0.5 || (rest === 0.5 && low % 2 === 1);
    return (number < 0 || Object.is(number, -0) ? "-" : "") + String(low + Number(up));
  }

  function toTenth(number) { // f"{number:.1f}": of two that are equally near Python takes the even one
    const size = Math.abs(number), low = Math.floor(10 * size);
    const even = (low + (low % 2)) / 10;
    return (number < 0 || Object.is(number, -0) ? "-" : "") + (size * 4 % 2 === 1 ? even : size).toFixed(1);
  }

  function repr(number) {
    if (Math.abs(number) >= 1e16) return number.toExponential();
    if (Number.isInteger(number)) return `${Object.is(number, -0) ? "-0" : number}.0`;
    const text = String(number), small = /^(-?)0\.0000(0*)([1-9])(\d*)$/.exec(text); // Python: 1e-05
    if (!small) return text.replace(/e([+-])(\d)$/, "e$10$2");
    const power = String(5 + small[2].length).padStart(2, "0");
    return `${small[1]}${small[3]}${small[4] && "."}${small[4]}e-${power}`;
  }

  const quoted = (text) => (text.includes("'") && !text.includes('"') ? `"${text}"` : `'${text.replace(/'/g, "\\'")}'`);
  const listed = (value) => (Array.isArray(value) ? `[${value.map(listed).join(", ")}]` : element(value));
  function element(value) {
    if (typeof value === "string") return quoted(value);
    return value.whole ? String(value.number) : repr(value.number);
  }

  const WAYS = {
    "": () => "",
    "short": (n, whole) => (whole ? String(n) : general(n, 4)),
    "g": (n) => general(n, 6),
    ".3g": (n) => general(n, 3),
    ",g": (n) => general(n, 6).replace(/^(-?\d+)/, (digits) => (digits.replace(/\B(?=(\d{3})+$)/g, ","))),
    ".0f": toWhole,
    ".1f": toTenth,
    "repr": (n, whole) => (whole ? String(n) : repr(n)),
    "short %": (n, whole) => (whole ? String(100 * n) : general(100 * n, 4)),
    "g %": (n) => general(100 * n, 6),
    ".0f %": (n) => toWhole(100 * n),
    "digits": (n, whole) => `[${((whole ? String(n) : repr(n)).match(/-?\d+/g) || []).map(Number).join(", ")}]`,
  };
  const WORDS = {
    "": () => "",
    "as it is": (text) => text,
    "upper": (text) => text.toUpperCase(),
    "lower": (text) => text.toLowerCase(),
    "repr": quoted,
  };
  const LISTS = {
    "": () => "",
    "list": listed,
    "tuple": (value) => `(${value.map(listed).join(", ")}${value.length === 1 ? "," : ""})`,
    "sorted": (value) => listed([...value].sort((a, b) => a.number - b.number)),
  };

  const said = (ways, [way, before, after], ...guess) => before + ways[way](...guess) + after;

  // ---- what was typed

  function number(text) {
    if (/^[+-]?\d+$/.test(text)) return { number: Number(text), whole: true };
    const share = /^([+-]?\d+(?:\.\d+)?)\s*\/\s*(\d+(?:\.\d+)?)$/.exec(text);
    if (share && Number(share[2])) return { number: Number(share[1]) / Number(share[2]), whole: false };
    if (/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text)) return { number: Number(text), whole: false };
    return null;
  }

  function list(text) { // [1, (2, a)] as an array of numbers and words; null if it is none
    const tokens = text.match(/[[\](),]|[^[\](),\s][^[\](),]*/g) || [];
    let place = 0;
    function value() {
      const token = tokens[place++];
      if (token !== "[" && token !== "(") return number(token.trim()) || token.trim().replace(/^(['"])(.*)\1$/, "$2");
      const found = [];
      while (place < tokens.length && !/^[\])]$/.test(tokens[place])) {
        if (tokens[place] === ",") place += 1;
        else found.push(value());
      }
      place += 1;
      return found;
    }
    return tokens.length && /^[[(]$/.test(tokens[0]) ? value() : null;
  }

  // A number may stand with its unit or a word: "about 43 %", "epoch 2".
  function read(text, data) {
    const typed = text.trim().replace(/^(['"])(.*)\1$/, "$2").trim();
    if (data.kind === "list" && /^[^[(]*\d[^[(]*,/.test(typed)) return list(`[${typed}]`);
    const numeral = /^[a-z~≈\s]*?([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?(?:\s*\/\s*\d+)?)(?![\d.,/])[^\d]*$/i.exec(typed);
    return number(typed) || list(typed) || (data.kind !== "word" && numeral && number(numeral[1].trim())) || typed;
  }

  const plain = (value) => (Array.isArray(value) ? value.map(plain) : typeof value === "string" ? value : value.number);
  const shape = (value) => (Array.isArray(value) ? `[${value.map(shape).join("")}]` : typeof value === "string" ? "s" : "n");

  // ---- what the check says

  function comment(data, text) {
    const guess = read(text, data);
    if (Array.isArray(guess)) {
      const { at, shapes, other } = data.list, key = JSON.stringify(plain(guess));
      const exactly = at.find(([value]) => JSON.stringify(value) === key);
      const sentence = shapes[shape(guess)] || other;
      return exactly ? exactly[1] : said(LISTS, sentence, guess);
    }
    if (typeof guess === "string") {
      const { at, folded, other } = data.word;
      if (Object.hasOwn(at, guess)) return at[guess];
      const known = Object.hasOwn(folded, guess.toLowerCase()) ? folded[guess.toLowerCase()] : other;
      return said(WORDS, known, guess);
    }
    const { at, cuts, said: sentences } = guess.whole ? data.whole : data.number;
    const exactly = at.find(([value]) => value === guess.number);
    if (exactly) return exactly[1];
    let place = cuts.findIndex((cut) => guess.number <= cut);
    if (place < 0) place = cuts.length;
    return said(WAYS, sentences[place], guess.number, guess.whole);
  }

  // ---- the page

  const HINT = { number: "a number", word: "a word or a letter", list: "a list, such as [1, 2]" };
  const course = () => window.course || { remember() {}, recall() { return undefined; } };

  function begin(box) {
    const data = JSON.parse(box.dataset.guess), id = `${box.id}-text`;
    const form = document.createElement("form"), label = document.createElement("label");
    const input = document.createElement("input"), button = document.createElement("button");
    const answer = document.createElement("p");
    label.htmlFor = id;
    label.textContent = `Your guess: ${data.what}${data.unit ? ` (${data.unit.trim()})` : ""}`;
    Object.assign(input, { id, type: "text", autocomplete: "off", placeholder: HINT[data.kind] });
    if (data.kind === "number") input.inputMode = "decimal";
    button.textContent = "Compare";
    answer.className = "guess-answer";
    answer.setAttribute("role", "status");
    form.className = "guess-form";
    form.append(label, input, button);
    box.append(form, answer);

    function show(text) {
      answer.textContent = text ? `→ ${comment(data, text)}` : "";
      box.toggleAttribute("data-answered", Boolean(text));
    }

    function recall() {
      const text = course().recall("guess", box.id);
      if (text === undefined || text === null) {
        if (!box.hasAttribute("data-answered")) return;
        input.value = "";
        show("");
      } else if (String(text) !== input.value) {
        input.value = String(text);
        show(input.value);
      }
    }

    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = input.value.trim();
      if (!text) {
        answer.textContent = "Type a guess first: a wrong one teaches more than none.";
        return;
      }
      input.value = text;
      show(text);
      course().remember("guess", box.id, text);
    });
    window.addEventListener("course:changed", recall);
    document.addEventListener("course:changed", recall);
    recall();
  }

  window.guessComment = comment; // for the test that holds it against Python
  document.querySelectorAll(".guess[data-guess]").forEach(begin);
})();
