import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { clock } from "../format";
import type { Stretch } from "../live/ranges";
import { palette } from "./palette.svelte";
import { silences, splits, timeSplits } from "./scales";
import type { ChartView } from "./view.svelte";

/** What differs between the charts. */
export interface PlotSpec {
  view: ChartView;
  height: number;
  series: uPlot.Series[];
  bands?: uPlot.Band[];
  /** Write a value of the vertical axis. */
  axis: (value: number) => string;
  /** The cursor moved to this row of the data, or left (null). */
  onCursor: (row: number | null) => void;
}

const FONT = "11px Inter, system-ui, sans-serif";
const AXIS_HEIGHT = 20;
const time = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** One uPlot that draws a stretch of time: shared cursor, zoom by dragging, marks, gaps left open. */
export class Plot {
  readonly #plot: uPlot;
  readonly #spec: PlotSpec;
  readonly #resizes: ResizeObserver;
  #stretch: Stretch = { from: 0, to: 60 };
  #top = 1;
  #patience = Infinity;

  constructor(element: HTMLElement, spec: PlotSpec) {
    this.#spec = spec;
    const columns = spec.series.length + 1;
    const gaps: uPlot.Series.GapsRefiner = (plot, _series, _from, _to, found) => {
      for (const [before, after] of silences(plot.data[0], this.#patience)) {
        found.push([Math.round(plot.valToPos(before, "x", true)), Math.round(plot.valToPos(after, "x", true))]);
      }
      return found;
    };
    this.#plot = new uPlot(
      {
        width: Math.max(120, element.clientWidth),
        height: spec.height,
        padding: [10, 1, 0, 0],
        legend: { show: false },
        series: [{}, ...spec.series.map((each) => ({ points: { show: false }, gaps, ...each }))],
        ...(spec.bands ? { bands: spec.bands } : {}),
        scales: {
          x: { time: true, range: () => [this.#stretch.from, this.#stretch.to] },
          y: { range: () => [0, this.#top] },
        },
        axes: [
          { show: true, size: AXIS_HEIGHT, grid: { show: false }, ticks: { show: false }, splits: () => [], values: () => [] },
          { show: false },
        ],
        cursor: {
          y: false,
          points: { size: 7, width: 2 },
          sync: { key: "penstock", scales: ["x", null] },
          drag: { x: true, y: false, setScale: false, dist: 6 },
        },
        hooks: {
          drawAxes: [(plot) => this.#drawGrid(plot)],
          draw: [(plot) => this.#drawMarks(plot), (plot) => this.#drawLabels(plot)],
          setSelect: [(plot) => this.#select(plot)],
          setCursor: [(plot) => this.#cursor(plot)],
        },
      },
      Array.from({ length: columns }, () => []) as unknown as uPlot.AlignedData,
      element,
    );
    this.#resizes = new ResizeObserver(() => {
      const width = element.clientWidth;
      if (width > 0 && width !== this.#plot.width) this.#plot.setSize({ width, height: spec.height });
    });
    this.#resizes.observe(element);
  }

  destroy(): void {
    this.#resizes.disconnect();
    this.#plot.destroy();
  }

  /** Draw once. */
  draw(columns: readonly Float64Array[], stretch: Stretch, top: number, patience: number): void {
    this.#stretch = stretch;
    this.#top = top;
    this.#patience = patience;
    this.#plot.setData(columns as unknown as uPlot.AlignedData);
  }

  /** Move the cursor of all charts by some rows, from the keyboard. */
  step(rows: number): void {
    const plot = this.#plot;
    const times = plot.data[0];
    if (times.length === 0) return;
    const from = plot.cursor.idx ?? times.length - 1;
    const row = Math.min(times.length - 1, Math.max(0, from + rows));
    plot.setCursor({ left: plot.valToPos(times[row] as number, "x"), top: plot.height / 2 }, true);
  }

  #cursor(plot: uPlot): void {
    const left = plot.cursor.left ?? -1;
    const row = left < 0 ? null : (plot.cursor.idx ?? null);
    this.#spec.view.cursor = left < 0 ? Number.NaN : plot.posToVal(left, "x");
    this.#spec.onCursor(row);
  }

  #select(plot: uPlot): void {
    const { left, width } = plot.select;
    if (width < 6) return;
    const from = plot.posToVal(left, "x");
    const to = plot.posToVal(left + width, "x");
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    void this.#spec.view.zoomTo({ from, to: Math.max(to, from + 1) });
  }

  #drawGrid(plot: uPlot): void {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = palette.of("line");
    ctx.lineWidth = uPlot.pxRatio;
    ctx.beginPath();
    for (const value of splits(this.#top)) {
      const y = Math.round(plot.valToPos(value, "y", true)) + 0.5;
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
    }
    ctx.stroke();
    ctx.restore();
  }

  #drawMarks(plot: uPlot): void {
    const { ctx, bbox } = plot;
    const ratio = uPlot.pxRatio;
    ctx.save();
    for (const { at, kind } of this.#spec.view.marks) {
      if (at < this.#stretch.from || at > this.#stretch.to) continue;
      const x = Math.round(plot.valToPos(at, "x", true)) + 0.5;
      const colour = palette.of(kind === "death" ? "bad" : kind === "note" ? "ink" : "accent");
      ctx.strokeStyle = colour;
      ctx.fillStyle = colour;
      ctx.lineWidth = ratio;
      ctx.setLineDash([3 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.setLineDash([]);
      // Shape as well as colour: a triangle for a command, a cross for a death, a disc for a note.
      const r = 3.5 * ratio;
      ctx.beginPath();
      if (kind === "command") {
        ctx.moveTo(x - r, bbox.top - r);
        ctx.lineTo(x + r, bbox.top - r);
        ctx.lineTo(x, bbox.top + r);
        ctx.fill();
      } else if (kind === "note") {
        ctx.arc(x, bbox.top, r, 0, 2 * Math.PI);
        ctx.fill();
      } else {
        ctx.lineWidth = 1.75 * ratio;
        ctx.moveTo(x - r, bbox.top - r);
        ctx.lineTo(x + r, bbox.top + r);
        ctx.moveTo(x + r, bbox.top - r);
        ctx.lineTo(x - r, bbox.top + r);
        ctx.stroke();
      }
    }
    ctx.restore();
  }

  #drawLabels(plot: uPlot): void {
    const { ctx, bbox } = plot;
    const ratio = uPlot.pxRatio;
    const { from, to } = this.#stretch;
    ctx.save();
    ctx.font = FONT.replace("11px", `${11 * ratio}px`);
    ctx.fillStyle = palette.of("dim");
    ctx.strokeStyle = palette.of("card");
    ctx.lineWidth = 4 * ratio;
    ctx.lineJoin = "round";
    ctx.textBaseline = "bottom";
    ctx.textAlign = "left";
    for (const value of splits(this.#top).slice(1)) {
      const y = plot.valToPos(value, "y", true) + (value === this.#top ? 12 * ratio : -1.5 * ratio);
      const text = this.#spec.axis(value);
      ctx.strokeText(text, bbox.left, y);
      ctx.fillText(text, bbox.left, y);
    }
    ctx.textBaseline = "top";
    const wanted = Math.max(2, Math.floor(bbox.width / ratio / 84));
    const offset = -new Date(to * 1000).getTimezoneOffset() * 60;
    const bottom = bbox.top + bbox.height + 6 * ratio;
    for (const at of timeSplits(from, to, wanted, offset)) {
      const x = plot.valToPos(at, "x", true);
      const text = timeLabel(at, to - from);
      const half = ctx.measureText(text).width / 2;
      if (x - half < bbox.left || x + half > bbox.left + bbox.width) continue;
      ctx.fillText(text, x - half, bottom);
    }
    ctx.restore();
  }
}

function timeLabel(at: number, span: number): string {
  const moment = new Date(at * 1000);
  if (span <= 300) return clock(at, at);
  return span > 86_400 && moment.getHours() === 0 ? day.format(moment) : time.format(moment);
}
