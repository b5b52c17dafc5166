import { clock, count, micros } from "../format";
import type { CommandEvent, CommandRecord, EpochEvent, ErrorEvent, Event, Note, Receipt, StackEvent, Stall, StoredEvent, TuningEvent, WorkerEvent } from "./protocol";

/** What the event list shows: everything but the spans, which belong to the timeline. */
export type Notable = Stall | StackEvent | WorkerEvent | EpochEvent | CommandEvent | ErrorEvent | TuningEvent | Receipt | Note;

/** An event with the words that the backend has for it. */
export type NotableEvent = Omit<StoredEvent, "event"> & { event: Notable };

export const EVENT_KINDS = [
  { kind: "error", label: "Errors" },
  { kind: "stall", label: "Stalls" },
  { kind: "stack", label: "Stacks" },
  { kind: "worker", label: "Workers" },
  { kind: "command", label: "Commands" },
  { kind: "receipt", label: "Receipts" },
  { kind: "epoch", label: "Epochs" },
  { kind: "tuning", label: "Autotune" },
  { kind: "note", label: "Notes" },
] as const;

export type EventKind = (typeof EVENT_KINDS)[number]["kind"];

export function isNotable(event: Event): event is Notable {
  return EVENT_KINDS.some(({ kind }) => kind === event.kind);
}

/** Add stored events to a list that is ordered by id, each once, and keep the newest `limit`. */
export function merged(have: readonly NotableEvent[], stored: readonly StoredEvent[], limit = 1000): NotableEvent[] {
  const known = new Set(have.map(({ id }) => id));
  const fresh: NotableEvent[] = [];
  for (const each of stored) {
    const { id, event } = each;
    if (known.has(id) || !isNotable(event)) continue;
    known.add(id);
    fresh.push({ ...each, event });
  }
  if (fresh.length === 0) return have as NotableEvent[];
  const all = [...have, ...fresh];
  const last = have[have.length - 1];
  const first = fresh[0];
  if (last !== undefined && first !== undefined && first.id < last.id) all.sort((a, b) => a.id - b.id);
  return all.slice(-limit);
}

/** One line of the event list: an event, or several that follow each other and are told as one. */
export interface EventLine extends NotableEvent {
  /** How many of what `fold` names this line stands for. */
  number: number;
  /** How long they took together, µs; 0: that is not said. */
  us: number;
}

/** The lines to show, newest first. What has the same `fold` becomes one line, and so does all that was told of one stall. */
export function lines(events: readonly NotableEvent[], kinds: ReadonlySet<EventKind>): EventLine[] {
  const result: EventLine[] = [];
  const told = new Set<string>();
  for (let place = events.length - 1; place >= 0; place--) {
    const each = events[place] as NotableEvent;
    const { event, fold, same } = each;
    if (!kinds.has(event.kind)) continue;
    if (same !== "" && told.has(same)) continue;
    told.add(same);
    const before = result[result.length - 1];
    const number = event.kind === "worker" ? 1 + event.others.length : 1;
    const us = event.kind === "stall" ? event.us : 0;
    if (fold !== "" && before?.fold === fold) {
      before.number += number;
      before.us += us;
      continue;
    }
    result.push({ ...each, number, us });
  }
  return result;
}

export function counts(events: readonly NotableEvent[]): Record<EventKind, number> {
  const result = { error: 0, stall: 0, stack: 0, worker: 0, command: 0, receipt: 0, epoch: 0, tuning: 0, note: 0 };
  const told = new Set<string>();
  for (const { event, same } of events) {
    if (same !== "" && told.has(same)) continue;
    told.add(same);
    result[event.kind] += 1;
  }
  return result;
}

/** What a line says: the backend's words, or how many there are of what they are called together. */
export function sentence({ text, fold, number, us }: EventLine): string {
  if (number === 1 || fold === "") return text;
  return `${count(number)} ${fold}${us > 0 ? `, ${micros(us)} in all` : ""}`;
}

/** Everything worth reading that does not fit the line: a stack, a reason, a command's audit. */
export function particulars(event: Notable, commands: ReadonlyMap<string, CommandRecord>): string {
  if (event.kind === "stall" || event.kind === "stack") return event.stack;
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
