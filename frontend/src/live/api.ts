import {
  type CommandRecord,
  type Comparison,
  type History,
  type LoaderDetail,
  type LoaderRow,
  type Order,
  type Predictions,
  type QuarantinePage,
  type RunChange,
  type Session,
  type StoredEvent,
} from "./protocol";
import type { Place } from "./overview";
import { page } from "./page";

/** What the backend answered instead: an RFC 9457 problem, or no answer at all (status 0). */
export class Problem extends Error {
  readonly status: number;
  readonly title: string;

  constructor(status: number, title: string, detail: string) {
    super(detail || title);
    this.status = status;
    this.title = title;
  }

  /** The detail is a sentence; the title only names the kind of error. */
  get text(): string {
    return this.message;
  }
}

/** Every address is relative to the page, so a proxy may put it under any prefix. */
export function address(path: string): string {
  return new URL(path, document.baseURI).href;
}

async function ask(path: string, init: RequestInit): Promise<Response> {
  const headers = new Headers(init.headers);
  if (page.half !== "") headers.set("X-Penstock-Page", page.half);
  try {
    return await fetch(address(path), { credentials: "same-origin", cache: "no-store", ...init, headers });
  } catch {
    throw new Problem(0, "The dashboard does not answer", "");
  }
}

async function call<T>(path: string, init: RequestInit = {}): Promise<T> {
  const response = await ask(path, init);
  const body: unknown = response.status === 204 ? null : await response.json().catch(() => null);
  if (!response.ok) {
    const { title, detail } = (body ?? {}) as { title?: unknown; detail?: unknown };
    throw new Problem(
      response.status,
      typeof title === "string" ? title : `Error ${response.status}`,
      typeof detail === "string" ? detail : "",
    );
  }
  return body as T;
}

function post<T>(path: string, body: unknown, headers: Record<string, string> = {}, method = "POST"): Promise<T> {
  return call(path, {
    method,
    body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", ...headers },
  });
}

/** What became of an order to a whole run. */
export interface RunAnswer {
  commands: CommandRecord[];
  refused: { loader: string; reason: string }[];
}

const run = (name: string) => `api/runs/${encodeURIComponent(name)}`;
const of = (id: string) => `api/loaders/${encodeURIComponent(id)}`;

export const api = {
  session: () => call<Session>("api/session"),
  async signIn(secret: Secret): Promise<void> {
    page.keep((await post<{ page: string }>("api/session", secret)).page);
  },

  async signOut(): Promise<void> {
    await call<unknown>("api/session", { method: "DELETE" });
    page.forget();
  },

  /** An answer to be saved, and what to call it. */
  async file(path: string): Promise<{ name: string; content: Blob }> {
    const response = await ask(path, {});
    if (!response.ok) throw new Problem(response.status, `Error ${response.status}`, "");
    const name = /filename="([^"]+)"/.exec(response.headers.get("Content-Disposition") ?? "")?.[1];
    return { name: name ?? "penstock", content: await response.blob() };
  },

  loaders: () => call<LoaderRow[]>("api/loaders?hidden=true"),
  loader: (id: string) => call<LoaderDetail>(of(id)),

  history(id: string, from: number, to: number, points: number): Promise<History> {
    const query = new URLSearchParams({ from: String(from), to: String(to), points: String(points) });
    return call<History>(`${of(id)}/history?${query}`);
  },

  /** The newest events of some kinds; with `after`, the oldest ones after that id. */
  events(id: string, kinds: readonly string[], limit: number, after = 0): Promise<StoredEvent[]> {
    const query = new URLSearchParams(kinds.map((kind) => ["kind", kind]));
    query.set("limit", String(limit));
    if (after > 0) query.set("after", String(after));
    return call<StoredEvent[]>(`${of(id)}/events?${query}`);
  },

  /** What numbers of workers would bring: those given, `4,8` or `1-16`, or from half to four times those there are. */
  quarantine: (id: string, search: string) => call<QuarantinePage>(`${of(id)}/quarantine?${new URLSearchParams({ search })}`),

  predictions: (id: string, workers = "") =>
    call<Predictions>(`${of(id)}/predictions${workers === "" ? "" : `?workers=${workers}`}`),

  /** Two stretches of time side by side, written as in `insight/stretches.py`. */
  compare: (a: string, b: string) => call<Comparison>(`api/compare?${new URLSearchParams({ a, b })}`),

  commands: (id: string) => call<CommandRecord[]>(`${of(id)}/commands`),

  /** The key makes a repeated order the same order: pressing twice, or asking again after a lost answer. */
  order(id: string, order: Order, key: string): Promise<CommandRecord> {
    return post<CommandRecord>(`${of(id)}/commands`, order, { "Idempotency-Key": key });
  },

  orderRun(name: string, order: Order, key: string): Promise<RunAnswer> {
    return post<RunAnswer>(`${run(name)}/commands`, order, { "Idempotency-Key": key });
  },

  place: (name: string, place: Place) => post<unknown>(`${run(name)}/place`, { place }, {}, "PUT"),
  deleteRun: (name: string) => call<RunChange>(run(name), { method: "DELETE" }),
  runChanges: () => call<RunChange[]>("api/runs/changes"),
};

/** What signs in: a token, or the code of a link that can be used once. */
export type Secret = { token: string } | { once: string };

/** A random key; `crypto.randomUUID` exists only on secure origins, and a dashboard may be on plain http. */
export function newKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
