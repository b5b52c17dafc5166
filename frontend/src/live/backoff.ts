/** How long to wait before the n-th attempt: doubling from half a second to two and a half, with half of it left to chance. */
export function backoff(attempt: number, chance: number = Math.random()): number {
  const most = Math.min(2.5, 0.5 * 2 ** Math.min(attempt, 10));
  return most / 2 + (most / 2) * chance;
}
