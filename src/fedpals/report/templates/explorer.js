"use strict";
// The λ explorer: moves through solutions that were computed beforehand and draws them as plain SVG.
const explorers = (() => {
  const HEIGHT = 260;

  function make(tag, attributes = {}, text = null) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== null) element.textContent = text;
    return element;
  }

  const percent = (value) => `${(100 * value).toFixed(1)} %`;
  const whole = (value) => Math.round(value).toLocaleString("en");
  const short = (value) =>
    value < 1e-12 ? "0" : value < 1e-3 || value >= 1e6 ? value.toExponential(2) : value.toLocaleString("en", { maximumSignificantDigits: 3 });
  const lambda = (step) => (step.lam === null ? "∞" : step.lam === 0 ? "→ 0" : short(step.lam));

  // Round steps of an axis from 0 to `top`, about four of them.
  function ticks(top) {
    const rough = top / 4 || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
    return Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, i) => i * step);
  }

  // Empty the chart and give it axes; x and y then turn values into places.
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

  // Names below their places; slanted where they are long, left out where there is no room.
  function names(svg, axes, texts) {
    const room = (axes.right - axes.left) / texts.length;
    if (room < 13) return;
    const longest = Math.max(...texts.map((text) => text.length));
    const slanted = longest * 7 > room;
    texts.forEach((text, i) => {
      const shown = text.length > 16 ? `${text.slice(0, 15)}…` : text;
      const at = `${axes.x(i)} ${axes.base + 15}`;
      const attributes = slanted
        ? { transform: `translate(${at}) rotate(-42)`, "text-anchor": "end" }
        : { transform: `translate(${at})`, "text-anchor": "middle" };
      svg.append(make("text", attributes, shown));
    });
  }

  function bottomFor(svg, texts) {
    const room = ((svg.clientWidth || 300) - 54) / texts.length;
    const longest = Math.min(16, Math.max(...texts.map((text) => text.length)));
    if (room < 13) return 14;
    return longest * 7 > room ? 20 + longest * 5 : 26;
  }

  function bar(svg, axes, at, width, value, style, note) {
    const rect = make("rect", { x: at - width / 2, width, y: axes.y(value), height: Math.max(0, axes.base - axes.y(value)), class: style });
    rect.append(make("title", {}, note));
    svg.append(rect);
  }

  function weights(svg, data, step) {
    // One scale for all steps, so that bars are seen to move; halved where they would be too small to be seen.
    let top = 1.05 * Math.max(...data.fedavg, ...data.steps.flatMap((s) => s.alpha));
    while (top > 2.5 * Math.max(...data.fedavg, ...step.alpha)) top /= 2;
    const count = data.clients.length;
    const axes = frame(svg, { bottom: bottomFor(svg, data.clients), top, xRange: [-0.6, count - 0.4] });
    const width = (0.8 * (axes.right - axes.left)) / count;
    data.clients.forEach((name, i) => {
      const note = `${name}, ${whole(data.sizes[i])} samples: FedPALS ${step.alpha[i]}, FedAvg ${data.fedavg[i]}`;
      bar(svg, axes, axes.x(i), width, step.alpha[i], "blue", note);
      const dot = make("circle", { cx: axes.x(i), cy: axes.y(data.fedavg[i]), r: Math.max(2, Math.min(5, width / 3)), class: "orange mark" });
      dot.append(make("title", {}, note));
      svg.append(dot);
    });
    names(svg, axes, data.clients);
    const order = step.alpha.map((_, i) => i).sort((a, b) => step.alpha[b] - step.alpha[a]).slice(0, 3);
    svg.setAttribute("aria-label", `Largest weights: ${order.map((i) => `${data.clients[i]} ${step.alpha[i].toFixed(3)}, FedAvg ${data.fedavg[i].toFixed(3)}`).join("; ")}.`);
  }

  function marginal(svg, data, step) {
    const top = 1.05 * Math.max(...data.target, ...data.pooled, ...data.steps.flatMap((s) => s.marginal));
    const count = data.labels.length;
    const axes = frame(svg, { bottom: bottomFor(svg, data.labels), top, xRange: [-0.6, count - 0.4] });
    const width = (0.38 * (axes.right - axes.left)) / count;
    data.labels.forEach((name, k) => {
      const note = `${name}: FedPALS ${step.marginal[k]}, target ${data.target[k]}, FedAvg ${data.pooled[k]}`;
      bar(svg, axes, axes.x(k) - width / 2, width, step.marginal[k], "blue", note);
      bar(svg, axes, axes.x(k) + width / 2, width, data.target[k], "target", note);
      const dot = make("circle", { cx: axes.x(k) - width / 2, cy: axes.y(data.pooled[k]), r: Math.max(2, Math.min(5, width / 3)), class: "orange mark" });
      dot.append(make("title", {}, note));
      svg.append(dot);
    });
    names(svg, axes, data.labels);
    const told = data.labels.slice(0, 12).map((name, k) => `${name} ${step.marginal[k].toFixed(2)}, target ${data.target[k].toFixed(2)}`);
    svg.setAttribute("aria-label", `Shares in the weighted mix: ${told.join("; ")}.`);
  }

  function tradeoff(svg, data, step) {
    const distances = data.steps.map((s) => s.distance);
    const range = [data.steps[0].ess, 1];
    if (range[0] > 0.999) range[0] = 0;
    const axes = frame(svg, { bottom: 40, top: 1.08 * Math.max(...distances) || 1, xRange: range, left: 56 });
    const place = (s) => `${axes.x(s.ess).toFixed(1)} ${axes.y(s.distance).toFixed(1)}`;
    svg.append(make("path", { d: `M${data.steps.map(place).join("L")}`, class: "path" }));
    const share = ticks(1 - range[0])[1];
    for (let at = 1; at > range[0] - 1e-9; at -= share) {
      svg.append(make("text", { x: axes.x(at), y: axes.base + 17, "text-anchor": at === 1 ? "end" : "middle" }, `${Number((100 * at).toPrecision(4))} %`));
    }
    svg.append(make("text", { x: (axes.left + axes.right) / 2, y: axes.base + 34, "text-anchor": "middle" }, "effective sample size"));
    const at = { cx: axes.x(step.ess), cy: axes.y(step.distance) };
    svg.append(make("line", { x1: at.cx, x2: at.cx, y1: at.cy, y2: axes.base, class: "grid" }));
    const fedavg = data.steps[data.steps.length - 1];
    svg.append(make("rect", { x: axes.x(1) - 5, y: axes.y(fedavg.distance) - 5, width: 10, height: 10, class: "orange mark" }));
    svg.append(make("circle", { ...at, r: 7, class: "green mark now" }));
    svg.setAttribute("aria-label", `At ${percent(step.ess)} effective sample size the distance is ${short(step.distance)}; FedAvg has ${short(fedavg.distance)}.`);
  }

  function simplex(svg, data, step) {
    const figure = svg.closest("figure");
    figure.hidden = !data.simplex;
    if (!data.simplex) return;
    const { corners, hull, clients, projection } = data.simplex;
    const width = Math.max(260, svg.clientWidth || 300), height = 300;
    const size = Math.min(width - 90, (height - 56) / 0.87), left = (width - size) / 2, base = height - 28;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const flat = ([x, y]) => [left + size * x, base - size * y];
    const place = (shares) => flat([0, 1].map((axis) => shares.reduce((sum, share, k) => sum + share * corners[k][axis], 0)));
    const outline = (points) => points.map((point) => flat(point).map((v) => v.toFixed(1)).join(" ")).join(",");
    svg.append(make("polygon", { points: outline(corners), class: "triangle" }));
    svg.append(make("polygon", { points: outline(hull), class: "hull" }));
    corners.forEach((corner, k) => {
      const [x, y] = flat(corner);
      svg.append(make("text", { x, y: k === 2 ? y - 8 : y + 19, "text-anchor": "middle" }, data.labels[k]));
    });
    const most = Math.max(...data.sizes);
    clients.forEach((shares, i) => {
      const [cx, cy] = place(shares);
      const dot = make("circle", { cx, cy, r: 3 + 6 * Math.sqrt(data.sizes[i] / most), class: "pale" });
      dot.append(make("title", {}, `${data.clients[i]}, ${whole(data.sizes[i])} samples`));
      svg.append(dot);
    });
    svg.append(make("path", { d: `M${data.steps.map((s) => place(s.marginal).map((v) => v.toFixed(1)).join(" ")).join("L")}`, class: "path" }));
    const [px, py] = place(projection), [fx, fy] = place(data.pooled), [tx, ty] = place(data.target), [sx, sy] = place(step.marginal);
    svg.append(make("rect", { x: px - 5, y: py - 5, width: 10, height: 10, transform: `rotate(45 ${px} ${py})`, class: "blue mark" }));
    svg.append(make("rect", { x: fx - 6, y: fy - 6, width: 12, height: 12, class: "orange mark" }));
    svg.append(make("circle", { cx: sx, cy: sy, r: 8, class: "green mark now" }));
    const spikes = Array.from({ length: 10 }, (_, i) => {
      const radius = i % 2 ? 3.5 : 10, angle = (Math.PI * i) / 5 - Math.PI / 2;
      return `${tx + radius * Math.cos(angle)} ${ty + radius * Math.sin(angle)}`;
    });
    svg.append(make("polygon", { points: spikes.join(","), class: "red mark" }));
    svg.setAttribute("aria-label", `The mix has ${data.labels.map((name, k) => `${name} ${step.marginal[k].toFixed(2)}`).join(", ")}; the target ${data.labels.map((name, k) => `${name} ${data.target[k].toFixed(2)}`).join(", ")}.`);
  }

  const CHARTS = { weights, marginal, tradeoff, simplex };

  function start(root) {
    const { federations, first } = JSON.parse(root.querySelector("script.data").textContent);
    const slider = root.querySelector("input[type=range]");
    const charts = Object.entries(CHARTS).map(([name, draw]) => [root.querySelector(`[data-chart=${name}] svg`), draw]);
    let data = null;

    function tell(name, text) {
      for (const element of root.querySelectorAll(`[data-fact=${name}]`)) element.textContent = text;
    }

    function draw() {
      const step = data.steps[slider.value], fedavg = data.steps[data.steps.length - 1];
      slider.setAttribute("aria-valuetext", `${percent(step.ess)}, distance ${short(step.distance)}`);
      tell("ess", percent(step.ess));
      tell("distance", short(step.distance));
      tell("gain", fedavg.distance > 0 ? `${Math.round(100 * (1 - step.distance / fedavg.distance))} % less than FedAvg’s ${short(fedavg.distance)}` : "FedAvg is there already");
      tell("samples", whole(step.ess * data.samples));
      tell("total", `of ${whole(data.samples)}`);
      tell("lam", lambda(step));
      tell("used", whole(step.used));
      tell("clients", `of ${whole(data.allClients)}`);
      const rest = Math.max(0, 1 - step.alpha.reduce((sum, value) => sum + value, 0));
      const hidden = data.allClients - data.clients.length;
      tell("shownClients", hidden ? `The ${data.clients.length} clients that ever have the largest weights; the other ${whole(hidden)} have ${percent(rest)} together.` : "");
      const fewer = data.allLabels - data.labels.length;
      tell("shownLabels", fewer ? `The ${data.labels.length} labels that ever have the largest shares; ${whole(fewer)} more are not drawn.` : "");
      root.querySelector("[data-fact=table]").replaceChildren(...data.clients.map((name, i) => {
        const row = document.createElement("tr");
        const head = document.createElement("th");
        head.scope = "row";
        head.textContent = name;
        row.append(head, ...[whole(data.sizes[i]), data.fedavg[i].toFixed(4), step.alpha[i].toFixed(4)].map((text) => {
          const cell = document.createElement("td");
          cell.className = "number";
          cell.textContent = text;
          return cell;
        }));
        return row;
      }));
      for (const [svg, chart] of charts) chart(svg, data, step);
    }

    function show(index) {
      data = federations[index];
      slider.max = data.steps.length - 1;
      slider.value = data.start;
      tell("covered", `The target is ${data.covered}.`);
      draw();
    }

    slider.addEventListener("input", draw);
    new ResizeObserver(draw).observe(root);
    show(first);
    return show;
  }

  return new Map([...document.querySelectorAll(".explorer")].map((root) => [root, start(root)]));
})();
