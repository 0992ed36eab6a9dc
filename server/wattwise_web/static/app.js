"use strict";
// Charts, live updates and keys. Without it every page still works; only the charts are missing.
(() => {
  const main = () => document.getElementById("main");
  const standalone = "standalone" in document.body.dataset;

  // Charts.
  const views = new Map();

  const theme = () => {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    const font = getComputedStyle(document.body).fontFamily;
    const labels = { labelColor: of("--soft"), titleColor: of("--soft"), labelFont: font, titleFont: font };
    return {
      background: null,
      font,
      view: { stroke: null },
      axis: { ...labels, domainColor: of("--line"), tickColor: of("--line"), gridColor: of("--line"), titleFontWeight: 500, titleFontSize: 11, labelFontSize: 11 },
      legend: { ...labels, orient: "top", direction: "horizontal", columns: 8, titleFontWeight: 500, titleFontSize: 11, labelFontSize: 11, symbolSize: 60, offset: 4 },
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
    tip.replaceChildren(...Object.entries(value).map(([name, text]) => {
      const line = document.createElement("div"), label = document.createElement("b");
      label.textContent = name;
      line.append(label, String(text));
      return line;
    }));
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
  };

  const draw = async (holder, force) => {
    const place = document.getElementById(holder.dataset.for), text = holder.dataset.spec;
    const known = views.get(place.id);
    if (!force && known && known.text === text && known.place === place) return;
    const width = Math.max(160, place.clientWidth);
    const spec = { ...JSON.parse(text), width, autosize: { type: "fit-x", contains: "padding" } };
    const compiled = vegaLite.compile(spec, { config: theme() }).spec;
    const next = document.createElement("div");
    const view = new vega.View(vega.parse(compiled, null, { ast: true }), {
      expr: vega.expressionInterpreter, renderer: "svg", container: next, hover: true, tooltip: (...all) => tooltip(...all),
    });
    await view.runAsync();
    // The old drawing stays until the new one is complete: nothing flickers or moves.
    place.replaceChildren(...next.childNodes);
    for (const svg of place.querySelectorAll("svg")) svg.setAttribute("aria-hidden", "true");
    if (known) known.view.finalize();
    views.set(place.id, { view, text, place, width });
  };

  const drawAll = async (force = false) => {
    if (!window.vega || !window.vegaLite) return;
    for (const holder of document.querySelectorAll(".spec")) {
      try {
        await draw(holder, force);
      } catch (error) {
        document.getElementById(holder.dataset.for).textContent = "This chart cannot be drawn; its table is below.";
        console.warn(String(error));
      }
    }
    document.body.dataset.drawn = "yes";
  };

  let resizing;
  addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => {
      const changed = [...views.values()].some(({ place, width }) => Math.abs(Math.max(160, place.clientWidth) - width) > 4);
      if (changed) drawAll(true);
    }, 150);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(true));
  addEventListener("beforeprint", () => tip && (tip.hidden = true));

  if (standalone) {
    drawAll();
    return;
  }

  // Live updates.
  const status = document.getElementById("status"), away = document.getElementById("away");
  const button = document.getElementById("pause");
  const root = document.body.dataset.root;
  let paused = false, stream = null, waiting = null, due = 0, busy = false, again = false, lastTook = 0, lastEnd = 0, failures = 0;

  const say = (text, kind) => {
    if (status.textContent !== text) status.textContent = text;
    status.className = `status ${kind}`;
  };
  const fresh = () => {
    failures = 0;
    away.hidden = true;
    document.body.classList.remove("stale");
    say(paused ? `paused, as of ${main().dataset.now}` : `as of ${main().dataset.now}`, paused ? "" : stream ? "live" : "");
  };
  const stale = (why) => {
    failures += 1;
    document.body.classList.add("stale");
    const text = `${why} What you see is as of ${main().dataset.now}; retrying.`;
    if (away.textContent !== text) away.textContent = text;
    away.hidden = false;
    say(`as of ${main().dataset.now}`, "stale");
  };

  const morph = (html) => {
    const next = new DOMParser().parseFromString(html, "text/html").getElementById("main");
    Idiomorph.morph(main(), next, {
      morphStyle: "outerHTML",
      ignoreActiveValue: true,
      callbacks: {
        beforeNodeMorphed: (old) => !(old.nodeType === 1 && "keep" in old.dataset),
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
    const begun = performance.now();
    try {
      const answer = await fetch(location.href, { headers: { "X-Wattwise-Fragment": "1" }, signal: AbortSignal.timeout(20000), redirect: "follow" });
      if (answer.status === 401) {
        location.assign(`${root}/login?next=${encodeURIComponent(location.pathname.slice(root.length) + location.search)}`);
        return;
      }
      if (answer.status >= 500) {
        stale("The server is away.");
      } else if (!paused) {
        morph(await answer.text());
        fresh();
        await drawAll();
      }
    } catch {
      stale("This page's own server is away.");
    } finally {
      busy = false;
      lastEnd = performance.now();
      lastTook = lastEnd - begun;
      if (failures) later(Math.min(10000, 1000 * 2 ** Math.min(failures, 4)));
      else if (again) later();
      again = false;
    }
  };
  // At most once a second, and a twentieth of the time: the server has trainers to answer.
  const later = (least = Math.min(10000, Math.max(1000, 20 * lastTook))) => {
    const at = Math.max(performance.now(), lastEnd + least);
    if (waiting && due <= at) return;
    clearTimeout(waiting);
    due = at;
    waiting = setTimeout(refresh, at - performance.now());
  };

  const watched = () => main().dataset.watch;
  const open = () => {
    if (stream || paused || document.hidden || !watched() || watched() === "retry") return;
    const id = watched() === "all" ? "" : `?id=${encodeURIComponent(watched())}`;
    let first = true;
    stream = new EventSource(`${root}/live${id}`);
    stream.addEventListener("change", () => {
      // The first event says that the stream works; what changed since the page was made comes with the next refresh.
      if (first && !failures) fresh();
      later();
      first = false;
    });
    stream.addEventListener("away", () => later());
    stream.addEventListener("login", () => later(0));
    stream.onerror = () => {
      close();
      later(failures ? 5000 : 1000);
      setTimeout(open, 5000);
    };
  };
  const close = () => {
    if (stream) stream.close();
    stream = null;
  };
  // Where streams are cut off, by a proxy for example, and for ages such as "5 min ago".
  setInterval(() => {
    if (watched() && performance.now() - lastEnd > (stream ? 55000 : 9500)) later(0);
  }, 10000);

  const pause = () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    button.textContent = paused ? "Resume" : "Pause";
    if (paused) {
      close();
      fresh();
    } else {
      open();
      later(0);
    }
  };
  if (watched()) {
    button.hidden = false;
    button.addEventListener("click", pause);
    if (watched() === "retry") stale("The server is away.");
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
    p: () => watched() && pause(),
    "?": () => document.getElementById("help").showModal(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.target.closest("input, textarea, select, dialog")) return;
    const action = keys[event.key];
    if (action) {
      event.preventDefault();
      action();
    }
  });

  drawAll();
})();
