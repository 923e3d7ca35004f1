/* Finds, sorts and filters accounts; the first rows are on the page already, and stay without scripts. */
(() => {
  "use strict";
  const by = (id) => document.getElementById(id);
  const data = JSON.parse(by("accounts").textContent);
  const names = ["ledger", "client", "kind", "budget", "spent", "promised", "left", "percent", "share", "runs", "room", "list"];
  const all = data.rows.map((row) => Object.fromEntries(names.map((name, k) => [name, row[k]])));
  const labels = [...document.querySelectorAll("table.accounts thead th")].map((head) => head.textContent);
  const size = (text) => { const value = Number(text); return Number.isNaN(value) ? Infinity : value; };
  const byName = (a, b) => a.client.localeCompare(b.client, "en", { numeric: true });
  const orders = {
    share: () => 0,  // as they come
    left: (a, b) => size(a.left) - size(b.left) || byName(a, b),
    budget: (a, b) => size(a.budget) - size(b.budget) || byName(a, b),
    name: byName,
  };
  let most = data.most;

  function make(tag, text, kind) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  }
  function meter(share) {
    const outer = make("span", undefined, share > 1 ? "meter over" : "meter"), inner = make("span");
    inner.style.width = `${Math.min(100 * share, 100).toFixed(1)}%`;
    outer.append(inner);
    return outer;
  }
  function runs(account) {
    const list = data.kinds[account.list];
    if (!list.length) return [String(account.runs)];
    const details = make("details");
    details.append(make("summary", "each alone"), make("small", list.join("; ")));
    return [String(account.runs), details];
  }
  function row(account) {
    const made = make("tr"), name = make("th", account.client);
    name.scope = "row";
    const [look, words] = data.rooms[account.room];
    const cells = [
      ...(data.several ? [[account.ledger]] : []),
      [account.budget, make("small", account.kind)],
      [account.spent, make("small", account.percent), meter(account.share)], [account.promised], [account.left],
      [make("span", words, `badge ${look}`)], runs(account),
    ].map((content, k) => {
      const cell = make("td");
      cell.dataset.label = labels[k + 1];
      cell.append(...content);
      return cell;
    });
    made.append(name, ...cells);
    return made;
  }
  function show() {
    const wanted = by("find").value.trim().toLowerCase();
    const found = all.filter((each) => (!wanted || each.client.toLowerCase().includes(wanted))
      && (!by("only-near").checked || each.share >= data.near)
      && (!by("only-full").checked || each.room === "none"));
    found.sort(orders[by("sort").value]);
    by("rows").replaceChildren(...found.slice(0, most).map(row));
    by("count").textContent = `${Math.min(most, found.length).toLocaleString("en")} of ` +
      `${found.length.toLocaleString("en")} shown` + (found.length < all.length ? `, of ${all.length.toLocaleString("en")} in all.` : ".");
    by("more").hidden = found.length <= most;
  }
  for (const id of ["find", "sort", "only-near", "only-full"])
    by(id).addEventListener("input", () => { most = data.most; show(); });
  by("more").addEventListener("click", () => { most += data.most; show(); });
  by("tools").hidden = false;
  by("more").hidden = all.length <= most;
})();
