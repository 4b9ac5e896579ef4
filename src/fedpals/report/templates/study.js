// A study: drawn from data that stand in the page or, while runs are under way, come from its server again and again.
{
  const SECONDS = 2;
  const root = document.querySelector(".study");
  const shown = new Map();

  function tag(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  // As in the other parts of the page, no line ends within a number and its sign.
  const together = (text) => text.replace(/ ([=±≤≥→]) /g, "\u00a0$1\u00a0").replaceAll(" %", "\u00a0%");

  const LIGHTS = { green: "All is well", amber: "Look closer", red: "Do not rely on this yet" };

  function light({ light: colour, checks }) {
    const reasons = checks.map((check) => tag("li", { class: check.light }, together(check.text)));
    return [tag("p", { class: `light ${colour}`, role: "status" }, LIGHTS[colour]), tag("ul", { class: "checks" }, ...reasons)];
  }

  function progress({ progress: methods }) {
    return [tag("ul", { class: "progress" }, ...methods.map((method) => {
      const done = method.planned === null ? `${method.rounds} rounds` : `${method.rounds} of ${method.planned} rounds`;
      const bar = tag("progress", { max: method.planned || 1, value: method.planned === null ? 0 : method.rounds, "aria-label": method.method });
      const over = method.finished === method.runs ? " · finished" : method.runs > 1 ? ` · ${method.finished} of ${method.runs} runs finished` : "";
      return tag("li", {}, tag("span", {}, method.method), bar, tag("span", { class: "aside" }, `${done}${over}`));
    }))];
  }

  const MARKS = { better: "green", worse: "red", equal: "quiet", "": "" };

  function table({ table: { rows, baseline, final, majority } }) {
    if (!rows.length) return [];
    const columns = [["test", "test accuracy, %"], ["estimate", "estimate, %"], ["balanced", "balanced, %"], ["difference", `difference to ${baseline}`]].filter(([key]) => rows.some((row) => row[key]));
    const head = tag("tr", {}, ...["method", "use", ...columns.map(([, title]) => title), "seeds"].map((name) => tag("th", { scope: "col" }, name)));
    const body = rows.map((row, i) => {
      const first = i === 0 || rows[i - 1].method !== row.method;
      const cells = columns.map(([key]) => tag("td", { class: key === "difference" ? `number ${row.guess && row.verdict === "better" ? "quiet" : MARKS[row.verdict]}` : "number" }, key === "difference" && row.verdict ? `${row[key]} ${row.verdict}` : row[key]));
      return tag("tr", first ? { class: "first" } : {}, tag("th", { scope: "row" }, first ? row.method : ""), tag("td", {}, row.use), ...cells, tag("td", { class: "number" }, String(row.seeds)));
    });
    const said = {
      test: "Test: mean ± standard deviation over seeds.",
      estimate: "Estimate: from samples that clients held out, ± its standard error.",
      balanced: "Balanced: mean recall over the target's labels.",
      difference: "Difference: paired by seed, ± its standard error; equal is within two of them.",
    };
    const how = [final ? "At the selected rounds." : "At the last round so far.", ...columns.map(([key]) => said[key]), majority].join(" ");
    return [tag("h3", {}, "What the models are worth in the target"), tag("div", { class: "scroll two", tabindex: 0, role: "region", "aria-label": "Results" }, tag("table", {}, tag("thead", {}, head), tag("tbody", {}, ...body))), tag("p", { class: "caption" }, how)];
  }

  function sentences(title, list) {
    return list.length ? [tag("h3", {}, title), tag("ul", {}, ...list.map((text) => tag("li", {}, together(text))))] : [];
  }

  function chart(data) {
    const keys = (data.lines.length ? data.lines : data.bars).map(({ name, colour }) => {
      const sign = tag("i", {});
      sign.style.background = colour === "currentColor" ? "var(--ink)" : colour;
      return tag("span", {}, sign, name);
    });
    const svg = charts.make("svg", { role: "img" });
    const figure = tag("figure", {}, tag("figcaption", {}, data.title, " ", tag("span", { class: "aside" }, data.unit)), tag("div", { class: "keys" }, ...keys), svg);
    const draw = () => svg.setAttribute("aria-label", `${data.title}. ${(data.lines.length ? charts.lines : charts.bars)(svg, data)}.`);
    new ResizeObserver(draw).observe(figure);
    return figure;
  }

  // A part whose data are the same is left alone: nothing flickers, and what readers selected stays.
  function renew(parent, key, data, build) {
    const text = JSON.stringify(data);
    let part = parent.querySelector(`:scope > [data-part="${key}"]`);
    if (!part) {
      part = tag("div", { "data-part": key });
      parent.append(part);
    }
    if (shown.get(part) === text) return;
    shown.set(part, text);
    part.replaceChildren(...build());
  }

  function show(study) {
    const state = root.querySelector("[data-fact=state]");
    state.textContent = study.runs ? `${study.finished} of ${study.runs} runs finished` : "No run yet: this page shows the first as soon as it begins.";
    const sections = new Map([...root.querySelectorAll("[data-federation-name]")].map((section) => [section.dataset.federationName, section]));
    for (const federation of study.federations) {
      let section = sections.get(federation.name);
      if (!section) {
        section = tag("section", { class: "exhibit", "data-federation-name": federation.name }, tag("h2", {}, federation.name));
        root.append(section);
      }
      sections.delete(federation.name);
      renew(section, "light", [federation.light, federation.checks], () => light(federation));
      renew(section, "progress", federation.progress, () => progress(federation));
      renew(section, "table", federation.table, () => table(federation));
      renew(section, "advice", federation.advice, () => sentences("Advice", federation.advice));
      renew(section, "refused", federation.refused, () => sentences("Refused updates, the last ones", federation.refused));
      let grid = section.querySelector(":scope > .charts");
      if (!grid) {
        grid = tag("div", { class: "charts" });
        section.append(grid);
      }
      for (const data of federation.charts) renew(grid, data.title, data, () => [chart(data)]);
    }
    for (const section of sections.values()) section.remove();
  }

  show(JSON.parse(root.querySelector("script.study-data").textContent));
  if (root.dataset.live !== undefined) {
    const note = root.querySelector("[data-fact=connection]");
    const ask = async () => {
      try {
        const answer = await fetch("data.json", { cache: "no-store" });
        if (!answer.ok) throw new Error(String(answer.status));
        show(await answer.json());
        note.textContent = "live";
        note.classList.remove("lost");
      } catch {
        note.textContent = "no answer: fedpals watch has ended, or its folder is gone";
        note.classList.add("lost");
      }
      setTimeout(ask, 1000 * SECONDS);
    };
    setTimeout(ask, 1000 * SECONDS);
  }
}
