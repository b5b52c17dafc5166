import { api, newKey, Problem } from "./api";
import { connection } from "./connection.svelte";
import type { LoaderFeed } from "./loader.svelte";

/** Asks a loader what a worker is doing now; -1: training. The answer comes as an event. */
export function stackNow(feed: () => LoaderFeed) {
  let problem = $state("");
  return {
    get problem() {
      return problem;
    },
    /** Why that cannot be asked; empty if it can. */
    get off(): string {
      const { session } = connection;
      if (connection.status !== "open" || session === null) return "Not connected: nothing can be asked just now.";
      if (session.read_only || !session.scopes.includes("control")) return "Read-only: asking needs a token with the scope “control”.";
      return feed().detail?.row.refuses ?? "";
    },
    async ask(worker: number): Promise<void> {
      problem = "";
      try {
        feed().noteCommand(await api.order(feed().id, { action: "stack", worker }, newKey()));
      } catch (error) {
        problem = error instanceof Problem ? error.text : String(error);
      }
    },
  };
}
