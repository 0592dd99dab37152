// The page: a form is a command line, the module runs it, and this draws what it
// printed. No number is computed here but sums of what is drawn, and where a
// search halves.
"use strict";
const $ = id => document.getElementById(id);
const form = $("form"), fields = [...form.elements].filter(field => field.name);
const usual = Object.fromEntries(fields.map(field => [field.name, field.value]));
// Heads and bytes of a number, of figures/data/models: `plan` knows no models.
const MODELS = { "llama3-405b": ["128,8,128", 2], "llama3-70b": ["64,8,128", 2], "llama3-8b": ["32,8,128", 2],
  "smollm2-135m": ["9,3,64", 4] };

// ---- running a command, in a worker: each one is a fresh machine

function serve() {
  let module;
  function run([command, ...words]) {
    let memory, text = { 1: "", 2: "" };
    const decoder = new TextDecoder(), view = () => new DataView(memory.buffer);
    const system = {
      fd_write(file, parts, count, written) {
        let sum = 0;
        for (let n = 0; n < count; n++) {
          const at = view().getUint32(parts + 8 * n, true), size = view().getUint32(parts + 8 * n + 4, true);
          text[file] += decoder.decode(new Uint8Array(memory.buffer, at, size));
          sum += size;
        }
        view().setUint32(written, sum, true);
        return 0;
      },
      clock_time_get(id, precision, time) {
        view().setBigUint64(time, BigInt(Math.round(1e6 * performance.now())), true);
        return 0;
      },
    };
    const nothing = () => 8; // no such file
    const imports = { wasi_snapshot_preview1: new Proxy(system, { get: (all, name) => all[name] || nothing }) };
    try {
      const { exports } = new WebAssembly.Instance(module, imports);
      memory = exports.memory;
      exports._initialize();
      const place = exports.malloc(4 * words.length + 4);
      words.forEach((word, n) => {
        const bytes = new TextEncoder().encode(word + "\0"), at = exports.malloc(bytes.length);
        new Uint8Array(memory.buffer).set(bytes, at);
        view().setUint32(place + 4 * n, at, true);
      });
      return { status: exports["cp_command_" + command](words.length, place), out: text[1], err: text[2] };
    } catch (error) {
      return { status: 1, out: text[1], err: text[2] + "longring: stopped here: " + error.message + "\n" };
    }
  }
  onmessage = ({ data }) => {
    if (data.module)
      module = data.module;
    else
      postMessage({ ...run(data.words), id: data.id });
  };
}

// A worker whose questions can be given up: then it is a new one.
function Runner(module) {
  let worker, waiting = new Map(), id = 0;
  const start = () => {
    worker = new Worker(URL.createObjectURL(new Blob([`(${serve})()`], { type: "text/javascript" })));
    worker.onmessage = ({ data }) => {
      waiting.get(data.id)(data);
      waiting.delete(data.id);
    };
    worker.postMessage({ module });
  };
  start();
  this.run = words => new Promise(done => {
    waiting.set(++id, done);
    worker.postMessage({ id, words });
  });
  this.drop = () => {
    if (waiting.size > 0) {
      worker.terminate();
      waiting.clear();
      start();
    }
  };
}

// ---- small tools

const escape = text => String(text).replace(/[&<>"]/g, c => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const group = number => String(number).replace(/\B(?=(\d{3})+$)/g, ",");
const csv = text => {
  const [head, ...rows] = text.trim().split("\n").map(line => line.split(","));
  return rows.map(row => {
    const line = {}; // there may be a hundred thousand of them
    head.forEach((name, n) => line[name] = row[n] === "" || isNaN(row[n]) ? row[n] : +row[n]);
    return line;
  });
};
const round = number => Number.isInteger(number) ? group(number) : String(+number.toPrecision(6));
const tint = (rank, ranks) => ranks <= 4 && rank >= 0 && rank < ranks ? `var(--rank${rank})` : `hsl(${(360 * rank / ranks + 25) % 360},55%,75%)`;
const rows = (head, lines) => `<thead><tr>${head.map(cell).join("")}</tr></thead><tbody>${lines.join("")}</tbody>`;
const cell = text => `<th${/^[a-z]/.test(text) ? "" : ' class="text"'}>${text}</th>`;

// What was run, to be copied, and in its own words.
function told(place, words, result, open) {
  const line = "longring " + words.join(" ");
  $(place).innerHTML = `<details${open ? " open" : ""}><summary><span class="command" data-status="${result.status}">${
    escape(line)}</span></summary><button type="button">copy</button><pre>${escape(result.out + result.err)}</pre></details>`;
  $(place).querySelector("button").onclick = () => navigator.clipboard.writeText(line);
}

// ---- the state, which is in the address

function state() {
  const batch = form.elements.batch;
  batch.value = Math.max(1, Math.min(Math.trunc(batch.value) || 1, 4096));
  return Object.fromEntries(fields.map(field => [field.name, field.value.trim()]));
}

function keep(more = "") {
  const now = state(), said = Object.keys(usual).filter(name => now[name] !== usual[name]);
  if (!said.includes("new"))
    said.unshift("new");
  history.replaceState(null, "", "#" + said.map(name => `${name}=${now[name]}`).join("&") + more);
}

function recall() {
  const said = new URLSearchParams(location.hash.slice(1));
  for (const field of fields) {
    field.value = said.get(field.name) ?? usual[field.name];
    if (field.selectedIndex < 0) // no such choice
      field.value = usual[field.name];
  }
  return said.get("sweep");
}

function set(changes) {
  for (const name in changes)
    form.elements[name].value = changes[name];
  keep();
  show();
}

const times = (text, count) => Array(+count).fill(text).join(",");

const repeated = now => now.batch !== "1" ? ["--batch", now.batch] : [];

// A state in a line: four of its fields, and what else is unusual.
const called = now => `${now.ranks} ranks, ${now.new} new tokens, ${now.cached} cached, ${now.variant}${Object.keys(usual).filter(name =>
  !["ranks", "new", "cached", "variant"].includes(name) && now[name] !== usual[name]).map(name => `, ${name} ${now[name]}`).join("")}`;

// The command lines of a state.
function plan(now, variant, ...more) {
  const [heads, own] = MODELS[now.model], bytes = now.bytes === "model" ? own : now.bytes, words = ["plan", "--ranks", now.ranks, "--new", times(now.new, now.batch)];
  if (now.cached !== "0")
    words.push("--cached", times(now.cached, now.batch));
  words.push("--variant", variant, "--heads", heads, "--bytes", String(bytes));
  if (now.placement !== "zigzag")
    words.push("--placement", now.placement);
  return words.concat(more);
}

function call(command, now, ...more) {
  const words = [command, "--ranks", now.ranks, "--new", now.new];
  if (now.cached !== "0")
    words.push("--cached", now.cached);
  words.push("--machine", now.machine, "--model", now.model);
  return words.concat(more);
}

// ---- the pictures

// Operations, and what is chosen and accused of them: of the own plan, or of a file that is open.
let drawn, own, opened;

const talks = op => op.lane ? op.lane === "messages" : /^exchange|^all-/.test(op.operation);
const whose = op => op.origin ?? (talks(op) ? (op.operation === "exchange" ? op.out_origin : op.rank) : op.keys === 0 ? op.in_origin : op.keys_origin);

function sentence(op) {
  const passes = drawn.file ? "blocks" : drawn.variant === "pass-kv" ? "keys and values" : "queries";
  const all = "every other rank", bytes = group(op.bytes), span = `from ${round(op.start)} to ${drawn.holds ? "before " : ""}${round(op.end)}`;
  if (drawn.holds)
    return `${round(op.end - op.start)} positions, ${span}, of the block of rank ${op.origin}`;
  const known = {
    append: () => `puts the keys and values of its new tokens (slot ${op.in}) into its cache (slot ${op.out})`,
    pack: () => `copies its cache (slot ${op.in}) to a padded block (slot ${op.out}) that can be sent`,
    attend: () => `lets the queries of rank ${op.in_origin} (slot ${op.in}) meet ${op.keys === 0 ? "the keys of its cache (slot 0)" :
      `the keys of rank ${op.keys_origin} (slot ${op.keys})`}: ${group(op.pairs)} pairs, a partial in slot ${op.out}`,
    merge: () => `merges the partial in slot ${op.in} into that in slot ${op.out}`,
    exchange: () => `starts to send the ${passes} of rank ${op.in_origin} (slot ${op.in}) to rank ${op.to} and to receive those of rank ${
      op.out_origin} from rank ${op.from} (slot ${op.out}): ${bytes} bytes`,
    wait: () => `waits until the exchange of hop ${op.hop} is complete`,
    "all-to-all": () => `sends ${all} the partial of its queries (slots from ${op.in} on) and receives its own from them (from ${op.out} on): ${bytes} bytes`,
    "all-gather": () => `sends its keys and values (slot ${op.in}) to ${all} and receives theirs (slots from ${op.out} on): ${bytes} bytes`,
  };
  return !op.lane && Object.hasOwn(known, op.operation) ? known[op.operation]() :
    `${talks(op) ? "a message of" : "work on"} the block of rank ${whose(op)}, ${op.end > 0 ? span : "which takes no time"}`;
}

function choose(op, scroll) {
  drawn.chosen = op;
  for (const old of document.querySelectorAll(".bar.chosen, #operations .chosen"))
    old.classList.remove("chosen");
  for (const part of document.querySelectorAll(`[data-op="${op.rank}:${op.number}"]`)) {
    part.classList.add("chosen");
    if (scroll)
      part.scrollIntoView({ block: "nearest" });
  }
  $("what").innerHTML = `<code>${op.rank}:${op.number}</code> Rank ${op.rank}${drawn.holds ? "" : `, hop ${op.hop}`}, <b>${escape(op.operation)}</b>: ${sentence(op)}${
    drawn.end && op.end ? `; ${(op.end - op.start).toPrecision(4)} ms` : ""}.
    ${drawn.file ? "" : `<button type="button" id="leave">${drawn.gone === op ? "put it back" : "leave it out"}</button>`}`;
  if (!drawn.file)
    $("leave").onclick = () => set({ drop: drawn.gone === op ? "" : `${op.rank}:${op.number}` });
}

// Below the picture of a file: positions, or times, some hundred pixels apart.
function axis(end, size, left, bottom) {
  const unit = 10 ** Math.floor(Math.log10(end)), parts = [];
  const step = [0.1, 0.2, 0.5, 1, 2, 5].map(n => n * unit).find(step => end / step <= size / 100 && (step >= 1 || !drawn.holds)) || end;
  for (let n = 0; n * step <= end; n++) {
    const x = left + (100 - left) * n * step / end;
    parts.push(`<line class="axis" x1="${x}%" x2="${x}%" y1="0" y2="${bottom + 3}"/><text class="small" x="${x}%" y="${bottom + 15}" text-anchor="${
      n === 0 ? "start" : x > 90 ? "end" : "middle"}">${round(+(n * step).toPrecision(6))}</text>`);
  }
  return parts;
}

function timeline() {
  const { ops, ranks, colours, high, file, accused, gone, around } = drawn, shown = Math.min(ranks, file ? DRAWN : SHOWN);
  const left = shown > 100 ? 7 : 4.5, wide = 100 - left, bottom = shown * high;
  const end = drawn.end || ops.reduce((most, op) => Math.max(most, op.end), 0) || 1, size = $("timeline").clientWidth * wide / 100;
  const parts = file ? axis(end, size, left, bottom) : [];
  for (let rank = 0; rank < shown; rank++)
    parts.push(`<text x="0" y="${rank * high + 17}">${rank}</text>`);
  for (const op of around) {
    const length = (op.end - op.start) / end, middle = left + wide * (op.start + op.end) / 2 / end;
    parts.push(`<rect class="around" x="${(left + wide * op.start / end).toFixed(3)}%" y="${op.rank * high + (op.operation === "exchange" ? 22 : 4)}" width="${
      (wide * length).toFixed(3)}%" height="17" data-time="${op.rank} ${op.start}"><title>rank ${op.rank}: ${op.operation}, ${
      (op.end - op.start).toPrecision(4)} ms</title></rect>`);
    if (length * size > 7.2 * op.operation.length)
      parts.push(`<text class="on" x="${middle.toFixed(3)}%" y="${op.rank * high + 17}" text-anchor="middle">${op.operation}</text>`);
  }
  for (const op of ops) {
    if (op.rank >= shown || !op.lane && !(op.end > 0) && op !== gone && op !== accused)
      continue;
    const message = talks(op), before = () => drawn.programs[op.rank].slice(0, op.number).map(p => p.end);
    const start = file || op.end > 0 ? op.start : Math.max(0, ...before()), length = Math.max((op.end - op.start) / end, file || op.end > 0 ? 0.002 : 0.012);
    const x = Math.min(left + wide * start / end, 100 - wide * length), y = op.rank * high + (message ? 22 : 4);
    const block = whose(op), name = escape(`${op.operation} ${block}`);
    const classes = ["bar", message && "message", op === accused && "accused", op === gone && "gone"].filter(Boolean).join(" ");
    parts.push(`<rect class="${classes}" data-op="${op.rank}:${op.number}" x="${x.toFixed(3)}%" y="${y}" width="${
      (wide * length).toFixed(3)}%" height="17" style="fill:${tint(block, colours)}" data-time="${op.rank} ${op.start}"><title>rank ${op.rank}: ${name}, ${
      drawn.holds ? `${round(op.start)} to before ${round(op.end)}` : `hop ${op.hop}`}</title></rect>`);
    const label = message ? name.replace("exchange", "receive") : name, digits = String(colours - 1).length;
    if (op !== gone && length * size > 8 * digits + 2)
      parts.push(`<text class="on" x="${(x + wide * length / 2).toFixed(3)}%" y="${y + 13}" text-anchor="middle">${
        length * size > 7.2 * (op.operation.length + digits + 1) ? label : block}</text>`);
  }
  $("timeline").innerHTML = `<svg height="${bottom + (shown < ranks || drawn.end || file ? 20 : 0)}">${parts.join("")}${
    drawn.end ? `<text x="100%" y="${bottom + 14}" text-anchor="end" class="small">${end.toPrecision(4)} ms</text>` : ""}${
    shown < ranks && !file ? `<text x="0" y="${bottom + 14}" class="small">ranks ${shown} to ${ranks - 1} do the same, one further each</text>` : ""}</svg>`;
}

function program() {
  const rank = +$("rank").value, uses = (slot, origin) => `${slot} <span class="swatch" style="background:${tint(origin, drawn.colours)}"></span>${origin}`;
  const lines = drawn.programs[rank].map(op => {
    const kind = op.operation, reads = kind === "wait" ? "" : uses(op.in, op.in_origin) + (kind === "attend" ? " and " +
      uses(op.keys, op.keys_origin) : "") + (kind === "exchange" ? ` to ${op.to}` : "");
    return `<tr data-op="${rank}:${op.number}"${op === drawn.gone ? ' class="gone"' : ""}><td>${op.number}</td><td>${op.hop}</td><td class="text">${escape(kind)}</td>
      <td class="text">${reads}</td><td class="text">${kind === "wait" ? "" : uses(op.out, op.out_origin)}${kind === "exchange" ? ` from ${op.from}` : ""}</td>
      <td>${op.pairs ? group(op.pairs) : ""}</td><td>${op.bytes ? group(op.bytes) : ""}</td></tr>`;
  });
  $("operations").innerHTML = rows(["number", "hop", "Operation", "Reads slot, of rank", "Writes slot, of rank", "pairs", "bytes"], lines);
}

// What a file says of each rank, added up.
function facts() {
  const { programs, strokes, holds } = drawn, most = (ops, of) => ops.reduce((all, op) => Math.max(all, of(op)), 0);
  const sum = (ops, of) => ops.reduce((all, op) => all + of(op), 0), length = ops => sum(ops, op => op.end - op.start);
  const columns = holds ? { spans: ops => ops.length, positions: length, first: ops => Math.min(...ops.map(op => op.start)), last: ops => most(ops, op => op.end) - 1 } : {
    operations: ops => ops.length, ...strokes ? {} : { pairs: ops => sum(ops, op => op.pairs), "bytes sent": ops => sum(ops, op => op.bytes) },
    computing: ops => length(ops.filter(op => !talks(op))), messages: ops => ops.filter(talks).length, "in flight": ops => length(ops.filter(talks)),
    ends: ops => most(ops, op => op.end) };
  $("facts").innerHTML = rows(["rank", ...Object.keys(columns)], programs.map((ops, rank) =>
    `<tr><td>${rank}</td>${Object.values(columns).map(of => `<td>${round(of(ops))}</td>`).join("")}</tr>`));
}

const spans = text => [...text.matchAll(/#(\d+):(\d+)(?:\.\.(\d+)(?:\/(\d+))?)?/g)].map(m =>
  ({ sequence: +m[1], first: +m[2], last: +(m[3] ?? m[2]), step: +(m[4] ?? 1) }));

function held(table) {
  const ranks = table.length, keys = table.map(row => spans(row.key_spans)), fresh = table.map(row => spans(row.query_spans));
  const ends = [], many = keys.flat().length + fresh.flat().length > 1e4;
  keys.flat().forEach(span => ends[span.sequence] = Math.max(ends[span.sequence] || 0, span.last + 1));
  const gap = ends.length > 1 ? Math.min(1.5, 30 / ends.length) : 0, sum = ends.reduce((a, b) => a + b, 0);
  const left = 4.5, scale = (100 - left - gap * (ends.length - 1)) / sum, begins = [], high = ranks > 32 ? 3 : ranks > 8 ? 10 : 16;
  ends.reduce((at, end, n) => (begins[n] = at, at + end * scale + gap), left);
  const draw = (list, rank, pale) => list.flatMap(span => {
    const one = span.step === 1 || (span.last - span.first) / span.step > 400;
    const pieces = one ? [[span.first, span.last]] : Array.from({ length: (span.last - span.first) / span.step + 1 },
      (_, n) => [span.first + n * span.step, span.first + n * span.step]);
    return pieces.map(([first, last]) => `<rect x="${(begins[span.sequence] + first * scale).toFixed(3)}%" y="${rank * (high + 2)}" width="${
      Math.max((last - first + 1) * scale, 0.12).toFixed(3)}%" height="${high}" style="fill:${tint(rank, ranks)};opacity:${(pale ? 0.35 : 1) *
      (one && span.step > 1 ? 0.5 : 1)}"><title>rank ${rank}, sequence ${span.sequence}: ${group(span.first)} to ${group(span.last)}${
      span.step > 1 ? ", each " + span.step + "th" : ""}${pale ? "" : ", new"}</title></rect>`);
  });
  const parts = many ? [] : table.map((row, rank) => `${high > 9 ? `<text x="0" y="${rank * (high + 2) + high - 3}">${rank}</text>` : ""}${
    draw(keys[rank], rank, true).join("")}${draw(fresh[rank], rank, false).join("")}`);
  $("held").innerHTML = many ? "Too many spans to draw." : `<svg height="${ranks * (high + 2) + 2}">${parts.join("")}</svg>`;
  $("ranks").innerHTML = rows(["rank", "queries", "keys", "pairs", "flops", "messages", "bytes sent"], table.map(row =>
    `<tr>${["rank", "queries", "keys", "pairs", "flops", "messages", "bytes"].map(name => `<td>${group(row[name])}</td>`).join("")}</tr>`));
}

function seconds(text) {
  const take = pattern => (text.match(pattern) || [])[1];
  const layer = ["linear layers", "all-reduces", "ring", "attention", "exchanges", "exposed"].map(name =>
    [name, +take(new RegExp(`^ +${name} +([\\d.,e+]+)`, "m"))?.replaceAll(",", "")]);
  const tiles = [["to the first token", take(/^TTFT +(\S+ s)/m)], ["a token after that", take(/^TTIT +(\S+ s)/m)],
    ["busy", take(/^busy +(\S+ %)/m)], ["a GPU", take(/^rate +(\S+ TFLOP\/s)/m)], ["memory of a GPU", (take(/in all +(.*)$/m) || "").replace(/ +of/, " GB of")]];
  const top = layer.slice(0, 3), sum = top.reduce((a, [, value]) => a + value, 0), at = [0];
  top.forEach(([, value], n) => at.push(at[n] + value / sum * 100));
  const piece = (x, width, fill, y, label) => width > 0 ? `<rect x="${x}%" width="${width}%" y="${y}" height="18" style="fill:${fill}"><title>${
    label}</title></rect>${width * $("page").clientWidth / 100 > 7.2 * label.length + 8 ? `<text class="on" x="${x + 0.5}%" y="${y + 13}">${label}</text>` : ""}` : "";
  const ring = at[2], share = value => value / sum * 100, [, , , attention, exchanges, exposed] = layer;
  const rest = ring + share(attention[1] + exposed[1]);
  $("seconds").innerHTML = `<div class="tiles">${tiles.filter(([, value]) => value).map(([name, value]) =>
    `<div><b>${escape(value)}</b><span>${name}</span></div>`).join("")}</div><p class="note">${
    escape((take(/^(rule with[^]*?)\n(?! )/m) || "").replace(/\s+/g, " "))}</p><p class="note">A layer of one GPU. Exchanges run below attention; what of them shows is red.</p>
    <svg height="44">${piece(0, at[1], "var(--rank2)", 0, "linear layers")}${piece(at[1], at[2] - at[1], "var(--rank3)", 0, "all-reduces")}${
    piece(ring, share(attention[1]), "var(--rank0)", 0, "attention")}${piece(ring + share(attention[1]), share(exposed[1]), "var(--exposed)", 0, "exposed")}${
    piece(rest, 100 - rest, "var(--grey)", 0, "the rest of the ring")}${
    piece(ring, Math.min(share(exchanges[1]), 100 - ring), "var(--rank1)", 22, "exchanges")}</svg>`;
}

function rules(table, text) {
  const because = name => (text.match(new RegExp(`^  ${name} +pass-\\S+ +\\S+   (.*(?:\\n {46}.*)*)`, "m")) || ["", ""])[1].replace(/\s+/g, " ");
  $("rules").innerHTML = rows(["Rule", "Says", "turns at T", "Because"], table.map(row => `<tr><td class="text">${row.rule}</td><td class="text">${row.variant}</td>
    <td>${row.turns_at > row.context ? "never" : group(row.turns_at)}</td><td class="text long">${escape(because(row.rule))}</td></tr>`));
}

// ---- where the choice turns

const count = text => { // as the program reads it
  const [, digits, scale] = text.match(/^(\d+)([KMG]i?|k?)$/) || [];
  return digits * { K: 1e3, k: 1e3, M: 1e6, G: 1e9, Ki: 1024, Mi: 1048576, Gi: 1073741824, "": 1 }[scale];
};

async function sweep(runner) {
  const now = state(), context = count(now.new) + count(now.cached), points = new Map();
  if (!(context > 1) || now.batch !== "1")
    return void ($("turn").textContent = "One sequence of two tokens or more is needed: a count of new tokens, and one of cached.");
  runner.drop();
  let last = [];
  const ask = async fresh => {
    const found = { fresh };
    for (const variant of ["pass-kv", "pass-q"]) {
      last = call("simulate", { ...now, new: String(fresh), cached: String(context - fresh) }, "--variant", variant, "--csv");
      const result = await runner.run(last);
      if (result.status !== 0)
        throw result;
      found[variant] = csv(result.out)[0].seconds;
    }
    points.set(fresh, found);
    return found;
  };
  const kv = point => point["pass-kv"] <= point["pass-q"];
  const words = call("choose", now, "--csv"), turns = await runner.run(words);
  const marks = turns.status === 0 ? csv(turns.out).filter(row => row.turns_at <= row.context) : [];
  const steps = +now.ranks > 32 ? 8 : 24;
  try {
    for (let n = 0; n <= steps; n++) {
      await ask(Math.max(1, Math.round(context ** (n / steps))));
      plot(points, context, marks);
    }
    const order = [...points.values()].sort((a, b) => a.fresh - b.fresh);
    const at = order.findLastIndex((point, n) => n > 0 && kv(point) && !kv(order[n - 1]));
    if (at > 0) {
      let low = order[at - 1].fresh, high = order[at].fresh;
      while (high - low > 1) {
        const middle = Math.floor((low + high) / 2);
        if (kv(await ask(middle)))
          high = middle;
        else
          low = middle;
      }
      $("turn").innerHTML = `Simulated, pass-KV is the faster from <b id="turns">${group(high)}</b> new tokens on, of ${group(context)} in all: found by halving.`;
      plot(points, context, marks, high);
    } else
      $("turn").textContent = `Simulated, ${kv(order[order.length - 1]) ? "pass-KV" : "pass-Q"} is the faster of the two wherever it was tried.`;
    $("sweep-ran").innerHTML = `<p class="note">Runs like <code>longring ${escape(last.join(" "))}</code>, ${2 * points.size} of them. Marks are the rules'
      own turns, by <code>longring ${escape(words.join(" "))}</code>.</p>`;
  } catch (result) {
    $("turn").textContent = result.err;
  }
}

function plot(points, context, marks, turn) {
  const list = [...points.values()].sort((a, b) => a.fresh - b.fresh), all = list.flatMap(point => [point["pass-kv"], point["pass-q"]]);
  const low = Math.log(Math.min(...all) * 0.9), high = Math.log(Math.max(...all) * 1.1), W = 1000, H = 360, left = 70, bottom = 40;
  const x = fresh => left + (W - left - 20) * Math.log(fresh) / Math.log(context), y = s => (H - bottom) * (1 - (Math.log(s) - low) / (high - low)) + 5;
  const line = name => `<polyline class="${name.slice(5)}" points="${list.map(point => `${x(point.fresh).toFixed(1)},${y(point[name]).toFixed(1)}`).join(" ")}"/>${
    list.map(point => `<circle class="${name.slice(5)}" r="3" cx="${x(point.fresh).toFixed(1)}" cy="${y(point[name]).toFixed(1)}" data-fresh="${point.fresh}"><title>${
      name}, ${group(point.fresh)} new tokens: ${point[name]} s</title></circle>`).join("")}`;
  const axis = [];
  for (let t = 1; t <= context; t *= 10)
    axis.push(`<line class="axis" x1="${x(t)}" x2="${x(t)}" y1="0" y2="${H - bottom + 5}"/><text x="${x(t)}" y="${H - 18}" text-anchor="middle">${group(t)}</text>`);
  for (let n = 3 * Math.floor(low / Math.LN10); n < 3 * high / Math.LN10; n++) {
    const s = 10 ** Math.floor(n / 3) * [1, 2, 5][(n % 3 + 3) % 3];
    if (Math.log(s) < low || Math.log(s) > high)
      continue;
    axis.push(`<line class="axis" x1="${left}" x2="${W - 20}" y1="${y(s)}" y2="${y(s)}"/><text x="${left - 6}" y="${y(s) + 4}" text-anchor="end">${+s.toPrecision(1)} s</text>`);
  }
  const notes = marks.map((row, n) => `<line x1="${x(row.turns_at)}" x2="${x(row.turns_at)}" y1="${H - bottom - 12}" y2="${H - bottom + 5}" stroke="currentColor"><title>${
    row.rule} turns at ${group(row.turns_at)}</title></line>`);
  if (turn)
    notes.push(`<line x1="${x(turn)}" x2="${x(turn)}" y1="0" y2="${H - bottom + 5}" stroke="currentColor" stroke-dasharray="3 3"/>
      <text x="${x(turn) + 6}" y="14">${group(turn)}</text>`);
  $("plot").innerHTML = `<svg viewBox="0 0 ${W} ${H}" role="img" aria-label="seconds of both rings over new tokens">${axis.join("")}${notes.join("")}${line("pass-kv")}${
    line("pass-q")}<text class="kv" x="${left + 10}" y="20">pass-KV</text><text class="q" x="${left + 80}" y="20">pass-Q</text><text x="${W - 20}" y="${H - 2}" text-anchor="end"
    class="small">new tokens of ${group(context)}</text></svg>`;
}

// ---- all of it

let runner, sweeper, turn = 0;

// Each part is drawn when its answer is there; a new question drops the rest.
async function show() {
  const now = state(), mine = ++turn;
  const ask = words => runner.run(words).then(result => mine === turn ? result : new Promise(() => {}));
  runner.drop();
  sweeper.drop();
  delete document.body.dataset.shown;
  $("called").textContent = called(now);
  shut();
  $("page").hidden = false;
  $("page").classList.add("busy");
  $("turn").textContent = "with T + P as it is, by simulation of both rings.";
  $("plot").innerHTML = $("sweep-ran").innerHTML = "";

  const words = call("simulate", now, ...repeated(now), ...(now.variant === "auto" ? [] : ["--variant", now.variant]));
  const predicted = await ask(words);
  told("simulate", words, predicted, predicted.status !== 0);
  $("seconds").hidden = predicted.status !== 0;
  if (predicted.status === 0)
    seconds(predicted.out);
  const variant = now.variant !== "auto" ? now.variant : (predicted.out.match(/^(\S+) on/) || [])[1] || "auto";
  await proof(now, variant, ask);

  const rule = call("choose", { ...now, new: times(now.new, now.batch), cached: now.cached === "0" ? "0" : times(now.cached, now.batch) });
  const said = await ask(rule), ruled = await ask(rule.concat("--csv"));
  told("choose", rule, said, said.status !== 0 || ruled.status !== 0);
  $("rules").hidden = ruled.status !== 0;
  if (ruled.status === 0)
    rules(csv(ruled.out), said.out);
  const contest = rule.concat("--all");
  told("contest", contest, await ask(contest), true);
  $("page").classList.remove("busy");
  document.body.dataset.shown = mine;
}

const DRAWN = 128, SHOWN = 16;

// When a layer's operations run on the machine, as lists of [start, end] in milliseconds by rank, name and hop.
async function pace(now, variant, ask) {
  $("pace-ran").innerHTML = "";
  if (now.pace !== "simulated" || +now.ranks > SHOWN)
    return null;
  const words = call("simulate", now, ...repeated(now), "--variant", variant, "--trace", "layers.json");
  const result = await ask(words), times = new Map(), end = result.out.lastIndexOf("\n]}") + 4;
  told("pace-ran", words, { ...result, out: result.out.slice(end) }, result.status !== 0);
  if (result.status !== 0)
    return null;
  for (const [, name, thread, start, length, hop] of result.out.slice(0, end).matchAll(
    /"name":"([^"]+)","ph":"X","pid":0,"tid":(\d+),"ts":([\d.]+),"dur":([\d.]+),"args":\{"layer":0,"hop":(\d+)/g)) {
    const place = `${thread >> 1} ${name} ${hop}`;
    times.set(place, [...(times.get(place) || []), [start / 1000, (+start + +length) / 1000]]);
  }
  return times;
}

async function proof(now, variant, ask) {
  const broken = (now.buffers === "1" ? ["--buffers", "1"] : []).concat(now.drop ? ["--drop", now.drop] : []);
  const buffers = +now.buffers > 2 ? ["--buffers", now.buffers] : [];
  const check = plan(now, variant, ...buffers, ...broken, "--check"), checked = await ask(check);
  const right = checked.status === 0;
  $("verdict").className = right ? "right" : "wrong";
  $("verdict").textContent = right ? `${checked.out.split("\n")[0]}\n${checked.out.slice(checked.out.indexOf("checked:")).replace(/\s+/g, " ")}` :
    checked.err.replace("longring:", broken.length > 0 && checked.status === 1 ? "The checker says:" : "The program says:");
  told("check", check, checked, false);

  const table = plan(now, variant, ...buffers, "--csv"), ranks = await ask(table);
  const draw = plan(now, variant, ...buffers, "--draw", "csv");
  const ops = +now.ranks > DRAWN ? { status: 1, out: "", err: `Up to ${DRAWN} ranks are drawn.\n` } : await ask(draw);
  told("ranks-ran", table, ranks, false);
  told("operations-ran", draw, { ...ops, out: ops.out.length > 2e5 ? ops.out.slice(0, 2e5) + "...\n" : ops.out }, ops.status !== 0);
  if (ranks.status === 0) {
    held(csv(ranks.out));
    $("balance").textContent = (checked.out.match(/^balance .*/m) || [""])[0];
  }
  own = ops.status === 0 ? operations(csv(ops.out), variant, now.drop, right ? "" : checked.err, await pace(now, variant, ask)) : null;
  picture();
  for (const place of ["held", "ranks", "balance"])
    $(place).hidden = ranks.status !== 0;
}

function operations(ops, variant, drop, accusation, times) {
  const [, rank, hop, name] = accusation.match(/rank (\d+), hop (\d+): (\S+)/) || [], programs = byRank(ops);
  const made = { ops, programs, ranks: programs.length, colours: programs.length, high: 42, variant, gone: ops.find(op => `${op.rank}:${op.number}` === drop),
    accused: ops.find(op => op.rank === +rank && op.hop === +hop && op.operation === name), around: [] };
  if (times) {
    for (const op of ops)
      [op.start, op.end] = (times.get(`${op.rank} ${op.operation} ${op.hop}`) || []).shift() || [0, 0];
    for (const [place, list] of times)
      for (const [start, end] of list)
        made.around.push({ rank: +place.split(" ")[0], operation: place.split(" ")[1], start, end });
    made.end = [...made.around, ...ops].reduce((most, op) => Math.max(most, op.end), 0);
  }
  return made;
}

function byRank(ops) {
  const programs = [];
  ops.forEach(op => (programs[op.rank] ||= []).push(op));
  return programs;
}

// What is drawn: a file that is open, or else the own plan, if there is one.
function picture() {
  drawn = opened || own;
  $("timeline").hidden = $("what").hidden = !drawn;
  $("program").hidden = !drawn || drawn.strokes;
  $("opened").hidden = $("facts").hidden = !opened;
  for (const section of document.querySelectorAll("main > section"))
    section.hidden = !!opened && !section.contains($("timeline")); // of the call in the form
  $("lanes").hidden = !!opened && opened.holds;
  $("lengths").hidden = $("operations-ran").hidden = $("pace-ran").hidden = !!opened;
  if (!drawn)
    return;
  const { ops, programs, ranks, file, strokes, holds, gone } = drawn, count = ops.filter(op => strokes || op.end > 0).length;
  if (opened)
    $("said").textContent = `${file}: ${holds ? "what" : strokes ? "strokes of" : "a plan of"} ${ranks} rank${ranks > 1 ? "s" : ""}${holds ? " hold" : ""}, ${
      group(count)} bar${count === 1 ? "" : "s"} over ${holds ? "positions of tokens" : "virtual time"}${
      ranks > DRAWN ? `, of ranks 0 to ${DRAWN - 1}` : ""}.`;
  $("rank").innerHTML = programs.map((_, k) => `<option>${k}</option>`).join("");
  $("rank").value = (gone || ops[0]).rank;
  timeline();
  if (!strokes)
    program();
  if (file)
    facts();
  choose(gone || ops.find(op => op.operation === "exchange") || ops[0], false);
}

// ---- a drawing from a file: of a plan, or of strokes

const COLUMNS = ["rank,lane,name,origin,hop,start,end", "rank,number,operation,hop,in,in_origin,keys,keys_origin,out,out_origin,to,from,bytes,pairs,start,end"];
const WORDS = ["lane", "name", "operation"], ROWS = 1e5, RANKS = 1024;
const quote = text => `"${text.slice(0, 40)}${text.length > 40 ? "..." : ""}"`;

// What is wrong with a field, if anything is.
function fault(column, value, op) {
  const time = column === "start" || column === "end";
  if (column === "lane")
    return /^(work|messages)$/.test(value) ? "" : "neither work nor messages";
  if (WORDS.includes(column))
    return value ? "" : "no name";
  if (!/^[-+.\de]+$/.test(value) || !Number.isFinite(+value))
    return "not a number";
  if (+value < 0 && (time || column === "rank"))
    return "negative";
  if (column === "rank" && +value >= RANKS)
    return `beyond ${group(RANKS)} ranks`;
  return column === "end" && +value < op.start ? "before its start" : time || Number.isSafeInteger(+value) ? "" : "not a whole number";
}

function parse(file, text) {
  const lines = text.trimEnd().split(/\r?\n/), head = lines[0].split(",");
  const wrong = (line, what) => { throw Error(`line ${line}: ${what}`); };
  if (!text.trim())
    wrong(1, "the file is empty");
  const columns = COLUMNS.find(known => known.split(",").sort().join() === [...head].sort().join()), strokes = columns === COLUMNS[0];
  if (!columns)
    wrong(1, `the header is ${quote(lines[0])}, neither of strokes (rank,lane,name,...) nor of a plan (rank,number,operation,...)`);
  if (lines.length === 1)
    wrong(2, "no row follows the header");
  if (lines.length > ROWS + 1)
    wrong(ROWS + 2, `more than ${group(ROWS)} rows`);
  const counts = [], order = columns.split(",").map(column => [column, head.indexOf(column)]);
  const ops = lines.slice(1).map((line, n) => {
    const values = line.split(","), op = {};
    if (values.length !== head.length)
      wrong(n + 2, `where the header has ${head.length} fields, there ${values.length > 1 ? "are" : "is"} ${values.length}`);
    for (const [column, at] of order) {
      const what = fault(column, values[at], op);
      if (what)
        wrong(n + 2, `${column} is ${quote(values[at])}, ${what}`);
      op[column] = WORDS.includes(column) ? values[at] : +values[at];
    }
    counts[op.rank] = (counts[op.rank] || 0) + 1;
    return strokes ? Object.assign(op, { operation: op.name, number: counts[op.rank] - 1 }) : op;
  });
  const programs = byRank(ops), ranks = programs.length;
  return { file, ops, programs, ranks, strokes, around: [], holds: strokes && ops.every(op => op.name === "holds"),
    colours: ops.reduce((most, op) => Math.max(most, whose(op) + 1), ranks), high: ops.some(talks) ? 42 : 22 };
}

async function load(file) {
  try {
    if (file.size > 400 * ROWS)
      throw Error(`line 1: ${group(file.size)} bytes are more than ${group(ROWS)} rows have`);
    opened = parse(file.name, await file.text());
  } catch (error) {
    $("refused").textContent = `${file.name}, ${error.message}`;
    return void ($("refused").hidden = false);
  }
  $("refused").hidden = true;
  picture();
}

function shut() {
  opened = null;
  $("refused").hidden = true;
}

const point = event => {
  const place = event.target.closest("[data-op]");
  if (place)
    choose(drawn.ops.find(op => `${op.rank}:${op.number}` === place.dataset.op), false);
};

function keys(event) {
  const now = drawn.chosen, list = drawn.programs[now.rank], at = list.indexOf(now);
  const step = { ArrowLeft: list[at - 1], ArrowRight: list[at + 1],
    ArrowUp: (drawn.programs[now.rank - 1] || [])[at], ArrowDown: (drawn.programs[now.rank + 1] || [])[at] };
  if (event.key === "Delete")
    $("leave")?.click();
  else if (!(event.key in step))
    return;
  else if (step[event.key])
    choose(step[event.key], true);
  event.preventDefault();
}

async function begin() {
  const bytes = Uint8Array.from(atob(MODULE), c => c.charCodeAt(0)), module = await WebAssembly.compile(bytes);
  runner = new Runner(module);
  sweeper = new Runner(module);
  const start = async () => {
    const sweeps = recall();
    $("call").open = !matchMedia("(max-width: 40rem)").matches; // the plan is to be on the first screen
    await show();
    if (sweeps)
      await sweep(sweeper);
  };
  form.onsubmit = event => event.preventDefault();
  form.onchange = () => { keep(); show(); };
  $("reset").onclick = () => set(usual);
  $("sweep").onclick = () => { keep("&sweep=1"); sweep(sweeper); };
  $("timeline").onpointerover = $("timeline").onclick = $("operations").onclick = point;
  $("timeline").onkeydown = keys;
  $("rank").onchange = program;
  $("open").onclick = () => $("file").click();
  $("file").onchange = async () => {
    await load($("file").files[0]);
    $("file").value = ""; // the same again is a change
  };
  $("close").onclick = () => { shut(); picture(); };
  document.ondragover = event => event.dataTransfer.types.includes("Files") && event.preventDefault();
  document.ondrop = event => {
    if (event.dataTransfer.files.length > 0) {
      event.preventDefault();
      load(event.dataTransfer.files[0]);
    }
  };
  $("plot").onclick = event => event.target.dataset.fresh && set({ cached: String(count(state().new) + count(state().cached) - event.target.dataset.fresh),
    new: event.target.dataset.fresh });
  addEventListener("hashchange", start);
  addEventListener("resize", () => drawn && timeline());
  await start();
}
begin();
