/* Puts what has changed in its place, as it comes; what is pointed at, unfolded or hidden stays so. */
(() => {
  "use strict";
  const live = document.getElementById("live");
  const lost = document.getElementById("lost");

  function redraw(id, content) {
    const fresh = document.createElement("template");
    fresh.innerHTML = content;
    const chart = document.getElementById(id), next = fresh.content.getElementById(id);
    const plot = chart.querySelector(".plot"), reading = plot.querySelector(".reading");
    const off = new Set([...plot.querySelectorAll(".off")].map((part) => part.dataset.group));
    chart.setAttribute("aria-label", next.getAttribute("aria-label"));
    chart.style.cssText = next.style.cssText;
    plot.replaceChildren(...next.querySelector(".plot").childNodes);
    for (const part of plot.querySelectorAll("[data-group]"))
      part.classList.toggle("off", off.has(part.dataset.group));
    if (reading) plot.append(reading);
    document.querySelector(`script[data-figure="${id}"]`).textContent =
      fresh.content.querySelector("script").textContent;
  }

  const events = new EventSource("events");
  events.addEventListener("open", () => { lost.hidden = true; });
  events.addEventListener("error", () => { lost.hidden = false; });
  events.addEventListener("view", (event) => {
    const news = JSON.parse(event.data);
    if (news.title !== undefined) {
      document.title = `${news.title} · Discretion`;
      live.dataset.status = news.status;
    }
    for (const [id, content] of Object.entries(news.parts ?? {})) document.getElementById(id).innerHTML = content;
    for (const [id, content] of Object.entries(news.charts ?? {})) redraw(id, content);
  });
})();
