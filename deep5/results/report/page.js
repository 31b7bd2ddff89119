(function () {
  "use strict";
  var status = document.getElementById("sorted");

  // A number where the cell has one (empty: none, which stands last), else what is read.
  function key(row, column) {
    var cell = row.cells[column];
    if (!cell) { return null; }
    if (!cell.hasAttribute("data-sort")) { return cell.textContent.trim(); }
    var text = cell.getAttribute("data-sort");
    return text === "" ? null : Number(text);
  }

  function compare(one, other) {
    if (typeof one === "number" && typeof other === "number") { return one < other ? -1 : one > other ? 1 : 0; }
    return String(one).localeCompare(String(other), "en", { numeric: true });
  }

  function sort(table, heads, column) {
    var ascending = heads[column].getAttribute("aria-sort") !== "ascending";
    var body = table.tBodies[0];
    var rows = Array.from(body.rows).map(function (row) { return { row: row, key: key(row, column) }; });
    rows.sort(function (one, other) {
      if (one.key === null || other.key === null) { return (one.key === null) - (other.key === null); }
      return ascending ? compare(one.key, other.key) : compare(other.key, one.key);
    });
    rows.forEach(function (entry) { body.appendChild(entry.row); });
    heads.forEach(function (head) { head.removeAttribute("aria-sort"); });
    heads[column].setAttribute("aria-sort", ascending ? "ascending" : "descending");
    status.textContent = "sorted by " + heads[column].querySelector(".plain").textContent +
      (ascending ? ", ascending" : ", descending");
  }

  document.querySelectorAll("table.sortable").forEach(function (table) {
    var heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach(function (head, column) {
      var button = document.createElement("button");
      button.type = "button";
      button.textContent = head.querySelector(".plain").textContent;
      button.addEventListener("click", function () { sort(table, heads, column); });
      head.appendChild(button);
    });
  });

  // What is folded is unfolded on paper.
  var opened = [];
  window.addEventListener("beforeprint", function () {
    opened = Array.from(document.querySelectorAll("details:not([open])"));
    opened.forEach(function (part) { part.open = true; });
  });
  window.addEventListener("afterprint", function () {
    opened.forEach(function (part) { part.open = false; });
  });
})();
