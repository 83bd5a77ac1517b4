"use strict";

// The chart of the history: the composition of a pool as a stack, or curves with min/max bands, over
// level and gap shading, with event annotations above and the forecast to the right.

const PastChart = (() => {
  const HEIGHT = 232;
  const PAPER_WIDTH = 680; // of A4 and Letter within margins and card; styles scale it to the page
  const HEAD = 22; // above the plot, for the labels of annotations
  const STRIPS = { medium: 4, high: 7, critical: 11 }; // the height of a strip shows its level without colour
  const LOUD = new Set(["oom_kill", "driver"]);
  const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const OVERHEAD = 1.09; // keep a full curve out of the level strip
  const DAY = 86400;
  const MOST_AHEAD = 0.14; // of the range
  const LEAST_SPREAD = 0.005; // of the height: a smaller band is not visible
  const LONGEST_NOW = 10; // seconds of the last interval
  const NO_DATA = "no data";
  const SVG = document.querySelector("svg").namespaceURI; // of the logo
  const HATCHED = "reclaimable";

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const dense = () => devicePixelRatio;
  const font = (size) => `${size * dense()}px system-ui, sans-serif`;

  const rank = ({ kind }) => (LOUD.has(kind) ? 0 : kind === "mark" ? 1 : 2);

  const shortened = (word, most) => (word.length > most ? `${word.slice(0, most - 1)}…` : word);

  function size(bytes, digits = 1) {
    if (bytes < 1024) return `${Math.round(bytes)} B`;
    const power = Math.min(Math.floor(Math.log2(bytes) / 10 + 1e-9), BINARY.length - 1);
    return `${(bytes / 1024 ** power).toFixed(digits)} ${BINARY[power]}`;
  }

  function words(value, unit) {
    if (value == null) return "—";
    if (unit === "bytes") return size(value);
    if (unit === "ratio") return `${(value * 100).toFixed(1)}%`;
    return unit === "seconds" ? `${Number(value.toPrecision(4))} s` : String(Number(value.toPrecision(4)));
  }

  function mark(value, unit) {
    if (unit === "bytes") return size(value, 0) === size(value).replace(".0 ", " ") ? size(value, 0) : size(value);
    return unit === "ratio" ? `${Math.round(value * 100)}%` : words(value, unit);
  }

  // Binary steps for sizes: 0, 32, 64 GiB, not 0, 27.9, 55.9.
  function splits(top, unit) {
    if (unit === "ratio" && top === 1) return [0, 0.2, 0.4, 0.6, 0.8, 1];
    const step = unit === "bytes" ? 2 ** Math.ceil(Math.log2(top / 5)) : niceStep(top / 5);
    const marks = Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, index) => index * step);
    return top - marks.at(-1) > step * 0.45 ? [...marks, top] : marks;
  }

  function rect(holder, start, width) {
    const part = document.createElementNS(SVG, "rect");
    part.setAttribute("class", `use hold-${holder}`);
    part.setAttribute("x", `${(start * 100).toFixed(3)}%`);
    part.setAttribute("width", `${(width * 100).toFixed(3)}%`);
    part.setAttribute("height", "16");
    return part;
  }

  function strong(text) {
    const element = document.createElement("b");
    element.textContent = text;
    return element;
  }

  function niceStep(least) {
    const power = 10 ** Math.floor(Math.log10(least));
    return power * [1, 2, 5, 10].find((factor) => power * factor >= least * 0.999);
  }

  function clock(unix, step) {
    const date = new Date(unix * 1000);
    const midnight = date.getHours() === 0 && date.getMinutes() === 0 && date.getSeconds() === 0;
    if (step >= DAY || midnight) return date.toLocaleDateString([], { day: "numeric", month: "short" });
    const time = date.toLocaleTimeString([], { hourCycle: "h23" });
    return step < 60 ? time : time.slice(0, 5);
  }

  class Chart {
    // `pick(from, to)` is called with the time range of a drag.
    constructor(box, pick) {
      this.box = box;
      this.pick = pick;
      this.legend = () => document.getElementById(`past-legend-${box.dataset.chart}`);
      this.at = box.parentElement.querySelector(".past-at");
      this.moments = box.parentElement.querySelector(".moment");
      new ResizeObserver(() => this.plot?.setSize({ width: this.width(), height: HEIGHT })).observe(box);
      // A canvas keeps its colours and its width on paper.
      window.addEventListener("beforeprint", () => this.print(true));
      window.addEventListener("afterprint", () => this.print(false));
      document.addEventListener("memwatch:theme", () => this.past && this.show(this.past));
    }

    print(starts) {
      document.documentElement.toggleAttribute("data-printing", starts);
      if (this.past) this.show(this.past);
    }

    width() {
      return document.documentElement.hasAttribute("data-printing") ? PAPER_WIDTH : this.box.clientWidth;
    }

    show(past) {
      this.past = past;
      this.chart = past.charts.find((one) => one.id === this.box.dataset.chart);
      const mine = past.flags.filter((flag) => flag.kind !== "level" || flag.chart === this.chart.id);
      this.flags = mine.sort((one, other) => rank(one) - rank(other)); // if labels collide, the first one is drawn
      this.unpack();
      this.layers = (this.chart.stack?.layers ?? []).filter((layer) => layer.values.some((value) => value > 0));
      const { curves } = this.chart;
      this.data = uPlot.join(curves.map((curve) => [curve.unix, curve.min, curve.max, curve.avg]));
      const highest = Math.max(0, ...curves.flatMap((curve) => curve.max));
      this.top = Math.max(this.chart.top ?? highest * 1.08, highest) || 1;
      this.plot?.destroy();
      this.box.replaceChildren();
      this.plot = new uPlot(this.options(), this.data, this.box);
      this.showMoment(null);
    }

    // To be short, the stack comes in MiB, at the times of the curve of use, and curves at the times of the first one
    // of all charts.
    unpack() {
      const { stack, curves } = this.chart;
      for (const curve of curves) {
        curve.unix ??= this.past.charts.find((chart) => chart.curves.length).curves[0].unix;
        curve.min ??= curve.avg.map((mean, at) => (mean == null ? null : mean - curve.below[at]));
        curve.max ??= curve.avg.map((mean, at) => (mean == null ? null : mean + curve.above[at]));
      }
      if (!stack || stack.unix) return;
      stack.unix = [...curves.find((curve) => curve.name === `pool.${this.chart.id}.used_bytes`).unix];
      for (const layer of stack.layers) layer.values = layer.values.map((value) => (value == null ? null : value * 2 ** 20));
    }

    // A live range has room for the forecasts of its charts, as far as they reach.
    rightEdge() {
      const { start, end, live, charts } = this.past;
      const farthest = Math.max(...charts.map((one) => (one.stack ? one.seconds_to_full ?? 0 : 0)));
      const room = Math.min(MOST_AHEAD, (farthest * 1.25) / (end - start));
      return live ? end + (end - start) * room : end;
    }

    options() {
      const { unit, curves } = this.chart;
      const grid = { stroke: css("--line"), width: 1 };
      const axis = { stroke: css("--muted"), font: "12px system-ui, sans-serif", grid, ticks: { show: false } };
      return {
        width: this.width(),
        height: HEIGHT,
        padding: [HEAD, 14, 0, 0],
        legend: { show: false },
        cursor: {
          y: false,
          drag: { x: true, y: false, setScale: false },
          bind: { dblclick: () => null },
          dataIdx: (plot, _, index, unix) => (this.isNear(index, unix) ? index : null),
          sync: { key: "past", filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
        },
        scales: { x: { time: true, range: () => [this.past.start, this.rightEdge()] }, y: { range: [0, this.top * OVERHEAD] } },
        axes: [
          { ...axis, size: 24, space: 80, values: (_, times, __, ___, step) => times.map((unix) => this.label(unix, step)) },
          { ...axis, size: 62, splits: () => splits(this.top, unit), values: (_, all) => all.map((one) => mark(one, unit)) },
        ],
        series: [{}, ...curves.flatMap((curve, index) => this.seriesOf(curve, index))],
        bands: curves.map((curve, index) => this.bandOf(curve, 3 * index + 1)),
        hooks: {
          drawClear: [(plot) => this.drawBehind(plot)],
          draw: [(plot) => this.drawOver(plot)],
          setCursor: [(plot) => this.showValues(plot)],
          setSelect: [(plot) => this.take(plot)],
        },
      };
    }

    // Without a label at the right edge, which would be cut off.
    label(unix, step) {
      const { start } = this.past;
      const edge = this.rightEdge();
      return ((edge - unix) / (edge - start)) * this.width() < 12 ? "" : clock(unix, step);
    }

    // The first curve is wider, so that it stays visible under a share of the same size.
    seriesOf(curve, index) {
      const edge = { stroke: "transparent", width: 0, points: { show: false } };
      const stroke = this.layers.length && !index ? css("--edge") : css(`--series-${curve.colour}`);
      return [edge, edge, { stroke, width: index ? 1.5 : 2.2, dash: curve.dash, points: { show: false } }];
    }

    bandOf(curve, first) {
      return { series: [first + 1, first], fill: `${css(`--series-${curve.colour}`)}40` };
    }

    take(plot) {
      const { left, width } = plot.select;
      if (width < 6) return;
      const [from, to] = [left, left + width].map((x) => plot.posToVal(x, "x"));
      plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      this.pick(from, to);
    }

    // In a gap the nearest point belongs to another time.
    isNear(index, unix) {
      return Math.abs(this.data[0][index] - unix) < 2 * this.past.grain_seconds;
    }

    // Show the values under the pointer, or the latest ones.
    showValues(plot) {
      const { left, idx } = plot.cursor;
      const unix = left >= 0 ? plot.posToVal(left, "x") : null;
      const isNear = unix !== null && idx != null && this.isNear(idx, unix);
      if (this.at) this.at.textContent = unix === null ? "" : this.moment(isNear ? this.data[0][idx] : unix);
      this.showMoment(unix);
      if (!this.legend()) return;
      this.legend().querySelectorAll("b").forEach((figure, number) => {
        figure.dataset.last ??= figure.textContent;
        figure.textContent = unix === null ? figure.dataset.last : isNear ? this.spread(number, idx) : "—";
      });
    }

    spread(number, index) {
      const [least, most, mean] = [1, 2, 3].map((column) => this.data[3 * number + column][index]);
      const [low, middle, high] = [least, mean, most].map((value) => words(value, this.chart.unit));
      if (most - least <= this.top * LEAST_SPREAD) return middle;
      const unit = middle.match(/[^\d.,]*$/)[0];
      const [from, to] = [low, high].map((word) => (unit && word.endsWith(unit) ? word.slice(0, -unit.length) : word));
      return `${middle} (${from} – ${to})`;
    }

    moment(unix) {
      const { start, end } = this.past;
      const year = new Date(start * 1000).getFullYear() === new Date().getFullYear() ? undefined : "numeric";
      const day = year || end - start > DAY / 2 ? { day: "numeric", month: "short", year } : {};
      return new Date(unix * 1000).toLocaleString([], { ...day, hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
    }

    // The map of the moment under the pointer, or of the latest one.
    showMoment(unix) {
      if (!this.moments || !this.layers.length) return;
      const { stack, top } = this.chart;
      const at = this.nearest(unix ?? Infinity);
      const known = at >= 0 && (unix === null || Math.abs(stack.unix[at] - unix) < 2 * Math.max(this.past.grain_seconds, 2));
      const bar = document.createElementNS(SVG, "svg");
      bar.setAttribute("width", "100%");
      bar.setAttribute("height", "16");
      bar.setAttribute("class", "moment-bar");
      const words = document.createElement("p");
      let left = 0;
      let used = 0;
      const facts = [];
      for (const layer of this.layers) {
        const value = known ? layer.values[at] : null;
        if (value == null) continue;
        bar.append(rect(layer.holder, left / top, value / top));
        left += value;
        if (layer.holder !== HATCHED) used += value;
        facts.push([layer.holder, `${layer.label} `, size(value)]);
      }
      const when = known ? this.moment(stack.unix[at]) : unix ? this.moment(unix) : "";
      words.append(`${unix === null && this.endsNow() ? "now" : when} `, strong(facts.length ? `${((used / top) * 100).toFixed(1)}% used` : NO_DATA));
      for (const [holder, label, value] of facts) {
        const swatch = document.createElement("i");
        swatch.className = `swatch hold-${holder}`;
        const item = document.createElement("span");
        item.append(swatch, label, strong(value));
        words.append(item);
      }
      this.moments.replaceChildren(bar, words);
    }

    // A fixed range ends in the past, and the last value of a long range is a mean.
    endsNow() {
      return this.past.live && this.past.grain_seconds <= LONGEST_NOW;
    }

    nearest(unix) {
      const times = this.chart.stack.unix;
      let [low, high] = [0, times.length - 1];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (times[middle] < unix) low = middle + 1;
        else high = middle;
      }
      if (low > 0 && unix - times[low - 1] < times[low] - unix) low -= 1;
      return low;
    }

    drawBehind(plot) {
      const { ctx } = plot;
      ctx.save();
      for (const [start, end] of this.past.gaps) this.drawGap(plot, start, end);
      if (!this.layers.length) for (const [start, end, level] of this.chart.runs) this.drawLevel(plot, start, end, level);
      this.drawStack(plot);
      ctx.restore();
    }

    // The layers from the bottom. A gap ends a piece.
    drawStack(plot) {
      const { ctx, bbox } = plot;
      if (!this.layers.length) return;
      const { unix } = this.chart.stack;
      const base = new Array(unix.length).fill(0);
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      const x = unix.map((one) => plot.valToPos(one, "x", true));
      const y = (value) => plot.valToPos(value, "y", true);
      for (const layer of this.layers) {
        ctx.fillStyle = layer.holder === HATCHED ? this.hatch(ctx) : css(`--${layer.holder}`);
        for (const [from, to] of this.pieces(layer)) {
          ctx.beginPath();
          for (let at = from; at <= to; at++) ctx.lineTo(x[at], y(base[at] + layer.values[at]));
          for (let at = to; at >= from; at--) ctx.lineTo(x[at], y(base[at]));
          ctx.fill();
        }
        layer.values.forEach((value, at) => { base[at] += value ?? 0; });
      }
      ctx.restore();
    }

    pieces(layer) {
      const found = [];
      const { unix } = this.chart.stack;
      const longest = 3 * Math.max(this.past.grain_seconds, 2);
      let from = -1;
      layer.values.forEach((value, at) => {
        const ends = value == null || (at > 0 && unix[at] - unix[at - 1] > longest);
        if (ends && from >= 0) found.push([from, at - 1]);
        if (value == null) from = -1;
        else if (ends || from < 0) from = at;
      });
      if (from >= 0) found.push([from, layer.values.length - 1]);
      return found;
    }

    hatch(ctx) {
      const tile = document.createElement("canvas");
      tile.width = tile.height = 8 * dense();
      const pen = tile.getContext("2d");
      pen.fillStyle = css("--free");
      pen.fillRect(0, 0, tile.width, tile.height);
      pen.strokeStyle = css("--reclaimable");
      pen.lineWidth = 2 * dense();
      pen.beginPath();
      for (const shift of [-1, 0, 1]) {
        pen.moveTo((shift - 0.25) * tile.width, 1.25 * tile.height);
        pen.lineTo((shift + 1.25) * tile.width, -0.25 * tile.height);
      }
      pen.stroke();
      return ctx.createPattern(tile, "repeat");
    }

    // The latest value of the curve of use.
    lastUse() {
      const number = this.chart.curves.findIndex((curve) => curve.name === `pool.${this.chart.id}.used_bytes`);
      return this.data[3 * number + 3]?.findLast((value) => value != null);
    }

    // Dotted from now to the end of the memory, with the time of day at which it is full.
    drawForecast(plot) {
      const { seconds_to_full: seconds, top } = this.chart;
      const { now, live } = this.past;
      const used = this.lastUse();
      if (!live || seconds == null || used == null) return;
      const { ctx, bbox } = plot;
      const end = Math.min(now + seconds, this.rightEdge());
      const reached = used + (top - used) * Math.min(1, (end - now) / Math.max(seconds, 1e-9));
      const [x0, y0] = [plot.valToPos(now, "x", true), plot.valToPos(used, "y", true)];
      const [x1, y1] = [plot.valToPos(end, "x", true), plot.valToPos(reached, "y", true)];
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = css("--critical");
      ctx.lineWidth = 2 * dense();
      ctx.setLineDash([2 * dense(), 3 * dense()]);
      ctx.beginPath();
      ctx.moveTo(x0, y0);
      ctx.lineTo(x1, y1);
      ctx.stroke();
      ctx.font = `650 ${font(12)}`;
      ctx.textAlign = "right";
      ctx.textBaseline = "top";
      ctx.strokeStyle = css("--card");
      ctx.lineWidth = 4 * dense();
      ctx.setLineDash([]);
      const label = `full ${new Date((now + seconds) * 1000).toLocaleTimeString([], { hourCycle: "h23" })}`;
      const [right, line] = [bbox.left + bbox.width - 2 * dense(), Math.max(bbox.top + 16 * dense(), Math.min(y0, y1) + 20 * dense())];
      ctx.strokeText(label, right, line);
      ctx.fillText(label, right, line);
      ctx.restore();
    }

    // The end of the memory, and the thresholds of its levels.
    drawWall(plot) {
      const { ctx, bbox } = plot;
      ctx.save();
      ctx.setLineDash([5 * dense(), 4 * dense()]);
      for (const [level, threshold] of Object.entries(this.past.thresholds ?? {})) {
        const y = Math.round(plot.valToPos(threshold * this.chart.top, "y", true)) + 0.5;
        ctx.beginPath();
        ctx.moveTo(bbox.left, y);
        ctx.lineTo(bbox.left + bbox.width, y);
        ctx.setLineDash([]);
        ctx.strokeStyle = css("--card");
        ctx.globalAlpha = 0.6;
        ctx.lineWidth = 3 * dense();
        ctx.stroke();
        ctx.globalAlpha = 1;
        ctx.setLineDash([5 * dense(), 4 * dense()]);
        ctx.strokeStyle = css(`--${level}`);
        ctx.lineWidth = 1.2 * dense();
        ctx.stroke();
      }
      const y = Math.round(plot.valToPos(this.chart.top, "y", true)) + 0.5;
      ctx.setLineDash([]);
      ctx.strokeStyle = css("--limit");
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
      ctx.restore();
    }

    // Left edge and width on the canvas of the visible part of a time range.
    place(plot, start, end) {
      const { left, width } = plot.bbox;
      const [from, to] = [start, end].map((unix) => Math.min(left + width, Math.max(left, plot.valToPos(unix, "x", true))));
      return [from, to - from];
    }

    drawGap(plot, start, end) {
      const { ctx, bbox } = plot;
      const [left, width] = this.place(plot, start, end);
      if (width < 1) return;
      ctx.save();
      ctx.beginPath();
      ctx.rect(left, bbox.top, width, bbox.height);
      ctx.clip();
      ctx.fillStyle = css("--sunken");
      ctx.fillRect(left, bbox.top, width, bbox.height);
      ctx.strokeStyle = css("--line");
      ctx.lineWidth = 2 * dense();
      ctx.beginPath();
      for (let x = left - bbox.height; x < left + width; x += 9 * dense()) {
        ctx.moveTo(x, bbox.top + bbox.height);
        ctx.lineTo(x + bbox.height, bbox.top);
      }
      ctx.stroke();
      ctx.restore();
    }

    // Drawn over the grid, so that no grid line crosses the label.
    drawGapWords(plot, start, end) {
      const { ctx, bbox } = plot;
      const [left, width] = this.place(plot, start, end);
      const wide = ctx.measureText(NO_DATA).width + 12 * dense();
      if (width < wide) return;
      const [middle, line] = [left + width / 2, bbox.top + bbox.height / 2];
      ctx.textAlign = "center";
      ctx.textBaseline = "middle";
      ctx.fillStyle = css("--sunken");
      ctx.fillRect(middle - wide / 2, line - 10 * dense(), wide, 20 * dense());
      ctx.fillStyle = css("--muted");
      ctx.fillText(NO_DATA, middle, line);
    }

    drawLevel(plot, start, end, level) {
      const { ctx, bbox } = plot;
      const [left, width] = this.place(plot, start, end);
      if (width <= 0) return;
      ctx.fillStyle = css(`--${level}-soft`);
      ctx.fillRect(left, bbox.top, Math.max(width, 1.5 * dense()), bbox.height);
    }

    // The height and the label of a strip show its level without colour.
    drawStrip(plot, start, end, level) {
      const { ctx, bbox } = plot;
      const [left, width] = this.place(plot, start, end);
      if (width <= 0) return;
      const strip = STRIPS[level] * dense();
      ctx.fillStyle = css(`--${level}`);
      ctx.fillRect(left, bbox.top, Math.max(width, 1.5 * dense()), strip);
      const wide = ctx.measureText(level).width + 8 * dense();
      if (width < 1.5 * wide) return;
      const middle = left + width / 2;
      ctx.strokeStyle = css("--card"); // an outline, so that the curve below stays visible
      ctx.lineWidth = 3 * dense();
      ctx.strokeText(level, middle, bbox.top + strip + 2 * dense());
      ctx.fillStyle = css(`--${level}`);
      ctx.fillText(level, middle, bbox.top + strip + 2 * dense());
    }

    drawThresholds(plot) {
      const { ctx, bbox } = plot;
      ctx.textBaseline = "bottom";
      ctx.textAlign = "left";
      ctx.setLineDash([5 * dense(), 4 * dense()]);
      for (const [level, threshold] of Object.entries(this.past.thresholds)) {
        const y = Math.round(plot.valToPos(threshold, "y", true)) + 0.5;
        ctx.strokeStyle = ctx.fillStyle = css(`--${level}`);
        ctx.beginPath();
        ctx.moveTo(bbox.left, y);
        ctx.lineTo(bbox.left + bbox.width, y);
        ctx.stroke();
        ctx.fillText(level, bbox.left + 5 * dense(), y - dense());
      }
      ctx.setLineDash([]);
    }

    drawOver(plot) {
      const { ctx } = plot;
      ctx.save();
      ctx.font = font(11);
      ctx.lineWidth = dense();
      for (const [start, end] of this.past.gaps) this.drawGapWords(plot, start, end);
      if (this.chart.id === "pressure") this.drawThresholds(plot);
      if (this.layers.length) this.drawWall(plot);
      ctx.textBaseline = "top";
      ctx.textAlign = "center";
      for (const [start, end, level] of this.chart.runs) this.drawStrip(plot, start, end, level);
      if (this.layers.length) this.drawForecast(plot);
      this.drawFlags(plot);
      ctx.restore();
    }

    drawFlags(plot) {
      const { ctx, bbox } = plot;
      ctx.textBaseline = "alphabetic";
      ctx.textAlign = "left";
      const taken = [];
      for (const { unix, number, word, kind } of this.flags) {
        const x = Math.round(plot.valToPos(unix, "x", true)) + 0.5;
        ctx.strokeStyle = ctx.fillStyle = css(LOUD.has(kind) ? "--critical" : kind === "mark" ? "--link" : "--muted");
        this.drawPole(ctx, x, bbox, kind === "level" ? 0 : bbox.height);
        this.drawWords(ctx, x, bbox, [`${number} ${shortened(word, 18)}`, `${number} ${shortened(word, 8)}`, `${number}`], taken);
      }
    }

    // Draw the longest label that does not overlap an earlier one. The list below has all of them.
    drawWords(ctx, x, bbox, choices, taken) {
      for (const label of choices) {
        const wide = ctx.measureText(label).width;
        const left = Math.min(x - 3 * dense(), bbox.left + bbox.width - wide);
        const right = left + wide + 8 * dense();
        if (taken.some((other) => left < other.right && other.left < right)) continue;
        taken.push({ left, right });
        ctx.fillText(label, left, bbox.top - 9 * dense());
        return;
      }
    }

    // Levels are already shaded behind the curves and need no line.
    drawPole(ctx, x, bbox, height) {
      ctx.lineWidth = dense();
      ctx.setLineDash([2 * dense(), 3 * dense()]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + height);
      ctx.stroke();
      ctx.setLineDash([]);
      ctx.beginPath();
      ctx.moveTo(x - 4 * dense(), bbox.top - 6 * dense());
      ctx.lineTo(x + 4 * dense(), bbox.top - 6 * dense());
      ctx.lineTo(x, bbox.top);
      ctx.fill();
    }
  }

  return Chart;
})();
