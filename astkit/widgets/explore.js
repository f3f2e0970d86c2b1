// The explorer of samples, in a notebook and in a page of its own: render({ model, el }).
const PAGE = 60; // samples shown at first, and more at each click

function make(tag, props = {}, ...children) {
  const node = Object.assign(document.createElement(tag), props);
  node.append(...children.filter((child) => child !== null));
  return node;
}

function drawn(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Bars of how often a sample was trained on in each part of the run, and a line of its loss.
function chart(lines, width, height, [lowest, worst], named) {
  const parts = lines[0].losses.length;
  const x = (part) => ((part + 0.5) * width) / parts;
  const y = (loss) => 4 + ((height - 8) * (worst - loss)) / (worst - lowest);
  const most = Math.max(1, ...lines.flatMap((line) => line.counts));
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  lines.forEach((line, place) => {
    const wide = (0.8 * width) / parts / lines.length;
    line.counts.forEach((count, part) => {
      const tall = (0.4 * height * count) / most;
      const left = x(part) + (place - lines.length / 2) * wide;
      const box = { x: left, y: height - tall, width: wide, height: tall, fill: line.colour };
      svg.append(drawn("rect", { ...box, opacity: 0.35 }));
    });
    const points = line.losses
      .map((loss, part) => (loss === null ? null : [x(part), y(loss)]))
      .filter((point) => point !== null);
    const path = { points: points.join(" "), fill: "none", stroke: line.colour, "stroke-width": 2 };
    svg.append(drawn("polyline", path));
    for (const [cx, cy] of points.length < 2 || named ? points : [])
      svg.append(drawn("circle", { cx, cy, r: 2.5, fill: line.colour }));
  });
  const words = `${parts} parts of the run: losses from ${lowest.toPrecision(3)} to ${worst.toPrecision(3)}, bars up to ${most}×`;
  svg.append(drawn("title", {}, words));
  return named ? make("div", {}, svg, make("p", { textContent: words, className: "said" })) : svg;
}

// From the lowest loss, or 0, to the highest.
function range(losses) {
  return losses.flat().reduce(
    ([low, high], loss) => [Math.min(low, loss ?? 0), Math.max(high, loss ?? 0)], [0, 1e-9]);
}

function content(sample, large) {
  if (sample.picture) {
    const alt = `row ${sample.row}, ${sample.label}`;
    return make("img", { src: sample.picture, alt, className: large ? "large" : "" });
  }
  if (sample.text) return make("p", { textContent: sample.text, className: large ? "" : "cut" });
  const rows = sample.fields.slice(0, large ? 100 : 4).map(([name, value]) =>
    make("tr", {}, make("th", { textContent: name }), make("td", { textContent: value })));
  return make("table", {}, ...rows);
}

const sum = (counts) => counts.reduce((total, count) => total + count, 0);
const last = (losses) => losses.findLast((loss) => loss !== null) ?? null;
const shown = (loss) => (loss === null ? "no loss" : `loss ${loss.toPrecision(3)}`);

function render({ model, el }) {
  const { title, samples, methods } = model.get("content");
  const labels = [...new Set(samples.map((sample) => sample.label))].filter((label) => label !== "");
  const state = { method: 0, label: "", group: "", limit: PAGE, open: null };
  const bar = make("div", { className: "bar" });
  const said = make("p", { className: "said" });
  said.setAttribute("aria-live", "polite");
  const grid = make("div", { className: "grid" });
  const detail = make("div", { className: "detail" });
  const more = make("button", { textContent: "more", onclick: () => {
    const first = state.limit;
    update({ limit: first + PAGE });
    grid.children[first].focus();
  } });

  function choice(name, options, key) {
    const select = make("select", { name: key }, ...options.map(([value, text]) =>
      make("option", { value, textContent: text, selected: String(state[key]) === String(value) })));
    select.onchange = () => {
      const value = key === "method" ? Number(select.value) : select.value;
      update({ [key]: value, limit: PAGE, open: null });
    };
    return make("label", { textContent: `${name} ` }, select);
  }

  const lineOf = (method, place) => ({
    colour: method.colour, counts: method.counts[place], losses: method.losses[place],
  });

  function update(change = {}) {
    Object.assign(state, change);
    const focused = el.getRootNode().activeElement?.name; // all of it is made anew
    const method = methods[state.method];
    if (!(state.group in method.groups)) state.group = "";
    const all = state.group ? method.groups[state.group] : samples.map((_, place) => place);
    const places = all.filter((place) => !state.label || samples[place].label === state.label);
    bar.replaceChildren(
      choice("method", methods.map((each, place) => [place, each.name]), "method"),
      labels.length
        ? choice("class", [["", "all"], ...labels.map((label) => [label, label])], "label")
        : "",
      choice("group", [["", "all"], ...Object.entries(method.groups).map(([name, rows]) =>
        [name, `${name} (${rows.length})`])], "group"),
    );
    said.textContent = `${places.length} of ${samples.length} samples; bars: how often each was `
      + "trained on in each part of the run, line: its loss";
    const limits = range(method.losses);
    grid.replaceChildren(...places.slice(0, state.limit).map((place) => card(method, place, limits)));
    more.hidden = places.length <= state.limit;
    detail.replaceChildren(...(state.open === null ? [] : [opened(state.open)]));
    if (focused) el.querySelector(`[name="${focused}"]`)?.focus();
    if (change.open !== undefined && change.open !== null) detail.scrollIntoView({ block: "nearest" });
  }

  function card(method, place, limits) {
    const sample = samples[place];
    const words = `${sample.label || `row ${sample.row}`}, ${sum(method.counts[place])}×`;
    const onclick = () => update({ open: state.open === place ? null : place });
    const node = make("button", { className: "card", name: `row ${sample.row}`, onclick },
      content(sample, false),
      make("span", { textContent: words }),
      make("span", { textContent: shown(last(method.losses[place])) }),
      chart([lineOf(method, place)], 96, 40, limits, false));
    node.setAttribute("aria-pressed", String(state.open === place));
    return node;
  }

  function opened(place) {
    const sample = samples[place];
    const lines = methods.map((method) => lineOf(method, place));
    const rows = methods.map((method) => make("tr", {},
      make("th", { textContent: method.name, style: `color: ${method.colour}` }),
      make("td", { textContent: `trained on ${sum(method.counts[place])}×` }),
      make("td", { textContent: shown(last(method.losses[place])) })));
    return make("section", {},
      make("h3", { textContent: `row ${sample.row}${sample.label && `, class ${sample.label}`}` }),
      make("div", { className: "side" }, content(sample, true), make("table", {}, ...rows)),
      chart(lines, 480, 150, range(lines.map((line) => line.losses)), true));
  }

  el.classList.add("astkit-explore");
  el.replaceChildren(make("h2", { textContent: title }), bar, said, detail, grid, more);
  update();
}

export default { render };
