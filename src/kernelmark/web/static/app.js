// Optional: pages work without scripts. Adds live updates, copying, sorting in place, tooltips, and
// filters, sorting and paging of tables without reloading the whole page.
"use strict";

function enhance(root) {
  for (const button of root.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const text = button.parentElement.querySelector("code").textContent;
      try {
        await navigator.clipboard.writeText(text);
      } catch {
        const range = document.createRange();
        range.selectNodeContents(button.parentElement.querySelector("code"));
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }
  for (const select of root.querySelectorAll(".filters select")) {
    select.addEventListener("change", () => select.form.requestSubmit());
  }
  for (const form of root.querySelectorAll(".filters, .search")) {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const given = [...new FormData(form)].filter(([, value]) => value);
      const url = new URL(form.getAttribute("action") || location.pathname, location.href);
      url.search = new URLSearchParams(given);
      visit(url, { top: url.pathname !== location.pathname });
    });
  }
  for (const form of root.querySelectorAll(".decide")) {
    form.hidden = false;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      decide(form);
    });
  }
  for (const link of root.querySelectorAll(".pager a, thead a")) {
    link.addEventListener("click", (event) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.shiftKey || !document.body.dataset.live) return;
      event.preventDefault();
      visit(new URL(link.href), { top: Boolean(link.closest(".pager")) });
    });
  }
  // After the first frame: rendering a figure takes longer than the rest of a page.
  const figures = root.querySelectorAll("figure[data-figure]");
  if (figures.length) requestAnimationFrame(() => setTimeout(() => figures.forEach(draw), 0));
  for (const table of root.querySelectorAll("table[data-sortable]")) sortable(table);
  if (!document.body.dataset.live) {
    for (const table of root.querySelectorAll(".wide > table")) {
      labelled(table);
      if (table.tBodies[0].rows.length > 10) filterable(table);
    }
  }
}

// Narrow screens show the title of a column in each cell. On a static site, which has all rows,
// titles would be a fifth of the file.
function labelled(table) {
  const titles = [...table.tHead.rows[0].cells].map((head) => head.textContent);
  for (const row of table.tBodies[0].rows) {
    [...row.cells].forEach((cell, at) => { cell.dataset.l = titles[at]; });
  }
}

// A static site has no server to filter rows: hide them here.
function filterable(table) {
  const box = document.createElement("input");
  box.type = "search";
  box.placeholder = "Filter rows";
  box.className = "rows-filter";
  box.setAttribute("aria-label", "Filter rows");
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/);
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
  table.closest(".wide").before(box);
}

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, at) => {
    if (!head.firstElementChild) head.tabIndex = 0;
    const sort = (event) => {
      event.preventDefault();
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const numbers = head.classList.contains("num") || head.classList.contains("k-date");
      const key = (row) => {
        const text = row.cells[at].dataset.v ?? row.cells[at].textContent;
        if (text === "") return null;
        const number = Number(text);
        return numbers && !Number.isNaN(number) ? number : text.toLowerCase();
      };
      const rows = [...table.tBodies[0].rows].map((row) => [key(row), row]);
      rows.sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null);
        return (a < b ? -1 : a > b ? 1 : 0) * (up ? 1 : -1);
      });
      table.tBodies[0].append(...rows.map(([, row]) => row));
      const link = head.querySelector("a");
      if (link) {
        const url = new URL(link.href);
        url.searchParams.set("order", up ? "asc" : "desc");
        if (document.body.dataset.live) history.replaceState(null, "", url);
        here = path();
      }
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(event); });
  });
}

// Tooltips of figures: the label of a mark describes it.
const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
document.addEventListener("mouseover", (event) => {
  const mark = event.target.closest && event.target.closest("figure [aria-roledescription$=' mark'], figure [aria-roledescription='point'], figure [aria-roledescription='bar']");
  const text = mark && mark.getAttribute("aria-label");
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text.replaceAll("; ", "\n");
  tip.style.whiteSpace = "pre-line";
  tip.style.left = `${Math.min(event.pageX + 12, document.documentElement.clientWidth - 340)}px`;
  tip.style.top = `${event.pageY + 14}px`;
});

async function draw(figure) {
  const answer = await fetch(figure.dataset.figure).catch(() => null);
  if (!answer || !answer.ok) return;
  const drawn = new DOMParser().parseFromString(await answer.text(), "image/svg+xml").documentElement;
  if (drawn.localName !== "svg") return;
  figure.querySelector("svg")?.remove();
  drawn.style.setProperty("--width", `${drawn.getAttribute("width")}px`);
  figure.append(document.importNode(drawn, true));
  figure.classList.add("drawn");
  // On a phone a history is wider than the window: its newest points matter most.
  if (figure.matches(".of-series, .of-overview")) figure.scrollLeft = figure.scrollWidth;
}

// Fetch a page as a document; null if it cannot be shown here.
async function load(address, signal) {
  const answer = await fetch(address, { headers: { accept: "text/html" }, signal });
  if (!answer.ok) return null;
  const found = new DOMParser().parseFromString(await answer.text(), "text/html");
  return found.querySelector("main") ? found : null;
}

// Append rows below the visible ones after the first frame: laying them out takes longer than the
// rest of a navigation.
const ROW_PX = 36;

function postpone(root) {
  const rest = [];
  for (const body of root.querySelectorAll("tbody")) {
    const rows = [...body.rows].slice(Math.ceil(innerHeight / ROW_PX));
    rows.forEach((row) => row.remove());
    if (rows.length) rest.push([body, rows]);
  }
  if (!rest.length) return;
  requestAnimationFrame(() => setTimeout(() => rest.forEach(([body, rows]) => body.append(...rows)), 0));
}

function show(page, { gradual = false } = {}) {
  const main = document.querySelector("main");
  const fresh = page.querySelector("main");
  // Keep the old figure until the new one is rendered.
  for (const figure of fresh.querySelectorAll("figure[data-figure]")) {
    const old = main.querySelector("figure.drawn > svg");
    if (old) figure.append(old);
  }
  if (gradual) postpone(fresh);
  main.replaceChildren(...fresh.childNodes);
  main.dataset.digest = fresh.dataset.digest;
  document.title = page.title;
  for (const one of ["nav[aria-label=Pages]", "footer .twins"]) {
    document.querySelector(one).replaceWith(page.querySelector(one));
  }
  enhance(main);
}

// Find the control that replaces the one that had the focus.
function successor(control) {
  if (!control || control.isConnected) return null;
  if (control.form) return document.querySelector(`.filters [name="${control.name}"]`);
  const same = [...document.querySelectorAll("thead a")].find((one) => one.textContent === control.textContent);
  return control.closest("thead") && same ? same : document.querySelector("main .wide");
}

const path = () => location.pathname + location.search;
let here = path();
let visiting = null;

async function visit(url, { add = true, top = false } = {}) {
  visiting?.abort();
  visiting = new AbortController();
  const { signal } = visiting;
  const focused = document.activeElement;
  try {
    const page = await load(url, signal);
    if (!page) { location.assign(url); return; }
    if (add) history.pushState(null, "", url);
    here = path();
    if (top) scrollTo(0, 0);
    show(page, { gradual: scrollY < innerHeight / 2 });  // a shorter page would scroll the view
  } catch (error) {
    if (!signal.aborted) location.assign(url);
    return;
  }
  successor(focused)?.focus({ preventScroll: true });
}

async function refresh() {
  const address = location.href;
  const page = await load(address).catch(() => null);
  const main = document.querySelector("main");
  if (!page || address !== location.href) return;
  if (page.querySelector("main").dataset.digest === main.dataset.digest) return;
  const focused = document.activeElement;
  if (focused && main.contains(focused) && focused.matches("input, select")) return;
  show(page);
}

function follow(address) {
  const live = document.getElementById("live");
  let stamp = null;
  let waiting = null;
  const source = new EventSource(address);
  source.onmessage = (event) => {
    live.textContent = "● live";
    if (stamp !== null && stamp !== event.data && waiting === null) {
      waiting = setTimeout(() => { waiting = null; refresh(); }, 300);
    }
    stamp = event.data;
  };
  source.onerror = () => { live.textContent = "○ not connected"; };
}

// Accepts the regression of a series, or undoes that. The page is shown anew once it is judged.
async function decide(form) {
  const output = form.querySelector("output");
  const { token, reason } = Object.fromEntries(new FormData(form));
  const accepted = form.dataset.action === "accept";
  const answer = await fetch("/api/acceptances", {
    method: "POST",
    headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
    body: JSON.stringify({ series: form.dataset.series, reason: reason || "", accepted }),
  }).catch(() => null);
  const document_ = answer ? await answer.json().catch(() => null) : null;
  if (answer && answer.ok) output.textContent = accepted ? "Accepted" : "Undone";
  else output.textContent = (document_ && document_.error && document_.error.message) || "The server does not answer";
}

document.body.append(tip);
enhance(document);
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const box = document.querySelector(".search input");
  if (box) { event.preventDefault(); box.focus(); }
});
// Following a link to a fragment changes the address too.
window.addEventListener("popstate", () => { if (path() !== here) visit(new URL(location.href), { add: false }); });
if (document.body.dataset.live) follow(document.body.dataset.live);
