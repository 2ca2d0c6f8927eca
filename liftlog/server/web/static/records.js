// The pages of records: continues a search, follows what arrives, copies values. Without this file
// they are complete: a link continues a search, and "Newest" shows what has arrived.

const FOLLOW_MS = 1000;
const LONGEST_MS = 30000;
const MAX_ROWS = 1000;

const pageOf = async (address, signal) => {
  const answer = await fetch(address, { headers: { Accept: "text/html" }, redirect: "manual", signal });
  if (answer.type === "opaqueredirect" || answer.status === 401) location.reload(); // signed out
  if (!answer.ok) throw new Error(String(answer.status));
  return new DOMParser().parseFromString(await answer.text(), "text/html");
};

const rowsOf = (page) => [...page.querySelectorAll("table[data-records] tbody tr")].map((row) => document.adoptNode(row));

function say(element, text) {
  // A screen reader announces every change, so the text is set only when it is new.
  if (element.textContent !== text) element.textContent = text;
}

function reveal(root) {
  root.querySelectorAll("[data-copying]").forEach((one) => { one.hidden = false; });
}

function showTable() {
  document.querySelector("main > .scroll").hidden = false;
  document.querySelector("main > .empty")?.remove();
}

const table = document.querySelector("table[data-records] tbody");

// --- a search goes on until the page is full, or Stop ---

async function search(box) {
  const bar = box.querySelector("progress");
  const status = box.querySelector("[role=status]");
  const button = box.querySelector("button");
  const limit = Number(document.querySelector("#limit").value);
  const stop = new AbortController();
  let next = box.dataset.search;
  button.hidden = false;
  button.addEventListener("click", () => stop.abort());
  try {
    while (next && !stop.signal.aborted && table.rows.length < limit) {
      say(status, "Searching");
      const page = await pageOf(next, stop.signal);
      const fresh = rowsOf(page);
      if (fresh.length) showTable();
      fresh.forEach(reveal);
      table.append(...fresh);
      const following = page.querySelector("[data-search]");
      next = following?.dataset.search ?? "";
      bar.value = following ? following.querySelector("progress").value : 1;
      const paging = page.querySelectorAll("nav.paging");
      document.querySelectorAll("main > nav.paging").forEach((one) => {
        one.replaceWith(document.adoptNode(paging[paging.length - 1].cloneNode(true)));
      });
      const empty = document.querySelector("main > .empty");
      const said = page.querySelector("main > .empty");
      if (empty && said) say(empty, said.textContent);
    }
    say(status, stop.signal.aborted ? "Stopped" : next ? "The page is full" : "All was searched");
  } catch {
    say(status, stop.signal.aborted ? "Stopped" : "The daemon does not answer; continue with the link.");
  }
  button.hidden = true;
}

// --- following what arrives ---

function follow(box) {
  const button = box.querySelector("button");
  const status = box.querySelector("[role=status]");
  let isOn = false;
  let timer = 0;
  let wait = FOLLOW_MS;
  let above = box.dataset.above;

  async function look() {
    if (!isOn || document.hidden) return;
    try {
      const page = await pageOf(`${box.dataset.follow}&above=${above}`);
      if (!isOn) return; // paused meanwhile; these come with the next look
      const fresh = rowsOf(page);
      const isAll = !page.querySelector("[data-more]");
      above = page.querySelector("[data-tail]").dataset.above;
      if (fresh.length) showTable();
      fresh.forEach(reveal);
      table.prepend(...fresh);
      while (table.rows.length > MAX_ROWS) table.deleteRow(-1);
      wait = FOLLOW_MS;
      delete box.dataset.lost;
      say(status, isAll ? "Following" : "More arrives than is shown");
    } catch {
      wait = Math.min(wait * 2, LONGEST_MS);
      box.dataset.lost = "";
      say(status, "The daemon does not answer; retrying.");
    }
    clearTimeout(timer);
    timer = setTimeout(look, wait);
  }

  box.hidden = false;
  button.addEventListener("click", () => {
    isOn = !isOn;
    button.setAttribute("aria-pressed", String(isOn));
    say(status, isOn ? "Following" : "Paused");
    clearTimeout(timer);
    if (isOn) look();
  });
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    look();
  });
}

// --- copying ---

async function toClipboard(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  // A page that did not come over HTTPS has no clipboard, but may copy what is selected.
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  if (!isCopied) throw new Error("not copied");
}

async function copy(button) {
  const status = button.closest("[data-copying]").querySelector("[role=status]");
  try {
    if (button.dataset.copyLink) {
      await toClipboard(location.origin + button.dataset.copyLink);
    } else {
      const answer = await fetch(button.dataset.copy, { redirect: "error" });
      if (!answer.ok) throw new Error(String(answer.status));
      await toClipboard(await answer.text());
    }
    say(status, "Copied");
  } catch {
    say(status, "Not copied");
  }
  setTimeout(() => say(status, ""), 3000);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy], [data-copy-link]");
  if (button) copy(button);
});
reveal(document);
const searching = document.querySelector("[data-search]");
if (searching) search(searching);
const tail = document.querySelector("[data-tail]");
if (tail) follow(tail);
