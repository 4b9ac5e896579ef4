// The λ explorer: draws solutions that were computed in advance.
const explorers = (() => {
  const { make, ticks, ceiling, frame, names, bottomFor } = charts;
  const percent = (value) => `${(100 * value).toFixed(1)} %`;
  const whole = (value) => Math.round(value).toLocaleString("en");
  const short = (value) =>
    value < 1e-12 ? "0" : value < 1e-3 || value >= 1e6 ? value.toExponential(2) : value.toLocaleString("en", { maximumSignificantDigits: 3 });
  const lambda = (step) => (step.lam === null ? "∞" : step.lam === 0 ? "→ 0" : short(step.lam));

  function bar(svg, axes, at, width, value, style, note) {
    const rect = make("rect", { x: at - width / 2, width, y: axes.y(value), height: Math.max(0, axes.base - axes.y(value)), class: style });
    rect.append(make("title", {}, note));
    svg.append(rect);
  }

  function weights(svg, data, step) {
    // One scale for all steps, so that the bars visibly move; halved if they would be too small.
    let most = Math.max(...data.fedavg, ...data.steps.flatMap((s) => s.alpha));
    while (most > 2.5 * Math.max(...data.fedavg, ...step.alpha)) most /= 2;
    const count = data.clients.length;
    const axes = frame(svg, { bottom: bottomFor(svg, data.clients), top: ceiling(most), xRange: [-0.6, count - 0.4] });
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
    const top = ceiling(Math.max(...data.target, ...data.pooled, ...data.steps.flatMap((s) => s.marginal)));
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
    const shares = data.labels.slice(0, 12).map((name, k) => `${name} ${step.marginal[k].toFixed(2)}, target ${data.target[k].toFixed(2)}`);
    svg.setAttribute("aria-label", `Shares in the weighted mix: ${shares.join("; ")}.`);
  }

  function tradeoff(svg, data, step) {
    const wrong = (s) => 100 * s.wrongMix;
    const range = [data.steps[0].ess, 1];
    if (range[0] > 0.999) range[0] = 0;
    const axes = frame(svg, { bottom: 40, top: ceiling(Math.max(...data.steps.map(wrong))), xRange: range });
    const place = (s) => `${axes.x(s.ess).toFixed(1)} ${axes.y(wrong(s)).toFixed(1)}`;
    svg.append(make("path", { d: `M${data.steps.map(place).join("L")}`, class: "path" }));
    const share = ticks(1 - range[0])[1];
    for (let at = 1; at > range[0] - 1e-9; at -= share) {
      svg.append(make("text", { x: axes.x(at), y: axes.base + 17, "text-anchor": at === 1 ? "end" : "middle" }, `${Number((100 * at).toPrecision(4))} %`));
    }
    svg.append(make("text", { x: (axes.left + axes.right) / 2, y: axes.base + 34, "text-anchor": "middle" }, "effective sample size"));
    const at = { cx: axes.x(step.ess), cy: axes.y(wrong(step)) };
    svg.append(make("line", { x1: at.cx, x2: at.cx, y1: at.cy, y2: axes.base, class: "grid" }));
    const fedavg = data.steps[data.steps.length - 1];
    svg.append(make("rect", { x: axes.x(1) - 5, y: axes.y(wrong(fedavg)) - 5, width: 10, height: 10, class: "orange mark" }));
    svg.append(make("circle", { ...at, r: 7, class: "green mark now" }));
    svg.setAttribute("aria-label", `At ${percent(step.ess)} effective sample size the mix is wrong for ${percent(step.wrongMix)} of samples; FedAvg’s for ${percent(fedavg.wrongMix)}.`);
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

    function setFact(name, text) {
      for (const element of root.querySelectorAll(`[data-fact=${name}]`)) element.textContent = text;
    }

    function draw() {
      const step = data.steps[slider.value], fedavg = data.steps[data.steps.length - 1];
      slider.setAttribute("aria-valuetext", `${percent(step.ess)}, the mix is wrong for ${percent(step.wrongMix)} of samples`);
      setFact("ess", percent(step.ess));
      setFact("wrongMix", percent(step.wrongMix));
      setFact("fedavgMix", `of samples; FedAvg’s for ${percent(fedavg.wrongMix)}`);
      setFact("squaredDistance", short(step.squaredDistance));
      setFact("gain", fedavg.squaredDistance > 0 ? `${Math.round(100 * (1 - step.squaredDistance / fedavg.squaredDistance))} % less than FedAvg’s ${short(fedavg.squaredDistance)}` : "FedAvg already matches the target");
      setFact("samples", whole(step.ess * data.samples));
      setFact("total", `of ${whole(data.samples)}`);
      setFact("lam", lambda(step));
      setFact("used", whole(step.used));
      setFact("clients", `of ${whole(data.allClients)}`);
      const rest = Math.max(0, 1 - step.alpha.reduce((sum, value) => sum + value, 0));
      const hiddenClients = data.allClients - data.clients.length;
      setFact("shownClients", hiddenClients ? `The ${data.clients.length} clients with the largest weights at any position of the slider; the other ${whole(hiddenClients)} together have ${percent(rest)}.` : "");
      const hiddenLabels = data.allLabels - data.labels.length;
      setFact("shownLabels", hiddenLabels ? `The ${data.labels.length} labels with the largest shares at any position of the slider; ${whole(hiddenLabels)} more are not shown.` : "");
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
      setFact("covered", `The target is ${data.covered}.`);
      setFact("shortage", data.shortage);
      draw();
    }

    slider.addEventListener("input", draw);
    new ResizeObserver(draw).observe(root);
    show(first);
    return show;
  }

  return new Map([...document.querySelectorAll(".explorer")].map((root) => [root, start(root)]));
})();

// One explorer for all federations: readers choose one, and links name it by its number.
const federation = document.querySelector("header select.federation");
if (federation) {
  const [show] = explorers.values();
  const choose = (number) => {
    if (!federation.querySelector(`option[value="${number}"]`)) return;
    federation.value = String(number);
    show(Number(number));
  };
  federation.addEventListener("change", () => {
    history.replaceState(null, "", `#${federation.value}`);
    choose(federation.value);
  });
  addEventListener("hashchange", () => choose(parseInt(location.hash.slice(1), 10)));
  choose(parseInt(location.hash.slice(1), 10));
}
