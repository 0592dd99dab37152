// The search of the browser edition: every word that is typed must begin a word of
// a heading, a caption, a passage, or the name of a chunk or of what it defines. The
// index comes with the first use of the field.
"use strict";
(() => {
  const form = document.querySelector(".search"), field = form.querySelector("input"), SHOWN = 40;
  const count = form.querySelector("[role=status]"), list = form.querySelector("ol");
  const here = location.pathname.split("/").pop() || "index.html";
  let index;

  // Lines of search-index.js: ">page", or what has the id: "id, text, names that are defined there".
  async function unpack(packed) {
    const bytes = Uint8Array.from(atob(packed), c => c.charCodeAt(0));
    const text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
    const entries = [];
    let page, title, section;
    for (const line of text.split("\n")) {
      if (line[0] === ">") {
        page = line.slice(1);
        continue;
      }
      const [id, said, ...names] = line.split("\t"), kind = /^(top|[su]\d)/.test(id) ? "heading" : /^[A-Z]/.test(id) ? "chunk" : "text";
      if (kind === "heading")
        section = said;
      if (id === "top")
        title = said;
      entries.push({ page, id, kind, text: said, names, section, title });
    }
    return entries;
  }

  function load() {
    return index ||= new Promise((done, failed) => {
      window.searchIndex = packed => unpack(packed).then(done, failed);
      const script = document.createElement("script");
      script.src = "search-index.js";
      script.onerror = failed;
      document.head.append(script);
    });
  }

  // Smaller is better; undefined is no match.
  function rank(entry, typed, words) {
    const names = entry.names.filter(name => words.every(word => word.test(name)));
    entry.name = names.find(name => name.toLowerCase() === typed) || names[0];
    if (entry.name)
      return entry.name.toLowerCase() === typed ? 0 : entry.name.toLowerCase().startsWith(typed) ? 1 : 2;
    if (!words.every(word => word.test(entry.text)))
      return undefined;
    const place = entry.kind === "heading" ? 1 : entry.kind === "chunk" ? 5 : /^[ftx]\d/.test(entry.id) ? 3 : 4;
    return place + (entry.text.toLowerCase().includes(typed) ? 0 : 3);
  }

  // The part of a text that shows a word best, with all of them marked.
  function context(text, words) {
    const first = Math.max(0, text.search(words[0])), from = first < 50 ? 0 : text.lastIndexOf(" ", first - 30) + 1;
    const line = document.createElement("span"), any = new RegExp(`(${words.map(word => word.source).join("|")})`, "i");
    const part = (from > 0 ? "… " : "") + text.slice(from, from + 150) + (from + 150 < text.length ? " …" : "");
    part.split(any).forEach((piece, n) => {
      const mark = n % 2 ? document.createElement("mark") : line;
      mark.append(piece);
      if (mark !== line)
        line.append(mark);
    });
    return line;
  }

  function result(entry, words) {
    const item = document.createElement("li"), link = document.createElement("a"), title = document.createElement("b");
    const [number] = /^[ft]\d/.test(entry.id) && entry.text.match(/^\w+ [\w.]+/) || [];
    link.href = (entry.page === here ? "" : entry.page) + "#" + entry.id;
    if (entry.name) {
      title.innerHTML = "<code></code>";
      title.firstChild.append(entry.name);
      link.append(title, `${entry.text} in ${entry.section}`);
    } else {
      title.append(entry.kind === "heading" ? context(entry.text, words) : number ? `${number} in ${entry.section}` : entry.section);
      link.append(title, entry.kind !== "heading" ? context(entry.kind === "chunk" ? `⟨${entry.text}⟩` : entry.text, words) :
        entry.id === "top" ? "" : entry.title);
    }
    item.append(link);
    return item;
  }

  const close = () => form.classList.remove("open");

  async function find() {
    const typed = field.value.trim().toLowerCase();
    if (typed.length < 2)
      return close();
    const words = typed.split(/\s+/).map(word => new RegExp("(?<![a-z0-9])" + word.replace(/[^\w\s]/g, "\\$&"), "i"));
    const entries = await load().catch(() => null);
    if (field.value.trim().toLowerCase() !== typed)
      return; // more has been typed
    const found = [];
    for (const entry of entries || []) {
      const place = rank(entry, typed, words);
      if (place !== undefined)
        found.push([place, entry]);
    }
    found.sort((a, b) => a[0] - b[0]);
    count.textContent = !entries ? "The search needs search-index.js and a browser of 2023 or later." : found.length === 0 ? "Not found." :
      `${found.length} place${found.length > 1 ? "s" : ""}${found.length > SHOWN ? `, the first ${SHOWN}` : ""}`;
    list.replaceChildren(...found.slice(0, SHOWN).map(([, entry]) => result(entry, words)));
    form.classList.add("open");
  }

  // Arrows go from the field through the results and back; Enter on the field opens the first.
  form.onkeydown = event => {
    const stops = [field, ...list.querySelectorAll("a")], at = stops.indexOf(document.activeElement);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") {
      close();
      field.focus();
      field.value = "";
    } else if (step && form.classList.contains("open"))
      stops[Math.max(0, Math.min(at + step, stops.length - 1))].focus();
    else
      return;
    event.preventDefault();
  };
  form.onsubmit = async event => {
    event.preventDefault();
    await find();
    list.querySelector("a")?.click();
  };
  list.onclick = close; // the place may be on this page
  field.onfocus = () => load().catch(() => {});
  field.oninput = find;
  document.addEventListener("click", event => form.contains(event.target) || close());
  document.addEventListener("keydown", event => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea"))
      return;
    event.preventDefault();
    field.focus();
    field.select();
  });
})();
