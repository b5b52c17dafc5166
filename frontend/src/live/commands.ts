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
