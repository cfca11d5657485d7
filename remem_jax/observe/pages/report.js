"use strict";
// The page of `remem report`. Texts of models and documents become text nodes and nothing else.
(async () => {
  const SVG = "http://www.w3.org/2000/svg";
  const LARGEST_DIFF = 4e6; // cells of the table that two memories are compared with
  const store = document.getElementById("data");
  const page = document.getElementById("page");

  /** An element with properties (`class`, `on...`, attributes) and children; null ones are left out. */
  function el(tag, properties = {}, ...children) {
    const svg = /^(svg|path|line|text|circle|g|title|marker|defs)$/.test(tag);
    const node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? "" : value);
    }
    for (const child of children.flat(Infinity))
      if (child !== null && child !== undefined && child !== "") node.append(child);
    return node;
  }

  async function unpacked() {
    const bytes = Uint8Array.from(atob(store.textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  }

  let data;
  try {
    data = store.type === "application/json" ? JSON.parse(store.textContent) : await unpacked();
  } catch (error) {
    page.append(el("p", { role: "alert" }, `This page cannot be shown: ${error}. A newer browser may help.`));
    return;
  }
  const all = data.trajectories;
  const several = data.labels.length > 1;
  const segments = (index) => (index === undefined ? [""] : data.texts[index]);
  const number = (value) => (value === undefined || value === null ? "" :
    (Math.abs(value) > 0 && Math.abs(value) < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(3))))
      .replace("-", "−"));
  const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "") + number(Math.abs(value));
  const letter = (source) => String.fromCharCode(65 + source);
  const agent = (source) => (several ? `${letter(source)}: ` : "") + data.labels[source];

  // ---- texts: gold words marked, changes marked ----

  /** The characters [from, to) of a text, its gold words marked. */
  function pieces(parts, from = 0, to = Infinity) {
    const nodes = [];
    let at = 0;
    parts.forEach((part, index) => {
      const piece = part.slice(Math.max(from - at, 0), Math.max(to - at, 0));
      at += part.length;
      if (piece) nodes.push(index % 2 ? el("mark", {}, piece) : piece);
    });
    return nodes;
  }

  const textBox = (nodes, name = "text") => el("div", { class: name, dir: "auto" }, nodes);

  function tokens(text) {
    return [...text.matchAll(/\s*\S+/g)].map((match) => ({
      word: match[0].trim(), from: match.index, start: match.index + match[0].search(/\S/), to: match.index + match[0].length,
    }));
  }

  /** [kind, tokens] in order: what is the same, dropped from `old`, added in `now`. */
  function changes(old, now) {
    let head = 0;
    while (head < old.length && head < now.length && old[head].word === now[head].word) head++;
    let tail = 0;
    while (tail < Math.min(old.length, now.length) - head &&
      old[old.length - 1 - tail].word === now[now.length - 1 - tail].word) tail++;
    const a = old.slice(head, old.length - tail), b = now.slice(head, now.length - tail);
    const found = head ? [["same", now.slice(0, head)]] : [];
    const push = (kind, token) => {
      if (found.length && found[found.length - 1][0] === kind) found[found.length - 1][1].push(token);
      else found.push([kind, [token]]);
    };
    if (a.length * b.length > LARGEST_DIFF) {
      a.forEach((token) => push("dropped", token));
      b.forEach((token) => push("added", token));
    } else {
      const width = b.length + 1, longest = new Uint16Array((a.length + 1) * width);
      for (let i = a.length - 1; i >= 0; i--)
        for (let j = b.length - 1; j >= 0; j--)
          longest[i * width + j] = a[i].word === b[j].word ? longest[(i + 1) * width + j + 1] + 1
            : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
      let i = 0, j = 0;
      while (i < a.length || j < b.length) {
        if (i < a.length && j < b.length && a[i].word === b[j].word) { push("same", b[j]); i++; j++; }
        else if (i < a.length && (j === b.length || longest[(i + 1) * width + j] >= longest[i * width + j + 1]))
          push("dropped", a[i++]);
        else push("added", b[j++]);
      }
    }
    if (tail) now.slice(now.length - tail).forEach((token) => push("same", token));
    return found;
  }

  /** What a turn did to the memory: nodes to show, and how many words came and went in words. */
  function memoryChange(turn) {
    const before = segments(turn.before), after = segments(turn.memory);
    let added = 0, dropped = 0;
    const nodes = changes(tokens(before.join("")), tokens(after.join(""))).map(([kind, part], index) => {
      const text = kind === "dropped" ? before : after;
      const gap = pieces(text, part[0].from, part[0].start); // white space stays outside of the marks
      const shown = pieces(text, part[0].start, part[part.length - 1].to);
      if (kind === "added") added += part.length;
      if (kind === "dropped") dropped += part.length;
      return [gap.length || !index ? gap : " ", kind === "same" ? shown : el(kind === "added" ? "ins" : "del", {}, shown)];
    });
    const told = [added ? `+${added}` : "", dropped ? `−${dropped}` : ""].filter(Boolean).join(" ");
    return { nodes, told: told ? `${told} word${added + dropped === 1 ? "" : "s"}` : "no change" };
  }

  // ---- curves ----

  function curves() {
    return data.charts.map((group) => el("details", { class: "charts", open: group.open },
      el("summary", {}, el("h2", {}, group.title)),
      several ? el("p", { class: "key" }, data.labels.map((label, at) => el("span", {}, stroke(at), agent(at)))) : null,
      el("div", { class: "grid" }, group.charts.map(chart))));
  }

  const stroke = (at) => el("svg", { class: "stroke", viewBox: "0 0 28 8", "aria-hidden": "true" },
    el("path", { class: `line of${at % 4}`, d: "M0 4H28" }));

  /** Means over nine points around each, where there are many. */
  function smooth(points) {
    return points.map(([x, y], at) => {
      const near = points.slice(Math.max(at - 4, 0), at + 5).map((point) => point[1]).filter((value) => value !== null);
      return [x, y === null ? null : near.reduce((sum, value) => sum + value, 0) / near.length];
    });
  }

  /** Round numbers a step apart that enclose two values. */
  function rules(low, high) {
    const rough = (high - low || 1) / 3, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 2.5, 5, 10].find((one) => one * power >= rough * 0.999);
    const first = Math.floor(low / step + 1e-9), last = Math.max(Math.ceil(high / step - 1e-9), first + 1);
    return Array.from({ length: last - first + 1 }, (_, at) => Number(((first + at) * step).toPrecision(6)));
  }

  function chart(spec) {
    const lines = spec.lines.map((points) => points || []);
    const every = lines.flat().filter((point) => point[1] !== null);
    const [left, right, top, bottom] = [44, 310, 8, 122];
    const ticks = rules(Math.min(0, ...every.map((point) => point[1])), Math.max(0, ...every.map((point) => point[1])));
    const low = ticks[0], high = ticks[ticks.length - 1];
    const steps = every.map((point) => point[0]), first = Math.min(...steps), last = Math.max(...steps);
    const x = (step) => last === first ? (left + right) / 2 : left + ((step - first) / (last - first)) * (right - left);
    const y = (value) => bottom - ((value - low) / (high - low || 1)) * (bottom - top);
    const draw = (points) => points.map(([step, value], at) => value === null ? "" :
      `${at && points[at - 1][1] !== null ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    const told = lines.map((points, at) => {
      const known = points.filter((point) => point[1] !== null);
      if (!known.length) return "";
      const name = several ? `${letter(at)} ` : "";
      return `${name}${number(known[0][1])} → ${number(known[known.length - 1][1])}`;
    }).filter(Boolean).join(" · ");
    const say = el("output", { class: "value" }, told);
    const cursor = el("line", { class: "cursor", y1: top, y2: bottom, x1: -9, x2: -9 });
    const view = el("svg", { viewBox: "0 0 320 142", role: "img", "aria-label": `${spec.title}: ${told}` },
      ticks.map((value) => [
        el("line", { class: "rule", x1: left, x2: right, y1: y(value), y2: y(value) }),
        el("text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" }, number(value)),
      ]),
      el("text", { x: last === first ? x(first) : left, y: 138 }, `step ${first}`),
      last === first ? null : el("text", { x: right, y: 138, "text-anchor": "end" }, String(last)),
      lines.map((points, at) => points.length > 30
        ? [el("path", { class: `raw of${at % 4}`, d: draw(points) }),
           el("path", { class: `line of${at % 4}`, d: draw(smooth(points)) })]
        : [el("path", { class: `line of${at % 4}`, d: draw(points) }),
           points.filter((point) => point[1] !== null).map((point) =>
             el("circle", { class: `dot of${at % 4}`, cx: x(point[0]), cy: y(point[1]), r: 2.2 }))]),
      cursor);
    view.addEventListener("pointermove", (event) => {
      const box = view.getBoundingClientRect();
      const step = first + (((event.clientX - box.left) / box.width) * 320 - left) / (right - left) * (last - first);
      const near = steps.reduce((best, one) => Math.abs(one - step) < Math.abs(best - step) ? one : best, first);
      cursor.setAttribute("x1", x(near));
      cursor.setAttribute("x2", x(near));
      const values = lines.map((points, at) => {
        const point = points.find((one) => one[0] === near);
        return point && point[1] !== null ? (several ? `${letter(at)} ` : "") + number(point[1]) : "";
      }).filter(Boolean);
      say.textContent = `step ${near}: ${values.join(" · ")}`;
    });
    view.addEventListener("pointerleave", () => {
      say.textContent = told;
      cursor.setAttribute("x1", -9);
      cursor.setAttribute("x2", -9);
    });
    return el("figure", { "data-name": spec.name }, el("figcaption", {}, el("b", {}, spec.title), say), view);
  }

  // ---- the table ----

  const right = (one) => (one.em === undefined ? "" : one.em === 1 ? "✓ right" : "✗ wrong");
  const faults = (one) => [
    one.invalid ? `! ${one.invalid} invalid` : "", one.cut ? `! ${one.cut} cut` : "", one.finished ? "" : "! not finished",
  ].filter(Boolean).join(", ");
  const known = (name) => all.some((one) => one[name] !== undefined);
  const varied = (name) => all.some((one) => (one[name] ?? 0) !== (all[0][name] ?? 0));
  const COLUMNS = [
    { name: "Question", key: "question", value: (one) => one.question, text: true },
    { name: "Agent", key: "source", value: (one) => one.source, show: (one) => agent(one.source), off: !several, text: true },
    { name: "Step", key: "step", value: (one) => one.step, off: !known("step") },
    { name: "Rollout", key: "rollout", value: (one) => one.rollout, off: !varied("rollout") },
    { name: "Answer", key: "answer", value: (one) => one.answer, text: true },
    { name: "Gold", key: "gold", value: (one) => (one.gold || []).join(" | "), off: !known("gold"), text: true },
    { name: "EM", key: "em", value: (one) => one.em, show: right, off: !known("em") },
    { name: "F1", key: "f1", value: (one) => one.f1, off: !known("f1") },
    { name: "Turns", key: "turns", value: (one) => one.turns.length },
    { name: "Calls", key: "calls", value: (one) => one.calls },
    { name: "Hits", key: "hits", value: (one) => one.hits },
    { name: "Outcome", key: "outcome", value: (one) => one.outcome, off: !known("outcome") },
    { name: "Memory gain", key: "memory_gain", value: (one) => one.memory_gain, off: !known("memory_gain") },
    { name: "Callback gain", key: "callback_gain", value: (one) => one.callback_gain, off: !known("callback_gain") },
    { name: "Format", key: "format", value: (one) => one.format, off: !known("format") },
    { name: "Flags", key: "flags", value: (one) => one.invalid + one.cut + (one.finished ? 0 : 1), show: faults, off: !all.some(faults) },
  ].filter((column) => !column.off);
  const SHOWS = {
    "": "everything",
    right: "right answers",
    wrong: "wrong answers",
    calls: "with a query",
    hits: "with a recalled memory",
    gain: "with a callback gain",
    invalid: "with an invalid reply",
    cut: "with a reply cut at its limit",
  };
  const PASSES = {
    right: (one) => one.em === 1, wrong: (one) => one.em !== undefined && one.em < 1, calls: (one) => one.calls > 0,
    hits: (one) => one.hits > 0, gain: (one) => one.callback_gain > 0, invalid: (one) => one.invalid > 0,
    cut: (one) => one.cut > 0,
  };
  const steps = known("step"); // of training: the last ones come first
  const filter = { search: "", source: "", shows: "", sort: steps ? "step" : "", down: steps };
  let rows = all.map((_, at) => at);
  let focusedRow = 0;

  const select = (label, options, chosen, change) => el("label", {}, label, el("select", {
    "aria-label": label, onchange: (event) => change(event.target.value),
  }, Object.entries(options).map(([value, text]) => el("option", { value, selected: value === chosen }, text))));

  const search = el("input", {
    type: "search", placeholder: "question, answer, gold", "aria-label": "Search",
    oninput: (event) => { filter.search = event.target.value.toLowerCase(); refresh(); },
  });
  const counted = el("p", { class: "counted", role: "status" });
  const heads = el("tr");
  const body = el("tbody");
  const sortSelect = select("Sort by ", { "": "file order", ...Object.fromEntries(
    COLUMNS.flatMap((column) => [[`${column.key} up`, `${column.name} ↑`], [`${column.key} down`, `${column.name} ↓`]])),
  }, "", (value) => sortBy(...value.split(" ")));
  sortSelect.className = "narrow";
  const rowOf = all.map((one, at) => el("tr", { "data-at": at, onclick: () => open(at) }, COLUMNS.map((column, index) => {
    const value = column.value(one);
    const shown = column.show ? column.show(one) : column.text ? value : number(value);
    const empty = shown === "" ? " empty" : "";
    const cell = index ? shown : el("button", { class: "open", "aria-label": `Open: ${shown}` }, shown || "(empty question)");
    return el(index ? "td" : "th", {
      class: `c-${column.key}${column.text ? " words" : " number"}${empty}`, "data-label": column.name, dir: column.text ? "auto" : null,
      scope: index ? null : "row",
    }, cell);
  })));

  function sortBy(key, direction) {
    filter.sort = key || "";
    filter.down = direction === "down";
    refresh();
  }

  function refresh() {
    const words = filter.search.split(/\s+/).filter(Boolean);
    rows = all.map((_, at) => at).filter((at) => {
      const one = all[at];
      const text = [one.question, one.answer, ...(one.gold || []), one.id].join("\n").toLowerCase();
      return words.every((word) => text.includes(word)) && (filter.source === "" || one.source === Number(filter.source)) &&
        (!filter.shows || PASSES[filter.shows](one));
    });
    const column = COLUMNS.find((one) => one.key === filter.sort);
    if (column) {
      const sign = filter.down ? -1 : 1, order = new Intl.Collator(undefined, { numeric: true });
      rows.sort((a, b) => {
        const x = column.value(all[a]), y = column.value(all[b]);
        if (x === undefined || y === undefined) return (x === undefined) - (y === undefined) || a - b; // unknown last
        return sign * (typeof x === "string" ? order.compare(x, y) : x - y) || a - b;
      });
    }
    heads.replaceChildren(...COLUMNS.map((one) => {
      const sorted = one.key === filter.sort;
      return el("th", { scope: "col", class: one.text ? "words" : "number",
        "aria-sort": sorted ? (filter.down ? "descending" : "ascending") : null },
        el("button", { "data-sort": one.key, onclick: () => {
          // Numbers begin with the largest, texts with the first.
          const next = sorted ? !filter.down : !one.text;
          sortBy(one.key, next ? "down" : "up");
          heads.querySelector(`[data-sort="${one.key}"]`).focus();
        } }, one.name, el("span", { "aria-hidden": "true" }, sorted ? (filter.down ? "\u00a0↓" : "\u00a0↑") : "")));
    }));
    sortSelect.querySelector("select").value = filter.sort ? `${filter.sort} ${filter.down ? "down" : "up"}` : "";
    body.replaceChildren(...rows.map((at) => rowOf[at]));
    const em = rows.map((at) => all[at].em).filter((value) => value !== undefined);
    const mean = em.length ? `, ${em.filter((value) => value === 1).length} of ${em.length} right` : "";
    counted.textContent = rows.length
      ? `${rows.length} of ${all.length} trajectories${mean}` : "No trajectory fits the search and filters.";
    focusedRow = 0;
  }

  function focusRow(at) {
    if (!rows.length) return;
    focusedRow = Math.min(Math.max(at, 0), rows.length - 1);
    const button = rowOf[rows[focusedRow]].querySelector("button.open");
    button.focus();
    button.scrollIntoView({ block: "nearest" });
  }
  body.addEventListener("focusin", (event) => {
    focusedRow = rows.indexOf(Number(event.target.closest("tr").dataset.at));
  });

  // ---- one trajectory ----

  const opened = { at: null, other: null, turn: 0 };
  const listView = el("div", { id: "list" });
  const jump = all.length && data.charts.length
    ? el("a", { href: "#trajectories" }, `${all.length} trajectories ↓`) : el("span");
  const oneView = el("section", { id: "one", hidden: true, "aria-label": "One trajectory" });

  const groups = new Map(); // question -> its trajectories
  all.forEach((one, at) => groups.set(one.question, [...(groups.get(one.question) || []), at]));

  /** Trajectories of the same question: those with the same id where there are any in another source, else all. */
  function fellows(at) {
    const same = groups.get(all[at].question).filter((other) => other !== at);
    const exact = same.filter((other) => all[other].id === all[at].id);
    return exact.some((other) => all[other].source !== all[at].source) || !several ? exact : same;
  }

  /** What to show beside a trajectory: the other agent's, of the same step and rollout where there is one. */
  function partner(at) {
    const one = all[at], others = fellows(at).filter((other) => all[other].source !== one.source);
    const likeness = (other) => (all[other].step === one.step ? 2 : 0) + (all[other].rollout === one.rollout ? 1 : 0);
    return others.length ? others.reduce((best, other) => (likeness(other) > likeness(best) ? other : best)) : null;
  }

  const named = (at) => [
    several ? letter(all[at].source) : "", all[at].step === undefined ? "" : `step ${all[at].step}`,
    `rollout ${all[at].rollout}`, right(all[at]), all[at].answer,
  ].filter(Boolean).join(" · ");

  function open(at, turn = 0) {
    opened.at = at;
    opened.other = partner(at);
    opened.turn = turn;
    listView.hidden = jump.hidden = true;
    oneView.hidden = false;
    showOne();
    oneView.querySelector("h2").focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }

  function close() {
    listView.hidden = jump.hidden = false;
    oneView.hidden = true;
    const at = rows.indexOf(opened.at);
    opened.at = null;
    focusRow(at < 0 ? 0 : at);
  }

  function move(by) {
    const at = rows.indexOf(opened.at) + by;
    if (at >= 0 && at < rows.length) open(rows[at], 0);
  }

  function turnTo(turn, focus) {
    const last = Math.max(...shownOnes().map((at) => all[at].turns.length)) - 1;
    opened.turn = Math.min(Math.max(turn, 0), last);
    showOne();
    if (focus) oneView.querySelector('.turns [aria-current="true"]').focus({ preventScroll: true });
    oneView.querySelectorAll(".turns").forEach((line) => { // along the line alone: the page stays where it is
      const box = line.querySelector('[aria-current="true"]').getBoundingClientRect(), view = line.getBoundingClientRect();
      line.scrollLeft += Math.max(box.right + 24 - view.right, 0) || Math.min(box.left - 24 - view.left, 0);
    });
  }

  const shownOnes = () => [opened.at, opened.other].filter((at) => at !== null);

  function showOne() {
    const one = all[opened.at], others = fellows(opened.at), at = rows.indexOf(opened.at);
    const options = { "": "nothing", ...Object.fromEntries(others.map((other) => [other, named(other)])) };
    const scrolled = [...oneView.querySelectorAll(".turns")].map((line) => line.scrollLeft);
    oneView.replaceChildren(
      el("nav", { class: "bar", "aria-label": "Trajectories" },
        el("button", { class: "back", onclick: close }, "← All trajectories"),
        el("span", { class: "spacer" }),
        el("button", { "aria-label": "Previous trajectory", disabled: at <= 0, onclick: () => move(-1) }, "↑ previous"),
        el("span", {}, at < 0 ? "" : `${at + 1} of ${rows.length}`),
        el("button", { "aria-label": "Next trajectory", disabled: at < 0 || at >= rows.length - 1, onclick: () => move(1) },
          "↓ next")),
      el("h2", { tabindex: -1, dir: "auto" }, one.question || "(empty question)"),
      el("p", { class: "gold", dir: "auto" }, one.gold ? [el("b", {}, "Gold: "), one.gold.join(" | ")] : null,
        one.id ? el("small", {}, ` ${one.id}`) : null),
      others.length ? el("p", {}, select("Beside it: ", options, String(opened.other ?? ""), (value) => {
        opened.other = value === "" ? null : Number(value);
        turnTo(opened.turn);
        oneView.querySelector("select").focus();
      })) : null,
      el("div", { class: opened.other === null ? "panes" : "panes two" }, shownOnes().map(pane)),
      legend());
    oneView.querySelectorAll(".turns").forEach((line, index) => { line.scrollLeft = scrolled[index] || 0; });
  }

  function legend() {
    return el("footer", { class: "legend" },
      el("p", {}, "In a memory ", el("ins", {}, "new words"), " and ", el("del", {}, "dropped words"), "; ",
        el("mark", {}, "words of the gold answer"), ". An arc leads from a query back to the turn whose memory it recalled."),
      el("p", { class: "keys" }, el("kbd", {}, "←"), el("kbd", {}, "→"), " turns  ", el("kbd", {}, "↑"), el("kbd", {}, "↓"),
        " or ", el("kbd", {}, "k"), el("kbd", {}, "j"), " trajectories  ", el("kbd", {}, "Esc"), " back to all"));
  }

  function pane(at) {
    const one = all[at], chosen = Math.min(opened.turn, one.turns.length - 1);
    const facts = [one.step === undefined ? "" : `step ${one.step}`, varied("rollout") ? `rollout ${one.rollout}` : "",
      `calls ${one.calls}`, `hits ${one.hits}`, one.f1 === undefined ? "" : `F1 ${number(one.f1)}`].filter(Boolean);
    return el("article", { class: "pane", "data-at": at, "aria-label": `${agent(one.source)}, ${facts.join(", ")}` },
      el("h3", {}, agent(one.source), el("small", {}, ` ${facts.join(" · ")}`)),
      el("p", { class: "answer", dir: "auto" }, el("b", {}, "Answer: "), one.answer, " ",
        one.em === undefined ? null : el("span", { class: one.em === 1 ? "tag good" : "tag bad" }, right(one)),
        faults(one) ? el("span", { class: "tag warn" }, faults(one)) : null),
      line(one, chosen),
      detail(one, chosen));
  }

  /** The turns from left to right, with an arc from each query to the turn whose memory it recalled. */
  function line(one, chosen) {
    const place = new Map(one.turns.map((turn, index) => [turn.turn, index]));
    const [step, width] = opened.other === null ? [132, 120] : [116, 106]; // px, as in the style
    const middle = (index) => index * step + width / 2;
    const arcs = one.turns.flatMap((turn, index) => {
      if (turn.from === undefined || !place.has(turn.from) || !index) return [];
      const from = index - 1, to = place.get(turn.from); // the turn before wrote the query
      return [{ from, to, score: turn.score, height: from === to ? 26 : 20 + 14 * Math.min(from - to, 4), own: from === chosen }];
    });
    const height = Math.max(0, ...arcs.map((arc) => arc.height)) + (arcs.length ? 12 : 0);
    const ends = arcs.length ? el("svg", {
      class: "arcs", width: one.turns.length * step, height, "aria-hidden": "true",
    }, arcs.sort((a, b) => a.own - b.own).map((arc) => {
      const x1 = middle(arc.from) + (arc.from === arc.to ? 16 : -8), x2 = middle(arc.to) + (arc.from === arc.to ? -16 : 8);
      const up = height - arc.height * 1.33, class_ = arc.own ? "arc own" : "arc";
      return el("g", {}, el("title", {}, `${one.turns[arc.from].name} recalls the memory of ${one.turns[arc.to].name}`),
        el("path", { class: class_, d: `M${x1} ${height}C${x1} ${up} ${x2} ${up} ${x2} ${height - 5}` }),
        el("path", { class: `${class_} head`, d: `M${x2 - 4} ${height - 7}L${x2} ${height}L${x2 + 4} ${height - 7}Z` }));
    })) : null;
    return el("div", { class: "turns", role: "group", "aria-label": "Turns" }, ends,
      el("ol", {}, one.turns.map((turn, index) => {
        const asked = one.turns[index + 1], recalls = asked && asked.from !== undefined ? one.turns[place.get(asked.from)] : null;
        const gains = [turn.outcome > 0 && turn.final ? "outcome" : "", turn.memory_gain ? "memory" : "", turn.callback_gain ? "callback" : ""]
          .filter(Boolean).map((name) => `${name} ${signed(turn[name === "outcome" ? name : `${name}_gain`])}`);
        return el("li", {}, el("button", {
          "aria-current": index === chosen ? "true" : null, onclick: () => turnTo(index, true),
        },
          el("b", {}, turn.name),
          turn.final ? null : el("span", {}, memoryChange(turn).told),
          turn.query ? el("span", { class: "query", dir: "auto" }, `asks: ${turn.query}`) : null,
          recalls ? el("span", {}, `↶ recalls ${recalls.name}`) : turn.query ? el("span", {}, "finds nothing") : null,
          gains.map((gain) => el("span", { class: gain.includes("−") ? "loss" : "gain" }, gain)),
          (turn.flags || []).length ? el("span", { class: "flag" }, flagWords(turn)) : null));
      })));
  }

  const flagWords = (turn) => turn.flags.map((flag) => flag.includes("invalid") ? "! invalid" : flag.includes("box")
    ? "! no single box" : flag.includes("memory") ? "! memory cut" : "! reply cut").join(", ");

  function block(title, note, nodes, class_ = "") {
    return el("section", { class: `block ${class_}` }, el("h5", {}, title, note ? el("small", {}, ` ${note}`) : null), nodes);
  }

  function detail(one, index) {
    const turn = one.turns[index], before = one.turns[index - 1], after = one.turns[index + 1];
    const writer = (step) => (one.turns.find((other) => other.turn === step) || { name: `turn ${step}` }).name;
    const score = (value) => (value === undefined ? "" : `, score ${value.toFixed(2)}`);
    const missing = (text) => el("p", { class: "none" }, text);
    const change = memoryChange(turn);
    const shown = [
      turn.final && turn.chunk === undefined ? null : block("Chunk", "", turn.chunk === undefined
        ? missing("not in the trace") : textBox(pieces(segments(turn.chunk)), "text tall")),
      block("Memory before", "", turn.before === undefined ? missing("empty") : textBox(pieces(segments(turn.before)))),
      block("Recalled memory", turn.from === undefined ? "" : `of ${writer(turn.from)}${score(turn.score)}` +
        (before && before.query ? `, asked for in ${before.name}` : ""),
        turn.from === undefined ? missing("none") : textBox(pieces(segments(turn.recalled))), "recalled"),
    ];
    const wrote = [];
    if (!turn.final) {
      wrote.push(block("Memory after", change.told,
        turn.memory === undefined ? missing("empty") : textBox(change.nodes), "memory"));
      const found = after && after.from !== undefined;
      const asks = turn.query || found ? [
        turn.query ? textBox([el("span", { class: "asks" }, "“"), turn.query, "”"], "text query")
          : el("p", { class: "none" }, "the question itself"),
        found ? el("div", { class: "found" }, el("h6", {}, `↶ finds the memory of ${writer(after.from)}${score(after.score)}`),
          textBox(pieces(segments(after.recalled)))) : missing(after ? "finds nothing" : "the next turn is not in the trace"),
      ] : missing("none");
      wrote.push(block("Callback query", "", asks, "callback"));
    }
    wrote.push(turn.final
      ? block("Reply", "", textBox(pieces(segments(turn.reply))))
      : el("details", { class: "block" }, el("summary", {}, "Reply as written"), textBox(pieces(segments(turn.reply)))));
    const parts = [["outcome", turn.final ? turn.outcome : undefined], ["memory gain", turn.final ? undefined : turn.memory_gain],
      ["callback gain", turn.final ? undefined : turn.callback_gain], ["format", turn.format], ["state reward", turn.state_reward],
      ["advantage", turn.advantage]].filter((part) => part[1] !== undefined);
    const [prompt, reply] = turn.tokens || [];
    return el("div", { class: "detail" },
      el("h4", {}, turn.final ? "Answer turn" : `Reading ${turn.name}`, el("small", {},
        [prompt ? ` prompt ${prompt} tokens` : "", reply ? ` reply ${reply} tokens` : ""].filter(Boolean).join(" ·"))),
      (turn.flags || []).map((flag) => el("p", { class: "tag warn" }, flag)),
      parts.length ? el("dl", { class: "rewards" }, parts.map(([name, value]) => el("div", {}, el("dt", {}, name),
        el("dd", {}, name === "advantage" ? signed(value) : number(value))))) : null,
      el("div", { class: "sides" },
        el("div", {}, el("p", { class: "side" }, "What it was shown"), shown),
        el("div", {}, el("p", { class: "side" }, "What it wrote"), wrote)));
  }

  // ---- keys ----

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const inField = event.target.closest("input, select, textarea");
    if (inField) {
      if (event.key === "Escape") {
        inField.blur();
        if (opened.at !== null) close();
      }
      if (event.key === "ArrowDown" && inField === search) { event.preventDefault(); focusRow(0); }
      return;
    }
    const isOpen = opened.at !== null;
    const actions = isOpen ? {
      Escape: close, ArrowLeft: () => turnTo(opened.turn - 1), ArrowRight: () => turnTo(opened.turn + 1),
      Home: () => turnTo(0), End: () => turnTo(Infinity),
      ArrowUp: () => move(-1), k: () => move(-1), ArrowDown: () => move(1), j: () => move(1),
    } : {
      ArrowUp: () => focusRow(focusedRow - 1), k: () => focusRow(focusedRow - 1),
      ArrowDown: () => focusRow(inBody() ? focusedRow + 1 : 0), j: () => focusRow(inBody() ? focusedRow + 1 : 0),
      "/": () => search.focus(),
    };
    if (!isOpen && event.key.startsWith("Arrow") && !inBody()) return; // the page scrolls as ever
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  });
  const inBody = () => body.contains(document.activeElement);

  // ---- the page ----

  listView.append(...curves());
  if (all.length) {
    listView.append(
      el("h2", { id: "trajectories" }, "Trajectories"),
      el("div", { class: "tools", role: "search" }, search,
        several ? select("Agent ", { "": "all", ...Object.fromEntries(data.labels.map((_, at) => [at, agent(at)])) }, "",
          (value) => { filter.source = value; refresh(); }) : null,
        select("Show ", SHOWS, "", (value) => { filter.shows = value; refresh(); }), sortSelect),
      counted,
      el("div", { class: "scroll" }, el("table", {}, el("thead", {}, heads), body)));
    refresh();
  }
  page.append(
    el("header", {}, el("h1", {}, "remem report"), el("p", {}, data.labels.map((_, at) => agent(at)).join(" · ")),
      jump),
    ...data.notes.map((note) => el("p", { class: "note" }, note)), listView, oneView);
  if (!all.length) page.append(el("p", { class: "note" }, "No trajectories were written by this run."));
  document.documentElement.dataset.ready = "yes";
})();
