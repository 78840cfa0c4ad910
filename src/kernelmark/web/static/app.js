// Everything works without this file; it adds live updates, copying, sorting in place, tooltips.
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
  for (const form of root.querySelectorAll(".filters")) {
    form.addEventListener("submit", () => {
      for (const one of form.elements) if (one.name && !one.value) one.disabled = true;
    });
  }
  for (const table of root.querySelectorAll("table[data-sortable]")) sortable(table);
  if (!document.body.dataset.live) {
    for (const table of root.querySelectorAll(".wide > table")) {
      if (table.tBodies[0].rows.length > 10) filterable(table);
    }
  }
}

// A static site has no server that filters: rows are hidden here.
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
        const text = row.cells[at].dataset.v;
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
      }
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(event); });
  });
}

// What a mark of a figure stands for is in its label.
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

async function refresh() {
  const answer = await fetch(location.href, { headers: { accept: "text/html" } });
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
  const main = document.querySelector("main");
  if (!fresh || fresh.innerHTML === shown) return;
  shown = fresh.innerHTML;
  const focused = document.activeElement;
  if (focused && main.contains(focused) && focused.matches("input, select")) return;
  main.replaceChildren(...fresh.childNodes);
  enhance(main);
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

let shown = document.querySelector("main").innerHTML;
document.body.append(tip);
enhance(document);
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const box = document.querySelector(".search input");
  if (box) { event.preventDefault(); box.focus(); }
});
if (document.body.dataset.live) follow(document.body.dataset.live);
