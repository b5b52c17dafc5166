import { clock, count, micros, plural } from "../format";
import type { CommandEvent, CommandRecord, EpochEvent, ErrorEvent, Event, Receipt, Stall, StoredEvent, TuningEvent, WorkerEvent } from "./protocol";

/** What the event list shows: everything but the spans, which belong to the timeline. */
export type Notable = Stall | WorkerEvent | EpochEvent | CommandEvent | ErrorEvent | TuningEvent | Receipt;

export interface NotableEvent {
  id: number;
  event: Notable;
}

export const EVENT_KINDS = [
  { kind: "error", label: "Errors" },
  { kind: "stall", label: "Stalls" },
  { kind: "worker", label: "Workers" },
  { kind: "command", label: "Commands" },
  { kind: "receipt", label: "Receipts" },
  { kind: "epoch", label: "Epochs" },
  { kind: "tuning", label: "Autotune" },
] as const;

export type EventKind = (typeof EVENT_KINDS)[number]["kind"];

export function isNotable(event: Event): event is Notable {
  return EVENT_KINDS.some(({ kind }) => kind === event.kind);
}

/** Add stored events to a list that is ordered by id, each once, and keep the newest `limit`. */
export function merged(have: readonly NotableEvent[], stored: readonly StoredEvent[], limit = 1000): NotableEvent[] {
  const known = new Set(have.map(({ id }) => id));
  const fresh: NotableEvent[] = [];
  for (const { id, event } of stored) {
    if (known.has(id) || !isNotable(event)) continue;
    known.add(id);
    fresh.push({ id, event });
  }
  if (fresh.length === 0) return have as NotableEvent[];
  const all = [...have, ...fresh];
  const last = have[have.length - 1];
  const first = fresh[0];
  if (last !== undefined && first !== undefined && first.id < last.id) all.sort((a, b) => a.id - b.id);
  return all.slice(-limit);
}

/** One line of the event list: an event, or a row of short stalls that are told as one. */
export interface EventLine {
  id: number;
  kind: EventKind;
  at: number;
  event: Notable;
  /** Short stalls that this line stands for; one for every other line. */
  stalls: number;
  /** Their total length, µs. */
  us: number;
}

/** A stall shorter than this (µs) is not worth a line of its own. */
export const SHORT_STALL = 50_000;

/** The lines to show, newest first. Short stalls that follow each other become one line. */
export function lines(events: readonly NotableEvent[], kinds: ReadonlySet<EventKind>): EventLine[] {
  const result: EventLine[] = [];
  for (let place = events.length - 1; place >= 0; place--) {
    const { id, event } = events[place] as NotableEvent;
    if (!kinds.has(event.kind)) continue;
    const before = result[result.length - 1];
    const short = event.kind === "stall" && event.us < SHORT_STALL;
    if (short && before?.event.kind === "stall" && before.event.us < SHORT_STALL) {
      before.stalls += 1;
      before.us += event.us;
      continue;
    }
    result.push({ id, kind: event.kind, at: event.at, event, stalls: 1, us: event.kind === "stall" ? event.us : 0 });
  }
  return result;
}

export function counts(events: readonly NotableEvent[]): Record<EventKind, number> {
  const result = { error: 0, stall: 0, worker: 0, command: 0, receipt: 0, epoch: 0, tuning: 0 };
  for (const { event } of events) result[event.kind] += 1;
  return result;
}

export type Tone = "bad" | "good" | "plain";

export function toneOf(event: Notable): Tone {
  if (event.kind === "error") return "bad";
  if (event.kind === "worker") return event.what === "died" ? "bad" : "plain";
  if (event.kind === "epoch") return event.what === "failed" ? "bad" : "plain";
  if (event.kind === "receipt") return event.brought === "worse" ? "bad" : event.brought === "better" ? "good" : "plain";
  if (event.kind === "command") return event.state === "rejected" || event.state === "timed_out" ? "bad" : "good";
  return "plain";
}

/** An event in words. */
export function describe(line: EventLine): string {
  const { event } = line;
  switch (event.kind) {
    case "stall":
      return line.stalls > 1 ? `${plural(line.stalls, "short stall")}, ${micros(line.us)} in all` : stallText(event);
    case "worker":
      return workerText(event);
    case "epoch":
      return epochText(event);
    case "command":
      return commandText(event);
    case "tuning":
      return tuningText(event);
    case "receipt":
      return event.text;
    case "error":
      return errorText(event);
  }
}

function errorText(event: ErrorEvent): string {
  const place = event.worker >= 0 ? ` in worker ${event.worker}` : "";
  const batch = event.batch >= 0 ? ` at batch ${count(event.batch)}` : "";
  const sample = event.sample ? `, sample ${event.sample}` : "";
  const what = event.message ? `${event.type}: ${firstLine(event.message)}` : event.type;
  const whose = event.where === "training" ? "The training's own code" : event.where;
  const more = event.more > 0 ? ` (and ${count(event.more)} like it before)` : "";
  return `${whose} failed${place}${batch}${sample}: ${what}${event.fatal ? "; nobody caught it" : ""}${more}`;
}

function stallText(stall: Stall): string {
  const who = stall.worker >= 0 ? ` on worker ${stall.worker}` : "";
  const sample = stall.slowest_index
    ? `; slowest sample ${stall.slowest_index} took ${micros(stall.slowest_us)}`
    : "";
  const held = plural(stall.held_back, "finished batch", "finished batches");
  return `Stall of ${micros(stall.us)}: batch ${count(stall.batch)}${who} held back ${held}${sample}`;
}

function workerText(event: WorkerEvent): string {
  const name = `Worker ${event.worker} (pid ${event.pid})`;
  if (event.what === "born") return `${name} started`;
  if (event.what === "retired") return `${name} retired`;
  const how = event.signal || `exit code ${event.exitcode}`;
  const work = event.batch >= 0 ? ` at batch ${count(event.batch)}` : "";
  const after = event.retried ? "; its tasks went to others" : "";
  return `${name} died${work}: ${how}${after}`;
}

function epochText(event: EpochEvent): string {
  const done = plural(event.batches, "batch", "batches");
  switch (event.what) {
    case "started":
      return `Epoch ${event.epoch} started`;
    case "ended":
      return `Epoch ${event.epoch} ended after ${done}`;
    case "abandoned":
      return `Epoch ${event.epoch} was left after ${done}`;
    case "failed":
      return `Epoch ${event.epoch} failed after ${done}: ${firstLine(event.reason)}`;
  }
}

function firstLine(text: string): string {
  return text.split("\n", 1)[0] ?? "";
}

function commandText(event: CommandEvent): string {
  const sizes =
    event.action === "resize" ? ` ${event.before ?? "?"} → ${event.actual ?? event.asked ?? "?"}` : "";
  const place = event.at_batch !== null && event.at_batch >= 0 ? ` at batch ${count(event.at_batch)}` : "";
  // A token may be called "local" too; only a call in the training process has no command behind it.
  const script = event.by === "autotune" ? " by the tuner" : " by the training script";
  const who = event.command === "" ? script : event.by ? ` by ${event.by}` : "";
  const why = event.reason ? `: ${event.reason}` : "";
  const took = event.state === "applied" && event.took_us > 0 ? ` in ${micros(event.took_us)}` : "";
  return `${event.action.charAt(0).toUpperCase()}${event.action.slice(1)}${sizes} ${event.state.replace("_", " ")}${place}${took}${who}${why}`;
}

/** As `penstock/tuning/words.py` has it. */
function tuningText(event: TuningEvent): string {
  const change = `${event.before} → ${event.workers} workers`;
  const heads: Record<TuningEvent["what"], string> = {
    on: "Autotune is on",
    off: `Autotune is off: ${event.workers} workers stay`,
    pinned: `Autotune leaves ${event.workers} workers alone`,
    try: `Autotune tries ${change}`,
    keep: `Autotune keeps ${change}`,
    back: `Autotune goes back, ${change}`,
    hold: `Autotune holds ${event.workers} workers`,
    wake: "Autotune looks again",
    halve: `Autotune halves, ${change}`,
  };
  const rates: string[] = [];
  const rate = (value: number) => String(Number(value.toPrecision(3)));
  if (event.measured !== null) rates.push(`${rate(event.measured)} batches/s${event.what === "try" ? " now" : ""}`);
  if (event.predicted !== null) rates.push(`${rate(event.predicted)} expected`);
  const told = rates.length > 0 ? ` (${rates.join(", ")})` : "";
  return `${heads[event.what]}${event.why ? `: ${event.why}` : ""}${told}`;
}

/** Everything worth reading that does not fit the line: a stack, a reason, a command's audit. */
export function particulars(event: Notable, commands: ReadonlyMap<string, CommandRecord>): string {
  if (event.kind === "stall") return event.stack;
  if (event.kind === "error") return event.traceback;
  if (event.kind === "epoch") return event.reason.includes("\n") ? event.reason : "";
  if (event.kind === "command") {
    const record = commands.get(event.command);
    if (record === undefined) return "";
    const steps = record.transitions.map(({ state, at }) => `${clock(at)}  ${state.replace("_", " ")}`);
    return [`asked by ${record.by} from ${record.origin}`, ...steps].join("\n");
  }
  return "";
}
