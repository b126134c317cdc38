"""The style sheet and the script of the HTML timeline. Constants: no text of the user's ever gets into them."""

from __future__ import annotations

from lib.figures.style import GREY, GRID, INK, MUTED, PAPER, SKY

STYLE = f"""
.idt-timeline {{ color-scheme: light; box-sizing: border-box; max-width: 1080px; margin: 6px 0; padding: 14px 16px 12px;
  background: {PAPER}; color: {INK}; border: 1px solid {GRID}; border-radius: 10px;
  font: 13px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }}
.idt-timeline .idt-head {{ display: flex; flex-wrap: wrap; gap: 8px 16px; align-items: center; }}
.idt-timeline .idt-title {{ flex: 1 1 300px; font-size: 16px; font-weight: 650; line-height: 1.3; }}
.idt-timeline .idt-tools {{ display: none; gap: 10px; }}
.idt-timeline[data-ready] .idt-tools {{ display: flex; }}
.idt-timeline .idt-group {{ display: inline-flex; border: 1px solid #c9d0d8; border-radius: 7px; overflow: hidden; }}
.idt-timeline button {{ all: unset; box-sizing: border-box; cursor: pointer; padding: 3px 11px; color: {INK};
  font: 13px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; text-align: center; }}
.idt-timeline button + button {{ border-left: 1px solid #c9d0d8; }}
.idt-timeline button:hover {{ background: #eef1f4; }}
.idt-timeline button[aria-pressed="true"] {{ background: {INK}; color: {PAPER}; }}
.idt-timeline button:focus-visible, .idt-timeline .idt-plot:focus-visible {{ outline: 2px solid {SKY};
  outline-offset: -2px; }}
.idt-timeline .idt-legend {{ display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 8px 0 6px; color: {MUTED}; }}
.idt-timeline .idt-legend span {{ display: inline-flex; align-items: center; gap: 6px; }}
.idt-timeline .idt-legend i {{ box-sizing: border-box; min-width: 18px; height: 18px; border-radius: 3px;
  font: 600 12px/18px system-ui, sans-serif; text-align: center; }}
.idt-timeline .idt-plot {{ position: relative; border-radius: 4px; touch-action: pan-y; }}
.idt-timeline .idt-plot > svg {{ display: block; width: 100%; height: auto; max-width: none; }}
.idt-timeline svg text {{ font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  fill: {MUTED}; }}
.idt-timeline svg .idt-lane {{ fill: {INK}; font-size: 13px; }}
.idt-timeline svg .idt-span text {{ pointer-events: none; }}
.idt-timeline svg .idt-span:hover rect, .idt-timeline svg .idt-span.idt-on rect {{ stroke: {INK}; stroke-width: 2; }}
.idt-timeline[data-ready] .idt-area {{ cursor: grab; }}
.idt-timeline[data-shown="measured"] [data-name="predicted"],
.idt-timeline[data-shown="predicted"] [data-name="measured"] {{ display: none; }}
.idt-timeline .idt-tip {{ position: absolute; z-index: 3; left: 0; top: 0; max-width: 300px; padding: 7px 11px;
  visibility: hidden; pointer-events: none; white-space: pre-line; overflow-wrap: anywhere; background: {INK};
  color: #dfe4ea; border-radius: 7px; box-shadow: 0 4px 14px rgb(0 0 0 / .25); font-size: 12.5px; }}
.idt-timeline .idt-tip::first-line {{ font-weight: 650; color: {PAPER}; font-size: 13.5px; }}
.idt-timeline .idt-foot {{ display: flex; flex-wrap: wrap; gap: 4px 16px; align-items: center; margin-top: 6px;
  color: {MUTED}; font-size: 12px; }}
.idt-timeline .idt-recorded {{ padding: 2px 10px; border-radius: 7px; color: {INK}; }}
.idt-timeline .idt-hint {{ display: none; }}
.idt-timeline[data-ready] .idt-hint {{ display: inline; }}
.idt-timeline line {{ stroke: {GRID}; }}
.idt-timeline .idt-axis {{ stroke: {GREY}; }}
@media print {{ .idt-timeline .idt-tools, .idt-timeline .idt-hint {{ display: none !important; }} }}
"""

SCRIPT = """
document.querySelectorAll('.idt-timeline:not([data-ready])').forEach(function (box) {
  box.dataset.ready = '1';
  const plot = box.querySelector('.idt-plot'), svg = plot.querySelector('svg'), area = svg.querySelector('.idt-area');
  const tip = box.querySelector('.idt-tip'), at = JSON.parse(box.dataset.geometry);
  const set = (element, values) => { for (const key in values) element.setAttribute(key, values[key]); };
  const spans = [...area.querySelectorAll('.idt-span')].map(g => {
    const title = g.querySelector('title'), words = title.textContent;
    title.remove();  // the tip says it at once, and the browser need not say it again
    return {g, words, rect: g.querySelector('rect'), text: g.querySelector('text'), name: g.dataset.name,
      row: +g.dataset.row, a: +g.dataset.a, b: +g.dataset.b,
      labels: [words.split('\\n')[0], g.dataset.short, g.dataset.short[0] || '']};
  });
  const byNode = new Map(spans.map(span => [span.g, span]));
  let from = at.start, to = at.end, width = 0, chosen = null, dragged = null;
  const shown = span => box.dataset.shown === 'both' || box.dataset.shown === span.name;
  const inner = () => width - at.left - at.right, scale = () => inner() / (to - from);

  function draw() {
    width = Math.max(420, Math.round(plot.clientWidth) || at.width);
    set(svg, {viewBox: `0 0 ${width} ${at.height}`});
    set(area, {width: inner()});
    svg.querySelectorAll('.idt-track').forEach(e => set(e, {width: inner()}));
    set(svg.querySelector('.idt-axis'), {x2: at.left + inner()});
    set(svg.querySelector('.idt-unit'), {x: at.left + inner() / 2});
    const bar = name => box.dataset.shown === 'both' ? at[name] : at.alone;
    svg.querySelectorAll('.idt-share').forEach(e => {
      const [y, h] = bar(e.dataset.name);
      set(e, {x: width - at.right + 10, y: e.dataset.row * at.row + y + h / 2 + 4.5});
    });
    for (const s of spans) {
      const x = (s.a - from) * scale(), w = Math.max((s.b - s.a) * scale(), 0.8);
      const visible = shown(s) && x < inner() && x + w > 0;
      s.g.style.display = visible ? '' : 'none';
      if (!visible) continue;
      const [y, h] = bar(s.name), top = s.row * at.row + y, gap = w > 4 ? 1 : 0;
      // far outside, an SVG coordinate loses its precision: cut the bar where nobody sees it
      const x0 = Math.max(x, -9), x1 = Math.min(x + w - gap, inner() + 9);
      set(s.rect, {x: x0.toFixed(2), width: Math.max(x1 - x0, 0.5).toFixed(2), y: top, height: h});
      const l = Math.max(x, 0), r = Math.min(x + w, inner());
      set(s.text, {x: ((l + r) / 2).toFixed(2), y: top + h / 2 + 4.2});
      s.text.textContent = h < 13 ? '' : s.labels.find(t => t.length * at.letter + 6 <= r - l) || '';
    }
    const rough = (to - from) / Math.max(3, inner() / 80), power = 10 ** Math.floor(Math.log10(rough));
    let step = [1, 2, 5, 10].find(f => f * power >= rough * 0.999999) * power;
    if (at.whole) step = Math.max(step, 1);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9)), ticks = svg.querySelector('.idt-ticks');
    ticks.replaceChildren();
    for (let k = Math.ceil(from / step - 1e-9); k * step <= to + step * 1e-9; k++) {
      const x = at.left + (k * step - from) * scale(), make = kind => ticks.appendChild(
        document.createElementNS('http://www.w3.org/2000/svg', kind));
      set(make('line'), {x1: x.toFixed(2), x2: x.toFixed(2), y1: 0, y2: at.bottom + 4});
      const text = make('text');
      set(text, {x: x.toFixed(2), y: at.bottom + 17, 'text-anchor': 'middle'});
      text.textContent = (k * step).toFixed(digits);
    }
  }
  function view(a, b) {
    const whole = at.end - at.start, length = Math.min(Math.max(b - a, whole * 1e-5), whole);
    from = Math.min(Math.max(a + (b - a - length) / 2, at.start), at.end - length);
    to = from + length;
    hide();
    draw();
  }
  const zoom = (factor, center) => view(center - (center - from) * factor, center + (to - center) * factor);
  const pan = time => view(from + time, to + time);
  function hide() {
    tip.style.visibility = 'hidden';
    if (chosen) chosen.g.classList.remove('idt-on');
  }
  function tell(span, x, y) {
    tip.textContent = span.words;
    tip.style.left = Math.max(0, Math.min(x + 14, plot.clientWidth - tip.offsetWidth)) + 'px';
    // below the pointer, or above it where the page ends
    tip.style.top = (y + 18 + tip.offsetHeight > plot.clientHeight + 30 ? y - tip.offsetHeight - 12 : y + 18) + 'px';
    tip.style.visibility = 'visible';
  }
  function choose(span) {
    if (!span) return;
    hide();
    if (span.b > to || span.a < from) pan((span.a + span.b) / 2 - (from + to) / 2);
    chosen = span;
    span.g.classList.add('idt-on');
    const place = span.rect.getBoundingClientRect(), origin = plot.getBoundingClientRect();
    tell(span, place.left - origin.left, place.bottom - origin.top - 12);
  }
  function neighbour(key) {
    const there = spans.filter(shown), center = s => (s.a + s.b) / 2;
    if (!chosen || !shown(chosen)) return there[0];
    const near = row => there.filter(s => s.row === row && s.name === chosen.name)
      .sort((s, t) => Math.abs(center(s) - center(chosen)) - Math.abs(center(t) - center(chosen)))[0];
    if (key === 'ArrowUp') return near(chosen.row - 1);
    if (key === 'ArrowDown') return near(chosen.row + 1);
    return there[there.indexOf(chosen) + (key === 'ArrowRight' ? 1 : -1)];
  }
  const time = event => {
    const origin = plot.getBoundingClientRect(), unit = origin.width / width;
    return from + ((event.clientX - origin.left) / unit - at.left) / scale();
  };

  plot.addEventListener('pointermove', event => {
    if (dragged !== null) {
      const moved = dragged - event.clientX;
      dragged = event.clientX;
      return pan(moved / scale());
    }
    const origin = plot.getBoundingClientRect(), node = event.target.closest('.idt-span');
    hide();
    if (node) tell(byNode.get(node), event.clientX - origin.left, event.clientY - origin.top);
  });
  plot.addEventListener('pointerdown', event => {
    plot.focus({preventScroll: true});
    if (event.button === 0) { dragged = event.clientX; plot.setPointerCapture(event.pointerId); }
  });
  ['pointerup', 'pointercancel'].forEach(kind => plot.addEventListener(kind, () => { dragged = null; }));
  plot.addEventListener('pointerleave', hide);
  plot.addEventListener('blur', hide);
  plot.addEventListener('dblclick', () => view(at.start, at.end));
  plot.addEventListener('wheel', event => {
    // a page that scrolls past must not zoom: the wheel counts after a click into the picture, or with Ctrl
    if (document.activeElement !== plot && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const across = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    const sideways = across ? event.deltaX : event.shiftKey ? event.deltaY : 0;
    if (sideways) pan(sideways / scale()); else zoom(Math.exp(event.deltaY / 400), time(event));
  }, {passive: false});
  plot.addEventListener('keydown', event => {
    const middle = (from + to) / 2;
    if (event.key.startsWith('Arrow')) choose(neighbour(event.key));
    else if (event.key === '+' || event.key === '=') zoom(0.5, middle);
    else if (event.key === '-') zoom(2, middle);
    else if (event.key === '0' || event.key === 'Home') view(at.start, at.end);
    else if (event.key === 'Escape') hide();
    else return;
    event.preventDefault();
    event.stopPropagation();  // in a notebook these keys would move to the next cell, or restart the kernel
  });
  box.querySelectorAll('button').forEach(button => button.addEventListener('click', () => {
    const what = button.dataset.do, middle = (from + to) / 2;
    if (what === 'in') zoom(0.5, middle);
    else if (what === 'out') zoom(2, middle);
    else if (what === 'all') view(at.start, at.end);
    else {
      box.dataset.shown = what;
      box.querySelectorAll('[aria-pressed]').forEach(b => b.setAttribute('aria-pressed', b === button));
      hide();
      draw();
    }
  }));
  new ResizeObserver(() => { if (Math.round(plot.clientWidth) !== width) draw(); }).observe(plot);
  draw();
});
"""
