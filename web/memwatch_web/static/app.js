"use strict";

// The server renders all content. This script detects stale data and draws the chart.

(() => {
  const live = document.getElementById("live");
  const banner = document.getElementById("stale-banner");
  const announcement = document.getElementById("announcement");
  const icon = document.getElementById("icon");
  const up = document.documentElement.dataset.up;
  const subject = live.dataset.subject ? `${live.dataset.subject} · ` : "";
  const page = new URLSearchParams(live.getAttribute("hx-sse:connect").split("?")[1]).get("page");

  const STALE_INTERVALS = 2.5; // with one sample a second and a check every 250 ms: stale within 3 s
  const MIN_STALE_SECONDS = 2; // under pressure there are ten samples a second; a page may lag a little
  const RETRY_SECONDS = 5;

  const now = () => performance.now() / 1000;
  const read = (root) => JSON.parse(root.querySelector("#latest").textContent);
  const timeOfDay = (unix) => new Date(unix * 1000).toLocaleTimeString([], { hourCycle: "h23" });

  let latest = read(document);
  let freshAt = now() - Number(document.body.dataset.stalledSeconds ?? 0);
  let retriedAt = now();
  let connection = null;
  let titles = null;
  let stale = null;

  // The server sends UTC. Show times in the browser's time zone, with the date if it is not today.
  function localise(root) {
    const today = new Date().toDateString();
    for (const time of root.querySelectorAll("time")) {
      const date = new Date(time.dateTime);
      const day = date.toDateString() === today ? "" : `${date.toLocaleDateString([], { day: "numeric", month: "short" })}, `;
      time.textContent = day + timeOfDay(date / 1000);
    }
  }

  function announceLevel(before, after) {
    if (before.level === after.level) return;
    announcement.textContent = after.verdict;
    document.dispatchEvent(new CustomEvent("memwatch:level", { detail: after }));
  }

  function showTitle() {
    document.title = (stale ? "stale · " : "") + subject + latest.title;
    icon.href = `${up}static/icon-${stale ? "stale" : latest.level}.svg`;
  }

  function accept(next) {
    if (next.seq === latest.seq && next.unix === latest.unix) return; // a repeated sample does not count as fresh data
    const gap = now() - freshAt;
    announceLevel(latest, next);
    latest = next;
    freshAt = now();
    showTitle();
    chart?.add(next, gap);
  }

  function look() {
    const quiet = now() - freshAt;
    const limit = Math.max(STALE_INTERVALS * latest.interval_seconds, MIN_STALE_SECONDS);
    const isStale = quiet > limit;
    if (isStale) {
      banner.textContent = `No new data for ${duration(quiet)}. Showing data from ${timeOfDay(latest.unix)}.`;
      reconnect();
    }
    if (isStale !== stale) {
      stale = isStale;
      document.body.classList.toggle("stale", stale);
      banner.hidden = !stale;
      showTitle();
    }
  }

  function duration(seconds) {
    if (seconds < 120) return `${Math.round(seconds)} s`;
    return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
  }

  // A stream may be dead without being closed (suspend, unplugged cable), or refused and not retried by htmx.
  function reconnect() {
    if (now() - retriedAt < RETRY_SECONDS) return;
    retriedAt = now();
    if (document.hidden) {
      openTitles();
      return;
    }
    connection?.reader?.cancel();
    htmx.trigger(live, "reconnect");
  }

  // A hidden page follows only what its title and notifications need.
  function openTitles() {
    titles?.close();
    titles = new EventSource(`${up}live?page=title`);
    titles.addEventListener("title", (event) => accept(JSON.parse(event.data)));
  }

  function followVisibility() {
    if (document.hidden) {
      connection?.reader?.cancel();
      openTitles();
      return;
    }
    titles?.close();
    titles = null;
    htmx.trigger(live, "reconnect");
  }

  document.addEventListener("visibilitychange", followVisibility);

  document.addEventListener("htmx:sse:before:connection", (event) => {
    if (document.hidden) event.detail.connection.cancelled = true;
  });

  document.addEventListener("htmx:sse:after:connection", (event) => {
    connection = event.detail.connection;
  });

  // Events are named after their page; htmx swaps only events without a name.
  document.addEventListener("htmx:sse:before:message", (event) => {
    if (event.detail.message.event === page) event.detail.message.event = "";
  });

  document.addEventListener("htmx:before:swap", (event) => {
    const fragment = event.detail.tasks[0]?.fragment;
    if (!fragment?.querySelector("#latest")) {
      event.preventDefault(); // not a fragment of memwatchd: an error page, a login form of a proxy
      return;
    }
    localise(fragment);
    accept(read(fragment));
  });

  // ---- the chart ----

  const SPANS = [[600, "10 min"], [1800, "30 min"], [3600, "1 h"]];
  const LONGEST = SPANS[SPANS.length - 1][0];
  const MAX_TARGETS = 20; // limit of one history request
  const STEP_SECONDS = 1;
  const HEIGHT = 240;
  const COLOURS = 6;

  const percent = (ratio) => (ratio == null ? "—" : `${(ratio * 100).toFixed(1)}%`);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const keyOf = (tick) => tick.targets.slice(0, MAX_TARGETS).map((target) => target.id).join();

  class Chart {
    constructor(box, spans) {
      this.box = box;
      this.span = SPANS[0][0];
      this.key = "";
      this.data = null;
      this.plot = null;
      this.drawnAt = 0;
      this.plotBox = document.createElement("div");
      this.readout = document.createElement("p");
      this.readout.className = "readout";
      box.replaceChildren(this.readout, this.plotBox);
      this.offerSpans(spans);
      new ResizeObserver(() => this.plot?.setSize({ width: box.clientWidth, height: HEIGHT })).observe(box);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.build());
      document.addEventListener("visibilitychange", () => this.draw());
      this.load();
    }

    offerSpans(slot) {
      for (const [seconds, label] of SPANS) {
        const button = document.createElement("button");
        button.type = "button";
        button.className = "span";
        button.textContent = label;
        button.setAttribute("aria-pressed", seconds === this.span);
        button.addEventListener("click", () => {
          this.span = seconds;
          for (const other of slot.children) other.setAttribute("aria-pressed", other === button);
          this.draw(true);
        });
        slot.append(button);
      }
    }

    async load() {
      this.targets = latest.targets.slice(0, MAX_TARGETS);
      this.key = keyOf(latest);
      this.data = this.empty();
      this.stepBegan = 0;
      if (this.targets.length) {
        const names = this.targets.map((target) => `pressure.${target.id}.ratio`);
        const query = new URLSearchParams({ series: names.join(), from: latest.unix - LONGEST, points: 1200 });
        try {
          const answer = await fetch(`${up}api/v1/history?${query}`);
          if (answer.ok) this.take(await answer.json(), names);
        } catch {
          // Without history the chart starts empty. The banner shows a lost connection.
        }
      }
      this.build();
      this.push(latest);
      this.draw(true);
    }

    empty() {
      return [[], ...this.targets.flatMap(() => [[], [], []])];
    }

    take(history, names) {
      const tables = names.map((name) => {
        const one = history.series.find((series) => series.name === name);
        return [one.unix, one.min, one.max, one.avg];
      });
      this.data = uPlot.join(tables).map((column) => Array.from(column));
    }

    add(tick, gap) {
      const clockWentBack = tick.unix < this.data[0].at(-1) - STEP_SECONDS;
      if (keyOf(tick) !== this.key || clockWentBack || gap > 10 * tick.interval_seconds + 10) {
        this.load();
        return;
      }
      this.push(tick);
      this.draw();
    }

    push(tick) {
      const unix = this.data[0];
      const last = unix.length - 1;
      const ratios = this.targets.map((one) => tick.targets.find((target) => target.id === one.id)?.ratio ?? null);
      if (last >= 0 && tick.unix <= unix[last]) return;
      if (tick.unix - this.stepBegan < STEP_SECONDS * 0.9) this.widen(last, tick.unix, ratios);
      else this.append(tick, ratios, last);
      while (unix[0] < tick.unix - LONGEST - 60) for (const column of this.data) column.shift();
    }

    append(tick, ratios, last) {
      const unix = this.data[0];
      if (last >= 0 && tick.unix - unix[last] > Math.max(2.5 * tick.interval_seconds, 10)) {
        this.data.forEach((column, index) => column.push(index ? null : unix[last] + tick.interval_seconds));
      }
      this.stepBegan = tick.unix;
      unix.push(tick.unix);
      ratios.forEach((ratio, index) => {
        for (let column = 1; column <= 3; column++) this.data[3 * index + column].push(ratio);
      });
    }

    // Samples in the same step keep their minimum and maximum, so that no spike is averaged away.
    widen(last, unix, ratios) {
      this.data[0][last] = unix;
      ratios.forEach((ratio, index) => {
        const [least, most, mean] = this.data.slice(3 * index + 1, 3 * index + 4);
        if (ratio === null || least[last] === null) return;
        least[last] = Math.min(least[last], ratio);
        most[last] = Math.max(most[last], ratio);
        mean[last] = ratio;
      });
    }

    draw(atOnce = false) {
      if (!this.plot || document.hidden || (!atOnce && now() - this.drawnAt < 0.25)) return;
      this.drawnAt = now();
      const end = latest.unix;
      this.plot.setData(this.data, false);
      this.plot.setScale("x", { min: end - this.span, max: end });
      this.showValues(null);
    }

    showValues(index) {
      const at = index ?? this.data[0].length - 1;
      if (at < 0) return;
      this.readout.replaceChildren(timeOfDay(this.data[0][at]), ...this.targets.map((target, number) => {
        const item = document.createElement("span");
        const key = document.createElement("i");
        const figure = document.createElement("b");
        key.className = "key";
        key.style.background = css(`--series-${(number % COLOURS) + 1}`);
        const [least, most, mean] = [1, 2, 3].map((column) => this.data[3 * number + column][at]);
        const spread = most - least > 0.01 ? ` (${percent(least)} to ${percent(most)})` : "";
        figure.textContent = percent(mean);
        item.append(key, `${target.label} `, figure, spread);
        return item;
      }));
    }

    build() {
      this.plot?.destroy();
      this.plot = new uPlot(this.options(), this.data, this.plotBox);
      const labels = this.targets.map((target) => target.label).join(", ");
      this.plotBox.setAttribute("role", "img");
      this.plotBox.setAttribute("aria-label", `Memory usage of ${labels} over time, in percent, with threshold lines`);
    }

    options() {
      const grid = { stroke: css("--line"), width: 1 };
      const axis = { stroke: css("--muted"), font: "12px system-ui, sans-serif", grid, ticks: { show: false } };
      return {
        width: this.box.clientWidth,
        height: HEIGHT,
        padding: [8, 20, 0, 0],
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false } },
        scales: { x: { time: true }, y: { range: [0, 1] } },
        axes: [
          { ...axis, size: 28, space: 90, values: (_, times) => times.map((unix) => timeOfDay(unix).slice(0, 5)) },
          { ...axis, size: 46, splits: () => [0, 0.2, 0.4, 0.6, 0.8, 1], values: (_, all) => all.map((one) => `${Math.round(one * 100)}%`) },
        ],
        series: [{}, ...this.targets.flatMap((_, index) => this.seriesOf(index))],
        bands: this.targets.map((_, index) => this.bandOf(index)),
        hooks: { drawAxes: [(plot) => this.drawLevels(plot)], setCursor: [(plot) => this.showValues(plot.cursor.idx)] },
      };
    }

    seriesOf(index) {
      const stroke = css(`--series-${(index % COLOURS) + 1}`);
      const edge = { stroke: "transparent", width: 0, points: { show: false } };
      const dash = index >= COLOURS ? [6, 3] : undefined;
      return [edge, edge, { stroke, width: 2, dash, points: { show: false } }];
    }

    bandOf(index) {
      const first = 3 * index + 1;
      return { series: [first + 1, first], fill: `${css(`--series-${(index % COLOURS) + 1}`)}40` };
    }

    drawLevels(plot) {
      const { ctx, bbox } = plot;
      ctx.save();
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
      ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
      ctx.textAlign = "left";
      ctx.textBaseline = "bottom";
      for (const [level, threshold] of Object.entries(latest.thresholds)) {
        const y = Math.round(plot.valToPos(threshold, "y", true)) + 0.5;
        ctx.strokeStyle = ctx.fillStyle = css(`--${level}`);
        ctx.beginPath();
        ctx.moveTo(bbox.left, y);
        ctx.lineTo(bbox.left + bbox.width, y);
        ctx.stroke();
        ctx.fillText(level, bbox.left + 6 * devicePixelRatio, y - 2 * devicePixelRatio);
      }
      ctx.restore();
    }
  }

  const box = document.getElementById("chart");
  const chart = box && new Chart(box, document.getElementById("spans"));

  localise(live);
  if (document.hidden) openTitles();
  look();
  setInterval(look, 250);
})();
