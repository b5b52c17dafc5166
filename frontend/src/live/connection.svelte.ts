import { alerts } from "./alerts.svelte";
import { address, api, Problem } from "./api";
import { backoff } from "./backoff";
import { now, Offset } from "./clock";
import { page } from "./page";
import { decodeToViewer, type FromViewer, type Session, type Subscribe, type ToViewer, type ToViewerWire } from "./protocol";

/** The page that is open: what it wants to hear, and what it does with it. */
export interface Listener {
  subscription(): Omit<Subscribe, "type">;
  receive(message: ToViewer): void;
  /** The connection is up (again) and the subscription sent: time to fill holes. */
  opened(): void;
}

export type Status = "connecting" | "open" | "waiting" | "signed-out";

/** Silence after which a connection counts as dead although it did not say so, in seconds. */
const PATIENCE = 12;
const PING_EVERY = 4;

/** One websocket for the whole page; it comes back by itself. */
export class Connection {
  status = $state<Status>("connecting");
  session = $state.raw<Session | null>(null);
  /** When the next attempt is due, by this browser's clock. */
  retryAt = $state(0);
  /** When the connection was lost; 0 while it holds. */
  lostAt = $state(0);

  /** The backend's clock on ours. */
  readonly clock = new Offset();

  #socket: WebSocket | null = null;
  #listener: Listener | null = null;
  #attempt = 0;
  #timer = 0;
  #heard = 0;
  #stopped = true;

  constructor() {
    setInterval(() => this.#beat(), PING_EVERY * 1000);
    addEventListener("online", () => this.retry());
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.retry();
    });
  }

  start(): void {
    this.#stopped = false;
    this.#attempt = 0;
    void this.#open();
  }

  stop(): void {
    this.#stopped = true;
    clearTimeout(this.#timer);
    this.#drop();
    this.session = null;
    this.status = "signed-out";
  }

  /** Try now instead of when the backoff says so. */
  retry(): void {
    if (this.status !== "waiting" || this.#stopped) return;
    clearTimeout(this.#timer);
    void this.#open();
  }

  listen(listener: Listener): () => void {
    this.#listener = listener;
    this.subscribe();
    return () => {
      if (this.#listener === listener) this.#listener = null;
    };
  }

  /** Tell the backend what the listener wants now. */
  subscribe(): void {
    if (this.status !== "open" || this.#listener === null) return;
    this.#send({ type: "subscribe", ...this.#listener.subscription() });
    this.#listener.opened();
  }

  #send(message: FromViewer): void {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }

  async #open(): Promise<void> {
    this.#drop();
    this.status = "connecting";
    // A browser does not say why a websocket was refused, so ask over HTTP first whether we are signed in.
    try {
      await api.session();
    } catch (error) {
      if (error instanceof Problem && (error.status === 401 || error.status === 403)) this.stop();
      else this.#later();
      return;
    }
    if (this.#stopped) return;
    // The page's half of the session goes where a browser lets a script say something: among the subprotocols.
    const socket = new WebSocket(address("ws/live").replace(/^http/, "ws"), ["penstock", `penstock-page.${page.half}`]);
    this.#socket = socket;
    this.#heard = now();
    socket.onmessage = ({ data }) => {
      if (socket === this.#socket) this.#receive(decodeToViewer(JSON.parse(data as string) as ToViewerWire));
    };
    socket.onclose = () => {
      if (socket === this.#socket) this.#later();
    };
  }

  #receive(message: ToViewer): void {
    this.#heard = now();
    if (message.type === "session" || message.type === "frame") this.clock.note(message.at, this.#heard);
    if (message.type === "alerts") {
      alerts.take(message.alerts, message.problems);
      return;
    }
    if (message.type !== "session") {
      this.#listener?.receive(message);
      return;
    }
    this.session = message;
    this.status = "open";
    this.lostAt = 0;
    this.#attempt = 0;
    this.subscribe();
  }

  #later(): void {
    this.#drop();
    if (this.#stopped) return;
    if (this.lostAt === 0) this.lostAt = now();
    const delay = backoff(this.#attempt++);
    this.status = "waiting";
    this.retryAt = now() + delay;
    clearTimeout(this.#timer);
    this.#timer = window.setTimeout(() => void this.#open(), delay * 1000);
  }

  #beat(): void {
    if (this.#socket === null) return;
    if (now() - this.#heard > PATIENCE) this.#later();
    else this.#send({ type: "ping", at: now() });
  }

  #drop(): void {
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
  }
}

export const connection = new Connection();
