"use strict";
// The figures of the report: lines with bands, drawn as SVG from the data beside each figure.
const figures = (() => {
  const DASHES = { solid: null, dash: "7 4", dot: "2 4", dashdot: "8 4 2 4" };
  const INK = "#1c2430", GREY = "#e6e9ed", EDGE = "#9aa3ad", PAPER = "#ffffff";
  const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
  const TOP = 10, RIGHT = 20, BOTTOM = 42;
  const MOST_NAMED = 12;  // lines in the box of values
  const LEAST_DRAG = 6;  // pixels of a zoom
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });

  function text(value, axis) {
    if (axis.percent) return `${+(100 * value).toPrecision(4)} %`;
    const size = Math.abs(value);
    if (size >= 1e15 || (size > 0 && size < 1e-4)) return value.toExponential(3).replace(/\.?0+e/, "e");
    return size >= 1e5 ? compact.format(value) : String(+value.toPrecision(4));
  }

  function element(name, attributes, parent, content) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes))
      if (value !== null) made.setAttribute(key, value);
    if (content !== undefined) made.textContent = content;
    parent?.append(made);
    return made;
  }

  // Ticks

  function ticks(axis, low, high, most) {
    const found = [];
    if (axis.log) {
      const [from, to] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
      const decades = Math.log10(high / low);
      const every = Math.max(1, Math.ceil(decades / most));
      for (let power = from; power <= to; power++)
        for (const factor of decades < 3 ? [1, 2, 5] : power % every ? [] : [1])
          found.push(factor * 10 ** power);
      const inside = found.filter((v) => v >= low * 0.999 && v <= high * 1.001);
      if (inside.length > 1) return inside;
      found.length = 0;  // less than a step of 1, 2, 5
    }
    const rough = (high - low) / most, unit = 10 ** Math.floor(Math.log10(rough));
    const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= rough * 0.999);
    for (let i = Math.ceil(low / step - 1e-6); i * step <= high + step * 1e-6; i++)
      found.push(+(i * step).toPrecision(12));
    return found;
  }

  // Values to pixels and back
  function scale(axis, [low, high], from, to) {
    const f = axis.log ? Math.log10 : (v) => v, g = axis.log ? (v) => 10 ** v : (v) => v;
    const begin = f(low), unit = (to - from) / (f(high) - begin);
    return { at: (v) => from + (f(v) - begin) * unit, value: (p) => g(begin + (p - from) / unit) };
  }

  const known = (values) => values.filter((v) => v !== null);

  function span(axis, values, padding) {
    let low = Infinity, high = -Infinity;
    for (const v of values) { if (v < low) low = v; if (v > high) high = v; }
    if (axis.most && low < axis.most) high = Math.min(high, axis.most);  // a line that diverges leaves above
    if (low > high) return axis.log ? [1, 10] : [0, 1];
    if (axis.log) {
      const by = padding ? Math.max((high / low) ** padding, 1.05) : 1;
      return [low / by, high * by];
    }
    const by = high > low ? padding * (high - low) : 0.5 * Math.abs(high) || 0.5;
    return [low >= 0 ? Math.max(low - by, 0) : low - by, high + by];
  }

  // A path through the points of each stretch without a gap
  function stretches(xs, ys) {
    const found = [];
    let open = false;
    xs.forEach((x, i) => {
      if (x === null || ys[i] === null) open = false;
      else if (open) found.at(-1).push(i);
      else { found.push([i]); open = true; }
    });
    return found;
  }

  const path = (points) => "M" + points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");

  const nearest = (xs, x) => {
    let best = null;
    xs.forEach((v, i) => {
      if (v !== null && (best === null || Math.abs(v - x) < Math.abs(xs[best] - x))) best = i;
    });
    return best;
  };

  class Figure {
    constructor(plot, data, hidden) {
      Object.assign(this, { plot, data, hidden, view: null });
      // one list of values for all lines if they have points at the same x
      const fewest = Math.min(...data.lines.map((line) => line.x.length));
      const begins = new Set(data.lines.map((line) => String(line.x.slice(0, fewest))));
      this.together = begins.size < 2;
      plot.addEventListener("pointermove", (event) => this.hover(event));
      plot.addEventListener("pointerdown", (event) => this.press(event));
      plot.addEventListener("pointerup", (event) => this.release(event));
      plot.addEventListener("pointerleave", () => this.unhover());
      plot.addEventListener("dblclick", () => { this.view = null; this.draw(); });
    }

    get shown() {
      const off = this.hidden();
      return this.data.lines.filter((line) => !off.has(line.label));
    }

    draw() {
      this.width = this.plot.clientWidth;
      this.plot.replaceChildren(this.made = this.svg(this.width, this.plot.clientHeight));
      this.marks = this.drag = this.box = null;
    }

    svg(width, height) {
      const { x, y, mark } = this.data, lines = this.shown;
      const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, xmlns: "http://www.w3.org/2000/svg",
        "font-family": FONT, "font-size": 12, fill: INK });
      element("rect", { width, height, fill: PAPER }, svg);
      const spans = this.view ?? [span(x, lines.flatMap((line) => known(line.x)), 0),
        span(y, lines.flatMap((line) => known([...line.y, ...line.low, ...line.high])), 0.05)];
      const rows = ticks(y, ...spans[1], Math.max(2, Math.floor(height / 45)));
      const left = 30 + 7 * Math.max(3, ...rows.map((v) => text(v, y).length));
      const right = width - RIGHT, bottom = height - BOTTOM;
      const [sx, sy] = [scale(x, spans[0], left, right), scale(y, spans[1], bottom, TOP)];
      this.area = { left, right, top: TOP, bottom, sx, sy };
      for (const v of rows) {
        const at = sy.at(v);
        element("path", { d: `M${left} ${at}H${right}`, stroke: GREY }, svg);
        element("text", { class: "ytick", x: left - 7, y: at + 4, "text-anchor": "end" }, svg, text(v, y));
      }
      for (const v of ticks(x, ...spans[0], Math.max(2, Math.floor((right - left) / 75)))) {
        const at = sx.at(v);
        element("path", { d: `M${at} ${TOP}V${bottom}`, stroke: GREY }, svg);
        element("path", { d: `M${at} ${bottom}v4`, stroke: EDGE }, svg);
        element("text", { class: "xtick", x: at, y: bottom + 17, "text-anchor": "middle" }, svg, text(v, x));
      }
      // an inner svg cuts off what is outside of it
      const inner = element("svg", { x: left, y: TOP, width: right - left, height: bottom - TOP,
        viewBox: `${left} ${TOP} ${right - left} ${bottom - TOP}` }, svg);
      if (mark !== null)
        element("path", { d: `M${sx.at(mark)} ${TOP}V${bottom}`, stroke: "#888888", "stroke-dasharray": "2 3" }, inner);
      for (const line of lines)
        for (const at of line.low.length ? stretches(line.x, line.y) : []) {
          const edge = (side) => at.map((i) => [sx.at(line.x[i]), sy.at(line[side][i])]);
          element("path", { class: "band", d: `${path([...edge("low"), ...edge("high").reverse()])}Z`,
            fill: line.colour, "fill-opacity": 0.17 }, inner);
        }
      for (const line of lines) {
        const all = stretches(line.x, line.y)
          .map((at) => at.map((i) => [sx.at(line.x[i]), sy.at(line.y[i])]));
        element("path", { class: "line", d: all.filter((at) => at.length > 1).map(path).join(""), fill: "none",
          stroke: line.colour, "stroke-width": 2, "stroke-linejoin": "round", "data-label": line.label,
          "stroke-dasharray": DASHES[line.dash] }, inner);
        for (const [[cx, cy]] of all.filter((at) => at.length === 1))
          element("circle", { cx, cy, r: 3, fill: line.colour }, inner);
      }
      element("path", { d: `M${left} ${TOP}V${bottom}H${right}`, fill: "none", stroke: EDGE }, svg);
      element("text", { x: (left + right) / 2, y: height - 7, "text-anchor": "middle" }, svg, x.title);
      element("text", { x: 13, y: (TOP + bottom) / 2, "text-anchor": "middle",
        transform: `rotate(-90 13 ${(TOP + bottom) / 2})` }, svg, y.title);
      return svg;
    }

    // Where the pointer is, in the figure's own pixels; null outside of the axes
    place(event) {
      if (!this.made || !this.area) return null;
      const box = this.made.getBoundingClientRect();
      const at = [event.clientX - box.left, event.clientY - box.top];
      const { left, right, top, bottom } = this.area;
      return at[0] < left || at[0] > right || at[1] < top || at[1] > bottom ? null : at;
    }

    hover(event) {
      const at = this.place(event);
      if (this.drag) return this.stretch(at);
      if (!at) return this.unhover();
      const { sx, sy, top, bottom } = this.area, { x, y } = this.data;
      const wanted = sx.value(at[0]);
      let rows = this.shown.map((line) => ({ line, i: nearest(line.x, wanted) }))
        .filter(({ line, i }) => i !== null && line.y[i] !== null)
        .map(({ line, i }) => ({ line, i, px: sx.at(line.x[i]), py: sy.at(line.y[i]) }));
      if (!rows.length) return this.unhover();
      rows.sort((a, b) => Math.abs(a.py - at[1]) - Math.abs(b.py - at[1]));
      const more = rows.length - MOST_NAMED;
      rows = rows.slice(0, MOST_NAMED).sort((a, b) => a.py - b.py);
      this.marks?.remove();
      this.marks = element("g", { "pointer-events": "none" }, this.made);
      const upright = this.together ? rows[0].px : at[0];
      element("path", { d: `M${upright} ${top}V${bottom}`, stroke: EDGE }, this.marks);
      for (const { line, px, py } of rows)
        if (py >= top && py <= bottom)
          element("circle", { cx: px, cy: py, r: 3.5, fill: line.colour, stroke: PAPER }, this.marks);
      const box = document.createElement("div");
      box.className = "values";
      if (this.together) {
        const title = document.createElement("b");
        title.textContent = `${x.title} ${text(rows[0].line.x[rows[0].i], x)}`;
        box.append(title);
      }
      for (const { line, i } of rows) {
        const row = document.createElement("span"), swatch = document.createElement("i");
        swatch.style.borderColor = line.colour;
        const by = line.low.length ? ` ± ${text(line.high[i] - line.y[i], y)}` : "";
        const where = this.together ? "" : ` at ${text(line.x[i], x)}`;
        row.append(swatch, `${line.label}: ${text(line.y[i], y)}${by}${where}`);
        box.append(row);
      }
      if (more > 0) box.append(`and ${more} more`);
      this.box?.remove();
      this.plot.append(this.box = box);
      const side = at[0] > this.plot.clientWidth / 2 ? at[0] - box.offsetWidth - 14 : at[0] + 14;
      box.style.left = `${Math.max(0, Math.min(side, this.plot.clientWidth - box.offsetWidth))}px`;
      box.style.top = `${Math.max(0, Math.min(at[1] - box.offsetHeight / 2, this.plot.clientHeight - box.offsetHeight))}px`;
    }

    unhover() {
      this.marks?.remove();
      this.box?.remove();
      this.marks = this.box = null;
    }

    // Dragging with a mouse zooms; on a touch screen it scrolls the page

    press(event) {
      const at = this.place(event);
      if (!at || event.button !== 0 || event.pointerType !== "mouse") return;
      event.preventDefault();
      this.unhover();
      this.plot.setPointerCapture(event.pointerId);
      this.drag = { from: at, to: at, rect: element("rect", { fill: INK, "fill-opacity": 0.1, stroke: EDGE }, this.made) };
    }

    stretch(at) {
      if (!at) return;
      const { from, rect } = this.drag;
      this.drag.to = at;
      for (const [k, [place, size]] of [["x", "width"], ["y", "height"]].entries()) {
        rect.setAttribute(place, Math.min(from[k], at[k]));
        rect.setAttribute(size, Math.abs(from[k] - at[k]));
      }
    }

    release() {
      if (!this.drag) return;
      const { from, to, rect } = this.drag, { sx, sy } = this.area;
      this.drag = null;
      rect.remove();
      if (from.some((v, k) => Math.abs(v - to[k]) < LEAST_DRAG)) return;
      const sorted = (a, b) => (a < b ? [a, b] : [b, a]);
      this.view = [sorted(sx.value(from[0]), sx.value(to[0])), sorted(sy.value(from[1]), sy.value(to[1]))];
      this.draw();
    }

    // The figure as a file of its own, with the names of its lines

    file() {
      const width = 640, height = 400, wide = 7;
      const svg = this.svg(width, height);
      let x = 60, y = height + 14;
      for (const { label, colour, dash } of this.shown) {
        const needed = 50 + wide * label.length;
        if (x > 60 && x + needed > width) { x = 60; y += 20; }
        element("path", { d: `M${x} ${y - 4}h26`, stroke: colour, "stroke-width": 2, "stroke-dasharray": DASHES[dash] }, svg);
        element("text", { x: x + 32, y }, svg, label);
        x += needed;
      }
      svg.setAttribute("viewBox", `0 0 ${width} ${y + 12}`);
      svg.prepend(element("rect", { width, height: y + 12, fill: PAPER }));
      this.draw();  // the areas of the screen again
      return new XMLSerializer().serializeToString(svg);
    }

    table() {
      const cell = (v) => (v === null ? "" : typeof v === "number" ? v : `"${v.replaceAll('"', '""')}"`);
      const rows = this.data.lines.flatMap((line) => line.x.map((x, i) =>
        [line.label, x, line.y[i], line.low[i] ?? null, line.high[i] ?? null]));
      return [["label", this.data.x.title, this.data.y.title, "mean - std", "mean + std"], ...rows]
        .map((row) => row.map(cell).join(",") + "\r\n").join("");
    }
  }
  return { Figure };
})();