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
      labels: [words.split('\n')[0], g.dataset.short, g.dataset.short[0] || '']};
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
