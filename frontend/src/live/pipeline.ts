import { bytes, bytesText, count, figure, micros } from "../format";
import { knows } from "./known";
import { WINDOWS } from "./numbers";
import type { Config, PinStage, Rates, Snapshot, Verdict } from "./protocol";
import type { WorkerLine } from "./workers";

export type StageId = NonNullable<Verdict["stage"]>;
export const STAGES: readonly StageId[] = ["sampler", "index", "workers", "reorder", "pin", "data", "training"];

/** One stage of the pipeline picture. */
export interface Stage {
  id: StageId;
  label: string;
  /** The one figure that matters here. */
  value: string;
  /** What it counts. */
  note: string;
  /** How fast it passes batches on; or, of the window, why it is as large as it is. */
  rate: string;
  /** How full or how busy, 0 to 1. */
  fill: number;
}

export interface PipelineFacts {
  snapshot: Snapshot;
  /** Means over the last seconds. */
  rates: Rates;
  lines: readonly WorkerLine[];
  pin: { busy: number; us: number };
  config: Config;
  /** Workers that there were, of a loader that is gone and has none any more. */
  were?: number;
}

export const PIN_MODES: Record<PinStage["mode"], string> = {
  off: "not asked for",
  accelerator: "pinned copy",
  mlock: "page-locked",
  none: "not possible here",
};

/** The batch everything finished waits for: the lowest one that a worker still has in hand. */
export function awaited(snapshot: Snapshot): { batch: number; worker: number } | null {
  let lowest: { batch: number; worker: number } | null = null;
  for (const { id, batch, state } of snapshot.workers) {
    if (state !== "fetching" && state !== "collating" && state !== "sending" && state !== "retiring") continue;
    if (batch >= snapshot.batch && (lowest === null || batch < lowest.batch)) lowest = { batch, worker: id };
  }
  return lowest;
}

export function alive(snapshot: Snapshot): number {
  return snapshot.workers.filter(({ state }) => state !== "dead").length;
}

export function stages(facts: PipelineFacts): Stage[] {
  const { snapshot, rates, lines, pin, config } = facts;
  const { queues } = snapshot;
  const window = Math.max(1, queues.window);
  const workers = facts.were ?? alive(snapshot);
  const unseen = config.engine === "torch";
  const made = lines.reduce((sum, { rate }) => sum + (Number.isNaN(rate) ? 0 : rate), 0);
  const cost = mean(lines.map(({ fetch, collate, send }) => fetch + collate + send));
  const yielded = `${figure(rates.batches)}/s`;
  const waiting = awaited(snapshot);
  const handed = snapshot.batch + queues.in_flight;
  const throughput = bytes(rates.pin_bytes);
  const step = rates.batches > 0 ? (rates.compute / rates.batches) * 1e6 : Number.NaN;
  const stepText = micros(step).split(" ");
  const all: Stage[] = [
    {
      id: "sampler",
      label: "Sampler",
      value: count(handed),
      note: snapshot.length === null ? "tasks handed out" : `of ${count(snapshot.length)} tasks`,
      rate: yielded,
      fill: snapshot.length ? handed / snapshot.length : 0,
    },
    {
      id: "index",
      label: "Index queues",
      value: count(queues.index),
      note: `${count(queues.in_flight)} of ${count(queues.window)} in flight`,
      rate: WINDOWS[queues.window_reason] || yielded,
      fill: queues.in_flight / window,
    },
    {
      id: "workers",
      label: "Workers",
      value: workers === 0 ? "in line" : unseen ? count(workers) : `${figure(Math.min(rates.busy, workers))} / ${workers}`,
      note: workers === 0 ? "no processes" : unseen ? "not seen inside" : Number.isNaN(cost) ? "busy" : `busy, ${micros(cost)} a batch`,
      rate: workers === 0 || facts.were !== undefined ? yielded : `${figure(made)}/s`,
      fill: workers === 0 ? 0 : rates.busy / workers,
    },
    {
      id: "reorder",
      label: "Reorder buffer",
      value: count(queues.reorder),
      note:
        queues.reorder > 0 && waiting !== null
          ? `wait for ${count(waiting.batch)}`
          : config.in_order
            ? "nothing held back"
            : "not in order",
      rate: queues.reorder_bytes > 0 ? bytesText(queues.reorder_bytes) : yielded,
      fill: queues.reorder / window,
    },
    {
      id: "pin",
      label: "Pin stage",
      value: snapshot.pin.mode === "off" ? "off" : throughput.value,
      note: snapshot.pin.mode === "off" ? PIN_MODES.off : `${throughput.unit}/s, ${PIN_MODES[snapshot.pin.mode]}`,
      rate: snapshot.pin.mode === "off" || Number.isNaN(pin.us) ? yielded : `${micros(pin.us)} a batch`,
      fill: pin.busy,
    },
    {
      id: "data",
      label: "Data queue",
      value: count(queues.data),
      note: queues.data === 1 ? "batch ready" : "batches ready",
      rate: yielded,
      fill: queues.data / window,
    },
    {
      id: "training",
      label: "Training",
      value: Number.isNaN(step) ? "–" : (stepText[0] ?? "–"),
      note: Number.isNaN(step) ? (snapshot.batches > 0 ? "no step lately" : "no step yet") : `${stepText[1] ?? ""} a step`,
      rate: yielded,
      fill: rates.compute,
    },
  ];
  return all.map((stage) => (knows(snapshot, NEEDED[stage.id]) ? stage : unknown(stage, snapshot)));
}

/** The field without which there is nothing to say of a stage. */
const NEEDED: Record<StageId, string> = {
  sampler: "queues.in_flight",
  index: "queues.index",
  workers: "workers",
  reorder: "queues.reorder",
  pin: "pin.bytes",
  data: "queues.data",
  training: "batches",
};

function unknown(stage: Stage, snapshot: Snapshot): Stage {
  const note = stage.id === "pin" && knows(snapshot, "pin.mode") ? PIN_MODES[snapshot.pin.mode] : "not known";
  return { ...stage, value: "–", note, rate: "\u00a0", fill: 0 };
}

function mean(values: readonly number[]): number {
  const real = values.filter((value) => !Number.isNaN(value));
  return real.length === 0 ? Number.NaN : real.reduce((sum, value) => sum + value, 0) / real.length;
}
