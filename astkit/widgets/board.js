// The live board: controls, readout and panels of a run, drawn on a canvas as points arrive.
const SCALE = 2; // pixels of the canvas to one of the page
const MOST = 2000; // points of a series; a run has more are thinned to half of them
const CLOUD = 12000; // scores
const WINDOW = 20; // points of the running mean over a pale noisy series
const NOISY = ["measured_rate", "loss"];
const TALL = 204;
const ROOM = { left: 56, right: 14, top: 38, bottom: 22 }; // around the curves of a panel
const LIGHT = {
  run: "#D55E00", dense: "#004488", joules: "#A4161A", selected: "#00857A", skipped: "#B8860B",
};
const DARK = {
  run: "#FF9248", dense: "#7FB2E5", joules: "#FF8A80", selected: "#2FC4B5", skipped: "#E0B040",
};

function make(tag, props = {}, ...children) {
  const node = Object.assign(document.createElement(tag), props);
  node.append(...children);
  return node;
}

// At most half of MOST points, evenly by step, and the newest.
function thinned(points, most = MOST) {
  if (points.length <= most) return points;
  const last = points[points.length - 1];
  const gap = (last[0] - points[0][0]) / (most / 2);
  let step = -Infinity;
  const kept = points.filter((point) => {
    const keep = point[0] === step || point[0] - step >= gap; // all scores of a batch, or none
    if (keep) step = point[0];
    return keep;
  });
  return kept[kept.length - 1] === last ? kept : [...kept, last];
}

function means(points) {
  return points.map(([step], place) => {
    const some = points.slice(Math.max(0, place + 1 - WINDOW), place + 1).map((point) => point[1]);
    return [step, some.reduce((sum, value) => sum + value, 0) / some.length];
  });
}

function ticks(low, high, most) {
  const raw = (high - low) / most || 1;
  const ten = 10 ** Math.floor(Math.log10(raw));
  const gap = [1, 2, 5, 10].map((each) => each * ten).find((each) => each >= raw);
  const found = [];
  for (let at = Math.ceil(low / gap); at * gap <= high * (1 + 1e-9); at++) found.push(at * gap);
  return found;
}

function decades(low, high) {
  const parts = high / low > 1000 ? [1] : [1, 2, 5];
  const found = [];
  for (let at = Math.floor(Math.log10(low)); 10 ** at <= high; at++)
    found.push(...parts.map((part) => part * 10 ** at));
  return found.filter((value) => value >= low && value <= high);
}

// 1200000 as "1.2 M", 0.00012 as "0.00012"
function shown(value) {
  for (const [unit, word] of [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (Math.abs(value) >= unit)
      return `${Number((value / (word === "k" ? 1e3 : unit)).toPrecision(3))} ${word}`;
  return String(Number(value.toPrecision(3)));
}

const drawnCurves = ({ curves }, series) =>
  Object.entries(curves).filter(([name]) => series[name]?.length);

// Where a panel's curves lie: scales from step and value to pixels.
function scales(panel, box, data) {
  const { series, cloud } = data;
  const values = drawnCurves(panel, series).flatMap(([name]) => series[name].map((p) => p[1]));
  if (panel.name === "threshold") for (const score of cloud) values.push(score[1]);
  let low = Infinity, high = -Infinity, least = Infinity;
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
    if (value > 0) least = Math.min(least, value);
  }
  if (low > high) [low, high] = [0, 1];
  const log = panel.name === "threshold" && low >= 0 && least <= high; // 0 lies at its lower end
  if (log) [low, high] = [Math.max(least, high / 1e5) / 1.5, high * 1.5];
  else [low, high] = [Math.min(0, low), high > Math.min(0, low) ? high * panel.room : 1];
  const last = Math.max(1, data.step);
  const at = log ? Math.log10 : (value) => value;
  const part = (value) => (at(value) - at(low)) / (at(high) - at(low));
  return {
    log, low, high, last,
    x: (step) => box.x + (step / last) * box.width,
    y: (value) => box.y + box.height * (1 - Math.max(-0.02, Math.min(1.02, part(value)))),
  };
}

function path(context, points, scale, style) {
  Object.assign(context, { globalAlpha: 1, lineWidth: 1.5, ...style });
  context.setLineDash(style.dash ?? []);
  context.beginPath();
  let open = false;
  for (const [step, value] of points) {
    if (!Number.isFinite(value)) { open = false; continue; }
    const place = [scale.x(step), scale.y(value)];
    if (open) context.lineTo(...place); else context.moveTo(...place);
    open = true;
  }
  context.stroke();
  if (points.length === 1) context.fillRect(scale.x(points[0][0]) - 2, scale.y(points[0][1]) - 2, 4, 4);
  context.setLineDash([]);
  context.globalAlpha = 1;
}

function words(context, text, x, y, style = {}) {
  Object.assign(context, { font: "11px system-ui, sans-serif", textAlign: "left", ...style });
  context.fillText(text, x, y);
}

// A frame with ticks, and the vertical lines of changed settings.
function frame(context, panel, box, scale, data, look) {
  Object.assign(context, { strokeStyle: look.ink, fillStyle: look.ink, lineWidth: 1 });
  words(context, panel.title, box.x, box.y - 24, { font: "600 12px system-ui, sans-serif" });
  const rows = scale.log ? decades(scale.low, scale.high) : ticks(scale.low, scale.high, 4);
  for (const value of rows) {
    const y = Math.round(scale.y(value)) + 0.5;
    path(context, [[0, value], [scale.last, value]], scale, { strokeStyle: look.grid, lineWidth: 1 });
    words(context, shown(value), box.x - 6, y + 4, { textAlign: "right", fillStyle: look.soft });
  }
  for (const step of ticks(0, scale.last, 6).filter(Number.isInteger))
    words(context, shown(step), scale.x(step), box.y + box.height + 15, { textAlign: "center" });
  context.strokeStyle = look.soft;
  context.strokeRect(box.x, box.y, box.width, box.height);
  let free = box.x + box.width; // left of the names of later changes
  for (const [step, name, value] of [...data.events].reverse()) {
    const x = scale.x(step);
    context.setLineDash([2, 3]);
    context.beginPath();
    context.moveTo(x, box.y);
    context.lineTo(x, box.y + box.height);
    context.stroke();
    context.setLineDash([]);
    const text = `${name} ${typeof value === "number" ? shown(value) : value}`;
    const left = Math.min(x, box.x + box.width - context.measureText(text).width - 6);
    if (!panel.first || left + context.measureText(text).width + 6 > free) continue;
    words(context, text, left + 3, box.y + 11, { fillStyle: look.soft });
    free = left;
  }
}

function legend(context, entries, box, look) {
  let x = box.x;
  for (const [label, colour] of entries) {
    context.fillStyle = colour;
    context.fillRect(x, box.y - 13, 10, 4);
    words(context, label, x + 14, box.y - 7, { fillStyle: look.ink });
    x += context.measureText(label).width + 26;
  }
}

function colourOf(panel, name, place, look) {
  if (panel.name === "threshold") return look.ink;
  if (name === "flops_dense") return look.dense;
  return place ? look.soft : look.run;
}

function draw(context, panel, box, data, look) {
  const scale = scales(panel, box, data);
  const entries = [];
  frame(context, panel, box, scale, data, look);
  if (panel.name === "threshold") {
    entries.push(["selected", look.selected], ["skipped", look.skipped]);
    context.globalAlpha = 0.6;
    for (const [step, score, selected] of data.cloud) {
      context.fillStyle = selected ? look.selected : look.skipped;
      context.fillRect(scale.x(step) - 1, scale.y(score) - 1, 2, 2);
    }
    context.globalAlpha = 1;
  }
  drawnCurves(panel, data.series).forEach(([name, label], place) => {
    const points = data.series[name];
    const colour = colourOf(panel, name, place, look);
    const style = { strokeStyle: colour, fillStyle: colour, dash: place ? [5, 4] : [] };
    if (NOISY.includes(name)) {
      path(context, points, scale, { ...style, lineWidth: 0.7, globalAlpha: 0.4 });
      path(context, means(points), scale, style);
    } else path(context, points, scale, style);
    if (label) entries.push([label, colour]);
  });
  const joules = panel.name === "cost" ? data.series.joules ?? [] : [];
  if (joules.length) {
    const own = { ...panel, curves: { joules: "joules" }, room: 1.5 }; // else on the FLOPs' line
    const right = scales(own, box, data);
    path(context, joules, right, { strokeStyle: look.joules, fillStyle: look.joules, dash: [2, 3] });
    for (const value of ticks(right.low, right.high, 4))
      words(context, shown(value), box.x + box.width + 4, right.y(value) + 4, { fillStyle: look.joules });
    entries.push(["joules", look.joules]);
  }
  legend(context, entries, box, look);
  return scale;
}

// The values of a panel at the step below the mouse.
function hover(context, panel, box, scale, data, look, mouse) {
  const step = ((mouse.x - box.x) / box.width) * scale.last;
  const curves = drawnCurves(panel, data.series);
  if (panel.name === "cost" && data.series.joules) curves.push(["joules", "joules"]);
  const near = curves.map(([name, label]) => {
    const found = data.series[name].reduce((best, point) =>
      (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best));
    return [found[0], `${label || panel.title} ${shown(found[1])}`];
  });
  if (!near.length) return;
  const lines = [`step ${near[0][0]}`, ...near.map(([, text]) => text)];
  const x = scale.x(near[0][0]);
  context.font = "11px system-ui, sans-serif";
  const wide = Math.max(...lines.map((text) => context.measureText(text).width)) + 12;
  const left = x + wide + 8 > box.x + box.width ? x - wide - 8 : x + 8;
  Object.assign(context, { fillStyle: look.paper, strokeStyle: look.soft, lineWidth: 1 });
  context.beginPath();
  context.moveTo(x, box.y);
  context.lineTo(x, box.y + box.height);
  context.stroke();
  context.fillRect(left, box.y + 16, wide, lines.length * 15 + 6);
  context.strokeRect(left, box.y + 16, wide, lines.length * 15 + 6);
  lines.forEach((text, place) =>
    words(context, text, left + 6, box.y + 30 + 15 * place, { fillStyle: look.ink }));
}

function lookOf(el) {
  const ink = getComputedStyle(el).color;
  const [red, green, blue] = ink.match(/[\d.]+/g).map(Number);
  const dark = 0.3 * red + 0.6 * green + 0.1 * blue > 128;
  const faint = (alpha) => `rgba(${dark ? "255,255,255" : "0,0,0"},${alpha})`;
  return {
    ...(dark ? DARK : LIGHT), ink, paper: getComputedStyle(el).backgroundColor,
    soft: faint(0.65), grid: faint(0.1),
  };
}

// One view of the data: controls above, the canvas below.
function view(data, send, el) {
  const press = (name) => make("button", { textContent: name, onclick: () => send({ press: name }) });
  const pause = press("pause"), step = press("step"), stop = press("stop");
  pause.onclick = () => send({ press: pause.textContent });
  const settings = make("span", { className: "settings" });
  const buttons = make("span", { className: "buttons" }, pause, step, stop);
  const bar = make("div", { className: "bar" }, settings, buttons);
  const readout = make("p", { className: "readout" });
  const cost = make("p", { className: "cost" });
  const canvas = make("canvas");
  canvas.setAttribute("role", "img");
  let shape = "", mouse = null, waiting = false, panels = [];

  function slider(name, value, low, high, log) {
    const to = log ? Math.log10 : (each) => each;
    const from = log ? (each) => 10 ** each : (each) => each;
    const output = make("output", { textContent: shown(value) });
    const input = make("input", {
      type: "range", name, min: to(low), max: to(high), step: "any", value: to(value),
    });
    const set = () => Number(from(Number(input.value)).toPrecision(3));
    input.oninput = () => { output.textContent = shown(set()); };
    let changed = -Infinity;
    input.onchange = () => {
      changed = performance.now();
      send({ set: [name, set()] });
    };
    input.follow = (now) => {
      // being dragged, or not yet answered
      if (input.matches(":active") || performance.now() - changed < 500) return;
      input.value = to(now);
      output.textContent = shown(now);
    };
    return make("label", {}, `${name} `, input, output);
  }

  function controls() {
    const { gate, enabled, status } = data.state;
    const now = JSON.stringify(gate && [gate.controller, gate.gains.map(([name]) => name)]);
    if (gate && now !== shape) {
      const select = make("select", { name: "controller" }, ...gate.controllers.map((name) =>
        make("option", { value: name, textContent: name })));
      select.onchange = () => send({ set: ["controller", select.value] });
      select.follow = (name) => { select.value = name; };
      settings.replaceChildren(
        slider("rate", gate.rate, gate.least, 1, false),
        make("label", {}, "controller ", select),
        ...gate.gains.map(([name, value]) => slider(name, value, value / 100, value * 100, true)),
      );
    }
    shape = now;
    if (gate)
      for (const [name, value] of [["rate", gate.rate], ["controller", gate.controller], ...gate.gains])
        settings.querySelector(`[name="${name}"]`).follow(value);
    pause.textContent = status === "paused" ? "resume" : "pause";
    for (const control of bar.querySelectorAll("button, input, select")) control.disabled = !enabled;
  }

  function paint() {
    waiting = false;
    controls();
    readout.textContent = data.state.readout ?? "";
    cost.replaceChildren(...(data.state.cost ?? []).map((line) => make("span", { textContent: line })));
    const width = canvas.clientWidth;
    if (!width) return;
    const columns = width > 640 ? 2 : 1;
    const look = lookOf(el);
    let column = 0, row = 0;
    panels = data.panels.map((panel, place) => {
      const wide = panel.name === "threshold" ? columns : 1;
      if (column + wide > columns) [column, row] = [0, row + 1];
      const own = width / columns;
      const right = panel.name === "cost" && data.series.joules ? 48 : ROOM.right;
      const box = {
        x: column * own + ROOM.left, y: row * TALL + ROOM.top,
        width: wide * own - ROOM.left - right, height: TALL - ROOM.top - ROOM.bottom,
      };
      column += wide;
      return { ...panel, box, first: !place, room: 1.05 };
    });
    const height = (row + 1) * TALL;
    canvas.style.height = `${height}px`;
    Object.assign(canvas, { width: SCALE * width, height: SCALE * height, panels, events: data.events });
    const context = canvas.getContext("2d");
    context.scale(SCALE, SCALE);
    for (const panel of panels) {
      const { box } = panel;
      const scale = draw(context, panel, box, data, look);
      const inside = mouse && mouse.x >= box.x && mouse.x <= box.x + box.width
        && mouse.y >= box.y - ROOM.top && mouse.y <= box.y + box.height;
      if (inside) hover(context, panel, box, scale, data, look, mouse);
    }
    canvas.dataset.step = data.step;
    canvas.setAttribute("aria-label", readout.textContent);
  }

  function update() {
    if (!waiting) requestAnimationFrame(paint);
    waiting = true;
  }
  canvas.onmousemove = (event) => { mouse = { x: event.offsetX, y: event.offsetY }; update(); };
  canvas.onmouseleave = () => { mouse = null; update(); };
  el.classList.add("astkit-board");
  el.replaceChildren(bar, readout, canvas, cost);
  const resized = new ResizeObserver(update);
  resized.observe(el);
  data.views.add(update);
  update();
  return () => { resized.disconnect(); data.views.delete(update); };
}

const numbers = ({ buffer, byteOffset, byteLength }) =>
  new Float64Array(buffer.slice(byteOffset, byteOffset + byteLength));

// Add what the kernel has sent: pairs of step and value, series after series; then the scores.
function take(data, message, [points, scores]) {
  if (message.all) Object.assign(data, { series: {}, cloud: [] });
  const values = numbers(points);
  let at = 0;
  for (const [name, count] of message.counts) {
    const own = (data.series[name] ??= []);
    for (const end = at + 2 * count; at < end; at += 2) {
      own.push([values[at], values[at + 1]]);
      data.step = Math.max(data.step, values[at]);
    }
    data.series[name] = thinned(own);
  }
  const triples = numbers(scores);
  for (let place = 0; place < triples.length; place += 3)
    data.cloud.push([triples[place], triples[place + 1], triples[place + 2]]);
  data.cloud = thinned(data.cloud, CLOUD);
  Object.assign(data, { state: message.state, events: message.events, panels: message.panels });
}

export default () => {
  const data = { series: {}, cloud: [], events: [], panels: [], state: {}, step: 0, views: new Set() };
  return {
    initialize({ model }) {
      let heard = false;
      model.on("msg:custom", (message, buffers) => {
        heard = true;
        take(data, message, buffers);
        data.views.forEach((update) => update());
      });
      model.on("comm_live_update", () => { // the kernel was restarted during the run
        Object.assign(data.state, { enabled: false, readout: "the kernel has ended, and the run" });
        data.views.forEach((update) => update());
      });
      const ask = () => { if (!heard) model.send({ ready: true }); };
      const timer = setInterval(ask, 500); // what is sent too early may be lost
      setTimeout(() => clearInterval(timer), 60_000);
      ask();
    },
    render({ model, el }) {
      return view(data, (content) => model.send(content), el);
    },
  };
};
