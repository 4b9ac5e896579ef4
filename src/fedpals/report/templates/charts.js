"use strict";
// Plain SVG charts, drawn in pixels for the width that they have.
const charts = (() => {
  const HEIGHT = 260;

  function make(tag, attributes = {}, text = null) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== null) element.textContent = text;
    return element;
  }

  // About four round steps of an axis from 0 to `top`.
  function ticks(top) {
    const rough = top / 4 || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough);
    return Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, i) => i * step);
  }

  // The first gridline that nothing lies above.
  function ceiling(most) {
    if (!(most > 0)) return 1;
    const step = ticks(most)[1];
    return Math.ceil(most / step - 1e-9) * step;
  }

  // Clear the chart and draw its axes; x and y convert values to positions.
  function frame(svg, { bottom, top, xRange, height = HEIGHT, left = 46 }) {
    const width = Math.max(260, svg.clientWidth || svg.parentElement.clientWidth);
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const right = width - 8, base = height - bottom, above = 10;
    const x = (value) => left + ((value - xRange[0]) / (xRange[1] - xRange[0] || 1)) * (right - left);
    const y = (value) => base - (value / (top || 1)) * (base - above);
    for (const value of ticks(top)) {
      svg.append(make("line", { x1: left, x2: right, y1: y(value), y2: y(value), class: value ? "grid" : "axis" }));
      svg.append(make("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, String(Number(value.toPrecision(6)))));
    }
    return { x, y, base, width, left, right };
  }

  // Names below their positions; rotated if they are long, left out if there is no room.
  function names(svg, axes, texts) {
    const room = (axes.right - axes.left) / texts.length;
    if (room < 13) return;
    const longest = Math.max(...texts.map((text) => text.length));
    const rotated = longest * 7 > room;
    texts.forEach((text, i) => {
      const name = text.length > 16 ? `${text.slice(0, 15)}…` : text;
      const at = `${axes.x(i)} ${axes.base + 15}`;
      const attributes = rotated
        ? { transform: `translate(${at}) rotate(-42)`, "text-anchor": "end" }
        : { transform: `translate(${at})`, "text-anchor": "middle" };
      svg.append(make("text", attributes, name));
    });
  }

  function bottomFor(svg, texts) {
    const room = ((svg.clientWidth || 300) - 54) / texts.length;
    const longest = Math.min(16, Math.max(...texts.map((text) => text.length)));
    if (room < 13) return 14;
    return longest * 7 > room ? 20 + longest * 5 : 26;
  }

  function bars(svg, { names: texts, bars: groups }) {
    const top = 1.08 * Math.max(1e-9, ...groups.flatMap((group) => group.values));
    const axes = frame(svg, { bottom: bottomFor(svg, texts), top, xRange: [-0.6, texts.length - 0.4] });
    const width = (0.84 * (axes.right - axes.left)) / (texts.length * groups.length);
    groups.forEach((group, i) => {
      group.values.forEach((value, k) => {
        const x = axes.x(k) + (i - groups.length / 2) * width;
        const rect = make("rect", { x, width: Math.max(0.5, 0.92 * width), y: axes.y(value), height: Math.max(0, axes.base - axes.y(value)), fill: group.colour });
        rect.append(make("title", {}, `${texts[k]}, ${group.name}: ${value.toFixed(2)} %`));
        svg.append(rect);
      });
    });
    names(svg, axes, texts);
    return groups.map((group) => `${group.name}: ${group.values.slice(0, 12).map((value, k) => `${texts[k]} ${value.toFixed(1)} %`).join(", ")}`).join("; ");
  }

  // Points are [x, y, low, high]: the last two are the ends of the band.
  function lines(svg, { lines: curves }) {
    const points = curves.flatMap((curve) => curve.points);
    const last = Math.max(2, ...points.map(([x]) => x));
    const top = Math.min(105, 1.08 * Math.max(1, ...points.map(([, , , high]) => high)));
    const axes = frame(svg, { bottom: 40, top, xRange: [1, last] });
    for (const at of ticks(last)) {
      if (at >= 1 && Number.isInteger(at)) svg.append(make("text", { x: axes.x(at), y: axes.base + 17, "text-anchor": "middle" }, String(at)));
    }
    svg.append(make("text", { x: (axes.left + axes.right) / 2, y: axes.base + 34, "text-anchor": "middle" }, "round"));
    const y = (value) => axes.y(Math.max(0, Math.min(top, value))).toFixed(1);
    for (const { name, colour, dashes, points: own } of curves) {
      const x = own.map(([at]) => axes.x(at).toFixed(1));
      const above = own.map(([, , , high], i) => `${x[i]} ${y(high)}`);
      const below = own.map(([, , low], i) => `${x[i]} ${y(low)}`).reverse();
      svg.append(make("polygon", { points: [...above, ...below].join(","), fill: colour, "fill-opacity": 0.12 }));
      const path = make("path", { d: `M${own.map(([, value], i) => `${x[i]} ${y(value)}`).join("L")}`, fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": dashes });
      path.append(make("title", {}, name));
      const [at, value] = own[own.length - 1];
      svg.append(path, make("circle", { cx: axes.x(at), cy: y(value), r: 3.5, fill: colour }));
    }
    return curves.map(({ name, points: own }) => `${name}: ${own[own.length - 1][1].toFixed(1)} % in round ${own[own.length - 1][0]}`).join("; ");
  }

  return { make, ticks, ceiling, frame, names, bottomFor, bars, lines };
})();
