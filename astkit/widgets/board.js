// The live board: controls, readout and panels of a run, drawn on a canvas as points arrive.
const SCALE = 2; // pixels of the canvas to one of the page
const WINDOW = 9; // points of the centred median over a pale noisy series
const NOISY = ["measured_rate", "loss"];
const STORED = 730; // width of the picture that the file keeps
const WIDE = { left: 44, right: 16, top: 20, height: 214 }; // the first panel
const SMALL = { left: 36, right: 18, top: 50, height: 76, all: 144 }; // those below it, and a row of them
const HOME = 0.3; // of the budget, where the names of the dots stay
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

function medians(points) {
  const half = (WINDOW - 1) / 2;
  return points.map(([step], place) => {
    const some = points.slice(Math.max(0, place - half), place + half + 1).map((point) => point[1]);
    some.sort((a, b) => a - b);
    const middle = (some.length - 1) / 2;
    return [step, (some[Math.floor(middle)] + some[Math.ceil(middle)]) / 2];
  });
}

function ticks(low, high, most) {
  const raw = (high - low) / most || 1;
  const ten = 10 ** Math.floor(Math.log10(raw));
  const gap = [1, 2, 5, 10].map((each) => each * ten).find((each) => each >= raw);
  const found = [];
  for (let at = Math.ceil(low / gap - 1e-9); at * gap <= high * (1 + 1e-9); at++) found.push(at * gap);
  return found;
}

function decades(low, high) {
  const found = [], parts = high / low > 100 ? [1] : [1, 3];
  for (let at = Math.floor(Math.log10(low)); 10 ** at <= high; at++) found.push(...parts.map((part) => part * 10 ** at));
  return found.filter((value) => value >= 0.99 * low && value <= 1.01 * high);
}

// 1200000 as "1.2 M", 0.00012 as "0.00012"
function shown(value) {
  for (const [unit, word] of [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (Math.abs(value) >= unit)
      return `${Number((value / (word === "k" ? 1e3 : unit)).toPrecision(3))} ${word}`;
  return String(Number(value.toPrecision(3)));
}

// From step and value to pixels.
function scales({ low, high, log }, box, total) {
  const at = log ? Math.log10 : (value) => value;
  const part = (value) => (at(value) - at(low)) / (at(high) - at(low));
  return {
    x: (step) => box.x + (step / total) * box.width,
    y: (value) => box.y + box.height * (1 - Math.max(-0.02, Math.min(1.02, part(value)))),
  };
}

function path(context, points, scale, style) {
  Object.assign(context, { globalAlpha: 1, lineWidth: 1.7, ...style });
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
  context.setLineDash([]);
  context.globalAlpha = 1;
}

const font = (size, weight = 400) => `${weight} ${size}px system-ui, sans-serif`;

function words(context, text, x, y, style = {}) {
  Object.assign(context, { font: font(11), textAlign: "left", ...style });
  context.fillText(text, x, y);
}

// Words on the cloud, which stay legible above its dots.
function outlined(context, text, x, y, style, look) {
  Object.assign(context, { textAlign: "left", lineJoin: "round", ...style });
  Object.assign(context, { strokeStyle: look.paper, lineWidth: 4 });
  context.strokeText(text, x, y);
  context.fillText(text, x, y);
}

function dot(context, x, y) {
  context.beginPath();
  context.arc(x, y, 3.5, 0, 2 * Math.PI);
  context.fill();
}

function rule(context, x, box, style) {
  Object.assign(context, { lineWidth: 1, ...style });
  context.setLineDash(style.dash ?? []);
  context.beginPath();
  context.moveTo(x, box.y);
  context.lineTo(x, box.y + box.height);
  context.stroke();
  context.setLineDash([]);
}

// What is written above a panel: its title, and its latest value large.
function heading(context, panel, box, look) {
  words(context, panel.title, box.x, box.y - (panel.first ? 8 : 36), { fillStyle: look.soft });
  if (panel.first && panel.name === "threshold") return;
  const style = { font: font(17, 700), fillStyle: look.ink };
  const right = panel.first ? box.x + box.width : box.x;
  if (panel.first) style.textAlign = "right";
  words(context, panel.value, right, box.y - (panel.first ? 4 : 13), style);
  const left = box.x + context.measureText(panel.value).width + 7;
  const room = box.x + box.width + SMALL.right - left;
  context.font = font(11);
  if (!panel.first && context.measureText(panel.more).width <= room)
    words(context, panel.more, left, box.y - 13, { fillStyle: look.soft });
}

// The pale future, ticks, and the vertical lines of changed settings.
function frame(context, panel, box, scale, data, look) {
  const now = scale.x(data.step), end = box.x + box.width;
  context.fillStyle = look.future;
  context.fillRect(now, box.y, Math.max(0, end - now), box.height);
  const rows = !data.step ? [] : panel.log ? decades(panel.low, panel.high) : ticks(panel.low, panel.high, panel.first ? 4 : 2);
  for (const value of rows) {
    const style = { strokeStyle: look.grid, lineWidth: 1 };
    path(context, [[0, value], [data.total, value]], scale, style);
    words(context, shown(value), box.x - 5, scale.y(value) + 4, { textAlign: "right", fillStyle: look.soft });
  }
  context.strokeStyle = look.soft;
  context.lineWidth = 1;
  context.strokeRect(box.x, box.y + box.height, box.width, 0);
  rule(context, box.x, box, { strokeStyle: look.soft });
  let free = end; // left of the names of later changes
  for (const [step, name, value] of [...data.events].reverse()) {
    const x = scale.x(step);
    rule(context, x, box, { strokeStyle: look.soft, dash: [2, 3] });
    const text = `${name} ${typeof value === "number" ? shown(value) : value}`;
    context.font = font(11);
    const wide = context.measureText(text).width + 6;
    const left = Math.min(x, end - wide);
    if (!panel.first || left + wide > free) continue;
    words(context, text, left + 4, box.y + 11, { fillStyle: look.soft });
    free = left;
  }
  if (!panel.first) return;
  const steps = ticks(0, data.total, 6).filter((step) => Number.isInteger(step) && scale.x(step) < end - 45);
  for (const step of steps)
    words(context, shown(step), scale.x(step), box.y + box.height + 15, { textAlign: "center", fillStyle: look.soft });
  words(context, "batch", end, box.y + box.height + 15, { textAlign: "right", fillStyle: look.soft });
}

function cloud(context, scale, data, look) {
  context.globalAlpha = 0.6;
  for (const [step, score, selected] of data.cloud) {
    context.fillStyle = selected ? look.selected : look.skipped;
    context.fillRect(scale.x(step) - 1, scale.y(score) - 1, 2, 2);
  }
  context.globalAlpha = 1;
}

// Names beside the dots and the line: at its end, until the dots' names have reached their place.
function names(context, panel, box, scale, data, look) {
  const points = data.series.threshold ?? [];
  if (!points.length) return;
  const [step, value] = points[points.length - 1];
  const end = scale.x(step), bold = { font: font(13, 700) };
  const label = `threshold ${shown(Number(value.toPrecision(2)))}`;
  context.fillStyle = look.ink;
  dot(context, end, scale.y(value));
  const home = HOME * data.total, passed = Math.min(step, home);
  const x = Math.min(end + 9, scale.x(home));
  const near = points.filter(([at]) => at >= passed && at <= passed + 0.1 * data.total).map((point) => scale.y(point[1]));
  const inside = (y) => Math.max(box.y + 12, Math.min(box.y + box.height - 6, y));
  const above = inside(Math.min(...near) - 20), below = Math.max(inside(Math.max(...near) + 30), above + 34);
  outlined(context, "trained on", x, above, { ...bold, fillStyle: look.selected }, look);
  outlined(context, "skipped", x, below, { ...bold, fillStyle: look.skipped }, look);
  context.font = bold.font;
  const fits = end + 9 + context.measureText(label).width < box.x + box.width;
  const middle = passed < home ? Math.max(above + 17, scale.y(value) + 5) : scale.y(value) + 5;
  const place = fits ? [end + 9, middle] : [end - 4, inside(scale.y(value) - 10)];
  outlined(context, label, ...place, { ...bold, fillStyle: look.ink, textAlign: fits ? "left" : "right" }, look);
}

function colourOf(panel, name, place, look) {
  if (panel.name === "threshold") return look.ink;
  if (panel.name === "cost") return place ? look.dense : look.run;
  return place ? look.ink : look.run;
}

function draw(context, panel, box, data, look) {
  const scale = scales(panel, box, data.total);
  heading(context, panel, box, look);
  frame(context, panel, box, scale, data, look);
  if (panel.name === "threshold") cloud(context, scale, data, look);
  const own = panel.curves.filter(([name]) => data.series[name]?.length);
  if (panel.name === "cost" && own.length > 1) between(context, own, scale, data, look);
  own.forEach(([name], place) => {
    const points = data.series[name], colour = colourOf(panel, name, place, look);
    const style = { strokeStyle: colour, fillStyle: colour, dash: place ? [5, 4] : [] };
    if (NOISY.includes(name)) {
      path(context, points, scale, { ...style, lineWidth: 0.7, globalAlpha: 0.4 });
      path(context, medians(points), scale, style);
    } else path(context, points, scale, style);
    if (panel.name === "metric") dot(context, scale.x(points.at(-1)[0]), scale.y(points.at(-1)[1]));
  });
  if (panel.name === "threshold") names(context, panel, box, scale, data, look);
  const joules = panel.name === "cost" ? data.series.joules ?? [] : [];
  if (joules.length) {
    const right = scales({ low: 0, high: panel.joules }, box, data.total);
    path(context, joules, right, { strokeStyle: look.joules, dash: [2, 3] });
    const [step, value] = joules[joules.length - 1];
    outlined(context, "joules", right.x(step) - 4, right.y(value) - 5,
      { font: font(11, 700), fillStyle: look.joules, textAlign: "right" }, look);
  }
  return scale;
}

// The pale wedge of what is saved: between the run's curve and that of dense training.
function between(context, [[first], [second]], scale, data, look) {
  context.beginPath();
  for (const [step, value] of data.series[first]) context.lineTo(scale.x(step), scale.y(value));
  for (const [step, value] of [...data.series[second]].reverse())
    context.lineTo(scale.x(step), scale.y(value));
  Object.assign(context, { fillStyle: look.dense, globalAlpha: 0.13 });
  context.fill();
  context.globalAlpha = 1;
}

// The values of a panel at the step below the mouse.
function hover(context, { panel, box, scale }, data, look, mouse) {
  const step = ((mouse.x - box.x) / box.width) * data.total;
  const curves = [...panel.curves, ["joules", "joules"]].filter(([name]) =>
    data.series[name]?.length && (name !== "joules" || panel.name === "cost"));
  const near = curves.map(([name, label]) => {
    const found = data.series[name].reduce((best, point) =>
      (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best));
    return [found[0], `${label} ${shown(found[1])}`];
  });
  if (!near.length) return;
  const lines = [`step ${near[0][0]}`, ...near.map(([, text]) => text)];
  const x = scale.x(near[0][0]);
  context.font = font(11);
  const wide = Math.max(...lines.map((text) => context.measureText(text).width)) + 12;
  const left = x + wide + 8 > box.x + box.width ? Math.max(0, x - wide - 8) : x + 8;
  rule(context, x, box, { strokeStyle: look.soft });
  Object.assign(context, { fillStyle: look.paper, strokeStyle: look.soft });
  context.fillRect(left, box.y + 8, wide, lines.length * 15 + 6);
  context.strokeRect(left, box.y + 8, wide, lines.length * 15 + 6);
  lines.forEach((text, place) =>
    words(context, text, left + 6, box.y + 22 + 15 * place, { fillStyle: look.ink }));
}

// The current state of a trainer that shows one.
function picture(context, image, box, look) {
  words(context, "current state", box.x, box.y - 8, { fillStyle: look.soft });
  const small = make("canvas", { width: image.width, height: image.height });
  const pixels = small.getContext("2d").createImageData(image.width, image.height);
  for (let from = 0, to = 0; from < image.rgb.length; to += 4) {
    for (let channel = 0; channel < 3; channel++) pixels.data[to + channel] = image.rgb[from++];
    pixels.data[to + 3] = 255;
  }
  small.getContext("2d").putImageData(pixels, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, box.x, box.y, box.width, box.height);
}

// Boxes of all panels on a canvas of this width, and its height.
function layout(data, width) {
  const { image } = data, [, ...small] = data.panels;
  const side = image ? Math.min(0.45 * width, (WIDE.height * image.width) / image.height) : 0;
  const shown = side && { width: side, height: (side * image.height) / image.width, y: WIDE.top };
  if (shown) shown.x = width - side - 4;
  const wide = width - WIDE.left - WIDE.right - (side && side + 16);
  const boxes = [{ x: WIDE.left, y: WIDE.top, width: wide, height: WIDE.height }];
  const columns = width >= 640 ? small.length : Math.min(2, small.length);
  const own = width / columns, above = WIDE.top + WIDE.height + 24;
  small.forEach((_, place) => boxes.push({
    x: (place % columns) * own + SMALL.left + (place % columns ? 0 : WIDE.left - SMALL.left),
    y: above + Math.floor(place / columns) * SMALL.all + SMALL.top,
    width: own - SMALL.left - SMALL.right,
    height: SMALL.height,
  }));
  const rows = Math.ceil(small.length / columns || 0);
  return { boxes, shown, height: above + rows * SMALL.all - 10 };
}

// Draw everything for a page of this width; returns the panels as they were drawn.
function scene(canvas, width, data, look, mouse, below = "") {
  const { boxes, shown, height } = layout(data, width);
  const tall = height + (below ? 22 : 0);
  Object.assign(canvas, { width: SCALE * width, height: SCALE * tall });
  const context = canvas.getContext("2d");
  context.scale(SCALE, SCALE);
  context.fillStyle = look.paper;
  context.fillRect(0, 0, width, tall);
  const drawn = data.panels.map((each, place) => {
    const panel = { ...each, first: !place }, box = boxes[place];
    return { panel, box, scale: draw(context, panel, box, data, look) };
  });
  if (shown) picture(context, data.image, shown, look);
  for (const each of mouse ? drawn : []) {
    const { x, y, width: wide, height: high } = each.box;
    if (mouse.x >= x && mouse.x <= x + wide && mouse.y >= y && mouse.y <= y + high)
      hover(context, each, data, look, mouse);
  }
  if (below) words(context, below, WIDE.left, tall - 6, { fillStyle: look.soft });
  return { drawn, height: tall };
}

function lookOf(el) {
  const ink = getComputedStyle(el).color;
  const [red, green, blue] = ink.match(/[\d.]+/g).map(Number);
  const dark = 0.3 * red + 0.6 * green + 0.1 * blue > 128;
  return { ...tones(dark), ink, paper: getComputedStyle(el).backgroundColor };
}

function tones(dark) {
  const faint = (alpha) => `rgba(${dark ? "255,255,255" : "0,0,0"},${alpha})`;
  return { ...(dark ? DARK : LIGHT), soft: faint(0.65), grid: faint(0.1), future: faint(0.04) };
}

// What the file keeps, as base64: the board in light colours.
function stored(data) {
  const canvas = make("canvas");
  scene(canvas, STORED, data, { ...tones(false), ink: "#222222", paper: "#ffffff" }, null, data.state.caption);
  return canvas.toDataURL("image/png").split(",")[1];
}

// Once the run has ended, the kernel puts its picture in the place of this view: let the view stay.
function stay(root) {
  const area = root.closest(".jp-OutputArea");
  const place = area ? [...area.children].findIndex((each) => each.contains(root)) : -1;
  if (place < 0) return;
  const watcher = new MutationObserver(() => {
    if (root.isConnected) return;
    const holder = area.children[place]?.querySelector(".jp-RenderedImage");
    if (!holder) return watcher.disconnect(); // the cell runs again
    holder.classList.add("astkit-kept");
    holder.append(root);
  });
  watcher.observe(area, { childList: true, subtree: true });
}

// One view of the data: controls above, the canvas below.
function view(data, send, el) {
  const press = (name) => make("button", { textContent: name, onclick: () => send({ press: name }) });
  const pause = press("pause"), step = press("step"), stop = press("stop");
  pause.onclick = () => send({ press: pause.textContent });
  const settings = make("div", { className: "settings" });
  const select = make("select", { name: "controller", onchange: () => send({ set: ["controller", select.value] }) });
  const readout = make("p", { className: "readout" });
  const switches = make("div", { className: "switches" }, select, pause, step, stop, readout);
  const bar = make("div", { className: "bar" }, settings, switches);
  const notes = make("p", { className: "notes" });
  const canvas = make("canvas");
  canvas.setAttribute("role", "img");
  const root = make("div", { className: "astkit-board" }, bar, canvas, notes);
  let shape = "", mouse = null, waiting = false, staying = false;

  function slider(name, value, low, high, log) {
    const to = log ? Math.log10 : (each) => each;
    const from = log ? (each) => 10 ** each : (each) => each;
    const output = make("output", { textContent: shown(value) });
    const input = make("input", {
      type: "range", name, min: to(low), max: to(high), step: log ? 0.05 : 0.01, value: to(value),
    });
    const set = () => Number(from(Number(input.value)).toPrecision(3));
    input.oninput = () => { output.textContent = shown(set()); };
    let changed = -Infinity, asked = value;
    input.onchange = () => {
      changed = performance.now();
      asked = set();
      send({ set: [name, asked] });
    };
    input.follow = (now) => {
      // being dragged, or not yet answered by a kernel that is busy
      if (input.matches(":active") || (now !== asked && performance.now() - changed < 3000)) return;
      input.value = to(now);
      output.textContent = shown(now);
    };
    return make("label", {}, `${name} `, input, output);
  }

  function controls() {
    const { gate, enabled, status } = data.state;
    bar.hidden = !status;
    settings.hidden = select.hidden = !gate;
    pause.hidden = step.hidden = stop.hidden = enabled === undefined; // a loop of one's own
    const now = JSON.stringify(gate && [gate.controller, gate.gains.map(([name]) => name)]);
    if (gate && now !== shape) {
      select.replaceChildren(...gate.controllers.map((name) => make("option", { value: name, textContent: name })));
      settings.replaceChildren(
        slider("rate", gate.rate, gate.least, 1, false),
        ...gate.gains.map(([name, value]) => slider(name, value, value / 100, value * 100, true)),
      );
    }
    shape = now;
    if (gate) {
      select.value = gate.controller;
      for (const [name, value] of [["rate", gate.rate], ...gate.gains])
        settings.querySelector(`[name="${name}"]`).follow(value);
    }
    pause.textContent = status === "paused" ? "resume" : "pause";
    for (const control of bar.querySelectorAll("button, input, select")) control.disabled = !enabled;
  }

  function paint() {
    waiting = false;
    controls();
    const said = data.state.readout;
    readout.replaceChildren(...said.map((text) => make("span", { textContent: text })));
    notes.textContent = (data.state.notes ?? []).join(" · ");
    canvas.setAttribute("aria-label", said.join(" · "));
    const width = canvas.clientWidth;
    if (!width) return;
    const { drawn, height } = scene(canvas, width, data, lookOf(root), mouse);
    canvas.style.height = `${height}px`;
    const panels = drawn.map(({ panel, box }) => ({ name: panel.name, box }));
    Object.assign(canvas, { panels, events: data.events });
    canvas.dataset.step = data.step;
    if (!data.still) root.scrollIntoView({ block: "nearest" });
    data.still = true; // once a run
  }

  function update() {
    if (data.state.ended && !staying) stay(root);
    staying ||= Boolean(data.state.ended);
    if (!waiting) requestAnimationFrame(paint);
    waiting = true;
  }
  canvas.onmousemove = (event) => { mouse = { x: event.offsetX, y: event.offsetY }; update(); };
  canvas.onmouseleave = () => { mouse = null; update(); };
  el.replaceChildren(root);
  const resized = new ResizeObserver(update);
  resized.observe(root);
  data.views.add(update);
  update();
  return () => {
    if (staying) return;
    resized.disconnect();
    data.views.delete(update);
  };
}

const bytes = ({ buffer, byteOffset, byteLength }) => buffer.slice(byteOffset, byteOffset + byteLength);

// Take what the kernel has sent: pairs of step and value, series after series; then the scores.
function take(data, { content, buffers: [points, scores, rgb] }) {
  const values = new Float32Array(bytes(points));
  let at = 0;
  Object.assign(data, content, { series: {}, cloud: [] });
  for (const [name, count] of content.counts) {
    const own = (data.series[name] = []);
    for (const end = at + 2 * count; at < end; at += 2) own.push([values[at], values[at + 1]]);
  }
  const triples = new Float32Array(bytes(scores));
  for (let place = 0; place < triples.length; place += 3)
    data.cloud.push([triples[place], triples[place + 1], triples[place + 2]]);
  if (content.image) data.image.rgb = new Uint8Array(bytes(rgb));
  data.views.forEach((update) => update());
}

export default () => {
  const data = { views: new Set() };
  return {
    initialize({ model }) {
      // a page that is opened again stays where it is, as does who types, clicks or scrolls from
      // here on; Shift+Enter runs a cell
      data.still = performance.timeOrigin > 1000 * model.get("began");
      const touch = (event) => {
        const { key, target } = event;
        data.still ||= key !== "Enter" && key !== "Shift";
        // keys on a slider are for it, not for the notebook
        if (key && key !== "Escape" && target.closest?.(".astkit-board .bar")) event.stopPropagation();
      };
      for (const name of ["keydown", "pointerdown", "wheel"])
        addEventListener(name, touch, { capture: true, passive: true });
      const page = Math.random();
      let heard = false;
      model.on("change:sent", () => {
        heard = true;
        take(data, model.get("sent"));
        // a loop of one's own, which has no controls, is deaf
        if (data.state.ended && data.state.gate !== undefined) model.send({ picture: stored(data) });
      });
      model.on("comm_live_update", () => { // the kernel was restarted during the run
        Object.assign(data.state, { enabled: false, readout: ["the kernel has ended, and the run"] });
        data.views.forEach((update) => update());
      });
      const ask = () => { if (!heard) model.send({ ready: page }); };
      const timer = setInterval(ask, 500); // what is sent too early may be lost
      setTimeout(() => clearInterval(timer), 60_000);
      take(data, model.get("sent"));
      ask();
    },
    render({ model, el }) {
      return view(data, (content) => model.send(content), el);
    },
  };
};
