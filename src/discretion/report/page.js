/* Draws the figures in the colours of the theme, and draws them again when theme or paper changes. */
(() => {
  "use strict";
  const root = document.documentElement;
  const charts = [...document.querySelectorAll(".chart")];
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);

  /* "--ink" becomes the colour of that name in the present theme, "--ink/0.2" the same, translucent. */
  function colour(name) {
    const [property, opacity] = name.split("/");
    if (property === "--font") return getComputedStyle(document.body).fontFamily;
    probe.style.color = `var(${property})`;
    const found = getComputedStyle(probe).color;
    return opacity ? found.replace("rgb(", "rgba(").replace(")", `, ${opacity})`) : found;
  }

  function coloured(value) {
    if (typeof value === "string") return value.startsWith("--") ? colour(value) : value;
    if (Array.isArray(value)) return value.map(coloured);
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, coloured(inner)]));
    return value;
  }

  function draw(chart) {
    const figure = coloured(JSON.parse(document.getElementById(chart.dataset.figure).textContent));
    figure.layout.width = chart.drawn = chart.clientWidth;
    Plotly.react(chart, figure.data, figure.layout, { displayModeBar: false, doubleClick: false });
  }
  const drawAll = () => charts.forEach(draw);

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const remembered = (() => {
    try { return localStorage.getItem("discretion-theme"); } catch { return null; }
  })();
  if (remembered === "light" || remembered === "dark") root.dataset.theme = remembered;
  document.getElementById("theme").addEventListener("click", () => {
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    try { localStorage.setItem("discretion-theme", root.dataset.theme); } catch { /* not kept */ }
    drawAll();
  });
  dark.addEventListener("change", drawAll);

  /* whenever a figure's place becomes wider or narrower; also the first time */
  const widths = new ResizeObserver((entries) => {
    for (const { target } of entries) if (target.clientWidth !== target.drawn) draw(target);
  });

  /* paper: light, and as wide as the page; what is folded stays folded */
  function onPaper(yes) {
    root.classList.toggle("paper", yes);
    drawAll();
  }
  addEventListener("beforeprint", () => onPaper(true));
  addEventListener("afterprint", () => onPaper(false));

  /* the section that is being read is marked in the navigation */
  const links = new Map(
    [...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) {
      const current = links.get(entry.target.id);
      links.forEach((link) => link.removeAttribute("aria-current"));
      current.setAttribute("aria-current", "true");
      current.parentElement.scrollLeft = current.offsetLeft - current.parentElement.clientWidth / 2;
    }
  }, { rootMargin: "-20% 0px -75% 0px" });
  links.forEach((_, id) => seen.observe(document.getElementById(id)));

  charts.forEach((chart) => widths.observe(chart));
})();
