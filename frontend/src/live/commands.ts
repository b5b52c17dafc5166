import { count, micros } from "../format";
import type { CommandRecord } from "./protocol";

const OVER = new Set<CommandRecord["state"]>(["applied", "rejected", "timed_out", "superseded"]);
const ORDER: readonly CommandRecord["state"][] = [
  "accepted",
  "delivered",
  "pending",
  "superseded",
  "timed_out",
  "rejected",
  "applied",
];

export function isOver(command: CommandRecord): boolean {
  return OVER.has(command.state);
}

export function askedAt(command: CommandRecord): number {
  return command.transitions[0]?.at ?? 0;
}

/** Put a record into a list ordered by the moment of asking. One that is older than what we have is ignored. */
export function withCommand(have: readonly CommandRecord[], record: CommandRecord, limit = 200): CommandRecord[] {
  const known = have.find(({ id }) => id === record.id);
  if (known !== undefined && isStale(known, record)) return have as CommandRecord[];
  const rest = have.filter(({ id }) => id !== record.id);
  return [...rest, record].sort((a, b) => askedAt(a) - askedAt(b)).slice(-limit);
}

function isStale(known: CommandRecord, record: CommandRecord): boolean {
  if (record.transitions.length !== known.transitions.length) {
    return record.transitions.length < known.transitions.length;
  }
  return ORDER.indexOf(record.state) < ORDER.indexOf(known.state);
}

export interface Progress {
  /** asked: on its way · under-way: the loader has it · done · failed */
  phase: "asked" | "under-way" | "done" | "failed";
  head: string;
  text: string;
}

/** A command in words, at the control. Nothing is called done before the loader says so. */
export function progress(command: CommandRecord): Progress {
  const what = target(command);
  const took = command.took_us > 0 ? ` after ${micros(command.took_us)}` : "";
  switch (command.state) {
    case "accepted":
      return { phase: "asked", head: "Asked", text: `${what}; on its way to the loader` };
    case "delivered":
      return { phase: "under-way", head: "Delivered", text: `${what}; the loader is at it` };
    case "pending":
      return { phase: "under-way", head: "Pending", text: `${what}; holds from the next epoch` };
    case "applied": {
      const place = command.at_batch !== null && command.at_batch >= 0 ? ` at batch ${count(command.at_batch)}` : "";
      return { phase: "done", head: "Applied", text: `${what}${place}${took}` };
    }
    case "rejected":
      return { phase: "failed", head: "Rejected", text: `${what}: ${command.reason || "no reason given"}` };
    case "timed_out":
      return { phase: "failed", head: "Timed out", text: `${what}: the loader did not answer${took}` };
    case "superseded":
      return { phase: "failed", head: "Superseded", text: `${what}: ${command.reason || "a newer command took its place"}` };
  }
}

function target(command: CommandRecord): string {
  switch (command.action) {
    case "resize": {
      const to = command.state === "applied" ? (command.actual ?? command.workers) : command.workers;
      return command.before === null ? `${to ?? "?"} workers` : `${command.before} → ${to ?? "?"} workers`;
    }
    case "auto":
      return `autotune ${command.on === true ? "on" : "off"}`;
    case "pause":
      return command.resume_after === null ? "pause" : `pause for ${count(command.resume_after)} s`;
    case "profile":
      if (command.seconds === 0) return "end the profile";
      return command.seconds === null ? "profile until told to end" : `profile of ${count(command.seconds)} s`;
    default:
      return command.action;
  }
}

/** When a pause that is in force ends by itself, by the backend's clock; null if it does not. */
export function resumesAt(commands: readonly CommandRecord[]): number | null {
  for (let place = commands.length - 1; place >= 0; place--) {
    const command = commands[place] as CommandRecord;
    if (command.action !== "pause" && command.action !== "resume") continue;
    if (command.state !== "applied") continue;
    if (command.action === "resume" || command.resume_after === null) return null;
    const applied = command.transitions.find(({ state }) => state === "applied");
    return applied === undefined ? null : applied.at + command.resume_after;
  }
  return null;
}
