"use strict";
// Charts, live updates and keys. Without it every page still works; only the charts are missing.
(() => {
  const main = () => document.getElementById("main");
  const standalone = "standalone" in document.body.dataset;

  // Charts.
  const views = new Map();

  const theme = (width) => {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    const font = getComputedStyle(document.body).fontFamily;
    const labels = { labelColor: of("--soft"), titleColor: of("--soft"), labelFont: font, titleFont: font };
    return {
      background: null,
      font,
      view: { stroke: null },
      axis: { ...labels, domainColor: of("--line"), tickColor: of("--line"), gridColor: of("--line"), titleFontWeight: 500, titleFontSize: 11, labelFontSize: 11 },
      legend: { ...labels, orient: "top", direction: "horizontal", layout: { top: { direction: "vertical", anchor: "start", margin: 4 } }, columns: Math.max(2, Math.floor(width / 72)), labelLimit: width - 60, titleFontWeight: 500, titleFontSize: 11, labelFontSize: 11, symbolSize: 60, offset: 4 },
      aria: false,
    };
  };

  let tip;
  const tooltip = (_handler, event, _item, value) => {
    if (!tip) {
      tip = document.createElement("div");
      tip.id = "tip";
      tip.setAttribute("aria-hidden", "true");
      document.body.append(tip);
    }
    tip.hidden = value === null || value === undefined || value === "";
    if (tip.hidden) return;
    tip.replaceChildren(...Object.entries(value).filter(([, text]) => text !== "").map(([name, text]) => {
      const line = document.createElement("div"), label = document.createElement("b");
      label.textContent = name;
      line.append(label, String(text));
      return line;
    }));
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
  };

  // What the browser remembers, for as long as it may.
  const remembered = (name) => {
    try {
      return localStorage.getItem(`wattwise-${name}`);
    } catch {
      return null;
    }
  };
  const remember = (name, value) => {
    try {
      localStorage.setItem(`wattwise-${name}`, value);
    } catch {
      // It holds for this page.
    }
  };

  // Charts by trial have their dates, too; and a file has no other pages.
  let byDate = remembered("axis") === "date";
  const adapted = (spec) => {
    const date = byDate && spec.usermeta && spec.usermeta.date;
    for (const { encoding } of spec.layer) {
      if (date && encoding.x && encoding.x.field === "x") encoding.x = date;
      if (standalone) delete encoding.href;
    }
    return spec;
  };

  const draw = async (holder, force) => {
    const place = document.getElementById(holder.dataset.for), text = holder.dataset.spec;
    // Taken away by an update since the list of charts was made.
    if (!place) return;
    const known = views.get(place.id);
    if (!force && known && known.text === text && known.place === place) return;
    const width = Math.max(160, place.clientWidth);
    const spec = { ...adapted(JSON.parse(text)), width, autosize: { type: "fit-x", contains: "padding" } };
    const compiled = vegaLite.compile(spec, { config: theme(width) }).spec;
    const next = document.createElement("div");
    const view = new vega.View(vega.parse(compiled, null, { ast: true }), {
      expr: vega.expressionInterpreter, renderer: "svg", container: next, hover: true, tooltip: (...all) => tooltip(...all),
    });
    try {
      await view.runAsync();
    } catch (error) {
      view.finalize();
      throw error;
    }
    // An update may have taken the chart away meanwhile.
    if (!place.isConnected) {
      view.finalize();
      return;
    }
    // The old drawing stays until the new one is complete: nothing flickers or moves.
    place.replaceChildren(...next.childNodes);
    for (const svg of place.querySelectorAll("svg")) svg.setAttribute("aria-hidden", "true");
    if (known) known.view.finalize();
    views.set(place.id, { view, text, place, width });
  };
  const forget = (id) => {
    views.get(id).view.finalize();
    views.delete(id);
  };

  const drawEach = async (force) => {
    for (const holder of document.querySelectorAll(".spec")) {
      const id = holder.dataset.for;
      try {
        await draw(holder, force);
      } catch (error) {
        if (views.has(id)) forget(id);
        const place = document.getElementById(id);
        if (place) place.textContent = "This chart cannot be drawn; its table is below.";
        console.warn(String(error));
      }
    }
    for (const [id, { place }] of [...views]) {
      if (!place.isConnected) forget(id);
    }
    document.body.dataset.drawn = "yes";
  };
  // One drawing after the other: two at once would each keep a view of the same chart.
  let drawing = Promise.resolve();
  const drawAll = (force = false) => {
    if (window.vega && window.vegaLite) drawing = drawing.then(() => drawEach(force));
    return drawing;
  };

  let resizing;
  addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => {
      const changed = [...views.values()].some(({ place, width }) => place.isConnected && Math.abs(Math.max(160, place.clientWidth) - width) > 4);
      if (changed) drawAll(true);
    }, 150);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(true));
  addEventListener("beforeprint", () => tip && (tip.hidden = true));

  const axis = () => {
    const holder = document.getElementById("axis");
    if (!holder || !holder.hidden) return;
    holder.hidden = false;
    holder.querySelector(`[value=${byDate ? "date" : "trial"}]`).checked = true;
    holder.addEventListener("change", ({ target }) => {
      byDate = target.value === "date";
      remember("axis", target.value);
      drawAll(true);
    });
  };
  axis();

  if (standalone) {
    drawAll();
    return;
  }

  // Live updates.
  const status = document.getElementById("status"), state = document.getElementById("state"), asOf = document.getElementById("as-of");
  const away = document.getElementById("away"), button = document.getElementById("pause");
  const root = document.body.dataset.root;
  let paused = false, turn = null, live = false, waiting = null, due = 0, busy = false, again = false, lastEnd = 0, pace = 1000;
  let failures = 0, trouble = "";

  const follows = () => "live" in main().dataset;
  const retries = () => "retry" in main().dataset;

  const put = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
  };
  const show = () => {
    const { now } = main().dataset;
    document.body.classList.toggle("stale", trouble !== "");
    away.hidden = trouble === "";
    put(away, trouble && `${trouble} What you see is as of ${now}; ${paused ? "paused" : "retrying"}.`);
    // Screen readers announce the state alone, as often as it changes: the time changes with every update.
    put(state, paused ? "paused" : trouble ? "not updating" : !follows() ? "" : live ? "live" : others ? "connecting" : "every 10 s");
    put(asOf, `data of ${now}`);
    status.className = `status ${trouble ? "stale" : live && !paused ? "live" : ""}`;
  };
  const fresh = () => {
    failures = 0;
    trouble = "";
    show();
  };
  const stale = (why) => {
    failures += 1;
    trouble = why;
    show();
  };

  // A proxy may answer with a page of its own, such as a login: that one must not take the place of ours.
  const middle = (html) => new DOMParser().parseFromString(html, "text/html").querySelector("main#main[data-now]");

  const typed = (control) => {
    if (control.tagName === "SELECT") {
      const usual = [...control.options].findLast((each) => each.defaultSelected) ?? control.options[0];
      return usual !== undefined && !usual.selected;
    }
    return ["INPUT", "TEXTAREA"].includes(control.tagName) && control.value !== control.defaultValue;
  };
  const morph = (next) => {
    Idiomorph.morph(main(), next, {
      morphStyle: "outerHTML",
      ignoreActiveValue: true,
      callbacks: {
        // What the reader has typed or chosen stays, wherever the focus is.
        beforeNodeMorphed: (old) => !(old.nodeType === 1 && ("keep" in old.dataset || typed(old))),
        // What the reader has opened stays open.
        beforeAttributeUpdated: (name, node) => !(name === "open" && node.tagName === "DETAILS"),
      },
    });
  };

  const refresh = async () => {
    waiting = null;
    if (paused || document.hidden) return;
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    try {
      const answer = await fetch(location.href, { headers: { "X-Wattwise-Fragment": "1" }, signal: AbortSignal.timeout(20000), redirect: "follow" });
      if (answer.status === 401) {
        location.assign(`${root}/login?next=${encodeURIComponent(location.pathname.slice(root.length) + location.search)}`);
        return;
      }
      const next = middle(await answer.text());
      if (!next) {
        stale("Something else answers in this page's place; reload it to see what.");
      } else if (answer.status >= 500) {
        stale("The server is away.");
      } else if (!paused && retries()) {
        // The page of an error has neither the scripts nor the title of what was asked for.
        location.reload();
        return;
      } else if (!paused) {
        pace = 1000 * (Number(answer.headers.get("X-Wattwise-Pause")) || 1);
        morph(next);
        fresh();
        if (!follows()) close();
        axis();
        await drawAll();
      }
    } catch {
      stale("This page's own server is away.");
    } finally {
      busy = false;
      lastEnd = performance.now();
      if (failures) later(Math.min(10000, 1000 * 2 ** Math.min(failures, 4)));
      else if (again) later();
      again = false;
    }
  };
  // The page's server says how soon: it has seen what all windows cost.
  const later = (least = pace) => {
    const at = Math.max(performance.now(), lastEnd + least);
    if (waiting && due <= at) return;
    clearTimeout(waiting);
    due = at;
    waiting = setTimeout(refresh, at - performance.now());
  };

  // A browser opens six connections to a host, so that its windows share one stream: the one whose turn it is has the stream,
  // and passes on what it hears. A browser without locks, as without HTTPS on another machine, asks every ten seconds.
  const heard = ({ event, jobs }) => {
    const { job } = main().dataset;
    if (event === "ended") {
      live = false;
      show();
      return;
    }
    if (!live && !failures && event !== "away") fresh();
    live = true;
    show();
    if (event === "login") later(0);
    else if (event === "away" || (event === "change" && (!jobs || job === undefined || jobs.includes(job)))) later();
  };
  const others = "BroadcastChannel" in window && navigator.locks ? new BroadcastChannel(`wattwise ${root}`) : null;
  const tell = (message) => {
    others.postMessage(message);
    heard(message);
  };
  // Until it ends, or this window no longer follows.
  const stream = (over) => new Promise((done) => {
    const source = new EventSource(`${root}/live`);
    const answer = ({ data }) => data.event === "who" && source.readyState === EventSource.OPEN && others.postMessage({ event: "here" });
    const end = () => {
      source.close();
      others.removeEventListener("message", answer);
      tell({ event: "ended" });
      done();
    };
    others.addEventListener("message", answer);
    over.addEventListener("abort", end);
    for (const event of ["change", "away", "login"]) {
      source.addEventListener(event, ({ data }) => tell({ event, jobs: data ? JSON.parse(data) : null }));
    }
    source.onerror = () => {
      close();
      later(failures ? 5000 : 1000);
      setTimeout(open, 5000);
    };
  });
  const open = () => {
    if (turn || paused || document.hidden || !follows() || !others) return;
    turn = new AbortController();
    const { signal } = turn;
    navigator.locks.request(`wattwise ${root}`, { signal }, () => stream(signal)).catch(() => {});
    others.postMessage({ event: "who" });
  };
  const close = () => {
    live = false;
    const ending = turn;
    turn = null;
    if (ending) ending.abort();
  };
  if (others) others.addEventListener("message", ({ data }) => turn && data.event !== "who" && heard(data));
  // Where streams are cut off, by a proxy for example, and for ages such as "5 min ago".
  setInterval(() => {
    if (follows() && performance.now() - lastEnd > (live ? 55000 : 9500)) later();
  }, 10000);

  const pause = () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    if (paused) {
      close();
    } else {
      open();
      later(0);
    }
    show();
  };
  if (follows() || retries()) {
    button.hidden = false;
    button.addEventListener("click", pause);
    if (retries()) stale("The server is away.");
    open();
    if (failures) later(3000);
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) close();
      else {
        open();
        if (performance.now() - lastEnd > 2000) later(0);
      }
    });
    addEventListener("pagehide", close);
    addEventListener("pageshow", (event) => event.persisted && (open(), later(0)));
  }

  // Keys.
  const rows = () => [...document.querySelectorAll("[data-row]")];
  const move = (by) => {
    const all = rows();
    if (!all.length) return;
    const at = all.indexOf(document.activeElement);
    const row = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by))];
    row.focus();
    row.scrollIntoView({ block: "nearest" });
  };
  const tables = () => {
    const all = [...document.querySelectorAll(".chart details")];
    const opening = all.some((each) => !each.open);
    for (const each of all) each.open = opening;
  };
  const keys = {
    "/": () => {
      const box = document.getElementById("q");
      if (box) box.focus();
      else location.assign(`${root}/`);
    },
    j: () => move(1),
    k: () => move(-1),
    t: tables,
    p: () => button.hidden || pause(),
    "?": () => help.showModal(),
  };
  // Speech input and a slip of the hand press single keys, too (WCAG 2.1.4): they can be turned off, in this browser for good.
  const help = document.getElementById("help"), switched = document.getElementById("keys"), helper = document.getElementById("show-help");
  switched.checked = remembered("keys") !== "off";
  switched.addEventListener("change", () => remember("keys", switched.checked ? "on" : "off"));
  helper.hidden = false;
  helper.addEventListener("click", () => help.showModal());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (!switched.checked || event.target.closest("input, textarea, select, dialog")) return;
    const action = keys[event.key];
    if (action) {
      event.preventDefault();
      action();
    }
  });

  drawAll();
})();
