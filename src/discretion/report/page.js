/* Tabs, themes, filters, and the values under a pointer or a key; charts themselves are drawn already. */
(() => {
  "use strict";
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  /* theme */
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const kept = (() => { try { return localStorage.getItem("discretion-theme"); } catch { return null; } })();
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  document.getElementById("theme").addEventListener("click", () => {
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    try { localStorage.setItem("discretion-theme", root.dataset.theme); } catch { /* not kept */ }
  });

  /* tabs: a panel is shown by its tab, or by an address that points into it */
  const tabs = all("[role=tab]");
  const panelOf = (tab) => document.getElementById(tab.getAttribute("aria-controls"));
  function choose(tab) {
    for (const each of tabs) {
      const chosen = each === tab;
      each.setAttribute("aria-selected", chosen);
      each.tabIndex = chosen ? 0 : -1;
      panelOf(each).hidden = !chosen;
    }
  }
  function follow() {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    const tab = target && tabs.find((each) => panelOf(each).contains(target));
    if (tab) { choose(tab); target.scrollIntoView(); }
    return Boolean(tab);
  }
  if (tabs.length) {
    if (!follow()) choose(tabs[0]);
    addEventListener("hashchange", follow);
    for (const tab of tabs) {
      tab.addEventListener("click", (event) => {
        event.preventDefault();
        history.replaceState(null, "", tab.hash);
        choose(tab);
        panelOf(tab).scrollIntoView();
      });
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        const ends = { Home: 0, End: tabs.length - 1 }[event.key];
        if (event.key === " ") { event.preventDefault(); tab.click(); }
        if (step === undefined && ends === undefined) return;
        event.preventDefault();
        const next = tabs[ends ?? (tabs.indexOf(tab) + step + tabs.length) % tabs.length];
        next.focus();
        next.click();
      });
    }
  } else {
    /* without tabs: the section that is being read is marked in the navigation */
    const links = new Map(all(".nav a").map((link) => [link.hash.slice(1), link]));
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) {
        links.forEach((link) => link.removeAttribute("aria-current"));
        links.get(entry.target.id).setAttribute("aria-current", "true");
      }
    }, { rootMargin: "-20% 0px -75% 0px" });
    links.forEach((_, id) => { const part = document.getElementById(id); if (part) seen.observe(part); });
  }

  /* budget classes: one choice for the whole page */
  for (const box of all("[data-filter]")) box.addEventListener("change", () => {
    for (const same of all(`[data-filter="${box.dataset.filter}"]`)) same.checked = box.checked;
    for (const part of all(`[data-class="${box.dataset.filter}"]`)) part.hidden = !box.checked;
  });

  /* legends: a press hides a series in all charts of its section */
  for (const button of all("[data-toggle]")) button.addEventListener("click", () => {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", shown);
    for (const part of all("[data-group]", button.closest("section")))
      if (part.dataset.group === button.dataset.toggle) part.classList.toggle("off", !shown);
  });

  /* values under a pointer; with a chart in focus, arrow keys step from value to value */
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const place = (axis, value) => {
    const [low, high, logarithmic] = axis;
    return logarithmic ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  };
  const clear = (chart) => {
    tip.hidden = true;
    chart.querySelector(".reading")?.remove();
    chart.at = undefined;
  };
  const number = (value) => Number(value.toPrecision(6)).toLocaleString("en");

  function show(chart, figure, at, aloud) {
    const plot = chart.querySelector(".plot");
    const box = plot.getBoundingClientRect();
    chart.querySelector(".reading")?.remove();
    const line = document.createElement("i");
    line.className = "reading";
    line.style.left = `${100 * at.x}%`;
    if (at.y !== undefined) { line.classList.add("point"); line.style.bottom = `${100 * at.y}%`; }
    plot.append(line);
    tip.replaceChildren();
    const title = document.createElement("b");
    title.textContent = at.title;
    tip.append(title);
    for (const { colour, name, text } of at.rows) {
      const row = document.createElement("span");
      const dot = document.createElement("i");
      dot.style.background = `var(${colour})`;
      const value = document.createElement("em");
      value.textContent = text;
      row.append(dot, name ? `${name} ` : "", value);
      tip.append(row);
    }
    tip.hidden = false;
    const wide = tip.offsetWidth, x = box.left + at.x * box.width;
    const left = x + 14 + wide < innerWidth ? x + 14 : Math.max(4, x - wide - 14);
    tip.style.left = `${left + scrollX}px`;
    tip.style.top = `${box.top + scrollY + 6}px`;
    if (aloud) document.getElementById("spoken").textContent =
      `${at.title}: ${at.rows.map((row) => `${row.name} ${row.text}`).join("; ")}`;
  }

  /* what can be read: for lines and bars all series at one place, for points one at a time */
  function readings(chart, figure) {
    const off = new Set(all("[data-group].off", chart).map((part) => part.dataset.group));
    const shown = figure.series.filter((series) => !off.has(series.group));
    const found = new Map();
    const points = [];
    for (const series of shown) series.x.forEach((x, k) => {
      const row = { colour: series.colour, name: series.name, text: series.text[k] };
      if (series.shape === "points") {
        const where = `${figure.x[3]} ${number(x)}`;
        points.push({ x: place(figure.x, x), y: place(figure.y, series.y[k]),
          title: series.labels?.[k] ?? where, rows: [row, { ...row, name: figure.x[3], text: number(x) }] });
      } else {
        if (!found.has(x)) found.set(x, { x: place(figure.x, x), rows: [],
          title: figure.names.length ? figure.names[x] : `${figure.x[3]} ${number(x)}` });
        found.get(x).rows.push(row);
      }
    });
    return [...found.values(), ...points].sort((a, b) => a.x - b.x);
  }

  for (const record of all("script[data-figure]")) {
    const chart = document.getElementById(record.dataset.figure);
    let figure, read;  // again where a live page has changed it
    const data = () => (record.textContent === read ? figure : (figure = JSON.parse(read = record.textContent)));
    const nearest = (event) => {
      const box = chart.querySelector(".plot").getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width, y = 1 - (event.clientY - box.top) / box.height;
      const far = (at) => at.y === undefined ? Math.abs(at.x - x)
        : Math.hypot((at.x - x) * box.width, (at.y - y) * box.height);
      return readings(chart, data()).reduce((best, at) => !best || far(at) < far(best) ? at : best, null);
    };
    const point = (event) => { const at = nearest(event); if (at) show(chart, data(), at, false); };
    chart.addEventListener("pointermove", point);
    chart.addEventListener("pointerdown", point);
    chart.addEventListener("pointerleave", () => clear(chart));
    chart.addEventListener("blur", () => clear(chart));
    chart.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape") clear(chart);
      if (step === undefined) return;
      event.preventDefault();
      const found = readings(chart, data());
      if (!found.length) return;
      const from = chart.at ?? (step > 0 ? -1 : found.length);
      chart.at = Math.min(Math.max(from + step, 0), found.length - 1);
      show(chart, data(), found[chart.at], true);
    });
  }

  /* paper: every panel and class is on it, by the style sheet; nothing floats over it */
  addEventListener("beforeprint", () => { tip.hidden = true; });
})();
