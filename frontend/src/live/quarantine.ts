import type { Quarantined } from "./protocol";

/** The newest first, of those that have every wanted word in their index, error or place. */
export function matching(bad: readonly Quarantined[], wanted: string): Quarantined[] {
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  return bad
    .filter(({ index, error, where }) => {
      const text = `${index} ${error} ${where}`.toLowerCase();
      return words.every((word) => text.includes(word));
    })
    .reverse();
}
