// Sorting and filtering of the tables; without it every table is complete and readable.
(() => {
  const FIRST = 200;
  const tables = [...document.querySelectorAll("table.runs")];
  const text = (row, place) => row.cells[place].textContent.trim();
  const words = document.getElementById("filter"), verdict = document.getElementById("verdict"), said = document.getElementById("status");
  const status = (message) => { said.textContent = message; };
  // By a class on each row: a rule that counts rows makes a browser count them again for every row that it reads.
  const cut = (table) => {
    const most = "more" in table && !words.value.trim() && !verdict.value ? FIRST : Infinity;
    [...table.tBodies[0].rows].forEach((row, place) => row.classList.toggle("later", place >= most));
  };
  const number = (value) => { const found = value.match(/-?\d+(\.\d+)?(e-?\d+)?/i); return found ? parseFloat(found[0]) : NaN; };
  for (const table of tables) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((one) => one.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const body = table.tBodies[0], sign = down ? -1 : 1, words = head.dataset.words === "1";
      const keyed = [...body.rows].map((row) => [words ? text(row, place) : number(text(row, place)), row]);
      keyed.sort(([a], [b]) => words ? sign * a.localeCompare(b) : isNaN(a) ? (isNaN(b) ? 0 : 1) : isNaN(b) ? -1 : sign * (a - b));
      body.append(...keyed.map(([, row]) => row));
      cut(table);
      status(`sorted by ${head.textContent.trim()}, ${down ? "descending" : "ascending"}`);
    }));
  }
  const filter = () => {
    const parts = words.value.toLowerCase().split(/\s+/).filter(Boolean), kind = verdict.value;
    let shown = 0, all = 0;
    for (const table of tables) {
      let here = 0;
      for (const row of table.tBodies[0].rows) {
        row.key ??= row.textContent.toLowerCase();
        const fits = parts.every((part) => row.key.includes(part)) && (!kind || row.querySelector(".v").classList.contains(kind));
        row.hidden = !fits; all += 1; here += fits;
      }
      shown += here;
      cut(table);
      table.closest("section").hidden = here === 0 && (parts.length > 0 || kind !== "");
    }
    status(`${shown} of ${all} rows shown`);
  };
  for (const more of document.querySelectorAll("button.more")) {
    const table = more.closest("section").querySelector("table");
    table.more = more;
    more.addEventListener("click", () => {
      delete table.more;
      cut(table);
      table.closest(".wrap").focus();
      more.parentElement.remove();
      status(`all ${table.tBodies[0].rows.length} rows shown`);
    });
  }
  words.addEventListener("input", filter);
  verdict.addEventListener("change", filter);
  document.getElementById("csv").addEventListener("click", () => {
    const quoted = (value) => `"${value.replace(/"/g, '""')}"`;
    const lines = tables.flatMap((table, place) => [...(place ? [] : table.tHead.rows), ...table.tBodies[0].rows]
      .map((row) => [table.dataset.suite, ...[...row.cells].map((cell) => cell.textContent.trim())].map(quoted).join(",")));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/csv" }));
    link.download = "fusebench.csv";
    link.click();
  });
})();
