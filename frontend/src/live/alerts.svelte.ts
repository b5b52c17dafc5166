import type { Alert } from "./protocol";

const NOTIFY = "penstock.notify";

/** What somebody should look at: as the backend says it, and who has seen it here. */
class Alerts {
  all = $state.raw<Alert[]>([]);
  problems = $state.raw<string[]>([]);
  /** Whether this browser shows a notification for each. */
  notify = $state(localStorage.getItem(NOTIFY) === "yes" && "Notification" in window && Notification.permission === "granted");

  readonly holding = $derived(this.all.filter((alert) => alert.ended === null));

  #newest: number | null = null;

  take(alerts: Alert[], problems: string[]): void {
    const newest = alerts.reduce((most, alert) => Math.max(most, alert.id), 0);
    // What was there when the page was opened is no news; a backend that was started anew counts from the beginning.
    const after = this.#newest === null ? newest : newest < this.#newest ? 0 : this.#newest;
    if (this.notify) {
      for (const alert of alerts) {
        if (alert.id > after && alert.ended === null) this.#show(alert);
      }
    }
    this.#newest = newest;
    this.all = alerts;
    this.problems = problems;
  }

  async switchNotifications(on: boolean): Promise<void> {
    this.notify = on && "Notification" in window && (await Notification.requestPermission()) === "granted";
    localStorage.setItem(NOTIFY, this.notify ? "yes" : "no");
  }

  #show(alert: Alert): void {
    const shown = new Notification(`${alert.loader}: ${alert.rule}`, { body: alert.text, tag: `penstock-${alert.id}` });
    shown.onclick = () => {
      focus();
      location.hash = `#/loader/${encodeURIComponent(alert.loader)}`;
    };
  }
}

export const alerts = new Alerts();
