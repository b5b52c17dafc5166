import type { NotableEvent } from "../live/events";

/** A command, a step of the tuner, a worker's death, a failure or a note on the time axis. */
export interface Mark {
  at: number;
  kind: "command" | "death" | "note";
  label: string;
}

export function marksOf(events: readonly NotableEvent[]): Mark[] {
  const marks: Mark[] = [];
  for (const { event, text } of events) {
    // The tuner's own resizes are told with their reasons, as its steps.
    const tuner = event.kind === "tuning" && event.what !== "hold";
    const command = tuner || (event.kind === "command" && event.state === "applied" && event.by !== "autotune");
    const death = (event.kind === "worker" && event.what === "died") || (event.kind === "epoch" && event.what === "failed");
    if (!command && !death && event.kind !== "note") continue;
    marks.push({ at: event.at, kind: death ? "death" : command ? "command" : "note", label: text });
  }
  return marks;
}

/** The mark nearest to a moment, within a distance in seconds. */
export function nearest(marks: readonly Mark[], at: number, within: number): Mark | null {
  let best: Mark | null = null;
  for (const mark of marks) {
    const distance = Math.abs(mark.at - at);
    if (distance <= within && (best === null || distance < Math.abs(best.at - at))) best = mark;
  }
  return best;
}
